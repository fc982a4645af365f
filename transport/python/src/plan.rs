//! Plans.

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use topology::formats::plan_json;
use transport::even::full_plan;

use crate::error::of_daemon;

/// Which rank sends to which, along which channels. Every rank of a group must hold the same.
#[pyclass(frozen, module = "topod")]
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) plan: topology::Plan,
}

#[pymethods]
impl Plan {
    /// Reads a plan as `topoctl plan -o json` writes it.
    #[staticmethod]
    fn parse(json: &str) -> PyResult<Self> {
        let plan = plan_json::read(json.as_bytes());
        plan.map(|plan| Self { plan }).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Reads a plan file.
    #[staticmethod]
    fn load(path: PathBuf) -> PyResult<Self> {
        let name = path.display();
        let json =
            std::fs::read(&path).map_err(|error| PyOSError::new_err(format!("{name}: {error}")))?;
        let plan = plan_json::read(&json);
        plan.map(|plan| Self { plan })
            .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
    }

    /// Asks the daemon for the plan of the GPUs with these NVML indices, in rank order; of all by default.
    #[staticmethod]
    #[pyo3(signature = (gpus=None, socket=None))]
    fn from_daemon(
        py: Python<'_>,
        gpus: Option<Vec<u32>>,
        socket: Option<PathBuf>,
    ) -> PyResult<Self> {
        let socket = socket.unwrap_or_else(transport_daemon::default_socket);
        let gpus = gpus.unwrap_or_default();
        let plan = py.detach(|| transport_daemon::plan(&socket, &gpus));
        plan.map(|plan| Self { plan }).map_err(of_daemon)
    }

    /// A plan that knows of no topology, for so many ranks.
    #[staticmethod]
    fn even(ranks: u32) -> PyResult<Self> {
        if !(1..=65_536).contains(&ranks) {
            let words = format!("a plan of {ranks} ranks: there are 1 to 65536");
            return Err(PyValueError::new_err(words));
        }
        Ok(Self { plan: full_plan(ranks, 2) })
    }

    /// Number of ranks.
    #[getter]
    fn ranks(&self) -> usize {
        self.plan.ranks.len()
    }

    /// Equal on ranks that hold the same plan.
    #[getter]
    fn digest(&self) -> String {
        transport::plan_digest(&self.plan)
    }

    /// The plan as JSON, in the form that `parse` reads.
    fn to_json(&self) -> String {
        plan_json::write(&self.plan, None)
    }

    fn __repr__(&self) -> String {
        format!("<topod.Plan of {} ranks, {}>", self.ranks(), self.digest())
    }
}
