//! How ranks that share memory tell each other things: every ordering their words rely on, in one place.
//!
//! ```text
//!   data   writer: payload, then the number (publish)         reader: the number (observe), then the payload
//!   room   reader: done, then how far it is (publish)         writer: how far all are (observe), then the next payload
//!   sleep  sleeper: bell, flag, count, FENCE, poll, sleep     waker: publish, FENCE, count, flag, ring
//! ```
//!
//! Of the two fences one comes first: either the sleeper's last poll sees what was published, or the waker sees the flag. The words
//! are generic, so that the tests run these very functions in every order that a memory model allows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word of 64 bits that one rank writes.
pub(crate) trait Long {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

/// A word of 32 bits that several write.
pub(crate) trait Short {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    fn fetch_sub(&self, value: u32, order: Ordering) -> u32;
}

macro_rules! words {
    ($long:ty, $short:ty) => {
        impl Long for $long {
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
        }
        impl Short for $short {
            fn load(&self, order: Ordering) -> u32 {
                self.load(order)
            }
            fn store(&self, value: u32, order: Ordering) {
                self.store(value, order);
            }
            fn swap(&self, value: u32, order: Ordering) -> u32 {
                self.swap(value, order)
            }
            fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
                self.fetch_add(value, order)
            }
            fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
                self.fetch_sub(value, order)
            }
        }
    };
}

words!(AtomicU64, AtomicU32);

/// Makes everything this rank did before visible to whoever observes the value.
pub(crate) fn publish(word: &impl Long, value: u64) {
    word.store(value, Ordering::Release);
}

/// What was published last, as far as this rank knows; with it everything its publisher did before.
pub(crate) fn observe(word: &impl Long) -> u64 {
    word.load(Ordering::Acquire)
}

/// Says that this rank is about to sleep. After this it must poll everything once more.
pub(crate) fn arm(flag: &impl Short, count: Option<&impl Short>, fence: impl FnOnce()) {
    flag.store(1, Ordering::Relaxed);
    if let Some(count) = count {
        count.fetch_add(1, Ordering::SeqCst);
    }
    fence();
}

/// This rank is awake again.
pub(crate) fn disarm(flag: &impl Short, count: Option<&impl Short>) {
    flag.store(0, Ordering::Relaxed);
    if let Some(count) = count {
        count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// After something was published, and a fence: whether anybody may be asleep, by a count or a flag.
pub(crate) fn may_sleep(word: &impl Short) -> bool {
    word.load(Ordering::Relaxed) != 0
}

/// Whether it falls to this rank to wake the one whose flag this is: of several that publish, one does.
pub(crate) fn claim(flag: &impl Short) -> bool {
    may_sleep(flag) && flag.swap(0, Ordering::Relaxed) != 0
}

/// What a bell says now: to be taken before [`arm`].
pub(crate) fn hear(bell: &impl Short) -> u32 {
    bell.load(Ordering::Relaxed)
}

/// Changes what a bell says, so that nobody who heard it before falls asleep on it.
pub(crate) fn ring(bell: &impl Short) {
    bell.fetch_add(1, Ordering::Release);
}

#[cfg(test)]
mod tests;
