//! Callers' buffers that NICs read and write where they lie.
//!
//! Registering takes far longer than sending, so it is done once, when a buffer is first sent from, and kept. What is kept must end
//! with the memory: pages that were given back and had again at the same address are other pages, and a NIC goes on reading the old
//! ones. Of memory that callers have from elsewhere nobody tells when it is given back (no hook into an allocator sees a stack, a
//! `munmap` by a library or a mapping that moves), so **only buffers of [`Communicator::allocate`](crate::Communicator::allocate) are
//! registered**, and deregistered when they are dropped and what was sent from them is acknowledged; all others go through the slots of a connection, with one copy more.
//!
//! Memory of devices is had elsewhere, and registered by who answers for it until it is let go (`Communicator::adopt`): by a DMA-BUF, or by its
//! address where a module of the kernel tells the RDMA stack of such memory. What is not the host's is never copied here.
//!
//! Each is registered up to twice with a NIC: to be read once it is sent from, and to be written by peers once it is received into. A
//! buffer that is only sent from can be written by nobody.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::ffi::{Domain, Lent, Registration};
use crate::memory::{Aligned, Slot, Space};

/// Shorter messages are copied: below a page, a second place to read costs the NIC more than the copy costs the processor.
pub(super) const WORTH_LENDING: usize = 4096;

/// Messages, and how many of them from callers' buffers, or into them.
#[derive(Debug, Default)]
pub(super) struct Count {
    all: AtomicU64,
    spared: AtomicU64,
}

pub(super) static SENT: Count = Count::new();
pub(super) static RECEIVED: Count = Count::new();

impl Count {
    const fn new() -> Self {
        Self { all: AtomicU64::new(0), spared: AtomicU64::new(0) }
    }

    /// Counts a message.
    pub(super) fn add(&self, spared: bool) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.spared.fetch_add(u64::from(spared), Ordering::Relaxed);
    }

    fn now(&self) -> (u64, u64) {
        (self.all.load(Ordering::Relaxed), self.spared.load(Ordering::Relaxed))
    }
}

/// Messages sent and received, and those of each that were not copied.
pub(super) fn counts() -> ((u64, u64), (u64, u64)) {
    (SENT.now(), RECEIVED.now())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The buffers of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// By where they begin.
    pieces: Mutex<BTreeMap<usize, Weak<Piece>>>,
    /// It was said that one could not be registered.
    told: AtomicBool,
}

/// A buffer.
#[derive(Debug)]
pub(crate) struct Piece {
    with: Mutex<With>,
    registry: Arc<Registry>,
    whole: Slot,
    memory: Memory,
}

/// What a buffer is of.
enum Memory {
    Host {
        _memory: Aligned,
    },
    Device {
        /// Of all of it.
        dma_buf: Option<OwnedFd>,
        /// Keeps it.
        _owner: Box<dyn Any + Send + Sync>,
    },
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host { .. } => "host",
            Self::Device { .. } => "device",
        })
    }
}

/// With which NICs a buffer is registered.
#[derive(Debug, Default)]
struct With {
    read: Keys,
    written: Keys,
}

/// The NICs that may do one of the two.
#[derive(Debug, Default)]
struct Keys {
    registrations: Vec<Registration>,
    /// It was refused, or the group has ended: it is copied from now on.
    over: bool,
    /// A NIC has not let it go.
    held: bool,
}

impl Keys {
    fn find(&self, domain: &Arc<Domain>) -> Option<&Registration> {
        self.registrations.iter().find(|known| known.is_with(domain))
    }

    /// That with a NIC, made now if there is none.
    fn with(
        &mut self,
        domain: &Arc<Domain>,
        make: impl FnOnce() -> io::Result<Registration>,
    ) -> Option<io::Result<&Registration>> {
        if self.over {
            return None;
        }
        if let Some(at) = self.registrations.iter().position(|known| known.is_with(domain)) {
            return Some(Ok(&self.registrations[at]));
        }
        Some(match make() {
            Ok(made) => Ok(self.registrations.push_mut(made)),
            Err(error) => {
                self.over = true;
                Err(error)
            }
        })
    }

    /// Deregisters it, for good.
    fn end(&mut self) {
        self.over = true;
        for mut known in self.registrations.drain(..) {
            self.held |= !known.end();
        }
    }
}

impl Registry {
    /// New memory, zeroed.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: usize) -> Arc<Piece> {
        let mut memory = Aligned::new(bytes);
        let whole = memory.slot(0, bytes);
        self.add(whole, Memory::Host { _memory: memory })
    }

    /// Memory of a device, which `owner` keeps.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        whole: Slot,
        dma_buf: Option<OwnedFd>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Piece> {
        self.add(whole, Memory::Device { dma_buf, _owner: owner })
    }

    fn add(self: &Arc<Self>, whole: Slot, memory: Memory) -> Arc<Piece> {
        let registry = Arc::clone(self);
        let piece = Arc::new(Piece { with: Mutex::default(), registry, whole, memory });
        lock(&self.pieces).insert(start(whole), Arc::downgrade(&piece));
        piece
    }

    /// The buffer that some data lies in.
    fn piece(&self, data: Slot) -> Option<Arc<Piece>> {
        let pieces = lock(&self.pieces);
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
        if !is_worth(data) {
            return None;
        }
        let piece = self.piece(data)?;
        let key = piece.key(domain)?;
        Some((Lent { data, key }, piece))
    }

    /// The key by which a peer writes data where it lies, and the buffer, to be kept until it has; `None` where it is to be copied.
    pub(super) fn land(&self, data: Slot, domain: &Arc<Domain>) -> Option<(u32, Arc<Piece>)> {
        if !is_worth(data) {
            return None;
        }
        let piece = self.piece(data)?;
        let key = piece.remote_key(domain)?;
        Some((key, piece))
    }

    /// Registers memory of a device with a NIC, to read and be written; or why that is refused.
    pub(super) fn register(&self, memory: Slot, domain: &Arc<Domain>) -> Result<(), String> {
        let Some(piece) = self.piece(memory) else { return Err("it is not known".to_owned()) };
        let With { written, .. } = &mut *lock(&piece.with);
        match written.with(domain, || piece.registration(domain, true)) {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("it was refused before".to_owned()),
        }
    }

    /// Says why a buffer is copied; loudly once.
    fn refused(&self, error: &io::Error) {
        if self.told.swap(true, Ordering::Relaxed) {
            tracing::debug!(target: "topod::net", %error, "messages of this buffer are copied");
        } else {
            tracing::warn!(target: "topod::net", %error, "messages of this buffer are copied, as will be those of others that cannot be registered");
        }
    }

    /// The group has ended: nothing is lent any more, though buffers may live on.
    pub(crate) fn end(&self) {
        let pieces: Vec<_> = lock(&self.pieces).values().filter_map(Weak::upgrade).collect();
        for piece in pieces {
            let mut with = lock(&piece.with);
            with.read.end();
            with.written.end();
        }
    }
}

impl Piece {
    pub(crate) const fn whole(&self) -> Slot {
        self.whole
    }

    /// Its key with a NIC, which it is registered with now if it is not.
    fn key(&self, domain: &Arc<Domain>) -> Option<u32> {
        let With { read, written } = &mut *lock(&self.with);
        // What peers write a NIC may read as well: no need to lock the memory twice.
        if let Some(known) = written.find(domain).filter(|_| !read.over) {
            return Some(known.key());
        }
        let made = read.with(domain, || self.registration(domain, false))?;
        made.map(Registration::key).map_err(|error| self.registry.refused(&error)).ok()
    }

    fn registration(&self, domain: &Arc<Domain>, written: bool) -> io::Result<Registration> {
        match &self.memory {
            Memory::Device { dma_buf: Some(fd), .. } => {
                Registration::of_dma_buf(domain, self.whole, fd, written)
            }
            _ => Registration::of_memory(domain, self.whole, written),
        }
    }

    /// What peers name it by towards a NIC, with which it is registered for that now if it is not.
    fn remote_key(&self, domain: &Arc<Domain>) -> Option<u32> {
        let With { written, .. } = &mut *lock(&self.with);
        let made = written.with(domain, || self.registration(domain, true))?;
        made.map(Registration::remote_key).map_err(|error| self.registry.refused(&error)).ok()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        lock(&self.registry.pieces).remove(&start(self.whole));
        let With { read, written } = self.with.get_mut().unwrap_or_else(PoisonError::into_inner);
        read.end();
        written.end();
        if read.held || written.held {
            // A NIC may still write it.
            let nothing = Memory::Host { _memory: Aligned::new(0) };
            std::mem::forget(std::mem::replace(&mut self.memory, nothing));
        }
    }
}

/// Whether sparing a copy is worth it; of a device's memory there is no copy.
fn is_worth(data: Slot) -> bool {
    data.space == Space::Device || data.bytes() >= WORTH_LENDING
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
