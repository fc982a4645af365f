//! Where the doubles of hardware libraries are, and the host's build of the CUDA kernels.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// A double: a crate of this workspace that builds a library.
struct Double {
    package: &'static str,
    /// File name that cargo gives it.
    file: &'static str,
    /// The name under which the real one is installed.
    real_name: &'static str,
    /// Folders of its sources, from this crate.
    sources: &'static [&'static str],
}

const NVML: Double = Double {
    package: "nvml-double",
    file: "libnvidia_ml_double.so",
    real_name: "libnvidia-ml.so.1",
    sources: &["src", "../nvml-double/src"],
};

const CUDA: Double = Double {
    package: "cuda-double",
    file: "libcuda_double.so",
    real_name: "libcuda.so.1",
    sources: &["../cuda-double/src"],
};

const VERBS: Double = Double {
    package: "verbs-double",
    file: "libverbs_double.so",
    real_name: "libibverbs.so.1",
    sources: &["../verbs-double/src"],
};

/// The NVML double that belongs to the running test: `target/<profile>/libnvidia_ml_double.so`, found from the
/// test's own path. Where it is missing or older than its sources, cargo builds it; a test of another crate
/// does not make cargo do so.
///
/// # Panics
/// Where the test does not run from a target directory, or the double does not build.
#[must_use]
pub fn nvml_double_library() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| find(&NVML)).clone()
}

/// The double of the CUDA driver, as [`nvml_double_library`].
///
/// # Panics
/// As there.
#[must_use]
pub fn cuda_double_library() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| find(&CUDA)).clone()
}

/// The double of libibverbs, as [`nvml_double_library`].
///
/// # Panics
/// As there.
#[must_use]
pub fn verbs_double_library() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| find(&VERBS)).clone()
}

/// Copies the double as `libnvidia-ml.so.1` into a directory, such as one that a machine was written to: a copy
/// plays the scenario beside it, so that tests in one process can each have their own.
///
/// # Errors
/// Where the copy fails.
pub fn install_nvml_double(directory: &Path) -> io::Result<PathBuf> {
    let copy = directory.join(NVML.real_name);
    std::fs::copy(nvml_double_library(), &copy)?;
    Ok(copy)
}

/// Copies the double as `libcuda.so.1` into a directory: a copy plays the configuration beside it, and a program that is
/// started with the directory in `LD_LIBRARY_PATH` finds it.
///
/// # Errors
/// Where the copy fails.
pub fn install_cuda_double(directory: &Path) -> io::Result<PathBuf> {
    let copy = directory.join(CUDA.real_name);
    std::fs::copy(cuda_double_library(), &copy)?;
    Ok(copy)
}

/// Copies the double as `libibverbs.so.1` into a directory, as [`install_cuda_double`].
///
/// # Errors
/// Where the copy fails.
pub fn install_verbs_double(directory: &Path) -> io::Result<PathBuf> {
    let copy = directory.join(VERBS.real_name);
    std::fs::copy(verbs_double_library(), &copy)?;
    Ok(copy)
}

/// Builds the transport's CUDA kernels for the host into a directory, by the host's C++ compiler; the double of the driver runs
/// them where its configuration names the file.
///
/// # Errors
/// Where there is no such compiler, or it refuses.
pub fn build_cuda_kernels(directory: &Path) -> io::Result<PathBuf> {
    let file = directory.join("topod-kernels.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../transport/cuda/src/flagged.cu");
    let mut compiler = Command::new("g++");
    // It includes the reductions. As the test of their arithmetic builds them: no product is fused into a sum.
    compiler.args(["-std=c++17", "-O2", "-Wno-unknown-pragmas", "-ffp-contract=off"]);
    compiler.args(["-DTOPOD_HOST", "-x", "c++"]).arg(source);
    compiler.args(["-shared", "-fPIC", "-pthread", "-o"]).arg(&file);
    let output = compiler.output()?;
    if output.status.success() {
        Ok(file)
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

fn find(double: &Double) -> PathBuf {
    find_or_build(double).unwrap_or_else(|error| panic!("{}: {error}", double.package))
}

fn find_or_build(double: &Double) -> io::Result<PathBuf> {
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
    let library = profile.join(double.file);
    if modified(&library).is_none_or(|built| built < newest_source(double)) {
        build(double, profile)?;
    }
    if library.exists() { Ok(library) } else { Err(missing()) }
}

fn build(double: &Double, profile: &Path) -> io::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", double.package]);
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

/// The newest file of a double's sources.
fn newest_source(double: &Double) -> SystemTime {
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
    for folder in double.sources {
        walk(&here.join(folder), &mut newest);
    }
    newest
}
