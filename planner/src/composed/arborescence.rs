//! Spanning trees from a root over a table of hop costs: the cheapest, and cheap ones that are low.

use alloc::vec;
use alloc::vec::Vec;

use crate::routes::UNREACHABLE;

/// Costs of hops, square, row by sender; [`UNREACHABLE`] where there is no way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HopCosts {
    n: usize,
    cost: Vec<u64>,
}

impl HopCosts {
    pub(super) fn new(n: usize) -> Self {
        Self { n, cost: vec![UNREACHABLE; n * n] }
    }

    pub(super) fn at(&self, from: usize, to: usize) -> u64 {
        self.cost[from * self.n + to]
    }

    pub(super) fn set(&mut self, from: usize, to: usize, cost: u64) {
        self.cost[from * self.n + to] = cost;
    }

    /// The same with every hop turned round.
    pub(super) fn turned(&self) -> Self {
        let mut turned = Self::new(self.n);
        for from in 0..self.n {
            for to in 0..self.n {
                turned.set(to, from, self.at(from, to));
            }
        }
        turned
    }

    /// Cost of the cheapest tree that joins all where either direction of a hop will do; saturates. Prim's algorithm.
    pub(super) fn cheapest_undirected(&self) -> u64 {
        let either = |a: usize, b: usize| self.at(a, b).min(self.at(b, a));
        let mut nearest: Vec<u64> = (0..self.n).map(|v| either(0, v)).collect();
        let mut left: Vec<usize> = (1..self.n).collect();
        let mut total = 0_u64;
        while let Some(place) = (0..left.len()).min_by_key(|&i| nearest[left[i]]) {
            let joined = left.swap_remove(place);
            total = total.saturating_add(nearest[joined]);
            for &v in &left {
                nearest[v] = nearest[v].min(either(joined, v));
            }
        }
        total
    }

    /// What a tree costs.
    pub(super) fn total(&self, parents: &[Option<usize>]) -> u64 {
        let hops = parents.iter().enumerate().filter_map(|(v, up)| up.map(|up| self.at(up, v)));
        hops.fold(0, u64::saturating_add)
    }

    /// A tree grown by the cheapest hop there is, among equals the one nearest the root. Where costs depend on the receiver or are alike it is
    /// the cheapest; elsewhere it need not be. `None` where ranks cannot be reached.
    pub(super) fn grown(&self, root: usize) -> Option<Vec<Option<usize>>> {
        let n = self.n;
        let mut parents = vec![None; n];
        // For each rank outside: cost, depth and sender of its best hop.
        let mut best: Vec<(u64, usize, usize)> =
            (0..n).map(|v| (self.at(root, v), 1, root)).collect();
        let mut inside = vec![false; n];
        inside[root] = true;
        for _ in 1..n {
            let next = (0..n).filter(|&v| !inside[v]).min_by_key(|&v| (best[v].0, best[v].1, v))?;
            let (cost, depth, from) = best[next];
            if cost == UNREACHABLE {
                return None;
            }
            parents[next] = Some(from);
            inside[next] = true;
            for v in (0..n).filter(|&v| !inside[v]) {
                best[v] = best[v].min((self.at(next, v), depth + 1, next));
            }
        }
        Some(parents)
    }

    /// The cheapest tree (Chu and Liu, Edmonds), made as low as hops of equal cost allow.
    pub(super) fn cheapest(&self, root: usize) -> Option<Vec<Option<usize>>> {
        let mut parents = self.contracted(root)?;
        self.lower(root, &mut parents);
        Some(parents)
    }

    fn contracted(&self, root: usize) -> Option<Vec<Option<usize>>> {
        let n = self.n;
        let mut parents: Vec<Option<usize>> = vec![None; n];
        for v in (0..n).filter(|&v| v != root) {
            let up = (0..n).filter(|&u| u != v).min_by_key(|&u| (self.at(u, v), u != root, u))?;
            if self.at(up, v) == UNREACHABLE {
                return None;
            }
            parents[v] = Some(up);
        }
        let Some(cycle) = cycle_of(&parents) else { return Some(parents) };
        // The cycle becomes one node, the last; hops into it cost what they do more than the hop of the cycle they replace.
        let mut inside = vec![false; n];
        cycle.iter().for_each(|&v| inside[v] = true);
        let outside: Vec<usize> = (0..n).filter(|&v| !inside[v]).collect();
        let hub = outside.len();
        let mut smaller = Self::new(hub + 1);
        let mut into = vec![0; hub];
        let mut out_of = vec![0; hub];
        for (i, &u) in outside.iter().enumerate() {
            for (j, &v) in outside.iter().enumerate() {
                smaller.set(i, j, self.at(u, v));
            }
            for &v in &cycle {
                let replaced = parents[v].map_or(0, |up| self.at(up, v));
                let more = self.at(u, v);
                let more = if more == UNREACHABLE { more } else { more - replaced };
                if more < smaller.at(i, hub) {
                    smaller.set(i, hub, more);
                    into[i] = v;
                }
                if self.at(v, u) < smaller.at(hub, i) {
                    smaller.set(hub, i, self.at(v, u));
                    out_of[i] = v;
                }
            }
        }
        let place = outside.iter().position(|&v| v == root)?;
        let found = smaller.contracted(place)?;
        for (j, &v) in outside.iter().enumerate() {
            parents[v] = found[j].map(|up| if up == hub { out_of[j] } else { outside[up] });
        }
        let up = found[hub]?;
        parents[into[up]] = Some(outside[up]);
        Some(parents)
    }

    /// Hangs ranks nearer to the root wherever that costs the same.
    fn lower(&self, root: usize, parents: &mut [Option<usize>]) {
        for _ in 0..self.n {
            let depth = depths(root, parents);
            let mut changed = false;
            for v in (0..self.n).filter(|&v| v != root) {
                let Some(up) = parents[v] else { continue };
                let same = |u: &usize| *u != v && self.at(*u, v) == self.at(up, v);
                let nearest = (0..self.n).filter(same).min_by_key(|&u| (depth[u], u));
                // What hangs below a rank is deeper than it, so no cycle can arise from one change; hence one at a time by depth.
                if let Some(u) = nearest.filter(|&u| depth[u] < depth[up]) {
                    parents[v] = Some(u);
                    changed = true;
                    break;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

/// Hops from the root.
pub(super) fn depths(root: usize, parents: &[Option<usize>]) -> Vec<usize> {
    let mut depth = vec![usize::MAX; parents.len()];
    depth[root] = 0;
    for v in 0..parents.len() {
        let mut chain = Vec::new();
        let mut at = v;
        while depth[at] == usize::MAX {
            chain.push(at);
            let Some(up) = parents[at] else { break };
            at = up;
        }
        let mut known = depth[at];
        for &x in chain.iter().rev() {
            known = known.saturating_add(1);
            depth[x] = known;
        }
    }
    depth
}

/// A cycle among the parents.
fn cycle_of(parents: &[Option<usize>]) -> Option<Vec<usize>> {
    let mut visit = vec![0; parents.len()];
    for start in 0..parents.len() {
        let mut at = start;
        while visit[at] == 0 {
            visit[at] = start + 1;
            let Some(up) = parents[at] else { break };
            at = up;
        }
        if visit[at] == start + 1 && parents[at].is_some() {
            let mut cycle = vec![at];
            let mut next = parents[at]?;
            while next != at {
                cycle.push(next);
                next = parents[next]?;
            }
            return Some(cycle);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn costs(n: usize, entries: &[u64]) -> HopCosts {
        let mut costs = HopCosts::new(n);
        for from in 0..n {
            for to in (0..n).filter(|&to| to != from) {
                let cost = entries[from * n + to];
                costs.set(from, to, if cost == 0 { UNREACHABLE } else { cost });
            }
        }
        costs
    }

    /// The least total over every choice of parents that makes a tree.
    fn by_force(costs: &HopCosts, n: usize) -> Option<u64> {
        let mut least: Option<u64> = None;
        for code in 0..n.pow(u32::try_from(n - 1).unwrap()) {
            let mut rest = code;
            let mut parents = vec![None; n];
            for parent in &mut parents[1..] {
                *parent = Some(rest % n);
                rest /= n;
            }
            let reaches = depths_checked(&parents);
            let fits = (1..n).all(|v| costs.at(parents[v].unwrap(), v) != UNREACHABLE);
            if reaches && fits {
                let total = costs.total(&parents);
                least = Some(least.map_or(total, |l| l.min(total)));
            }
        }
        least
    }

    fn depths_checked(parents: &[Option<usize>]) -> bool {
        (0..parents.len()).all(|v| {
            let mut at = v;
            for _ in 0..parents.len() {
                match parents[at] {
                    Some(up) => at = up,
                    None => return true,
                }
            }
            false
        })
    }

    /// The least total of any sequence of hops after which all of four ranks know what each knew; a sender tells all it knows.
    fn cheapest_exchange(costs: &HopCosts) -> u64 {
        let start = (0..4).map(|v| 1_u16 << (5 * v)).sum::<u16>();
        let mut least = vec![u64::MAX; 1 << 16];
        let mut queue = std::collections::BinaryHeap::from([std::cmp::Reverse((0, start))]);
        least[usize::from(start)] = 0;
        while let Some(std::cmp::Reverse((cost, state))) = queue.pop() {
            if state == u16::MAX {
                return cost;
            }
            if cost > least[usize::from(state)] {
                continue;
            }
            for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
                let next = state | (state >> (4 * from) & 15) << (4 * to);
                let sum = cost.saturating_add(costs.at(from, to));
                if next != state && sum < least[usize::from(next)] {
                    least[usize::from(next)] = sum;
                    queue.push(std::cmp::Reverse((sum, next)));
                }
            }
        }
        u64::MAX
    }

    #[test]
    fn whoever_sends_an_exchange_takes_a_tree_twice() {
        let same = costs(4, &[1; 16]);
        assert_eq!((same.cheapest_undirected(), cheapest_exchange(&same)), (3, 6));
        // Pairs joined well, and badly with each other.
        let far = [0, 1, 7, 7, 1, 0, 7, 7, 7, 7, 0, 1, 7, 7, 1, 0];
        assert_eq!(
            (costs(4, &far).cheapest_undirected(), cheapest_exchange(&costs(4, &far))),
            (9, 18)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// No order of hops is cheaper than the cheapest tree there and back, and where both directions cost the same one costs as much.
        #[test]
        fn no_exchange_is_cheaper(entries in proptest::collection::vec(1_u64..20, 16), equal: bool) {
            let mut costs = costs(4, &entries);
            if equal {
                let turned = costs.turned();
                (0..16).for_each(|i| costs.set(i / 4, i % 4, costs.at(i / 4, i % 4).min(turned.at(i / 4, i % 4))));
            }
            let (bound, found) = (2 * costs.cheapest_undirected(), cheapest_exchange(&costs));
            prop_assert!(bound <= found && (!equal || bound == found), "{} of {}", bound, found);
        }
    }

    proptest! {
        #[test]
        fn equals_the_least_of_all_trees(
            n in 2_usize..6,
            entries in proptest::collection::vec(0_u64..9, 25),
        ) {
            let costs = costs(n, &entries);
            let expect = by_force(&costs, n);
            let found = costs.cheapest(0);
            prop_assert_eq!(found.as_ref().map(|p| costs.total(p)), expect);
            if let Some(parents) = found {
                prop_assert!(depths_checked(&parents));
                let grown = costs.grown(0).unwrap();
                prop_assert!(depths_checked(&grown) && costs.total(&grown) >= costs.total(&parents));
            }
        }
    }
}
