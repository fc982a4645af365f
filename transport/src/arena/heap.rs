//! Registered buffers: memory that the other ranks of the host read and write where it lies.
#![expect(unsafe_code, reason = "a buffer is a place in a mapping that ranks share")]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use super::Arena;
use crate::element::Element;
use crate::link::verbs::{Piece, Registry};

/// Parts of the heap start on pages, so that no two buffers share one.
const GRAIN: usize = 4096;

/// What is taken of this rank's heap: start to end.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    taken: BTreeMap<usize, usize>,
}

impl Heap {
    /// The first gap of `bytes` below `limit`.
    fn take(&mut self, bytes: usize, limit: usize) -> Option<usize> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let mut start = 0;
        for (from, to) in &self.taken {
            if from - start >= bytes {
                break;
            }
            start = *to;
        }
        let end = start.checked_add(bytes).filter(|end| *end <= limit)?;
        self.taken.insert(start, end);
        Some(start)
    }

    fn give_back(&mut self, start: usize) {
        self.taken.remove(&start);
    }
}

/// A buffer that operations of its communicator use without copying it first, where all ranks share a host, or from which NICs send
/// where it lies. It reads and writes like a slice.
///
/// Other ranks touch it only during operations that were given it.
pub struct SharedBuffer<T> {
    memory: Memory<T>,
}

enum Memory<T> {
    Shared {
        arena: Arc<Arena>,
        heap: Arc<Mutex<Heap>>,
        offset: usize,
        length: usize,
    },
    /// Where the ranks do not share a host, and NICs join them.
    Registered(Arc<Piece>),
    /// Where they do not, either.
    Private(Vec<T>),
}

impl<T: Element> SharedBuffer<T> {
    pub(crate) fn private(length: usize) -> Self {
        Self { memory: Memory::Private(vec![T::default(); length]) }
    }

    /// `length` elements of zero that NICs read where they lie.
    pub(crate) fn registered(registry: &Arc<Registry>, length: usize) -> io::Result<Self> {
        let bytes = length.checked_mul(size_of::<T>()).filter(|b| isize::try_from(*b).is_ok());
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory: Memory::Registered(registry.allocate(bytes)) })
    }

    /// `length` elements of zero from the first `limit` bytes of this rank's heap.
    pub(crate) fn shared(
        arena: &Arc<Arena>,
        heap: &Arc<Mutex<Heap>>,
        length: usize,
        limit: usize,
    ) -> io::Result<Self> {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let bytes = length.checked_mul(size_of::<T>()).ok_or_else(full)?;
        let offset = heap
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(bytes, limit.min(arena.heap_bytes()))
            .ok_or_else(full)?;
        let (arena, heap) = (Arc::clone(arena), Arc::clone(heap));
        let mut buffer = Self { memory: Memory::Shared { arena, heap, offset, length } };
        if let Memory::Shared { arena, .. } = &buffer.memory {
            arena.back(offset, bytes.max(1).next_multiple_of(GRAIN))?;
        }
        buffer.fill(T::default());
        Ok(buffer)
    }

    /// Whether other ranks can reach it where it lies.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Shared { .. })
    }
}

impl<T> Drop for SharedBuffer<T> {
    fn drop(&mut self) {
        if let Memory::Shared { heap, offset, .. } = &self.memory {
            heap.lock().unwrap_or_else(PoisonError::into_inner).give_back(*offset);
        }
    }
}

impl<T: Element> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.memory {
            Memory::Private(data) => data,
            Memory::Registered(piece) => {
                // SAFETY: As below.
                unsafe { piece.whole().read() }
            }
            Memory::Shared { arena, offset, length, .. } => {
                let slot = arena.in_heap(arena.own, *offset, length * size_of::<T>());
                // SAFETY: This buffer's alone while no operation has it; any bits are elements.
                unsafe { slot.expect("taken from this heap").read() }
            }
        }
    }
}

impl<T: Element> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Private(data) => data,
            Memory::Registered(piece) => {
                // SAFETY: As in `deref`, and borrowed for writing.
                unsafe { piece.whole().write() }
            }
            Memory::Shared { arena, offset, length, .. } => {
                let slot = arena.in_heap(arena.own, *offset, *length * size_of::<T>());
                // SAFETY: As in `deref`, and borrowed for writing.
                unsafe { slot.expect("taken from this heap").write() }
            }
        }
    }
}

impl<T: Element> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer")
            .field("length", &self.len())
            .field("shared", &self.is_shared())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_the_limit_is_kept() {
        let mut heap = Heap::default();
        assert_eq!(heap.take(1, 4 * GRAIN), Some(0));
        assert_eq!(heap.take(GRAIN + 1, 4 * GRAIN), Some(GRAIN));
        assert_eq!(heap.take(GRAIN + 1, 4 * GRAIN), None);
        assert_eq!(heap.take(GRAIN, 4 * GRAIN), Some(3 * GRAIN));
        heap.give_back(GRAIN);
        assert_eq!(heap.take(2 * GRAIN, 4 * GRAIN), Some(GRAIN));
        assert_eq!(heap.take(usize::MAX, usize::MAX), None);
    }
}
