//! Which machine a process is on, as far as it matters for reaching it.

use serde::{Deserialize, Serialize};

/// Two processes with equal `boot` and `network` can pass descriptors to each other and share memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Host {
    /// For people; errors name it.
    pub(crate) name: String,
    /// Differs between machines and between boots.
    pub(crate) boot: String,
    /// The network namespace: Unix sockets without a file are seen within one alone.
    pub(crate) network: String,
}

impl Host {
    /// This process's. What cannot be read is replaced by the process number, which equals no other's: then shared
    /// memory is not used.
    pub(crate) fn this() -> Self {
        let unknown = || format!("process {}", std::process::id());
        let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        let network = std::fs::read_link("/proc/self/ns/net");
        Self {
            name: read("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".to_owned()),
            boot: read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| unknown()),
            network: network.map_or_else(|_| unknown(), |link| link.display().to_string()),
        }
    }

    pub(crate) fn shares_memory_with(&self, other: &Self) -> bool {
        self.boot == other.boot && self.network == other.network
    }
}
