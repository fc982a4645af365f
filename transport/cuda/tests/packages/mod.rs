//! NVIDIA's compiler and assembler from its packages, where they are.
//!
//! `cargo xtask ci` puts them under `target/cuda` where it can. `TOPOD_CUDA_PACKAGES` names another folder that holds them.
#![expect(unsafe_code, reason = "loads a library")]

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The run-time compiler: what it needs first.
pub(crate) const COMPILER: [&str; 2] = ["libnvrtc-builtins.so.12.9", "libnvrtc.so.12"];

/// Where such files lie, in this order; says what is skipped where one is missing.
pub(crate) fn wanted<const N: usize>(files: [&str; N]) -> Option<[PathBuf; N]> {
    let packages = packages();
    let found: Vec<PathBuf> = files.iter().filter_map(|file| find(&packages, file)).collect();
    let found = <[PathBuf; N]>::try_from(found).ok();
    if found.is_none() {
        println!("skipped: not all of {} below {}", files.join(", "), packages.display());
    }
    found
}

fn packages() -> PathBuf {
    std::env::var_os("TOPOD_CUDA_PACKAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda"),
        PathBuf::from,
    )
}

fn find(folder: &Path, file: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().find(|path| path.file_name().is_some_and(|name| name == file));
    here.or_else(|| folders.iter().find_map(|folder| find(folder, file)))
}

/// Makes a library that lies in no system folder one that is found by its name: one that is loaded has its name taken.
pub(crate) fn load(file: PathBuf) {
    // SAFETY: Initialisers of NVIDIA's compiler do nothing but set it up.
    let loaded = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.unwrap();
    std::mem::forget(loaded);
}
