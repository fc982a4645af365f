//! The programs under test, built once per run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cargo_metadata::Message;

/// The topod binary.
pub(crate) fn topod() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("topod"))
}

/// The topoctl binary.
pub(crate) fn topoctl() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("topoctl"))
}

/// Builds a program of the workspace the way the tests themselves were built: as part of the whole, so that features
/// unify alike and nothing is compiled twice, and with the same profile, told by the folder this binary lies in.
fn build(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this test has a path");
    let folder = this.ancestors().nth(2).and_then(Path::file_name).expect("target/PROFILE/deps/x");
    let profile = if folder == "debug" { "dev".into() } else { folder.to_string_lossy() };
    let output = Command::new(env!("CARGO"))
        .args(["build", "--workspace", "--bin", name, "--profile", &profile])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(crate::workspace_root())
        .output()
        .expect("cargo, which built this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built = Message::parse_stream(output.stdout.as_slice()).find_map(|message| {
        match message.expect("cargo's messages are JSON") {
            Message::CompilerArtifact(built) if built.target.name == name => built.executable,
            _ => None,
        }
    });
    built.expect("a binary target has an executable").into()
}
