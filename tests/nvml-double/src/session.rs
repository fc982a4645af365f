//! The state between `nvmlInit` and `nvmlShutdown`, and the faults.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use machines::scenario::{Action, Code, Device, Fault, Scenario};

/// How often a hanging call looks whether it may go on.
const POLL: Duration = Duration::from_millis(5);

/// One initialised library.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) scenario: Scenario,
    /// How often each fault's conditions held, by place in the scenario.
    matched: Vec<AtomicU64>,
    /// How many events were delivered.
    pub(crate) delivered: AtomicUsize,
}

/// NVML counts initialisations; the last shutdown ends the session.
static STATE: Mutex<(u32, Option<Arc<Session>>)> = Mutex::new((0, None));

/// Which call, for finding its faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) call: &'static str,
    pub(crate) device: Option<u32>,
    pub(crate) link: Option<u32>,
    pub(crate) field: Option<u32>,
}

/// Starts a session, or joins the one that runs.
pub(crate) fn init(call: &'static str, read: impl FnOnce() -> Scenario) -> Result<(), Code> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let session = match &state.1 {
        Some(session) => Arc::clone(session),
        None => Arc::new(Session::new(read())),
    };
    // A hang in here holds the lock, as the real library holds its own while it initialises.
    session.enter(Place { call, device: None, link: None, field: None })?;
    state.0 += 1;
    state.1 = Some(session);
    Ok(())
}

/// Ends the session when as many came as initialised.
pub(crate) fn shutdown() -> Result<(), Code> {
    current()?.enter(Place { call: "nvmlShutdown", device: None, link: None, field: None })?;
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.0 = state.0.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
    if state.0 == 0 {
        state.1 = None;
    }
    Ok(())
}

/// The session that runs. Calls hold it, not the lock, so that one that hangs keeps no other from answering.
pub(crate) fn current() -> Result<Arc<Session>, Code> {
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.1.clone().ok_or(Code::UNINITIALIZED)
}

impl Session {
    fn new(scenario: Scenario) -> Self {
        let matched = scenario.faults.iter().map(|_| AtomicU64::new(0)).collect();
        Self { scenario, matched, delivered: AtomicUsize::new(0) }
    }

    /// The device of an index.
    pub(crate) fn device(&self, index: u32) -> Result<&Device, Code> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.scenario.devices.get(index))
            .ok_or(Code::INVALID_ARGUMENT)
    }

    /// Notes a call and plays its faults: does not return, returns late, or answers in its stead.
    pub(crate) fn enter(&self, place: Place) -> Result<(), Code> {
        if let Some(log) = &self.scenario.call_log {
            note(log, place);
        }
        self.play(place)
    }

    /// Plays the first fault that applies.
    pub(crate) fn play(&self, place: Place) -> Result<(), Code> {
        let faults = self.scenario.faults.iter().zip(&self.matched);
        let mut playing = faults.filter(|(fault, matched)| {
            if !matches(fault, place) {
                return false;
            }
            let earlier = matched.fetch_add(1, Ordering::Relaxed);
            let over = fault.times.is_some_and(|times| earlier >= fault.skip + times);
            earlier >= fault.skip && !over
        });
        match playing.next().map(|(fault, _)| &fault.action) {
            None => Ok(()),
            Some(Action::Return(Code::SUCCESS)) => Ok(()),
            Some(Action::Return(code)) => Err(*code),
            Some(Action::Hang { until_gone }) => {
                while until_gone.as_ref().is_none_or(|file| file.exists()) {
                    sleep(POLL);
                }
                Ok(())
            }
            Some(Action::Delay { milliseconds }) => {
                sleep(Duration::from_millis(*milliseconds));
                Ok(())
            }
            Some(Action::Abort) => std::process::abort(),
        }
    }
}

/// Whether the fault is for this call. A fault of one field concerns that field and never the call as a whole.
fn matches(fault: &Fault, place: Place) -> bool {
    let name = match fault.call.strip_suffix('*') {
        Some(start) => place.call.starts_with(start),
        None => place.call == fault.call,
    };
    name && fault.device.is_none_or(|device| place.device == Some(device))
        && fault.link.is_none_or(|link| place.link == Some(link))
        && match (fault.field, place.field) {
            (Some(wanted), Some(field)) => wanted == field,
            (Some(_), None) => false,
            (None, Some(_)) => fault.link.is_some(),
            (None, None) => true,
        }
        && fault.while_exists.as_ref().is_none_or(|file| file.exists())
}

/// Appends one line in one write, so that lines of several threads do not mix. A log that cannot be written is
/// missed by the test that waits on it.
fn note(log: &Path, place: Place) {
    let mut line = place.call.to_owned();
    for number in [place.device, place.link].into_iter().flatten() {
        line.push(' ');
        line.push_str(&number.to_string());
    }
    line.push('\n');
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(log) {
        let _ = file.write_all(line.as_bytes());
    }
}
