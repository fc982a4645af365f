//! How a test runs over the double: in a child of its own, for a process loads one library; ranks are threads of it.
#![expect(unsafe_code, reason = "calls the double's own controls")]

use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::process::Command;

/// Set in a child: the test and the case that it is for.
const CHILD: &str = "TOPOD_VERBS_TEST";

/// Longer by far than any takes on a busy machine.
const LIMIT_SECONDS: &str = "600";

/// Runs `body` in a child over the double, with some more variables of it: one case of a test, which has a child for each.
#[track_caller]
pub(crate) fn over(test: &str, case: &str, variables: &[(&str, &str)], body: impl FnOnce(&Double)) {
    let own = format!("{test} {case}");
    if let Ok(wanted) = std::env::var(CHILD) {
        if wanted == own {
            body(&Double::load());
        }
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // This test binary again, for one test. A child that hangs is killed, and fails by that.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT_SECONDS]);
    command.arg(std::env::current_exe().expect("this test has a path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    find(&mut command, folder.path(), variables);
    run(command.env(CHILD, own), variables);
}

/// Has a command find the double, which shows its devices in a folder.
pub(crate) fn find(command: &mut Command, folder: &Path, variables: &[(&str, &str)]) {
    let (name, shown) = (folder.join("libibverbs.so.1"), folder.join("shown"));
    std::os::unix::fs::symlink(machines::verbs_double_library(), name).expect("a link");
    command.env("LD_LIBRARY_PATH", folder);
    command.env("TOPOD_VERBS_SYSFS", &shown).env("TOPOD_VERBS_DOUBLE_SYSFS", &shown);
    // Of settings that whoever runs the tests has.
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("NCCL_")) {
        command.env_remove(variable);
    }
    for (key, value) in variables {
        command.env(format!("TOPOD_VERBS_DOUBLE_{key}"), value);
    }
}

#[track_caller]
fn run(command: &mut Command, variables: &[(&str, &str)]) {
    let output = command.output().expect("this test runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let told = format!("{variables:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {told}", output.status);
    println!("{told}");
}

/// The double, in the child that has loaded it.
pub(crate) struct Double(libloading::Library);

impl Double {
    pub(crate) fn load() -> Self {
        // SAFETY: the double has no initialisers.
        let library = unsafe { libloading::Library::new("libibverbs.so.1") };
        let double = Self(library.expect("the double is found by its name"));
        // It shows its devices once it is called.
        double.report();
        assert!(Path::new(&std::env::var_os("TOPOD_VERBS_SYSFS").expect("a folder")).exists());
        double
    }

    pub(crate) fn set_faults(&self, faults: &str) {
        let text = CString::new(faults).expect("a text");
        // SAFETY: it has this signature.
        let set = unsafe {
            self.0.get::<extern "C" fn(*const c_char) -> c_int>("topodVerbsDoubleSetFaults")
        };
        assert_eq!(set.expect("its own control")(text.as_ptr()), 0, "{faults}");
    }

    pub(crate) fn report(&self) -> serde_json::Value {
        let mut text = vec![0_u8; 1 << 16];
        // SAFETY: it has this signature.
        let get = unsafe {
            self.0.get::<extern "C" fn(*mut u8, usize) -> c_int>("topodVerbsDoubleReport")
        };
        assert_eq!(get.expect("its own control")(text.as_mut_ptr(), text.len()), 0);
        let end = text.iter().position(|byte| *byte == 0).expect("an end");
        serde_json::from_slice(&text[..end]).expect("JSON")
    }

    /// Nothing that was made is left, by what the double counts and by what the link does, and no rule was broken.
    #[track_caller]
    pub(crate) fn nothing_left(&self) {
        let report = self.report();
        let left = report["left"].as_object().expect("what is left");
        assert!(left.values().all(|count| count == 0), "{report}");
        assert_eq!(transport::verbs_objects(), transport::VerbsObjects::default());
        assert_eq!(report["misuse"], serde_json::json!([]), "{report}");
        assert_eq!((&report["lost"], &report["deregistered_in_use"]), (&0.into(), &0.into()));
    }

    /// Nothing had to be sent twice: no receiver was ever not ready, and every message was answered.
    #[track_caller]
    pub(crate) fn nothing_sent_twice(&self) {
        let report = self.report();
        assert_eq!((&report["not_ready"], &report["unanswered"]), (&0.into(), &0.into()));
        let statuses = report["statuses"].as_object().expect("statuses");
        assert!(statuses.keys().all(|status| status == "0"), "{report}");
    }
}
