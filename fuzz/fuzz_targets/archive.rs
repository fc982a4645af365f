//! The reader of archives, its file alone: the daemon around it would be built with all it serves by.
#![no_main]
#![allow(dead_code, reason = "what the daemon uses of it")]

use std::io;

#[path = "../../daemon/src/recorded/archive.rs"]
mod archive;

/// What the file takes from the module around it.
#[derive(Debug, thiserror::Error)]
enum RecordedError {
    #[error("{0}")]
    Open(#[from] io::Error),
    #[error("{place}: {reason}")]
    Tree { place: String, reason: String },
}

impl RecordedError {
    fn tree(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Tree { place: place.into(), reason: reason.into() }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| archive::fuzz(bytes));
