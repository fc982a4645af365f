//! What the operating system asks of the daemon.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// A request from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Read the machine again (SIGHUP).
    Reload,
    /// Finish what is in flight and end (SIGTERM, SIGINT).
    Terminate,
}

/// The process's signals from now on.
///
/// # Errors
/// Where handlers cannot be installed.
pub fn of_process() -> io::Result<mpsc::Receiver<Signal>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            let arrived = tokio::select! {
                Some(()) = hangup.recv() => Signal::Reload,
                Some(()) = terminate.recv() => Signal::Terminate,
                Some(()) = interrupt.recv() => Signal::Terminate,
                else => return,
            };
            if sender.send(arrived).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}
