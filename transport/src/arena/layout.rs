//! Where things lie in the group's memory.

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// Words of a header after number, count and signature.
pub(crate) const WORDS: usize = 5;
/// Longest payload of an operation that goes through slots.
pub(crate) const SLOT_BYTES: usize = 16 << 10;
/// Longest payload that travels in the words of a header.
const INLINE_BYTES: usize = 8 * WORDS;
/// Longest payload of a short slot.
const SHORT_BYTES: usize = 1 << 10;
/// Headers of each rank: a page of them, one after the other, so that the processor fetches the next one ahead.
const HEADERS: u64 = (PAGE / LINE) as u64;
/// Short slots of each rank.
const SHORTS: u64 = 16;
/// Long slots of each rank, used one after the other: twice a second-level cache, so that what others have read has left theirs when it is
/// written again. With 4 slots, which stay in the caches, or 16 an exchange of 16 KiB between two ranks took 2.4 us, with 128 1.2.
const LONGS: u64 = 128;
/// The same where ranks share cores, and so caches.
const CROWDED_LONGS: u64 = 4;

/// Bytes of a rank's stage, which is used from its beginning to its end and then again. A line that another core has read is still in its
/// cache, and to write it again takes several times longer than to write one that has left it: so it is longer than second-level caches.
pub(crate) const STAGE_BYTES: usize = 2 << 20;
/// What a rank puts on its stage in a round, for all others together: large enough that ranks that share a core take turns seldom,
/// small enough that it stays in the second-level cache until it is read.
const OUTBOX_BYTES: usize = 256 << 10;
/// Most of it for one other rank.
const MOST_PART_BYTES: usize = 64 << 10;
/// Where a stage begins in its page. Callers' buffers mostly begin 0 or 16 bytes into a page, and copies are slow between places
/// that lie less than a line apart in theirs.
const STAGE_SHIFT: usize = 1024;

const SHORTS_BYTES: usize = 16 * SHORT_BYTES;
const _: () = assert!(SHORTS == 16 && LONGS >= HEADERS);

/// What all ranks must agree on to find anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) ranks: usize,
    /// Of each rank.
    pub(crate) heap_bytes: usize,
    /// Whether ranks share cores.
    pub(crate) crowded: bool,
}

impl Layout {
    /// Operations a rank may be ahead of the slowest, for a payload of so many bytes: its header, or its slot, is taken again that
    /// many operations later.
    pub(crate) const fn lap(self, bytes: usize) -> u64 {
        if bytes <= INLINE_BYTES {
            HEADERS
        } else if bytes <= SHORT_BYTES {
            SHORTS
        } else if self.longs() < HEADERS {
            self.longs()
        } else {
            HEADERS
        }
    }

    const fn longs(self) -> u64 {
        if self.crowded { CROWDED_LONGS } else { LONGS }
    }

    pub(super) const fn board(rank: usize) -> usize {
        PAGE + rank * PAGE
    }

    pub(super) const fn header(self, rank: usize, number: u64) -> usize {
        PAGE + (self.ranks + rank) * PAGE + place(number, HEADERS) * LINE
    }

    /// Where a payload of so many bytes lies.
    pub(super) const fn payload(self, rank: usize, number: u64, bytes: usize) -> usize {
        let slots = PAGE + 2 * self.ranks * PAGE + rank * self.slots_of_a_rank();
        if bytes <= INLINE_BYTES {
            self.header(rank, number) + LINE - INLINE_BYTES
        } else if bytes <= SHORT_BYTES {
            slots + place(number, SHORTS) * SHORT_BYTES
        } else {
            slots + SHORTS_BYTES + place(number, self.longs()) * SLOT_BYTES
        }
    }

    /// Most bytes that a rank stages in a round for one other rank; a multiple of every element's, and whole pages, so that all parts lie
    /// alike in their pages.
    pub(crate) const fn part(self) -> usize {
        let part = OUTBOX_BYTES / self.others() / PAGE * PAGE;
        if part < PAGE {
            PAGE
        } else if part > MOST_PART_BYTES {
            MOST_PART_BYTES
        } else {
            part
        }
    }

    /// Other ranks, and one at least.
    pub(crate) const fn others(self) -> usize {
        if self.ranks > 1 { self.ranks - 1 } else { 1 }
    }

    /// Bytes of a stage: room for some rounds however many ranks there are.
    pub(crate) const fn stage_bytes(self) -> usize {
        let round = (self.others() + 1) * self.part();
        if STAGE_BYTES < 4 * round { 4 * round } else { STAGE_BYTES }
    }

    pub(super) const fn stage(self, rank: usize) -> usize {
        self.stages() + rank * self.stage_of_a_rank() + STAGE_SHIFT
    }

    const fn stage_of_a_rank(self) -> usize {
        self.stage_bytes() + PAGE
    }

    const fn stages(self) -> usize {
        PAGE + 2 * self.ranks * PAGE + self.ranks * self.slots_of_a_rank()
    }

    #[expect(clippy::cast_possible_truncation, reason = "a small number")]
    const fn slots_of_a_rank(self) -> usize {
        SHORTS_BYTES + self.longs() as usize * SLOT_BYTES
    }

    pub(super) const fn heaps(self) -> usize {
        (self.stages() + self.ranks * self.stage_of_a_rank()).next_multiple_of(2 << 20)
    }

    pub(super) const fn heap(self) -> usize {
        self.heap_bytes.next_multiple_of(2 << 20)
    }

    pub(super) const fn bytes(self) -> usize {
        self.heaps() + self.ranks * self.heap()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder is below a small number")]
const fn place(number: u64, of: u64) -> usize {
    (number % of) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_where_something_else_does() {
        for crowded in [false, true] {
            lie_apart(Layout { ranks: 3, heap_bytes: 1, crowded });
        }
    }

    fn lie_apart(layout: Layout) {
        let mut taken = vec![(0, PAGE)];
        for rank in 0..3 {
            taken.push((Layout::board(rank), PAGE));
            taken.extend((0..HEADERS).map(|number| (layout.header(rank, number), LINE)));
            for bytes in [SHORT_BYTES, SLOT_BYTES] {
                let all = (0..layout.lap(bytes))
                    .map(|number| (layout.payload(rank, number, bytes), bytes));
                taken.extend(all);
            }
            taken.push((layout.stage(rank), layout.stage_bytes()));
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let (start, bytes) = taken.last().copied().unwrap();
        assert!(start + bytes <= layout.heaps());
        let inline = layout.payload(1, 70, INLINE_BYTES);
        assert_eq!(inline + INLINE_BYTES, layout.header(1, 70) + LINE);
        assert_eq!(layout.header(1, 70), layout.header(1, 70 - layout.lap(INLINE_BYTES)));
    }

    #[test]
    fn a_stage_has_room_for_rounds_of_any_number_of_ranks() {
        for ranks in [1, 2, 3, 8, 64, 1000] {
            let layout = Layout { ranks, heap_bytes: 0, crowded: false };
            assert!(layout.part().is_multiple_of(PAGE) && layout.part() > 0, "{ranks}");
            assert!(layout.part() * ranks <= layout.stage_bytes() / 2, "{ranks}");
        }
    }
}
