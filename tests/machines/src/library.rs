//! Where the NVML double is.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// File name that cargo gives the double.
const LIBRARY: &str = "libnvidia_ml_double.so";

/// The name under which NVIDIA's driver installs the real one.
const REAL_NAME: &str = "libnvidia-ml.so.1";

/// The NVML double that belongs to the running test: `target/<profile>/libnvidia_ml_double.so`, found from the
/// test's own path. Where it is missing or older than its sources, cargo builds it; a test of another crate
/// does not make cargo do so.
///
/// # Panics
/// Where the test does not run from a target directory, or the double does not build.
#[must_use]
pub fn nvml_double_library() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| find().unwrap_or_else(|error| panic!("the NVML double: {error}"))).clone()
}

/// Copies the double as `libnvidia-ml.so.1` into a directory, such as one that a machine was written to: a copy
/// plays the scenario beside it, so that tests in one process can each have their own.
///
/// # Errors
/// Where the copy fails.
pub fn install_nvml_double(directory: &Path) -> io::Result<PathBuf> {
    let copy = directory.join(REAL_NAME);
    std::fs::copy(nvml_double_library(), &copy)?;
    Ok(copy)
}

fn find() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    // Tests lie in target/<profile>/deps, examples in target/<profile>/examples, binaries in target/<profile>.
    let mut profile = test.parent();
    if profile.is_some_and(|parent| parent.ends_with("deps") || parent.ends_with("examples")) {
        profile = profile.and_then(Path::parent);
    }
    let missing = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("no target directory above {}", test.display()),
        )
    };
    let profile = profile.ok_or_else(missing)?;
    let library = profile.join(LIBRARY);
    if modified(&library).is_none_or(|built| built < newest_source()) {
        build(profile)?;
    }
    if library.exists() { Ok(library) } else { Err(missing()) }
}

fn build(profile: &Path) -> io::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "nvml-double"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(name) => {
            command.args(["--profile", name]);
        }
    }
    if let Some(target) = profile.parent() {
        command.arg("--target-dir").arg(target);
    }
    let output = command.output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// The newest file of the double's sources, and of this crate's, which it is built on.
fn newest_source() -> SystemTime {
    fn walk(directory: &Path, newest: &mut SystemTime) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, newest);
            } else if let Some(time) = modified(&path) {
                *newest = time.max(*newest);
            }
        }
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut newest = SystemTime::UNIX_EPOCH;
    walk(&here.join("src"), &mut newest);
    walk(&here.join("../nvml-double/src"), &mut newest);
    newest
}
