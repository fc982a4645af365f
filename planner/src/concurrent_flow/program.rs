//! The linear program: which trees of ways, at which rates, let every pair exchange most.
//!
//! ```text
//!   rows       a pool for each orbit of pools: what crosses it ≤ what it has
//!              a source for each orbit of ranks: the rate of a pair ≤ what its trees carry together
//!   columns    the rate; a tree of ways from one source to all other ranks, standing for its images from all like it
//!   prices     lengths of links; the trees of shortest ways at these lengths are the next columns
//! ```

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use topology::Fraction;

use crate::bound::count;
use crate::network::Network;
use crate::routes::Adjacency;
use crate::simplex::{LinearProgram, Relation};
use crate::symmetry::Symmetry;
use crate::units::{float, to_units};

/// A tree of ways from one source.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// Place among the program's sources.
    pub(super) source: usize,
    /// By node, the edge its way arrives on.
    arrival: Vec<usize>,
    /// By orbit, how often all images of one part for every pair cross one of its pools.
    pub(super) usage: Vec<(usize, u64)>,
}

/// What the program found.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    /// By orbit of pools.
    pub(super) lengths: Vec<f64>,
    /// By column, in no particular unit.
    pub(super) rates: Vec<f64>,
    /// The rate per pair they have.
    pub(super) reached: f64,
}

/// Pools that are alike.
#[derive(Clone, Copy, Debug)]
struct Orbit {
    pools: u64,
    capacity: u64,
    /// Images of one use that fall on one pool.
    times: u64,
}

pub(super) struct Program<'a> {
    pub(super) network: &'a Network,
    pub(super) symmetry: &'a Symmetry,
    /// By pool.
    pub(super) orbit_of: Vec<usize>,
    orbits: Vec<Orbit>,
    pub(super) columns: Vec<Column>,
    adjacency: Adjacency,
    /// Whether ways may pass through ranks.
    relays: bool,
    search: Search,
}

/// Buffers of a search for shortest ways.
#[derive(Clone, Debug)]
struct Search {
    distance: Vec<(u64, u32)>,
    arrival: Vec<usize>,
    order: Vec<usize>,
    queue: BinaryHeap<Reverse<(u64, u32, usize)>>,
    below: Vec<u64>,
}

/// Largest number of rows (orbits of pools and of ranks) for which the linear program is solved.
const MAX_ROWS: usize = 260;
/// Rounds of column generation.
const MAX_ROUNDS: usize = 160;
/// Rounds of length updates where the program is too large.
const GUESSES: usize = 60;
/// Pivots over all rounds.
const MAX_PIVOTS: u64 = 20_000;
/// Largest integer length that ways are looked for with.
const LENGTH_GRID: f64 = (1_u64 << 40) as f64;
/// Gap between the program and its bound at which it ends.
const EXACT: f64 = 1.0 - 1e-10;

impl<'a> Program<'a> {
    pub(super) fn new(network: &'a Network, symmetry: &'a Symmetry) -> Self {
        let (orbit_of, sizes) = symmetry.pool_orbits(network);
        let orbit = |&pools: &usize| {
            let times = count(symmetry.order() / pools);
            Orbit { pools: count(pools), capacity: 0, times }
        };
        let mut orbits: Vec<Orbit> = sizes.iter().map(orbit).collect();
        for (pool, &orbit) in orbit_of.iter().enumerate() {
            orbits[orbit].capacity = network.capacity[pool];
        }
        let nodes = network.graph.nodes;
        let search = Search {
            distance: vec![(u64::MAX, 0); nodes],
            arrival: vec![usize::MAX; nodes],
            order: Vec::with_capacity(nodes),
            queue: BinaryHeap::new(),
            below: vec![0; nodes],
        };
        let adjacency = Adjacency::new(&network.graph);
        let columns = Vec::new();
        Self { network, symmetry, orbit_of, orbits, columns, adjacency, relays: true, search }
    }

    /// One rank of each orbit.
    pub(super) fn sources(&self) -> &'a [usize] {
        &self.symmetry.representatives
    }

    /// Capacity of each orbit's pools, and how often these whole numbers of columns cross them.
    pub(super) fn loads(&self, weights: &[u64]) -> Vec<(u64, u128)> {
        let mut loads: Vec<(u64, u128)> = self.orbits.iter().map(|o| (o.capacity, 0)).collect();
        for (column, &weight) in self.columns.iter().zip(weights) {
            for &(orbit, times) in &column.usage {
                loads[orbit].1 += u128::from(times) * u128::from(weight);
            }
        }
        loads
    }

    /// The nodes on the way of a column to `to`, both ends among them.
    pub(super) fn way(&self, column: &Column, to: usize) -> Vec<usize> {
        let mut nodes = vec![to];
        let source = self.sources()[column.source];
        let mut at = to;
        while at != source {
            at = self.network.graph.edges[column.arrival[at]].from;
            nodes.push(at);
        }
        nodes.reverse();
        nodes
    }

    /// The rate per pair that these lengths by orbit prove; `None` where they prove none.
    pub(super) fn certified(&mut self, lengths: &[u64]) -> Option<Fraction> {
        let offered = self.orbits.iter().zip(lengths).try_fold(0_i128, |sum, (o, &l)| {
            sum.checked_add(
                (i128::from(o.pools) * i128::from(l)).checked_mul(i128::from(o.capacity))?,
            )
        })?;
        let mut needed = 0_i128;
        for &source in self.sources() {
            self.shortest(source, lengths);
            let distances = &self.search.distance[..self.network.graph.ranks];
            needed += distances.iter().map(|&(d, _)| i128::from(d)).sum::<i128>();
        }
        Fraction::new(offered, needed.checked_mul(i128::from(count(self.symmetry.order())))?)
    }

    /// Shortest ways from `source` to all nodes, fewest hops among equals.
    fn shortest(&mut self, source: usize, lengths: &[u64]) {
        let edges = &self.network.graph.edges;
        let Search { distance, arrival, order, queue, .. } = &mut self.search;
        distance.fill((u64::MAX, 0));
        order.clear();
        distance[source] = (0, 0);
        queue.push(Reverse((0, 0, source)));
        while let Some(Reverse((length, hops, node))) = queue.pop() {
            if distance[node] != (length, hops) {
                continue;
            }
            order.push(node);
            if !self.relays && node < self.network.graph.ranks && node != source {
                continue;
            }
            for i in self.adjacency.leaving(node) {
                let to = edges[i].to;
                let longer = length + lengths[self.orbit_of[self.network.pool_of[i]]];
                if (longer, hops + 1) < distance[to] {
                    distance[to] = (longer, hops + 1);
                    arrival[to] = i;
                    queue.push(Reverse((longer, hops + 1, to)));
                }
            }
        }
    }

    /// The tree of shortest ways from a source, and the sum of their lengths.
    fn column(&mut self, place: usize, lengths: &[u64]) -> (Column, u64) {
        let source = self.sources()[place];
        self.shortest(source, lengths);
        let graph = &self.network.graph;
        let mut crossed = vec![0_u64; self.orbits.len()];
        let mut total = 0;
        let Search { distance, arrival, order, below, .. } = &mut self.search;
        below.fill(0);
        for &node in order.iter().skip(1).rev() {
            if node < graph.ranks {
                below[node] += 1;
                total += distance[node].0;
            }
            let i = arrival[node];
            crossed[self.orbit_of[self.network.pool_of[i]]] += below[node];
            below[graph.edges[i].from] += below[node];
        }
        let usage = crossed
            .into_iter()
            .zip(&self.orbits)
            .enumerate()
            .filter(|(_, (crossed, _))| *crossed > 0)
            .map(|(orbit, (crossed, o))| (orbit, crossed * o.times))
            .collect();
        (Column { source: place, arrival: arrival.clone(), usage }, total)
    }

    /// The best mixture within the budget.
    pub(super) fn solve(&mut self) -> Mixture {
        if self.orbits.len() + self.sources().len() <= MAX_ROWS {
            self.optimise()
        } else {
            self.guess()
        }
    }

    fn optimise(&mut self) -> Mixture {
        let (rows, sources) = (self.orbits.len(), self.sources().len());
        // Capacities of about 1, and the rate per pair too.
        let scale = self.orbits.iter().map(|o| float(o.capacity)).fold(0.0, f64::max);
        let pools = self.orbits.iter().map(|o| (Relation::Le, float(o.capacity) / scale));
        let mut lp = LinearProgram::new(pools.chain((0..sources).map(|_| (Relation::Le, 0.0))));
        // The rate per pair, which no source's trees together may fall short of.
        lp.add_column(1.0, (0..sources).map(|s| (rows + s, 1.0)));
        let mut lengths: Vec<f64> =
            self.orbits.iter().map(|o| scale / float(o.capacity) / float(o.pools)).collect();
        let mut prices = vec![f64::INFINITY; sources];
        let mut best = (lengths.clone(), f64::INFINITY);
        let mut found = Mixture { lengths: Vec::new(), rates: Vec::new(), reached: 0.0 };
        let mut pivots = MAX_PIVOTS;
        // Fewer can run ways through ranks, so these are tried only where all others are used.
        self.relays = !self.goes_straight();
        for _ in 0..MAX_ROUNDS {
            let whole = whole_lengths(&lengths);
            let offered: f64 = self
                .orbits
                .iter()
                .zip(&lengths)
                .map(|(o, l)| float(o.pools) * float(o.capacity) / scale * l)
                .sum();
            let mut needed = 0.0;
            let mut improved = false;
            for (place, &price) in prices.iter().enumerate() {
                let (column, _) = self.column(place, &whole);
                let cost: f64 = column
                    .usage
                    .iter()
                    .map(|&(o, n)| lengths[o] * float(n) / float(self.orbits[o].times))
                    .sum();
                needed += cost * float(count(self.symmetry.order()));
                if cost < price - 1e-10 {
                    improved = true;
                    let used = column.usage.iter().map(|&(orbit, n)| (orbit, float(n)));
                    lp.add_column(0.0, used.chain([(rows + place, -1.0)]));
                    self.columns.push(column);
                }
            }
            if needed > 0.0 && offered / needed < best.1 {
                best = (lengths.clone(), offered / needed);
            }
            if !improved || found.reached >= best.1 * EXACT {
                if self.relays {
                    break;
                }
                // What bounded ways past ranks bounds no others.
                self.relays = true;
                best.1 = f64::INFINITY;
                lengths.clone_from(&best.0);
                continue;
            }
            let Ok(optimum) = lp.maximise(pivots) else { break };
            pivots -= optimum.pivots;
            found.reached = optimum.objective;
            found.rates = optimum.primal[1..].to_vec();
            // What the program says of all uses of an orbit's pool, said of one.
            let positive = |(y, o): (&f64, &Orbit)| if *y > 0.0 { y * float(o.times) } else { 0.0 };
            lengths = optimum.dual[..rows].iter().zip(&self.orbits).map(positive).collect();
            prices = optimum.dual[rows..].to_vec();
        }
        self.relays = true;
        found.rates.resize(self.columns.len(), 0.0);
        Mixture { lengths: best.0, reached: found.reached * scale, ..found }
    }

    /// Whether every rank reaches every other past ranks.
    fn goes_straight(&mut self) -> bool {
        self.relays = false;
        let equal = vec![1; self.orbits.len()];
        let ranks = self.network.graph.ranks;
        self.sources().iter().all(|&source| {
            self.shortest(source, &equal);
            self.search.distance[..ranks].iter().all(|&(length, _)| length < u64::MAX)
        })
    }

    /// Lengths for networks beyond the program: links that shortest ways overload become longer. All ways found on the way
    /// there are used alike.
    fn guess(&mut self) -> Mixture {
        let mut lengths: Vec<f64> =
            self.orbits.iter().map(|o| 1.0 / float(o.capacity) / float(o.pools)).collect();
        let mut best = (lengths.clone(), f64::INFINITY);
        let mut used = vec![0.0; lengths.len()];
        for _ in 0..GUESSES {
            used.fill(0.0);
            let whole = whole_lengths(&lengths);
            let mut needed = 0.0;
            for place in 0..self.sources().len() {
                let (column, _) = self.column(place, &whole);
                for &(orbit, n) in &column.usage {
                    used[orbit] += float(n) / float(self.orbits[orbit].capacity);
                    let once = float(n) / float(self.orbits[orbit].times);
                    needed += lengths[orbit] * once * float(count(self.symmetry.order()));
                }
                self.columns.push(column);
            }
            let offered: f64 = self
                .orbits
                .iter()
                .zip(&lengths)
                .map(|(o, l)| float(o.pools) * float(o.capacity) * l)
                .sum();
            if offered / needed < best.1 {
                best = (lengths.clone(), offered / needed);
            }
            let worst = used.iter().copied().fold(0.0, f64::max);
            for (length, used) in lengths.iter_mut().zip(&used) {
                *length *= 1.0 + used / worst;
            }
            let sum: f64 = lengths.iter().sum();
            lengths.iter_mut().for_each(|l| *l /= sum);
        }
        Mixture { lengths: best.0, rates: vec![1.0; self.columns.len()], reached: 0.0 }
    }
}

fn whole_lengths(lengths: &[f64]) -> Vec<u64> {
    let largest = lengths.iter().copied().fold(0.0, f64::max);
    lengths.iter().map(|l| to_units(l / largest * LENGTH_GRID)).collect()
}
