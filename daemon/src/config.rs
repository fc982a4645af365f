//! What the daemon is told: from arguments and environment to a configuration that is known to make sense.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use topology::RateModel;
use tracing_subscriber::EnvFilter;

use crate::events::EventSource;
use crate::machine::{self, MachineError, MachineSource};
use crate::probe::{NvmlChoice, ProbeConfig};

/// How long a watch stays silent before it sends a heartbeat. Well under the minute after which idle connections are
/// given up in common set-ups.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// How long requests in flight may take after SIGTERM. systemd kills after 90 s by default.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How often the machine is read again where nothing asks for it: ports that go down send no event, and a reading costs
/// milliseconds.
const POLL: Duration = Duration::from_secs(60);

/// Command line of topod. Every option can come from the environment, for unit files and containers.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "topod",
    version,
    about = "Serves the topology of this machine, and plans for it, over gRPC"
)]
pub struct Args {
    /// Unix socket to listen on.
    #[arg(long, env = "TOPOD_SOCKET", value_name = "PATH", default_value = proto::DEFAULT_SOCKET)]
    pub socket: PathBuf,
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
    /// Link rates to plan with: effective, nominal or measured.
    #[arg(long, env = "TOPOD_RATES", value_name = "MODEL", default_value = "effective")]
    pub rates: RateModel,
    /// Read the machine again every so many seconds, for changes that send no event; 0 is never.
    #[arg(long, env = "TOPOD_POLL", value_name = "SECONDS", default_value_t = POLL.as_secs())]
    pub poll: u64,
    /// Device events that cause a reading: kernel, none, or a path where a Unix datagram socket is made for them.
    #[arg(long, env = "TOPOD_EVENTS", value_name = "SOURCE", default_value = "kernel")]
    pub events: String,
    /// What to log to stderr: a level, or levels by module as in `info,daemon=debug`.
    #[arg(long, env = "TOPOD_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
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
}

/// Why a configuration cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The source cannot be read.
    #[error("--source {}", path.display())]
    Source {
        /// As given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The source is no recorded machine.
    #[error("--source {}", path.display())]
    SourceFormat {
        /// As given.
        path: PathBuf,
        /// Why.
        source: MachineError,
    },
    /// The root of the device tree is no directory.
    #[error("--sysfs-root {} is not a directory that can be read", path.display())]
    SysfsRoot {
        /// As given.
        path: PathBuf,
    },
    /// There is no such library. (Without the option, its absence is ordinary.)
    #[error("--nvml {} is not a file that can be read", path.display())]
    Nvml {
        /// As given.
        path: PathBuf,
    },
    /// The folder of the socket is missing.
    #[error("--socket {}: its folder does not exist", path.display())]
    SocketFolder {
        /// As given.
        path: PathBuf,
    },
    /// Something that is no socket is in the socket's place.
    #[error("--socket {}: there is something else at this path", path.display())]
    SocketTaken {
        /// As given.
        path: PathBuf,
    },
    /// The path does not fit into a socket address.
    #[error("--socket {}: longer than the {most} bytes an address has room for", path.display())]
    SocketLength {
        /// As given.
        path: PathBuf,
        /// Room there is.
        most: usize,
    },
    /// No source of events.
    #[error("--events '{given}' is neither kernel nor none nor an absolute path")]
    Events {
        /// As given.
        given: String,
    },
    /// The log filter is not one.
    #[error("--log '{filter}' is not a filter")]
    Log {
        /// As given.
        filter: String,
        /// Why.
        source: tracing_subscriber::filter::ParseError,
    },
}

impl Args {
    /// Checks everything that can be checked without binding, probing or writing.
    ///
    /// # Errors
    /// Names the option that makes no sense.
    pub fn validate(&self) -> Result<Config, ConfigError> {
        self.log_filter()?;
        check_socket(&self.socket)?;
        Ok(Config {
            socket: self.socket.clone(),
            source: self.machine_source()?,
            rates: self.rates,
            events: self.event_source()?,
            poll: (self.poll > 0).then(|| Duration::from_secs(self.poll)),
            heartbeat: HEARTBEAT,
            drain_limit: DRAIN_LIMIT,
        })
    }

    /// The filter of `--log`.
    ///
    /// # Errors
    /// Where it is not one.
    pub fn log_filter(&self) -> Result<EnvFilter, ConfigError> {
        EnvFilter::try_new(&self.log)
            .map_err(|source| ConfigError::Log { filter: self.log.clone(), source })
    }

    fn event_source(&self) -> Result<EventSource, ConfigError> {
        match &self.events[..] {
            "kernel" => Ok(EventSource::Kernel),
            "none" => Ok(EventSource::None),
            path if path.starts_with('/') => Ok(EventSource::Socket(path.into())),
            other => Err(ConfigError::Events { given: other.into() }),
        }
    }

    fn machine_source(&self) -> Result<MachineSource, ConfigError> {
        if let Some(path) = &self.source {
            check_source(path)?;
            let source = MachineSource::Recorded(path.clone());
            // Read once before anything is bound: a file that says nothing is a mistake of whoever names it.
            return match machine::read(&source, self.rates) {
                Ok(_) => Ok(source),
                Err(source) => Err(ConfigError::SourceFormat { path: path.clone(), source }),
            };
        }
        let mut probe = match &self.sysfs_root {
            Some(root) if root.is_dir() => ProbeConfig::recorded(root),
            Some(root) => return Err(ConfigError::SysfsRoot { path: root.clone() }),
            None => ProbeConfig::live(),
        };
        if let Some(path) = &self.nvml {
            if !path.is_file() {
                return Err(ConfigError::Nvml { path: path.clone() });
            }
            probe.nvml = NvmlChoice::Library(path.clone());
        }
        Ok(MachineSource::Probe(probe.with_child()))
    }
}

fn check_source(path: &Path) -> Result<(), ConfigError> {
    let error = |source| ConfigError::Source { path: path.into(), source };
    fs::File::open(path).map(drop).map_err(error)
}

fn check_socket(path: &Path) -> Result<(), ConfigError> {
    use std::os::unix::fs::FileTypeExt as _;

    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !folder.unwrap_or_else(|| Path::new(".")).is_dir() {
        return Err(ConfigError::SocketFolder { path: path.into() });
    }
    if path.as_os_str().len() > crate::socket::LONGEST_PATH {
        return Err(ConfigError::SocketLength {
            path: path.into(),
            most: crate::socket::LONGEST_PATH,
        });
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(ConfigError::SocketTaken { path: path.into() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::chain;

    #[track_caller]
    fn check(args: &[&str], expect: Result<&MachineSource, &str>) {
        let args = Args::try_parse_from([&["topod"], args].concat()).unwrap();
        match (args.validate(), expect) {
            (Ok(config), Ok(source)) => assert_eq!(&config.source, source),
            (Err(error), Err(text)) => {
                let error = chain(&error);
                assert!(error.contains(text), "'{error}' does not say '{text}'");
            }
            (result, _) => panic!("{args:?} gave {result:?}"),
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.xml");
        fs::write(
            &file,
            r#"{"schema_version":1,"name":"a","gpus":["0","1"],"switches":[],"links":[]}"#,
        )
        .unwrap();
        let empty = folder.path().join("empty");
        fs::write(&empty, "").unwrap();
        let (dir, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
        let empty = empty.to_str().unwrap();
        let socket = &format!("{dir}/topod.sock")[..];
        let long = format!("{dir}/{}", "s".repeat(120));

        check(&["--socket", socket, "--source", file], Ok(&MachineSource::Recorded(file.into())));
        check(
            &["--socket", socket, "--sysfs-root", dir],
            Ok(&MachineSource::Probe(ProbeConfig::recorded(dir).with_child())),
        );
        check(&["--socket", socket], Ok(&MachineSource::Probe(ProbeConfig::live().with_child())));
        check(
            &["--socket", socket, "--source", "/nowhere"],
            Err("--source /nowhere: No such file"),
        );
        check(&["--socket", socket, "--source", empty], Err(empty));
        check(&["--socket", socket, "--source", dir], Err("no sys in it"));
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("sys/bus/pci/devices")).unwrap();
        let tree = tree.to_str().unwrap();
        check(&["--socket", socket, "--source", tree], Ok(&MachineSource::Recorded(tree.into())));
        check(&["--socket", socket, "--sysfs-root", file], Err("not a directory"));
        check(&["--socket", socket, "--nvml", "/nowhere"], Err("--nvml /nowhere"));
        check(&["--socket", "/nowhere/topod.sock"], Err("its folder does not exist"));
        check(&["--socket", file], Err("something else at this path"));
        check(&["--socket", &long], Err("longer than"));
        check(&["--socket", socket, "--events", "udev"], Err("--events 'udev'"));
        check(&["--socket", socket, "--log", "daemon=loud"], Err("--log 'daemon=loud'"));
    }

    #[test]
    fn a_recorded_machine_is_not_probed() {
        let args = ["topod", "--source", "a", "--nvml", "b"];
        assert!(Args::try_parse_from(args).is_err());
    }
}
