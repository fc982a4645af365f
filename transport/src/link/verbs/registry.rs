//! Callers' buffers that NICs read where they lie.
//!
//! Registering takes far longer than sending, so it is done once, when a buffer is first sent from, and kept. What is kept must end
//! with the memory: pages that were given back and had again at the same address are other pages, and a NIC goes on reading the old
//! ones. Of memory that callers have from elsewhere nobody tells when it is given back (no hook into an allocator sees a stack, a
//! `munmap` by a library or a mapping that moves), so **only buffers of [`Communicator::allocate`](crate::Communicator::allocate) are
//! registered**, and deregistered when they are dropped and what was sent from them is acknowledged; all others go through the slots of a connection, with one copy more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::ffi::{Domain, Lent, Registration};
use crate::memory::{Aligned, Slot};

/// Shorter messages are copied: below a page, a second place to read costs the NIC more than the copy costs the processor.
const WORTH_LENDING: usize = 4096;

/// Messages sent by this process, and how many of them from callers' buffers.
static MESSAGES: AtomicU64 = AtomicU64::new(0);
static LENT: AtomicU64 = AtomicU64::new(0);

/// Counts a message.
pub(super) fn count(lent: bool) {
    MESSAGES.fetch_add(1, Ordering::Relaxed);
    if lent {
        LENT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Messages, and those of them that were lent.
pub(super) fn counts() -> (u64, u64) {
    (MESSAGES.load(Ordering::Relaxed), LENT.load(Ordering::Relaxed))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffers of a communicator, by where they begin.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<usize, Weak<Piece>>>);

/// A buffer.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Dropped before the memory.
    with: Mutex<With>,
    registry: Arc<Registry>,
    whole: Slot,
    _memory: Aligned,
}

/// With which NICs a buffer is registered.
#[derive(Debug, Default)]
struct With {
    registrations: Vec<Registration>,
    /// It was refused, or the group has ended: it is copied from now on.
    over: bool,
}

impl Registry {
    /// New memory, zeroed.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Arc<Piece> {
        let mut memory = Aligned::new(bytes);
        let whole = memory.slot(0, bytes);
        let registry = Arc::clone(self);
        let piece = Arc::new(Piece { with: Mutex::default(), registry, whole, _memory: memory });
        lock(&self.0).insert(start(whole), Arc::downgrade(&piece));
        piece
    }

    /// The buffer that some data lies in.
    fn piece(&self, data: Slot) -> Option<Arc<Piece>> {
        let pieces = lock(&self.0);
        let (from, piece) = pieces.range(..=start(data)).next_back()?;
        let piece = piece.upgrade()?;
        (start(data) - from <= piece.whole.bytes().checked_sub(data.bytes())?).then_some(piece)
    }

    /// Whether data lies in one of the buffers.
    pub(super) fn holds(&self, data: Slot) -> bool {
        self.piece(data).is_some()
    }

    /// Data as a NIC reads it where it lies, and the buffer, to be kept until it has; `None` where it is to be copied.
    pub(super) fn lend(&self, data: Slot, domain: &Arc<Domain>) -> Option<(Lent, Arc<Piece>)> {
        if data.bytes() < WORTH_LENDING {
            return None;
        }
        let piece = self.piece(data)?;
        let key = piece.key(domain)?;
        Some((Lent { data, key }, piece))
    }

    /// The group has ended: nothing is lent any more, though buffers may live on.
    pub(crate) fn end(&self) {
        let pieces: Vec<_> = lock(&self.0).values().filter_map(Weak::upgrade).collect();
        for piece in pieces {
            *lock(&piece.with) = With { registrations: Vec::new(), over: true };
        }
    }
}

impl Piece {
    pub(crate) const fn whole(&self) -> Slot {
        self.whole
    }

    /// Its key with a NIC, which it is registered with now if it is not.
    fn key(&self, domain: &Arc<Domain>) -> Option<u32> {
        let mut with = lock(&self.with);
        if with.over {
            return None;
        }
        if let Some(known) = with.registrations.iter().find(|known| known.is_with(domain)) {
            return Some(known.key());
        }
        match Registration::to_read(domain, self.whole) {
            Ok(made) => {
                let key = made.key();
                with.registrations.push(made);
                Some(key)
            }
            Err(error) => {
                tracing::warn!(target: "topod::net", %error, "messages from this buffer are copied");
                with.over = true;
                None
            }
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        lock(&self.registry.0).remove(&start(self.whole));
    }
}

fn start(data: Slot) -> usize {
    data.address().addr().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_found_in_the_buffer_it_lies_in() {
        let registry = Arc::new(Registry::default());
        let (one, other) = (registry.allocate(8192), registry.allocate(4096));
        for piece in [&one, &other] {
            let whole = piece.whole();
            assert!(registry.holds(whole) && registry.holds(whole.part(whole.bytes() - 1, 1)));
            let found = registry.piece(whole.part(64, 64)).unwrap();
            assert!(Arc::ptr_eq(&found, piece));
        }
        let mut elsewhere = Aligned::new(4096);
        assert!(!registry.holds(elsewhere.slot(0, 4096)));
        let (gone, kept) = (one.whole(), other.whole());
        drop(one);
        assert!(!registry.holds(gone) && registry.holds(kept), "forgotten with the memory");
    }
}
