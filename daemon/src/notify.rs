//! Tells the service manager what the daemon does: the datagrams of sd_notify(3), which are a few lines of text and
//! need no library.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::debug;

/// Longest wait for room in the manager's queue.
const LONGEST_SEND: Duration = Duration::from_secs(1);

/// How often the service manager wants to hear that the main loop turns: twice within the time it gives. `None` where it does not.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    let pid = env::var("WATCHDOG_PID").ok();
    if pid.is_some_and(|pid| pid.parse() != Ok(std::process::id())) {
        return None;
    }
    let microseconds: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (microseconds > 1).then(|| Duration::from_micros(microseconds / 2))
}

/// Where state changes are told; nowhere when no service manager asked for them.
#[derive(Debug, Default)]
pub struct Notifier(Option<(UnixDatagram, SocketAddr)>);

impl Notifier {
    /// The socket that `NOTIFY_SOCKET` names, where it does.
    ///
    /// # Errors
    /// Where it names something that is no socket address.
    pub fn from_env() -> io::Result<Self> {
        env::var_os("NOTIFY_SOCKET").map_or_else(|| Ok(Self(None)), |name| Self::to(&name))
    }

    /// The socket of that name: a path, or with a leading `@` an abstract address.
    ///
    /// # Errors
    /// Where that is no socket address.
    pub fn to(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
            path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not stop the daemon.
        socket.set_write_timeout(Some(LONGEST_SEND))?;
        Ok(Self(Some((socket, address))))
    }

    /// The daemon serves; `status` says what, in words.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// What the daemon does has changed.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}\n"));
    }

    /// The daemon reads its configuration and the machine anew; [`ready`](Self::ready) ends it.
    pub fn reloading(&self) {
        // CLOCK_MONOTONIC, by which the service manager tells this from an earlier reload.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let microseconds = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=reloading\n"));
    }

    /// The main loop still turns.
    pub fn alive(&self) {
        self.send("WATCHDOG=1\n");
    }

    /// The daemon drains.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining\n");
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.0 else { return };
        // A service manager that went away is no reason to stop serving.
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            debug!(%error, "cannot notify the service manager");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(listener: &UnixDatagram, name: &OsStr) {
        let notifier = Notifier::to(name).unwrap();
        notifier.ready("8 GPUs");
        let mut buffer = [0; 200];
        let length = listener.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1\nSTATUS=8 GPUs\n");
    }

    #[test]
    fn by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        check(&UnixDatagram::bind(&path).unwrap(), path.as_os_str());

        let name = format!("topod-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        check(&UnixDatagram::bind_addr(&address).unwrap(), OsStr::new(&format!("@{name}")));
    }

    #[test]
    fn nobody_listens() {
        Notifier::default().ready("to nobody");
        Notifier::to(OsStr::new("/nowhere/notify")).unwrap().ready("to nobody");
        assert!(Notifier::to(OsStr::new(&"x".repeat(200))).is_err());
    }
}
