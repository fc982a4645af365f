//! The plan: bounds, candidates, the best of them for each collective, a choice by size, and what was given up.
//!
//! ```text
//!   Topology, request ── model ──▶ graph ──┬─ bound ─────────────▶ proved bound
//!                                          ├─ rings, trees ──┐
//!                                          ├─ forest ────────┼──▶ candidates ── check ──▶ what each reaches
//!                                          └─ pairs ─────────┘                            │
//!                                                       plan ◀── best, by size, findings ─┘
//! ```
//!
//! Nothing is believed of a candidate but what the checker counted, and the finished plan passes the checker as a whole.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use topology::calibration::Calibration;
use topology::plan::{
    Bound, Candidate, ChannelSet, CollectivePlan, LinkPolicy, Pattern, Plan, SizeChoice,
    TopologyRef,
};
use topology::{
    Algorithm, Channel, Collective, Executor, Finding, Fraction, Generation, PlanRequest, Severity,
    Topology, health, msccl, nccl_graph,
};

use crate::bound::BoundError;
use crate::calibrated::Load;
use crate::check::{self, CheckReport, Counted, CountedSet, Counter, Violation};
use crate::cost::{self, Machine, OnHost, Shape};
use crate::forest::ForestError;
use crate::model::Model;
use crate::plan_error::PlanError;
use crate::rings::{self, MAX_RINGS, RingOptions, RingPacking};
use crate::trees;
use bounds::{Limit, Prover};
use exchanges::Exchange;
use forests::ForestChannels;

pub(crate) mod bounds;
mod channels;
mod exchanges;
mod forests;
mod in_rounds;
mod in_switches;
mod planes;

/// Collectives that are planned, which is what an empty request asks for.
pub const PLANNED: [Collective; 8] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

/// Collectives that rings carry.
const ON_RINGS: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// What can run these channels: our transport, stock NCCL through a graph file where its form can say them, MSCCL where
/// it has enough channels and, for direct exchanges, no data passes a rank it is not for (its pairs send straight).
fn executors(family: &Family, collective: Collective) -> Vec<Executor> {
    let mut executors = Vec::new();
    let directions = match family.algorithm {
        Algorithm::Ring => 1,
        // The way up and the way down are connections of their own.
        Algorithm::Tree | Algorithm::Forest if collective == Collective::AllReduce => 2,
        Algorithm::Tree | Algorithm::Forest | Algorithm::Direct => 1,
        _ => 0,
    };
    if family.in_rounds() {
        return [Executor::Host].into();
    }
    if directions == 0 {
        return executors;
    }
    executors.push(Executor::Host);
    if family.algorithm == Algorithm::Ring && family.nccl_graph {
        executors.push(Executor::NcclGraph);
    }
    if directions * family.channels.len() <= msccl::MOST_CHANNELS && !family.relayed {
        executors.push(Executor::Msccl);
    }
    executors
}

/// Plans channels for every requested collective.
///
/// # Errors
/// [`PlanError`]: an impossible request, GPUs that no links connect, or a plan that the checker refuses.
pub fn plan(topology: &Topology, request: &PlanRequest) -> Result<Plan, PlanError> {
    plan_calibrated(topology, request, None)
}

/// [`plan`], whose choices by size are those of processes on a host that was measured, where there is but one host.
///
/// # Errors
/// As [`plan`].
pub fn plan_calibrated(
    topology: &Topology,
    request: &PlanRequest,
    calibration: Option<&Calibration>,
) -> Result<Plan, PlanError> {
    let wanted = wanted(request)?;
    let model = Model::new(topology, request)?;
    let mut findings = model.findings.clone();
    findings.extend(health_of(topology));
    let (families, known) = families(topology, &model, &wanted, &mut findings);
    let counter = Counter::new(topology, &model.ranks, request.links)
        .map_err(|found| refusal(wanted[0], &found))?;
    let sets = counter.sets(families.iter().map(|family| family.channels.as_slice()));
    let one_host = model.hosts.iter().all(|host| *host == model.hosts[0]);
    let calibration = calibration.filter(|_| one_host);
    let mut assembly = Assembly {
        topology,
        model: &model,
        calibration,
        families: &families,
        sets,
        known,
        findings,
    };
    let rated = assembly.rate(&wanted)?;
    let findings = assembly.findings;
    let assumption = match calibration {
        None => cost::ASSUMPTION.into(),
        Some(c) => format!(
            "times by size: processes on a host of {} cores ({}), as calibrated; not of GPUs",
            c.cores, c.cpu
        ),
    };
    put_together(topology, &model, request.links, families, rated, (findings, assumption))
}

/// The proved bounds alone, of every requested collective that has one; without planning.
///
/// # Errors
/// [`PlanError`]: an impossible request, or GPUs that no links connect.
pub fn bounds_of(
    topology: &Topology,
    request: &PlanRequest,
) -> Result<BTreeMap<Collective, Bound>, PlanError> {
    let model = Model::new(topology, request)?;
    let wanted = wanted(request)?;
    let mut prover = Prover::new(&model);
    let bound = |collective: Collective| {
        let limit = prover.limit(collective).ok()?;
        Some((collective, bounds::named(&model, &limit)))
    };
    Ok(wanted.into_iter().filter_map(bound).collect())
}

/// What a request asks for, in order and each once.
fn wanted(request: &PlanRequest) -> Result<Vec<Collective>, PlanError> {
    let mut wanted = request.collectives.clone();
    if wanted.is_empty() {
        wanted.extend(PLANNED);
    }
    wanted.sort_unstable();
    wanted.dedup();
    match wanted.iter().find(|c| !PLANNED.contains(c)) {
        Some(other) => Err(PlanError::NotPlanned { collective: *other }),
        None => Ok(wanted),
    }
}

/// What is wrong with the hosts themselves: a plan on a degraded machine says so.
pub(crate) fn health_of(topology: &Topology) -> Vec<Finding> {
    let several = topology.hosts().len() > 1;
    let of_host = |(host, snapshot)| {
        let named = move |finding: Finding| match several {
            true => Finding { component: format!("{host}:{}", finding.component), ..finding },
            false => finding,
        };
        health::examine(snapshot).into_iter().map(named)
    };
    topology.hosts().iter().enumerate().flat_map(of_host).collect()
}

/// The channels of one algorithm with the collectives they can carry.
struct Family {
    algorithm: Algorithm,
    collectives: Vec<Collective>,
    channels: Vec<Channel>,
    /// Whether NCCL's graph file can say them.
    nccl_graph: bool,
    /// Whether ranks forward data of other pairs.
    relayed: bool,
}

impl Family {
    fn new(algorithm: Algorithm, collectives: Vec<Collective>, mut channels: Vec<Channel>) -> Self {
        for channel in &mut channels {
            channel.collectives.clone_from(&collectives);
        }
        Self { algorithm, collectives, channels, nccl_graph: false, relayed: false }
    }

    fn in_rounds(&self) -> bool {
        self.channels.iter().any(|channel| channel.pattern == Pattern::Rounds)
    }

    fn hops(&self) -> usize {
        self.channels.iter().map(|channel| channel.edges.len()).sum()
    }

    /// Rings, and whether stock NCCL could run them.
    fn rings(topology: &Topology, model: &Model, on: Vec<Collective>, rings: Vec<Channel>) -> Self {
        // Rates are counted later; shares stand in the same proportion.
        let rated = |channel: &Channel| Channel { gbps: channel.share, ..channel.clone() };
        let rated: Vec<Channel> = rings.iter().map(rated).collect();
        let rated: Vec<&Channel> = rated.iter().collect();
        let real = topology.hosts().iter().all(|host| host.link_graph.is_none());
        let nccl_graph = real && nccl_graph::from_rings(topology, &model.ranks, &rated).is_ok();
        Self { nccl_graph, ..Self::new(Algorithm::Ring, on, rings) }
    }
}

/// Bounds that came with the families, and what finds the others.
struct Known<'a> {
    limits: BTreeMap<Collective, Result<Limit, BoundError>>,
    prover: Prover<'a>,
}

fn families<'a>(
    topology: &Topology,
    model: &'a Model,
    wanted: &[Collective],
    findings: &mut Vec<Finding>,
) -> (Vec<Family>, Known<'a>) {
    let mut families = Vec::new();
    let mut limits = BTreeMap::new();
    let on_rings: Vec<Collective> =
        wanted.iter().copied().filter(|c| ON_RINGS.contains(c)).collect();
    let packing = if on_rings.is_empty() {
        RingPacking::default()
    } else {
        rings::pack(&model.graph, &RingOptions::new(model.hosts.clone()))
    };
    if !on_rings.is_empty() {
        if packing.rings.is_empty() {
            findings.push(no_ring(model));
        } else {
            let channels = channels::rings(model, &packing);
            families.push(Family::rings(topology, model, on_rings, channels));
        }
    }
    if wanted.contains(&Collective::AllReduce) {
        families.extend(tree_family(model, &packing));
    }
    let mut forests = ForestChannels::new(model);
    for &collective in wanted {
        if ON_RINGS.contains(&collective) {
            if collective.has_root() && !packing.rings.is_empty() {
                // Rings serve every root, and are taken where they come near the bound of the slowest.
                let every_root = bounds::roots(model).len() == model.ranks();
                if !every_root || rings_suffice(&forests.prover, &packing, collective) {
                    continue;
                }
            }
            let suffice = |prover: &Prover<'_>| rings_suffice(prover, &packing, collective);
            match forests.channels(collective, suffice) {
                Ok(Some(channels)) => {
                    let family = Family::new(Algorithm::Forest, [collective].into(), channels);
                    families.push(family);
                }
                Ok(None) => {}
                Err(error) => findings.push(no_forest(collective, &error)),
            }
        } else {
            let (limit, found) = exchanges::exchange(&forests.prover, collective);
            if let Some(Exchange { channels, relayed }) = found {
                let family = Family::new(Algorithm::Direct, [collective].into(), channels);
                families.push(Family { relayed, ..family });
            } else if model.ranks() > exchanges::MOST_PAIRED_RANKS {
                findings.push(pairs_not_listed(model, collective));
            }
            limits.insert(collective, limit);
        }
    }
    families.extend(in_rounds::families(model, wanted));
    (families, Known { prover: forests.prover, limits })
}

/// Whether rings come so near the bound that they are taken whatever trees reach.
fn rings_suffice(prover: &Prover<'_>, packing: &RingPacking, collective: Collective) -> bool {
    let model = prover.model();
    // Rings lie in the graph that plans may use, whatever a looser one would allow. Trees of one root may lie in that one.
    let bound = if model.is_relaxed() && !collective.has_root() {
        bounds::by_cuts(&model.graph, collective)
    } else {
        prover.cuts(collective)
    };
    let Some(Ok(bound)) = bound else { return false };
    let ranks = i128::try_from(model.ranks()).unwrap_or(i128::MAX);
    let parts = match collective {
        Collective::Broadcast | Collective::Reduce => Some(Fraction::ONE),
        Collective::AllReduce => Fraction::new(ranks, 2 * (ranks - 1)),
        _ => Fraction::new(ranks, ranks - 1),
    };
    let parts = parts.unwrap_or(Fraction::ONE);
    near(packing.total * parts, bound.algbw)
}

/// Within a hundredth.
fn near(rate: Fraction, best: Fraction) -> bool {
    rate * Fraction::integer(100) >= best * Fraction::integer(99)
}

fn tree_family(model: &Model, packing: &RingPacking) -> Option<Family> {
    let trees = trees::double_trees(&model.graph, &model.hosts, packing, MAX_RINGS);
    let channels = channels::trees(model, &trees);
    (!channels.is_empty())
        .then(|| Family::new(Algorithm::Tree, [Collective::AllReduce].into(), channels))
}

fn info(code: &str, component: &str, evidence: String, fix: &str) -> Finding {
    Finding::new(code, Severity::Info, component, evidence, fix)
}

fn pairs_not_listed(model: &Model, collective: Collective) -> Finding {
    info(
        "pairs-not-listed",
        collective.as_str(),
        format!("{} ranks have too many pairs to list their ways", model.ranks()),
        "plan fewer ranks to see them",
    )
}

fn no_ring(model: &Model) -> Finding {
    info(
        "no-ring",
        &format!("{} GPUs", model.ranks()),
        "no order of the GPUs has a direct way from each to the next and back to the first".into(),
        "trees carry the collectives instead; a ring needs other GPUs or more links",
    )
}

fn no_forest(collective: Collective, error: &ForestError) -> Finding {
    info("no-forest", collective.as_str(), error.to_string(), "the other algorithms are used")
}

/// A candidate with the place of its family and what was counted.
struct Contender {
    family: usize,
    counted: Counted,
    candidate: Candidate,
}

/// Why the checker refuses.
fn refusal(collective: Collective, violations: &[Violation]) -> PlanError {
    let reason = violations.first().map(ToString::to_string).unwrap_or_default();
    PlanError::Refused { collective, reason }
}

struct Assembly<'a> {
    topology: &'a Topology,
    model: &'a Model,
    calibration: Option<&'a Calibration>,
    families: &'a [Family],
    /// The channels of each, with their structure checked.
    sets: Vec<Result<CountedSet<'a>, Vec<Violation>>>,
    known: Known<'a>,
    findings: Vec<Finding>,
}

/// What the families reach.
#[derive(Default)]
struct Rated {
    collectives: BTreeMap<Collective, CollectivePlan>,
    /// By family.
    counts: BTreeMap<(usize, Collective), Counted>,
    /// The family of each collective's best.
    best: BTreeMap<Collective, usize>,
}

/// The plan: the best families' channels are its own, the others' alternatives.
fn put_together(
    topology: &Topology,
    model: &Model,
    links: LinkPolicy,
    families: Vec<Family>,
    rated: Rated,
    (mut findings, assumption): (Vec<Finding>, String),
) -> Result<Plan, PlanError> {
    let Rated { collectives, mut counts, best } = rated;
    let unfit = |collective: Collective| PlanError::Refused {
        collective,
        reason: "rates do not fit".into(),
    };
    let mut own: Vec<Channel> = Vec::new();
    let mut alternatives: Vec<ChannelSet> = Vec::new();
    let mut report = CheckReport::default();
    for (place, family) in families.into_iter().enumerate() {
        let mut wins = BTreeMap::new();
        let mut others = BTreeMap::new();
        for &collective in &family.collectives {
            if let Some(counted) = counts.remove(&(place, collective)) {
                let wins_here = best.get(&collective) == Some(&place);
                let of = if wins_here { &mut wins } else { &mut others };
                of.insert(collective, counted);
            }
        }
        let mut channels = family.channels;
        let used_by = |channels: &mut Vec<Channel>, counted: &BTreeMap<Collective, Counted>| {
            channels.iter_mut().for_each(|c| c.collectives = counted.keys().copied().collect());
        };
        if let Some(&first) = others.keys().next() {
            let mut set =
                if wins.is_empty() { core::mem::take(&mut channels) } else { channels.clone() };
            used_by(&mut set, &others);
            channels::finish(&mut set, &others, model.ranks()).ok_or_else(|| unfit(first))?;
            alternatives.push(ChannelSet {
                algorithm: family.algorithm,
                collectives: others.keys().copied().collect(),
                channels: set,
            });
            report.alternatives.push(others);
        }
        if !wins.is_empty() {
            used_by(&mut channels, &wins);
            own.append(&mut channels);
            report.collectives.append(&mut wins);
        }
    }
    let first = collectives.keys().next().copied().unwrap_or(Collective::AllReduce);
    channels::finish(&mut own, &report.collectives, model.ranks()).ok_or_else(|| unfit(first))?;
    note_paths(topology, model, &own, &mut findings);
    findings.sort_unstable();
    findings.dedup();
    let hosts = topology.hosts();
    let plan = Plan {
        topology: TopologyRef {
            fingerprint: topology.fingerprint().into(),
            source: hosts.first().map_or(topology::Source::LinkGraph, |host| host.source),
            rates: topology.rates(),
            links,
            what_if: topology.changes().to_vec(),
            generation: Generation(0),
        },
        ranks: model.ranks.clone(),
        channels: own,
        alternatives,
        collectives,
        assumptions: topology.assumptions().iter().cloned().chain([assumption]).collect(),
        findings,
    };
    // Every set of channels was counted before; what is left is what the plan says of itself.
    let checked = if cfg!(debug_assertions) {
        check::plan(topology, &plan)
    } else {
        check::claims(&plan, report)
    };
    match checked {
        Ok(_) => Ok(plan),
        Err(violations) => Err(refusal(first, &violations)),
    }
}

impl Assembly<'_> {
    fn rate(&mut self, wanted: &[Collective]) -> Result<Rated, PlanError> {
        let mut rated = Rated::default();
        for &collective in wanted {
            let (entry, contenders, best) = self.collective(collective)?;
            for contender in contenders {
                rated.counts.insert((contender.family, collective), contender.counted);
            }
            rated.best.extend(best.map(|best| (collective, best)));
            rated.collectives.insert(collective, entry);
        }
        Ok(rated)
    }

    /// What one collective reaches: its entry, everything counted, and the family that is best.
    fn collective(
        &mut self,
        collective: Collective,
    ) -> Result<(CollectivePlan, Vec<Contender>, Option<usize>), PlanError> {
        let limit = match self.known.limits.remove(&collective) {
            Some(limit) => limit,
            None => self.known.prover.quick_limit(collective),
        };
        let mut bound = match limit {
            Ok(limit) => Some(bounds::named(self.model, &limit)),
            Err(error) => {
                self.findings.push(info(
                    "no-bound",
                    collective.as_str(),
                    error.to_string(),
                    "how far the plan is from the best is not known",
                ));
                None
            }
        };
        let mut contenders = Vec::new();
        let mut refusal = String::new();
        for (place, family) in self.families.iter().enumerate() {
            if !family.collectives.contains(&collective) {
                continue;
            }
            let counted = match &self.sets[place] {
                Ok(set) => set.count(collective),
                Err(violations) => Err(violations.clone()),
            };
            match counted {
                Ok(counted) => {
                    let algbw = counted.algbw_gbps;
                    let candidate = Candidate {
                        algorithm: family.algorithm,
                        algbw_gbps: algbw,
                        channels: counted.channels,
                        height: counted.height,
                        optimal: bound.as_ref().is_some_and(|b| b.algbw_gbps == algbw),
                        executors: executors(family, collective),
                        note: String::new(),
                    };
                    if counted.channels <= check::MOST_CHANNELS {
                        contenders.push(Contender { family: place, counted, candidate });
                    }
                }
                Err(violations) => {
                    refusal = violations.first().map(ToString::to_string).unwrap_or_default();
                    self.findings.push(Finding::new(
                        "candidate-refused",
                        Severity::Degraded,
                        format!("{} for {collective}", family.algorithm),
                        refusal.clone(),
                        "this is a defect of the planner: please report it",
                    ));
                }
            }
        }
        // What cuts say is enough where something reaches it.
        if collective.has_root()
            && !contenders.iter().any(|contender| contender.candidate.optimal)
            && let Ok(limit) = self.known.prover.limit(collective)
        {
            for candidate in contenders.iter_mut().map(|contender| &mut contender.candidate) {
                candidate.optimal = bounds::gbps(limit.algbw) == candidate.algbw_gbps;
            }
            bound = Some(bounds::named(self.model, &limit));
        }
        if contenders.is_empty() && ON_RINGS.contains(&collective) {
            return Err(PlanError::Refused { collective, reason: refusal });
        }
        // Channels whose ranks are busy all the time come before rounds that reach as much.
        contenders.sort_by_key(|contender| {
            let Contender { family, candidate, .. } = contender;
            let in_rounds = self.families[*family].in_rounds();
            let algbw = core::cmp::Reverse(candidate.algbw_gbps);
            (algbw, in_rounds, candidate.height, candidate.channels)
        });
        let best = best(&contenders, bound.as_ref().map(|bound| bound.algbw_gbps));
        if let Some(best) = best {
            let winner = contenders.remove(best);
            contenders.insert(0, winner);
        } else {
            self.findings.push(info(
                "no-executor",
                collective.as_str(),
                "nothing here runs any of its candidates yet".into(),
                "its bound and ways are in the plan for others to use",
            ));
        }
        for contender in contenders.iter_mut().skip(usize::from(best.is_some())) {
            if contender.candidate.executors.is_empty() {
                contender.candidate.note = "nothing runs it yet".into();
            }
        }
        if collective.has_root() && self.one_root_only(best.and_then(|_| contenders.first())) {
            self.findings.push(info(
                "planned-for-one-root",
                collective.as_str(),
                "trees from rank 0 carry it; other roots need a plan of their own".into(),
                "use rank 0 as root, or the ring where there is one",
            ));
        }
        let by_size = self.by_size(collective, &contenders);
        let has_best = best.is_some();
        let left_out = |place: usize, contender: &Contender| {
            let family = &self.families[contender.family];
            let named = by_size.iter().any(|row| row.algorithm == family.algorithm);
            let is_best = has_best && place == 0;
            family.in_rounds() && family.hops() > in_rounds::MOST_IDLE_HOPS && !named && !is_best
        };
        let mut kept = Vec::new();
        for (place, contender) in contenders.iter_mut().enumerate() {
            if left_out(place, contender) {
                contender.candidate.executors.clear();
                contender.candidate.note =
                    "its hops are not listed: others are faster at every size".into();
            } else {
                kept.push(place);
            }
        }
        let mut candidates: Vec<Candidate> =
            contenders.iter().map(|c| c.candidate.clone()).collect();
        candidates.extend(in_switches::candidates(self.topology, self.model, collective));
        let mut place = 0;
        contenders.retain(|_| {
            place += 1;
            kept.contains(&(place - 1))
        });
        let entry = CollectivePlan {
            bound,
            best: candidates.first().filter(|_| has_best).cloned(),
            ring: candidates.iter().find(|c| c.algorithm == Algorithm::Ring).cloned(),
            candidates,
            by_size,
        };
        let family = contenders.first().filter(|_| has_best).map(|c| c.family);
        Ok((entry, contenders, family))
    }

    fn by_size(&self, collective: Collective, contenders: &[Contender]) -> Vec<SizeChoice> {
        let run = contenders.iter().filter(|c| !c.candidate.executors.is_empty());
        let Some(calibration) = self.calibration else {
            let shapes: Vec<Shape> = run.map(|c| self.shape(collective, c)).collect();
            return cost::table(&self.machine(), collective, &shapes);
        };
        let ranks = self.model.ranks();
        let on_host = |c: &Contender| {
            let family = &self.families[c.family];
            OnHost {
                algorithm: family.algorithm,
                channels: c.counted.channels,
                load: Load::of(family.channels.iter(), collective, ranks).of_algorithm(
                    family.algorithm,
                    collective,
                    ranks,
                ),
            }
        };
        let candidates: Vec<OnHost> = run.map(on_host).collect();
        cost::measured_table(calibration, collective, ranks, &candidates)
    }

    fn one_root_only(&self, best: Option<&Contender>) -> bool {
        best.is_some_and(|c| {
            let roots = self.families[c.family].channels.iter().map(|channel| channel.root);
            let roots: BTreeSet<_> = roots.collect();
            roots.len() == 1 && !roots.contains(&None)
        })
    }

    fn shape(&self, collective: Collective, contender: &Contender) -> Shape {
        let family = &self.families[contender.family];
        let (intra_hops, inter_hops) =
            channels::hops_in_all(self.model, collective, &family.channels);
        // Where a pair has no way of its own, its data is handed on by a GPU between.
        let intra_hops =
            if family.in_rounds() && family.relayed { 2 * intra_hops } else { intra_hops };
        let prefixes = if family.algorithm == Algorithm::Ring {
            let mut sum = Fraction::ZERO;
            let parts = family.channels.iter().map(|channel| {
                sum = sum + channel.share;
                sum
            });
            (1..).zip(parts).collect()
        } else {
            [(contender.counted.channels, Fraction::ONE)].into()
        };
        Shape {
            algorithm: family.algorithm,
            algbw_gbps: contender.counted.algbw_gbps,
            intra_hops,
            inter_hops,
            prefixes,
        }
    }

    fn machine(&self) -> Machine {
        let hosts: BTreeSet<usize> = self.model.hosts.iter().copied().collect();
        let gpus = self.topology.hosts().iter().flat_map(|host| &host.gpus);
        let cpus = self.topology.hosts().iter().flat_map(|host| &host.numa_nodes);
        Machine {
            ranks: self.model.ranks() as u64,
            hosts: hosts.len() as u64,
            gpu_links: self.model.gpu_links,
            compute_capability: gpus.filter_map(|gpu| gpu.compute_capability).min(),
            amd_cpu: cpus.into_iter().any(|n| n.cpu.vendor.as_deref() == Some("AuthenticAMD")),
        }
    }
}

/// Says which NICs serve inside a host, and which serve nothing although hosts exchange data.
fn note_paths(topology: &Topology, model: &Model, own: &[Channel], findings: &mut Vec<Finding>) {
    let ranks = &model.ranks;
    let mut inside: BTreeSet<&str> = BTreeSet::new();
    for edge in own.iter().flat_map(Channel::all_edges) {
        if ranks[edge.from.index()].host == ranks[edge.to.index()].host {
            let crossed = edge.paths.iter().flat_map(|path| &path.via);
            inside.extend(crossed.filter(|name| model.is_nic(name)).map(String::as_str));
        }
    }
    if !inside.is_empty() {
        let names: Vec<&str> = inside.into_iter().collect();
        findings.push(info(
            "nic-to-nic-inside-host",
            &names.join(", "),
            "GPUs of one host exchange data through their NICs and the network, beside or instead of a slower \
             PCIe or socket path"
                .into(),
            "nothing, where the network has room; NVLink or a PCIe switch would be faster",
        ));
    }
    let several = model.hosts.iter().any(|host| *host != model.hosts[0]);
    let used: BTreeSet<&String> = own.iter().flat_map(|channel| &channel.nics).collect();
    if several && own.iter().any(|channel| channel.pattern != Pattern::Pairs) {
        let idle: Vec<&str> = topology
            .nics()
            .iter()
            .map(|id| &topology.vertex(*id).name)
            .filter(|name| !used.contains(name))
            .map(String::as_str)
            .collect();
        if !idle.is_empty() {
            findings.push(info(
                "nic-unused",
                &idle.join(", "),
                "no channel crosses it: it is down, not for collectives, or other ways are as good"
                    .into(),
                "compare its rate and place with the NICs that are used",
            ));
        }
    }
}

/// The best that something can run: rings where they come within a hundredth of the fastest, for they need the fewest connections; unless
/// that takes them a hundredth below the bound, where others are not.
fn best(contenders: &[Contender], bound: Option<Fraction>) -> Option<usize> {
    let runs = |c: &Contender| !c.candidate.executors.is_empty();
    let fastest = contenders.iter().position(runs)?;
    let most = contenders[fastest].candidate.algbw_gbps;
    let most = bound.filter(|bound| near(most, *bound)).unwrap_or(most);
    let ring = contenders.iter().position(|c| {
        c.candidate.algorithm == Algorithm::Ring && runs(c) && near(c.candidate.algbw_gbps, most)
    });
    Some(ring.unwrap_or(fastest))
}
