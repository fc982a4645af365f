//! The checker of plans by class: form, loads by class, claims.
//!
//! Every host of a class carries the same, so links are counted once for each class, whatever the number of hosts. With B hosts, of which one
//! has the part d of the data (its ranks by all ranks) and is hub for the part w, what a host's links carry per byte of the collective's total
//! data is, where *out* and *in* are the owners' ways to and from the network, *spread* and *collect* what trees of owners put on links, and
//! *own* what trees of all ranks alike put there:
//!
//! | collective | to the network | from it | inside |
//! |---|---|---|---|
//! | all-reduce | 1 + w (B-2) | 1 + w (B-2) | collect + spread |
//! | all-gather, direct | d (B-1) | 1 - d | (1-d) spread + d own |
//! | all-gather, hubs | d + w (B-2) | 1 - d | (1-d) spread + d own |
//! | reduce-scatter | 1 - d | as all-gather to the network | (1-d) collect + d own |
//!
//! An element of an all-reduce leaves a host once on its way to a hub and comes back once, and a hub's part comes in from B-1 hosts and goes out to
//! them: `(1 - w) + w (B - 1)` each way.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use topology::job_plan::{Exchange, JobClass, JobPlan};
use topology::plan::ChannelEdge;
use topology::{Collective, Fraction, HostId, LinkId, Topology, VertexId, VertexKind};

use super::exact;

/// What one collective reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCounted {
    /// Total data per second, GB/s, at infinite size.
    pub algbw_gbps: Fraction,
    /// By class, bytes over each link of a host per byte of total data; by link, without those that carry nothing.
    pub loads: Vec<Vec<(LinkId, Fraction)>>,
    /// Class and link that decide.
    pub limiting: Option<(usize, LinkId)>,
}

/// Bytes over links per byte of something.
type Loads = BTreeMap<LinkId, Fraction>;

/// What a host of a class puts on its links, by what flows; and which hosts there are.
#[derive(Clone, Debug)]
pub struct ClassFlows {
    /// From owners to the network, per byte that leaves.
    pub out: BTreeMap<LinkId, Fraction>,
    /// From the network to owners, per byte that enters.
    pub back: BTreeMap<LinkId, Fraction>,
    /// From owners to all.
    pub spread: BTreeMap<LinkId, Fraction>,
    /// From all to owners.
    pub collect: BTreeMap<LinkId, Fraction>,
    /// From each rank, with an equal part, to all.
    pub own_spread: BTreeMap<LinkId, Fraction>,
    /// From all to each rank, an equal part.
    pub own_collect: BTreeMap<LinkId, Fraction>,
}

/// How much of each flow a host has, per byte of total data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flowing {
    /// To the network.
    pub out: Fraction,
    /// From it.
    pub back: Fraction,
    /// From owners to all.
    pub spread: Fraction,
    /// From all to owners.
    pub collect: Fraction,
    /// Of each rank's own.
    pub own: Fraction,
}

impl Flowing {
    /// For a host with the part `data`, hub for the part `hub` (`None`: direct), one of `hosts`. `None` where there is no such exchange or
    /// its parts do not fit.
    #[must_use]
    pub fn new(
        collective: Collective,
        hosts: u64,
        data: Fraction,
        hub: Option<Fraction>,
    ) -> Option<Self> {
        let whole = |count: u64| Fraction::integer(i128::from(count));
        let foreign = Fraction::ONE.checked_sub(data)?;
        let relayed = |first: Fraction| match hub {
            Some(hub) => first.checked_add(hub.checked_mul(whole(hosts.saturating_sub(2)))?),
            None => data.checked_mul(whole(hosts.saturating_sub(1))),
        };
        let zero = Fraction::ZERO;
        Some(match (collective, hub) {
            (Collective::AllReduce, Some(_)) => {
                let across = if hosts > 1 { relayed(Fraction::ONE)? } else { zero };
                let whole = Fraction::ONE;
                Self { out: across, back: across, spread: whole, collect: whole, own: zero }
            }
            (Collective::AllGather, _) => Self {
                out: relayed(data)?,
                back: foreign,
                spread: foreign,
                collect: zero,
                own: data,
            },
            (Collective::ReduceScatter, _) => Self {
                out: foreign,
                back: relayed(data)?,
                spread: zero,
                collect: foreign,
                own: data,
            },
            _ => return None,
        })
    }
}

impl ClassFlows {
    /// All flows at once; `None` where a load does not fit.
    #[must_use]
    pub fn loads(
        &self,
        collective: Collective,
        flowing: &Flowing,
    ) -> Option<BTreeMap<LinkId, Fraction>> {
        let own = if collective == Collective::ReduceScatter {
            &self.own_collect
        } else {
            &self.own_spread
        };
        let mut sums = Loads::new();
        for (of, part) in [
            (&self.out, flowing.out),
            (&self.back, flowing.back),
            (&self.spread, flowing.spread),
            (&self.collect, flowing.collect),
            (own, flowing.own),
        ] {
            for (link, load) in of.iter().filter(|_| !part.is_zero()) {
                add(&mut sums, *link, load.checked_mul(part)?)?;
            }
        }
        Some(sums)
    }

    /// Follows a class's trees and ways on its topology.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn of(topology: &Topology, class: &JobClass) -> Result<Self, Vec<String>> {
        let mut found = Vec::new();
        let walk = Walk::new(topology, class, &mut found);
        let Some(walk) = walk.filter(|_| found.is_empty()) else { return Err(found) };
        let equal = vec![Fraction::of(1, class.ranks.len() as u64); class.ranks.len()];
        let mut trees = |collective, parts: &[Fraction]| walk.trees(collective, parts, &mut found);
        let mut flows = Self {
            out: Loads::new(),
            back: Loads::new(),
            spread: trees(Collective::AllGather, &class.owners),
            collect: trees(Collective::ReduceScatter, &class.owners),
            own_spread: trees(Collective::AllGather, &equal),
            own_collect: trees(Collective::ReduceScatter, &equal),
        };
        for (local, &part) in class.owners.iter().enumerate().filter(|(_, part)| !part.is_zero()) {
            for uplink in &class.uplinks[local] {
                let Some(load) = part.checked_mul(uplink.share) else {
                    found.push(UNFIT.into());
                    continue;
                };
                walk.uplink(local, &uplink.out, true, load, &mut flows.out, &mut found);
                walk.uplink(local, &uplink.back, false, load, &mut flows.back, &mut found);
            }
        }
        if found.is_empty() { Ok(flows) } else { Err(found) }
    }
}

/// What is said of fractions that a file holds and 128 bits do not.
const UNFIT: &str = "a load does not fit";

/// `None` where the sum does not fit.
fn add(sums: &mut Loads, link: LinkId, load: Fraction) -> Option<()> {
    let sum = sums.entry(link).or_insert(Fraction::ZERO);
    *sum = sum.checked_add(load)?;
    Some(())
}

/// Finds the links that names stand for.
struct Walk<'a> {
    topology: &'a Topology,
    class: &'a JobClass,
    /// By local rank.
    gpus: Vec<VertexId>,
    fabric: Option<VertexId>,
}

impl<'a> Walk<'a> {
    fn new(topology: &'a Topology, class: &'a JobClass, found: &mut Vec<String>) -> Option<Self> {
        let mut gpus = Vec::new();
        for (local, rank) in class.ranks.iter().enumerate() {
            let gpu = topology.gpu(HostId(0), rank.gpu);
            match gpu {
                Some(gpu) if rank.rank.index() == local && !gpus.contains(&gpu) => gpus.push(gpu),
                _ => found.push(format!("local rank {local} is no GPU of its own")),
            }
        }
        let fabric = topology
            .graph()
            .node_indices()
            .find(|&id| topology.vertex(id).kind == VertexKind::Fabric);
        (gpus.len() == class.ranks.len()).then_some(Self { topology, class, gpus, fabric })
    }

    /// Adds a load to the links along vertices; parallel links share it by rate.
    fn path(&self, stops: &[VertexId], load: Fraction, sums: &mut Loads, found: &mut Vec<String>) {
        for hop in stops.windows(2) {
            let links = self.topology.links_between(hop[0], hop[1]);
            let rate = |link: &LinkId| self.topology.link(*link).bandwidth.kbps();
            let total = links.iter().map(rate).fold(0, u64::saturating_add);
            if total == 0 {
                let name = |id| &self.topology.vertex(id).name;
                found.push(format!("no link leads from {} to {}", name(hop[0]), name(hop[1])));
                return;
            }
            for link in &links {
                let part = load.checked_mul(Fraction::of(rate(link), total));
                if part.and_then(|part| add(sums, *link, part)).is_none() {
                    found.push(UNFIT.into());
                    return;
                }
            }
        }
    }

    fn named(&self, names: &[String], found: &mut Vec<String>) -> Option<Vec<VertexId>> {
        let mut stops = Vec::new();
        for name in names {
            match self.topology.find(name) {
                Some(id) => stops.push(id),
                None => found.push(format!("there is no {name}")),
            }
        }
        (stops.len() == names.len()).then_some(stops)
    }

    fn uplink(
        &self,
        local: usize,
        names: &[String],
        out: bool,
        load: Fraction,
        sums: &mut Loads,
        found: &mut Vec<String>,
    ) {
        let Some(fabric) = self.fabric else {
            found.push("its hosts have no way to a network".into());
            return;
        };
        let Some(inner) = self.named(names, found) else { return };
        let gpu = self.gpus[local];
        let (first, last) = if out { (gpu, fabric) } else { (fabric, gpu) };
        let stops: Vec<VertexId> = [first].into_iter().chain(inner).chain([last]).collect();
        self.path(&stops, load, sums, found);
    }

    /// What trees put on links where each root has its part of the data.
    fn trees(&self, collective: Collective, parts: &[Fraction], found: &mut Vec<String>) -> Loads {
        let mut sums = Loads::new();
        for (root, &part) in parts.iter().enumerate().filter(|(_, part)| !part.is_zero()) {
            let trees = self.class.trees(collective, root);
            if exact::sum(trees.iter().map(|tree| tree.share)) != Some(Fraction::ONE) {
                found.push(format!("{collective}: local rank {root} has no trees"));
            }
            for tree in trees {
                let Some(load) = part.checked_mul(tree.share) else {
                    found.push(UNFIT.into());
                    continue;
                };
                for edge in tree.edges {
                    self.edge(edge, load, &mut sums, found);
                }
            }
        }
        sums
    }

    fn edge(&self, edge: &ChannelEdge, load: Fraction, sums: &mut Loads, found: &mut Vec<String>) {
        let ends = [edge.from, edge.to].map(|rank| self.gpus.get(rank.index()).copied());
        let [Some(from), Some(to)] = ends else {
            found.push("a hop names a rank that is not there".into());
            return;
        };
        for path in &edge.paths {
            let Some(inner) = self.named(&path.via, found) else { continue };
            let stops: Vec<VertexId> = [from].into_iter().chain(inner).chain([to]).collect();
            match load.checked_mul(path.share) {
                Some(load) => self.path(&stops, load, sums, found),
                None => found.push(UNFIT.into()),
            }
        }
    }
}

/// Checks a plan by class against one topology of each class, and counts what its collectives reach.
///
/// # Errors
/// All that is wrong with it.
pub fn job(
    classes: &[&Topology],
    plan: &JobPlan,
) -> Result<BTreeMap<Collective, JobCounted>, Vec<String>> {
    let counted = count_job(classes, plan)?;
    claims(plan, &counted)?;
    Ok(counted)
}

/// What a plan says of itself against what [`count_job`] counted.
///
/// # Errors
/// All claims that are not so.
pub fn claims(
    plan: &JobPlan,
    counted: &BTreeMap<Collective, JobCounted>,
) -> Result<(), Vec<String>> {
    let mut found = Vec::new();
    for (collective, counted) in counted {
        let claimed = &plan.collectives[collective];
        if claimed.algbw_gbps != counted.algbw_gbps {
            found.push(format!(
                "{collective}: {} GB/s are claimed and {} counted",
                claimed.algbw_gbps, counted.algbw_gbps
            ));
        }
        if claimed.bound_gbps < counted.algbw_gbps {
            found.push(format!("{collective}: what is reached exceeds the bound"));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(found) }
}

/// [`job`] without a look at what the plan claims to reach: how a plan under construction learns what to say of itself.
///
/// # Errors
/// All that is wrong with its form.
pub fn count_job(
    classes: &[&Topology],
    plan: &JobPlan,
) -> Result<BTreeMap<Collective, JobCounted>, Vec<String>> {
    let mut found = form(classes, plan);
    if !found.is_empty() {
        return Err(found);
    }
    let mut flows = Vec::new();
    for (place, (topology, class)) in classes.iter().zip(&plan.classes).enumerate() {
        match ClassFlows::of(topology, class) {
            Ok(of) => flows.push(of),
            Err(wrong) => found.extend(wrong.into_iter().map(|w| format!("class {place}: {w}"))),
        }
    }
    if !found.is_empty() {
        return Err(found);
    }
    let (hosts, ranks) = (plan.class_of.len() as u64, plan.ranks());
    let mut counted = BTreeMap::new();
    for (&collective, reached) in &plan.collectives {
        let mut loads = Vec::new();
        let mut slowest: Option<(Fraction, usize, LinkId)> = None;
        for (place, of) in flows.iter().enumerate() {
            let data = Fraction::of(plan.classes[place].ranks.len() as u64, ranks);
            let hub = match &reached.exchange {
                Exchange::Direct => None,
                Exchange::Hubs(weights) => weights.get(place).copied(),
            };
            let Some(flowing) = Flowing::new(collective, hosts, data, hub) else {
                found.push(format!("{collective}: no such exchange, or parts that do not fit"));
                continue;
            };
            let Some(of_class) = of.loads(collective, &flowing) else {
                found.push(format!("{collective}: {UNFIT}"));
                continue;
            };
            for (&link, &load) in &of_class {
                let kbps = classes[place].link(link).bandwidth.kbps();
                // Seconds per GB.
                let each = Fraction::new(1_000_000, i128::from(kbps));
                let Some(time) = each.and_then(|each| load.checked_mul(each)) else {
                    found.push(format!("{collective}: {UNFIT}"));
                    continue;
                };
                if slowest.is_none_or(|(most, _, _)| time > most) {
                    slowest = Some((time, place, link));
                }
            }
            loads.push(of_class.into_iter().filter(|(_, load)| !load.is_zero()).collect());
        }
        let time = slowest.map_or(Fraction::ZERO, |(time, _, _)| time);
        let algbw_gbps = Fraction::ONE.checked_div(time).unwrap_or(Fraction::ZERO);
        let limiting = slowest.map(|(_, place, link)| (place, link));
        counted.insert(collective, JobCounted { algbw_gbps, loads, limiting });
    }
    if found.is_empty() { Ok(counted) } else { Err(found) }
}

/// What is wrong before anything is counted.
fn form(classes: &[&Topology], plan: &JobPlan) -> Vec<String> {
    let mut found = Vec::new();
    if classes.len() != plan.classes.len() {
        found.push(format!("{} classes, and {} topologies", plan.classes.len(), classes.len()));
        return found;
    }
    let used: BTreeSet<u32> = plan.class_of.iter().copied().collect();
    if used.iter().any(|&class| class as usize >= classes.len()) || plan.class_of.is_empty() {
        found.push("hosts are of classes that are not there".into());
        return found;
    }
    for (place, (topology, class)) in classes.iter().zip(&plan.classes).enumerate() {
        let mut wrong = |what: String| found.push(format!("class {place}: {what}"));
        if class.fingerprint != topology.fingerprint() {
            wrong(format!("made for {}, not {}", class.fingerprint, topology.fingerprint()));
        }
        let count = class.ranks.len();
        if count == 0 || class.owners.len() != count || class.uplinks.len() != count {
            wrong("ranks, owners and ways to the network differ in number".into());
            continue;
        }
        if class.owners.iter().any(|part| *part < Fraction::ZERO)
            || exact::sum(class.owners.iter().copied()) != Some(Fraction::ONE)
        {
            wrong("what owners have does not add up to all".into());
        }
        for (local, part) in class.owners.iter().enumerate().filter(|(_, part)| !part.is_zero()) {
            let sum = exact::sum(class.uplinks[local].iter().map(|uplink| uplink.share));
            if plan.class_of.len() > 1 && sum != Some(Fraction::ONE) {
                let sum = sum.map_or_else(|| "what does not fit".into(), |sum| sum.to_string());
                wrong(format!("local rank {local} owns {part}, and its ways carry {sum} of it"));
            }
        }
        match &class.plan {
            None if count > 1 => wrong("no plan among its GPUs".into()),
            None => {}
            Some(local) => {
                if local.ranks.len() != count
                    || local.ranks.iter().zip(&class.ranks).any(|(a, b)| a.gpu != b.gpu)
                {
                    wrong("its plan is for other GPUs".into());
                } else if let Err(violations) = super::plan(topology, local) {
                    violations.iter().for_each(|violation| wrong(violation.to_string()));
                }
            }
        }
    }
    for (collective, reached) in &plan.collectives {
        if let Exchange::Hubs(weights) = &reached.exchange {
            let of_class = |(count, weight): (u64, &Fraction)| {
                Fraction::integer(i128::from(count)).checked_mul(*weight)
            };
            let all: Option<Vec<_>> =
                plan.counts().into_iter().zip(weights).map(of_class).collect();
            let sum = all.and_then(exact::sum);
            if weights.len() != classes.len()
                || weights.iter().any(|weight| *weight < Fraction::ZERO)
                || sum != Some(Fraction::ONE)
            {
                found.push(format!("{collective}: hubs do not share all of the data"));
            }
        }
    }
    found
}
