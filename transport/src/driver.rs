//! A communicator that several threads use, and that a thread of its own may move.
//!
//! Operations move when somebody calls the communicator. A caller that computes between start and wait would leave them where
//! they are; a progress thread moves them meanwhile, for the price of a core while anything is in flight.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::communicator::Communicator;

/// Rounds in which nothing moved before the thread gives the core to others; then it naps between rounds.
const SPINS: u32 = 200;
const YIELDS: u32 = 2000;
const NAP: Duration = Duration::from_micros(50);

/// A communicator behind a lock.
#[derive(Debug)]
pub struct Driver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    communicator: Mutex<Communicator>,
    /// Callers that want the lock: they go before the thread, which would else take it again at once.
    wanted: AtomicUsize,
    /// Something is in flight, or the end has come.
    changed: Condvar,
    /// Set with the lock held.
    ended: std::sync::atomic::AtomicBool,
}

impl Driver {
    /// Takes a communicator; with `progress`, a thread moves what is in flight while nobody calls.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn new(communicator: Communicator, progress: bool) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            communicator: Mutex::new(communicator),
            wanted: AtomicUsize::new(0),
            changed: Condvar::new(),
            ended: std::sync::atomic::AtomicBool::new(false),
        });
        let thread = progress.then(|| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("topod-progress".to_owned())
                .spawn(move || drive(&shared))
        });
        Ok(Self { shared, thread: thread.transpose()? })
    }

    /// Calls the communicator while no other thread does.
    pub fn with<T>(&self, call: impl FnOnce(&mut Communicator) -> T) -> T {
        self.shared.wanted.fetch_add(1, Ordering::Relaxed);
        let mut communicator = self.shared.lock();
        self.shared.wanted.fetch_sub(1, Ordering::Relaxed);
        let result = call(&mut communicator);
        if self.thread.is_some() && communicator.in_flight() > 0 {
            self.shared.changed.notify_one();
        }
        result
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let locked = self.shared.lock();
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.changed.notify_one();
        drop(locked);
        // It has no other end than the one just asked for; had it panicked, the panic was printed.
        let _ = thread.join();
    }
}

impl Shared {
    /// A thread that panicked inside leaves a communicator of which other ranks hear by its silence.
    fn lock(&self) -> MutexGuard<'_, Communicator> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn drive(shared: &Shared) {
    let mut idle = 0_u32;
    loop {
        let mut communicator = shared.lock();
        while communicator.in_flight() == 0 && !shared.ended.load(Ordering::Relaxed) {
            idle = 0;
            communicator =
                shared.changed.wait(communicator).unwrap_or_else(PoisonError::into_inner);
        }
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        // After a failure nothing is in flight; whoever waits hears of it.
        let moved = communicator.progress().unwrap_or(false);
        drop(communicator);
        idle = if moved { 0 } else { idle.saturating_add(1) };
        if shared.wanted.load(Ordering::Relaxed) > 0 || (SPINS..YIELDS).contains(&idle) {
            std::thread::yield_now();
        } else if idle >= YIELDS {
            std::thread::sleep(NAP);
        } else {
            std::hint::spin_loop();
        }
    }
}
