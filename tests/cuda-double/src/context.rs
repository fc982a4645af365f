//! Contexts: what is current on a thread, what a context reaches, and the error that ends it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use crate::code::Code;
use crate::driver::{Driver, driver};
use crate::memory::Place;
use crate::stream::Stream;

/// A device's primary context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: usize,
    pub(crate) device: usize,
    /// The first error that an operation met; from then on every call answers with it.
    error: AtomicU32,
    gone: AtomicBool,
    /// Devices whose memory it may reach, beside its own.
    peers: RwLock<BTreeSet<usize>>,
    pub(crate) streams: Mutex<Vec<Weak<Stream>>>,
    default: OnceLock<Arc<Stream>>,
    /// Held while an operation is queued on a stream that the default stream is ordered with.
    order: Mutex<()>,
}

impl Context {
    pub(crate) fn new(handle: usize, device: usize) -> Self {
        Self {
            handle,
            device,
            error: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            peers: RwLock::default(),
            streams: Mutex::default(),
            default: OnceLock::new(),
            order: Mutex::new(()),
        }
    }

    /// The error that ended it, if one did.
    pub(crate) fn check(&self) -> Result<(), Code> {
        match self.error.load(Ordering::Acquire) {
            0 if self.gone.load(Ordering::Acquire) => Err(Code::CONTEXT_IS_DESTROYED),
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// An operation failed: nothing runs any more.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.error.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn end(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(crate) fn reaches(&self, device: usize) -> bool {
        device == self.device
            || self.peers.read().unwrap_or_else(PoisonError::into_inner).contains(&device)
    }

    /// Whether its device may move or compute on these bytes.
    pub(crate) fn may_touch(&self, place: &Place) -> bool {
        match &place.allocation {
            Some(allocation) if !allocation.is_host() => self.reaches(allocation.device),
            _ => true,
        }
    }

    /// False where it was enabled before.
    pub(crate) fn enable_peer(&self, device: usize) -> bool {
        self.peers.write().unwrap_or_else(PoisonError::into_inner).insert(device)
    }

    /// False where it was not enabled.
    pub(crate) fn disable_peer(&self, device: usize) -> bool {
        self.peers.write().unwrap_or_else(PoisonError::into_inner).remove(&device)
    }

    pub(crate) fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The default stream, if anything used it.
    pub(crate) fn default_if_used(&self) -> Option<&Arc<Stream>> {
        self.default.get()
    }

    pub(crate) fn default_stream(self: &Arc<Self>) -> &Arc<Stream> {
        self.default.get_or_init(|| Stream::start(driver_or_panic(), self, 0, 0))
    }

    /// All streams that are alive.
    pub(crate) fn all_streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until everything that was queued has run.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        for stream in self.all_streams() {
            stream.wait_for(stream.submitted());
        }
        self.check()
    }
}

/// A context exists only where the driver is initialised.
fn driver_or_panic() -> &'static Driver {
    driver().unwrap_or_else(|_| unreachable!("a context without a driver"))
}

thread_local! {
    /// Contexts of this thread; the last is current. 0 is none.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn current_handle() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Replaces what is current; none takes it away.
pub(crate) fn set_current(handle: usize) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

pub(crate) fn push(handle: usize) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

pub(crate) fn pop() -> Option<usize> {
    STACK.with_borrow_mut(Vec::pop)
}
