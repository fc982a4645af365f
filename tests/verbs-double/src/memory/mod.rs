//! Registered memory: what its keys allow, and moving bytes within it.

mod ffi;

use crate::fabric::Address;

pub(crate) use ffi::{Mapping, gather, mapped, peer};

/// A memory region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) context: Address,
    pub(crate) device: usize,
    pub(crate) pd: Address,
    /// Where it lies in this process.
    pub(crate) start: u64,
    /// What its first byte is called by in work requests.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// Whose memory it is.
    pub(crate) of: Of,
}

/// Whose memory a region is.
#[derive(Debug)]
pub(crate) enum Of {
    /// The process's own: its pages are locked.
    Host,
    /// A device's, by a DMA-BUF.
    DmaBuf { _mapping: Mapping },
    /// A device's, by a module that registered it with the RDMA stack.
    Peer,
}

impl Of {
    pub(crate) const fn is_device(&self) -> bool {
        !matches!(self, Self::Host)
    }
}

/// Bytes of this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// It is a device's.
    pub(crate) device: bool,
}

/// How many of the bytes are devices'.
pub(crate) fn of_devices(pieces: &[Piece]) -> u64 {
    pieces.iter().filter(|piece| piece.device).map(|piece| piece.length).sum()
}

impl Region {
    /// Where bytes lie that a request names; none where one of them is outside.
    pub(crate) fn place(&self, address: u64, length: u64) -> Option<Piece> {
        let offset = address.checked_sub(self.iova)?;
        let end = offset.checked_add(length)?;
        let device = self.of.is_device();
        (end <= self.length).then(|| Piece { start: self.start + offset, length, device })
    }
}

/// Copies from pieces to pieces; how many pieces were not there any more, whose bytes are lost.
pub(crate) fn transfer(from: &[Piece], to: &[Piece], packets: Option<u64>) -> u64 {
    let (data, lost) = gather(from);
    lost + scatter(&data, to, packets)
}

/// Writes bytes to pieces in their order, as [`transfer`]. With `packets`, so many bytes at a time from the last to the first.
pub(crate) fn scatter(data: &[u8], to: &[Piece], packets: Option<u64>) -> u64 {
    let (mut lost, mut rest) = (0, data);
    for piece in to {
        let length = usize::try_from(piece.length).unwrap_or(usize::MAX).min(rest.len());
        let (now, later) = rest.split_at(length);
        rest = later;
        if now.is_empty() {
            continue;
        }
        if !mapped(Piece { length: now.len() as u64, ..*piece }) {
            lost += 1;
            continue;
        }
        let packet = packets.and_then(|packet| usize::try_from(packet).ok()).unwrap_or(now.len());
        for (number, bytes) in now.chunks(packet).enumerate().rev() {
            ffi::store(piece.start + (number * packet) as u64, bytes);
        }
    }
    lost
}

/// What `/proc/self/maps` says of a range: whether all of it is mapped, and may be written where that is asked for.
pub(crate) fn may_be_pinned(maps: &str, start: u64, length: u64, write: bool) -> bool {
    let mut next = start;
    let end = start.saturating_add(length);
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(allowed)) = (words.next(), words.next()) else { continue };
        let Some((first, last)) = range.split_once('-') else { continue };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let (first, last) = (number(first), number(last));
        // Lines are in the order of addresses.
        if first <= next && next < last {
            if !allowed.starts_with('r') || (write && !allowed.starts_with("rw")) {
                return false;
            }
            next = last;
        }
        if next >= end {
            return true;
        }
    }
    next >= end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_outside_is_outside() {
        let region = Region {
            context: 0,
            device: 0,
            pd: 0,
            start: 0x1000,
            iova: 0x9000,
            length: 16,
            access: 0,
            lkey: 1,
            rkey: 2,
            of: Of::Host,
        };
        assert_eq!(
            region.place(0x9008, 8),
            Some(Piece { start: 0x1008, length: 8, device: false })
        );
        assert_eq!(region.place(0x9008, 9), None);
        assert_eq!(region.place(0x8fff, 1), None);
        assert_eq!(region.place(u64::MAX, 2), None);
    }

    #[test]
    fn ranges_of_several_mappings_are_looked_through() {
        let maps = "1000-3000 rw-p 0 0 0\n3000-4000 r--p 0 0 0 file\n6000-7000 rw-p 0 0 0\n";
        assert!(may_be_pinned(maps, 0x1800, 0x1000, true));
        assert!(may_be_pinned(maps, 0x1800, 0x2000, false));
        assert!(!may_be_pinned(maps, 0x1800, 0x2000, true));
        assert!(!may_be_pinned(maps, 0x3800, 0x3000, false));
    }

    #[test]
    fn bytes_go_piece_by_piece_in_either_order() {
        let (from, to) = ([1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0_u8; 11]);
        let piece = |start, length| Piece { start, length, device: false };
        let at = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64;
        for packets in [None, Some(4)] {
            let pieces = [piece(at(&to) + 5, 6), piece(at(&to), 5)];
            let whole = [piece(at(&from), 11)];
            assert_eq!(transfer(&whole, &pieces, packets), 0);
            let (moved, lost) = gather(&[piece(at(&to), 11)]);
            assert_eq!((moved, lost), (vec![7, 8, 9, 10, 11, 1, 2, 3, 4, 5, 6], 0));
        }
    }
}
