//! What NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE ask to see, as lines in NCCL's form:
//!
//! ```text
//!   HOST:PID:TID [0] TOPOD INFO text
//! ```
//!
//! The library tells by `tracing`, under targets that begin with `topod::` and end in a subsystem's name in lower case. Where the
//! program that it is part of listens to `tracing` itself, that is where it goes, and these variables have no effect.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use topology::Rank;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How much is told, as NCCL_DEBUG says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// The version, once.
    Version,
    /// What ends an operation, and what is not as it should be.
    Warn,
    /// What was decided and why.
    Info,
    /// Everything.
    Trace,
}

/// The subsystems that NCCL knows (docs/env, NCCL_DEBUG_SUBSYS); the library tells of some of them.
const SUBSYSTEMS: [&str; 16] = [
    "INIT",
    "COLL",
    "P2P",
    "SHM",
    "NET",
    "GRAPH",
    "TUNING",
    "ENV",
    "ALLOC",
    "CALL",
    "PROXY",
    "NVLS",
    "BOOTSTRAP",
    "REG",
    "PROFILE",
    "RAS",
];
/// Those told of by default, as NCCL has it.
const DEFAULT: [&str; 3] = ["INIT", "BOOTSTRAP", "ENV"];

/// What is to be told, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `None` is silence.
    pub(crate) detail: Option<Detail>,
    subsystems: BTreeSet<&'static str>,
    /// With %h and %p as given; `None` is stdout.
    pub(crate) file: Option<String>,
}

impl Default for Log {
    fn default() -> Self {
        Self { detail: None, subsystems: DEFAULT.into(), file: None }
    }
}

impl Log {
    pub(crate) fn set_detail(&mut self, text: &str) -> Result<(), String> {
        self.detail = Some(match text.to_ascii_uppercase().as_str() {
            "VERSION" => Detail::Version,
            "WARN" => Detail::Warn,
            "INFO" => Detail::Info,
            // ABORT is TRACE in NCCL, but for where it ends the process.
            "TRACE" | "ABORT" => Detail::Trace,
            _ => return Err("it is none of VERSION, WARN, INFO, TRACE".to_owned()),
        });
        Ok(())
    }

    pub(crate) fn set_subsystems(&mut self, text: &str) -> Result<(), String> {
        let (without, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        let mut named = BTreeSet::new();
        for name in list.split(',').map(str::trim) {
            if name.eq_ignore_ascii_case("ALL") {
                named.extend(SUBSYSTEMS);
                continue;
            }
            let known = SUBSYSTEMS.iter().find(|known| known.eq_ignore_ascii_case(name));
            let known = known
                .ok_or_else(|| format!("'{name}' is none of {}, ALL", SUBSYSTEMS.join(", ")))?;
            named.insert(known);
        }
        self.subsystems = if without {
            SUBSYSTEMS.into_iter().filter(|name| !named.contains(name)).collect()
        } else {
            named
        };
        Ok(())
    }

    /// Whether an event of this level and target is told.
    fn tells(&self, level: Level, target: &str) -> bool {
        let Some(detail) = self.detail else { return false };
        let Some(subsystem) = subsystem(target) else { return false };
        match level {
            Level::ERROR | Level::WARN => detail >= Detail::Warn,
            Level::INFO => detail >= Detail::Info && self.subsystems.contains(subsystem),
            Level::DEBUG | Level::TRACE => {
                detail >= Detail::Trace && self.subsystems.contains(subsystem)
            }
        }
    }

    /// The file's name, with the host for %h and the process for %p, as in NCCL.
    fn path(&self, host: &str) -> Option<String> {
        self.file.as_deref().map(|pattern| expand(pattern, host, None))
    }

    /// Listens from now on, for this process; whether it could: another listener of the program's stays. The first call of a
    /// process that has something to tell counts.
    ///
    /// # Errors
    /// Where the file cannot be made.
    pub fn install(&self) -> io::Result<bool> {
        static BEGUN: AtomicBool = AtomicBool::new(false);
        let Some(detail) = self.detail else { return Ok(true) };
        if BEGUN.swap(true, Ordering::Relaxed) {
            return Ok(true);
        }
        let host = crate::host::Host::this().name;
        let out: Box<dyn Write + Send> = match self.path(&host) {
            Some(path) => Box::new(File::create(path)?),
            None => Box::new(io::stdout()),
        };
        let lines = Lines { log: self.clone(), host, out: Mutex::new(out) };
        lines.write(Level::INFO, &format!("topod transport version {}", env!("CARGO_PKG_VERSION")));
        if detail == Detail::Version {
            return Ok(true);
        }
        Ok(tracing::subscriber::set_global_default(lines).is_ok())
    }
}

/// A path with the host for %h, the process for %p, and the rank for %r where there is one.
pub(crate) fn expand(pattern: &str, host: &str, rank: Option<Rank>) -> String {
    let mut path = String::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match (letter, letters.as_str().chars().next(), rank) {
            ('%', Some('h'), _) => path.push_str(host),
            ('%', Some('p'), _) => drop(write!(path, "{}", std::process::id())),
            ('%', Some('r'), Some(rank)) => drop(write!(path, "{rank}")),
            ('%', Some('%'), _) => path.push('%'),
            _ => {
                path.push(letter);
                continue;
            }
        }
        letters.next();
    }
    path
}

/// The subsystem of a target: of the library's own ones, and of the modules that name none.
fn subsystem(target: &str) -> Option<&'static str> {
    let own = target.strip_prefix("topod::");
    let named =
        own.and_then(|own| SUBSYSTEMS.iter().find(|s| s.eq_ignore_ascii_case(own)).copied());
    named.or_else(|| (target == "transport" || target.starts_with("transport::")).then_some("INIT"))
}

struct Lines {
    log: Log,
    host: String,
    out: Mutex<Box<dyn Write + Send>>,
}

impl Lines {
    fn write(&self, level: Level, text: &str) {
        let word = match level {
            Level::ERROR | Level::WARN => "WARN",
            Level::INFO => "INFO",
            Level::DEBUG | Level::TRACE => "TRACE",
        };
        let (host, process) = (&self.host, std::process::id());
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let line = format!("{host}:{process}:{thread} TOPOD {word} {text}\n");
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written is no reason to end a job.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.log.tells(*metadata.level(), metadata.target())
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.write(*event.metadata().level(), &format!("{}{}", text.message, text.fields));
    }

    // No spans are told of.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(detail: &str, subsystems: &str) -> Log {
        let mut log = Log::default();
        log.set_detail(detail).unwrap();
        if !subsystems.is_empty() {
            log.set_subsystems(subsystems).unwrap();
        }
        log
    }

    #[test]
    fn what_is_told() {
        let cases = [
            // detail, subsystems, level, target, told
            ("WARN", "", Level::ERROR, "topod::coll", true),
            ("WARN", "", Level::INFO, "topod::init", false),
            ("VERSION", "", Level::ERROR, "topod::init", false),
            ("info", "", Level::INFO, "topod::init", true),
            ("INFO", "", Level::INFO, "topod::env", true),
            ("INFO", "", Level::INFO, "topod::coll", false),
            ("INFO", "COLL", Level::INFO, "topod::coll", true),
            ("INFO", "coll,net", Level::INFO, "topod::init", false),
            ("INFO", "ALL", Level::INFO, "topod::graph", true),
            ("INFO", "^COLL", Level::INFO, "topod::graph", true),
            ("INFO", "^COLL", Level::INFO, "topod::coll", false),
            ("INFO", "^ALL", Level::INFO, "topod::init", false),
            ("INFO", "^ALL", Level::WARN, "topod::init", true),
            ("INFO", "", Level::DEBUG, "topod::init", false),
            ("TRACE", "", Level::DEBUG, "transport::mesh", true),
            ("TRACE", "ALL", Level::TRACE, "hyper::client", false),
        ];
        for (detail, subsystems, level, target, told) in cases {
            let log = log(detail, subsystems);
            assert_eq!(log.tells(level, target), told, "{detail} {subsystems} {level} {target}");
        }
        assert!(!Log::default().tells(Level::ERROR, "topod::init"), "silent by default");
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        let mut log = Log::default();
        assert!(log.set_detail("LOUD").unwrap_err().contains("none of VERSION"));
        assert!(
            log.set_subsystems("INIT,MAGIC").unwrap_err().starts_with("'MAGIC' is none of INIT")
        );
        assert_eq!(log, Log::default());
    }

    #[test]
    fn files_are_named_by_host_and_process() {
        let path = |pattern: &str| {
            let log = Log { file: Some(pattern.to_owned()), ..Log::default() };
            log.path("node1").unwrap()
        };
        let process = std::process::id();
        assert_eq!(path("/var/log/nccl.%h.%p"), format!("/var/log/nccl.node1.{process}"));
        assert_eq!(path("100%%.%x%"), "100%.%x%");
        assert_eq!(Log::default().path("node1"), None);
        assert_eq!(path("log.%r"), "log.%r", "a process's log is of no rank");
        assert_eq!(expand("trace.%r.json", "node1", Some(Rank(3))), "trace.3.json");
    }
}
