//! What groups of GPUs of one job put on links, and what each gets when several run at once.
//!
//! A group inside one host loads the links that its own plan uses. A group over several hosts works in the hierarchical form: its members on
//! each host among themselves by the plan for them, and over the network each host to the next, every member with an equal part over
//! its own NICs:
//!
//! ```text
//!   host 0   GPU0 ─ GPU1        reduce-scatter inside      each byte of the group's data crosses
//!             │      │          all-reduce along rails      a member's NICs 2 (B-1) / (B k) times, out and in,
//!   host 1   GPU0 ─ GPU1        all-gather inside           for B hosts with k members each
//! ```
//!
//! Rates are of a group's data as [`Motion`] defines it, in kB/s. Groups that share links get max-min shares: all rates grow alike until a link is
//! full; the groups on it stop, the others go on.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use topology::plan::LinkPolicy;
use topology::{Collective, Fraction, LinkId, LinkKind, PlanRequest};

use crate::check;
use crate::fleet::{Fleet, Uplink};
use crate::plan_error::PlanError;

/// What a group does, and what its data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Motion {
    /// All-reduce of a buffer that each member has.
    AllReduce,
    /// All-gather; the data is the gathered buffer.
    AllGather,
    /// All-to-all; the data is a member's send buffer, of which an equal part is for each.
    AllToAll,
    /// Each member to the next, the last to none; the data is what one sends.
    Chain,
}

/// A GPU of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuPlace {
    /// Host, by place in [`Fleet::class_of`].
    pub host: usize,
    /// GPU, by place in its class's list.
    pub gpu: usize,
}

/// A directed link of one host.
pub type HostLink = (usize, LinkId);

/// The worst links a group crosses; ordered from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// A single GPU.
    Alone,
    /// NVLink, xGMI or a link graph's links.
    GpuLinks,
    /// PCIe or a socket link.
    Pcie,
    /// The network, each NIC to those of its own rail.
    Rail,
    /// The network, from one rail to another.
    CrossRail,
}

impl Tier {
    /// In one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::GpuLinks => "gpu-links",
            Self::Pcie => "pcie",
            Self::Rail => "rail",
            Self::CrossRail => "cross-rail",
        }
    }
}

/// Why a group's loads are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A GPU has no way to the network.
    #[error("GPU{gpu} of host {host} has no NIC to reach other hosts by")]
    NoNetwork {
        /// Place of the host.
        host: usize,
        /// NVML index.
        gpu: u32,
    },
    /// Two GPUs of a host without a way to each other.
    #[error("host {host}: {error}")]
    Apart {
        /// Place of the host.
        host: usize,
        /// Why there is no plan.
        error: PlanError,
    },
}

/// What one group puts on links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLoads {
    /// Bytes over a link per byte of the group's data; by link, without those that carry nothing.
    pub loads: Vec<(HostLink, Fraction)>,
    /// Hops inside hosts on the longest chain, one way.
    pub hops_inside: u64,
    /// Hops between hosts on it.
    pub hops_between: u64,
    /// Hosts it is on.
    pub hosts: u64,
    /// Members.
    pub members: u64,
    /// The worst links it crosses.
    pub tier: Tier,
}

impl GroupLoads {
    /// Data per second where it runs alone, kB/s; `None` where nothing crosses any link.
    #[must_use]
    pub fn alone(&self, fleet: &Fleet) -> Option<Fraction> {
        let rate = |(link, load): &(HostLink, Fraction)| {
            Fraction::of(capacity_kbps(fleet, *link), 1).checked_div(*load)
        };
        self.loads.iter().filter_map(rate).min()
    }
}

/// Capacity of a link, kB/s.
#[must_use]
pub fn capacity_kbps(fleet: &Fleet, (host, link): HostLink) -> u64 {
    fleet.class(host).topology.link(link).bandwidth.kbps()
}

/// Data per second of each group where all run at once: max-min shares in kB/s, rounded down to whole ones; `None` where nothing crosses any link.
#[must_use]
pub fn shares(fleet: &Fleet, groups: &[&GroupLoads]) -> Vec<Option<Fraction>> {
    let mut users: BTreeMap<HostLink, Vec<(usize, Fraction)>> = BTreeMap::new();
    for (group, of) in groups.iter().enumerate() {
        for (link, load) in &of.loads {
            users.entry(*link).or_default().push((group, *load));
        }
    }
    let mut rates: Vec<Option<Fraction>> = vec![None; groups.len()];
    let mut waiting: BTreeSet<usize> =
        (0..groups.len()).filter(|&group| !groups[group].loads.is_empty()).collect();
    while !waiting.is_empty() {
        // The rate at which a link is full, of those whose groups still grow.
        let full = |(link, users): (&HostLink, &Vec<(usize, Fraction)>)| {
            let mut left = Fraction::of(capacity_kbps(fleet, *link), 1);
            let mut growing = Fraction::ZERO;
            for (group, load) in users {
                match rates[*group] {
                    Some(rate) => left = left.checked_sub(load.checked_mul(rate)?)?,
                    None => growing = growing.checked_add(*load)?,
                }
            }
            (!growing.is_zero()).then(|| left.checked_div(growing)).flatten()
        };
        let all: Vec<(HostLink, Fraction)> =
            users.iter().filter_map(|entry| Some((*entry.0, full(entry)?))).collect();
        let Some(least) = all.iter().map(|(_, rate)| *rate).min() else { break };
        let rate = Fraction::integer(least.floor().max(0));
        for (link, _) in all.iter().filter(|(_, rate)| *rate == least) {
            for (group, _) in &users[link] {
                if waiting.remove(group) {
                    rates[*group] = Some(rate);
                }
            }
        }
    }
    rates
}

/// Finds loads of groups; what was found for the GPUs of a host is kept.
#[derive(Debug)]
pub struct Loader<'a> {
    fleet: &'a Fleet,
    links: LinkPolicy,
    /// By class, collective and GPUs.
    known: BTreeMap<(usize, Collective, Vec<usize>), Result<Local, PlanError>>,
}

/// What GPUs of one host put on its links.
#[derive(Clone, Debug, Default)]
struct Local {
    loads: Vec<(LinkId, Fraction)>,
    height: u64,
}

/// Loads while they are added up.
type Sums = BTreeMap<HostLink, Fraction>;

fn add(sums: &mut Sums, link: HostLink, load: Fraction) {
    if !load.is_zero() {
        let sum = sums.entry(link).or_insert(Fraction::ZERO);
        *sum = *sum + load;
    }
}

impl<'a> Loader<'a> {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(fleet: &'a Fleet, links: LinkPolicy) -> Self {
        Self { fleet, links, known: BTreeMap::new() }
    }

    /// The fleet it is about.
    #[must_use]
    pub fn fleet(&self) -> &'a Fleet {
        self.fleet
    }

    /// What a group puts on links. The order of members matters for a [`Motion::Chain`] alone.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn group(
        &mut self,
        motion: Motion,
        members: &[GpuPlace],
    ) -> Result<GroupLoads, GroupError> {
        let mut by_host: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for member in members {
            by_host.entry(member.host).or_default().push(member.gpu);
        }
        by_host.values_mut().for_each(|gpus| gpus.sort_unstable());
        let mut sums = Sums::new();
        let (hops_inside, hops_between) = if members.len() < 2 {
            (0, 0)
        } else if motion == Motion::Chain {
            self.chain(members, &mut sums)?
        } else {
            self.inside(motion, &by_host, members.len(), &mut sums)?
        };
        if by_host.len() > 1 && motion != Motion::Chain {
            self.between(motion, &by_host, members.len(), &mut sums)?;
        }
        let loads: Vec<(HostLink, Fraction)> = sums.into_iter().collect();
        let hops_between = match motion {
            Motion::Chain => hops_between,
            Motion::AllToAll => (by_host.len() as u64 - 1).min(1),
            _ => by_host.len() as u64 - 1,
        };
        let tier = self.tier(motion, members, &by_host, &loads);
        Ok(GroupLoads {
            loads,
            hops_inside,
            hops_between,
            hosts: by_host.len() as u64,
            members: members.len() as u64,
            tier,
        })
    }

    /// The members on each host among themselves; hops.
    fn inside(
        &mut self,
        motion: Motion,
        by_host: &BTreeMap<usize, Vec<usize>>,
        members: usize,
        sums: &mut Sums,
    ) -> Result<(u64, u64), GroupError> {
        let mut height = 0;
        for (&host, gpus) in by_host {
            let collective = match motion {
                Motion::AllReduce => Collective::AllReduce,
                Motion::AllToAll => Collective::AllToAll,
                Motion::AllGather | Motion::Chain => Collective::AllGather,
            };
            // Of an all-to-all, the part for members on this host stays here.
            let part = match motion {
                Motion::AllToAll => Fraction::of(gpus.len() as u64, members as u64),
                _ => Fraction::ONE,
            };
            let local = self
                .local(self.fleet.class_of[host], collective, gpus)
                .map_err(|error| GroupError::Apart { host, error })?;
            height = height.max(local.height);
            for &(link, load) in &local.loads {
                add(sums, (host, link), load * part);
            }
        }
        Ok((height, 0))
    }

    fn local(
        &mut self,
        class: usize,
        collective: Collective,
        gpus: &[usize],
    ) -> Result<&Local, PlanError> {
        let fleet = self.fleet;
        let links = self.links;
        let entry = self.known.entry((class, collective, gpus.to_vec()));
        let found = entry.or_insert_with(|| {
            if gpus.len() < 2 {
                return Ok(Local::default());
            }
            let of = &fleet.classes[class];
            let request = PlanRequest {
                gpus: Some(gpus.iter().map(|&place| of.gpus[place].index).collect()),
                collectives: vec![collective],
                links,
                ..PlanRequest::default()
            };
            let plan = crate::plan(&of.topology, &request)?;
            check::count(&of.topology, &plan.ranks, &plan.channels, collective)
                .map(|counted| Local { loads: counted.loads, height: counted.height.into() })
                .map_err(|_| PlanError::NotPlanned { collective })
        });
        found.as_ref().map_err(Clone::clone)
    }

    /// What each host's members send to the network and take from it.
    fn between(
        &self,
        motion: Motion,
        by_host: &BTreeMap<usize, Vec<usize>>,
        members: usize,
        sums: &mut Sums,
    ) -> Result<(), GroupError> {
        let (hosts, members) = (by_host.len() as u64, members as u64);
        let sizes: Vec<u64> = by_host.values().map(|gpus| gpus.len() as u64).collect();
        for (at, (&host, gpus)) in by_host.iter().enumerate() {
            let here = sizes[at];
            let next = sizes[(at + 1) % sizes.len()];
            // Of the host's traffic, per byte of data.
            let (out, back) = match motion {
                Motion::AllReduce => {
                    let both = Fraction::of(2 * (hosts - 1), hosts);
                    (both, both)
                }
                // Along a ring of hosts, each forwards all but what the next one has.
                Motion::AllGather | Motion::Chain => {
                    (Fraction::of(members - next, members), Fraction::of(members - here, members))
                }
                Motion::AllToAll => {
                    let away = Fraction::of((members - here) * here, members);
                    (away, away)
                }
            };
            let part = Fraction::of(1, here);
            for &gpu in gpus {
                let uplinks = self.uplinks(GpuPlace { host, gpu })?;
                for uplink in uplinks {
                    let load = part * uplink.share;
                    uplink.out.iter().for_each(|&link| add(sums, (host, link), load * out));
                    uplink.back.iter().for_each(|&link| add(sums, (host, link), load * back));
                }
            }
        }
        Ok(())
    }

    fn uplinks(&self, place: GpuPlace) -> Result<&'a [Uplink], GroupError> {
        let gpu = &self.fleet.class(place.host).gpus[place.gpu];
        if gpu.uplinks.is_empty() {
            return Err(GroupError::NoNetwork { host: place.host, gpu: gpu.index.0 });
        }
        Ok(&gpu.uplinks)
    }

    /// From each to the next; whether a hop is inside a host, and whether one is between hosts.
    fn chain(&self, members: &[GpuPlace], sums: &mut Sums) -> Result<(u64, u64), GroupError> {
        let (mut inside, mut between) = (0, 0);
        for pair in members.windows(2) {
            let [from, to] = [pair[0], pair[1]];
            if from.host == to.host {
                inside = 1;
                let class = self.fleet.class(from.host);
                let (a, b) = (class.gpus[from.gpu].vertex, class.gpus[to.gpu].vertex);
                let path = class.topology.path(a, b);
                if path.hops.is_empty() {
                    let name = |vertex| class.topology.vertex(vertex).name.clone();
                    let error = PlanError::Disconnected { from: name(a), to: name(b) };
                    return Err(GroupError::Apart { host: from.host, error });
                }
                for hop in path.hops {
                    add(sums, (from.host, hop.link), Fraction::ONE);
                }
            } else {
                between = 1;
                for uplink in self.uplinks(from)? {
                    uplink.out.iter().for_each(|&link| add(sums, (from.host, link), uplink.share));
                }
                for uplink in self.uplinks(to)? {
                    uplink.back.iter().for_each(|&link| add(sums, (to.host, link), uplink.share));
                }
            }
        }
        Ok((inside, between))
    }

    fn tier(
        &self,
        motion: Motion,
        members: &[GpuPlace],
        by_host: &BTreeMap<usize, Vec<usize>>,
        loads: &[(HostLink, Fraction)],
    ) -> Tier {
        let rails = |place: GpuPlace| -> BTreeSet<usize> {
            let uplinks = &self.fleet.class(place.host).gpus[place.gpu].uplinks;
            uplinks.iter().map(|uplink| uplink.rail).collect()
        };
        let of_host = |(&host, gpus): (&usize, &Vec<usize>)| -> BTreeSet<usize> {
            gpus.iter().flat_map(|&gpu| rails(GpuPlace { host, gpu })).collect()
        };
        let kind = |(host, link): HostLink| self.fleet.class(host).topology.link(link).kind;
        if by_host.len() > 1 {
            let crosses = match motion {
                Motion::Chain => members
                    .windows(2)
                    .any(|pair| pair[0].host != pair[1].host && rails(pair[0]) != rails(pair[1])),
                // Everyone to everyone: one rail, or it is crossed.
                Motion::AllToAll => {
                    members.iter().any(|&member| rails(member) != rails(members[0]))
                }
                _ => {
                    let of: Vec<_> = by_host.iter().map(of_host).collect();
                    of.iter().any(|rails| *rails != of[0])
                }
            };
            if crosses { Tier::CrossRail } else { Tier::Rail }
        } else if loads.is_empty() {
            Tier::Alone
        } else if loads.iter().any(|(link, _)| {
            matches!(kind(*link), LinkKind::Pcie | LinkKind::Socket | LinkKind::Net)
        }) {
            Tier::Pcie
        } else {
            Tier::GpuLinks
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_hosts::{copies, host, joined};

    fn places(members: &[(usize, usize)]) -> Vec<GpuPlace> {
        members.iter().map(|&(host, gpu)| GpuPlace { host, gpu }).collect()
    }

    /// Rates alone and together in GB/s, rounded down.
    #[track_caller]
    fn check(
        fleet: &Fleet,
        groups: &[(Motion, &[(usize, usize)])],
        alone: &[i128],
        together: &[i128],
    ) {
        let mut loader = Loader::new(fleet, LinkPolicy::Auto);
        let made: Vec<GroupLoads> =
            groups.iter().map(|(motion, m)| loader.group(*motion, &places(m)).unwrap()).collect();
        let whole = |rate: Option<Fraction>| rate.map_or(-1, |rate| rate.floor() / 1_000_000);
        let found: Vec<i128> = made.iter().map(|group| whole(group.alone(fleet))).collect();
        assert_eq!(found, alone, "alone");
        let all: Vec<&GroupLoads> = made.iter().collect();
        let found: Vec<i128> = shares(fleet, &all).into_iter().map(whole).collect();
        assert_eq!(found, together, "together");
    }

    #[test]
    fn groups_on_links_of_their_own_keep_what_they_have() {
        let fleet = Fleet::of(&joined(&[host("dgx1v")])).unwrap();
        // Pairs that two links join, 20 GB/s each way and link.
        let pairs: [(Motion, &[(usize, usize)]); 2] =
            [(Motion::AllReduce, &[(0, 0), (0, 3)]), (Motion::AllReduce, &[(0, 4), (0, 7)])];
        check(&fleet, &pairs, &[40, 40], &[40, 40]);
    }

    #[test]
    fn groups_over_one_link_share_it() {
        let fleet = Fleet::of(&joined(&[host("dgx1v")])).unwrap();
        let chain: (Motion, &[(usize, usize)]) = (Motion::Chain, &[(0, 0), (0, 3)]);
        check(&fleet, &[chain, chain], &[40, 40], &[20, 20]);
        // The one that shares nothing gets all of its own.
        check(&fleet, &[chain, chain, (Motion::Chain, &[(0, 1), (0, 2)])], &[40; 3], &[20, 20, 40]);
    }

    #[test]
    fn over_hosts_a_group_is_as_fast_as_its_nics() {
        let fleet = Fleet::of(&copies("dgx_h100", 4)).unwrap();
        // 50 GB/s a NIC, and PCIe beside it that carries 48 in NCCL's model: 2 (B-1)/B of the data out and in.
        let group: Vec<(usize, usize)> = (0..4).map(|host| (host, 0)).collect();
        let mut loader = Loader::new(&fleet, LinkPolicy::Auto);
        let loads = loader.group(Motion::AllReduce, &places(&group)).unwrap();
        let nic = loads.loads.iter().map(|(link, _)| capacity_kbps(&fleet, *link)).min().unwrap();
        assert_eq!(loads.alone(&fleet).unwrap(), Fraction::of(nic * 2, 3));
        assert_eq!((loads.tier, loads.hops_between, loads.hosts), (Tier::Rail, 3, 4));
        // Two members on a host halve what each sends.
        let group: Vec<(usize, usize)> = (0..4).flat_map(|host| [(host, 0), (host, 1)]).collect();
        let loads = loader.group(Motion::AllReduce, &places(&group)).unwrap();
        assert_eq!(loads.alone(&fleet).unwrap(), Fraction::of(nic * 4, 3));
    }

    #[test]
    fn another_rail_on_the_other_host_is_said() {
        let fleet = Fleet::of(&copies("dgx_h100", 2)).unwrap();
        let mut loader = Loader::new(&fleet, LinkPolicy::Auto);
        let mut tier = |motion, members: &[(usize, usize)]| {
            loader.group(motion, &places(members)).unwrap().tier
        };
        assert_eq!(tier(Motion::AllReduce, &[(0, 1), (1, 1)]), Tier::Rail);
        assert_eq!(tier(Motion::AllReduce, &[(0, 1), (1, 2)]), Tier::CrossRail);
        assert_eq!(tier(Motion::Chain, &[(0, 1), (1, 1), (1, 2)]), Tier::Rail);
        assert_eq!(tier(Motion::AllGather, &[(0, 1), (0, 2)]), Tier::GpuLinks);
        assert_eq!(tier(Motion::AllReduce, &[(0, 1)]), Tier::Alone);
    }

    /// No link carries more than it can, and no group could have more without another having less.
    #[test]
    fn shares_fill_a_link_of_every_group() {
        let fleet = Fleet::of(&copies("pcie_switches", 2)).unwrap();
        let mut loader = Loader::new(&fleet, LinkPolicy::Auto);
        let gpus = fleet.class(0).gpus.len();
        let mut made = Vec::new();
        for gpu in 0..gpus {
            made.push(loader.group(Motion::AllReduce, &places(&[(0, gpu), (1, gpu)])).unwrap());
            made.push(
                loader.group(Motion::Chain, &places(&[(0, gpu), (0, (gpu + 1) % gpus)])).unwrap(),
            );
        }
        made.push(
            loader.group(Motion::AllToAll, &places(&[(0, 0), (0, 1), (1, 0), (1, 1)])).unwrap(),
        );
        let all: Vec<&GroupLoads> = made.iter().collect();
        let rates = shares(&fleet, &all);
        let mut carried: BTreeMap<HostLink, Fraction> = BTreeMap::new();
        for (group, rate) in made.iter().zip(&rates) {
            assert!(rate.unwrap() <= group.alone(&fleet).unwrap());
            for (link, load) in &group.loads {
                let sum = carried.entry(*link).or_default();
                *sum = *sum + *load * rate.unwrap();
            }
        }
        for (link, sum) in &carried {
            assert!(*sum <= Fraction::of(capacity_kbps(&fleet, *link), 1), "{link:?}");
        }
        for (group, rate) in made.iter().zip(&rates) {
            // Rates are rounded down to kB/s: as much may be left for each that shares a link.
            let room =
                |link: &HostLink| Fraction::of(capacity_kbps(&fleet, *link), 1) - carried[link];
            let bottleneck = group.loads.iter().any(|(link, _)| {
                let users =
                    made.iter().zip(&rates).filter(|(g, _)| g.loads.iter().any(|l| l.0 == *link));
                room(link) < Fraction::of(16, 1)
                    && users.map(|(_, rate)| *rate).max() <= Some(*rate)
            });
            assert!(bottleneck, "{group:?} {rate:?}");
        }
    }
}
