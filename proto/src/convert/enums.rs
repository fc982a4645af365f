//! Closed lists. Both matches are exhaustive, so a new member on either side does not compile until it is placed here.

use topology::health::Status as HealthStatus;
use topology::plan::{LinkPolicy, Pattern};
use topology::snapshot::{
    FabricHealth, FabricState, FaultKind, GidKind, GidScope, GpuLinkKind, IommuDomain, LinkLayer,
    NetInterface, NicRole, PciKind, PeerStatus,
};
use topology::{
    Algorithm, Collective, CpuArch, Executor, PathType, Protocol, RateModel, Severity, Source,
};

use super::WireError;
use crate::report::OperationOutcome;
use crate::v1;

macro_rules! wire_enum {
    ($name:ident { $($variant:ident $(= $wire:ident)?),+ $(,)? }) => {
        impl From<$name> for v1::$name {
            fn from(value: $name) -> Self {
                match value { $($name::$variant => wire_enum!(@wire $variant $($wire)?)),+ }
            }
        }

        impl WireEnum for $name {
            type Wire = v1::$name;

            fn from_wire(wire: v1::$name) -> Option<Self> {
                type Wire = v1::$name;
                match wire {
                    Wire::Unspecified => None,
                    $(wire_enum!(@pattern $variant $($wire)?) => Some(Self::$variant)),+
                }
            }
        }
    };
    (@wire $variant:ident) => { Self::$variant };
    (@wire $variant:ident $wire:ident) => { Self::$wire };
    (@pattern $variant:ident) => { Wire::$variant };
    (@pattern $variant:ident $wire:ident) => { Wire::$wire };
}

/// A closed list of the domain with its counterpart on the wire, which has "unspecified" besides.
pub(super) trait WireEnum: Sized {
    /// The generated enum.
    type Wire: TryFrom<i32>;

    /// `None` for "unspecified".
    fn from_wire(wire: Self::Wire) -> Option<Self>;
}

wire_enum!(PathType { Loc, Nvl, Nvb, C2c, Pix, Pxb, P2c, Pxn, Phb, Node, Sys, Net, Dis });
wire_enum!(RateModel { Effective, Nominal, Measured });
wire_enum!(Source {
    Live,
    NcclXml,
    TopoMatrix,
    LinkGraph,
    HwlocXml,
    NvidiaSmiXml,
    RocmTopo,
    Lspci,
});
wire_enum!(Severity { Info, Degraded, Critical });
wire_enum!(HealthStatus { Ok, Unknown, Degraded, Critical });

impl v1::HealthStatus {
    /// The word for it, as in JSON; `None` where nothing was judged.
    #[must_use]
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::Unspecified => None,
            Self::Ok => Some("ok"),
            Self::Unknown => Some("unknown"),
            Self::Degraded => Some("degraded"),
            Self::Critical => Some("critical"),
        }
    }
}

wire_enum!(Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    SendRecv,
    Barrier
});
wire_enum!(Algorithm {
    Ring,
    Tree,
    Forest,
    Direct,
    Nvls,
    CollNet,
    Pat,
    Hierarchical,
    OneShot,
    RecursiveDoubling,
    HalvingDoubling,
    Bruck,
});
wire_enum!(Protocol { Simple, Ll, Ll128 });
wire_enum!(Executor { Host, Cuda, NcclGraph, Msccl });
wire_enum!(Pattern { Ring, Tree, Pairs, Rounds });
wire_enum!(LinkPolicy { Auto, All });
wire_enum!(OperationOutcome { Ok, Timeout, Failed });
wire_enum!(CpuArch { X86_64 = X8664, Arm64, Ppc64 });
wire_enum!(PciKind { RootPort, Switch, SwitchPort, Gpu, Nic, NvSwitch, Other });
wire_enum!(GpuLinkKind { NvLink, Xgmi });
wire_enum!(LinkLayer { Infiniband, Ethernet });
wire_enum!(NetInterface { Gin, Rma });
wire_enum!(IommuDomain { Identity, Dma, DmaFq, Unmanaged, Blocked });
wire_enum!(PeerStatus {
    Ok,
    ChipsetNotSupported,
    GpuNotSupported,
    TopologyNotSupported,
    DisabledByRegkey,
    NotSupported,
    Unknown
});
wire_enum!(FabricState { NotSupported, NotStarted, InProgress, Completed });
wire_enum!(FabricHealth { Healthy, Unhealthy, LimitedCapacity });
wire_enum!(GidKind { IbOrRoceV1, RoceV2 });
wire_enum!(GidScope { LinkLocal, Ipv4, UniqueLocal, Global });
wire_enum!(FaultKind { Denied, Lost, Absent, TimedOut, Unreadable, Malformed });

impl From<NicRole> for v1::NicRole {
    fn from(value: NicRole) -> Self {
        match value {
            NicRole::Fabric => Self::Fabric,
            NicRole::Other => Self::Other,
            NicRole::Unknown => Self::Unspecified,
        }
    }
}

impl WireEnum for NicRole {
    type Wire = v1::NicRole;

    fn from_wire(wire: v1::NicRole) -> Option<Self> {
        Some(match wire {
            v1::NicRole::Fabric => Self::Fabric,
            v1::NicRole::Other => Self::Other,
            v1::NicRole::Unspecified => Self::Unknown,
        })
    }
}

/// A member that may be unspecified, which is unknown.
pub(super) fn some<D: WireEnum>(field: &'static str, value: i32) -> Result<Option<D>, WireError> {
    let wire = D::Wire::try_from(value).map_err(|_| WireError::UnknownValue { field, value })?;
    Ok(D::from_wire(wire))
}

/// A member that must be told.
pub(super) fn required<D: WireEnum>(field: &'static str, value: i32) -> Result<D, WireError> {
    some(field, value)?.ok_or(WireError::Missing { field })
}

/// Members that must each be told.
pub(super) fn required_each<D: WireEnum>(
    field: &'static str,
    values: &[i32],
) -> Result<Vec<D>, WireError> {
    values.iter().map(|value| required(field, *value)).collect()
}
