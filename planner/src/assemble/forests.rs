//! Forests for the plan: composed where that comes near the best and its trees are low, searched for else; the better is taken.

use alloc::vec;
use alloc::vec::Vec;

use topology::{Channel, Collective, Fraction};

use super::bounds::{self, Prover};
use super::channels::{self, Ground, Naming};
use crate::composed::Composed;
use crate::forest::{Forest, ForestError, ForestOptions, Forests};
use crate::model::Model;
use crate::network::Network;
use crate::splitting::Reduction;
use crate::symmetry::{self, Symmetry};
use crate::weighted;

/// Budget of flows for trees where rings or composed trees are the best already.
const STEPS_BESIDE: u64 = 100;
/// Height of composed trees at which no lower ones are looked for. Where switches join the GPUs none are looked for at any height: on
/// recorded machines a search takes many times as long there, and finds trees that are one hop lower on three boards and higher on most.
const LOW: usize = 3;

/// Channels of forests, one collective after the other.
pub(super) struct ForestChannels<'a> {
    model: &'a Model,
    pub(super) prover: Prover<'a>,
    searched: Forests<'a>,
    /// Which roots are alike on the graph that is searched, and what turns its ways round.
    kinds: Option<(Symmetry, Option<Vec<usize>>)>,
    usable: Naming<'a>,
    bound: Naming<'a>,
}

/// Trees that were searched for.
struct Found {
    forest: Forest,
    /// The ways up, tree by tree, where data is reduced first.
    reduce: Option<Forest>,
    /// Total data per second, where both run at once.
    algbw: Fraction,
}

impl<'a> ForestChannels<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        let prover = Prover::new(model);
        let searched = Forests::new(&model.graph, ForestOptions::default());
        let usable = Naming::new(model, Ground::Usable);
        let bound = Naming::new(model, Ground::of_bound(model));
        Self { model, prover, searched, kinds: None, usable, bound }
    }

    /// Channels for a collective; `None` where rings suffice and no trees were found beside them in short. `rings_suffice` is asked only
    /// where there is a search to be cut short.
    pub(super) fn channels(
        &mut self,
        collective: Collective,
        rings_suffice: impl Fn(&Prover<'_>) -> bool,
    ) -> Result<Option<Vec<Channel>>, ForestError> {
        if collective.has_root() {
            return self.rooted(collective, rings_suffice);
        }
        let quick = self.prover.composes_quickly();
        let mut composed = quick.then(|| self.prover.composed(collective)).flatten();
        if let Some(composed) = &composed
            && self.suffices(composed)
        {
            return Ok(Some(channels_of(&mut self.bound, composed)));
        }
        let thorough = self.search_beside(composed.as_ref(), rings_suffice);
        let found = self.search(collective);
        if !quick && thorough && !found.as_ref().is_ok_and(|f| self.is_near(collective, f)) {
            composed = self.prover.composed(collective);
        }
        match (found, composed) {
            (found, Some(composed)) => Ok(Some(self.better(found, &composed))),
            (Ok(found), None) => Ok(Some(self.channels_of_found(&found))),
            (Err(_), None) if !thorough => Ok(None),
            (Err(error), None) => Err(error),
        }
    }

    /// Whether composed trees are taken without a look for others, which takes long where switches have to be split.
    fn suffices(&self, composed: &Composed) -> bool {
        let switched = || {
            let graph = Reduction::new(&self.model.graph).graph;
            graph.edges.iter().any(|edge| edge.from >= graph.ranks)
        };
        composed.is_near()
            && (self.prover.on_several_hosts() || composed.height() <= LOW || switched())
    }

    /// Whether trees come within a hundredth of what cuts allow.
    fn is_near(&self, collective: Collective, found: &Found) -> bool {
        let bound = self.prover.cuts(collective);
        matches!(bound, Some(Ok(bound)) if super::near(found.algbw, bound.algbw))
    }

    /// Sets how hard to search. Where rings reach the bound, trees are for latency only, and where composed trees do, only lower ones are
    /// of interest: worth less of a search.
    fn search_beside(
        &mut self,
        composed: Option<&Composed>,
        rings_suffice: impl Fn(&Prover<'_>) -> bool,
    ) -> bool {
        let thorough = !composed.is_some_and(Composed::is_near) && !rings_suffice(&self.prover);
        let options = ForestOptions::default();
        let steps = if thorough { options.steps } else { STEPS_BESIDE };
        self.searched.set_options(ForestOptions { steps, thorough, ..options });
        thorough
    }

    fn search(&mut self, collective: Collective) -> Result<Found, ForestError> {
        let equal = vec![1; self.model.ranks()];
        match collective {
            Collective::AllReduce => {
                let both = weighted::all_reduce_from(&mut self.searched)?;
                Ok(Found { forest: both.spread, reduce: Some(both.reduce), algbw: both.algbw })
            }
            Collective::AllGather => {
                self.searched.spread(&equal, Fraction::ZERO).map(Found::of_shards)
            }
            _ => self.searched.collect(&equal, Fraction::ZERO).map(Found::of_shards),
        }
    }

    /// The better of what was found and what was composed.
    fn better(&mut self, found: Result<Found, ForestError>, composed: &Composed) -> Vec<Channel> {
        match found {
            Ok(found) if found.is_better_than(composed) => self.channels_of_found(&found),
            _ => channels_of(&mut self.bound, composed),
        }
    }

    fn channels_of_found(&mut self, found: &Found) -> Vec<Channel> {
        match &found.reduce {
            Some(reduce) => channels::all_reduce_forest(&mut self.usable, reduce, &found.forest),
            None => channels::forest(&mut self.usable, &found.forest),
        }
    }

    /// Trees from or to every root there is a plan for.
    fn rooted(
        &mut self,
        collective: Collective,
        rings_suffice: impl Fn(&Prover<'_>) -> bool,
    ) -> Result<Option<Vec<Channel>>, ForestError> {
        let thorough = self.search_beside(None, rings_suffice);
        let mut all = Vec::new();
        for root in bounds::roots(self.model) {
            match self.search_rooted(collective, root) {
                Ok(forest) => all.extend(channels::forest(&mut self.usable, &forest)),
                Err(_) if !thorough => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(all))
    }

    /// Searches for one root of each kind, once; the others' trees are its renamed, and those towards a root those from it in the mirror.
    fn search_rooted(
        &mut self,
        collective: Collective,
        root: usize,
    ) -> Result<Forest, ForestError> {
        let graph = &self.model.graph;
        let (symmetry, mirror) = self.kinds.get_or_insert_with(|| {
            let network = Network::unfolded(graph);
            (Symmetry::of(&network), symmetry::mirror(&network))
        });
        let (kind, renaming) = symmetry.from[root];
        let first = symmetry.representatives[kind];
        let weights: Vec<u64> = (0..graph.ranks).map(|v| u64::from(v == first)).collect();
        let forest = match (collective, mirror) {
            (Collective::Reduce, Some(mirror)) => {
                let from = self.searched.spread(&weights, Fraction::ZERO)?;
                symmetry::renamed(&from.reversed(), mirror)
            }
            (Collective::Reduce, None) => self.searched.collect(&weights, Fraction::ZERO)?,
            _ => self.searched.spread(&weights, Fraction::ZERO)?,
        };
        Ok(symmetry.renamed(&forest, renaming))
    }
}

impl Found {
    fn of_shards(forest: Forest) -> Self {
        let algbw = forest.algbw;
        Self { forest, reduce: None, algbw }
    }

    /// Where composed trees are near the best, lower ones near theirs are better, then fewer; else what moves more.
    fn is_better_than(&self, composed: &Composed) -> bool {
        let theirs = composed.forest.algbw;
        if !composed.is_near() {
            return self.algbw > theirs;
        }
        let part = Fraction::of(99, 100);
        let height = self.reduce.iter().chain([&self.forest]).map(Forest::height).max();
        self.algbw >= composed.ceiling.max(theirs) * part
            && (height.unwrap_or(0), self.forest.channels())
                < (composed.height(), composed.forest.channels())
    }
}

fn channels_of(naming: &mut Naming<'_>, composed: &Composed) -> Vec<Channel> {
    match &composed.reduce {
        Some(reduce) => channels::all_reduce_forest(naming, reduce, &composed.forest),
        None => channels::forest(naming, &composed.forest),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use topology::{PlanRequest, Topology};

    use super::*;
    use crate::check::sample;
    use crate::test_hosts::copies;

    /// Broadcast and reduce reach their bounds by trees for every one of `ranks` roots.
    #[track_caller]
    fn every_root_reaches_the_bound(topology: &Topology, ranks: usize) {
        let collectives = vec![Collective::Broadcast, Collective::Reduce];
        let request = PlanRequest { collectives, ..PlanRequest::default() };
        let plan = crate::plan(topology, &request).unwrap();
        for (collective, entry) in &plan.collectives {
            let best = entry.best.as_ref().unwrap();
            assert_eq!(best.algbw_gbps, entry.bound.as_ref().unwrap().algbw_gbps, "{collective}");
            let roots: BTreeSet<_> = plan.channels_of(*collective).map(|c| c.root).collect();
            assert_eq!((best.algorithm, roots.len()), (topology::Algorithm::Forest, ranks));
        }
        assert!(plan.findings.iter().all(|finding| finding.code != "planned-for-one-root"));
    }

    /// Four by four with every row and column closed: rings use three of a GPU's four links.
    #[test]
    fn roots_of_a_torus() {
        let links = (0..16).flat_map(|v| {
            let (row, column) = (v / 4, v % 4);
            [(v, row * 4 + (column + 1) % 4, 50), (v, (row + 1) % 4 * 4 + column, 50)]
        });
        every_root_reaches_the_bound(&sample::topology(16, 0, sample::both(links)), 16);
    }

    /// What goes towards a root on two hosts is the mirror of what comes from it: their layers for data out and data in change places.
    #[test]
    fn roots_of_two_hosts() {
        every_root_reaches_the_bound(&copies("mi300x", 2), 16);
    }

    /// A DGX-1V's NVLinks with its PCIe beside them: rings reach 98.77 % of the bound, trees more.
    #[test]
    fn rings_short_of_the_bound_give_way_to_trees() {
        let nvlinks = [
            [(0, 1, 25), (0, 2, 25), (0, 3, 50), (1, 2, 50)],
            [(1, 3, 25), (2, 3, 50), (4, 5, 25), (4, 6, 25)],
            [(4, 7, 50), (5, 6, 50), (5, 7, 25), (6, 7, 50)],
            [(0, 4, 50), (1, 5, 50), (2, 6, 25), (3, 7, 25)],
        ];
        // A PCIe switch for two GPUs each, 8 to 11, and sockets 12 and 13.
        let uplinks = (0..8).map(|gpu| (gpu, 8 + gpu / 2, 12));
        let sockets = [(8, 12, 12), (9, 12, 12), (10, 13, 12), (11, 13, 12), (12, 13, 10)];
        let links = nvlinks.into_iter().flatten().chain(uplinks).chain(sockets);
        let topology = sample::topology(8, 6, sample::both(links));
        let collectives = vec![Collective::AllReduce];
        let request = PlanRequest { collectives, ..PlanRequest::default() };
        let plan = crate::plan(&topology, &request).unwrap();
        let entry = &plan.collectives[&Collective::AllReduce];
        let [best, ring] = [&entry.best, &entry.ring].map(|found| found.as_ref().unwrap());
        let bound = entry.bound.as_ref().unwrap().algbw_gbps;
        assert_eq!(bound, Fraction::new(648, 7).unwrap());
        assert_eq!(ring.algbw_gbps / bound, Fraction::new(80, 81).unwrap());
        assert!(best.algbw_gbps >= bound * Fraction::of(99, 100), "{}", best.algbw_gbps);
    }
}
