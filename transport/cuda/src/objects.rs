//! What this process holds of the driver, counted: a test, or a user who looks for a leak, compares two counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::DriverError;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Context,
    Buffer,
    Stream,
    Event,
    Module,
    Registered,
    Opened,
}

const KINDS: usize = 7;

static HELD: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

/// Objects of the driver that this crate holds in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Objects {
    /// Primary contexts retained.
    pub contexts: usize,
    /// Allocations.
    pub buffers: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Modules loaded.
    pub modules: usize,
    /// Runs of host memory registered.
    pub registered: usize,
    /// Allocations of other processes that are open here.
    pub opened: usize,
}

/// What is held now.
#[must_use]
pub fn objects() -> Objects {
    let held = |kind: Kind| HELD[kind as usize].load(Ordering::Relaxed);
    Objects {
        contexts: held(Kind::Context),
        buffers: held(Kind::Buffer),
        streams: held(Kind::Stream),
        events: held(Kind::Event),
        modules: held(Kind::Module),
        registered: held(Kind::Registered),
        opened: held(Kind::Opened),
    }
}

pub(crate) fn made(kind: Kind) {
    HELD[kind as usize].fetch_add(1, Ordering::Relaxed);
}

/// After it was given back. A device that is lost refuses that too: its memory is gone with it, so this is no more than worth a word.
pub(crate) fn gone(kind: Kind, outcome: Result<(), DriverError>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, ?kind, "not given back");
    }
    HELD[kind as usize].fetch_sub(1, Ordering::Relaxed);
}
