//! How the time of a run is shared out: a stage begins nothing after the end of its share, and what a stage leaves is the next one's.

use std::time::{Duration, Instant};

/// Until when something may begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub(crate) fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    pub(crate) fn is_over(self) -> bool {
        self.left().is_zero()
    }

    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The whole run's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    start: Instant,
    limit: Duration,
}

impl Budget {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { start: Instant::now(), limit }
    }

    /// The end of the share that lies at so many hundredths of the whole.
    pub(crate) fn until(self, hundredths: u32) -> Deadline {
        Deadline(self.start + self.limit * hundredths / 100)
    }

    pub(crate) fn spent(self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_each_other() {
        let budget = Budget::new(Duration::from_secs(1000));
        let (early, late) = (budget.until(20), budget.until(60));
        assert_eq!(late.0 - early.0, Duration::from_secs(400));
        assert!(!early.is_over() && early.left() <= Duration::from_secs(200));
        assert!(Budget::new(Duration::ZERO).until(100).is_over());
    }
}
