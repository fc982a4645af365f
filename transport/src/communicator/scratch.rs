//! Scratch memory that operations leave for those that come after.

use crate::memory::Aligned;

/// Pieces kept.
const KEPT: usize = 4;

/// Memory of earlier operations. The largest pieces are kept: they are those that take longest to be had from the system, page by page.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<Aligned>);

impl Scratch {
    /// At least so many bytes: the smallest piece that has them, else new ones.
    pub(super) fn take(&mut self, bytes: usize) -> Aligned {
        if bytes == 0 {
            return Aligned::new(0);
        }
        let pieces = self.0.iter().map(|memory| memory.bytes().len()).enumerate();
        let fits = pieces.filter(|(_, has)| *has >= bytes).min_by_key(|(_, has)| *has);
        fits.map_or_else(|| Aligned::new(bytes), |(at, _)| self.0.swap_remove(at))
    }

    /// Keeps what an operation took.
    pub(super) fn give_back(&mut self, memory: Aligned) {
        if memory.is_empty() {
            return;
        }
        self.0.push(memory);
        if self.0.len() > KEPT {
            let pieces = self.0.iter().map(|memory| memory.bytes().len()).enumerate();
            if let Some((at, _)) = pieces.min_by_key(|(_, has)| *has) {
                self.0.swap_remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many small operations there were, a large one's memory is there for the next like it.
    #[test]
    fn large_pieces_are_kept() {
        let mut scratch = Scratch::default();
        for power in 3..20 {
            for _ in 0..2 {
                let memory = scratch.take(1 << power);
                scratch.give_back(memory);
            }
        }
        let large = scratch.take(1 << 19);
        let place = large.bytes().as_ptr();
        scratch.give_back(large);
        for power in 3..16 {
            let memory = scratch.take(1 << power);
            assert_ne!(memory.bytes().as_ptr(), place, "a small one takes a small piece");
            scratch.give_back(memory);
        }
        assert_eq!(scratch.take(1 << 19).bytes().as_ptr(), place);
        assert!(scratch.take(0).is_empty());
    }
}
