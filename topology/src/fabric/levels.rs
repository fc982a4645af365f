//! Who meets whom below which tier, and the order of hosts that follows.
//!
//! Level by level, sets of hosts grow together:
//!
//! ```text
//!   block       hosts of an NVLink domain, or of a Slurm block
//!   leaf        hosts of one leaf; where a host's NICs are on several, hosts of those leaves together: a scalable unit
//!   tier 2, …   hosts that a way over switches up to this tier joins
//! ```
//!
//! Links between switches of one tier join after those up to it: first those of a dragonfly's groups, whose routers have neighbours in
//! common, then the others. The order of hosts is depth first: sets stay together at every level, blocks above all; sets follow
//! each other by their first host, names by their numbers. So it does not depend on the order in which the file lists anything.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Fabric, Peer, natural_cmp};

/// Sets of hosts, level by level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Closest first. Levels that join nothing new are left out.
    pub names: Vec<String>,
    /// By level and host: which set it is in. Sets of a level are numbered by their first hosts in natural order.
    pub sets: Vec<Vec<usize>>,
    /// How many of the levels are blocks: one, or none.
    blocks: usize,
    order: Vec<usize>,
}

/// How many edges of a pattern cross how far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// By level: edges whose ends first meet there.
    pub by_level: Vec<usize>,
    /// Edges between hosts that nothing in the file joins.
    pub apart: usize,
}

impl Fabric {
    /// Sets of hosts, level by level.
    #[must_use]
    pub fn levels(&self) -> Levels {
        let mut levels =
            Levels { names: Vec::new(), sets: Vec::new(), blocks: 0, order: Vec::new() };
        let hosts = self.hosts.len();
        let mut by_name: Vec<usize> = (0..hosts).collect();
        by_name.sort_by(|a, b| natural_cmp(&self.hosts[*a].name, &self.hosts[*b].name));
        let mut last: Vec<usize> = (0..hosts).collect();
        if !self.blocks.is_empty() {
            let mut of_block: Vec<usize> =
                (0..hosts).map(|host| self.blocks.len() + host).collect();
            for (at, block) in self.blocks.iter().enumerate() {
                for host in &block.hosts {
                    of_block[*host] = at;
                }
            }
            levels.push("block".into(), &of_block, &by_name);
            levels.blocks = levels.names.len();
            let base = self.block_sizes.first().copied().unwrap_or(1).max(1);
            for size in self.block_sizes.iter().skip(1) {
                let together = usize::try_from((size / base).max(1)).unwrap_or(usize::MAX);
                let sets: Vec<usize> = of_block
                    .iter()
                    .map(|at| if *at < self.blocks.len() { at / together } else { *at })
                    .collect();
                levels.push(format!("blocks of {size}"), &sets, &by_name);
            }
        }
        self.join_tiers(|name, sets| {
            if *sets != last {
                levels.push(name, sets, &by_name);
                last.clone_from(sets);
            }
        });
        levels.order = levels.depth_first(&by_name);
        levels
    }

    /// Calls `level` with the sets of each level of switches; a host at no switch is a set of its own.
    fn join_tiers(&self, mut level: impl FnMut(String, &Vec<usize>)) {
        let switches = self.switches.len();
        let mut union = self.units();
        let home: Vec<Option<usize>> =
            (0..self.hosts.len()).map(|host| self.home(host, &mut union)).collect();
        let sets = |union: &mut Union| -> Vec<usize> {
            let of = |(host, home): (usize, &Option<usize>)| match home {
                Some(leaf) => union.root(*leaf),
                None => switches + host,
            };
            home.iter().enumerate().map(of).collect()
        };
        if home.iter().any(Option::is_some) {
            level("leaf".to_owned(), &sets(&mut union));
        }
        let links = self.switch_links();
        let most = self.switches.iter().filter_map(|switch| switch.tier).max().unwrap_or(0);
        let mut ends: BTreeMap<(u32, bool), Vec<(usize, usize)>> = BTreeMap::new();
        for (a, b) in links {
            let (Some(tier_a), Some(tier_b)) = (self.switches[a].tier, self.switches[b].tier)
            else {
                continue;
            };
            ends.entry((tier_a.max(tier_b), tier_a == tier_b)).or_default().push((a, b));
        }
        for tier in 1..=most {
            if let Some(links) = ends.get(&(tier, false)) {
                for (a, b) in links {
                    union.join(*a, *b);
                }
                level(format!("tier {tier}"), &sets(&mut union));
            }
            if let Some(links) = ends.get(&(tier, true)) {
                let near: BTreeMap<usize, BTreeSet<usize>> =
                    links.iter().fold(BTreeMap::new(), |mut near, (a, b)| {
                        near.entry(*a).or_insert_with(BTreeSet::new).insert(*b);
                        near.entry(*b).or_insert_with(BTreeSet::new).insert(*a);
                        near
                    });
                for (a, b) in links.iter().filter(|(a, b)| in_group(&near[a], &near[b])) {
                    union.join(*a, *b);
                }
                level(format!("group of tier {tier}"), &sets(&mut union));
                for (a, b) in links {
                    union.join(*a, *b);
                }
                level(format!("between tier {tier}"), &sets(&mut union));
            }
        }
    }

    /// Pairs of switches with a cable, each once.
    fn switch_links(&self) -> BTreeSet<(usize, usize)> {
        let mut links = BTreeSet::new();
        for (from, switch) in self.switches.iter().enumerate() {
            for port in &switch.ports {
                if let Peer::Switch(to) = port.to
                    && to != from
                {
                    links.insert((from.min(to), from.max(to)));
                }
            }
        }
        links
    }

    /// Switches by scalable unit: two leaves are of one where more than half of the hosts of one are also at the other. A single NIC at a
    /// wrong leaf joins no units.
    pub(super) fn units(&self) -> Union {
        let mut hosts_at: BTreeMap<usize, usize> = BTreeMap::new();
        let mut shared: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for host in &self.hosts {
            let leaves: BTreeSet<usize> = host.nics.iter().filter_map(|nic| nic.leaf).collect();
            for leaf in &leaves {
                *hosts_at.entry(*leaf).or_default() += 1;
            }
            // Who is at more leaves than any host has NICs is no host, but a name that many have.
            if leaves.len() > 64 {
                continue;
            }
            for a in &leaves {
                for b in leaves.range(a + 1..) {
                    *shared.entry((*a, *b)).or_default() += 1;
                }
            }
        }
        let mut union = Union::new(self.switches.len());
        for ((a, b), count) in shared {
            if 2 * count > hosts_at[&a].min(hosts_at[&b]) {
                union.join(a, b);
            }
        }
        union
    }

    /// The leaf that stands for a host: one of the unit that most of its NICs are at.
    fn home(&self, host: usize, union: &mut Union) -> Option<usize> {
        let mut counts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for leaf in self.hosts[host].nics.iter().filter_map(|nic| nic.leaf) {
            let (count, first) = counts.entry(union.root(leaf)).or_insert((0, leaf));
            *count += 1;
            if natural_cmp(&self.switches[leaf].name, &self.switches[*first].name).is_lt() {
                *first = leaf;
            }
        }
        let best = counts.into_values().max_by(|(a, leaf_a), (b, leaf_b)| {
            a.cmp(b).then_with(|| {
                natural_cmp(&self.switches[*leaf_b].name, &self.switches[*leaf_a].name)
            })
        });
        best.map(|(_, leaf)| leaf)
    }
}

/// Whether two routers that are linked are of one group: they share at least half of the neighbours of the one that has fewer, other than
/// each other. A group is linked all to all, a link between groups ends at routers that share few.
fn in_group(a: &BTreeSet<usize>, b: &BTreeSet<usize>) -> bool {
    let common = a.intersection(b).count();
    2 * common >= a.len().min(b.len()).saturating_sub(1)
}

impl Levels {
    fn push(&mut self, name: String, sets: &[usize], by_name: &[usize]) {
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        for host in by_name {
            let next = numbers.len();
            numbers.entry(sets[*host]).or_insert(next);
        }
        // Where every host is a set of its own the level says nothing.
        if numbers.len() < sets.len() || name == "leaf" {
            self.names.push(name);
            self.sets.push(sets.iter().map(|set| numbers[set]).collect());
        }
    }

    /// Hosts in depth-first order.
    fn depth_first(&self, by_name: &[usize]) -> Vec<usize> {
        let mut rank = alloc::vec![0_usize; by_name.len()];
        for (place, host) in by_name.iter().enumerate() {
            rank[*host] = place;
        }
        let key = |host: usize| -> Vec<usize> {
            let outer = self.sets[self.blocks..].iter().rev().map(|sets| sets[host]);
            outer.chain([rank[host]]).collect()
        };
        let keys: Vec<Vec<usize>> = (0..by_name.len()).map(key).collect();
        // A block comes where its first host does.
        let mut first: BTreeMap<usize, &Vec<usize>> = BTreeMap::new();
        if let (1.., Some(blocks)) = (self.blocks, self.sets.first()) {
            for (host, block) in blocks.iter().enumerate() {
                let least = first.entry(*block).or_insert(&keys[host]);
                if keys[host] < **least {
                    *least = &keys[host];
                }
            }
        }
        let block = |host: usize| {
            let block = self.sets.first().filter(|_| self.blocks > 0).map(|sets| sets[host]);
            block.and_then(|block| first.get(&block).copied())
        };
        let mut order: Vec<usize> = (0..by_name.len()).collect();
        order.sort_by(|a, b| block(*a).cmp(&block(*b)).then_with(|| keys[*a].cmp(&keys[*b])));
        order
    }

    /// Hosts, by their places in [`Fabric::hosts`], so that those that are close follow each other.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The first level at which two hosts meet; `None` where nothing in the file joins them.
    #[must_use]
    pub fn meet(&self, a: usize, b: usize) -> Option<usize> {
        self.sets.iter().position(|sets| sets[a] == sets[b])
    }

    /// How far the edges of a pattern go.
    #[must_use]
    pub fn count(&self, edges: impl IntoIterator<Item = (usize, usize)>) -> Crossings {
        let mut crossings = Crossings { by_level: alloc::vec![0; self.names.len()], apart: 0 };
        for (a, b) in edges {
            match self.meet(a, b) {
                Some(level) => crossings.by_level[level] += 1,
                None => crossings.apart += 1,
            }
        }
        crossings
    }
}

/// Sets that grow together.
pub(super) struct Union(Vec<usize>);

impl Union {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).collect())
    }

    pub(super) fn root(&mut self, at: usize) -> usize {
        let mut at = at;
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    /// The smaller root stands for both, so that results do not depend on the order of joining.
    pub(super) fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}
