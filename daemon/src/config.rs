//! What the daemon is told: from the command line, the environment and a file to a configuration that is known to make sense.
//!
//! The command line wins over the environment, that over the file, and that over defaults, with which no file is needed. Everything
//! that can be checked without binding, probing or writing is checked before any of these; an error names the option, or the line
//! and column.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use topology::RateModel;
use tracing_subscriber::EnvFilter;

use crate::events::EventSource;
use crate::limits::Limits;
use crate::machine::{self, MachineError, MachineSource};
use crate::metrics_server::MetricsAddress;
use crate::metrics_textfile;
use crate::probe::{NvmlChoice, ProbeConfig};
use crate::tls::{TlsError, TlsFiles};

mod file;
#[cfg(test)]
mod tests;

use file::File;
pub use file::{FileError, Setting};

/// How long a watch stays silent before it sends a heartbeat. Well under the minute after which idle connections are
/// given up in common set-ups.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// How long requests in flight may take after SIGTERM. systemd kills after 90 s by default.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How often the machine is read again where nothing asks for it: ports that go down send no event, and a reading costs
/// milliseconds.
const POLL: Duration = Duration::from_secs(60);

/// The file that is read where none is named; it may be missing.
pub const DEFAULT_FILE: &str = "/etc/topod/topod.toml";

/// Command line of topod. Every option can come from the environment, for unit files and containers.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(
    name = "topod",
    version,
    about = "Serves the topology of this machine, and plans for it, over gRPC",
    max_term_width = 100
)]
pub struct Args {
    /// Configuration file; without it /etc/topod/topod.toml, where there is one.
    #[arg(long, env = "TOPOD_CONFIG", value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Check the configuration and end: exit code 0, or 2 with what is wrong and where.
    #[arg(long)]
    pub check_config: bool,
    /// Unix socket to listen on [default: /run/topod/topod.sock].
    #[arg(long, env = "TOPOD_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Recorded machine to serve instead of this one, in any form that `topoctl --from` takes: a file, an archive, or a directory
    /// with its sys and proc.
    #[arg(long, env = "TOPOD_SOURCE", value_name = "PATH", conflicts_with_all = ["sysfs_root", "nvml"])]
    pub source: Option<PathBuf>,
    /// Directory that holds the sys and proc to probe; without --nvml, GPUs are then told by PCI alone.
    #[arg(long, env = "TOPOD_SYSFS_ROOT", value_name = "DIR")]
    pub sysfs_root: Option<PathBuf>,
    /// NVML library to use instead of the driver's.
    #[arg(long, env = "TOPOD_NVML", value_name = "PATH")]
    pub nvml: Option<PathBuf>,
    /// Link rates to plan with: effective, nominal or measured [default: effective].
    #[arg(long, env = "TOPOD_RATES", value_name = "MODEL")]
    pub rates: Option<String>,
    /// Read the machine again every so many seconds, for changes that send no event; 0 is never [default: 60].
    #[arg(long, env = "TOPOD_POLL", value_name = "SECONDS")]
    pub poll: Option<u64>,
    /// Device events that cause a reading: kernel, none, or a path where a Unix datagram socket is made for them [default: kernel].
    #[arg(long, env = "TOPOD_EVENTS", value_name = "SOURCE")]
    pub events: Option<String>,
    /// Where to serve metrics for Prometheus, at /metrics: an address of this host such as 127.0.0.1:9835, or unix:PATH; none without.
    #[arg(long, env = "TOPOD_METRICS", value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// File to write metrics to, for node_exporter's textfile collector; its name ends in .prom. None without.
    #[arg(long, env = "TOPOD_METRICS_TEXTFILE", value_name = "PATH")]
    pub metrics_textfile: Option<PathBuf>,
    /// Folder to keep state in, so that generations go on after a restart; without it systemd's, and none without that.
    #[arg(long, env = "TOPOD_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The folder that systemd made for it: for where nobody names another.
    #[arg(skip)]
    pub state_directory: Option<PathBuf>,
    /// What to log to stderr or the journal: a level, or levels by module as in `info,daemon=debug` [default: info].
    #[arg(long, env = "TOPOD_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// A configuration that has been checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub socket: PathBuf,
    /// What to serve.
    pub source: MachineSource,
    /// Whose rates.
    pub rates: RateModel,
    /// Device events.
    pub events: EventSource,
    /// How often to read the machine again; `None` is never.
    pub poll: Option<Duration>,
    /// Longest silence of a watch.
    pub heartbeat: Duration,
    /// Longest time to finish requests in flight.
    pub drain_limit: Duration,
    /// Where to serve metrics.
    pub metrics: Option<MetricsAddress>,
    /// File to write metrics to.
    pub metrics_textfile: Option<PathBuf>,
    /// Where to serve other hosts, over mutual TLS.
    pub tcp: Option<TcpConfig>,
    /// Folder to keep state in.
    pub state: Option<PathBuf>,
    /// What clients may take.
    pub limits: Limits,
}

/// The listener for other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Where.
    pub listen: std::net::SocketAddr,
    /// Certificates.
    pub files: TlsFiles,
}

impl Config {
    /// The defaults for a machine, listening on `socket`.
    #[must_use]
    pub fn new(socket: PathBuf, source: MachineSource) -> Self {
        Self {
            socket,
            source,
            rates: RateModel::Effective,
            events: EventSource::Kernel,
            poll: Some(POLL),
            heartbeat: HEARTBEAT,
            drain_limit: DRAIN_LIMIT,
            metrics: None,
            metrics_textfile: None,
            tcp: None,
            state: None,
            limits: Limits::default(),
        }
    }
}

/// Why a configuration cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not one.
    #[error(transparent)]
    File(#[from] FileError),
    /// The source cannot be read.
    #[error("{setting} {}", path.display())]
    Source {
        /// Where it is set.
        setting: Setting,
        /// As given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The source is no recorded machine.
    #[error("{setting} {}", path.display())]
    SourceFormat {
        /// Where it is set.
        setting: Setting,
        /// As given.
        path: PathBuf,
        /// Why.
        source: Box<MachineError>,
    },
    /// Certificates cannot be used.
    #[error("{setting}")]
    Tls {
        /// Where they are set.
        setting: Setting,
        /// Why.
        source: Box<TlsError>,
    },
    /// A value that makes no sense.
    #[error("{setting} {value}{reason}")]
    Value {
        /// Where it is set.
        setting: Setting,
        /// As given, in quotes where it is a word.
        value: String,
        /// What is wrong with it, beginning as a sentence goes on: ` is not ...`.
        reason: String,
    },
    /// The log filter is not one.
    #[error("{setting} '{filter}' is not a filter")]
    Log {
        /// Where it is set.
        setting: Setting,
        /// As given.
        filter: String,
        /// Why.
        source: tracing_subscriber::filter::ParseError,
    },
}

/// A value and where it was set.
#[derive(Clone, Debug)]
struct Given<T> {
    value: T,
    setting: Setting,
}

impl<T> Given<T> {
    fn option(name: &'static str, value: Option<T>) -> Option<Self> {
        value.map(|value| Self { value, setting: Setting::option(name) })
    }

    fn refuse(&self, value: impl std::fmt::Display, reason: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            setting: self.setting.clone(),
            value: value.to_string(),
            reason: reason.into(),
        }
    }
}

impl Given<PathBuf> {
    fn refuse_path(&self, reason: &str) -> ConfigError {
        self.refuse(self.value.display(), reason)
    }
}

impl Args {
    /// Checks everything that can be checked without binding, probing or writing; reads the file anew.
    ///
    /// # Errors
    /// Names the option, or the place in the file, that makes no sense.
    pub fn validate(&self) -> Result<(Config, EnvFilter), ConfigError> {
        let file = self.file()?;
        let filter = self.log_filter(&file)?;
        let socket = Given::option("socket", self.socket.clone())
            .or_else(|| file.path("socket", file.content.socket.as_ref()));
        let socket = socket.unwrap_or_else(|| Given {
            value: proto::DEFAULT_SOCKET.into(),
            setting: Setting::option("socket"),
        });
        check_socket(&socket)?;
        let rates = Given::option("rates", self.rates.clone())
            .or_else(|| file.text("rates", file.content.rates.as_ref()));
        let rates = match rates {
            Some(given) => given.value.parse().map_err(|error: topology::UnknownName| {
                given.refuse(format!("'{}'", given.value), format!(": {error}"))
            })?,
            None => RateModel::Effective,
        };
        let poll =
            self.poll.or_else(|| file.content.poll_seconds.as_ref().map(|poll| *poll.get_ref()));
        let poll = poll.map_or(POLL, Duration::from_secs);
        Ok((
            Config {
                rates,
                events: self.event_source(&file)?,
                poll: (!poll.is_zero()).then_some(poll),
                metrics: self.metrics_address(&file)?,
                metrics_textfile: self.metrics_textfile(&file)?,
                tcp: file.tcp()?,
                state: self.state_folder(&file)?,
                limits: file.limits()?,
                ..Config::new(socket.value, self.machine_source(&file, rates)?)
            },
            filter,
        ))
    }

    fn file(&self) -> Result<File, FileError> {
        match &self.config {
            Some(path) => File::read(path),
            None => File::read_if_there(Path::new(DEFAULT_FILE)),
        }
    }

    fn log_filter(&self, file: &File) -> Result<EnvFilter, ConfigError> {
        let given = Given::option("log", self.log.clone())
            .or_else(|| file.text("log", file.content.log.as_ref()));
        let Some(Given { value, setting }) = given else { return Ok(EnvFilter::new("info")) };
        EnvFilter::try_new(&value).map_err(|source| ConfigError::Log {
            setting,
            filter: value,
            source,
        })
    }

    fn event_source(&self, file: &File) -> Result<EventSource, ConfigError> {
        let given = Given::option("events", self.events.clone())
            .or_else(|| file.text("events", file.content.events.as_ref()));
        let Some(given) = given else { return Ok(EventSource::Kernel) };
        match &given.value[..] {
            "kernel" => Ok(EventSource::Kernel),
            "none" => Ok(EventSource::None),
            path if path.starts_with('/') => Ok(EventSource::Socket(path.into())),
            other => Err(given
                .refuse(format!("'{other}'"), " is neither kernel nor none nor an absolute path")),
        }
    }

    fn metrics_address(&self, file: &File) -> Result<Option<MetricsAddress>, ConfigError> {
        let given = Given::option("metrics", self.metrics.clone())
            .or_else(|| file.text("metrics", file.content.metrics.as_ref()));
        let Some(given) = given else { return Ok(None) };
        let value = given.value.clone();
        if let Some(path) = value.strip_prefix("unix:") {
            let path = Given { value: path.into(), setting: given.setting };
            check_socket(&path)?;
            return Ok(Some(MetricsAddress::Unix(path.value)));
        }
        let address: std::net::SocketAddr = value.parse().map_err(|_| {
            given.refuse(format!("'{value}'"), " is neither unix:PATH nor an address with a port")
        })?;
        if !address.ip().is_loopback() {
            let reason = " is no address of this host alone: the page has no access control, so put a proxy that has one before it";
            return Err(given.refuse(format!("'{value}'"), reason));
        }
        Ok(Some(MetricsAddress::Loopback(address)))
    }

    fn metrics_textfile(&self, file: &File) -> Result<Option<PathBuf>, ConfigError> {
        let given = Given::option("metrics-textfile", self.metrics_textfile.clone())
            .or_else(|| file.path("metrics_textfile", file.content.metrics_textfile.as_ref()));
        let Some(given) = given else { return Ok(None) };
        let path = &given.value;
        if path.extension().is_none_or(|extension| extension != metrics_textfile::SUFFIX) {
            return Err(given.refuse_path(": the collector reads names alone that end in .prom"));
        }
        if !path.parent().is_some_and(Path::is_dir) {
            return Err(given.refuse_path(": its folder does not exist"));
        }
        Ok(Some(given.value))
    }

    fn state_folder(&self, file: &File) -> Result<Option<PathBuf>, ConfigError> {
        let given = Given::option("state", self.state.clone())
            .or_else(|| file.path("state", file.content.state.as_ref()))
            .or_else(|| {
                let value = self.state_directory.clone()?;
                Some(Given { value, setting: Setting::environment("STATE_DIRECTORY") })
            });
        let Some(given) = given else { return Ok(None) };
        if !given.value.is_dir() {
            return Err(given.refuse_path(" is not a directory"));
        }
        Ok(Some(given.value))
    }

    fn machine_source(&self, file: &File, rates: RateModel) -> Result<MachineSource, ConfigError> {
        // Whoever names a machine on the command line means that one and none of the file's.
        let named = self.source.is_some() || self.sysfs_root.is_some() || self.nvml.is_some();
        let from_file = |given: Option<Given<PathBuf>>| given.filter(|_| !named);
        let content = &file.content;
        let source = Given::option("source", self.source.clone())
            .or_else(|| from_file(file.path("source", content.source.as_ref())));
        let root = Given::option("sysfs-root", self.sysfs_root.clone())
            .or_else(|| from_file(file.path("sysfs_root", content.sysfs_root.as_ref())));
        let nvml = Given::option("nvml", self.nvml.clone())
            .or_else(|| from_file(file.path("nvml", content.nvml.as_ref())));
        if let Some(given) = source {
            if root.is_some() || nvml.is_some() {
                return Err(given.refuse_path(
                    " is a recorded machine: sysfs_root and nvml are for probing one",
                ));
            }
            let Given { value: path, setting } = given;
            fs::File::open(&path).map(drop).map_err(|source| ConfigError::Source {
                setting: setting.clone(),
                path: path.clone(),
                source,
            })?;
            let source = MachineSource::Recorded(path.clone());
            // Read once before anything is bound: a file that says nothing is a mistake of whoever names it.
            return match machine::read(&source, rates) {
                Ok(_) => Ok(source),
                Err(source) => {
                    let source = Box::new(source);
                    Err(ConfigError::SourceFormat { setting, path, source })
                }
            };
        }
        let mut probe = match root {
            Some(root) if root.value.is_dir() => ProbeConfig::recorded(&root.value),
            Some(root) => return Err(root.refuse_path(" is not a directory that can be read")),
            None => ProbeConfig::live(),
        };
        if let Some(nvml) = nvml {
            // Without the option, its absence is ordinary.
            if !nvml.value.is_file() {
                return Err(nvml.refuse_path(" is not a file that can be read"));
            }
            probe.nvml = NvmlChoice::Library(nvml.value);
        }
        Ok(MachineSource::Probe(probe.with_child()))
    }
}

fn check_socket(given: &Given<PathBuf>) -> Result<(), ConfigError> {
    use std::os::unix::fs::FileTypeExt as _;

    let path = &given.value;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !folder.unwrap_or_else(|| Path::new(".")).is_dir() {
        return Err(given.refuse_path(": its folder does not exist"));
    }
    if path.as_os_str().len() > crate::socket::LONGEST_PATH {
        let most = crate::socket::LONGEST_PATH;
        return Err(
            given.refuse_path(&format!(": longer than the {most} bytes an address has room for"))
        );
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(given.refuse_path(": there is something else at this path"))
        }
        _ => Ok(()),
    }
}
