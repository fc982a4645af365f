//! The topod binary: arguments, logging, a runtime; the daemon itself is the library.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "configuration errors come before the log")]

use std::process::ExitCode;

use clap::Parser as _;
use daemon::{
    Activation, Args, Config, Notifier, Surroundings, chain, logging, notify, run, signals,
};
use tracing::error;

/// As topoctl: what was asked makes no sense.
const USAGE: u8 = 2;

/// A reading, two plans, the state on its way to disk, the files of a reload, and one to spare for a driver or disk that hangs.
const BLOCKING_THREADS: usize = 6;

fn main() -> ExitCode {
    if let Some(code) = daemon::probe::nvml_child::serve() {
        return code;
    }
    let mut args = Args::parse();
    // The service manager makes the folder and names it.
    args.state_directory = std::env::var_os("STATE_DIRECTORY").map(Into::into);
    let (config, filter) = match args.validate() {
        Ok(valid) => valid,
        Err(error) => {
            eprintln!("topod: {}", chain(&error));
            return ExitCode::from(USAGE);
        }
    };
    if args.check_config {
        eprintln!("topod: the configuration is valid");
        return ExitCode::SUCCESS;
    }
    let refilter = logging::start(filter);
    match serve(config, args, refilter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn serve(
    config: Config,
    args: Args,
    refilter: logging::Refilter,
) -> Result<(), Box<dyn std::error::Error>> {
    // One thread for IO, beside the blocking ones for probes and plans: small, and the GPUs' hosts are for jobs.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()?;
    let outcome = runtime.block_on(async {
        // Before anything is bound: a signal from now on drains rather than kills.
        let signals = signals::of_process()?;
        let surroundings = Surroundings {
            notifier: Notifier::from_env()?,
            activation: Activation::from_env()?,
            watchdog: notify::watchdog(),
            reload: Some(Box::new(move || args.validate())),
            refilter: Some(refilter),
        };
        run(config, signals, surroundings).await?;
        Ok(())
    });
    // A probe that hangs in a driver must not keep the process from ending.
    runtime.shutdown_background();
    outcome
}
