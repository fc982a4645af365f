//! The configuration file: TOML, every key optional, and every value with its place for errors.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, Given, TcpConfig};
use crate::limits::Limits;
use crate::tls::TlsFiles;

/// A file and what is in it.
#[derive(Debug, Default)]
pub(super) struct File {
    path: PathBuf,
    text: String,
    pub(super) content: Content,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Content {
    pub(super) socket: Option<Spanned<String>>,
    pub(super) source: Option<Spanned<String>>,
    pub(super) sysfs_root: Option<Spanned<String>>,
    pub(super) nvml: Option<Spanned<String>>,
    pub(super) rates: Option<Spanned<String>>,
    pub(super) poll_seconds: Option<Spanned<u64>>,
    pub(super) events: Option<Spanned<String>>,
    pub(super) metrics: Option<Spanned<String>>,
    pub(super) metrics_textfile: Option<Spanned<String>>,
    pub(super) state: Option<Spanned<String>>,
    pub(super) log: Option<Spanned<String>>,
    tcp: Option<Spanned<Tcp>>,
    #[serde(default)]
    limits: LimitsContent,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tcp {
    listen: Spanned<String>,
    certificate: PathBuf,
    key: PathBuf,
    client_ca: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsContent {
    connections: Option<Spanned<u32>>,
    streams: Option<Spanned<u32>>,
    calls_per_second: Option<Spanned<u32>>,
    request_bytes: Option<Spanned<u32>>,
    call_seconds: Option<Spanned<u32>>,
}

/// Where a value was set: an option, a variable of the environment, or a place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    name: &'static str,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Option,
    Environment,
    /// File, line and column, from 1.
    File(Box<(PathBuf, usize, usize)>),
}

impl Setting {
    pub(super) fn option(name: &'static str) -> Self {
        Self { name, place: Place::Option }
    }

    pub(super) fn environment(name: &'static str) -> Self {
        Self { name, place: Place::Environment }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File(place) => {
                let (path, line, column) = &**place;
                write!(f, "{}:{line}:{column}: {}", path.display(), self.name)
            }
            Place::Option => write!(f, "--{}", self.name),
            Place::Environment => write!(f, "{} in the environment:", self.name),
        }
    }
}

/// Why a file is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no TOML, or says what no key is for.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// In words.
        message: String,
    },
}

impl File {
    /// A file that is not there says nothing; one that cannot be read may say something, and is an error.
    pub(super) fn read_if_there(path: &Path) -> Result<Self, FileError> {
        match Self::read(path) {
            Err(FileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            read => read,
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self, FileError> {
        let text = fs::read_to_string(path)
            .map_err(|source| FileError::Read { path: path.into(), source })?;
        let content = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let (line, column) = place(&text, error.span().map_or(0, |span| span.start));
            let message = error.message().trim().replace('\n', ", ");
            FileError::Parse { path: path.into(), line, column, message }
        })?;
        Ok(Self { path: path.into(), text, content })
    }

    fn given<T, U>(
        &self,
        name: &'static str,
        found: &Spanned<T>,
        value: impl FnOnce(&T) -> U,
    ) -> Given<U> {
        let (line, column) = place(&self.text, found.span().start);
        Given {
            value: value(found.get_ref()),
            setting: Setting {
                name,
                place: Place::File(Box::new((self.path.clone(), line, column))),
            },
        }
    }

    pub(super) fn text(
        &self,
        name: &'static str,
        found: Option<&Spanned<String>>,
    ) -> Option<Given<String>> {
        found.map(|found| self.given(name, found, String::clone))
    }

    pub(super) fn path(
        &self,
        name: &'static str,
        found: Option<&Spanned<String>>,
    ) -> Option<Given<PathBuf>> {
        found.map(|found| self.given(name, found, |path| path.into()))
    }

    pub(super) fn tcp(&self) -> Result<Option<TcpConfig>, ConfigError> {
        let Some(found) = &self.content.tcp else { return Ok(None) };
        let Tcp { listen, certificate, key, client_ca } = found.get_ref();
        let given = self.given("tcp.listen", listen, String::clone);
        let listen = given.value.parse().map_err(|_| {
            given.refuse(format!("'{}'", given.value), " is not an address with a port")
        })?;
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: client_ca.clone(),
        };
        let setting = self.given("tcp", found, |_| ()).setting;
        files.load().map_err(|source| ConfigError::Tls { setting, source: Box::new(source) })?;
        Ok(Some(TcpConfig { listen, files }))
    }

    pub(super) fn limits(&self) -> Result<Limits, ConfigError> {
        let of = |name, found: Option<&Spanned<u32>>, default: u32| match found {
            None => Ok(default),
            Some(found) => match self.given(name, found, |value| *value) {
                given if given.value == 0 => {
                    Err(given.refuse(0, " lets nobody in: a limit is at least 1"))
                }
                given => Ok(given.value),
            },
        };
        let wide = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let (content, default) = (&self.content.limits, Limits::default());
        Ok(Limits {
            connections: wide(of(
                "limits.connections",
                content.connections.as_ref(),
                narrow(default.connections),
            )?),
            streams: of("limits.streams", content.streams.as_ref(), default.streams)?,
            calls_per_second: of(
                "limits.calls_per_second",
                content.calls_per_second.as_ref(),
                default.calls_per_second,
            )?,
            request_bytes: wide(of(
                "limits.request_bytes",
                content.request_bytes.as_ref(),
                narrow(default.request_bytes),
            )?),
            call_seconds: of(
                "limits.call_seconds",
                content.call_seconds.as_ref(),
                default.call_seconds,
            )?,
        })
    }
}

/// Line and column of a byte, from 1, columns in characters.
fn place(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}
