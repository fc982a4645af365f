//! topoctl: the face of topod for people and scripts.
//!
//! Every verb that reads works from a recorded file, from the daemon, or on this host; data goes to stdout,
//! diagnostics to stderr, the verdict to the exit code.
#![forbid(unsafe_code)]

mod archive;
mod args;
mod bench;
mod check;
mod client;
mod compare;
mod environment;
mod exec;
mod exit;
mod explain;
mod export;
mod fabric;
mod manual;
mod map;
mod nccl;
mod output;
mod plan;
mod select;
mod show;
mod size;
mod snapshot;
mod source;
mod status;
mod verify;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    if let Some(code) = daemon::probe::nvml_child::serve() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let wanted = !error.use_stderr();
            // Help goes to stdout, usage errors to stderr; nothing is left to do where printing fails.
            let _ = error.print();
            return if wanted { Exit::Ok } else { Exit::Usage }.into();
        }
    };
    match run(&cli.command) {
        Ok(exit) => exit.into(),
        Err(Failure { exit, message }) => {
            output::warn(&message);
            exit.into()
        }
    }
}

fn run(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Show(args) => show::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Check(args) => check::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Select(args) => select::run(args),
        Command::Map(args) => map::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Export(args) => export::run(args),
        Command::Env(args) => environment::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Nccl(args) => nccl::run(&args.command),
        Command::Fabric(args) => fabric::run(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Status(args) => status::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::pages(args),
        Command::BenchRank => bench::run_rank(),
    }
}
