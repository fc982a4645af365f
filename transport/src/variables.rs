//! Settings from the environment: NCCL's variables that have a meaning here, and our own, which win.
//!
//! | variable | ours | |
//! |---|---|---|
//! | `NCCL_SOCKET_IFNAME` | `TOPOD_SOCKET_IFNAME` | by which interface other hosts reach this rank |
//! | `NCCL_ALGO` | `TOPOD_ALGO` | which of the plan's algorithms may be used |
//! | `NCCL_PROTO` | `TOPOD_PROTO` | whether small messages travel with their flag |
//! | `NCCL_IB_HCA`, `_GID_INDEX` | `TOPOD_IB_HCA`, `_GID_INDEX` | which RDMA ports verbs links use, and by which address |
//! | `NCCL_IB_TIMEOUT`, `_RETRY_CNT`, `_SL`, `_TC` | the same | how their packets are sent, and sent again |
//! | `NCCL_IB_QPS_PER_CONNECTION`, `_ADAPTIVE_ROUTING` | the same | by how many queue pairs, and in how many pieces, they send |
//! | `NCCL_DEBUG`, `_SUBSYS`, `_FILE` | `TOPOD_DEBUG`, `_SUBSYS`, `_FILE` | what is told, and where |
//! | | `TOPOD_TIMEOUT_MS`, ... | every setting of [`SETTINGS`] |
//!
//! What the program itself sets goes before both. Each variable that is set is logged with its effect.

use crate::communicator::{InvalidSetting, Options, SETTINGS};

mod choice;
mod ib;
mod interfaces;
mod log;

pub use choice::{Choice, NoAlgorithm};
pub use ib::Ib;
pub use interfaces::Interfaces;
pub(crate) use interfaces::here as interfaces_here;
pub(crate) use log::expand;
pub use log::{Detail, Log};

/// What a variable that is set does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Its name.
    pub variable: String,
    /// Its value.
    pub value: String,
    /// What it does, in words.
    pub effect: String,
}

/// NCCL's variables with the settings they stand for.
const NCCL: [(&str, &str); 15] = [
    ("NCCL_ALGO", "algo"),
    ("NCCL_DEBUG", "debug"),
    ("NCCL_DEBUG_FILE", "debug_file"),
    ("NCCL_DEBUG_SUBSYS", "debug_subsys"),
    ("NCCL_IB_ADAPTIVE_ROUTING", "ib_adaptive_routing"),
    ("NCCL_IB_DISABLE", "ib_disable"),
    ("NCCL_IB_GID_INDEX", "ib_gid_index"),
    ("NCCL_IB_HCA", "ib_hca"),
    ("NCCL_IB_QPS_PER_CONNECTION", "ib_qps_per_connection"),
    ("NCCL_IB_RETRY_CNT", "ib_retry_cnt"),
    ("NCCL_IB_SL", "ib_sl"),
    ("NCCL_IB_TC", "ib_tc"),
    ("NCCL_IB_TIMEOUT", "ib_timeout"),
    ("NCCL_PROTO", "proto"),
    ("NCCL_SOCKET_IFNAME", "socket_ifname"),
];

impl Options {
    /// Takes what variables say, and tells what each that is set does.
    ///
    /// # Errors
    /// Where one has a value it does not take; the name in the error is the variable's.
    pub fn set_from_variables(
        &mut self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Effect>, InvalidSetting> {
        let mut effects = Vec::new();
        let own = |setting: &str| format!("TOPOD_{}", setting.to_uppercase());
        let take = |options: &mut Self, variable: &str, setting: &str, value: &str| {
            options.set(setting, value).map_err(|error| match error {
                InvalidSetting::Value { value, why, .. } => {
                    InvalidSetting::Variable { variable: variable.to_owned(), value, why }
                }
                other => other,
            })
        };
        for (variable, setting) in NCCL {
            let Some(value) = lookup(variable) else { continue };
            let ours = own(setting);
            let effect = if lookup(&ours).is_some() {
                format!("none: {ours} is set, too, and wins")
            } else {
                take(self, variable, setting, &value)?;
                self.effect(setting)
            };
            effects.push(Effect { variable: variable.to_owned(), value, effect });
        }
        for setting in SETTINGS {
            let variable = own(setting.name);
            let Some(value) = lookup(&variable) else { continue };
            take(self, &variable, setting.name, &value)?;
            let effect = self.effect(setting.name);
            effects.push(Effect { variable, value, effect });
        }
        Ok(effects)
    }

    /// As [`Options::set_from_variables`], of this process's environment; listens for what is to be told, and tells the effects.
    ///
    /// # Errors
    /// As [`Options::set_from_variables`]; and where the file for the log cannot be made.
    pub fn set_from_environment(&mut self) -> Result<Vec<Effect>, InvalidSetting> {
        let effects = self.set_from_variables(|name| std::env::var(name).ok())?;
        let installed = self.log.install().map_err(|error| InvalidSetting::Value {
            name: "debug_file",
            value: self.log.file.clone().unwrap_or_default(),
            why: error.to_string(),
        });
        if !installed? {
            tracing::debug!(target: "topod::env", "the program has a log of its own, and this goes there");
        }
        for Effect { variable, value, effect } in &effects {
            tracing::info!(target: "topod::env", "{variable}={value}: {effect}");
        }
        Ok(effects)
    }

    /// What a setting that was just taken does.
    fn effect(&self, setting: &str) -> String {
        match setting {
            "socket_ifname" => {
                "ranks of other hosts reach this one by the first such interface that is up".to_owned()
            }
            "algo" => {
                "operations run along the plan's channels of these algorithms; those for which direct exchanges are not \
                 among them do not go through memory the ranks share"
                    .to_owned()
            }
            "proto" if self.choice.flat(topology::Collective::AllReduce) => {
                "small messages may travel with their flag (LL); larger ones have no such form here, and go on as Simple"
                    .to_owned()
            }
            "proto" => "no message travels with its flag (LL), however small".to_owned(),
            "ib_disable" if self.ib.disable => {
                "hosts are not reached by RDMA, unless the transport is verbs".to_owned()
            }
            "ib_disable" => "hosts may be reached by RDMA".to_owned(),
            "ib_hca" => "verbs links use these RDMA ports".to_owned(),
            "ib_gid_index" => "verbs links use this entry of each port's GID table".to_owned(),
            "ib_timeout" | "ib_retry_cnt" => format!(
                "a NIC that gets no answer gives up after {} tries, {:.1} ms apart at least",
                u32::from(self.ib.retry_count) + 1,
                4.096e-3 * f64::from(self.ib.timeout).exp2()
            ),
            "debug" => "this is told, and what it asks for".to_owned(),
            "debug_file" => "what is told goes there".to_owned(),
            "debug_subsys" => "of what is told as INFO, that of these subsystems".to_owned(),
            _ => "taken as the setting of that name".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use topology::Collective;

    use super::*;
    use crate::communicator::Transport;

    type Case = (&'static [(&'static str, &'static str)], fn(&Options), &'static [&'static str]);

    /// Variables that are set, what the options then are, and words of the effects in turn.
    const CASES: [Case; 11] = [
        (&[], |o| assert_eq!(o.choice, Choice::default()), &[]),
        (
            &[("NCCL_ALGO", "Ring")],
            |o| assert!(o.choice.by_plan(Collective::AllReduce)),
            &["NCCL_ALGO=Ring: operations run along the plan's channels"],
        ),
        (
            &[("NCCL_ALGO", "Ring"), ("TOPOD_ALGO", "direct")],
            |o| assert!(!o.choice.by_plan(Collective::AllReduce)),
            &["NCCL_ALGO=Ring: none: TOPOD_ALGO is set", "TOPOD_ALGO=direct: operations run"],
        ),
        (
            &[("NCCL_PROTO", "Simple")],
            |o| assert!(!o.choice.flat(Collective::Broadcast)),
            &["NCCL_PROTO=Simple: no message travels with its flag"],
        ),
        (
            &[("NCCL_PROTO", "LL,Simple")],
            |o| assert!(o.choice.flat(Collective::Broadcast)),
            &["NCCL_PROTO=LL,Simple: small messages may travel with their flag"],
        ),
        (
            &[("NCCL_PROTO", "^LL"), ("TOPOD_PROTO", "LL")],
            |o| assert!(o.choice.flat(Collective::Broadcast)),
            &["NCCL_PROTO=^LL: none: TOPOD_PROTO", "TOPOD_PROTO=LL: small"],
        ),
        (
            &[("NCCL_SOCKET_IFNAME", "^docker,lo")],
            |o| assert_eq!(o.interfaces, Some("^docker,lo".parse().unwrap())),
            &["NCCL_SOCKET_IFNAME=^docker,lo: ranks of other hosts reach"],
        ),
        (
            &[("NCCL_SOCKET_IFNAME", "eth0"), ("TOPOD_SOCKET_IFNAME", "=ib0")],
            |o| assert_eq!(o.interfaces, Some("=ib0".parse().unwrap())),
            &["none: TOPOD_SOCKET_IFNAME", "TOPOD_SOCKET_IFNAME==ib0: ranks"],
        ),
        (
            &[
                ("NCCL_DEBUG", "INFO"),
                ("NCCL_DEBUG_FILE", "/tmp/%h"),
                ("NCCL_DEBUG_SUBSYS", "COLL"),
            ],
            |o| {
                assert_eq!(
                    (o.log.detail, o.log.file.as_deref()),
                    (Some(Detail::Info), Some("/tmp/%h"))
                )
            },
            &[
                "NCCL_DEBUG=INFO: this is told",
                "NCCL_DEBUG_FILE=/tmp/%h: what",
                "NCCL_DEBUG_SUBSYS=COLL: of",
            ],
        ),
        (
            &[("NCCL_IB_DISABLE", "1")],
            |o| assert!(o.ib.disable),
            &["NCCL_IB_DISABLE=1: hosts are not reached by RDMA"],
        ),
        (
            &[("NCCL_NTHREADS", "512"), ("TOPOD_TRANSPORT", "tcp"), ("TOPOD_DEBUG", "warn")],
            |o| assert_eq!((o.transport, o.log.detail), (Transport::Tcp, Some(Detail::Warn))),
            &["TOPOD_DEBUG=warn: this", "TOPOD_TRANSPORT=tcp: taken as the setting"],
        ),
    ];

    fn lookup<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn variables_have_their_effects() {
        for (set, check, words) in CASES {
            let mut options = Options::default();
            let effects = options.set_from_variables(lookup(set)).unwrap();
            check(&options);
            let told = effects.iter().map(|e| format!("{}={}: {}", e.variable, e.value, e.effect));
            let told: Vec<String> = told.collect();
            assert_eq!(told.len(), words.len(), "{set:?}: {told:?}");
            for (told, word) in told.iter().zip(words) {
                assert!(told.contains(word), "{set:?}: {told}");
            }
        }
    }

    #[test]
    fn a_value_that_is_none_names_its_variable() {
        for (variable, value, why) in [
            ("NCCL_ALGO", "star", "'star' is none of"),
            ("NCCL_PROTO", "UDP", "'UDP' is none of LL"),
            ("NCCL_SOCKET_IFNAME", "^", "names no interface"),
            ("NCCL_DEBUG", "LOUD", "none of VERSION"),
            ("NCCL_DEBUG_SUBSYS", "MAGIC", "'MAGIC' is none of"),
            ("TOPOD_SLOTS", "many", "not a number"),
        ] {
            let error = Options::default().set_from_variables(lookup(&[(variable, value)]));
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(&format!("{variable}={value}: ")), "{error}");
            assert!(error.contains(why), "{error}");
        }
    }
}
