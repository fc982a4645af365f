//! The programs and libraries under test, built once per run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cargo_metadata::{Artifact, Message};

/// The topod binary.
pub(crate) fn topod() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("topod"))
}

/// The topoctl binary.
pub(crate) fn topoctl() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("topoctl"))
}

/// The xtask binary.
pub(crate) fn xtask() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("xtask"))
}

/// The transport's library for C: its shared and its static form.
pub(crate) fn c_library() -> &'static [PathBuf] {
    static BUILT: OnceLock<Vec<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| library("topod"))
}

/// The transport's module for Python, by the name cargo gives it.
pub(crate) fn python_module() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| library("topod_python").pop().expect("a dynamic library is a file"))
}

/// The plugin that NCCL loads, by the name cargo gives it.
pub(crate) fn tuner_plugin() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let files = library("nccl_tuner_topod");
        let shared = files.into_iter().find(|file| file.extension().is_some_and(|e| e == "so"));
        shared.expect("a dynamic library is a file")
    })
}

/// An example by its name.
pub(crate) fn example(name: &str) -> PathBuf {
    let built = built().iter().filter(|artifact| artifact.target.is_example());
    let built = built.filter(|artifact| artifact.target.name == name);
    let executable = built.filter_map(|artifact| artifact.executable.as_ref()).next();
    executable.expect("an example that is a program has an executable").into()
}

fn program(name: &str) -> PathBuf {
    let built = built().iter().filter(|artifact| artifact.target.is_bin());
    let built = built.filter(|artifact| artifact.target.name == name);
    let executable = built.filter_map(|artifact| artifact.executable.as_ref()).next();
    executable.expect("a binary target has an executable").into()
}

fn library(name: &str) -> Vec<PathBuf> {
    let built = built().iter().filter(|artifact| !artifact.target.is_bin());
    let built = built.filter(|artifact| artifact.target.name == name);
    built.flat_map(|artifact| &artifact.filenames).map(PathBuf::from).collect()
}

/// All that `cargo test --workspace` builds, by one call of cargo: another selection would have other features, and build everything below
/// anew. With the profile of the tests themselves, told by the folder this binary lies in.
fn built() -> &'static [Artifact] {
    static BUILT: OnceLock<Vec<Artifact>> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> Vec<Artifact> {
    let this = std::env::current_exe().expect("this test has a path");
    let folder = this.ancestors().nth(2).and_then(Path::file_name).expect("target/PROFILE/deps/x");
    let profile = if folder == "debug" { "dev".into() } else { folder.to_string_lossy() };
    let mut cargo = Command::new(env!("CARGO"));
    // What the cargo that runs this test says of it: build scripts of dependencies (ring's) look at it, and all above them, this
    // test among it, would be built anew.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let output = cargo
        .args(["build", "--workspace", "--lib", "--bins", "--tests", "--examples"])
        .args(["--profile", &profile])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(crate::workspace_root())
        .output()
        .expect("cargo, which built this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = Message::parse_stream(output.stdout.as_slice());
    let artifact = |message| match message {
        Ok(Message::CompilerArtifact(built)) => (!built.profile.test).then_some(built),
        Ok(_) => None,
        Err(error) => panic!("cargo's messages are JSON: {error}"),
    };
    messages.filter_map(artifact).collect()
}
