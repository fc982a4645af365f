//! How a test runs over the double: in a child of its own, for a process loads one driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Set in a child: the test that it is for.
const CHILD: &str = "TOPOD_CUDA_TEST";

/// Longer by far than any takes on a busy machine.
const LIMIT_SECONDS: &str = "600";

/// The kernels as the host's compiler builds them, which the double runs by their names; `None` without one.
fn kernels() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // In a folder of this process first: what another has loaded must not be written.
        let draft = tempfile::tempdir_in(folder).expect("a folder beside the tests");
        match machines::build_cuda_kernels(draft.path()) {
            Ok(made) => {
                let place = folder.join("topod-kernels.so");
                std::fs::rename(made, &place).expect("a file just made");
                Some(place)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("{error}"),
        }
    };
    BUILT.get_or_init(build).as_deref()
}

/// This test binary again, for one test, over the double.
pub(crate) fn command(test: &str) -> Option<Command> {
    let Some(kernels) = kernels() else {
        println!("skipped: no g++, which builds the kernels for the double");
        return None;
    };
    let mut command = bare(test);
    command.env("TOPOD_CUDA_LIBRARY", machines::cuda_double_library());
    command.env("TOPOD_CUDA_DOUBLE_KERNELS", kernels);
    Some(command)
}

/// The same without a driver. One that hangs is killed, and fails by that.
pub(crate) fn bare(test: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT_SECONDS]);
    command.arg(std::env::current_exe().expect("this test has a path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command
}

pub(crate) fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|name| name == test)
}

/// Runs `body` in a child over the double with some more variables.
#[track_caller]
pub(crate) fn over(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        return body();
    }
    let Some(mut command) = command(test) else { return };
    run(command.envs(variables.iter().copied()));
}

#[track_caller]
pub(crate) fn run(command: &mut Command) {
    let output = command.output().expect("this test runs");
    assert!(output.status.success(), "{}", told(&output));
    println!("{}", told(&output));
}

pub(crate) fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// What processes left behind and called, as the double wrote it down.
#[track_caller]
pub(crate) fn nothing_left(report: &Path) {
    let text = std::fs::read_to_string(report).expect("a report of each process");
    assert!(!text.is_empty());
    for line in text.lines() {
        let told: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let left = told["left"].as_object().expect("what is left");
        assert!(left.values().all(|count| count.as_u64() == Some(0)), "{line}");
        assert_eq!(told["freed_while_open"], 0, "{line}");
        // Those by which tests write and read their buffers, and no other.
        let called = |call: &str| told["calls"][call].as_u64().unwrap_or(0);
        let by_tests = called("cuMemcpyHtoD_v2") + called("cuMemcpyDtoH_v2");
        assert_eq!(told["pageable_copies"].as_u64(), Some(by_tests), "{line}");
        assert!(told["calls"].get("cuCtxSynchronize").is_none(), "{line}");
        assert!(told["calls"].get("cuLaunchHostFunc").is_none(), "{line}");
    }
}
