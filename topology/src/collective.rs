//! The operations a communicator can ask for, and how they are executed.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Text that names no known member of a closed list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a known {what}; known: {known}")]
pub struct UnknownName {
    /// The list, in words.
    pub what: &'static str,
    /// The text as found.
    pub text: String,
    /// The members, comma separated.
    pub known: String,
}

macro_rules! names {
    ($(#[$doc:meta])* $name:ident, $what:literal, { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every member, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name on command lines and in JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;
            fn from_str(text: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| UnknownName {
                    what: $what,
                    text: text.into(),
                    known: [$($text),+].join(", "),
                })
            }
        }
    };
}

names! {
    /// What a collective does; sizes and bandwidths are those of nccl-tests.
    Collective, "collective", {
        /// Every rank gets the sum of all ranks' buffers.
        AllReduce = "all-reduce",
        /// Every rank gets all ranks' shards.
        AllGather = "all-gather",
        /// Every rank gets its shard of the sum.
        ReduceScatter = "reduce-scatter",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the sum.
        Reduce = "reduce",
        /// Every rank sends a different shard to every rank.
        AllToAll = "all-to-all",
        /// The root gets all ranks' shards.
        Gather = "gather",
        /// Every rank gets its shard of the root's buffer.
        Scatter = "scatter",
        /// One rank sends to one other.
        SendRecv = "send-recv",
        /// No data; nobody leaves before everybody came.
        Barrier = "barrier",
    }
}

names! {
    /// Family of schedules.
    Algorithm, "algorithm", {
        /// Directed cycles over all ranks.
        Ring = "ring",
        /// Double binary tree: up to the root and down again.
        Tree = "tree",
        /// Weighted spanning trees packed into the links.
        Forest = "forest",
        /// Every rank to every rank: exchanges in one step, a reduction by shards in one, an all-reduce by shards in two.
        Direct = "direct",
        /// Reduction and multicast in NVSwitches.
        Nvls = "nvls",
        /// Reduction in network switches.
        CollNet = "collnet",
        /// Parallel aggregated trees (NCCL's PAT).
        Pat = "pat",
        /// One algorithm inside hosts, another between them.
        Hierarchical = "hierarchical",
        /// All of the data from every rank to every rank.
        OneShot = "one-shot",
        /// All of the data to the rank whose number differs in one bit, bit by bit.
        RecursiveDoubling = "recursive-doubling",
        /// Half of what is left to the rank whose number differs in one bit, and back (Rabenseifner).
        HalvingDoubling = "halving-doubling",
        /// Blocks to ranks 1, 2, 4, .. away in turn.
        Bruck = "bruck",
    }
}

names! {
    /// How data and readiness travel on a connection; NCCL's words.
    Protocol, "protocol", {
        /// Data, then a flag.
        Simple = "simple",
        /// Flag in every 8 bytes.
        Ll = "ll",
        /// Flag in every 128 bytes.
        Ll128 = "ll128",
    }
}

names! {
    /// What can run an algorithm of a plan.
    Executor, "executor", {
        /// Our transport on host memory.
        Host = "host",
        /// Our transport on device memory.
        Cuda = "cuda",
        /// Stock NCCL through an exported graph file.
        NcclGraph = "nccl-graph",
        /// MSCCL through an exported schedule.
        Msccl = "msccl",
    }
}

impl Algorithm {
    /// Whether it goes in rounds over a list of hops each, and in no other form. ([`Algorithm::Direct`] has both.)
    #[must_use]
    pub const fn is_rounds(self) -> bool {
        matches!(
            self,
            Self::OneShot
                | Self::RecursiveDoubling
                | Self::HalvingDoubling
                | Self::Bruck
                | Self::Pat
                | Self::Hierarchical
        )
    }

    /// What [`Algorithm::Hierarchical`] does between hosts: halving and doubling, which needs the fewest bytes and steps, where it
    /// has a form without folding, else PAT.
    #[must_use]
    pub const fn between_hosts(collective: Collective, hosts: usize) -> Self {
        match collective {
            Collective::AllReduce if hosts.is_power_of_two() => Self::HalvingDoubling,
            _ => Self::Pat,
        }
    }
}

impl Collective {
    /// `busbw / algbw` as nccl-tests defines it, for `ranks` ranks.
    #[must_use]
    pub fn busbw_factor(self, ranks: u32) -> f64 {
        if ranks == 0 {
            return 1.0;
        }
        let n = f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::Gather
            | Self::Scatter => (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Barrier => 1.0,
        }
    }

    /// Whether one rank is singled out.
    #[must_use]
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_round_trip() {
        for c in Collective::ALL {
            assert_eq!(c.to_string().parse::<Collective>().unwrap(), *c);
        }
        let error = "allreduce".parse::<Collective>().unwrap_err().to_string();
        assert!(error.contains("all-reduce, all-gather"), "{error}");
    }
}
