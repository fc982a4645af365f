//! Arbitrary values of the domain types: every member of every list, every optional field both ways.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use topology::matrix::{Cell, Matrix};
use topology::plan::{
    Bound, Candidate, Channel, ChannelEdge, ChannelSet, CollectivePlan, EdgePath, LinkPolicy,
    Pattern, PlanRank, SizeChoice, TopologyRef,
};
use topology::snapshot::{
    C2c, Fault, Gpu, GpuLinkKind, GpuLinks, HostFacts, LinkGraph, LinkLayer, LinkPeer,
    NetInterface, Nic, NicRole, NumaNode, PciDevice, PciKind, PcieLink, PcieLinkFacts,
    SCHEMA_VERSION,
};
use topology::{
    Algorithm, Bandwidth, BusId, Collective, CpuArch, CpuList, CpuModel, Executor, Finding,
    Fraction, Generation, GpuIndex, HostId, PathType, Plan, Protocol, Rail, Rank, RateModel,
    Severity, Snapshot, Source,
};

use crate::{GpuSelector, JobMember, PlanQuery, Published};

mod facts;

use facts::{fault, function_facts, gpu_more, host_facts, port_facts};

const SOURCES: &[Source] = &[
    Source::Live,
    Source::NcclXml,
    Source::TopoMatrix,
    Source::LinkGraph,
    Source::HwlocXml,
    Source::NvidiaSmiXml,
    Source::RocmTopo,
    Source::Lspci,
];
const LINKS: &[LinkPolicy] = &[LinkPolicy::Auto, LinkPolicy::All];
const RATES: &[RateModel] = &[RateModel::Effective, RateModel::Nominal, RateModel::Measured];

fn text() -> impl Strategy<Value = String> {
    ".{0,8}"
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

fn bus_id() -> impl Strategy<Value = BusId> {
    (any::<u32>(), any::<u8>(), 0u8..32, 0u8..8).prop_map(|(domain, bus, device, function)| {
        BusId::new(domain, bus, device, function).unwrap()
    })
}

fn cpus() -> impl Strategy<Value = CpuList> {
    btree_set(0u32..1024, 0..20).prop_map(CpuList::from_cpus)
}

fn bandwidth() -> impl Strategy<Value = Bandwidth> {
    any::<u64>().prop_map(Bandwidth::from_kbps)
}

fn fraction() -> impl Strategy<Value = Fraction> {
    (-i128::MAX..=i128::MAX, 1..=i128::MAX).prop_map(|(p, q)| Fraction::new(p, q).unwrap())
}

fn cpu_model() -> impl Strategy<Value = CpuModel> {
    let arch = select(&[CpuArch::X86_64, CpuArch::Arm64, CpuArch::Ppc64][..]);
    (option::of(arch), option::of(text()), any::<Option<u32>>(), any::<Option<u32>>())
        .prop_map(|(arch, vendor, family, model)| CpuModel { arch, vendor, family, model })
}

fn numa_node() -> impl Strategy<Value = NumaNode> {
    (
        any::<u32>(),
        option::of(cpus()),
        any::<Option<u64>>(),
        btree_map(any::<u32>(), any::<u32>(), 0..4),
        cpu_model(),
    )
        .prop_map(|(id, cpus, memory_bytes, distances, cpu)| NumaNode {
            id,
            cpus,
            memory_bytes,
            distances,
            cpu,
        })
}

fn pcie_link() -> impl Strategy<Value = PcieLink> {
    (any::<u32>(), any::<u8>()).prop_map(|(mtps, width)| PcieLink { mtps, width })
}

fn pci_device() -> impl Strategy<Value = PciDevice> {
    let kinds = [
        PciKind::RootPort,
        PciKind::Switch,
        PciKind::SwitchPort,
        PciKind::Gpu,
        PciKind::Nic,
        PciKind::NvSwitch,
        PciKind::Other,
    ];
    let link = (
        (option::of(pcie_link()), option::of(pcie_link()), option::of(pcie_link())),
        option::of(bandwidth()),
    );
    (
        (bus_id(), option::of(bus_id()), option::of(text()), select(kinds.to_vec())),
        any::<(Option<u32>, Option<u16>, Option<u16>, Option<u32>)>(),
        link,
        function_facts(),
    )
        .prop_map(|((bus_id, parent, host_bridge, kind), numbers, link, facts)| {
            let (acs, iommu, suspended, driver, physical_function) = facts;
            let (class, vendor, device, numa_node) = numbers;
            let ((trained, device_capable, slot_capable), trained_total) = link;
            PciDevice {
                bus_id,
                parent,
                host_bridge,
                kind,
                class,
                vendor,
                device,
                numa_node,
                link: PcieLinkFacts { trained, device_capable, slot_capable, trained_total },
                acs,
                iommu,
                suspended,
                driver,
                physical_function,
            }
        })
}

fn link_peer() -> impl Strategy<Value = LinkPeer> {
    prop_oneof![
        bus_id().prop_map(LinkPeer::Gpu),
        option::of(bus_id()).prop_map(LinkPeer::Switch),
        option::of(bus_id()).prop_map(LinkPeer::Cpu),
        Just(LinkPeer::Unknown),
    ]
}

fn gpu_links() -> impl Strategy<Value = GpuLinks> {
    let kind = select(&[GpuLinkKind::NvLink, GpuLinkKind::Xgmi][..]);
    (kind, link_peer(), any::<u32>(), option::of(bandwidth()))
        .prop_map(|(kind, peer, count, rate)| GpuLinks { kind, peer, count, rate })
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let c2c = (any::<u32>(), bandwidth()).prop_map(|(count, rate)| C2c { count, rate });
    (
        any::<(u32, Option<u32>)>(),
        (option::of(bus_id()), option::of(text()), option::of(text())),
        any::<(Option<u32>, Option<u64>, Option<u32>, Option<u32>, Option<bool>, Option<bool>)>(),
        option::of(cpus()),
        vec(gpu_links(), 0..3),
        option::of(c2c),
        gpu_more(),
    )
        .prop_map(|(index, (bus_id, uuid, name), facts, cpus, links, c2c, more)| {
            let ((minor, memory_node, gfx, partition), peers, fabric, link_errors) = more;
            let (index, part) = index;
            let (compute_capability, memory_bytes, numa_node, inactive_links, gdr, mig) = facts;
            Gpu {
                index: GpuIndex(index),
                bus_id,
                uuid,
                name,
                compute_capability,
                memory_bytes,
                numa_node,
                cpus,
                part,
                links,
                inactive_links,
                c2c,
                gdr,
                mig,
                minor,
                memory_node,
                gfx,
                partition,
                peers,
                fabric,
                link_errors,
            }
        })
}

fn nic() -> impl Strategy<Value = Nic> {
    let layer = select(&[LinkLayer::Infiniband, LinkLayer::Ethernet][..]);
    let role = select(&[NicRole::Fabric, NicRole::Other, NicRole::Unknown][..]);
    (
        (text(), option::of(bus_id()), option::of(layer), role),
        any::<(Option<u32>, Option<u32>, Option<u64>, Option<bool>, Option<bool>, Option<u32>)>(),
        port_facts(),
        (any::<Option<u32>>(), vec(select(&[NetInterface::Gin, NetInterface::Rma][..]), 0..3)),
    )
        .prop_map(|((name, bus_id, link_layer, role), facts, more, (plane, interfaces))| {
            let (numa_node, port, mbit, up, gdr, rail) = facts;
            let (words, (lanes, card, node), gids, counters, bond) = more;
            let (role_reason, netdevs, phys_state, firmware, board) = words;
            Nic {
                name,
                bus_id,
                numa_node,
                port,
                mbit,
                link_layer,
                up,
                gdr,
                rail: rail.map(Rail),
                plane,
                interfaces,
                role,
                role_reason,
                netdevs,
                lanes,
                phys_state,
                card,
                node,
                firmware,
                board,
                gids,
                counters,
                bond,
            }
        })
}

fn matrix() -> impl Strategy<Value = Matrix> {
    let cell = (select(PathType::ALL.to_vec()), any::<u32>())
        .prop_map(|(class, links)| Cell { class, links });
    (0usize..4)
        .prop_flat_map(move |size| {
            (vec(text(), size), vec(vec(option::of(cell.clone()), size), size))
        })
        .prop_map(|(devices, cells)| Matrix { devices, cells })
}

fn link_graph() -> impl Strategy<Value = LinkGraph> {
    (text(), texts(), texts(), vec((text(), text(), bandwidth()), 0..4))
        .prop_map(|(name, gpus, switches, links)| LinkGraph { name, gpus, switches, links })
}

pub(crate) fn snapshot() -> impl Strategy<Value = Snapshot> {
    (
        (0..=SCHEMA_VERSION, select(SOURCES), host_facts()),
        vec(numa_node(), 0..3),
        (vec(pci_device(), 0..3), vec((bus_id(), bus_id()), 0..3)),
        vec(gpu(), 0..3),
        vec(nic(), 0..3),
        option::of(matrix()),
        option::of(link_graph()),
        vec(fault(), 0..3),
    )
        .prop_map(
            |(
                head,
                numa_nodes,
                (pci_devices, pci_links),
                gpus,
                nics,
                matrix,
                link_graph,
                faults,
            )| {
                let (schema_version, source, host) = head;
                Snapshot {
                    schema_version,
                    source,
                    host,
                    numa_nodes,
                    pci_devices,
                    pci_links,
                    gpus,
                    nics,
                    matrix,
                    link_graph,
                    faults,
                }
            },
        )
}

pub(super) fn published() -> impl Strategy<Value = Published> {
    (any::<u64>(), text(), select(RATES), vec(snapshot(), 0..3)).prop_map(
        |(generation, fingerprint, rates, hosts)| Published {
            generation: Generation(generation),
            fingerprint,
            rates,
            hosts,
        },
    )
}

fn collectives() -> impl Strategy<Value = Vec<Collective>> {
    vec(select(Collective::ALL), 0..4)
}

fn channel_edge() -> impl Strategy<Value = ChannelEdge> {
    let path = (texts(), fraction()).prop_map(|(via, share)| EdgePath { via, share });
    (any::<u32>(), any::<u32>(), vec(path, 0..3)).prop_map(|(from, to, paths)| ChannelEdge {
        from: Rank(from),
        to: Rank(to),
        paths,
    })
}

fn channel() -> impl Strategy<Value = Channel> {
    let pattern = select(&[Pattern::Ring, Pattern::Tree, Pattern::Pairs, Pattern::Rounds][..]);
    (
        (any::<u32>(), pattern, collectives()),
        (vec(any::<u32>(), 0..4), any::<Option<u32>>(), texts()),
        (fraction(), fraction()),
        (vec(channel_edge(), 0..3), vec(channel_edge(), 0..3)),
    )
        .prop_map(|(head, (ranks, root, nics), (share, gbps), (edges, reduce_edges))| {
            let (index, pattern, collectives) = head;
            Channel {
                index,
                pattern,
                collectives,
                ranks: ranks.into_iter().map(Rank).collect(),
                root: root.map(Rank),
                nics,
                share,
                gbps,
                edges,
                reduce_edges,
            }
        })
}

fn channel_set() -> impl Strategy<Value = ChannelSet> {
    (select(Algorithm::ALL), collectives(), vec(channel(), 0..2)).prop_map(
        |(algorithm, collectives, channels)| ChannelSet { algorithm, collectives, channels },
    )
}

fn candidate() -> impl Strategy<Value = Candidate> {
    (
        (select(Algorithm::ALL), fraction()),
        any::<(u32, u32, bool)>(),
        vec(select(Executor::ALL), 0..3),
        text(),
    )
        .prop_map(|((algorithm, algbw_gbps), (channels, height, optimal), executors, note)| {
            Candidate { algorithm, algbw_gbps, channels, height, optimal, executors, note }
        })
}

fn size_choice() -> impl Strategy<Value = SizeChoice> {
    (
        prop_oneof![any::<u64>(), Just(u64::MAX)],
        select(Algorithm::ALL),
        select(Protocol::ALL),
        any::<u32>(),
        any::<Option<u64>>(),
    )
        .prop_map(|(max_bytes, algorithm, protocol, channels, predicted_ps)| SizeChoice {
            max_bytes,
            algorithm,
            protocol,
            channels,
            predicted_ps,
        })
}

fn collective_plan() -> impl Strategy<Value = CollectivePlan> {
    let bound =
        (fraction(), texts()).prop_map(|(algbw_gbps, limited_by)| Bound { algbw_gbps, limited_by });
    (
        option::of(bound),
        option::of(candidate()),
        option::of(candidate()),
        vec(candidate(), 0..3),
        vec(size_choice(), 0..3),
    )
        .prop_map(|(bound, best, ring, candidates, by_size)| CollectivePlan {
            bound,
            best,
            ring,
            candidates,
            by_size,
        })
}

fn finding() -> impl Strategy<Value = Finding> {
    let severity = select(&[Severity::Info, Severity::Degraded, Severity::Critical][..]);
    (text(), severity, text(), text(), text()).prop_map(
        |(code, severity, component, evidence, fix)| Finding {
            code,
            severity,
            component,
            evidence,
            fix,
        },
    )
}

pub(super) fn plan() -> impl Strategy<Value = Plan> {
    let topology = (text(), select(SOURCES), select(RATES), select(LINKS), texts(), any::<u64>())
        .prop_map(|(fingerprint, source, rates, links, what_if, generation)| TopologyRef {
            fingerprint,
            source,
            rates,
            links,
            what_if,
            generation: Generation(generation),
        });
    let rank = (any::<(u32, u32, u32)>(), option::of(bus_id()), option::of(text())).prop_map(
        |((rank, host, gpu), bus_id, uuid)| PlanRank {
            rank: Rank(rank),
            host: HostId(host),
            gpu: GpuIndex(gpu),
            bus_id,
            uuid,
        },
    );
    (
        topology,
        vec(rank, 0..4),
        vec(channel(), 0..3),
        vec(channel_set(), 0..2),
        btree_map(select(Collective::ALL), collective_plan(), 0..3),
        texts(),
        vec(finding(), 0..3),
    )
        .prop_map(
            |(topology, ranks, channels, alternatives, collectives, assumptions, findings)| Plan {
                topology,
                ranks,
                channels,
                alternatives,
                collectives,
                assumptions,
                findings,
            },
        )
}

pub(super) fn plan_query() -> impl Strategy<Value = PlanQuery> {
    let selector = prop_oneof![
        any::<u32>().prop_map(|index| GpuSelector::Index(GpuIndex(index))),
        text().prop_map(GpuSelector::Uuid),
        bus_id().prop_map(GpuSelector::BusId),
    ];
    let member = ("[a-z0-9.]{1,20}", any::<u32>(), any::<u32>())
        .prop_map(|(job, rank, ranks_here)| JobMember { job, rank, ranks_here });
    let numbers = (any::<Option<u64>>(), select(LINKS), any::<Option<u64>>());
    (vec(selector, 0..4), collectives(), numbers, option::of(member)).prop_map(
        |(gpus, collectives, (size_bytes, links, generation), member)| PlanQuery {
            gpus,
            collectives,
            size_bytes,
            links,
            expected_generation: generation.map(Generation),
            member,
        },
    )
}
