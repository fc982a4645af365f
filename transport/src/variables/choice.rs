//! Which algorithms and protocols may be used: NCCL_ALGO's and NCCL_PROTO's grammar, and what it makes of a plan.
//!
//! ```text
//!   ring,tree;allreduce:^tree;broadcast:ring      a list for all functions, then lists for some; ^ takes away from all
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use topology::plan::{Pattern, SizeChoice};
use topology::{Algorithm, Collective, Plan, Protocol};

/// One list for all functions, and lists for some.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lists<T> {
    all: Option<BTreeSet<T>>,
    of: BTreeMap<Collective, BTreeSet<T>>,
    /// Lists that take away, by their function.
    without: BTreeSet<Option<Collective>>,
    /// As given.
    text: String,
}

/// The collectives for which there is a choice.
const CHOSEN: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { all: None, of: BTreeMap::new(), without: BTreeSet::new(), text: String::new() }
    }
}

impl<T: Copy + Ord> Lists<T> {
    fn read(text: &str, known: &[(&str, &[T])]) -> Result<Self, String> {
        let mut lists = Self { text: text.to_owned(), ..Self::default() };
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (function, list) = match part.split_once(':') {
                Some((function, list)) => (Some(self::function(function.trim())?), list),
                None => (None, part),
            };
            let set = Self::list(list.trim(), known)?;
            if list.trim().starts_with('^') {
                lists.without.insert(function);
            }
            let before = match function {
                Some(function) => lists.of.insert(function, set),
                None => lists.all.replace(set),
            };
            if before.is_some() {
                return Err(format!("'{part}' is a second list for the same"));
            }
        }
        if lists.all.is_none() && lists.of.is_empty() {
            return Err("it names nothing".to_owned());
        }
        Ok(lists)
    }

    fn list(text: &str, known: &[(&str, &[T])]) -> Result<BTreeSet<T>, String> {
        let (without, names) = match text.strip_prefix('^') {
            Some(names) => (true, names),
            None => (false, text),
        };
        let mut named = BTreeSet::new();
        for name in names.split(',').map(str::trim) {
            let found = known.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            let Some((_, members)) = found else {
                let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
                return Err(format!("'{name}' is none of {}", known.join(", ")));
            };
            named.extend(members.iter().copied());
        }
        if !without {
            return Ok(named);
        }
        let all: BTreeSet<T> =
            known.iter().flat_map(|(_, members)| members.iter().copied()).collect();
        Ok(all.difference(&named).copied().collect())
    }

    /// As in NCCL, a list is for collectives along rings and trees: the others are exchanges between pairs in any case.
    fn of(&self, collective: Collective) -> Option<&BTreeSet<T>> {
        if !CHOSEN.contains(&collective) {
            return None;
        }
        self.of.get(&collective).or(self.all.as_ref())
    }

    /// The same where it was named, not left over when others were taken away.
    fn named(&self, collective: Collective) -> Option<&BTreeSet<T>> {
        let function = self.of.contains_key(&collective).then_some(collective);
        self.of(collective).filter(|_| !self.without.contains(&function))
    }
}

/// NCCL's names of functions, and our own.
fn function(name: &str) -> Result<Collective, String> {
    let bare: String = name.chars().filter(|c| *c != '-').collect::<String>().to_lowercase();
    let found = Collective::ALL.iter().find(|c| c.as_str().replace('-', "") == bare);
    found.copied().ok_or_else(|| {
        let known: Vec<_> = Collective::ALL.iter().map(|c| c.as_str().replace('-', "")).collect();
        format!("'{name}' is no function; there are {}", known.join(", "))
    })
}

/// NCCL's names (src/graph/tuning.cc, ncclAlgoStr) and the planner's. Trees are trees, whether two or many.
const ALGORITHMS: [(&str, &[Algorithm]); 15] = [
    ("Tree", &[Algorithm::Tree, Algorithm::Forest]),
    ("Ring", &[Algorithm::Ring]),
    ("CollNetDirect", &[Algorithm::CollNet]),
    ("CollNetChain", &[Algorithm::CollNet]),
    ("NVLS", &[Algorithm::Nvls]),
    ("NVLSTree", &[Algorithm::Nvls]),
    ("PAT", &[Algorithm::Pat]),
    ("Forest", &[Algorithm::Forest]),
    ("Direct", &[Algorithm::Direct]),
    ("Hierarchical", &[Algorithm::Hierarchical]),
    ("one-shot", &[Algorithm::OneShot]),
    ("recursive-doubling", &[Algorithm::RecursiveDoubling]),
    ("halving-doubling", &[Algorithm::HalvingDoubling]),
    ("Bruck", &[Algorithm::Bruck]),
    ("CollNet", &[Algorithm::CollNet]),
];

/// NCCL's names (ncclProtoStr).
const PROTOCOLS: [(&str, &[Protocol]); 3] =
    [("LL", &[Protocol::Ll]), ("LL128", &[Protocol::Ll128]), ("Simple", &[Protocol::Simple])];

/// What may be used for which collective; everything where nothing was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    algorithms: Lists<Algorithm>,
    protocols: Lists<Protocol>,
}

/// A plan has no algorithm that is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("algorithms '{allowed}' are allowed for {collective}, and the plan has {has}")]
pub struct NoAlgorithm {
    /// For what.
    pub collective: Collective,
    /// As given.
    pub allowed: String,
    /// What there is.
    pub has: String,
}

impl Choice {
    /// Takes a list of algorithms in the place of what was allowed before.
    ///
    /// # Errors
    /// In words, where it is none.
    pub(crate) fn set_algorithms(&mut self, text: &str) -> Result<(), String> {
        self.algorithms = Lists::read(text, &ALGORITHMS)?;
        Ok(())
    }

    /// As [`Choice::set_algorithms`], of protocols.
    ///
    /// # Errors
    /// In words, where it is none.
    pub(crate) fn set_protocols(&mut self, text: &str) -> Result<(), String> {
        self.protocols = Lists::read(text, &PROTOCOLS)?;
        Ok(())
    }

    /// Whether an operation must keep to the plan's channels: the ways through memory the group shares are exchanges between all
    /// pairs, which is "direct".
    pub(crate) fn by_plan(&self, collective: Collective) -> bool {
        self.algorithms.of(collective).is_some_and(|set| !set.contains(&Algorithm::Direct))
    }

    /// Whether small messages may travel with their flag, which is what LL does on GPUs.
    pub(crate) fn flat(&self, collective: Collective) -> bool {
        self.protocols.of(collective).is_none_or(|set| set.contains(&Protocol::Ll))
    }

    /// Protocols that a list names for a collective. What is off where nothing is said is off, too, where others alone are taken away.
    #[must_use]
    pub fn named_protocols(&self, collective: Collective) -> Option<Vec<Protocol>> {
        Some(self.protocols.named(collective)?.iter().copied().collect())
    }

    /// The plan with what is allowed of its choices: a row of a forbidden algorithm goes to the best that is left. And the
    /// collectives for which nothing is left, among those that are wanted.
    pub(crate) fn narrow(
        &self,
        plan: &Plan,
        wanted: &[Collective],
    ) -> (Plan, BTreeMap<Collective, NoAlgorithm>) {
        let (mut plan, mut forbidden) = (plan.clone(), BTreeMap::new());
        for collective in wanted {
            let Some(allowed) = self.algorithms.of(*collective) else { continue };
            let has = algorithms(&plan, *collective);
            if has.is_empty() {
                // It has no channels for this; whoever calls it hears of that.
                continue;
            }
            let Some((algorithm, channels)) =
                has.iter().copied().find(|(a, _)| allowed.contains(a))
            else {
                let names: Vec<_> = has.iter().map(|(algorithm, _)| algorithm.as_str()).collect();
                let allowed = self.algorithms.text.clone();
                let none = NoAlgorithm { collective: *collective, allowed, has: names.join(", ") };
                forbidden.insert(*collective, none);
                continue;
            };
            let best = has[0].0;
            let Some(reached) = plan.collectives.get_mut(collective) else { continue };
            if reached.by_size.is_empty() && allowed.contains(&best) {
                continue;
            }
            let instead = |max_bytes| SizeChoice {
                max_bytes,
                algorithm,
                protocol: Protocol::Simple,
                channels,
                predicted_ps: None,
            };
            if reached.by_size.is_empty() {
                reached.by_size.push(instead(u64::MAX));
            }
            for row in reached.by_size.iter_mut().filter(|row| !allowed.contains(&row.algorithm)) {
                *row = instead(row.max_bytes);
            }
        }
        (plan, forbidden)
    }
}

/// What the plan can run a collective by, the best first, each with its number of channels.
fn algorithms(plan: &Plan, collective: Collective) -> Vec<(Algorithm, u32)> {
    let best = plan.collectives.get(&collective).and_then(|reached| reached.best.as_ref());
    let mut all: Vec<(Algorithm, u32)> = Vec::new();
    if let Some(best) = best {
        all.push((best.algorithm, best.channels));
    } else {
        // A plan that claims nothing: its channels' shape says it.
        let own = plan.channels.iter().filter(|channel| channel.collectives.contains(&collective));
        let by_pattern = own.filter_map(|channel| match channel.pattern {
            Pattern::Ring => Some(Algorithm::Ring),
            Pattern::Tree => Some(Algorithm::Tree),
            Pattern::Pairs => Some(Algorithm::Direct),
            // Which rounds they are is a claim.
            Pattern::Rounds => None,
        });
        for algorithm in by_pattern {
            match all.iter_mut().find(|(known, _)| *known == algorithm) {
                Some((_, count)) => *count += 1,
                None => all.push((algorithm, 1)),
            }
        }
    }
    let sets = plan.alternatives.iter().filter(|set| set.collectives.contains(&collective));
    for set in sets {
        if all.iter().all(|(known, _)| *known != set.algorithm) {
            all.push((set.algorithm, u32::try_from(set.channels.len()).unwrap_or(u32::MAX)));
        }
    }
    all
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = |text: &str| if text.is_empty() { "any".to_owned() } else { format!("'{text}'") };
        let (algorithms, protocols) = (any(&self.algorithms.text), any(&self.protocols.text));
        write!(f, "algorithms {algorithms}, protocols {protocols}")
    }
}

impl FromStr for Choice {
    type Err = String;

    /// A list of algorithms.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut choice = Self::default();
        choice.set_algorithms(text)?;
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use Algorithm::{
        Bruck, CollNet, Direct, Forest, HalvingDoubling, Hierarchical, Nvls, OneShot, Pat,
        RecursiveDoubling, Ring, Tree,
    };
    use Collective::{AllReduce, Broadcast, Reduce, SendRecv};
    use topology::plan::ChannelSet;

    use super::*;
    use crate::even::{ring_plan, tree_plan};

    #[track_caller]
    fn check(text: &str, collective: Collective, expected: &[Algorithm]) {
        let choice: Choice = text.parse().unwrap();
        let set = choice.algorithms.of(collective).unwrap();
        assert_eq!(set, &expected.iter().copied().collect(), "{text} for {collective}");
    }

    #[test]
    fn lists_are_nccls() {
        check("ring", AllReduce, &[Ring]);
        check("RING, Tree", AllReduce, &[Ring, Tree, Forest]);
        let rounds = [OneShot, RecursiveDoubling, HalvingDoubling, Bruck];
        let with = |others: &[Algorithm]| [others, &rounds].concat();
        check("^tree", AllReduce, &with(&[Ring, CollNet, Nvls, Pat, Direct, Hierarchical]));
        let expected = with(&[Tree, Forest, CollNet, Pat, Direct, Hierarchical]);
        check("^ring,nvls", Broadcast, &expected);
        let text = "ring,tree;allreduce:tree,collnetdirect;broadcast:ring";
        check(text, AllReduce, &[Tree, Forest, CollNet]);
        check(text, Broadcast, &[Ring]);
        check(text, Reduce, &[Ring, Tree, Forest]);
        let choice: Choice = text.parse().unwrap();
        assert!(choice.algorithms.of(SendRecv).is_none());
        check("all-reduce:NVLSTree", AllReduce, &[Nvls]);
        let only: Choice = "allreduce:ring".parse().unwrap();
        assert!(only.algorithms.of(Broadcast).is_none());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (text, why) in [
            ("", "it names nothing"),
            ("ring,,tree", "'' is none of Tree, Ring"),
            ("star", "'star' is none of"),
            ("allgossip:ring", "'allgossip' is no function; there are allreduce, allgather"),
            ("ring;tree", "'tree' is a second list"),
            ("allreduce:ring;allreduce:tree", "a second list"),
        ] {
            let error = text.parse::<Choice>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_plan_is_narrowed_to_what_is_allowed() {
        let mut plan = ring_plan(4, 2);
        plan.alternatives.push(ChannelSet {
            algorithm: Tree,
            collectives: vec![AllReduce],
            channels: tree_plan(4, 1, 2).channels,
        });
        let rows = |text: &str, collective| {
            let choice: Choice = text.parse().unwrap();
            let (narrowed, forbidden) = choice.narrow(&plan, &[collective]);
            if let Some(none) = forbidden.get(&collective) {
                return Err(none.to_string());
            }
            let rows = narrowed.collectives[&collective].by_size.iter().map(|row| row.algorithm);
            Ok(rows.collect::<Vec<_>>())
        };
        assert_eq!(rows("ring", AllReduce), Ok(vec![]), "it is the best anyway");
        assert_eq!(rows("tree", AllReduce), Ok(vec![Tree]));
        assert_eq!(rows("^ring", AllReduce), Ok(vec![Tree]));
        assert_eq!(rows("allreduce:tree", Broadcast), Ok(vec![]));
        assert_eq!(rows("tree", SendRecv), Ok(vec![]), "which needs no channels");
        let error = rows("tree", Broadcast).unwrap_err();
        assert_eq!(error, "algorithms 'tree' are allowed for broadcast, and the plan has ring");
    }

    #[test]
    fn which_ways_are_left() {
        let mut choice: Choice = "ring;broadcast:direct".parse().unwrap();
        assert!(choice.by_plan(AllReduce) && !choice.by_plan(Broadcast));
        assert!(!Choice::default().by_plan(AllReduce) && Choice::default().flat(AllReduce));
        for (text, flat) in [("LL", true), ("simple", false), ("^ll", false), ("LL128,LL", true)] {
            choice.set_protocols(text).unwrap();
            assert_eq!(choice.flat(AllReduce), flat, "{text}");
        }
        assert!(
            choice
                .set_protocols("fast")
                .unwrap_err()
                .contains("'fast' is none of LL, LL128, Simple")
        );
        assert_eq!(choice.to_string(), "algorithms 'ring;broadcast:direct', protocols 'LL128,LL'");
    }
}
