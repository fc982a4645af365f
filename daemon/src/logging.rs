//! The log: structured in the journal where stderr leads there, else lines on stderr.

use std::env;
use std::io::{self, IsTerminal as _};

use rustix::fs::fstat;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

mod journal;

use journal::Journal;

/// Names of kinds of events in the journal (`MESSAGE_ID`), for `journalctl MESSAGE_ID=...` and whoever acts on them. They never change.
pub mod message_id {
    /// Another topology is published.
    pub const PUBLISHED: &str = "8b5a1dd3a6b54b4e9b1f4c2f6d0e7a11";
    /// The machine could not be read; what was published stays.
    pub const NOT_READ: &str = "8b5a1dd3a6b54b4e9b1f4c2f6d0e7a12";
    /// The verdict on the machine is another one.
    pub const VERDICT: &str = "8b5a1dd3a6b54b4e9b1f4c2f6d0e7a13";
    /// Devices change again and again.
    pub const FLAPPING: &str = "8b5a1dd3a6b54b4e9b1f4c2f6d0e7a14";
    /// Something of the daemon's own does not work.
    pub const WARNING: &str = "8b5a1dd3a6b54b4e9b1f4c2f6d0e7a15";
}

/// Changes the filter of a running daemon.
pub type Refilter = Box<dyn Fn(EnvFilter) + Send + Sync>;

/// Begins to log.
#[must_use]
pub fn start(filter: EnvFilter) -> Refilter {
    let (filter, handle) = reload::Layer::new(filter);
    let journal = leads_to_the_journal().then(Journal::connect).and_then(Result::ok);
    let output = match journal {
        Some(journal) => journal.boxed(),
        None => {
            let fields = debug_fn(|writer, field, value| match field.name() {
                "message" => write!(writer, "{value:?}"),
                // For programs.
                "message_id" => Ok(()),
                name => write!(writer, "{name}={value:?}"),
            });
            tracing_subscriber::fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(io::stderr().is_terminal())
                .fmt_fields(fields.delimited(" "))
                .boxed()
        }
    };
    Registry::default().with(output.with_filter(filter)).init();
    Box::new(move |filter| {
        // The subscriber lives as long as the process.
        drop(handle.reload(filter));
    })
}

/// Whether the service manager connected stderr with the journal (systemd.exec(5)), and nobody put anything else in its place.
fn leads_to_the_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let Ok(found) = fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", found.st_dev, found.st_ino)
}
