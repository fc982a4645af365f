//! Options by name: what faces for other languages, the environment and files speak.

use std::fmt::Display;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use topology::Collective;

use super::{Options, Paths, Transport};

/// A setting with its value as text.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name, as in `timeout_ms`; `TOPOD_TIMEOUT_MS` in the environment.
    pub name: &'static str,
    /// What values it takes, for people.
    pub values: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
}

/// A setting that is not there, or a value it does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSetting {
    /// No such setting.
    #[error("there is no setting '{name}'; known are {known}")]
    Name {
        /// As given.
        name: String,
        /// All there are.
        known: String,
    },
    /// A variable of the environment has none of its values.
    #[error("{variable}={value}: {why}")]
    Variable {
        /// Which.
        variable: String,
        /// As given.
        value: String,
        /// What it takes.
        why: String,
    },
    /// Not one of its values.
    #[error("{name}={value}: {why}")]
    Value {
        /// Which setting.
        name: &'static str,
        /// As given.
        value: String,
        /// What it takes.
        why: String,
    },
}

/// Every setting, by name.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "algo",
        values: "algorithms, in NCCL_ALGO's grammar",
        set: |options, value| options.choice.set_algorithms(value),
    },
    Setting {
        name: "bandwidth",
        values: "bytes a second, 0 for any",
        set: |options, value| number(value).map(|rate| options.bandwidth = NonZeroU64::new(rate)),
    },
    Setting {
        name: "collectives",
        values: "all, or names separated by commas",
        set: |options, value| {
            options.collectives = if value == "all" {
                Collective::ALL.to_vec()
            } else {
                value
                    .split(',')
                    .map(|name| name.trim().parse().map_err(|e| format!("{e}")))
                    .collect::<Result<_, _>>()?
            };
            Ok(())
        },
    },
    Setting {
        name: "cross_memory",
        values: "0 or 1",
        set: |options, value| flag(value).map(|on| options.cross_memory = on),
    },
    Setting {
        name: "debug",
        values: "VERSION, WARN, INFO or TRACE",
        set: |options, value| options.log.set_detail(value),
    },
    Setting {
        name: "debug_file",
        values: "a path; %h is the host, %p the process",
        set: |options, value| {
            options.log.file = Some(value.to_owned()).filter(|path| !path.is_empty());
            options.log.file.as_ref().map(|_| ()).ok_or_else(|| "no path".to_owned())
        },
    },
    Setting {
        name: "debug_subsys",
        values: "subsystems, in NCCL_DEBUG_SUBSYS's grammar",
        set: |options, value| options.log.set_subsystems(value),
    },
    Setting {
        name: "heap_bytes",
        values: "bytes",
        set: |options, value| number(value).map(|bytes| options.heap_bytes = bytes),
    },
    Setting {
        name: "ib_adaptive_routing",
        values: "0 or 1",
        set: |options, value| flag(value).map(|on| options.ib.adaptive_routing = Some(on)),
    },
    Setting {
        name: "ib_disable",
        values: "0 or 1",
        set: |options, value| flag(value).map(|on| options.ib.disable = on),
    },
    Setting {
        name: "ib_gid_index",
        values: "a place in the GID table, or -1 for the best",
        set: |options, value| {
            let index: i16 = number(value)?;
            options.ib.gid_index = match index {
                -1 => None,
                _ => Some(u8::try_from(index).map_err(|_| "-1 to 255".to_owned())?),
            };
            Ok(())
        },
    },
    Setting {
        name: "ib_hca",
        values: "RDMA ports, in NCCL_IB_HCA's grammar",
        set: |options, value| {
            value
                .parse()
                .map(|hca| options.ib.hca = Some(hca))
                .map_err(|error: topology::nccl_hca::InvalidHcaFilter| error.to_string())
        },
    },
    Setting {
        name: "ib_qps_per_connection",
        values: "1 to 128",
        set: |options, value| within(value, 1, 128).map(|pairs| options.ib.queue_pairs = pairs),
    },
    Setting {
        name: "ib_retry_cnt",
        values: "0 to 7",
        set: |options, value| within(value, 0, 7).map(|count| options.ib.retry_count = count),
    },
    Setting {
        name: "ib_sl",
        values: "0 to 15",
        set: |options, value| within(value, 0, 15).map(|level| options.ib.service_level = level),
    },
    Setting {
        name: "ib_tc",
        values: "0 to 255",
        set: |options, value| within(value, 0, 255).map(|class| options.ib.traffic_class = class),
    },
    Setting {
        name: "ib_timeout",
        values: "1 to 31: 4.096 us times two to this power",
        // 0 would be to wait for ever.
        set: |options, value| within(value, 1, 31).map(|timeout| options.ib.timeout = timeout),
    },
    Setting {
        name: "join_timeout_ms",
        values: "milliseconds, at least 1",
        set: |options, value| duration(value).map(|limit| options.join_timeout = limit),
    },
    Setting {
        name: "observe",
        values: "0 or 1",
        set: |options, value| flag(value).map(|on| options.observe = on),
    },
    Setting {
        name: "paths",
        values: "auto or plan",
        set: |options, value| {
            options.paths = match value {
                "auto" => Paths::Auto,
                "plan" => Paths::Plan,
                _ => return Err("auto or plan".to_owned()),
            };
            Ok(())
        },
    },
    Setting {
        name: "pin",
        values: "0 or 1",
        set: |options, value| flag(value).map(|on| options.pin = on),
    },
    Setting {
        name: "priorities",
        values: "a number from 1 to 8",
        set: |options, value| number(value).map(|priorities| options.priorities = priorities),
    },
    Setting {
        name: "proto",
        values: "protocols, in NCCL_PROTO's grammar",
        set: |options, value| options.choice.set_protocols(value),
    },
    Setting {
        name: "report",
        values: "a daemon's socket, or default for the usual one",
        set: |options, value| {
            options.report = Some(value.to_owned()).filter(|socket| !socket.is_empty());
            options.report.as_ref().map(|_| ()).ok_or_else(|| "no socket".to_owned())
        },
    },
    Setting {
        name: "slot_bytes",
        values: "bytes",
        set: |options, value| number(value).map(|bytes| options.slot_bytes = Some(bytes)),
    },
    Setting {
        name: "slots",
        values: "a number from 2",
        set: |options, value| number(value).map(|slots| options.slots = Some(slots)),
    },
    Setting {
        name: "socket_ifname",
        values: "interfaces, in NCCL_SOCKET_IFNAME's grammar",
        set: |options, value| value.parse().map(|chosen| options.interfaces = Some(chosen)),
    },
    Setting {
        name: "sockets",
        values: "a number from 1 to 16",
        set: |options, value| {
            within(value, 1, Options::MOST_SOCKETS).map(|sockets| options.sockets = sockets)
        },
    },
    Setting {
        name: "timed",
        values: "0 or 1",
        set: |options, value| flag(value).map(|on| options.timed = on),
    },
    Setting {
        name: "timeout_ms",
        values: "milliseconds, at least 1",
        set: |options, value| duration(value).map(|limit| options.timeout = limit),
    },
    Setting {
        name: "trace",
        values: "a path; %r is the rank, %h the host, %p the process",
        set: |options, value| {
            options.trace = Some(value.to_owned()).filter(|path| !path.is_empty());
            options.trace.as_ref().map(|_| ()).ok_or_else(|| "no path".to_owned())
        },
    },
    Setting {
        name: "transport",
        values: "auto, shm, tcp or verbs",
        set: |options, value| {
            options.transport = match value {
                "auto" => Transport::Auto,
                "shm" => Transport::Shm,
                "tcp" => Transport::Tcp,
                "verbs" => Transport::Verbs,
                _ => return Err("auto, shm, tcp or verbs".to_owned()),
            };
            Ok(())
        },
    },
];

impl Options {
    /// What a face starts from: made for every collective, so that nobody has to say beforehand which are to come.
    #[must_use]
    pub fn for_all() -> Self {
        Self { collectives: Collective::ALL.to_vec(), ..Self::default() }
    }

    /// Changes one setting, both sides as text.
    ///
    /// # Errors
    /// Where there is no such setting, or it does not take the value; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), InvalidSetting> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name);
        let Some(setting) = setting else {
            let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
            return Err(InvalidSetting::Name { name: name.to_owned(), known: known.join(", ") });
        };
        (setting.set)(self, value).map_err(|why| InvalidSetting::Value {
            name: setting.name,
            value: value.to_owned(),
            why,
        })
    }
}

fn number<T: FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| "not a number, or too large".to_owned())
}

fn within<T: FromStr + PartialOrd + Display + Copy>(
    value: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    let given: T = number(value)?;
    if given < least || given > most { Err(format!("{least} to {most}")) } else { Ok(given) }
}

fn duration(value: &str) -> Result<Duration, String> {
    let milliseconds: u64 = number(value)?;
    if milliseconds == 0 {
        return Err("at least 1 ms".to_owned());
    }
    Ok(Duration::from_millis(milliseconds))
}

fn flag(value: &str) -> Result<bool, String> {
    match value {
        "0" | "false" | "no" => Ok(false),
        "1" | "true" | "yes" => Ok(true),
        _ => Err("0 or 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_takes_and_refuses() {
        // A value that changes the default, and one that is none.
        let cases = [
            ("algo", "ring;broadcast:tree", "star"),
            ("bandwidth", "1000000", "1M"),
            ("collectives", "all-reduce, broadcast", "all-produce"),
            ("cross_memory", "1", "2"),
            ("debug", "info", "LOUD"),
            ("debug_file", "/tmp/log.%p", ""),
            ("debug_subsys", "COLL,NET", "MAGIC"),
            ("heap_bytes", "4096", "-1"),
            ("ib_adaptive_routing", "1", "2"),
            ("ib_disable", "1", "maybe"),
            ("ib_gid_index", "3", "256"),
            ("ib_hca", "^=mlx5_0:1,mlx5_1", "mlx5_0,"),
            ("ib_qps_per_connection", "4", "0"),
            ("ib_retry_cnt", "3", "8"),
            ("ib_sl", "5", "16"),
            ("ib_tc", "106", "256"),
            ("ib_timeout", "14", "0"),
            ("join_timeout_ms", "5", "0"),
            ("observe", "1", "often"),
            ("paths", "plan", "ring"),
            ("pin", "yes", ""),
            ("priorities", "2", "two"),
            ("proto", "^LL", "UDP"),
            ("report", "/run/topod.sock", ""),
            ("slot_bytes", "4096", "4K"),
            ("slots", "8", "many"),
            ("socket_ifname", "=eth0", "^"),
            ("sockets", "4", "17"),
            ("timed", "0", "off"),
            ("timeout_ms", "5", "0"),
            ("trace", "/tmp/trace.%r.json", ""),
            ("transport", "tcp", "ib"),
        ];
        let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert_eq!(cases.map(|(name, ..)| name).to_vec(), names, "sorted, each with its case");
        for (name, good, bad) in cases {
            let mut options = Options::default();
            let before = format!("{options:?}");
            let error = options.set(name, bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}={bad}: ")), "{error}");
            assert_eq!(format!("{options:?}"), before);
            options.set(name, good).unwrap();
            assert_ne!(format!("{options:?}"), before, "{name}");
        }
        let error = Options::default().set("speed", "11").unwrap_err().to_string();
        assert!(
            error.starts_with(
                "there is no setting 'speed'; known are algo, bandwidth, collectives, "
            ),
            "{error}"
        );
    }
}
