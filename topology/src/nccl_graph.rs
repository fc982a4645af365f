//! NCCL's graph file (`NCCL_GRAPH_FILE`): rings of a plan in the form stock NCCL loads instead of searching.
//!
//! What NCCL 2.30 does with such a file, and what follows for us: it skips its search for each graph with channels
//! and validates nothing, so everything here is checked before it is written. GPU numbers are NVML indices and
//! parsed as hexadecimal since 2.21.5, so they are written as `0x..`. All channels have one speed, so a ring
//! of twice the rate is listed twice. The file is read again for every communicator: it fits only those that
//! span exactly the planned GPUs of a host.
//!
//! The dialect of NCCL's own parser is narrower than XML: no declaration, no tabs, no line break between
//! attributes. [`read`] accepts what NCCL accepts, and refuses what NCCL would take and break on.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use crate::formats::ReadError;
use crate::plan::{Channel, ChannelEdge, Pattern, Plan, PlanRank};
use crate::{Algorithm, Collective, Fraction, PathType, Rank, Topology, VertexId, VertexKind};

/// Most channels of a graph file we write. NCCL's own limit (`MAXCHANNELS`) is 64, but it doubles what it reads.
pub const MOST_CHANNELS: usize = 32;

const FORMAT: &str = "NCCL graph XML";

/// Larger files are none of NCCL's.
const MOST_BYTES: usize = 4 << 20;

/// A graph file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphFile {
    /// By id.
    pub graphs: Vec<Graph>,
}

/// The channels of one algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// 0 ring, 1 tree, 2 CollNet chain, 3 NVLS, 4 CollNet direct.
    pub id: u32,
    /// 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet direct.
    pub pattern: u32,
    /// Whether a channel may leave and enter hosts by different NICs.
    pub cross_nic: bool,
    /// GB/s of each channel inside a host.
    pub speed_intra: Fraction,
    /// GB/s of each channel between hosts.
    pub speed_inter: Fraction,
    /// Worst class between GPUs.
    pub type_intra: PathType,
    /// Worst class between GPU and NIC.
    pub type_inter: PathType,
    /// Whether all channels have one order.
    pub same_channels: bool,
    /// In order.
    pub channels: Vec<GraphChannel>,
}

/// One channel of one host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GraphChannel {
    /// NIC it enters by, as NCCL's net index; `None` on a single host.
    pub net_in: Option<u64>,
    /// NVML indices in ring order.
    pub gpus: Vec<u64>,
    /// NIC it leaves by.
    pub net_out: Option<u64>,
}

/// Why a plan cannot be written as a graph file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// There is no ring to write.
    #[error("the plan has no rings with a rate: NCCL's graph file holds rings and chains only")]
    NoRings,
    /// There is no tree to write.
    #[error("the plan has no trees for all-reduce inside one host")]
    NoTrees,
    /// NCCL would connect other neighbours than the plan's.
    #[error("ring {channel}: {reason}")]
    Inexpressible {
        /// Channel index in the plan.
        channel: u32,
        /// Why.
        reason: String,
    },
    /// The plan is for another topology.
    #[error("the plan names {name}, which is not in the topology")]
    Unknown {
        /// A vertex or rank.
        name: String,
    },
}

/// The rings of a plan as a graph file, the same for every host.
///
/// # Errors
/// Where the plan has no rings, or rings that stock NCCL would not run as planned.
pub fn from_plan(topology: &Topology, plan: &Plan) -> Result<GraphFile, ExportError> {
    from_rings(topology, &plan.ranks, &rings(plan))
}

/// Rings of some ranks as a graph file.
///
/// # Errors
/// As [`from_plan`].
pub fn from_rings(
    topology: &Topology,
    ranks: &[PlanRank],
    rings: &[&Channel],
) -> Result<GraphFile, ExportError> {
    if rings.is_empty() || rings.iter().any(|ring| ring.gbps <= Fraction::ZERO) {
        return Err(ExportError::NoRings);
    }
    let mut lanes = Vec::new();
    let (mut type_intra, mut type_inter) = (PathType::Nvl, PathType::Pix);
    for ring in rings {
        let channel = of_ring(topology, ranks, ring)?;
        for edge in &ring.edges {
            let (intra, inter) = classes(topology, ranks, ring, edge)?;
            type_intra = type_intra.max(intra);
            type_inter = type_inter.max(inter);
        }
        lanes.push((channel, ring.gbps));
    }
    let (speed, copies) = common_speed(&lanes.iter().map(|(_, rate)| *rate).collect::<Vec<_>>());
    let channels: Vec<GraphChannel> = lanes
        .iter()
        .zip(copies)
        .flat_map(|((channel, _), copies)| core::iter::repeat_n(channel.clone(), copies))
        .collect();
    let same_channels = channels.windows(2).all(|pair| pair[0] == pair[1]);
    let cross_nic = channels.iter().any(|channel| channel.net_in != channel.net_out);
    let graph = Graph {
        id: 0,
        pattern: 4,
        cross_nic,
        speed_intra: speed,
        speed_inter: speed,
        type_intra,
        type_inter,
        same_channels,
        channels,
    };
    Ok(GraphFile { graphs: alloc::vec![graph] })
}

/// The rings of the plan, whichever collective uses them: of its best algorithm, else of an alternative.
pub(crate) fn rings(plan: &Plan) -> Vec<&Channel> {
    let usable = |channel: &&Channel| channel.pattern == Pattern::Ring && !channel.gbps.is_zero();
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        let best: Vec<&Channel> = plan.channels_of(collective).filter(usable).collect();
        if !best.is_empty() {
            return best;
        }
        let sets = plan.alternatives.iter().filter(|set| {
            set.algorithm == Algorithm::Ring && set.collectives.contains(&collective)
        });
        let other: Vec<&Channel> = sets.flat_map(|set| &set.channels).filter(usable).collect();
        if !other.is_empty() {
            return other;
        }
    }
    Vec::new()
}

/// The part of a ring on each host, which must be the same on all of them.
fn of_ring(
    topology: &Topology,
    ranks: &[PlanRank],
    ring: &Channel,
) -> Result<GraphChannel, ExportError> {
    let inexpressible = |reason: String| ExportError::Inexpressible { channel: ring.index, reason };
    let hosts = ring
        .ranks
        .iter()
        .map(|rank| Ok(rank_of(ranks, *rank)?.host))
        .collect::<Result<Vec<_>, ExportError>>()?;
    let gpus = ring
        .ranks
        .iter()
        .map(|rank| Ok(u64::from(rank_of(ranks, *rank)?.gpu.0)))
        .collect::<Result<Vec<_>, ExportError>>()?;
    let n = gpus.len();
    let distinct = hosts.iter().collect::<BTreeSet<_>>().len();
    if distinct == 1 {
        return Ok(GraphChannel { net_in: None, gpus, net_out: None });
    }
    let entries: Vec<usize> = (0..n).filter(|at| hosts[(at + n - 1) % n] != hosts[*at]).collect();
    if entries.len() != distinct {
        return Err(inexpressible("it enters a host more than once".into()));
    }
    let hop = |from: usize| {
        let (from, to) = (ring.ranks[from % n], ring.ranks[(from + 1) % n]);
        let edge = ring.edges.iter().find(|edge| edge.from == from && edge.to == to);
        nics(
            topology,
            ring,
            edge.ok_or_else(|| {
                inexpressible(format!("it has no hop from rank {from} to rank {to}"))
            })?,
        )
    };
    let mut parts = Vec::with_capacity(distinct);
    for (entry, next) in entries.iter().zip(entries.iter().cycle().skip(1)) {
        let length = (next + n - entry - 1) % n + 1;
        parts.push(GraphChannel {
            net_in: Some(hop(entry + n - 1)?.1),
            gpus: (0..length).map(|step| gpus[(entry + step) % n]).collect(),
            net_out: Some(hop(entry + length - 1)?.0),
        });
    }
    if parts.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(inexpressible(
            "its part differs from host to host, and one file serves all of them".into(),
        ));
    }
    parts.into_iter().next().ok_or(ExportError::NoRings)
}

fn rank_of(ranks: &[PlanRank], rank: Rank) -> Result<&PlanRank, ExportError> {
    ranks.get(rank.index()).ok_or_else(|| ExportError::Unknown { name: format!("rank {rank}") })
}

fn vertices<'a>(
    topology: &'a Topology,
    names: &'a [String],
) -> impl Iterator<Item = Result<VertexId, ExportError>> + 'a {
    names
        .iter()
        .map(|name| topology.find(name).ok_or_else(|| ExportError::Unknown { name: name.clone() }))
}

/// The NIC a hop between hosts leaves by and the one it arrives by, as places in their hosts' lists.
fn nics(
    topology: &Topology,
    ring: &Channel,
    edge: &ChannelEdge,
) -> Result<(u64, u64), ExportError> {
    let inexpressible =
        |reason: &str| ExportError::Inexpressible { channel: ring.index, reason: reason.into() };
    let [path] = edge.paths.as_slice() else {
        return Err(inexpressible("a hop between hosts is spread over several NICs"));
    };
    let mut indices = Vec::new();
    for vertex in vertices(topology, &path.via) {
        if let VertexKind::Nic { index } = topology.vertex(vertex?).kind {
            indices.push(u64::from(index));
        }
    }
    match indices.as_slice() {
        [out, into] => Ok((*out, *into)),
        _ => Err(inexpressible("a hop between hosts does not go from NIC to NIC")),
    }
}

/// Classes of a hop as NCCL counts them: between GPUs, and between GPU and NIC.
fn classes(
    topology: &Topology,
    ranks: &[PlanRank],
    ring: &Channel,
    edge: &ChannelEdge,
) -> Result<(PathType, PathType), ExportError> {
    let same_host = rank_of(ranks, edge.from)?.host == rank_of(ranks, edge.to)?.host;
    let mut worst = (PathType::Nvl, PathType::Pix);
    for path in &edge.paths {
        let (mut switches, mut nodes, mut nvlink) = (0_u32, 0_u32, true);
        for vertex in vertices(topology, &path.via) {
            let vertex = vertex?;
            match topology.vertex(vertex).kind {
                VertexKind::PcieSwitch => (switches, nvlink) = (switches + 1, false),
                VertexKind::NumaNode { .. } => (nodes, nvlink) = (nodes + 1, false),
                VertexKind::Nic { .. } | VertexKind::Fabric | VertexKind::NicCard if same_host => {
                    let reason = "a hop inside a host goes from NIC to NIC, which stock NCCL takes no order for".into();
                    return Err(ExportError::Inexpressible { channel: ring.index, reason });
                }
                VertexKind::Switch | VertexKind::Gpu { .. } => nvlink = false,
                VertexKind::NvSwitch
                | VertexKind::Nic { .. }
                | VertexKind::Fabric
                | VertexKind::NicCard => {}
            }
        }
        let class = match (nodes, switches) {
            // A switch on either side of the fabric is one for each GPU.
            _ if nvlink => PathType::Nvl,
            (2.., _) if same_host => PathType::Sys,
            (1.., _) => PathType::Phb,
            (0, 0..=1) => PathType::Pix,
            (0, 2) if !same_host => PathType::Pix,
            (0, _) => PathType::Pxb,
        };
        if same_host {
            worst.0 = worst.0.max(class);
        } else {
            worst.1 = worst.1.max(class.max(PathType::Pix));
        }
    }
    Ok(worst)
}

/// One speed for all channels, and how often each ring is then listed: the largest total within
/// [`MOST_CHANNELS`], then the fewest channels.
fn common_speed(rates: &[Fraction]) -> (Fraction, Vec<usize>) {
    let copies = |speed: Fraction| -> Vec<usize> {
        rates.iter().map(|rate| usize::try_from((*rate / speed).floor()).unwrap_or(0)).collect()
    };
    let mut best: Option<(Fraction, usize, Fraction, Vec<usize>)> = None;
    let mut distinct = rates.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    for rate in distinct.into_iter().filter(|rate| !rate.is_zero()) {
        for parts in 1..=MOST_CHANNELS as i128 {
            let speed = rate / Fraction::integer(parts);
            let listed = copies(speed);
            let channels: usize = listed.iter().sum();
            if channels > MOST_CHANNELS {
                // Lower speeds list no fewer.
                break;
            }
            let total = speed * Fraction::integer(channels as i128);
            let better = best.as_ref().is_none_or(|(most, fewest, ..)| {
                total > *most || (total == *most && channels < *fewest)
            });
            if better {
                best = Some((total, channels, speed, listed));
            }
        }
    }
    match best {
        Some((_, _, speed, listed)) => (speed, listed),
        None => (Fraction::ZERO, alloc::vec![0; rates.len()]),
    }
}

/// The file's text, in NCCL's dialect.
#[must_use]
pub fn write(file: &GraphFile) -> String {
    let mut text = String::from("<graphs version=\"1\">\n");
    for graph in &file.graphs {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  <graph id=\"{}\" pattern=\"{}\" crossnic=\"{}\" nchannels=\"{}\" speedintra=\"{}\" speedinter=\"{}\" latencyinter=\"0\" typeintra=\"{}\" typeinter=\"{}\" samechannels=\"{}\">",
            graph.id,
            graph.pattern,
            u8::from(graph.cross_nic),
            graph.channels.len(),
            decimal(graph.speed_intra),
            decimal(graph.speed_inter),
            graph.type_intra,
            graph.type_inter,
            u8::from(graph.same_channels)
        );
        for channel in &graph.channels {
            text.push_str("    <channel>\n");
            let nets = |net: Option<u64>| {
                net.map(|dev| format!("      <net dev=\"0x{dev:x}\"/>\n")).unwrap_or_default()
            };
            text.push_str(&nets(channel.net_in));
            for gpu in &channel.gpus {
                let _ = writeln!(text, "      <gpu dev=\"0x{gpu:x}\"/>");
            }
            text.push_str(&nets(channel.net_out));
            text.push_str("    </channel>\n");
        }
        text.push_str("  </graph>\n");
    }
    text.push_str("</graphs>\n");
    text
}

/// GB/s with at most three digits after the point, rounded down: a speed must not promise more than the ring has.
pub(crate) fn decimal(speed: Fraction) -> String {
    let thousandths = (speed * Fraction::integer(1000)).floor();
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Reads a graph file as strictly as NCCL's own parser, and refuses besides what NCCL would load and break on.
///
/// # Errors
/// With the line and the reason.
pub fn read(bytes: &[u8]) -> Result<GraphFile, ReadError> {
    let refuse = |line: usize, reason: String| ReadError { format: FORMAT, line, reason };
    if bytes.len() > MOST_BYTES {
        return Err(refuse(0, format!("larger than {MOST_BYTES} bytes")));
    }
    let text = core::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        refuse(line, "not UTF-8".into())
    })?;
    dialect(text).map_err(|(line, reason)| refuse(line, reason))?;
    let document = roxmltree::Document::parse(text)
        .map_err(|error| refuse(error.pos().row as usize, error.to_string()))?;
    let line =
        |node: roxmltree::Node<'_, '_>| document.text_pos_at(node.range().start).row as usize;
    let root = document.root_element();
    if root.tag_name().name() != "graphs" || root.attribute("version") != Some("1") {
        return Err(refuse(line(root), "the root is not <graphs version=\"1\">".into()));
    }
    let mut graphs = Vec::new();
    for node in root.children().filter(roxmltree::Node::is_element) {
        graphs.push(read_graph(node, &line).map_err(|(line, reason)| refuse(line, reason))?);
    }
    let mut ids: Vec<u32> = graphs.iter().map(|graph: &Graph| graph.id).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(refuse(0, "two graphs have one id".into()));
    }
    Ok(GraphFile { graphs })
}

/// What NCCL's parser stops at although it is XML.
fn dialect(text: &str) -> Result<(), (usize, String)> {
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        if line.contains('\t') {
            return Err((number, "a tab, which NCCL's parser does not take".into()));
        }
        if line.contains("<?") || line.contains("<!DOCTYPE") {
            return Err((number, "an XML declaration, which NCCL's parser does not take".into()));
        }
        for byte in line.bytes() {
            match byte {
                b'<' => open = true,
                b'>' => open = false,
                _ => {}
            }
        }
        // Comments may span lines; elements may not.
        if open && !text.contains("<!--") {
            return Err((
                number,
                "a line break inside an element, which NCCL's parser does not take".into(),
            ));
        }
    }
    Ok(())
}

type At<'a> = &'a dyn Fn(roxmltree::Node<'_, '_>) -> usize;

fn read_graph(node: roxmltree::Node<'_, '_>, line: At<'_>) -> Result<Graph, (usize, String)> {
    let at = line(node);
    if node.tag_name().name() != "graph" {
        return Err((at, format!("<{}> where <graph> is expected", node.tag_name().name())));
    }
    let text =
        |name: &str| node.attribute(name).ok_or_else(|| (at, format!("<graph> has no {name}")));
    let number =
        |name: &str| text(name)?.parse::<u32>().map_err(|_| (at, format!("{name} is no number")));
    let speed = |name: &str| -> Result<Fraction, (usize, String)> {
        let value: f64 = text(name)?.parse().map_err(|_| (at, format!("{name} is no number")))?;
        let rate =
            crate::Bandwidth::from_gbps(value).ok_or_else(|| (at, format!("{name} is no rate")))?;
        Ok(Fraction::of(rate.kbps(), 1_000_000))
    };
    // An unknown class silently becomes LOC in NCCL.
    let class = |name: &str| -> Result<PathType, (usize, String)> {
        let text = text(name)?;
        PathType::ALL
            .into_iter()
            .find(|class| class.as_str() == text)
            .ok_or_else(|| (at, format!("{name} is no path type: '{text}'")))
    };
    let mut channels = Vec::new();
    for channel in node.children().filter(roxmltree::Node::is_element) {
        channels.push(read_channel(channel, line)?);
    }
    let graph = Graph {
        id: number("id")?,
        pattern: number("pattern")?,
        cross_nic: number("crossnic")? != 0,
        speed_intra: speed("speedintra")?,
        speed_inter: speed("speedinter")?,
        type_intra: class("typeintra")?,
        type_inter: class("typeinter")?,
        same_channels: number("samechannels")? != 0,
        channels,
    };
    let listed = number("nchannels")?;
    if usize::try_from(listed) != Ok(graph.channels.len()) {
        return Err((
            at,
            format!("nchannels is {listed}, and {} channels follow", graph.channels.len()),
        ));
    }
    // NVLS lists one head GPU a channel; every other graph all of them.
    let sets: BTreeMap<BTreeSet<u64>, usize> =
        graph.channels.iter().map(|c| (c.gpus.iter().copied().collect(), c.gpus.len())).collect();
    if graph.pattern != 5 {
        if sets.len() > 1 {
            return Err((at, "channels span different GPUs".into()));
        }
        if sets.iter().any(|(set, listed)| set.len() != *listed) {
            return Err((at, "a channel lists a GPU twice".into()));
        }
    }
    Ok(graph)
}

fn read_channel(
    node: roxmltree::Node<'_, '_>,
    line: At<'_>,
) -> Result<GraphChannel, (usize, String)> {
    let at = line(node);
    if node.tag_name().name() != "channel" {
        return Err((at, format!("<{}> where <channel> is expected", node.tag_name().name())));
    }
    let mut channel = GraphChannel { net_in: None, gpus: Vec::new(), net_out: None };
    for child in node.children().filter(roxmltree::Node::is_element) {
        let at = line(child);
        let text = child.attribute("dev").ok_or_else(|| (at, String::from("no dev")))?;
        let dev = u64::from_str_radix(text.trim_start_matches("0x"), 16)
            .map_err(|_| (at, format!("dev '{text}' is no hexadecimal number")))?;
        match (child.tag_name().name(), channel.gpus.is_empty(), channel.net_out) {
            ("gpu", _, None) => channel.gpus.push(dev),
            ("net", true, None) if channel.net_in.is_none() => channel.net_in = Some(dev),
            ("net", false, None) => channel.net_out = Some(dev),
            (name, ..) => return Err((at, format!("<{name}> out of place"))),
        }
    }
    if channel.gpus.is_empty() {
        return Err((at, "a channel without a GPU".into()));
    }
    Ok(channel)
}

/// Body of the fuzz target: any bytes are read or refused, and what was read survives a round trip.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(file) = read(bytes) {
        let again = read(write(&file).as_bytes());
        assert!(
            again.is_ok_and(|again| again.graphs.len() == file.graphs.len()),
            "a written file is read back"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_ring_of_twice_the_rate_is_listed_twice() {
        let rates = [40, 40, 20, 20].map(Fraction::integer);
        assert_eq!(common_speed(&rates), (Fraction::integer(20), alloc::vec![2, 2, 1, 1]));
        // 7 and 3 have 1 in common; ten channels of 1 carry it all.
        assert_eq!(
            common_speed(&[7, 3].map(Fraction::integer)),
            (Fraction::integer(1), alloc::vec![7, 3])
        );
    }

    #[test]
    fn speeds_are_never_rounded_up() {
        assert_eq!(decimal(Fraction::of(20, 3)), "6.666");
        assert_eq!(decimal(Fraction::integer(20)), "20");
    }

    fn file(body: &str) -> String {
        format!(
            "<graphs version=\"1\">\n  <graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"1\" speedintra=\"20\" speedinter=\"20\" latencyinter=\"0\" typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"1\">\n{body}  </graph>\n</graphs>\n"
        )
    }

    #[track_caller]
    fn check(text: &str, expect: Result<usize, (usize, &str)>) {
        match (read(text.as_bytes()), expect) {
            (Ok(file), Ok(channels)) => assert_eq!(file.graphs[0].channels.len(), channels),
            (Err(error), Err((line, reason))) => {
                assert!(error.line == line && error.reason.contains(reason), "{error}")
            }
            (got, want) => panic!("{got:?}, not {want:?}"),
        }
    }

    #[test]
    fn what_nccl_takes_and_what_breaks_it() {
        let good =
            "    <channel>\n      <gpu dev=\"0\"/>\n      <gpu dev=\"0x1\"/>\n    </channel>\n";
        check(&file(good), Ok(1));
        check(&file(&good.replace("0x1", "0")), Err((2, "twice")));
        check(&file(&good.repeat(2)), Err((2, "nchannels is 1")));
        check(&file(good).replace("NVL", "NVX"), Err((2, "no path type")));
        check(&file(good).replace("  <graph id", "\t<graph id"), Err((2, "a tab")));
        check(&format!("<?xml version=\"1.0\"?>\n{}", file(good)), Err((1, "declaration")));
        check(&file(good).replace("pattern", "\npattern"), Err((2, "line break")));
        check(&file(good).replace("version=\"1\"", "version=\"2\""), Err((1, "root")));
        check(&file("    <channel>\n    </channel>\n"), Err((3, "without a GPU")));
        check(
            &file(&good.replace("<gpu dev=\"0\"/>", "<gpu dev=\"z\"/>")),
            Err((4, "hexadecimal")),
        );
    }

    #[test]
    fn reads_what_it_writes() {
        let channel = GraphChannel { net_in: Some(0), gpus: [3, 11].into(), net_out: Some(17) };
        let graph = Graph {
            id: 0,
            pattern: 4,
            cross_nic: true,
            speed_intra: Fraction::integer(24),
            speed_inter: Fraction::of(41, 2),
            type_intra: PathType::Nvl,
            type_inter: PathType::Phb,
            same_channels: true,
            channels: alloc::vec![channel; 2],
        };
        let file = GraphFile { graphs: alloc::vec![graph] };
        assert_eq!(read(write(&file).as_bytes()).unwrap(), file);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..400, byte: u8) {
            fuzz(&bytes);
            let mut text = file("    <channel>\n      <net dev=\"0\"/>\n      <gpu dev=\"0x1\"/>\n    </channel>\n").into_bytes();
            let at = at % text.len();
            text[at] = byte;
            fuzz(&text);
        }
    }
}
