//! What one client may take of the daemon.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, over all listeners.
    pub connections: usize,
    /// Calls and watches that one connection may have open.
    pub streams: u32,
    /// Calls a second of one connection, on average; twice as many at once.
    pub calls_per_second: u32,
    /// Largest request in bytes. Answers are as large as they must be.
    pub request_bytes: usize,
    /// Seconds after which a call is given up; watches have no end.
    pub call_seconds: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2048,
            streams: 256,
            calls_per_second: 5000,
            request_bytes: 256 * 1024,
            call_seconds: 60,
        }
    }
}

/// Lets so many calls a second pass, twice as many at once.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_second: f64,
    bucket: Mutex<(f64, Instant)>,
}

impl RateLimit {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, bucket: Mutex::new((2.0 * per_second, now)) }
    }

    /// Whether a call may pass now.
    pub(crate) fn pass(&self, now: Instant) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, then) = *bucket;
        let since = now.saturating_duration_since(then).as_secs_f64();
        let left = (left + since * self.per_second).min(2.0 * self.per_second);
        let pass = left >= 1.0;
        *bucket = (if pass { left - 1.0 } else { left }, now);
        pass
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many of `calls`, made at once after `wait_ms`, pass.
    fn passed(limit: &RateLimit, now: Instant, calls: u32) -> u32 {
        (0..calls).map(|_| u32::from(limit.pass(now))).sum()
    }

    #[test]
    fn bursts_pass_and_floods_do_not() {
        let start = Instant::now();
        let limit = RateLimit::new(10, start);
        assert_eq!(passed(&limit, start, 100), 20);
        assert_eq!(passed(&limit, start + Duration::from_millis(500), 100), 5);
        assert_eq!(passed(&limit, start + Duration::from_secs(600), 100), 20);
        // A clock that steps back lends nothing.
        assert_eq!(passed(&limit, start, 100), 0);
    }
}
