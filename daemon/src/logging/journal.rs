//! Events as entries of the journal, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram of fields.
//!
//! The message holds the fields as text too: who reads `journalctl -u topod` at night sees no others.

use std::fmt::{Debug, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Most bytes of a field. Datagrams hold some 200 KiB by default, and an entry has a dozen fields of ours.
const MOST_BYTES: usize = 8 << 10;

/// Sends events to the journal.
#[derive(Debug)]
pub(super) struct Journal(UnixDatagram);

impl Journal {
    /// The journal of this host.
    pub(super) fn connect() -> io::Result<Self> {
        Self::to(Path::new(SOCKET))
    }

    fn to(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A journal that is full must not hold the daemon up.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut entry = Entry::default();
        event.record(&mut entry);
        let mut bytes = Vec::new();
        put(&mut bytes, "MESSAGE", &(entry.message + &entry.text));
        put(&mut bytes, "PRIORITY", priority(*metadata.level()));
        put(&mut bytes, "SYSLOG_IDENTIFIER", "topod");
        put(&mut bytes, "TARGET", metadata.target());
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            put(&mut bytes, "CODE_FILE", file);
            put(&mut bytes, "CODE_LINE", &line.to_string());
        }
        bytes.extend(entry.fields);
        // There is nobody left to tell.
        drop(self.0.send(&bytes));
    }
}

/// Syslog's number: what tells of the ordinary run is a notice, which journals keep.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        Level::TRACE => "7",
    }
}

/// What is recorded of an event.
#[derive(Default)]
struct Entry {
    message: String,
    /// The fields in words, each after a space.
    text: String,
    /// The fields as the journal takes them.
    fields: Vec<u8>,
}

impl Entry {
    /// `plain` for the field, `shown` for the message.
    fn add(&mut self, name: &str, plain: &str, shown: &str) {
        match name {
            "message" => self.message.push_str(plain),
            _ => {
                // For programs alone.
                if name != "message_id" {
                    // Writing to a String cannot fail.
                    let _ = write!(self.text, " {name}={shown}");
                }
                put(&mut self.fields, &key(name), plain);
            }
        }
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        self.add(field.name(), &value, &value);
    }
}

/// A name as the journal takes them: capitals, digits and underscores, no underscore in front, 64 at most.
fn key(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(letter).skip_while(|c| !c.is_ascii_uppercase()).take(64).collect()
}

/// Adds a field: its name, its length and its bytes, which may hold line ends.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value[..value.floor_char_boundary(MOST_BYTES)];
    entry.extend(name.as_bytes());
    entry.push(b'\n');
    entry.extend((value.len() as u64).to_le_bytes());
    entry.extend(value.as_bytes());
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Fields of an entry, read by the protocol's text.
    fn fields(mut entry: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !entry.is_empty() {
            let end = entry.iter().position(|b| *b == b'\n').unwrap();
            let name = String::from_utf8(entry[..end].to_vec()).unwrap();
            let (length, rest) = entry[end + 1..].split_at(8);
            let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
            fields.insert(name, String::from_utf8(rest[..length].to_vec()).unwrap());
            assert_eq!(rest[length], b'\n');
            entry = &rest[length + 1..];
        }
        fields
    }

    /// The fields of what `log` logs.
    fn sent(log: impl FnOnce()) -> BTreeMap<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journald = UnixDatagram::bind(&path).unwrap();
        let layer = Journal::to(&path).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let mut entry = vec![0; 1 << 16];
        let length = journald.recv(&mut entry).unwrap();
        fields(&entry[..length])
    }

    #[test]
    fn an_entry_is_told_in_its_message_and_in_fields() {
        let found = sent(|| {
            let error = "line 3:\nno number";
            tracing::warn!(message_id = "8b5a", generation = 7, error, "not taken");
        });
        for (name, value) in [
            ("MESSAGE", "not taken generation=7 error=\"line 3:\\nno number\""),
            ("MESSAGE_ID", "8b5a"),
            ("GENERATION", "7"),
            ("ERROR", "line 3:\nno number"),
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "topod"),
        ] {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn what_is_long_is_cut_at_a_character() {
        let found = sent(|| tracing::info!(text = "a".repeat(8191) + "é"));
        assert_eq!(found["TEXT"].len(), 8191);
    }

    #[test]
    fn names_are_as_the_journal_takes_them() {
        for (name, as_key) in [("generation", "GENERATION"), ("_a.b-c", "A_B_C"), ("9x", "X")] {
            assert_eq!(key(name), as_key);
        }
    }
}
