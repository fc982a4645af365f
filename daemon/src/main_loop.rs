//! The daemon's life.
//!
//! ```text
//!   bind ─▶ reading ──Machine(Ok), Kept──▶ serving ──Signal(Reload), Due──▶ reading again, serving what there is
//!             │                              │                             (a reload: the configuration first, Loaded)
//!             │ Machine(Err)                 │ Signal(Terminate)
//!             ▼                              ▼
//!        end, with the error              draining ── Server ended | limit | second Terminate ──▶ end
//! ```
//!
//! Nothing in the loop waits for a device or a disk: what may hang is a task whose end is an event.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinError, JoinHandle};
use tokio::time::{Interval, MissedTickBehavior, timeout};
use topology::Topology;
use tracing::{debug, error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::accept::Door;
use crate::activation::{self, Activation};
use crate::chain;
use crate::config::{Config, ConfigError, TcpConfig};
use crate::events::{Due, Watch};
use crate::keeping::{Keeper, Kept};
use crate::logging::{Refilter, message_id};
use crate::machine::{self, MachineError};
use crate::metrics_server::{self, MetricsAddress};
use crate::metrics_textfile;
use crate::notify::Notifier;
use crate::server::{self, Running};
use crate::signals::Signal;
use crate::socket::{self, BindError, SocketFile};
use crate::state::{Next, Published, State};
use crate::store::Store;
use crate::tls::TlsError;

/// Everything that can happen to the daemon.
enum Event {
    /// The machine has been read.
    Machine(Result<Topology, MachineError>),
    /// Somebody asks for something.
    Signal(Signal),
    /// A reload has read the files.
    Loaded(Box<Loaded>),
    /// A writing of the state ended, or takes too long.
    Kept(Kept),
    /// Devices changed, or it is time to look.
    Due(Due),
    /// It is time to tell the service manager that the loop turns.
    Watchdog,
    /// The server ended by itself.
    Server(Result<Result<(), tonic::transport::Error>, JoinError>),
}

/// Why the daemon ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot listen.
    #[error("cannot listen")]
    Bind(#[from] BindError),
    /// The runtime cannot take a listener, or an address is taken.
    #[error("cannot listen on {on}")]
    Listen {
        /// Which.
        on: String,
        /// Why.
        source: io::Error,
    },
    /// Certificates cannot be used.
    #[error("cannot serve other hosts")]
    Tls(#[from] TlsError),
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

type LoadConfig = dyn Fn() -> Result<(Config, EnvFilter), ConfigError> + Send + Sync;

/// Gives the configuration anew. Called where blocking is allowed.
pub type Reload = Box<LoadConfig>;

/// The files of a reload, each as it was read or why it cannot be used; `None` where there is none.
#[derive(Default)]
struct Loaded {
    config: Option<Result<(Config, EnvFilter), String>>,
    certificates: Option<Result<Arc<ServerConfig>, TlsError>>,
}

/// Who is around the daemon.
#[derive(Default)]
pub struct Surroundings {
    /// Who is told what it does.
    pub notifier: Notifier,
    /// Sockets it is handed.
    pub activation: Activation,
    /// How often it says that its loop turns.
    pub watchdog: Option<Duration>,
    /// Where a reload gets the configuration from.
    pub reload: Option<Reload>,
    /// What a reload tells the log's new filter.
    pub refilter: Option<Refilter>,
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { notifier, activation, watchdog, .. } = self;
        let mut parts = f.debug_struct("Surroundings");
        parts.field("notifier", notifier).field("activation", activation);
        parts.field("watchdog", watchdog).finish_non_exhaustive()
    }
}

/// Serves until a signal asks it to end; its sockets are gone afterwards.
///
/// # Errors
/// Where the daemon could not start or had to end.
pub async fn run(
    config: Config,
    mut signals: mpsc::Receiver<Signal>,
    surroundings: Surroundings,
) -> Result<(), RunError> {
    let Surroundings { notifier, activation, watchdog, reload, refilter } = surroundings;
    // Those that are ours go with them, however this ends.
    let mut files = Vec::new();
    let grpc = grpc_listener(&config, activation.grpc, &mut files)?;
    let metrics = metrics_listener(&config, activation.metrics, &mut files).await?;
    let remote = match &config.tcp {
        Some(tcp) => Some(remote_listener(tcp).await?),
        None => None,
    };

    let store = config.state.as_deref().map(Store::new);
    let earlier = store.as_ref().and_then(|store| {
        store.load().unwrap_or_else(|error| {
            warn!(
                error = chain(&error),
                "the state of the run before is lost; generations begin at 1"
            );
            None
        })
    });
    let state = Arc::new(State::new(earlier, config.heartbeat));
    let (door, connections) = Door::new(&config.limits, state.closing());
    let server = server::start(connections, Arc::clone(&state), &config.limits)
        .await
        .map_err(|error| RunError::Services(error.into()))?;
    door.clone().listen_unix(grpc);
    info!(socket = %config.socket.display(), "listening");
    let tls = remote.map(|(listener, certificates)| {
        info!(address = ?listener.local_addr().ok(), "listening to other hosts, over mutual TLS");
        let (sender, receiver) = watch::channel(certificates);
        door.clone().listen_tls(listener, receiver);
        sender
    });
    // Only listeners keep the server's stream of connections open.
    drop(door);
    let metrics = metrics.map(|listener| metrics_server::start(listener, Arc::clone(&state)));

    let textfile = config.metrics_textfile.as_deref();
    let textfile = textfile.map(|path| metrics_textfile::start(path, Arc::clone(&state)));

    let keeper = store.map(|store| Keeper::new(move |published: &Published| store.save(published)));
    let watch = Watch::new(&config.events, config.source.probed(), config.poll);
    let mut daemon = Daemon {
        config,
        state,
        server,
        notifier,
        watchdog: watchdog.map(ticks),
        reload: reload.map(Arc::from),
        refilter,
        tls,
        keeper,
        kept_first: None,
        watch,
        loading: None,
        load_again: false,
        reading: None,
        began: Instant::now(),
        cause: Cause::Asked,
        read_again: false,
        awaited: true,
    };
    let outcome = daemon.serve(&mut signals).await;
    daemon.drain(&mut signals).await;
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    drop(textfile);
    drop(files);
    info!("ended");
    outcome
}

fn listen_error(on: impl std::fmt::Display) -> impl FnOnce(io::Error) -> RunError {
    let on = on.to_string();
    move |source| RunError::Listen { on, source }
}

/// The socket handed over, else one that is made, whose file is ours to remove.
fn grpc_listener(
    config: &Config,
    handed: Option<std::os::unix::net::UnixListener>,
    files: &mut Vec<SocketFile>,
) -> Result<UnixListener, RunError> {
    let listener = match handed {
        Some(listener) => {
            listener.set_nonblocking(true).map_err(listen_error("the socket handed over"))?;
            listener
        }
        None => {
            let (listener, file) = socket::bind(&config.socket)?;
            files.push(file);
            listener
        }
    };
    UnixListener::from_std(listener).map_err(listen_error(config.socket.display()))
}

async fn metrics_listener(
    config: &Config,
    handed: Option<activation::Listener>,
    files: &mut Vec<SocketFile>,
) -> Result<Option<metrics_server::Listener>, RunError> {
    use metrics_server::Listener;
    let error = || listen_error("the socket for metrics");
    Ok(Some(match (handed, &config.metrics) {
        (Some(activation::Listener::Unix(listener)), _) => {
            listener.set_nonblocking(true).map_err(error())?;
            Listener::Unix(UnixListener::from_std(listener).map_err(error())?)
        }
        (Some(activation::Listener::Tcp(listener)), _) => {
            listener.set_nonblocking(true).map_err(error())?;
            Listener::Tcp(TcpListener::from_std(listener).map_err(error())?)
        }
        (None, Some(MetricsAddress::Unix(path))) => {
            let (listener, file) = socket::bind(path)?;
            files.push(file);
            Listener::Unix(UnixListener::from_std(listener).map_err(listen_error(path.display()))?)
        }
        (None, Some(MetricsAddress::Loopback(address))) => {
            let listener = TcpListener::bind(address).await.map_err(listen_error(address))?;
            info!(address = ?listener.local_addr().ok(), "metrics at /metrics");
            Listener::Tcp(listener)
        }
        (None, None) => return Ok(None),
    }))
}

async fn remote_listener(tcp: &TcpConfig) -> Result<(TcpListener, Arc<ServerConfig>), RunError> {
    let certificates = tcp.files.load()?;
    let listener = TcpListener::bind(tcp.listen).await.map_err(listen_error(tcp.listen))?;
    Ok((listener, certificates))
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
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
    watchdog: Option<Interval>,
    reload: Option<Arc<LoadConfig>>,
    refilter: Option<Refilter>,
    /// Certificates for connections to come.
    tls: Option<watch::Sender<Arc<ServerConfig>>>,
    /// Keeps on disk what is published, where it is kept.
    keeper: Option<Keeper<Published>>,
    /// What is published once it is on disk, or once the disk has had long enough.
    kept_first: Option<Arc<Published>>,
    watch: Watch,
    /// A reload that reads files.
    loading: Option<JoinHandle<Loaded>>,
    /// Another reload came meanwhile: what is being read may be of before it.
    load_again: bool,
    /// The reading under way.
    reading: Option<JoinHandle<Result<Topology, MachineError>>>,
    /// When it began.
    began: Instant,
    /// What caused it.
    cause: Cause,
    /// A reload came while reading: what is being read may be of before it.
    read_again: bool,
    /// The service manager waits for the end of the start, or of a reload.
    awaited: bool,
}

impl Daemon {
    async fn serve(&mut self, signals: &mut mpsc::Receiver<Signal>) -> Result<(), RunError> {
        self.start_reading(Cause::Asked);
        loop {
            match self.next_event(signals).await {
                Event::Machine(Ok(topology)) => self.handle_topology(topology).await,
                Event::Kept(kept) => self.handle_kept(kept).await,
                Event::Loaded(loaded) => self.handle_loaded(*loaded),
                Event::Machine(Err(error)) => self.handle_machine_error(error)?,
                Event::Signal(Signal::Reload) => self.handle_reload(),
                Event::Due(due) => {
                    debug!(?due, "reading the machine again");
                    self.start_reading(Cause::Noticed);
                }
                Event::Watchdog => self.notifier.alive(),
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
        // One reading at a time, and none before what came of the last one is published: what is told meanwhile is due afterwards.
        let idle = self.is_idle();
        let Self { reading, server, watch, watchdog, loading, keeper, .. } = self;
        tokio::select! {
            // A channel whose sender is gone asks for the end: nobody else could.
            signal = signals.recv() => Event::Signal(signal.unwrap_or(Signal::Terminate)),
            read = finished(reading) => {
                *reading = None;
                watch.read();
                Event::Machine(read)
            }
            ended = &mut server.task => Event::Server(ended),
            files = loaded(loading) => {
                *loading = None;
                Event::Loaded(Box::new(files))
            }
            told = kept(keeper) => Event::Kept(told),
            () = tick(watchdog) => Event::Watchdog,
            due = watch.due(), if idle => Event::Due(due),
        }
    }

    fn is_idle(&self) -> bool {
        self.reading.is_none() && self.kept_first.is_none()
    }

    fn start_reading(&mut self, cause: Cause) {
        self.read_again = false;
        self.cause = cause;
        self.began = Instant::now();
        let release = self.watch.reading();
        let (source, rates) = (self.config.source.clone(), self.config.rates);
        self.reading = Some(task::spawn_blocking(move || {
            release.wait();
            machine::read(&source, rates)
        }));
    }

    /// The configuration and the machine anew; whatever of the first cannot be used, the daemon goes on with what it has.
    fn handle_reload(&mut self) {
        self.notifier.reloading();
        self.awaited = true;
        if self.loading.is_some() {
            self.load_again = true;
        } else {
            self.start_loading();
        }
    }

    /// Reads the files of a reload: they may be many, and on a disk that hangs.
    fn start_loading(&mut self) {
        self.load_again = false;
        let reload = self.reload.clone();
        let present = self.tls.as_ref().and(self.config.tcp.as_ref()).map(|tcp| tcp.files.clone());
        self.loading = Some(task::spawn_blocking(move || {
            let config = reload.map(|reload| reload().map_err(|error| chain(&error)));
            let new = config.as_ref().and_then(|config| config.as_ref().ok());
            let new = new.and_then(|(config, _)| config.tcp.as_ref()).map(|tcp| tcp.files.clone());
            // Certificates are renewed under their old names.
            let certificates = present.map(|present| new.unwrap_or(present).load());
            Loaded { config, certificates }
        }));
    }

    fn handle_loaded(&mut self, loaded: Loaded) {
        if self.load_again {
            self.start_loading();
            return;
        }
        let refused = match loaded.config {
            Some(Ok((config, filter))) => {
                self.take_over(config, filter);
                None
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        self.warn("configuration", refused, "the configuration is not one; the one before stays");
        if let (Some(certificates), Some(tls)) = (loaded.certificates, &self.tls) {
            let refused = match certificates {
                Ok(certificates) => {
                    tls.send_replace(certificates);
                    info!("certificates are read anew");
                    None
                }
                Err(error) => Some(chain(&error)),
            };
            self.warn("certificates", refused, "certificates cannot be used; those before stay");
        }
        if self.is_idle() {
            self.start_reading(Cause::Asked);
        } else {
            self.read_again = true;
        }
    }

    /// Takes what can change while the daemon runs.
    fn take_over(&mut self, config: Config, filter: EnvFilter) {
        if let Some(refilter) = &self.refilter {
            refilter(filter);
        }
        let present = &mut self.config;
        let fixed = [
            ("socket", present.socket != config.socket),
            ("events", present.events != config.events),
            ("metrics", present.metrics != config.metrics),
            ("metrics_textfile", present.metrics_textfile != config.metrics_textfile),
            ("state", present.state != config.state),
            ("limits", present.limits != config.limits),
            (
                "tcp.listen",
                present.tcp.as_ref().map(|tcp| tcp.listen)
                    != config.tcp.as_ref().map(|tcp| tcp.listen),
            ),
        ];
        for (name, _) in fixed.into_iter().filter(|(_, changed)| *changed) {
            warn!("{name} changes with the next start");
        }
        if let (Some(present), Some(tcp)) = (&mut present.tcp, config.tcp) {
            present.files = tcp.files;
        }
        present.source = config.source;
        present.rates = config.rates;
        if present.poll != config.poll {
            present.poll = config.poll;
            self.watch.set_poll(config.poll);
        }
    }

    /// Keeps in mind, and logs once, what of the daemon's own does not work.
    fn warn(&self, about: &'static str, refused: Option<String>, consequence: &str) {
        if let Some(error) = &refused {
            warn!(message_id = message_id::WARNING, error, "{consequence}");
        }
        self.state.warn(about, refused.map(|error| format!("{about}: {error}")));
    }

    /// Publishes what was read where it differs from what is published, once it is on disk.
    async fn handle_topology(&mut self, topology: Topology) {
        self.state.reading_succeeded(self.began.elapsed());
        self.state.metrics.faults(&topology);
        match self.state.next(topology) {
            Next::New(published) => {
                let keeper = self.keeper.as_mut();
                if keeper.is_some_and(|keeper| keeper.keep(Arc::clone(&published))) {
                    self.kept_first = Some(published);
                } else {
                    self.publish(published).await;
                }
            }
            Next::Unchanged { topology, generation } => {
                // The clock finds no difference all day long.
                if self.cause == Cause::Asked {
                    info!(%generation, "the machine is unchanged");
                } else {
                    debug!(%generation, "the machine is unchanged");
                }
                let news = self.state.judge(&topology, generation);
                self.tell(news);
                self.read_again_if_asked();
            }
        }
    }

    /// A generation is on disk before anyone sees it, unless the disk fails or hangs.
    async fn handle_kept(&mut self, kept: Kept) {
        let refused = match kept {
            Kept::Saved => None,
            Kept::Unsaved(error) => {
                self.state.metrics.state_not_written();
                Some(error)
            }
        };
        self.warn(
            "state",
            refused,
            "the state is not kept; after a restart generations may begin anew",
        );
        if let Some(published) = self.kept_first.take() {
            self.publish(published).await;
        }
    }

    async fn publish(&mut self, published: Arc<Published>) {
        let (generation, topology) = (published.generation, &published.topology);
        let (gpus, nics) = (topology.gpus().len(), topology.nics().len());
        let faults = faults(topology);
        info!(message_id = message_id::PUBLISHED, %generation, gpus, nics, faults, "published");
        if self.cause == Cause::Noticed && self.watch.changed() {
            warn!(
                message_id = message_id::FLAPPING,
                "devices change again and again; readings are held apart until they rest"
            );
        }
        self.state.judge(topology, generation);
        self.state.publish(published);
        self.server.set_serving().await;
        self.tell(true);
        self.read_again_if_asked();
    }

    /// Tells the service manager what is published, where that is news to it.
    fn tell(&mut self, news: bool) {
        let Some(published) = self.state.current() else { return };
        let topology = &published.topology;
        let (verdict, findings) = self.state.verdict().map_or((None, 0), |judged| {
            (judged.report.status().word(), judged.report.findings.len())
        });
        let verdict = verdict.unwrap_or("unknown");
        let status = format!(
            "{} GPUs, {} NICs, {} faults, generation {}, {verdict} with {findings} findings",
            topology.gpus().len(),
            topology.nics().len(),
            faults(topology),
            published.generation,
        );
        // READY ends the start, and it ends a reload: not before its files are read, and the machine after them.
        if self.awaited && !self.read_again && self.loading.is_none() {
            self.awaited = false;
            self.notifier.ready(&status);
        } else if news {
            self.notifier.status(&status);
        }
        if news {
            info!(message_id = message_id::VERDICT, verdict, findings, "judged");
        }
    }

    /// Without a topology there is nothing to serve; with one, it stays.
    fn handle_machine_error(&mut self, error: MachineError) -> Result<(), RunError> {
        if self.state.current().is_none() && !self.read_again {
            return Err(RunError::Machine(error));
        }
        let text = chain(&error);
        error!(
            message_id = message_id::NOT_READ,
            error = text,
            "cannot read the machine; what was published stays"
        );
        self.state.reading_failed(self.began.elapsed(), text);
        self.tell(false);
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
                    None => pending().await,
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

fn faults(topology: &Topology) -> usize {
    topology.hosts().iter().map(|host| host.faults.len()).sum()
}

async fn tick(watchdog: &mut Option<Interval>) {
    match watchdog {
        Some(ticks) => drop(ticks.tick().await),
        None => pending().await,
    }
}

/// Waits for the reading under way; for ever where there is none.
async fn finished(
    reading: &mut Option<JoinHandle<Result<Topology, MachineError>>>,
) -> Result<Topology, MachineError> {
    let Some(task) = reading else { return pending().await };
    match task.await {
        Ok(read) => read,
        Err(_) => Err(MachineError::Panicked),
    }
}

/// Waits for the files of a reload; for ever where none is under way.
async fn loaded(loading: &mut Option<JoinHandle<Loaded>>) -> Loaded {
    let Some(task) = loading else { return pending().await };
    task.await.unwrap_or_else(|error| {
        let failed = format!("reading it failed; the log has the panic: {error}");
        Loaded { config: Some(Err(failed)), certificates: None }
    })
}

/// Waits for news of the disk; for ever where nothing is kept.
async fn kept(keeper: &mut Option<Keeper<Published>>) -> Kept {
    match keeper {
        Some(keeper) => keeper.next().await,
        None => pending().await,
    }
}
