//! What a receiver tells its sender of places: where in the caller's memory messages to come may be written.
//!
//! ```text
//!   receiver   offer ──▶ letter: up to eight places, with the number of messages consumed ──▶ sender
//!   sender     posts message n: into the place offered for n where it has come; else into the slot, as ever
//! ```
//!
//! A sender waits for no place: one that is ahead of its receiver fills slots. Letters are sends, not writes, so nobody can write the
//! sender's memory; they end receives of their own, and what ends receives comes in order, so a place is there before the credit without
//! which its message could not go through a slot either.

/// Bytes of a place in a letter: number (8), address (8), bytes (4), key (4), little endian.
const PLACE: usize = 24;
/// Most places of a letter.
pub(super) const MOST: usize = 8;
/// Bytes of a letter, at most.
pub(super) const LETTER: usize = MOST * PLACE;

/// Receives that a sender keeps posted by its first pair for credits and letters.
///
/// Of what its receiver has sent, it has taken everything up to the credit that let the last message which came be posted. Since then
/// there were at most `slots` credits, and letters that each told of at least one place not told before: of the `2 * slots + 1` messages from
/// the oldest that the credit left open to the last that may have a place.
pub(super) const fn receives(slots: usize) -> usize {
    3 * slots + 4
}

/// Where a message may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) message: u64,
    pub(super) address: u64,
    pub(super) bytes: u32,
    /// By which the sender names it.
    pub(super) key: u32,
}

/// Writes a letter into as much memory as it may take; its bytes.
pub(super) fn write(targets: impl Iterator<Item = Target>, into: &mut [u8]) -> usize {
    let mut bytes = 0;
    for (target, into) in targets.zip(into.as_chunks_mut::<PLACE>().0) {
        into[..8].copy_from_slice(&target.message.to_le_bytes());
        into[8..16].copy_from_slice(&target.address.to_le_bytes());
        into[16..20].copy_from_slice(&target.bytes.to_le_bytes());
        into[20..].copy_from_slice(&target.key.to_le_bytes());
        bytes += PLACE;
    }
    bytes
}

/// The places of a letter; `None` where it is none.
pub(super) fn read(letter: &[u8]) -> Option<impl Iterator<Item = Target>> {
    let (places, []) = letter.as_chunks::<PLACE>() else { return None };
    let target = |place: &[u8; PLACE]| {
        let long = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&place[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let short = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&place[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        Target { message: long(0), address: long(8), bytes: short(16), key: short(20) }
    };
    Some(places.iter().map(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_read_as_it_was_written() {
        let target = |message| Target { message, address: message << 40, bytes: 77, key: !0 };
        let mut letter = [0; LETTER];
        for count in 0..=MOST {
            let targets: Vec<_> = (0..count as u64).map(target).collect();
            let bytes = write(targets.iter().copied(), &mut letter);
            assert_eq!(bytes, count * PLACE);
            assert_eq!(read(&letter[..bytes]).unwrap().collect::<Vec<_>>(), targets);
        }
        assert_eq!(write((0..20).map(target), &mut letter), LETTER, "no more than fit");
        assert!(read(&letter[..LETTER - 1]).is_none());
    }
}
