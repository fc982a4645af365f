//! Cheapest order of a ring: Hamiltonian cycles by subset dynamic programming.
//!
//! ```text
//!   up to 10 ranks      exact over all orders                       O(2^n n^2)
//!   several hosts       exact over orders that visit each host once:
//!                       cheapest way through a host for every (entry, exit), then the cheapest chain of those
//!   otherwise           nearest neighbour, improved by moving runs of ranks, within a budget of steps
//! ```

use alloc::vec;
use alloc::vec::Vec;

use crate::routes::{Routes, UNREACHABLE};

/// Up to here all orders are considered, whatever the hosts.
const EXACT_RANKS: usize = 10;
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

/// The cheapest cycle over all ranks, from rank 0, and the steps spent; `None` where none was found. `hosts` gives the host of
/// each rank, hosts being contiguous.
pub(crate) fn cheapest_cycle(
    routes: &Routes,
    hosts: &[usize],
    steps: &mut u64,
    budget: u64,
) -> Option<Vec<usize>> {
    let n = hosts.len();
    if n < 2 {
        return None;
    }
    let all: Vec<usize> = (0..n).collect();
    let matrix = CostMatrix::of(routes, &all);
    if n <= EXACT_RANKS {
        return exact_cycle(&matrix, steps);
    }
    let groups = groups_of(hosts);
    if groups.len() > 1 && groups.iter().all(|g| g.len() <= EXACT_PER_HOST) {
        return chain_of_hosts(routes, &groups, steps);
    }
    improved_cycle(&matrix, steps, budget)
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
    before: Vec<usize>,
}

impl Subsets {
    fn from(matrix: &CostMatrix, start: usize, steps: &mut u64) -> Self {
        let n = matrix.n;
        let mut table =
            Self { n, cost: vec![UNREACHABLE; n << n], before: vec![usize::MAX; n << n] };
        table.cost[(1 << start) * n + start] = 0;
        for subset in 0..1_usize << n {
            if subset & (1 << start) == 0 {
                continue;
            }
            for end in 0..n {
                let so_far = table.cost[subset * n + end];
                if so_far == UNREACHABLE {
                    continue;
                }
                for next in 0..n {
                    if subset & (1 << next) != 0 {
                        continue;
                    }
                    let cost = plus(so_far, matrix.at(end, next));
                    let at = (subset | (1 << next)) * n + next;
                    if cost < table.cost[at] {
                        table.cost[at] = cost;
                        table.before[at] = end;
                    }
                }
            }
        }
        *steps += (n as u64) << n;
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
        while self.before[subset * self.n + node] != usize::MAX {
            let before = self.before[subset * self.n + node];
            subset &= !(1 << node);
            node = before;
            path.push(node);
        }
        path.reverse();
        path
    }
}

fn exact_cycle(matrix: &CostMatrix, steps: &mut u64) -> Option<Vec<usize>> {
    let table = Subsets::from(matrix, 0, steps);
    let end = (1..matrix.n).min_by_key(|&end| plus(table.to(end), matrix.at(end, 0)))?;
    (plus(table.to(end), matrix.at(end, 0)) != UNREACHABLE).then(|| table.path(end))
}

/// Cheapest ways through one host, by entry.
struct Through {
    by_entry: Vec<Subsets>,
}

/// Exact over cycles that visit each host once, in the given order of hosts.
fn chain_of_hosts(routes: &Routes, groups: &[Vec<usize>], steps: &mut u64) -> Option<Vec<usize>> {
    // Hosts that look alike share their tables.
    let mut kinds: Vec<(CostMatrix, Through)> = Vec::new();
    let mut kind_of = Vec::with_capacity(groups.len());
    for group in groups {
        let matrix = CostMatrix::of(routes, group);
        let known = kinds.iter().position(|(m, _)| *m == matrix);
        kind_of.push(known.unwrap_or(kinds.len()));
        if known.is_none() {
            let by_entry =
                (0..group.len()).map(|entry| Subsets::from(&matrix, entry, steps)).collect();
            kinds.push((matrix, Through { by_entry }));
        }
    }
    let through =
        |host: usize, entry: usize, exit: usize| kinds[kind_of[host]].1.by_entry[entry].to(exit);

    let mut best: Option<(u64, Vec<(usize, usize)>)> = None;
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
        if cost == UNREACHABLE || best.as_ref().is_some_and(|(known, _)| *known <= cost) {
            continue;
        }
        let mut doors = Vec::with_capacity(groups.len());
        for host in (0..groups.len()).rev() {
            let (_, entry, before) = reach[host][exit];
            doors.push((entry, exit));
            exit = before;
        }
        doors.reverse();
        best = Some((cost, doors));
    }

    let (_, doors) = best?;
    let mut order = Vec::new();
    for (host, (entry, exit)) in doors.into_iter().enumerate() {
        let path = kinds[kind_of[host]].1.by_entry[entry].path(exit);
        order.extend(path.into_iter().map(|local| groups[host][local]));
    }
    rotate_to_zero(&mut order);
    Some(order)
}

/// A good cycle of many ranks: the better of natural order and nearest neighbours, then runs of up to three ranks moved
/// elsewhere as long as that helps.
fn improved_cycle(matrix: &CostMatrix, steps: &mut u64, budget: u64) -> Option<Vec<usize>> {
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
    (cost != UNREACHABLE).then_some(order)
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
pub(crate) fn rotate_to_zero(order: &mut [usize]) {
    if let Some(at) = order.iter().position(|rank| *rank == 0) {
        order.rotate_left(at);
    }
}
