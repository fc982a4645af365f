//! All-to-all of uneven blocks between hosts: balanced inside the hosts first, then host to host without collisions.
//!
//! ```text
//!   bytes by pair of ranks ── inside each host: spread what leaves it evenly over its ranks, by NVLink
//!                          ── between hosts: the matrix of host to host bytes as a sum of permutations (Birkhoff), so that in
//!                             every stage each host sends to one and receives from one, all NICs alike
//!                          ── inside each host: what came, to the ranks it is for
//! ```
//!
//! The idea is FAST's (arXiv 2505.09764). In the naive order (step s: rank r to rank r + s) each step takes as long as its largest
//! block, and a rank with much to send is alone with its NIC while the others' are idle.

use alloc::vec;
use alloc::vec::Vec;

/// Bytes that each rank sends to each, hosts of equal size, host-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    hosts: usize,
    per_host: usize,
    /// By sender, then receiver.
    bytes: Vec<u64>,
}

/// One stage between hosts: every host named sends this many bytes to its receiver, spread over all of its ranks' NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// By sending host: the receiving one; `None` where it pauses.
    pub to: Vec<Option<usize>>,
    /// Bytes of each pair.
    pub bytes: u64,
}

/// A balanced all-to-all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balanced {
    /// Stages one after the other.
    pub stages: Vec<Stage>,
    /// Most bytes that a rank sends or receives inside its host: what stays there, what it gives to others to send, and what others
    /// received for it.
    pub inside: u64,
}

impl Demand {
    /// From bytes by sender, then receiver; `None` where they are not as many as pairs, or add up to more than 2^63.
    #[must_use]
    pub fn new(hosts: usize, per_host: usize, bytes: Vec<u64>) -> Option<Self> {
        let ranks = hosts.checked_mul(per_host)?;
        let sum = bytes.iter().try_fold(0_u64, |sum, more| sum.checked_add(*more))?;
        let fits = ranks > 0 && Some(bytes.len()) == ranks.checked_mul(ranks) && sum < 1 << 63;
        fits.then_some(Self { hosts, per_host, bytes })
    }

    /// Ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.hosts * self.per_host
    }

    /// From one rank to another.
    #[must_use]
    pub fn of(&self, from: usize, to: usize) -> u64 {
        self.bytes[from * self.ranks() + to]
    }

    const fn host(&self, rank: usize) -> usize {
        rank / self.per_host
    }

    /// Bytes from each host to each other, by sender, then receiver; nothing to itself.
    #[must_use]
    pub fn between_hosts(&self) -> Vec<u64> {
        let mut sums = vec![0; self.hosts * self.hosts];
        for from in 0..self.ranks() {
            for to in 0..self.ranks() {
                let (a, b) = (self.host(from), self.host(to));
                if a != b {
                    sums[a * self.hosts + b] += self.of(from, to);
                }
            }
        }
        sums
    }

    /// Nanoseconds that no order can be faster than, where ranks have NICs of `nic_gbps` GB/s each way: the busiest host's data over all
    /// its NICs.
    #[must_use]
    pub fn least_ns(&self, nic_gbps: f64) -> f64 {
        busiest(&self.between_hosts(), self.hosts) as f64 / (self.per_host as f64 * nic_gbps)
    }

    /// Nanoseconds of the naive order: steps one after the other, in each of which a rank sends its block to the one so many further
    /// on, by NVLink of `link_gbps` GB/s inside the host, by its own NIC else.
    #[must_use]
    pub fn naive_ns(&self, nic_gbps: f64, link_gbps: f64) -> f64 {
        let ranks = self.ranks();
        let block = |from: usize, step: usize| {
            let to = (from + step) % ranks;
            let rate = if self.host(from) == self.host(to) { link_gbps } else { nic_gbps };
            self.of(from, to) as f64 / rate
        };
        (1..ranks).map(|step| (0..ranks).map(|r| block(r, step)).fold(0.0, f64::max)).sum()
    }

    /// The balanced order.
    #[must_use]
    pub fn balanced(&self) -> Balanced {
        Balanced { stages: birkhoff(&self.between_hosts(), self.hosts), inside: self.inside() }
    }

    /// Most bytes of a rank over its links inside the host: its blocks for ranks there; of what it has for other hosts and what the host
    /// receives for it, what is beyond an even share.
    fn inside(&self) -> u64 {
        let ranks = self.ranks();
        let mut most = 0;
        let mut out = vec![vec![0_u64; self.hosts]; ranks];
        let mut into = out.clone();
        for from in 0..ranks {
            for to in 0..ranks {
                out[from][self.host(to)] += self.of(from, to);
                into[to][self.host(from)] += self.of(from, to);
            }
        }
        for rank in 0..ranks {
            let host = self.host(rank);
            let mates = host * self.per_host..(host + 1) * self.per_host;
            let local = |of: &[Vec<u64>]| of[rank][host].saturating_sub(self.of(rank, rank));
            let spread = |of: &[Vec<u64>]| {
                let mut over = (0, 0);
                for other in (0..self.hosts).filter(|other| *other != host) {
                    let all: u64 = mates.clone().map(|mate| of[mate][other]).sum();
                    let share = all.div_ceil(self.per_host as u64);
                    over.0 += of[rank][other].saturating_sub(share);
                    over.1 += share.saturating_sub(of[rank][other]);
                }
                over
            };
            let ((gives, takes), (gets, hands)) = (spread(&out), spread(&into));
            most = most.max(local(&out) + gives + hands).max(local(&into) + takes + gets);
        }
        most
    }
}

impl Balanced {
    /// Bytes of all stages, each of the pairs that it has.
    #[must_use]
    pub fn stage_bytes(&self) -> u64 {
        self.stages.iter().map(|stage| stage.bytes).sum()
    }

    /// Nanoseconds: the stages one after the other on all NICs of a host, with the moves inside hosts beside them, but for the first
    /// and last stage's, which have nobody to hide behind. `stages` costs one latency each.
    #[must_use]
    pub fn ns(&self, per_host: usize, nic_gbps: f64, link_gbps: f64, latency_ns: f64) -> f64 {
        let between = self.stage_bytes() as f64 / (per_host as f64 * nic_gbps);
        let inside = self.inside as f64 / link_gbps;
        let count = self.stages.len().max(1) as f64;
        between.max(inside) + 2.0 * between.min(inside) / count + latency_ns * count
    }
}

/// The largest sum of a row or column.
fn busiest(matrix: &[u64], n: usize) -> u64 {
    let row = |a: usize| (0..n).map(|b| matrix[a * n + b]).sum::<u64>();
    let column = |b: usize| (0..n).map(|a| matrix[a * n + b]).sum::<u64>();
    (0..n).map(|at| row(at).max(column(at))).max().unwrap_or(0)
}

/// The matrix as a sum of (partial) permutations whose bytes add up to its largest row or column sum: Birkhoff and von Neumann, after
/// the matrix was filled up with idle time until all rows and columns are alike. At most n^2 - 2n + 2 stages, the longest first.
fn birkhoff(matrix: &[u64], n: usize) -> Vec<Stage> {
    let most = busiest(matrix, n);
    let mut idle = vec![0_u64; n * n];
    let mut real = matrix.to_vec();
    let mut rows: Vec<u64> =
        (0..n).map(|a| most - real[a * n..(a + 1) * n].iter().sum::<u64>()).collect();
    let mut columns: Vec<u64> =
        (0..n).map(|b| most - (0..n).map(|a| real[a * n + b]).sum::<u64>()).collect();
    for a in 0..n {
        for b in 0..n {
            let fill = rows[a].min(columns[b]);
            idle[a * n + b] = fill;
            rows[a] -= fill;
            columns[b] -= fill;
        }
    }
    let mut stages = Vec::new();
    let mut left = most;
    while left > 0 {
        let Some(to) = matching(&real, &idle, n) else { break };
        let pair = |a: usize| real[a * n + to[a]] + idle[a * n + to[a]];
        // As long as every pair has something; and not beyond where one turns from data to idling.
        let longest = (0..n).map(pair).min().unwrap_or(0);
        let bytes =
            (0..n).map(|a| real[a * n + to[a]]).filter(|bytes| *bytes > 0).fold(longest, u64::min);
        let mut stage = Stage { to: vec![None; n], bytes };
        for (a, &b) in to.iter().enumerate() {
            let at = a * n + b;
            if real[at] > 0 {
                stage.to[a] = Some(b);
                real[at] -= bytes;
            } else {
                idle[at] -= bytes;
            }
        }
        left -= bytes;
        if stage.to.iter().any(Option::is_some) {
            stages.push(stage);
        }
    }
    stages.sort_by_key(|stage| core::cmp::Reverse(stage.bytes));
    stages
}

/// A receiver for every sender, no two the same, by augmenting ways; data before idling.
fn matching(real: &[u64], idle: &[u64], n: usize) -> Option<Vec<usize>> {
    let mut owner: Vec<Option<usize>> = vec![None; n];
    for from in 0..n {
        let mut seen = vec![false; n];
        if !augment(real, idle, n, from, &mut seen, &mut owner) {
            return None;
        }
    }
    let mut to = vec![0; n];
    for (b, a) in owner.iter().enumerate() {
        to[(*a)?] = b;
    }
    Some(to)
}

fn augment(
    real: &[u64],
    idle: &[u64],
    n: usize,
    from: usize,
    seen: &mut [bool],
    owner: &mut [Option<usize>],
) -> bool {
    let row = from * n..(from + 1) * n;
    let mut receivers: Vec<usize> =
        (0..n).filter(|b| real[row.start + b] + idle[row.start + b] > 0).collect();
    receivers.sort_by_key(|b| core::cmp::Reverse(real[row.start + b]));
    for b in receivers {
        if seen[b] {
            continue;
        }
        seen[b] = true;
        if owner[b].is_none_or(|other| augment(real, idle, n, other, seen, owner)) {
            owner[b] = Some(from);
            return true;
        }
    }
    false
}

/// Zipf's demand: every rank sends `bytes` in all, the k-th most wanted receiver a part in proportion to 1/k; `order` says for each
/// sender which receivers are wanted most, as expert routing does.
#[must_use]
pub fn zipf(
    hosts: usize,
    per_host: usize,
    bytes: u64,
    order: impl Fn(usize) -> Vec<usize>,
) -> Option<Demand> {
    let ranks = hosts.checked_mul(per_host)?;
    let mut all = vec![0_u64; ranks.checked_mul(ranks)?];
    let harmonic: f64 = (1..=ranks).map(|k| 1.0 / k as f64).sum();
    for from in 0..ranks {
        for (place, to) in order(from).into_iter().enumerate() {
            let part = bytes as f64 / (harmonic * (place + 1) as f64);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a positive part of a u64"
            )]
            let part = part as u64;
            *all.get_mut(from * ranks + to)? = part;
        }
    }
    Demand::new(hosts, per_host, all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand() -> impl Strategy<Value = Demand> {
        (1_usize..6, 1_usize..5).prop_flat_map(|(hosts, per_host)| {
            let ranks = hosts * per_host;
            let block = prop_oneof![Just(0_u64), 1_u64..1000, 100_000_u64..1_000_000];
            proptest::collection::vec(block, ranks * ranks)
                .prop_map(move |bytes| Demand::new(hosts, per_host, bytes).unwrap())
        })
    }

    proptest! {
        #[test]
        fn stages_carry_every_byte_in_the_least_time(demand in demand()) {
            let hosts = demand.hosts;
            let wanted = demand.between_hosts();
            let balanced = demand.balanced();
            let mut carried = vec![0; hosts * hosts];
            for stage in &balanced.stages {
                let mut receivers: Vec<usize> = stage.to.iter().flatten().copied().collect();
                let count = receivers.len();
                receivers.sort_unstable();
                receivers.dedup();
                prop_assert_eq!(receivers.len(), count, "a host receives from one at a time");
                for (from, to) in stage.to.iter().enumerate() {
                    if let Some(to) = to {
                        carried[from * hosts + to] += stage.bytes;
                    }
                }
            }
            prop_assert_eq!(&carried, &wanted);
            prop_assert!(balanced.stage_bytes() <= busiest(&wanted, hosts));
            prop_assert!(balanced.stages.len() <= 2 * hosts * hosts);
        }
    }

    #[test]
    fn one_heavy_rank_gets_the_help_of_its_host() {
        // Rank 0 of two hosts of four sends all there is, to one rank of the other host.
        let mut bytes = vec![0; 64];
        bytes[4] = 4000;
        let demand = Demand::new(2, 4, bytes).unwrap();
        let balanced = demand.balanced();
        assert_eq!(balanced.stage_bytes(), 4000);
        assert_eq!(
            balanced.inside, 3000,
            "three quarters go to the others' NICs, and come back from them"
        );
        assert!((demand.least_ns(1.0) - 1000.0).abs() < 1e-9);
        assert!((demand.naive_ns(1.0, 10.0) - 4000.0).abs() < 1e-9);
        assert!(balanced.ns(4, 1.0, 10.0, 0.0) < 1700.0);
    }

    #[test]
    fn even_demand_gains_nothing_by_balance() {
        let demand = Demand::new(3, 2, vec![100; 36]).unwrap();
        assert_eq!(demand.balanced().stages.len(), 2);
        assert_eq!(demand.balanced().inside, 100);
        assert_eq!(Demand::new(2, 2, vec![1; 15]), None);
    }

    #[test]
    fn zipf_sends_what_is_asked() {
        let ranks = 8;
        let demand =
            zipf(2, 4, 1 << 20, |from| (0..ranks).map(|k| (from + k) % ranks).collect()).unwrap();
        let sent: u64 = (0..ranks).map(|to| demand.of(3, to)).sum();
        assert!(((1 << 20) - ranks as u64..=1 << 20).contains(&sent), "{sent}");
    }
}
