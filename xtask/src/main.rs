//! The project's own commands: `cargo xtask ci` runs what CI runs, `cargo xtask codegen` makes the
//! checked-in protobuf code anew, `cargo xtask demo` shows the main job, `cargo xtask deb` makes a package.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

mod ci;
mod codegen;
mod demo;
mod package;
mod peers;
mod setup;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask <command>

commands:
  ci                  what tests need, then format, generated code, lints and tests; runs all and lists every failure
  codegen             make proto/src/generated from proto/topod/v1/*.proto
  codegen --check     fail where the checked-in code differs from what the .proto files give
  deb [FROM OUT]      a Debian package in target/debian, of a release build; or of the programs in folder FROM, in folder OUT
  demo                build, start topod on a recorded machine, show, plan, explain, run an all-reduce, stop
  peers [--results FILE] [--only TEXT]
                      time the collectives and those of MPI libraries in turn, tell them in a table; goes on where it stopped";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["ci"] => ci::run(),
        ["demo"] => demo::run(),
        ["peers", arguments @ ..] => peers::run(arguments),
        ["deb"] => package::deb(None, None).map(|package| println!("deb: {}", package.display())),
        ["deb", from, out] => package::deb(Some(Path::new(from)), Some(Path::new(out)))
            .map(|package| println!("deb: {}", package.display())),
        ["codegen"] => codegen::write().map(|written| println!("codegen: {written}")),
        ["codegen", "--check"] => {
            codegen::check().map(|()| println!("codegen: the generated code is up to date"))
        }
        [] | ["help" | "-h" | "--help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("xtask: unknown command '{}'\n\n{USAGE}", args.join(" "));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace's Cargo.toml.
/// Cargo in the workspace, as a shell calls it: without what the cargo that runs this program says of this program. Build scripts
/// of dependencies (ring's) look at it, and all above them would be built anew.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(workspace_root());
    command
}

fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}
