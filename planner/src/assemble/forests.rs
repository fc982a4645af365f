//! Forests for the plan: composed by symmetry where that reaches the bound, searched for where it does not.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::{Channel, Collective, Fraction};

use super::bounds::{self, Prover};
use super::channels::{self, Ground};
use crate::composed::Composed;
use crate::forest::{Forest, ForestError, ForestOptions, Forests};
use crate::model::Model;
use crate::network::Network;
use crate::symmetry::Symmetry;
use crate::weighted;

/// Budget of flows for trees where rings are the best already.
const STEPS_BESIDE_RINGS: u64 = 100;

/// Channels of forests, one collective after the other.
pub(super) struct ForestChannels<'a> {
    model: &'a Model,
    pub(super) prover: Prover<'a>,
    searched: Forests<'a>,
    /// Which roots are alike on the graph that is searched.
    kinds: Option<Symmetry>,
    /// What was composed but is not near the best.
    short: BTreeMap<Collective, Composed>,
}

impl<'a> ForestChannels<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        let prover = Prover::new(model);
        let searched = Forests::new(&model.graph, ForestOptions::default());
        Self { model, prover, searched, kinds: None, short: BTreeMap::new() }
    }

    /// Channels for a collective; `None` where rings suffice and no trees were found beside them in short. `rings_suffice` is asked only
    /// where there is a search to be cut short.
    pub(super) fn channels(
        &mut self,
        collective: Collective,
        rings_suffice: impl Fn(&Prover<'_>) -> bool,
    ) -> Result<Option<Vec<Channel>>, ForestError> {
        if let Some(channels) = self.composed(collective) {
            return Ok(Some(channels));
        }
        // Where rings reach the bound, trees are for latency only, and worth less of a search.
        let thorough = !rings_suffice(&self.prover);
        let options = ForestOptions::default();
        let steps = if thorough { options.steps } else { STEPS_BESIDE_RINGS };
        self.searched.set_options(ForestOptions { steps, thorough, ..options });
        let found = match collective {
            Collective::AllReduce => self.all_reduce(),
            Collective::Broadcast | Collective::Reduce => self.rooted(collective),
            _ => self.shards(collective),
        };
        match found {
            Err(_) if !thorough => Ok(None),
            found => found.map(Some),
        }
    }

    /// Composes, and keeps what was found for comparison where it is not near the best forest.
    fn composed(&mut self, collective: Collective) -> Option<Vec<Channel>> {
        let composed = self.prover.composed(collective)?;
        if composed.is_near() {
            return Some(channels_of(self.model, &composed));
        }
        self.short.insert(collective, composed);
        None
    }

    /// The better of what was composed and what was found.
    fn better(
        &self,
        collective: Collective,
        found: Result<(Fraction, Vec<Channel>), ForestError>,
    ) -> Result<Vec<Channel>, ForestError> {
        match (found, self.short.get(&collective)) {
            (Ok((algbw, channels)), Some(short)) if short.forest.algbw < algbw => Ok(channels),
            (_, Some(short)) => Ok(channels_of(self.model, short)),
            (found, None) => found.map(|(_, channels)| channels),
        }
    }

    fn shards(&mut self, collective: Collective) -> Result<Vec<Channel>, ForestError> {
        let equal = vec![1; self.model.ranks()];
        let found = if collective == Collective::AllGather {
            self.searched.spread(&equal, Fraction::ZERO)
        } else {
            self.searched.collect(&equal, Fraction::ZERO)
        };
        let channels = |f: Forest| (f.algbw, channels::forest(self.model, Ground::Usable, &f));
        self.better(collective, found.map(channels))
    }

    fn all_reduce(&mut self) -> Result<Vec<Channel>, ForestError> {
        let found = weighted::all_reduce_from(&mut self.searched).map(|f| {
            let ground = Ground::Usable;
            (f.algbw, channels::all_reduce_forest(self.model, ground, &f.reduce, &f.spread))
        });
        self.better(Collective::AllReduce, found)
    }

    /// Searches for one root of each kind; the others' trees are its renamed.
    fn rooted(&mut self, collective: Collective) -> Result<Vec<Channel>, ForestError> {
        let model = self.model;
        let graph = &model.graph;
        let symmetry = self.kinds.get_or_insert_with(|| Symmetry::of(&Network::unfolded(graph)));
        let mut found: Vec<Option<Forest>> = vec![None; symmetry.representatives.len()];
        let mut all = Vec::new();
        for root in bounds::roots(model) {
            let (kind, renaming) = symmetry.from[root];
            let forest = match &mut found[kind] {
                Some(known) => known,
                unknown => {
                    let first = symmetry.representatives[kind];
                    let weights: Vec<u64> =
                        (0..graph.ranks).map(|v| u64::from(v == first)).collect();
                    unknown.insert(if collective == Collective::Reduce {
                        self.searched.collect(&weights, Fraction::ZERO)?
                    } else {
                        self.searched.spread(&weights, Fraction::ZERO)?
                    })
                }
            };
            let renamed = symmetry.renamed(forest, renaming);
            all.extend(channels::forest(model, Ground::Usable, &renamed));
        }
        Ok(all)
    }
}

fn channels_of(model: &Model, composed: &Composed) -> Vec<Channel> {
    match &composed.reduce {
        Some(reduce) => channels::all_reduce_forest(model, Ground::Bound, reduce, &composed.forest),
        None => channels::forest(model, Ground::Bound, &composed.forest),
    }
}
