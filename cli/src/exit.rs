//! Exit codes, one meaning each, and the error that carries one.

use std::fmt;
use std::process::ExitCode;

use topology::Severity;

/// What the process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, and nothing is wrong.
    Ok = 0,
    /// A bug or an environment that failed us.
    Internal = 1,
    /// Wrong usage, or input that cannot be read.
    Usage = 2,
    /// Works, slower than it should.
    Degraded = 3,
    /// Do not run jobs here.
    Critical = 4,
    /// Something could not be read, so nobody knows.
    Unknown = 5,
    /// The daemon does not answer.
    DaemonUnreachable = 6,
    /// Nothing can be planned: disconnected, or an impossible request.
    NoPlan = 7,
    /// The command of `exec` is there and cannot be run; the number is that of shells (POSIX.1-2017, XCU 2.8.2).
    CannotInvoke = 126,
    /// The command of `exec` is not there.
    NotFound = 127,
}

impl Exit {
    /// What the worst of some findings ends with.
    pub(crate) fn of(severities: impl IntoIterator<Item = Severity>) -> Self {
        match severities.into_iter().max() {
            Some(Severity::Critical) => Self::Critical,
            Some(Severity::Degraded) => Self::Degraded,
            Some(Severity::Info) | None => Self::Ok,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command gave nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn internal(error: impl fmt::Display) -> Self {
        Self::new(Exit::Internal, error.to_string())
    }
}
