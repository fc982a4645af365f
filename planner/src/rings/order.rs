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
use core::cell::RefCell;

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
    tables: &Tables,
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
        exact_cycles(&matrix, tables, steps)
    } else {
        let chains =
            (groups.len() > 1).then(|| chains_of_hosts(routes, &groups, tables, steps)).flatten();
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

/// Tables that are not in use, so that the next search has no need to ask for memory, which is up to 9 MB.
#[derive(Debug, Default)]
pub(crate) struct Tables(RefCell<Vec<Subsets>>);

impl Tables {
    /// A table over `n` ranks in which no path is known.
    fn take(&self, n: usize) -> Subsets {
        let mut spare = self.0.borrow_mut();
        match spare.iter().rposition(|table| table.n == n) {
            Some(place) => {
                let mut table = spare.swap_remove(place);
                table.ends.fill(0);
                table
            }
            None => Subsets {
                n,
                ends: vec![0; 1 << n],
                cost: vec![0; n << n],
                before: vec![NONE; n << n],
            },
        }
    }

    fn give_back(&self, tables: impl IntoIterator<Item = Subsets>) {
        self.0.borrow_mut().extend(tables);
    }
}

/// Cheapest paths from one start over every subset: `cost[subset * n + end]`, `subset` holding start and end.
#[derive(Debug)]
struct Subsets {
    n: usize,
    /// By subset, a bit for each end that a path over all of it has; what else is said of others means nothing.
    ends: Vec<u16>,
    cost: Vec<u64>,
    before: Vec<u8>,
}

/// No rank before: the start.
const NONE: u8 = u8::MAX;

impl Subsets {
    fn from(matrix: &CostMatrix, start: usize, tables: &Tables, steps: &mut u64) -> Self {
        let n = matrix.n;
        let mut table = tables.take(n);
        let joined: Vec<u16> = (0..n)
            .map(|from| bits((0..n).filter(|&to| matrix.at(from, to) != UNREACHABLE)))
            .collect();
        table.ends[1 << start] = bits([start].into_iter());
        let first = (1 << start) * n + start;
        (table.cost[first], table.before[first]) = (0, NONE);
        for subset in (0..1_usize << n).filter(|subset| subset & (1 << start) != 0) {
            let mut ends = table.ends[subset];
            while let Some(end) = lowest(&mut ends) {
                let so_far = table.cost[subset * n + end];
                let mut nexts = joined[end] & !bits_of(subset);
                while let Some(next) = lowest(&mut nexts) {
                    let cost = plus(so_far, matrix.at(end, next));
                    let larger = subset | (1 << next);
                    let at = larger * n + next;
                    let known = table.ends[larger] & (1 << next) != 0;
                    if !known || cost < table.cost[at] {
                        table.ends[larger] |= 1 << next;
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
        let reached = self.ends[self.full()] & (1 << end) != 0;
        if reached { self.cost[self.full() * self.n + end] } else { UNREACHABLE }
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

/// A bit for each of these ranks, of which there are at most 16.
fn bits(ranks: impl Iterator<Item = usize>) -> u16 {
    ranks.fold(0, |bits, rank| bits | 1 << rank)
}

#[expect(clippy::cast_possible_truncation, reason = "subsets are of at most 16 ranks")]
fn bits_of(subset: usize) -> u16 {
    subset as u16
}

/// Takes the lowest rank out.
fn lowest(bits: &mut u16) -> Option<usize> {
    let rank = bits.trailing_zeros() as usize;
    *bits &= bits.wrapping_sub(1);
    (rank < 16).then_some(rank)
}

/// The cheapest cycle for each rank before the first.
fn exact_cycles(matrix: &CostMatrix, tables: &Tables, steps: &mut u64) -> Vec<(u64, Vec<usize>)> {
    let table = Subsets::from(matrix, 0, tables, steps);
    let cycles = (1..matrix.n)
        .map(|end| (plus(table.to(end), matrix.at(end, 0)), end))
        .filter(|(cost, _)| *cost != UNREACHABLE)
        .map(|(cost, end)| (cost, table.path(end)))
        .collect();
    tables.give_back([table]);
    cycles
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
    fn new(matrix: &CostMatrix, tables: &Tables, steps: &mut u64) -> Option<Self> {
        if let Some(separable) = Separable::of(matrix) {
            return Some(Self::Switch(separable));
        }
        let of_entry = |entry| Subsets::from(matrix, entry, tables, steps);
        let table = || (0..matrix.n).map(of_entry).collect();
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
    tables: &Tables,
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
            let through = Through::new(&matrix, tables, steps)?;
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
    for (_, through) in kinds {
        if let Through::Table(by_entry) = through {
            tables.give_back(by_entry);
        }
    }
    Some(cycles)
}

/// What a cycle costs, so that it need not be added up again for every change that is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hops {
    /// How many of its hops are not there.
    missing: i64,
    /// What the others cost.
    cost: i128,
}

impl Hops {
    fn of(matrix: &CostMatrix, order: &[usize]) -> Self {
        let n = order.len();
        let hops = (0..n).map(|i| (order[i], order[(i + 1) % n]));
        hops.fold(Self::default(), |sum, hop| sum.with(matrix, hop, 1))
    }

    fn total(self) -> u64 {
        if self.missing > 0 {
            return UNREACHABLE;
        }
        u64::try_from(self.cost).unwrap_or(u64::MAX).min(UNREACHABLE - 1)
    }

    fn with(self, matrix: &CostMatrix, (from, to): (usize, usize), times: i64) -> Self {
        match matrix.at(from, to) {
            UNREACHABLE => Self { missing: self.missing + times, ..self },
            cost => Self { cost: self.cost + i128::from(times) * i128::from(cost), ..self },
        }
    }

    /// After `run` ranks from place `from` on are moved behind the next `to` others.
    fn moved(
        self,
        matrix: &CostMatrix,
        order: &[usize],
        (from, run): (usize, usize),
        to: usize,
    ) -> Self {
        if to == 0 {
            return self;
        }
        let n = order.len();
        let at = |place: usize| order[place % n];
        let (first, last) = (at(from), at(from + run - 1));
        let (before, after) = (at(from + n - 1), at(from + run));
        let (left, right) = (at(from + run + to - 1), at(from + run + to));
        let sum = [(before, first), (last, after), (left, right)]
            .into_iter()
            .fold(self, |sum, hop| sum.with(matrix, hop, -1));
        [(before, after), (left, first), (last, right)]
            .into_iter()
            .fold(sum, |sum, hop| sum.with(matrix, hop, 1))
    }
}

/// A good cycle of many ranks: the better of natural order and nearest neighbours, then runs of up to three ranks moved
/// elsewhere as long as that helps.
fn improved_cycle(matrix: &CostMatrix, steps: &mut u64, budget: u64) -> Option<(u64, Vec<usize>)> {
    let n = matrix.n;
    let natural: Vec<usize> = (0..n).collect();
    let nearest = nearest_neighbours(matrix);
    let mut order = if matrix.cycle(&nearest) < matrix.cycle(&natural) { nearest } else { natural };
    let mut hops = Hops::of(matrix, &order);
    let mut improved = true;
    while improved && *steps < budget {
        improved = false;
        for run in 1..=3.min(n - 2) {
            for from in 0..n {
                for to in 0..n - run {
                    *steps += n as u64;
                    let other = hops.moved(matrix, &order, (from, run), to);
                    if other.total() < hops.total() {
                        let mut rest: Vec<usize> = order.clone();
                        rest.rotate_left(from);
                        let moved: Vec<usize> = rest.drain(..run).collect();
                        rest.splice(to..to, moved);
                        (order, hops, improved) = (rest, other, true);
                    }
                }
            }
        }
    }
    rotate_to_zero(&mut order);
    let cost = hops.total();
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A move costs what the moved order does when added up.
        #[test]
        fn moves_are_counted_right(
            costs in proptest::collection::vec(0_u64..6, 49),
            from in 0_usize..7,
            run in 1_usize..4,
            to in 0_usize..6,
        ) {
            // 5 stands for no way.
            let cost = |i: usize| if i.is_multiple_of(8) || costs[i] == 5 { UNREACHABLE } else { costs[i] };
            let matrix = CostMatrix { n: 7, cost: (0..49).map(cost).collect() };
            let to = to % (7 - run);
            let order = [3, 1, 4, 0, 5, 2, 6];
            let mut rest = order.to_vec();
            rest.rotate_left(from);
            let moved: Vec<usize> = rest.drain(..run).collect();
            rest.splice(to..to, moved);
            let hops = Hops::of(&matrix, &order);
            prop_assert_eq!(hops.total(), matrix.cycle(&order));
            let found = hops.moved(&matrix, &order, (from, run), to);
            prop_assert_eq!(found, Hops::of(&matrix, &rest));
        }
    }
}
