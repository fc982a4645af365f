//! The daemon's life.
//!
//! ```text
//!   bind ─▶ reading ──Machine(Ok)──▶ serving ──Signal(Reload), Due──▶ reading again, serving what there is
//!             │                         │
//!             │ Machine(Err)            │ Signal(Terminate)
//!             ▼                         ▼
//!        end, with the error         draining ── Server ended | limit | second Terminate ──▶ end
//! ```

use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::{self, JoinError, JoinHandle};
use tokio::time::timeout;
use topology::Topology;
use tracing::{debug, error, info, warn};

use crate::chain;
use crate::config::Config;
use crate::events::{Due, Watch};
use crate::machine::{self, MachineError};
use crate::notify::Notifier;
use crate::server::{self, Running};
use crate::signals::Signal;
use crate::socket::{self, BindError};
use crate::state::{Publication, State};

/// Everything that can happen to the daemon.
enum Event {
    /// The machine has been read.
    Machine(Result<Topology, MachineError>),
    /// Somebody asks for something.
    Signal(Signal),
    /// Devices changed, or it is time to look.
    Due(Due),
    /// The server ended by itself.
    Server(Result<Result<(), tonic::transport::Error>, JoinError>),
}

/// Why the daemon ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot listen.
    #[error("cannot listen")]
    Bind(#[from] BindError),
    /// The runtime cannot take the listener.
    #[error("cannot listen")]
    Listen(#[source] std::io::Error),
    /// The services cannot be put together.
    #[error("cannot serve")]
    Services(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There never was a topology to serve.
    #[error("cannot read the machine")]
    Machine(#[source] MachineError),
    /// The server ended.
    #[error("the server ended")]
    Server(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Serves until a signal asks it to end; the socket is gone afterwards.
///
/// # Errors
/// Where the daemon could not start or had to end.
pub async fn run(
    config: Config,
    mut signals: mpsc::Receiver<Signal>,
    notifier: Notifier,
) -> Result<(), RunError> {
    let (listener, socket_file) = socket::bind(&config.socket)?;
    let listener = UnixListener::from_std(listener).map_err(RunError::Listen)?;
    let state = Arc::new(State::new());
    let server = server::start(listener, Arc::clone(&state), config.heartbeat)
        .await
        .map_err(|error| RunError::Services(error.into()))?;
    info!(socket = %config.socket.display(), "listening");

    let watch = Watch::new(&config.events, config.source.probed(), config.poll);
    let mut daemon = Daemon {
        config,
        state,
        server,
        notifier,
        watch,
        reading: None,
        cause: Cause::Asked,
        read_again: false,
    };
    let outcome = daemon.serve(&mut signals).await;
    daemon.drain(&mut signals).await;
    socket_file.remove();
    info!("ended");
    outcome
}

/// What causes a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The start of the daemon, or a signal.
    Asked,
    /// An event or the clock.
    Noticed,
}

struct Daemon {
    config: Config,
    state: Arc<State>,
    server: Running,
    notifier: Notifier,
    watch: Watch,
    /// The reading under way.
    reading: Option<JoinHandle<Result<Topology, MachineError>>>,
    /// What caused it.
    cause: Cause,
    /// A reload came while reading: what is being read may be of before it.
    read_again: bool,
}

impl Daemon {
    async fn serve(&mut self, signals: &mut mpsc::Receiver<Signal>) -> Result<(), RunError> {
        self.start_reading(Cause::Asked);
        loop {
            match self.next_event(signals).await {
                Event::Machine(Ok(topology)) => self.handle_topology(topology).await,
                Event::Machine(Err(error)) => self.handle_machine_error(error)?,
                Event::Signal(Signal::Reload) if self.reading.is_some() => self.read_again = true,
                Event::Signal(Signal::Reload) => self.start_reading(Cause::Asked),
                Event::Due(due) => {
                    debug!(?due, "reading the machine again");
                    self.start_reading(Cause::Noticed);
                }
                Event::Signal(Signal::Terminate) => return Ok(()),
                Event::Server(Ok(Ok(()))) => {
                    return Err(RunError::Server("no more connections".into()));
                }
                Event::Server(Ok(Err(error))) => return Err(RunError::Server(error.into())),
                Event::Server(Err(error)) => return Err(RunError::Server(error.into())),
            }
        }
    }

    async fn next_event(&mut self, signals: &mut mpsc::Receiver<Signal>) -> Event {
        let Self { reading, server, watch, .. } = self;
        // One reading at a time: what is told during one is due after it.
        let idle = reading.is_none();
        tokio::select! {
            // A channel whose sender is gone asks for the end: nobody else could.
            signal = signals.recv() => Event::Signal(signal.unwrap_or(Signal::Terminate)),
            read = finished(reading) => {
                *reading = None;
                watch.read();
                Event::Machine(read)
            }
            ended = &mut server.task => Event::Server(ended),
            due = watch.due(), if idle => Event::Due(due),
        }
    }

    fn start_reading(&mut self, cause: Cause) {
        self.read_again = false;
        self.cause = cause;
        let release = self.watch.reading();
        let (source, rates) = (self.config.source.clone(), self.config.rates);
        self.reading = Some(task::spawn_blocking(move || {
            release.wait();
            machine::read(&source, rates)
        }));
    }

    async fn handle_topology(&mut self, topology: Topology) {
        let (gpus, nics) = (topology.gpus().len(), topology.nics().len());
        let faults: usize = topology.hosts().iter().map(|host| host.faults.len()).sum();
        match self.state.publish(topology) {
            Publication::New(generation) => {
                let status =
                    format!("{gpus} GPUs, {nics} NICs, {faults} faults, generation {generation}");
                info!(%generation, gpus, nics, faults, "published");
                if self.cause == Cause::Noticed && self.watch.changed() {
                    warn!(
                        "devices change again and again; readings are held apart until they rest"
                    );
                }
                self.server.set_serving().await;
                if generation.0 == 1 {
                    self.notifier.ready(&status);
                } else {
                    self.notifier.status(&status);
                }
            }
            Publication::Unchanged(generation) if self.cause == Cause::Asked => {
                info!(%generation, "the machine is unchanged");
            }
            // The clock finds no difference all day long.
            Publication::Unchanged(generation) => debug!(%generation, "the machine is unchanged"),
        }
        self.read_again_if_asked();
    }

    /// Without a topology there is nothing to serve; with one, it stays.
    fn handle_machine_error(&mut self, error: MachineError) -> Result<(), RunError> {
        if self.state.current().is_none() && !self.read_again {
            return Err(RunError::Machine(error));
        }
        let text = chain(&error);
        error!(error = text, "cannot read the machine; what was published stays");
        self.state.set_last_error(text);
        self.read_again_if_asked();
        Ok(())
    }

    fn read_again_if_asked(&mut self) {
        if self.read_again {
            self.start_reading(Cause::Asked);
        }
    }

    /// Finishes what is in flight, for as long as configured or until asked again.
    async fn drain(&mut self, signals: &mut mpsc::Receiver<Signal>) {
        info!("draining");
        self.notifier.stopping();
        self.state.close();
        self.server.stop().await;
        if self.server.task.is_finished() {
            return;
        }
        let asked_again = async {
            loop {
                match signals.recv().await {
                    Some(Signal::Terminate) => return,
                    Some(Signal::Reload) => {}
                    // Nobody is left to ask.
                    None => std::future::pending().await,
                }
            }
        };
        let limit = self.config.drain_limit;
        tokio::select! {
            drained = timeout(limit, &mut self.server.task) => if drained.is_err() {
                warn!(?limit, "requests in flight took too long and were given up");
                self.server.task.abort();
            },
            () = asked_again => {
                warn!("asked to end at once; requests in flight were given up");
                self.server.task.abort();
            }
        }
    }
}

/// Waits for the reading under way; for ever where there is none.
async fn finished(
    reading: &mut Option<JoinHandle<Result<Topology, MachineError>>>,
) -> Result<Topology, MachineError> {
    let Some(task) = reading else { return std::future::pending().await };
    match task.await {
        Ok(read) => read,
        Err(_) => Err(MachineError::Panicked),
    }
}
