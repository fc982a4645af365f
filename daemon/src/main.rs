//! The topod binary: arguments, logging, a runtime; the daemon itself is the library.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "configuration errors come before the log")]

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use clap::Parser as _;
use daemon::{Args, Config, Notifier, chain, run, signals};
use tracing::error;

/// As topoctl: what was asked makes no sense.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Some(code) = daemon::probe::nvml_child::serve() {
        return code;
    }
    let args = Args::parse();
    let (config, filter) = match args.validate().and_then(|c| Ok((c, args.log_filter()?))) {
        Ok(valid) => valid,
        Err(error) => {
            eprintln!("topod: {}", chain(&error));
            return ExitCode::from(USAGE);
        }
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).init();

    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn serve(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    // One thread for IO, beside the blocking ones for probes and plans: small, and the GPUs' hosts are for jobs.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()?;
    let outcome = runtime.block_on(async {
        // Before anything is bound: a signal from now on drains rather than kills.
        let signals = signals::of_process()?;
        run(config, signals, Notifier::from_env()?).await?;
        Ok(())
    });
    // A probe that hangs in a driver must not keep the process from ending.
    runtime.shutdown_background();
    outcome
}
