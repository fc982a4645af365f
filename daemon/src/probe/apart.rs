//! Runs each probe on a thread of its own, and leaves it behind when its time is up.
//!
//! A thread that hangs in the driver cannot be stopped, only abandoned. Two things follow. It tells what it found
//! piece by piece, so what it had before it hung is kept; and as long as it hangs no second one is started on the
//! same subject, or a daemon that probes every minute would gather hung threads.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use topology::Fault;
use topology::snapshot::FaultKind;

use super::trouble::Trouble;

/// Longest wait for the end of a probe that was stopped: a child that is killed ends at once, unless the kernel holds it.
const STOPPING: Duration = Duration::from_secs(2);

/// A probe to run apart from the rest.
pub(super) struct Apart {
    /// Its name in faults.
    pub(super) probe: &'static str,
    /// What it reads: the root directory or the library.
    pub(super) subject: PathBuf,
    /// When to leave it behind, from its start.
    pub(super) limit: Duration,
    /// Whether faults carry the time.
    pub(super) live: bool,
}

/// What a probe tells while it works.
pub(super) enum Message<T> {
    /// It is about to make this call.
    Calling(String),
    /// A piece of its facts.
    Part(T),
    /// A fact it could not read.
    Fault(Fault),
}

/// A probe's line to the one who waits for it. Telling never blocks and never fails: where nobody listens any
/// more, what is told is lost.
pub(super) struct Report<T> {
    probe: &'static str,
    clock: Clock,
    to: Box<dyn Fn(Message<T>) + Send>,
}

/// Stamps faults on a live host; a recorded tree gives the same snapshot whenever it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    live: bool,
}

/// A probe under way.
pub(super) struct Running<T> {
    apart: Apart,
    clock: Clock,
    /// `None` is beyond what the clock can tell.
    deadline: Option<Instant>,
    state: State<T>,
}

enum State<T> {
    Thread { from: Receiver<Message<T>>, handle: JoinHandle<()>, alive: Weak<()> },
    NotStarted(Fault),
}

/// The probes left behind so far, with what tells whether they still hang.
static ABANDONED: Mutex<Vec<(&'static str, PathBuf, Weak<()>)>> = Mutex::new(Vec::new());

impl Apart {
    /// Starts the probe.
    pub(super) fn start<T: Send + 'static>(
        self,
        read: impl FnOnce(&Report<T>) + Send + 'static,
    ) -> Running<T> {
        let clock = Clock::new(self.live);
        let deadline = Instant::now().checked_add(self.limit);
        let (to, from) = mpsc::channel();
        // The listener is gone when the probe was too slow; it goes on to its end unheard.
        let tell = move |message| drop(Sender::send(&to, message));
        let report = Report { probe: self.probe, clock, to: Box::new(tell) };
        let alive = Arc::new(());
        let watch = Arc::downgrade(&alive);
        let state = if self.hangs() {
            let hangs = "an earlier probe still hangs there; not asked again";
            let trouble = Trouble::plain(FaultKind::TimedOut, hangs);
            State::NotStarted(clock.fault(self.probe, self.subject.display(), trouble))
        } else {
            let thread = Builder::new().name(format!("probe-{}", self.probe)).spawn(move || {
                let _alive = alive;
                // Taken along so that the line closes before `alive` goes, however `read` ends.
                let report = report;
                read(&report);
            });
            match thread {
                Ok(handle) => State::Thread { from, handle, alive: watch },
                Err(error) => State::NotStarted(clock.fault(
                    self.probe,
                    "thread",
                    Trouble::plain(FaultKind::Unreadable, format!("not started: {error}")),
                )),
            }
        };
        Running { apart: self, clock, deadline, state }
    }

    fn hangs(&self) -> bool {
        let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
        abandoned.retain(|(.., alive)| alive.strong_count() > 0);
        abandoned.iter().any(|(probe, subject, _)| *probe == self.probe && *subject == self.subject)
    }
}

impl<T> Running<T> {
    /// Waits for the end or for the time limit. Gives what the probe told, and adds its faults.
    pub(super) fn collect(self, faults: &mut Vec<Fault>) -> Vec<T> {
        self.collect_or(faults, None::<fn()>)
    }

    /// As [`collect`](Self::collect), and does `stop` where the probe is left behind. What is stopped so has a moment to end, so that
    /// the next probe need not believe that it hangs.
    pub(super) fn collect_or(self, faults: &mut Vec<Fault>, stop: Option<impl FnOnce()>) -> Vec<T> {
        let Self { apart, clock, deadline, state } = self;
        let (from, handle, alive) = match state {
            State::Thread { from, handle, alive } => (from, handle, alive),
            State::NotStarted(fault) => {
                faults.push(fault);
                return Vec::new();
            }
        };
        let mut parts = Vec::new();
        let mut calling = apart.subject.display().to_string();
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let message = match left {
                Some(left) => from.recv_timeout(left),
                None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(Message::Calling(call)) => calling = call,
                Ok(Message::Part(part)) => parts.push(part),
                Ok(Message::Fault(fault)) => faults.push(fault),
                Err(RecvTimeoutError::Disconnected) => {
                    if let Err(panic) = handle.join() {
                        let text = format!("the probe panicked: {}", panic_text(&*panic));
                        let trouble = Trouble::plain(FaultKind::Unreadable, text);
                        faults.push(clock.fault(apart.probe, calling, trouble));
                    }
                    return parts;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let limit = apart.limit.as_secs_f64();
                    let text =
                        format!("no answer within {limit} s; left behind with what it had told");
                    let trouble = Trouble::new(FaultKind::TimedOut, text);
                    faults.push(clock.fault(apart.probe, calling, trouble));
                    let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
                    abandoned.push((apart.probe, apart.subject, alive));
                    drop(abandoned);
                    if let Some(stop) = stop {
                        stop();
                        // Its line closes as it ends; what it still tells came too late.
                        let until = Instant::now() + STOPPING;
                        let ended = loop {
                            let left = until.saturating_duration_since(Instant::now());
                            match from.recv_timeout(left) {
                                Ok(_) => {}
                                Err(error) => break error == RecvTimeoutError::Disconnected,
                            }
                        };
                        if ended {
                            drop(handle.join());
                        }
                    }
                    return parts;
                }
            }
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

impl<T> Report<T> {
    /// One without a time limit, that gives each message to a function before the probe goes on.
    pub(super) fn to(probe: &'static str, tell: impl Fn(Message<T>) + Send + 'static) -> Self {
        Self { probe, clock: Clock::new(false), to: Box::new(tell) }
    }

    /// Says which call comes next, for the fault if it never returns.
    pub(super) fn calling(&self, call: impl Into<String>) {
        self.tell(Message::Calling(call.into()));
    }

    /// Tells a piece of the facts.
    pub(super) fn part(&self, part: T) {
        self.tell(Message::Part(part));
    }

    /// Tells that a fact could not be read.
    pub(super) fn fault(&self, place: impl ToString, trouble: Trouble) {
        self.tell(Message::Fault(self.new_fault(place, trouble)));
    }

    /// A fault to pass on with the facts it belongs to.
    pub(super) fn new_fault(&self, place: impl ToString, trouble: Trouble) -> Fault {
        self.clock.fault(self.probe, place, trouble)
    }

    fn tell(&self, message: Message<T>) {
        (self.to)(message);
    }
}

impl Clock {
    /// One that stamps where `live`.
    pub(super) fn new(live: bool) -> Self {
        Self { live }
    }

    /// A fault of now.
    pub(super) fn fault(self, probe: &str, place: impl ToString, trouble: Trouble) -> Fault {
        let since = || SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let now = self.live.then(since).flatten();
        Fault {
            at_unix_ms: now.and_then(|now| u64::try_from(now.as_millis()).ok()),
            ..Fault::new(probe, place.to_string(), trouble.kind, trouble.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(subject: &str, limit: Duration) -> Apart {
        Apart { probe: "test", subject: subject.into(), limit, live: false }
    }

    #[track_caller]
    fn check(faults: &[Fault], expect: &[(&str, &str)]) {
        let found: Vec<_> =
            faults.iter().map(|f| (f.place.as_str(), f.error.split(':').next().unwrap())).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn tells_everything() {
        let mut faults = Vec::new();
        let running = apart("a", Duration::MAX).start(|report| {
            report.part(1);
            report.fault("file", Trouble::new(FaultKind::Unreadable, "no"));
            report.part(2);
        });
        assert_eq!(running.collect(&mut faults), [1, 2]);
        check(&faults, &[("file", "unreadable")]);
    }

    #[test]
    fn keeps_what_came_before_a_hang() {
        let (release, hang) = mpsc::channel::<()>();
        let (tell_over, over) = mpsc::channel::<()>();
        let mut faults = Vec::new();
        let running = apart("b", Duration::from_millis(50)).start(move |report| {
            report.part("before");
            report.calling("slow_call(3)");
            let _ = hang.recv();
            report.part("after");
            drop(tell_over);
        });
        assert_eq!(running.collect(&mut faults), ["before"]);
        check(&faults, &[("slow_call(3)", "timed out")]);

        // While it hangs, the same subject is not asked again, and another is.
        faults.clear();
        let again = apart("b", Duration::from_secs(60)).start(|report| report.part("again"));
        assert!(again.collect(&mut faults).is_empty());
        check(&faults, &[("b", "an earlier probe still hangs there; not asked again")]);
        faults.clear();
        let other = apart("c", Duration::from_secs(60)).start(|report| report.part("other"));
        assert_eq!(other.collect(&mut faults), ["other"]);

        // Once it has returned, it is asked again.
        drop(release);
        let _ = over.recv();
        while apart("b", Duration::ZERO).hangs() {
            std::thread::yield_now();
        }
        let again = apart("b", Duration::from_secs(60)).start(|report| report.part("again"));
        assert_eq!(again.collect(&mut faults), ["again"]);
        assert!(faults.is_empty());
    }

    #[test]
    fn a_panic_is_a_fault() {
        let mut faults = Vec::new();
        let running = apart("d", Duration::from_secs(60)).start(|report| {
            report.part(1);
            report.calling("call()");
            std::panic::panic_any("expected by this test");
        });
        assert_eq!(running.collect(&mut faults), [1]);
        check(&faults, &[("call()", "the probe panicked")]);
    }

    #[test]
    fn live_faults_carry_the_time() {
        let fault = |live| Clock::new(live).fault("p", "f", Trouble::new(FaultKind::Lost, "gone"));
        assert!(fault(true).at_unix_ms.is_some());
        assert_eq!(fault(false).at_unix_ms, None);
        assert_eq!((fault(false).kind, &fault(false).error[..]), (FaultKind::Lost, "lost: gone"));
    }
}
