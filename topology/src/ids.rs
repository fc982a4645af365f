//! Numbers that must not be mistaken for one another: a rank, a local rank, a rail and an NVML index
//! are four different things.

use core::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into a slice.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// Place of a process in a communicator.
    Rank
}
id! {
    /// Place of a process among those of its host.
    LocalRank
}
id! {
    /// Number of a host in a topology, in rank order.
    HostId
}
id! {
    /// NVML's number of a GPU (`dev` in NCCL's files); not the CUDA ordinal, not a local rank.
    GpuIndex
}
id! {
    /// Plane of the network that NICs of equal position share.
    Rail
}

/// Number of a topology as published by one daemon; a plan is bound to one. 0 is "not from a daemon".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
