//! Cheapest orders of a ring: Hamiltonian cycles by subset dynamic programming.
//!
//! ```text
//!   up to 10 ranks, 16 where few are joined directly      exact over all orders    O(2^n n^2)
//!   several hosts                                         exact over orders that visit each host once:
//!       cheapest way through a host for every (entry, exit), then the cheapest chain of those
//!   all behind one switch                                 any order
//!   otherwise                                             nearest neighbour, improved by moving runs of ranks
//! ```

use alloc::vec;
use alloc::vec::Vec;

use crate::routes::{Routes, UNREACHABLE};

/// Up to here all orders are considered, whatever the hosts.
const EXACT_RANKS: usize = 10;
/// Up to here all orders are considered where few ranks are joined directly,
const SPARSE_RANKS: usize = 16;
/// that is, where the table has no more transitions than this.
const SPARSE_STEPS: u64 = 6_000_000;
/// Up to here the ways through one host are exact.
const EXACT_PER_HOST: usize = 12;

/// Cost from rank to rank, square.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CostMatrix {
    n: usize,
    cost: Vec<u64>,
}

impl CostMatrix {
    pub(crate) fn of(routes: &Routes, ranks: &[usize]) -> Self {
        let n = ranks.len();
        let mut cost = Vec::with_capacity(n * n);
        for &from in ranks {
            for &to in ranks {
                cost.push(if from == to { UNREACHABLE } else { routes.cost(from, to) });
            }
        }
        Self { n, cost }
    }

    /// How many pairs are joined.
    fn finite(&self) -> usize {
        self.cost.iter().filter(|cost| **cost != UNREACHABLE).count()
    }

    fn at(&self, from: usize, to: usize) -> u64 {
        self.cost[from * self.n + to]
    }

    /// What `order` costs as a cycle.
    fn cycle(&self, order: &[usize]) -> u64 {
        let mut sum = 0;
        for (i, &from) in order.iter().enumerate() {
            sum = plus(sum, self.at(from, order[(i + 1) % order.len()]));
        }
        sum
    }
}

/// A sum in which unreachable stays unreachable.
fn plus(a: u64, b: u64) -> u64 {
    if a == UNREACHABLE || b == UNREACHABLE {
        UNREACHABLE
    } else {
        a.saturating_add(b).min(UNREACHABLE - 1)
    }
}

/// Cheap cycles over all ranks, each from rank 0, the cheapest first; empty where none was found. `hosts` gives the host of each
/// rank, hosts being contiguous. The others come at no extra cost, and a linear program can use them.
pub(crate) fn cheapest_cycles(
    routes: &Routes,
    hosts: &[usize],
    steps: &mut u64,
    budget: u64,
) -> Vec<Vec<usize>> {
    let n = hosts.len();
    if n < 2 {
        return Vec::new();
    }
    let all: Vec<usize> = (0..n).collect();
    let matrix = CostMatrix::of(routes, &all);
    let groups = groups_of(hosts);
    let sparse = n <= SPARSE_RANKS && (matrix.finite() as u64) << n <= SPARSE_STEPS;
    let mut cycles = if Separable::of(&matrix).is_some() {
        let natural: Vec<usize> = (0..n).collect();
        vec![(matrix.cycle(&natural), natural)]
    } else if n <= EXACT_RANKS || (sparse && groups.len() == 1) {
        exact_cycles(&matrix, steps)
    } else {
        let chains = (groups.len() > 1).then(|| chains_of_hosts(routes, &groups, steps)).flatten();
        chains.unwrap_or_else(|| improved_cycle(&matrix, steps, budget).into_iter().collect())
    };
    cycles.sort_unstable();
    cycles.into_iter().map(|(_, order)| order).collect()
}

/// Ranks of each host, in order.
fn groups_of(hosts: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for rank in 0..hosts.len() {
        match groups.last_mut() {
            Some(group) if hosts[group[0]] == hosts[rank] => group.push(rank),
            _ => groups.push(vec![rank]),
        }
    }
    groups
}

/// Cheapest paths from one start over every subset: `cost[subset * n + end]`, `subset` holding start and end.
struct Subsets {
    n: usize,
    cost: Vec<u64>,
    before: Vec<u8>,
}

/// No rank before: the start.
const NONE: u8 = u8::MAX;

impl Subsets {
    fn from(matrix: &CostMatrix, start: usize, steps: &mut u64) -> Self {
        let n = matrix.n;
        let mut table = Self { n, cost: vec![UNREACHABLE; n << n], before: vec![NONE; n << n] };
        table.cost[(1 << start) * n + start] = 0;
        let nexts: Vec<Vec<(usize, u64)>> = (0..n)
            .map(|from| {
                let joined = (0..n).map(|to| (to, matrix.at(from, to)));
                joined.filter(|(_, cost)| *cost != UNREACHABLE).collect()
            })
            .collect();
        for subset in (0..1_usize << n).filter(|subset| subset & (1 << start) != 0) {
            for (end, joined) in nexts.iter().enumerate() {
                let so_far = table.cost[subset * n + end];
                if so_far == UNREACHABLE {
                    continue;
                }
                for &(next, hop) in joined {
                    if subset & (1 << next) != 0 {
                        continue;
                    }
                    let cost = plus(so_far, hop);
                    let at = (subset | (1 << next)) * n + next;
                    if cost < table.cost[at] {
                        table.cost[at] = cost;
                        table.before[at] = u8::try_from(end).expect("at most 16 ranks");
                    }
                }
            }
        }
        *steps += (matrix.finite() as u64) << n;
        table
    }

    fn full(&self) -> usize {
        (1 << self.n) - 1
    }

    /// Cost of the cheapest path over all that ends in `end`.
    fn to(&self, end: usize) -> u64 {
        self.cost[self.full() * self.n + end]
    }

    /// That path.
    fn path(&self, end: usize) -> Vec<usize> {
        let (mut subset, mut node) = (self.full(), end);
        let mut path = vec![node];
        while self.before[subset * self.n + node] != NONE {
            let before = usize::from(self.before[subset * self.n + node]);
            subset &= !(1 << node);
            node = before;
            path.push(node);
        }
        path.reverse();
        path
    }
}

/// The cheapest cycle for each rank before the first.
fn exact_cycles(matrix: &CostMatrix, steps: &mut u64) -> Vec<(u64, Vec<usize>)> {
    let table = Subsets::from(matrix, 0, steps);
    (1..matrix.n)
        .map(|end| (plus(table.to(end), matrix.at(end, 0)), end))
        .filter(|(cost, _)| *cost != UNREACHABLE)
        .map(|(cost, end)| (cost, table.path(end)))
        .collect()
}

/// Cheapest ways through one host for every entry and exit.
enum Through {
    /// Any order costs the same.
    Switch(Separable),
    /// By entry.
    Table(Vec<Subsets>),
}

impl Through {
    /// `None` where the host is too large for exact search.
    fn new(matrix: &CostMatrix, steps: &mut u64) -> Option<Self> {
        if let Some(separable) = Separable::of(matrix) {
            return Some(Self::Switch(separable));
        }
        let table = || (0..matrix.n).map(|entry| Subsets::from(matrix, entry, steps)).collect();
        (matrix.n <= EXACT_PER_HOST).then(table).map(Self::Table)
    }

    fn cost(&self, entry: usize, exit: usize) -> u64 {
        match self {
            Self::Switch(separable) => separable.path_cost(entry, exit),
            Self::Table(by_entry) => by_entry[entry].to(exit),
        }
    }

    fn path(&self, entry: usize, exit: usize) -> Vec<usize> {
        match self {
            Self::Switch(separable) => {
                let inner = (0..separable.leave.len()).filter(|i| *i != entry && *i != exit);
                core::iter::once(entry)
                    .chain(inner)
                    .chain((exit != entry).then_some(exit))
                    .collect()
            }
            Self::Table(by_entry) => by_entry[entry].path(exit),
        }
    }
}

/// Costs of the form leave(i) + enter(j), as behind one switch: every order costs the same.
struct Separable {
    leave: Vec<i128>,
    enter: Vec<i128>,
}

impl Separable {
    fn of(matrix: &CostMatrix) -> Option<Self> {
        let n = matrix.n;
        if n < 3 || matrix.finite() < n * (n - 1) {
            return None;
        }
        let cost = |i: usize, j: usize| i128::from(matrix.at(i, j));
        // leave(0) is free to choose; 1 and 2 are others to compare with.
        let mut enter: Vec<i128> = (0..n).map(|j| if j == 0 { 0 } else { cost(0, j) }).collect();
        let leave: Vec<i128> = (0..n)
            .map(|i| match i {
                0 => 0,
                1 => cost(1, 2) - enter[2],
                _ => cost(i, 1) - enter[1],
            })
            .collect();
        enter[0] = cost(1, 0) - leave[1];
        let holds = (0..n).all(|i| (0..n).all(|j| i == j || cost(i, j) == leave[i] + enter[j]));
        holds.then_some(Self { leave, enter })
    }

    fn path_cost(&self, entry: usize, exit: usize) -> u64 {
        if entry == exit {
            return UNREACHABLE;
        }
        let leave: i128 = self.leave.iter().sum::<i128>() - self.leave[exit];
        let enter: i128 = self.enter.iter().sum::<i128>() - self.enter[entry];
        u64::try_from(leave + enter).unwrap_or(UNREACHABLE - 1)
    }
}

/// The cheapest cycle for each entry to the first host, among those that visit each host once in the given order; `None` where a
/// host is too large.
fn chains_of_hosts(
    routes: &Routes,
    groups: &[Vec<usize>],
    steps: &mut u64,
) -> Option<Vec<(u64, Vec<usize>)>> {
    // Hosts that look alike share their tables.
    let mut kinds: Vec<(CostMatrix, Through)> = Vec::new();
    let mut kind_of = Vec::with_capacity(groups.len());
    for group in groups {
        let matrix = CostMatrix::of(routes, group);
        let known = kinds.iter().position(|(m, _)| *m == matrix);
        kind_of.push(known.unwrap_or(kinds.len()));
        if known.is_none() {
            let through = Through::new(&matrix, steps)?;
            kinds.push((matrix, through));
        }
    }
    let through = |host: usize, entry: usize, exit: usize| kinds[kind_of[host]].1.cost(entry, exit);

    let mut cycles = Vec::new();
    for first in 0..groups[0].len() {
        // reach[host][exit]: cheapest way from the first host's entry to that exit, with the entry and the exit before.
        let mut reach: Vec<Vec<(u64, usize, usize)>> = Vec::with_capacity(groups.len());
        reach.push((0..groups[0].len()).map(|exit| (through(0, first, exit), first, 0)).collect());
        for host in 1..groups.len() {
            let before = &reach[host - 1];
            let entries: Vec<(u64, usize)> = groups[host]
                .iter()
                .map(|&entry| {
                    let by_exit = before.iter().enumerate().map(|(exit, (cost, ..))| {
                        (plus(*cost, routes.cost(groups[host - 1][exit], entry)), exit)
                    });
                    by_exit.min().unwrap_or((UNREACHABLE, 0))
                })
                .collect();
            let here = (0..groups[host].len())
                .map(|exit| {
                    let by_entry = entries.iter().enumerate().map(|(entry, (cost, b))| {
                        (plus(*cost, through(host, entry, exit)), entry, *b)
                    });
                    by_entry.min().unwrap_or((UNREACHABLE, 0, 0))
                })
                .collect();
            reach.push(here);
            *steps += 2 * (groups[host].len() * groups[host].len()) as u64;
        }
        let last = groups.len() - 1;
        let closing = (0..groups[last].len())
            .map(|exit| {
                let home = routes.cost(groups[last][exit], groups[0][first]);
                (plus(reach[last][exit].0, home), exit)
            })
            .min();
        let Some((cost, mut exit)) = closing else { continue };
        if cost == UNREACHABLE {
            continue;
        }
        let mut doors = Vec::with_capacity(groups.len());
        for host in (0..groups.len()).rev() {
            let (_, entry, before) = reach[host][exit];
            doors.push((entry, exit));
            exit = before;
        }
        doors.reverse();
        let mut order = Vec::new();
        for (host, (entry, exit)) in doors.into_iter().enumerate() {
            let path = kinds[kind_of[host]].1.path(entry, exit);
            order.extend(path.into_iter().map(|local| groups[host][local]));
        }
        rotate_to_zero(&mut order);
        cycles.push((cost, order));
    }
    Some(cycles)
}

/// A good cycle of many ranks: the better of natural order and nearest neighbours, then runs of up to three ranks moved
/// elsewhere as long as that helps.
fn improved_cycle(matrix: &CostMatrix, steps: &mut u64, budget: u64) -> Option<(u64, Vec<usize>)> {
    let n = matrix.n;
    let natural: Vec<usize> = (0..n).collect();
    let nearest = nearest_neighbours(matrix);
    let mut order = if matrix.cycle(&nearest) < matrix.cycle(&natural) { nearest } else { natural };
    let mut cost = matrix.cycle(&order);
    let mut improved = true;
    while improved && *steps < budget {
        improved = false;
        for run in 1..=3.min(n - 2) {
            for from in 0..n {
                for to in 0..n - run {
                    *steps += n as u64;
                    let mut rest: Vec<usize> = order.clone();
                    rest.rotate_left(from);
                    let moved: Vec<usize> = rest.drain(..run).collect();
                    rest.splice(to..to, moved);
                    let other = matrix.cycle(&rest);
                    if other < cost {
                        (order, cost, improved) = (rest, other, true);
                    }
                }
            }
        }
    }
    rotate_to_zero(&mut order);
    (cost != UNREACHABLE).then_some((cost, order))
}

fn nearest_neighbours(matrix: &CostMatrix) -> Vec<usize> {
    let mut order = vec![0];
    let mut left: Vec<usize> = (1..matrix.n).collect();
    while !left.is_empty() {
        let here = order[order.len() - 1];
        let (at, _) = left
            .iter()
            .enumerate()
            .min_by_key(|(_, rank)| (matrix.at(here, **rank), **rank))
            .expect("left is not empty");
        order.push(left.remove(at));
    }
    order
}

/// Turns a cycle so that it starts at rank 0.
fn rotate_to_zero(order: &mut [usize]) {
    if let Some(at) = order.iter().position(|rank| *rank == 0) {
        order.rotate_left(at);
    }
}
