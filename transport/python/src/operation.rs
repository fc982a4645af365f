//! Operations in flight.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use transport::{Driver, Pending, TransportError};

use crate::argument::Argument;
use crate::error::of_transport;

/// What an operation took.
#[pyclass(frozen, module = "topod", get_all)]
#[derive(Debug)]
pub(crate) struct Stats {
    /// Total data of the collective, as nccl-tests counts it.
    bytes: u64,
    /// From call to end on this rank.
    seconds: f64,
    /// The way it took: "plan", "flat", "direct" or "staged".
    path: &'static str,
    /// Channels of the plan it ran on; 0 where it took another way.
    channels: usize,
    /// Seconds that messages of this rank waited for the group's bandwidth budget.
    held: f64,
}

impl From<transport::Stats> for Stats {
    fn from(stats: transport::Stats) -> Self {
        Self {
            bytes: stats.bytes,
            seconds: stats.elapsed.as_secs_f64(),
            path: stats.path.as_str(),
            channels: stats.channels,
            held: stats.held.as_secs_f64(),
        }
    }
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        let Self { bytes, seconds, path, channels, held } = self;
        format!(
            "<topod.Stats bytes={bytes} seconds={seconds:.9} path={path} channels={channels} held={held:.9}>"
        )
    }
}

/// The arrays of an operation.
pub(crate) type Arrays = Vec<Argument>;

#[derive(Debug)]
enum State {
    Pending(Pending<Arrays>),
    Done(transport::Stats),
    Failed(TransportError),
}

/// An operation that was started. It keeps its arrays, and waits for its end when it is dropped.
#[pyclass(frozen, module = "topod")]
#[derive(Debug)]
pub(crate) struct Operation {
    driver: Arc<Driver>,
    state: Mutex<Option<State>>,
}

impl Operation {
    pub(crate) fn new(driver: Arc<Driver>, pending: Pending<Arrays>) -> Self {
        Self { driver, state: Mutex::new(Some(State::Pending(pending))) }
    }

    /// Waits, at most for `limit`; what it took, once it is done.
    fn finish(&self, limit: Option<Duration>) -> Result<Option<transport::Stats>, TransportError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match state.take().expect("it is put back below") {
            State::Pending(pending) => self.driver.with(|communicator| {
                if let Some(limit) = limit {
                    match communicator.wait_for(&pending, limit) {
                        Ok(true) => {}
                        Ok(false) => return State::Pending(pending),
                        Err(error) => return State::Failed(error),
                    }
                }
                match communicator.wait(pending) {
                    Ok((_, stats)) => State::Done(stats),
                    Err(error) => State::Failed(error),
                }
            }),
            ended => ended,
        };
        let result = match &now {
            State::Pending(_) => Ok(None),
            State::Done(stats) => Ok(Some(*stats)),
            State::Failed(error) => Err(error.clone()),
        };
        *state = Some(now);
        result
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // With the interpreter's lock free: the operation may take its time. How it ends is on every later call.
        Python::attach(|py| {
            py.detach(|| {
                let _ = self.finish(None);
            });
        });
    }
}

#[pymethods]
impl Operation {
    /// Waits until it is done, at most so many seconds; `TimeoutError` where it is not done by then.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Stats> {
        let limit = timeout
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
        let done = py.detach(|| self.finish(limit)).map_err(of_transport)?;
        done.map(Stats::from)
            .ok_or_else(|| PyTimeoutError::new_err("the operation is not done yet"))
    }

    /// Moves everything in flight; whether this is done.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let done = py.detach(|| self.finish(Some(Duration::ZERO))).map_err(of_transport)?;
        Ok(done.is_some())
    }
}
