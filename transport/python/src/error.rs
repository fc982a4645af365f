//! Exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use transport::{InvalidSetting, TransportError, with_causes};

create_exception!(topod, Error, PyException, "Anything that goes wrong between ranks.");
create_exception!(topod, ConnectError, Error, "The ranks did not come together.");
create_exception!(
    topod,
    FailedError,
    Error,
    "A rank died, fell silent or did something else: the group is broken."
);
create_exception!(
    topod,
    MissingError,
    Error,
    "Ranks did not come to a monitored barrier; the group is as usable as before."
);
create_exception!(topod, DaemonError, Error, "No daemon answers, or it has no such plan.");

pub(crate) fn of_transport(error: TransportError) -> PyErr {
    let words = with_causes(&error);
    match error {
        TransportError::Failed(_) | TransportError::Unusable(_) => FailedError::new_err(words),
        TransportError::Missing { .. } => MissingError::new_err(words),
        TransportError::NoMemory { .. } => PyMemoryError::new_err(words),
        TransportError::Schedule(_) => Error::new_err(words),
        _ => PyValueError::new_err(words),
    }
}

pub(crate) fn of_connect(error: transport::ConnectError) -> PyErr {
    ConnectError::new_err(with_causes(&error))
}

pub(crate) fn of_setting(error: InvalidSetting) -> PyErr {
    PyValueError::new_err(with_causes(&error))
}

pub(crate) fn of_daemon(error: transport_daemon::DaemonError) -> PyErr {
    DaemonError::new_err(with_causes(&error))
}
