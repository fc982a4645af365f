//! The one integration binary: everything that takes more than one crate to see.
#![expect(clippy::print_stdout, reason = "tests say what they skip and what they measured")]

mod architecture;
mod bars;
mod cli;
mod corpora;
mod corpus_formats;
mod daemon;
mod deploy;
mod emulated;
mod fabric;
mod faces;
mod field_cases;
mod fixtures;
mod hosts;
mod launch;
mod probe;
mod programs;
mod properties;
mod service;
mod transport;
mod verbs;
mod wire;

use std::path::{Path, PathBuf};

/// The folder of the workspace's Cargo.toml.
fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("the tests are a member of the workspace").into()
}
