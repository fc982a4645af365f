//! Reports as operations end: gathered by a thread of their own, so that no operation waits for the daemon.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use proto::{OperationOutcome, OperationReport};
use transport::{Ended, Options, Outcome};

use crate::{default_socket, report};

/// Most reports of one call; the daemon takes no more.
const MOST: usize = 1024;
/// Reports that may wait for the daemon; what comes beyond is dropped.
const WAITING: usize = 8 * MOST;
/// Longest time that a report waits for others.
const GATHER: Duration = Duration::from_millis(200);
/// Longest time that a group's end waits for its last reports to be told.
const FAREWELL: Duration = Duration::from_secs(2);

/// Lets the daemon that [`Options::report`] names be told how the operations of a group end; nothing where it names none.
///
/// Until the group is dropped a thread tells the daemon what has gathered. A daemon that is not there, or is slow, costs reports and
/// nothing else: how many is told to the log in the end.
pub fn attach(options: &mut Options) {
    let Some(named) = &options.report else { return };
    let socket = if named == "default" { default_socket() } else { PathBuf::from(named) };
    let mut teller = Teller::new(move |reports: &[OperationReport]| {
        report(&socket, reports).inspect_err(|error| tracing::debug!(%error, "no report")).is_ok()
    });
    options.on_end = Some(Box::new(move |ended| teller.tell(of(ended))));
}

fn of(ended: &Ended) -> OperationReport {
    OperationReport {
        collective: ended.collective,
        outcome: match ended.outcome {
            Outcome::Done => OperationOutcome::Ok,
            Outcome::TimedOut => OperationOutcome::Timeout,
            Outcome::Failed => OperationOutcome::Failed,
        },
        bytes: ended.bytes,
        duration: ended.elapsed,
        // Plans predict for the machine's own links, over which processes on hosts do not talk.
        predicted: None,
    }
}

struct Teller {
    /// `None` where the system gave no thread.
    sender: Option<SyncSender<OperationReport>>,
    /// Says how many the daemon took, in the end.
    taken: Receiver<u64>,
    ended: u64,
}

impl Teller {
    fn new(tell: impl FnMut(&[OperationReport]) -> bool + Send + 'static) -> Self {
        let (sender, receiver) = sync_channel(WAITING);
        let (last, taken) = sync_channel(1);
        let thread =
            std::thread::Builder::new().name("topod-reports".to_owned()).spawn(move || {
                // The other end is gone where the farewell took too long.
                let _ = last.send(gather(&receiver, tell));
            });
        Self { sender: thread.ok().map(|_| sender), taken, ended: 0 }
    }

    fn tell(&mut self, report: OperationReport) {
        self.ended += 1;
        if let Some(sender) = &self.sender {
            // Full where the daemon is slow: operations go on.
            let _ = sender.try_send(report);
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        drop(self.sender.take());
        let taken = self.taken.recv_timeout(FAREWELL).unwrap_or(0);
        if taken < self.ended {
            let (taken, ended) = (taken, self.ended);
            tracing::warn!("the daemon heard of {taken} of {ended} operations");
        }
    }
}

/// Tells what comes until the other end is gone; how many were taken.
fn gather(
    receiver: &Receiver<OperationReport>,
    mut tell: impl FnMut(&[OperationReport]) -> bool,
) -> u64 {
    let mut taken = 0;
    while let Ok(first) = receiver.recv() {
        let mut reports = vec![first];
        let until = Instant::now() + GATHER;
        while reports.len() < MOST {
            match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(report) => reports.push(report),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        if tell(&reports) {
            taken += reports.len() as u64;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use topology::Collective;

    use super::*;

    fn a_report(bytes: u64) -> OperationReport {
        OperationReport {
            collective: Collective::AllReduce,
            outcome: OperationOutcome::Ok,
            bytes,
            duration: Duration::from_micros(3),
            predicted: None,
        }
    }

    #[test]
    fn every_report_is_told_once_and_in_order() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let mut teller = Teller::new(move |reports| {
            assert!(reports.len() <= MOST);
            heard.lock().unwrap().extend(reports.iter().map(|report| report.bytes));
            true
        });
        (0..3000).for_each(|bytes| teller.tell(a_report(bytes)));
        drop(teller);
        assert_eq!(*told.lock().unwrap(), (0..3000).collect::<Vec<_>>());
    }

    #[test]
    fn a_daemon_that_is_not_there_holds_nobody_up() {
        let mut options = Options::default();
        attach(&mut options);
        assert!(options.on_end.is_none(), "nobody asked for reports");
        options.report = Some("/nonexistent/topod.sock".to_owned());
        attach(&mut options);
        assert!(options.on_end.is_some());
        let mut teller = Teller::new(|_| false);
        (0..2 * WAITING as u64).for_each(|bytes| teller.tell(a_report(bytes)));
    }
}
