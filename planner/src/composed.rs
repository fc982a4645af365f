//! Forests for several hosts and large symmetric machines: trees from one root of each kind, renamed for all others.
//!
//! ```text
//!   Model ─ network ─▶ links with pools ─ symmetry ─▶ renamings ─ program ─▶ trees with rates ─ round ─ rename ─▶ Forest
//! ```
//!
//! Where hosts are equal the trees that come out are those one would draw: every shard along its rail to the other hosts and from there
//! over the switch of each, and a part of it along a second rail where NICs have room left. Where they differ, have NICs of unequal speed, or a GPU
//! with fewer links, the program finds what replaces them. Unlike trees packed after splitting switches off, these may draw on a PCIe link
//! for data going out and coming in as suits them, and for an all-reduce they weigh roots and overlap both ways by themselves.
//!
//! With the forest comes a bound that its prices prove; see [`program`].

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::OnceCell;

use topology::Fraction;

use crate::bound::{bottleneck, count};
use crate::flow_graph::FlowEdge;
use crate::forest::{Forest, Tree, TreeEdge};
use crate::network::Network;
use crate::symmetry::{Symmetry, mirror};
use crate::units::{float, to_units};
use program::{Aim, Column, Mixture, Path, Program, mirrored};

mod arborescence;
mod program;

/// A forest and what bounds it.
#[derive(Clone, Debug)]
pub struct Composed {
    /// In the nodes of the graph the network was made from.
    pub forest: Forest,
    /// The ways up, tree by tree, where data is reduced first.
    pub reduce: Option<Forest>,
    /// No forest moves more.
    pub ceiling: Fraction,
    /// No schedule moves more. For all-reduce that is the ceiling wherever every way has an equal way back.
    pub proof: Proof,
}

/// A bound with what proves it.
#[derive(Clone, Debug)]
pub struct Proof {
    /// Total data of the collective per second.
    pub algbw: Fraction,
    /// Edges of the network that every plan this fast fills; empty where a cut proves it.
    pub limits: Vec<FlowEdge>,
}

impl Composed {
    /// Whether it comes within a hundredth of the best forest.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.forest.algbw * Fraction::of(100, 1) >= self.ceiling * Fraction::of(99, 1)
    }
}

/// Composes forests on one network.
#[derive(Clone, Debug)]
pub struct Composer {
    network: Network,
    symmetry: Symmetry,
    /// Takes every way to one back.
    mirror: Option<Vec<usize>>,
    /// Trees for shards of equal size, which all-gather and reduce-scatter share where there is a mirror.
    shards: OnceCell<Option<Solution>>,
    /// The same for the network turned round, where there is no mirror.
    turned: OnceCell<Box<Self>>,
}

/// Trees with one root beyond which the smallest are dropped.
const MOST_TREES: usize = 32;
/// Common denominators of shares tried, where there is no exact one.
const DENOMINATORS: [u64; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512, 2048];
/// Largest exact denominator looked for.
const MAX_EXACT: u64 = 512;
/// Part of the rate that may be lost in rounding for fewer trees.
const ROUNDED: (u64, u64) = (997, 1000);

impl Composer {
    /// Looks for the network's symmetries.
    #[must_use]
    pub fn new(network: Network) -> Self {
        let symmetry = Symmetry::of(&network);
        let mirror = mirror(&network);
        Self::made(network, symmetry, mirror)
    }

    fn made(network: Network, symmetry: Symmetry, mirror: Option<Vec<usize>>) -> Self {
        let (shards, turned) = (OnceCell::new(), OnceCell::new());
        Self { network, symmetry, mirror, shards, turned }
    }

    /// What it composes on, and what is alike there.
    pub(crate) fn network(&self) -> (&Network, &Symmetry) {
        (&self.network, &self.symmetry)
    }

    /// How many ranks each tree serves.
    #[must_use]
    pub fn order(&self) -> usize {
        self.symmetry.order()
    }

    /// All-gather: trees from every rank, of equal weight for each.
    #[must_use]
    pub fn all_gather(&self) -> Option<Composed> {
        self.equal_shards().map(|solved| solved.spread())
    }

    /// Reduce-scatter: trees towards every rank.
    #[must_use]
    pub fn reduce_scatter(&self) -> Option<Composed> {
        if self.mirror.is_some() {
            return self.equal_shards()?.gathered();
        }
        self.turned().all_gather().map(Composed::reversed)
    }

    fn turned(&self) -> &Self {
        self.turned.get_or_init(|| {
            Box::new(Self::made(self.network.reversed(), self.symmetry.clone(), None))
        })
    }

    /// All-reduce: trees towards and from whichever roots serve best; `most` is a rate that is not exceeded.
    #[must_use]
    pub fn all_reduce(&self, most: Fraction) -> Option<Composed> {
        let most = most / Fraction::of(count(self.symmetry.order()), 1);
        let solution = self.solve(Aim::ReduceAndSpread, Some(most))?;
        let solved = Solved { composer: self, solution: &solution };
        let reduce = solved.forest(&|column| column.up.clone());
        Some(Composed { reduce: Some(reduce), ..solved.spread() })
    }

    /// What each root of weight 1 may spread as far as cuts tell.
    fn cut(&self, weights: &[u64]) -> Option<Fraction> {
        let ratio = bottleneck(&self.network.graph, weights).ok()?.ratio;
        Some(Fraction::ONE / ratio)
    }

    fn equal_shards(&self) -> Option<Solved<'_>> {
        let solution = self.shards.get_or_init(|| {
            let most = self.cut(&vec![1; self.network.graph.ranks]);
            self.solve(Aim::EqualShards, most)
        });
        Some(Solved { composer: self, solution: solution.as_ref()? })
    }

    fn solve(&self, aim: Aim, enough: Option<Fraction>) -> Option<Solution> {
        let symmetry = &self.symmetry;
        let program = Program::new(&self.network, symmetry, self.mirror.as_deref(), aim);
        let (program, mixture) = program.solve(enough.map(Fraction::to_f64))?;
        let rounded = Rounded::best(&program, &mixture)?;
        let served = match aim {
            Aim::EqualShards => self.network.graph.ranks,
            Aim::ReduceAndSpread => symmetry.order(),
        };
        let served = Fraction::of(count(served), 1);
        let cut = enough.map(|rate| (rate, Vec::new()));
        let (rate, limits) = cut.into_iter().chain(mixture.proof).min_by_key(|(rate, _)| *rate)?;
        let proof = Proof { algbw: rate * served, limits };
        let ceiling = enough.into_iter().chain(mixture.ceiling).min()? * served;
        Some(Solution { columns: mixture.columns, rounded, ceiling, proof })
    }
}

impl Composed {
    /// The longest chain of hops of its trees, either way.
    pub(crate) fn height(&self) -> usize {
        self.reduce.iter().chain([&self.forest]).map(Forest::height).max().unwrap_or(0)
    }

    /// The same backwards, for the network turned round.
    fn reversed(self) -> Self {
        let back = |e: &FlowEdge| FlowEdge { from: e.to, to: e.from, capacity: e.capacity };
        let limits = self.proof.limits.iter().map(back).collect();
        Self { forest: self.forest.reversed(), proof: Proof { limits, ..self.proof }, ..self }
    }
}

/// Trees from a root of each orbit.
#[derive(Clone, Debug)]
struct Solution {
    columns: Vec<Column>,
    rounded: Rounded,
    ceiling: Fraction,
    proof: Proof,
}

/// A solution with what makes the other trees of it.
struct Solved<'a> {
    composer: &'a Composer,
    solution: &'a Solution,
}

impl Solved<'_> {
    /// The trees as they are.
    fn spread(&self) -> Composed {
        let forest = self.forest(&|column| column.down.clone());
        let Solution { ceiling, proof, .. } = self.solution;
        Composed { forest, reduce: None, ceiling: *ceiling, proof: proof.clone() }
    }

    /// The trees in the mirror: towards their roots.
    fn gathered(&self) -> Option<Composed> {
        let mirror = self.composer.mirror.as_ref()?;
        let forest = self.forest(&|column| mirrored(&column.down, mirror));
        let back = |e: &FlowEdge| FlowEdge { from: mirror[e.to], to: mirror[e.from], ..*e };
        let limits = self.solution.proof.limits.iter().map(back).collect();
        let proof = Proof { algbw: self.solution.proof.algbw, limits };
        Some(Composed { forest, reduce: None, ceiling: self.solution.ceiling, proof })
    }

    /// The images of all trees.
    fn forest(&self, ways: &dyn Fn(&Column) -> Vec<Path>) -> Forest {
        let symmetry = &self.composer.symmetry;
        let mut trees = Vec::new();
        for (column, &weight) in self
            .solution
            .columns
            .iter()
            .zip(&self.solution.rounded.weights)
            .filter(|(_, w)| **w > 0)
        {
            let paths = ways(column);
            for renaming in &symmetry.elements {
                let edges = paths.iter().map(|path| {
                    let path: Path = path.iter().map(|&node| renaming[node]).collect();
                    let (from, to) = (path[0], path[path.len() - 1]);
                    TreeEdge { from, to, paths: self.composer.network.expand(&path) }
                });
                let root = renaming[symmetry.representatives[column.root]];
                trees.push(Tree { root, weight, edges: edges.collect() });
            }
        }
        trees.sort_by_key(|tree| tree.root);
        let total: u64 = trees.iter().map(|tree| tree.weight).sum();
        Forest {
            trees,
            unit: self.solution.rounded.unit,
            algbw: self.solution.rounded.unit * Fraction::of(total, 1),
        }
    }
}

/// Whole weights of columns.
#[derive(Clone, Debug)]
struct Rounded {
    weights: Vec<u64>,
    /// Rate of one unit of weight.
    unit: Fraction,
    /// All weights times it.
    rate: Fraction,
    trees: usize,
}

impl Rounded {
    /// The fewest trees that keep the rate, or the rate where an exact and simple mixture has it.
    fn best(program: &Program<'_>, mixture: &Mixture) -> Option<Self> {
        let shares = shares(program, mixture);
        let near = |d: &u64| {
            shares.iter().all(|&s| (s * float(*d) - float(to_units(s * float(*d)))).abs() < 1e-5)
        };
        let exact = (1..=MAX_EXACT).find(near);
        let made: Vec<Self> = exact
            .into_iter()
            .chain(DENOMINATORS)
            .filter_map(|d| Self::at(program, mixture, &shares, d))
            .collect();
        let most = made.iter().map(|r| r.rate).max()?;
        let mut made = made.into_iter();
        if exact.is_some()
            && let Some(first) = made.next()
        {
            if first.rate == most && first.trees <= 8 {
                return Some(first);
            }
            made = core::iter::once(first).chain(made).collect::<Vec<_>>().into_iter();
        }
        let enough = most * Fraction::of(ROUNDED.0, ROUNDED.1);
        made.filter(|r| r.rate >= enough).min_by_key(|r| r.trees)
    }

    fn at(
        program: &Program<'_>,
        mixture: &Mixture,
        shares: &[f64],
        denominator: u64,
    ) -> Option<Self> {
        let mut weights: Vec<u64> =
            shares.iter().map(|s| to_units(s * float(denominator))).collect();
        if program.aim.is_even() {
            for root in 0..program.roots().len() {
                level(&mut weights, shares, &mixture.columns, root, denominator)?;
            }
        }
        let trees = (0..program.roots().len())
            .map(|root| {
                let of_root = mixture.columns.iter().zip(&weights);
                of_root.filter(|(c, w)| c.root == root && **w > 0).count()
            })
            .max()?;
        let total: u64 = weights.iter().sum();
        if total == 0 {
            return None;
        }
        let loads = program.loads(&mixture.columns, &weights);
        let units = loads.iter().filter(|l| l.1 > 0).map(|&(capacity, load)| {
            Fraction::new(i128::from(capacity), i128::try_from(load).ok()?)
        });
        let unit = units.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        Some(Self { weights, unit, rate: unit * Fraction::of(total, 1), trees })
    }
}

/// By column, its part of what its root spreads (for equal shards) or of everything; the smallest beyond [`MOST_TREES`] left out.
fn shares(program: &Program<'_>, mixture: &Mixture) -> Vec<f64> {
    let mut rates: Vec<f64> =
        mixture.rates.iter().map(|&x| if x > 1e-9 { x } else { 0.0 }).collect();
    let by_root = |root: usize| -> Vec<usize> {
        let mut of_root: Vec<usize> = (0..rates.len())
            .filter(|&j| mixture.columns[j].root == root && rates[j] > 0.0)
            .collect();
        of_root.sort_by(|&a, &b| rates[b].total_cmp(&rates[a]).then(a.cmp(&b)));
        of_root
    };
    let dropped: Vec<usize> = (0..program.roots().len())
        .flat_map(|root| by_root(root).into_iter().skip(MOST_TREES))
        .collect();
    dropped.into_iter().for_each(|j| rates[j] = 0.0);
    let sum = |root: Option<usize>| -> f64 {
        let chosen =
            (0..rates.len()).filter(|&j| root.is_none_or(|r| mixture.columns[j].root == r));
        chosen.map(|j| rates[j]).sum()
    };
    let equal = program.aim.is_even();
    let sums: Vec<f64> =
        (0..program.roots().len()).map(|root| sum(equal.then_some(root))).collect();
    rates.iter().enumerate().map(|(j, x)| x / sums[mixture.columns[j].root]).collect()
}

/// Makes the weights of a root's columns add up to `total`, changing those that rounding moved most the other way.
fn level(
    weights: &mut [u64],
    shares: &[f64],
    columns: &[Column],
    root: usize,
    total: u64,
) -> Option<()> {
    let of_root: Vec<usize> =
        (0..weights.len()).filter(|&j| columns[j].root == root && shares[j] > 0.0).collect();
    loop {
        let sum: u64 = of_root.iter().map(|&j| weights[j]).sum();
        let excess = |j: usize| float(weights[j]) - shares[j] * float(total);
        let by_excess = |a: &&usize, b: &&usize| excess(**a).total_cmp(&excess(**b)).then(b.cmp(a));
        match sum.cmp(&total) {
            core::cmp::Ordering::Equal => return Some(()),
            core::cmp::Ordering::Less => {
                let least = *of_root.iter().min_by(by_excess)?;
                weights[least] += 1;
            }
            core::cmp::Ordering::Greater => {
                let most = *of_root.iter().filter(|&&j| weights[j] > 0).max_by(by_excess)?;
                weights[most] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound;
    use crate::flow_graph::FlowGraph;
    use crate::forest::tests::certify;
    use crate::test_graphs::{connected_graph, dgx1v, duplex, rails, relabelled, star};
    use proptest::prelude::*;

    /// Reaches `percent` of the bound with trees no higher than `height`.
    #[track_caller]
    fn check(g: &FlowGraph, percent: u64, height: usize) {
        let composer = Composer::new(Network::plain(g));
        let found = composer.all_gather().unwrap();
        certify(g, &found.forest, false);
        let bound = bound::all_gather(g).unwrap().algbw;
        assert!(found.forest.algbw <= bound && found.ceiling >= found.forest.algbw);
        assert!(
            found.forest.algbw >= bound * Fraction::of(percent, 100),
            "{} of {bound}",
            found.forest.algbw
        );
        assert!(found.forest.height() <= height, "{}", found.forest.height());
        let most = bound::all_reduce(g).unwrap().algbw;
        let found = composer.all_reduce(most).unwrap();
        certify_reduction(g, &found, most);
        // What trees reach is proved the best by any schedule where ways have equal ways back.
        assert!(composer.mirror.is_none() || found.proof.algbw == found.ceiling);
        assert!(
            found.forest.algbw >= most * Fraction::of(percent, 100),
            "{} of {most}",
            found.forest.algbw
        );
    }

    fn certify_reduction(g: &FlowGraph, found: &Composed, most: Fraction) {
        let reduce = found.reduce.as_ref().unwrap();
        certify(g, &found.forest, false);
        certify(g, reduce, true);
        assert!(found.forest.algbw <= found.ceiling && found.ceiling <= most);
        assert!(found.proof.algbw <= most && found.ceiling <= found.proof.algbw);
        let mut loads = found.forest.loads();
        for (edge, load) in reduce.loads() {
            let sum = loads.entry(edge).or_insert(Fraction::ZERO);
            *sum = *sum + load;
        }
        for e in &g.edges {
            let load = loads.get(&(e.from, e.to)).copied().unwrap_or(Fraction::ZERO);
            assert!(load <= Fraction::of(e.capacity, 1), "{e:?}: {load}");
        }
    }

    #[test]
    fn known_machines() {
        check(&star(8, 12), 100, 1);
        check(&star(72, 900), 100, 1);
        check(&dgx1v(), 99, 6);
        check(&rails(2, 8, 240, 24), 100, 2);
        check(&rails(4, 8, 240, 24), 100, 3);
        check(&rails(3, 4, 300, 25), 99, 3);
    }

    #[test]
    fn a_gpu_with_half_its_links_owns_less() {
        let mut links: Vec<(usize, usize, u64)> = (0..16).map(|v| (v, 16 + v / 8, 240)).collect();
        links.extend((0..16).map(|v| (v, 18 + v % 8, 24)));
        links[3].2 = 120;
        links[11].2 = 120;
        check(&duplex(16, 26, &links), 99, 4);
    }

    #[test]
    fn unequal_nics_carry_in_proportion() {
        let mut links: Vec<(usize, usize, u64)> = (0..16).map(|v| (v, 16 + v / 8, 240)).collect();
        links.extend((0..16).map(|v| (v, 18 + v % 8, if v % 8 == 2 { 12 } else { 24 })));
        check(&duplex(16, 26, &links), 99, 4);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Two or three hosts of anything with a NIC at every rank.
        #[test]
        fn equal_hosts_reach_the_bound(
            g in connected_graph(4, 2),
            hosts in 2_usize..4,
            nics in proptest::collection::vec(1_u64..9, 4),
            seed in 0_u64..1000,
        ) {
            let (ranks, inner) = (g.ranks, g.nodes - g.ranks);
            let hub = hosts * g.nodes;
            let mut edges = Vec::new();
            for host in 0..hosts {
                let at = |v: usize| {
                    if v < ranks { host * ranks + v } else { hosts * ranks + host * inner + v - ranks }
                };
                edges.extend(g.edges.iter().map(|e| (at(e.from), at(e.to), e.capacity)));
                edges.extend((0..ranks).flat_map(|v| [(at(v), hub, nics[v]), (hub, at(v), nics[v])]));
            }
            let whole = crate::test_graphs::graph(hosts * ranks, hub + 1, &edges);
            let (whole, _) = relabelled(&whole, seed);
            let composer = Composer::new(Network::plain(&whole));
            let found = composer.all_gather().unwrap();
            certify(&whole, &found.forest, false);
            let bound = bound::all_gather(&whole).unwrap().algbw;
            prop_assert!(found.forest.algbw <= bound);
            prop_assert!(found.forest.algbw >= bound * Fraction::of(98, 100), "{} of {}", found.forest.algbw, bound);
            let most = bound::all_reduce(&whole).unwrap().algbw;
            let found = composer.all_reduce(most).unwrap();
            certify_reduction(&whole, &found, most);
            prop_assert!(!whole.is_symmetric() || found.proof.algbw == found.ceiling);
            let most = bound::all_reduce(&whole).unwrap().algbw;
            certify_reduction(&whole, &composer.all_reduce(most).unwrap(), most);
        }
    }
}
