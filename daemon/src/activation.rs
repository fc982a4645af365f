//! Sockets that the service manager opened (sd_listen_fds(3)), by the names that the socket unit gives them.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

/// Name of the gRPC socket in a socket unit.
const GRPC: &str = "grpc";
/// Name of the socket for metrics.
const METRICS: &str = "metrics";

/// Listeners handed over at the start.
#[derive(Debug, Default)]
pub struct Activation {
    pub(crate) grpc: Option<UnixListener>,
    pub(crate) metrics: Option<Listener>,
}

/// A listener of either kind.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// What cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[error("the service manager's socket '{name}' cannot be used")]
pub struct ActivationError {
    name: String,
    source: io::Error,
}

impl Activation {
    /// What was handed over to this process. A socket without a name, or with one that means nothing here, is the one for gRPC where
    /// it is the only one, and refused otherwise.
    ///
    /// # Errors
    /// Where a socket is of no kind that can be used.
    pub fn from_env() -> Result<Self, ActivationError> {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut sockets = ListenFd::from_env();
        let mut activation = Self::default();
        let names: Vec<&str> = names.split(':').collect();
        for place in 0..sockets.len() {
            let name = names.get(place).copied().unwrap_or_default();
            let error = |source| ActivationError { name: name.into(), source };
            match name {
                METRICS => activation.metrics = metrics(&mut sockets, place).map_err(error)?,
                GRPC => activation.grpc = sockets.take_unix_listener(place).map_err(error)?,
                _ if sockets.len() == 1 => {
                    activation.grpc = sockets.take_unix_listener(place).map_err(error)?;
                }
                _ => return Err(error(io::Error::other("its name is neither grpc nor metrics"))),
            }
        }
        Ok(activation)
    }
}

fn metrics(sockets: &mut ListenFd, place: usize) -> io::Result<Option<Listener>> {
    if let Ok(listener) = sockets.take_unix_listener(place) {
        return Ok(listener.map(Listener::Unix));
    }
    Ok(sockets.take_tcp_listener(place)?.map(Listener::Tcp))
}
