//! NVML in a process of its own.
//!
//! The driver's library runs in whoever loads it. Where it aborts, it takes its process along; where it hangs in the kernel, its
//! thread stays. So a program that can be its own child asks it there:
//!
//! ```text
//!   topod ── starts itself: --nvml-child facts LIBRARY… ──▶ asks NVML, a line of JSON for each call, piece and fault
//!         ◀─────────────────── stdout ───────────────────
//!         what came before the child died or was killed is kept; the fault names the call it died in
//! ```
//!
//! Events are waited for in the same way: a child says one and ends. NVML lists GPUs when it is first opened in a process, so each
//! child sees those there are.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use topology::snapshot::FaultKind;

use super::{NvmlPart, PROBE};
use crate::probe::apart::{Message, Report};
use crate::probe::trouble::Trouble;

/// First argument of a child.
const ARGUMENT: &str = "--nvml-child";

/// What a child is for.
const FACTS: &str = "facts";
const EVENTS: &str = "events";

/// The running program itself, even where its file was replaced meanwhile.
#[must_use]
pub fn this_program() -> PathBuf {
    "/proc/self/exe".into()
}

/// For the beginning of a program's `main`: where this process was started as such a child, does its work and gives the exit code.
#[must_use]
pub fn serve() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != *ARGUMENT {
        return None;
    }
    let work = arguments.next().unwrap_or_default();
    let libraries: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    // The parent may be killed while this hangs in the driver.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    Some(match work.to_str() {
        Some(FACTS) => facts(&libraries),
        Some(EVENTS) => super::events::serve(&libraries),
        _ => ExitCode::from(2),
    })
}

/// One line of a child's output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Calling(String),
    Part(NvmlPart),
    Fault { place: String, kind: FaultKind, error: String },
}

/// Each line is out before the call it names is made: the next thing may be the library's abort.
fn facts(libraries: &[PathBuf]) -> ExitCode {
    let report = Report::to(PROBE, |message| {
        let line = match message {
            Message::Calling(call) => Line::Calling(call),
            Message::Part(part) => Line::Part(part),
            Message::Fault(fault) => {
                Line::Fault { place: fault.place, kind: fault.kind, error: fault.error }
            }
        };
        let written = serde_json::to_string(&line).map_err(io::Error::other).and_then(|text| {
            let mut out = io::stdout().lock();
            writeln!(out, "{text}")?;
            out.flush()
        });
        // Nobody listens any more.
        if written.is_err() {
            std::process::exit(1);
        }
    });
    super::read(libraries, &report);
    ExitCode::SUCCESS
}

/// A child that can be killed from elsewhere than where its output is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handle(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    child: Option<Child>,
    killed: bool,
}

impl Handle {
    /// Starts `program` as a child for some work.
    fn start(
        &self,
        program: &Path,
        work: &str,
        libraries: &[PathBuf],
    ) -> io::Result<BufReader<ChildStdout>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.killed {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut child = Command::new(program)
            .arg(ARGUMENT)
            .arg(work)
            .args(libraries.iter().map(OsString::from))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // The library's own words go where the program's do.
            .stderr(Stdio::inherit())
            .spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        state.child = Some(child);
        Ok(BufReader::new(out))
    }

    /// Kills it, whatever it is doing. One that was not started yet never is.
    pub(crate) fn kill(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.killed = true;
        if let Some(child) = &mut state.child {
            // It may have ended by itself.
            let _ = child.kill();
        }
    }

    /// Waits for its end. Called once its output has ended.
    fn wait(&self) -> Option<ExitStatus> {
        let child = self.0.lock().unwrap_or_else(PoisonError::into_inner).child.take();
        child?.wait().ok()
    }
}

/// As [`read`](super::read), in a child; runs until its output ends.
pub(in crate::probe) fn read(
    program: &Path,
    libraries: &[PathBuf],
    handle: &Handle,
    report: &Report<NvmlPart>,
) {
    let mut calling = program.display().to_string();
    report.calling(calling.clone());
    let out = match handle.start(program, FACTS, libraries) {
        Ok(out) => out,
        Err(error) => return report.fault(calling, Trouble::from(&error)),
    };
    for line in out.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Line::Calling(call)) => {
                calling.clone_from(&call);
                report.calling(call);
            }
            Ok(Line::Part(part)) => report.part(part),
            Ok(Line::Fault { place, kind, error }) => {
                report.fault(place, Trouble::plain(kind, error))
            }
            // What the library prints by itself; or half a line of one that died.
            Err(_) => {}
        }
    }
    let ended = handle.wait();
    if !ended.is_some_and(|status| status.success()) {
        let how =
            ended.map_or_else(|| "and it is not known how".into(), |status| status.to_string());
        let text = format!("the process that asked the driver ended in this call: {how}");
        report.fault(calling, Trouble::plain(FaultKind::Unreadable, text));
    }
}

/// Starts a child that waits for an event, and gives the line it says; `Err` with its exit code where it ends without one. `roll`
/// is called with the GPUs that answer, once the child listens.
pub(crate) fn next_event(
    program: &Path,
    libraries: &[PathBuf],
    handle: &Handle,
    mut roll: impl FnMut(&str),
) -> Result<String, Option<i32>> {
    let mut out = handle.start(program, EVENTS, libraries).map_err(|_| None)?;
    let mut line = String::new();
    let read = loop {
        line.clear();
        let read = out.read_line(&mut line);
        match line.strip_suffix('\n').and_then(|line| line.strip_prefix(super::events::ROLL)) {
            Some(gpus) if read.is_ok() => roll(gpus),
            _ => break read,
        }
    };
    let code = handle.wait().and_then(|status| status.code());
    if read.is_ok() && line.ends_with('\n') { Ok(line.trim_end().into()) } else { Err(code) }
}
