//! Arbitrary facts of hosts, functions, GPUs and ports beyond their place and rate.

use super::*;
use topology::snapshot::{
    Acs, Bond, BondMember, CpuTopology, FabricHealth, FabricState, FaultKind, Gid, GidKind,
    GidScope, GpuDirectFacts, GpuFabric, HostIdentity, Imex, IommuDomain, IommuGroup, LinkErrors,
    PeerAccess, PeerStatus, PortCounters, ProcessLimits,
};

/// Takes the fields of a generated tuple by name.
macro_rules! build {
    ($name:ident { $($field:ident),+ $(,)? }, $strategy:expr) => {
        $strategy.prop_map(|($($field),+,)| $name { $($field),+ })
    };
}

type Flag = Option<bool>;

fn digest() -> impl Strategy<Value = Option<String>> {
    option::of(text())
}

fn gpudirect() -> impl Strategy<Value = GpuDirectFacts> {
    build!(
        GpuDirectFacts {
            peermem_loaded,
            peermem_registered,
            dma_buf_driver,
            dma_buf_kernel,
            p2pdma,
        },
        any::<(Flag, Flag, Flag, Flag, Flag)>()
    )
}

fn cpu_topology() -> impl Strategy<Value = CpuTopology> {
    let packages = btree_map(any::<u32>(), cpus(), 0..3);
    build!(CpuTopology { packages, l3, cores }, (packages, vec(cpus(), 0..3), vec(cpus(), 0..3)))
}

fn limits() -> impl Strategy<Value = ProcessLimits> {
    let numbers = (any::<Option<u64>>(), any::<Option<u64>>());
    (option::of(cpus()), option::of(cpus()), numbers).prop_map(
        |(cpus, numa_nodes, (memory_bytes, millicpus))| ProcessLimits {
            cpus,
            numa_nodes,
            memory_bytes,
            millicpus,
        },
    )
}

pub(super) fn host_facts() -> impl Strategy<Value = HostFacts> {
    let imex =
        build!(Imex { channels, peers, service_masked }, any::<(Option<u32>, Option<u32>, Flag)>());
    let identity = build!(
        HostIdentity { host, ipc_namespace, pid_namespace, shared_memory },
        (digest(), digest(), digest(), digest())
    );
    (
        (option::of(text()), option::of(text()), option::of(text()), option::of(text())),
        any::<(Flag, Flag, Flag)>(),
        option::of(texts()),
        (option::of(gpudirect()), option::of(imex)),
        (option::of(cpu_topology()), option::of(limits()), option::of(identity)),
    )
        .prop_map(
            |(words, flags, kernel_flags, (gpudirect, imex), (cpus, limits, identity))| {
                let (vendor, product, kernel, driver) = words;
                let (hypervisor, iommu, confidential) = flags;
                HostFacts {
                    vendor,
                    product,
                    hypervisor,
                    kernel,
                    kernel_flags,
                    iommu,
                    driver,
                    gpudirect,
                    confidential,
                    imex,
                    cpus,
                    limits,
                    identity,
                }
            },
        )
}

/// What a PCI function is given beyond its place and link.
pub(super) type FunctionFacts =
    (Option<Acs>, Option<IommuGroup>, Option<bool>, Option<String>, Option<BusId>);

pub(super) fn function_facts() -> impl Strategy<Value = FunctionFacts> {
    use IommuDomain::{Blocked, Dma, DmaFq, Identity, Unmanaged};
    let acs = build!(Acs { supported, enabled }, any::<(u16, u16)>());
    let domain = select(&[Identity, Dma, DmaFq, Unmanaged, Blocked][..]);
    let iommu = build!(IommuGroup { group, domain }, (any::<u32>(), option::of(domain)));
    (option::of(acs), option::of(iommu), any::<Flag>(), option::of(text()), option::of(bus_id()))
}

fn peer_access() -> impl Strategy<Value = PeerAccess> {
    let status = || {
        option::of(select(
            &[
                PeerStatus::Ok,
                PeerStatus::ChipsetNotSupported,
                PeerStatus::GpuNotSupported,
                PeerStatus::TopologyNotSupported,
                PeerStatus::DisabledByRegkey,
                PeerStatus::NotSupported,
                PeerStatus::Unknown,
            ][..],
        ))
    };
    let peer = any::<u32>().prop_map(GpuIndex);
    build!(
        PeerAccess { peer, read, write, nvlink, atomics, pcie },
        (peer, status(), status(), status(), status(), status())
    )
}

fn fabric() -> impl Strategy<Value = GpuFabric> {
    use FabricHealth::{Healthy, LimitedCapacity, Unhealthy};
    use FabricState::{Completed, InProgress, NotStarted, NotSupported};
    let number = || any::<Option<u32>>();
    build!(
        GpuFabric { state, status, cluster, clique, health_mask, health },
        (
            select(&[NotSupported, NotStarted, InProgress, Completed][..]),
            number(),
            option::of(text()),
            number(),
            number(),
            option::of(select(&[Healthy, Unhealthy, LimitedCapacity][..])),
        )
    )
}

/// What a GPU is given beyond its identity and links.
pub(super) type GpuMore = (
    (Option<u32>, Option<u32>, Option<String>, Option<String>),
    Vec<PeerAccess>,
    Option<GpuFabric>,
    Vec<LinkErrors>,
);

pub(super) fn gpu_more() -> impl Strategy<Value = GpuMore> {
    let errors = build!(LinkErrors { link, replay, recovery, crc }, any::<(u32, u64, u64, u64)>());
    (
        (any::<Option<u32>>(), any::<Option<u32>>(), option::of(text()), option::of(text())),
        vec(peer_access(), 0..3),
        option::of(fabric()),
        vec(errors, 0..3),
    )
}

fn gid() -> impl Strategy<Value = Gid> {
    use GidScope::{Global, Ipv4, LinkLocal, UniqueLocal};
    build!(
        Gid { index, kind, scope, netdev },
        (
            any::<u32>(),
            select(&[GidKind::IbOrRoceV1, GidKind::RoceV2][..]),
            select(&[LinkLocal, Ipv4, UniqueLocal, Global][..]),
            option::of(text()),
        )
    )
}

fn bond() -> impl Strategy<Value = Bond> {
    let member =
        build!(BondMember { name, up, mbit }, (text(), any::<Flag>(), any::<Option<u64>>()));
    build!(Bond { name, mode, members }, (text(), option::of(text()), vec(member, 0..3)))
}

/// What a port is given beyond its place and rate.
pub(super) type PortFacts = (
    (Option<String>, Vec<String>, Option<String>, Option<String>, Option<String>),
    (Option<u8>, Option<u32>, Option<u32>),
    Option<Vec<Gid>>,
    Option<PortCounters>,
    Option<Bond>,
);

pub(super) fn port_facts() -> impl Strategy<Value = PortFacts> {
    type Count = Option<u64>;
    let counters = build!(
        PortCounters { link_downed, link_error_recovery, symbol_errors, receive_errors },
        any::<(Count, Count, Count, Count)>()
    );
    (
        (option::of(text()), texts(), option::of(text()), option::of(text()), option::of(text())),
        any::<(Option<u8>, Option<u32>, Option<u32>)>(),
        option::of(vec(gid(), 0..3)),
        option::of(counters),
        option::of(bond()),
    )
}

pub(super) fn fault() -> impl Strategy<Value = Fault> {
    use FaultKind::{Absent, Denied, Lost, Malformed, TimedOut, Unreadable};
    let kind = select(&[Denied, Lost, Absent, TimedOut, Unreadable, Malformed][..]);
    build!(
        Fault { probe, place, kind, error, at_unix_ms },
        (text(), text(), kind, text(), any::<Option<u64>>())
    )
}
