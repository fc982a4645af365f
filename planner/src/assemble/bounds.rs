//! Proved bounds in GB/s, with the limiting cut in names.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{OnceCell, RefCell};

use topology::plan::Bound;
use topology::{Bandwidth, Collective, Fraction};

use super::exchanges;
use crate::bound::{self, BoundError, Cut, UpperBound};
use crate::composed::{Composed, Composer, Proof};
use crate::flow_graph::{FlowEdge, FlowGraph};
use crate::model::Model;
use crate::network::Network;
use crate::symmetry;

/// Most cuts, and most links of one cut, that are spelled out.
const SPELLED: usize = 8;

/// Collectives whose trees have one root.
const OF_ONE_ROOT: [Collective; 2] = [Collective::Broadcast, Collective::Reduce];

/// Trees for a broadcast or reduce are made for every root up to so many ranks; beyond it for rank 0 alone.
const MOST_ROOTS: usize = 16;

/// Links for each rank of a network without likeness up to which its trees are composed at once.
const FEW_LINKS: usize = 4;

/// The roots that a broadcast or reduce is planned for.
pub(super) fn roots(model: &Model) -> core::ops::Range<usize> {
    0..if model.ranks() <= MOST_ROOTS { model.ranks() } else { 1 }
}

/// A proved bound in kB/s with what proves it.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) algbw: Fraction,
    /// Cuts of [`Model::bound_graph`].
    pub(crate) cuts: Vec<Cut>,
    /// Edges that every plan this fast fills, where no cut is the proof.
    pub(crate) edges: Vec<FlowEdge>,
}

/// A bound, or why there is none.
type Found = Result<UpperBound, BoundError>;

/// What limits the collectives on one model: cuts, and on several hosts what composing trees proves beside them.
#[derive(Clone, Debug)]
pub(crate) struct Prover<'a> {
    model: &'a Model,
    composer: OnceCell<Composer>,
    proofs: BTreeMap<Collective, Proof>,
    /// What cuts alone say, once it was asked.
    cuts: RefCell<BTreeMap<Collective, Result<UpperBound, BoundError>>>,
    /// The same of one root, by the first that looks like it; and what switches can forward of that.
    rooted: RefCell<BTreeMap<(Collective, usize, bool), Found>>,
    /// Turns ways of [`Model::bound_graph`] round.
    mirror: OnceCell<Option<Vec<usize>>>,
}

impl<'a> Prover<'a> {
    pub(crate) fn new(model: &'a Model) -> Self {
        let composer = OnceCell::new();
        let (cuts, rooted) = (RefCell::default(), RefCell::default());
        Self { model, composer, proofs: BTreeMap::new(), cuts, rooted, mirror: OnceCell::new() }
    }

    pub(crate) fn model(&self) -> &'a Model {
        self.model
    }

    /// What composes on the model's network.
    pub(crate) fn composer(&self) -> &Composer {
        self.composer.get_or_init(|| Composer::new(self.model.network()))
    }

    /// Whether ranks are on several hosts, where composed trees prove more than cuts do.
    pub(super) fn on_several_hosts(&self) -> bool {
        self.model.hosts.iter().any(|host| *host != self.model.hosts[0])
    }

    /// Whether composing is quick: where one tree stands for several, or links are few.
    pub(super) fn composes_quickly(&self) -> bool {
        let composer = self.composer();
        let ranks = self.model.ranks();
        let links = composer.network().0.graph.edges.len();
        self.on_several_hosts() || composer.order() > 1 || links <= FEW_LINKS * ranks
    }

    /// Composed trees; what they prove is kept, on several hosts.
    pub(crate) fn composed(&mut self, collective: Collective) -> Option<Composed> {
        let composed = match collective {
            Collective::AllGather => self.composer().all_gather()?,
            Collective::ReduceScatter => self.composer().reduce_scatter()?,
            Collective::AllReduce => {
                self.composer().all_reduce(self.cuts(collective)?.ok()?.algbw)?
            }
            _ => return None,
        };
        if !self.on_several_hosts() {
            return Some(composed);
        }
        let graph = self.model.bound_graph();
        let network = self.composer().network().0;
        let narrow = composed.proof.limits.iter().flat_map(|e| network.narrowest(graph, e));
        let proof = Proof { limits: narrow.collect(), ..composed.proof };
        self.proofs.insert(collective, proof);
        Some(composed)
    }

    /// What limits a collective: the slowest of the [`roots`] for broadcast and reduce, rank 0 for gather and scatter.
    pub(crate) fn limit(&mut self, collective: Collective) -> Result<Limit, BoundError> {
        if OF_ONE_ROOT.contains(&collective) {
            let found = self.slowest(collective, true)?;
            return Ok(Limit { algbw: found.algbw, cuts: found.cuts, edges: Vec::new() });
        }
        if self.on_several_hosts() && !self.proofs.contains_key(&collective) {
            self.composed(collective);
        }
        self.by_cuts(collective, self.proofs.get(&collective))
    }

    /// The limit, if it is above `known`.
    pub(crate) fn limit_above(
        &mut self,
        collective: Collective,
        known: Fraction,
    ) -> Result<Option<Limit>, BoundError> {
        let by_cuts = self.by_cuts(collective, None)?;
        if by_cuts.algbw <= known {
            return Ok(None);
        }
        Ok(Some(self.limit(collective)?).filter(|limit| limit.algbw > known))
    }

    /// The limit where a plan that reaches what cuts say needs no tighter one: those of broadcast and reduce take long.
    pub(crate) fn quick_limit(&mut self, collective: Collective) -> Result<Limit, BoundError> {
        if OF_ONE_ROOT.contains(&collective) {
            return self.by_cuts(collective, None);
        }
        self.limit(collective)
    }

    /// What cuts say, or the program of all-to-all; `proof` is another bound, and the tighter counts.
    fn by_cuts(&self, collective: Collective, proof: Option<&Proof>) -> Result<Limit, BoundError> {
        let graph = self.model.bound_graph();
        let found = match collective {
            // What a proof accounts for are forwarders that take more than they give, too: a cut is enough beside it.
            Collective::AllGather if proof.is_some() => cut_bound(graph),
            Collective::ReduceScatter if proof.is_some() => bound::turned(graph, cut_bound),
            _ => match self.cuts(collective) {
                Some(found) => found,
                None => return exchanges::all_to_all_limit(self),
            },
        }?;
        if let Some(proof) = proof.filter(|proof| proof.algbw < found.algbw) {
            let cuts = if proof.limits.is_empty() { found.cuts } else { Vec::new() };
            return Ok(Limit { algbw: proof.algbw, cuts, edges: proof.limits.clone() });
        }
        Ok(Limit { algbw: found.algbw, cuts: found.cuts, edges: Vec::new() })
    }

    /// What cuts allow a broadcast from one root, or a reduce to it. On several hosts roots that look alike have one answer; on one they are few,
    /// and what is alike may not be known.
    fn of_root(
        &self,
        collective: Collective,
        root: usize,
        forwarded: bool,
    ) -> Result<UpperBound, BoundError> {
        let first = if self.on_several_hosts() {
            let symmetry = self.composer().network().1;
            symmetry.representatives[symmetry.from[root].0]
        } else {
            root
        };
        let key = (collective, first, forwarded);
        if let Some(known) = self.rooted.borrow().get(&key) {
            return known.clone();
        }
        let graph = self.model.bound_graph();
        let mirrored = self.mirror().filter(|_| collective == Collective::Reduce).and_then(|map| {
            let found = self.of_root(Collective::Broadcast, first, forwarded).ok()?;
            Some(bound::mirrored(found, graph, map))
        });
        let found = match (mirrored, collective, forwarded) {
            (Some(found), ..) => Ok(found),
            (None, Collective::Reduce, false) => bound::reduce(graph, first),
            (None, Collective::Reduce, true) => bound::forwarded_reduce(graph, first),
            (None, _, false) => bound::broadcast(graph, first),
            (None, _, true) => bound::forwarded_broadcast(graph, first),
        };
        self.rooted.borrow_mut().insert(key, found.clone());
        found
    }

    /// What makes a way to a rank of each way from it, so that a reduce's bounds are a broadcast's: nothing needs to move where every way
    /// has an equal way back, and on several hosts their layers for data out and data in change places.
    fn mirror(&self) -> Option<&[usize]> {
        let found = self.mirror.get_or_init(|| {
            let graph = self.model.bound_graph();
            if graph.is_symmetric() {
                return Some((0..graph.nodes).collect());
            }
            // One root is enough on a level graph, and worth no look.
            let worth = self.on_several_hosts() && !graph.is_level();
            worth.then(|| symmetry::mirror(&Network::unfolded(graph))).flatten()
        });
        found.as_deref()
    }

    /// The bound of a broadcast or reduce from the slowest of the roots: rings serve every root.
    fn slowest(&self, collective: Collective, forwarded: bool) -> Result<UpperBound, BoundError> {
        let mut least = self.of_root(collective, 0, forwarded)?;
        // As much leaves any set of nodes as enters it, so every root is at the far side of the narrowest cut.
        if self.model.bound_graph().is_level() {
            return Ok(least);
        }
        for root in roots(self.model).skip(1) {
            let other = self.of_root(collective, root, forwarded)?;
            if other.algbw < least.algbw {
                least = other;
            }
        }
        Ok(least)
    }

    /// What cuts of [`Model::bound_graph`] alone say; `None` for all-to-all, of which they do not tell enough.
    pub(crate) fn cuts(&self, collective: Collective) -> Option<Result<UpperBound, BoundError>> {
        if let Some(known) = self.cuts.borrow().get(&collective) {
            return Some(known.clone());
        }
        let found = match collective {
            Collective::Broadcast | Collective::Reduce => self.slowest(collective, false),
            _ => by_cuts(self.model.bound_graph(), collective)?,
        };
        self.cuts.borrow_mut().insert(collective, found.clone());
        Some(found)
    }
}

/// The best bound of cuts of one of the model's graphs; `None` where a root decides, and for all-to-all.
pub(super) fn by_cuts(
    graph: &FlowGraph,
    collective: Collective,
) -> Option<Result<UpperBound, BoundError>> {
    Some(match collective {
        Collective::AllReduce => bound::all_reduce(graph),
        Collective::AllGather => bound::all_gather(graph),
        Collective::ReduceScatter => bound::reduce_scatter(graph),
        Collective::Scatter => bound::scatter(graph, 0),
        Collective::Gather => bound::gather(graph, 0),
        _ => return None,
    })
}

/// A limit in names.
pub(super) fn named(model: &Model, found: &Limit) -> Bound {
    let mut limited_by: Vec<String> =
        found.cuts.iter().take(SPELLED).map(|cut| describe(model, cut)).collect();
    if found.cuts.len() > SPELLED {
        limited_by.push(format!("and {} more groups", found.cuts.len() - SPELLED));
    }
    if !found.edges.is_empty() {
        limited_by
            .push(format!("links that every plan this fast fills: {}", links(model, &found.edges)));
    }
    Bound { algbw_gbps: gbps(found.algbw), limited_by }
}

fn cut_bound(graph: &FlowGraph) -> Result<UpperBound, BoundError> {
    let found = bound::bottleneck(graph, &vec![1; graph.ranks])?;
    Ok(UpperBound { algbw: bound::whole(graph.ranks) / found.ratio, cuts: [found.cut].into() })
}

/// From kB/s.
pub(crate) fn gbps(kbps: Fraction) -> Fraction {
    kbps / Fraction::integer(1_000_000)
}

/// `into GPU7 (120 GB/s): GPU3 -> GPU7 20 GB/s, ...`: the side with fewer GPUs is named.
fn describe(model: &Model, cut: &Cut) -> String {
    let ranks = model.ranks();
    let inside: Vec<usize> = cut.from.iter().copied().filter(|node| *node < ranks).collect();
    let outside: Vec<usize> = (0..ranks).filter(|rank| !inside.contains(rank)).collect();
    let leaves = inside.len() <= outside.len();
    let side = if leaves { &inside } else { &outside };
    let names: Vec<String> =
        side.iter().take(SPELLED).map(|node| model.bound_name(*node)).collect();
    let more = if side.len() > SPELLED {
        format!(" and {} more", side.len() - SPELLED)
    } else {
        String::new()
    };
    format!(
        "{} {}{more} ({}): {}",
        if leaves { "out of" } else { "into" },
        names.join(", "),
        Bandwidth::from_kbps(cut.capacity),
        links(model, &cut.edges)
    )
}

fn links(model: &Model, edges: &[FlowEdge]) -> String {
    let mut names: Vec<String> = edges
        .iter()
        .take(SPELLED)
        .map(|e| {
            let (from, to) = (model.bound_name(e.from), model.bound_name(e.to));
            format!("{from} -> {to} {}", Bandwidth::from_kbps(e.capacity))
        })
        .collect();
    if edges.len() > SPELLED {
        names.push(format!("and {} more", edges.len() - SPELLED));
    }
    names.join(", ")
}
