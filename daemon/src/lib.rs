//! topod: reads the machine it runs on, publishes the topology and serves plans for it over gRPC.
//!
//! ```text
//!   probe, or a recorded file                    signals
//!        │ machine (blocking thread)                │
//!        └──────────── Event ───▶ main loop ◀─── Event
//!                                    │ publish
//!                                  State: one immutable Published{generation, topology}, swapped whole
//!                                    │ watch channel
//!                     services: topology, plan (cache, blocking threads), status; health; reflection
//!                                    │
//!                              Unix socket, peer credentials
//! ```
//!
//! Configuration is checked before anything is bound ([`config`]). One loop over one closed enum of events drives the
//! daemon ([`run`]); the services only read what it published. Errors become gRPC statuses in one file (`status`).
//! The [`probe`] library is also for programs that look at a host without a daemon.

pub mod activation;
pub mod config;
pub mod events;
pub mod limits;
pub mod logging;
pub mod machine;
pub mod metrics_server;
pub mod notify;
pub mod probe;
pub mod recorded;
pub mod signals;
pub mod tls;

mod accept;
mod connection;
mod feed;
mod jobs;
mod keeping;
mod main_loop;
mod metrics;
mod metrics_textfile;
mod peer;
mod plans;
mod select;
mod server;
mod services;
mod socket;
mod state;
mod status;
mod store;
mod verdict;

pub use activation::Activation;
pub use config::{Args, Config, ConfigError, TcpConfig};
pub use events::EventSource;
pub use limits::Limits;
pub use main_loop::{Reload, RunError, Surroundings, run};
pub use metrics_server::MetricsAddress;
pub use notify::Notifier;
pub use signals::Signal;
pub use socket::BindError;

use std::error::Error;

/// An error with its causes, outermost first, on one line.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
