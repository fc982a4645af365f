//! How long an operation of a given size takes: latency of the hops plus bytes over bandwidth.
//!
//! Bandwidth is the plan's own, as counted. Latencies and the efficiencies of protocols are those of NCCL 2.30's model
//! (NVIDIA/nccl, `src/graph/tuning.cc`), a start until they are measured:
//!
//! - a base per algorithm and protocol, plus one latency per hop by link class;
//! - LL carries half the bandwidth and is capped by GPU and CPU generation; LL128 carries 120 of 128 bytes, less on trees;
//! - a ring all-reduce across hosts with Simple waits longer (1.4 times the latency; 1.9 before compute capability 8.0).
//!
//! What is not of NCCL's (rounds, forests) has the latencies of its trees, whose hops go to several peers too, and of the protocols
//! what they cost by themselves: half of the bytes are flags with LL, and 0.92 is what LL128 was found to keep of a ring.
//!
//! Where choices differ from NCCL's own on one host of eight (the test `nccl_tuning` compares them size by size):
//!
//! - NCCL's tree on one host is a chain, seven hops each way; ours is three deep, and wins small sizes by that alone.
//! - One-shot and direct rounds do not exist in NCCL; with one or two hops they win from the smallest sizes to where bandwidth rules.
//! - NCCL takes NVLS for large sizes from Hopper on. Nothing here runs it, so it is a candidate and never a choice.
//! - NCCL's corrections of trees by size and its ceilings per channel are left out: they are fitted to its own kernels.
//!
//! All arithmetic on constants is on integers, so that equal inputs give equal tables.

use alloc::vec::Vec;

use topology::calibration::{Calibration, HostLink};
use topology::plan::SizeChoice;
use topology::{Algorithm, Collective, Fraction, Protocol};

use crate::calibrated::{self, Load};

/// What a plan says where its times come from the constants here.
pub const ASSUMPTION: &str =
    "times by size: latencies and efficiencies of NCCL 2.30's model (tuning.cc), not measured";

/// What the model has to know of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Ranks.
    pub ranks: u64,
    /// Hosts they are on.
    pub hosts: u64,
    /// Whether hops inside a host run over NVLink or xGMI, else PCIe.
    pub gpu_links: bool,
    /// Least compute capability times ten; `None` where unknown, taken as 80.
    pub compute_capability: Option<u32>,
    /// Whether the CPUs are AMD's.
    pub amd_cpu: bool,
}

/// What the model has to know of a set of channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// Total data per second at infinite size, GB/s.
    pub algbw_gbps: Fraction,
    /// Hops inside hosts that one waits for after the other, there and back.
    pub intra_hops: u64,
    /// Hops between hosts that one waits for after the other, there and back.
    pub inter_hops: u64,
    /// Part of the data that the first so many channels carry, ascending; the last is 1. One entry where the channels only work together.
    pub prefixes: Vec<(u32, Fraction)>,
}

/// Smallest and largest size of a table, as powers of two.
const SIZES: core::ops::RangeInclusive<u32> = 10..=34;

/// Bytes a channel should have at least before another is used: NCCL's 512 threads times its thresholds of 64 bytes a thread
/// for Simple and 8 for the others.
const fn least_bytes(protocol: Protocol) -> u64 {
    match protocol {
        Protocol::Simple => 512 * 64,
        Protocol::Ll | Protocol::Ll128 => 512 * 8,
    }
}

/// Latencies by protocol: LL, LL128, Simple; in nanoseconds.
type ByProtocol = [u64; 3];

const TREE_BASE: ByProtocol = [6_800, 14_000, 8_400];
const RING_BASE: ByProtocol = [6_600, 14_000, 8_400];
const TREE_GPU_LINK: ByProtocol = [600, 1_250, 4_000];
const TREE_PCIE: ByProtocol = [1_000, 1_900, 4_000];
const TREE_NET: ByProtocol = [5_000, 8_500, 14_000];
const RING_GPU_LINK: ByProtocol = [600, 1_900, 3_400];
const RING_PCIE: ByProtocol = [1_000, 2_500, 5_700];
const RING_NET: ByProtocol = [2_700, 4_000, 14_000];

const fn place(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Ll => 0,
        Protocol::Ll128 => 1,
        Protocol::Simple => 2,
    }
}

impl Machine {
    fn capability(&self) -> u32 {
        self.compute_capability.unwrap_or(80)
    }

    /// Whether a protocol is an option: LL128 needs stores of 128 bytes to stay whole, which NVLink and Volta guarantee.
    fn allows(&self, protocol: Protocol) -> bool {
        protocol != Protocol::Ll128 || (self.gpu_links && self.capability() >= 70)
    }

    /// Bus bandwidth that LL never exceeds, in kB/s.
    fn ll_ceiling_kbps(&self) -> u64 {
        let mbps = match (self.hosts, self.amd_cpu) {
            (0 | 1, _) => match self.capability() {
                100.. => 282_000,
                90.. => 141_000,
                80.. => 87_700,
                _ => 39_000,
            },
            (2, false) => 39_000,
            (2, true) => 22_500,
            (_, false) => 20_400,
            (_, true) => 19_000,
        };
        mbps * 1000
    }
}

/// Time of one operation in picoseconds, with the first `channels` of the shape's prefixes; `None` where the protocol is no option or
/// nothing is carried.
#[must_use]
pub fn predict_ps(
    machine: &Machine,
    collective: Collective,
    shape: &Shape,
    protocol: Protocol,
    part: Fraction,
    bytes: u64,
) -> Option<u64> {
    Line::new(machine, collective, shape, protocol, part)?.ps(bytes)
}

/// Time by size: what an operation takes of itself, and a bandwidth that is not zero.
#[derive(Clone, Copy, Debug)]
struct Line {
    latency_ps: u64,
    kbps: u64,
}

impl Line {
    fn new(
        machine: &Machine,
        collective: Collective,
        shape: &Shape,
        protocol: Protocol,
        part: Fraction,
    ) -> Option<Self> {
        if !machine.allows(protocol) {
            return None;
        }
        let kbps =
            shape.algbw_gbps.checked_mul(part)?.checked_mul(Fraction::integer(1_000_000))?.floor();
        let kbps = u128::try_from(kbps).ok()?;
        let kbps = bandwidth_kbps(machine, collective, shape.algorithm, protocol, kbps);
        let latency_ps = latency_ns(machine, collective, shape, protocol).checked_mul(1_000)?;
        let kbps = u64::try_from(kbps).ok().filter(|kbps| *kbps > 0)?;
        Some(Self { latency_ps, kbps })
    }

    fn ps(self, bytes: u64) -> Option<u64> {
        const PER_SECOND: u64 = 1_000_000_000;
        let transfer_ps = match bytes.checked_mul(PER_SECOND) {
            Some(product) => product / self.kbps,
            None => {
                let product = u128::from(bytes) * u128::from(PER_SECOND);
                u64::try_from(product / u128::from(self.kbps)).ok()?
            }
        };
        self.latency_ps.checked_add(transfer_ps)
    }
}

fn is_ring(algorithm: Algorithm) -> bool {
    algorithm == Algorithm::Ring
}

fn latency_ns(machine: &Machine, collective: Collective, shape: &Shape, protocol: Protocol) -> u64 {
    let at = place(protocol);
    let ring = is_ring(shape.algorithm);
    let (base, intra, net) = match (ring, machine.gpu_links) {
        (true, true) => (RING_BASE, RING_GPU_LINK, RING_NET),
        (true, false) => (RING_BASE, RING_PCIE, RING_NET),
        (false, true) => (TREE_BASE, TREE_GPU_LINK, TREE_NET),
        (false, false) => (TREE_BASE, TREE_PCIE, TREE_NET),
    };
    let hops = shape.intra_hops * intra[at] + shape.inter_hops * net[at];
    let latency = base[at] + hops;
    let waits = ring
        && machine.hosts > 1
        && collective == Collective::AllReduce
        && protocol == Protocol::Simple;
    match (waits, machine.capability() < 80) {
        (false, _) => latency,
        (true, false) => latency * 14 / 10,
        (true, true) => latency * 19 / 10,
    }
}

/// What is left of the counted bandwidth under a protocol.
fn bandwidth_kbps(
    machine: &Machine,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    kbps: u128,
) -> u128 {
    let permille = match (algorithm, protocol) {
        (Algorithm::Tree, Protocol::Simple) => 920,
        (_, Protocol::Simple) => 1_000,
        (Algorithm::Tree, Protocol::Ll) => 920 * 10 / 38,
        (_, Protocol::Ll) => 500,
        (Algorithm::Tree, Protocol::Ll128) if machine.hosts > 1 => 920 * 120 / 128,
        (Algorithm::Tree, Protocol::Ll128) => 920 * 7 / 9,
        (_, Protocol::Ll128) => 920,
    };
    let scaled = kbps * permille / 1_000;
    if protocol != Protocol::Ll {
        return scaled;
    }
    // The ceiling is one of bus bandwidth.
    let n = u128::from(machine.ranks.max(2));
    let (over, under) = match collective {
        Collective::AllReduce => (n, 2 * (n - 1)),
        Collective::Broadcast | Collective::Reduce | Collective::SendRecv => (1, 1),
        _ => (n, n - 1),
    };
    scaled.min(u128::from(machine.ll_ceiling_kbps()) * over / under)
}

/// The fastest choice by size, from 1 KiB up by powers of two, equal neighbours joined. Empty where no shape is given.
#[must_use]
pub fn table(machine: &Machine, collective: Collective, shapes: &[Shape]) -> Vec<SizeChoice> {
    let with = |shape, protocol| Candidate { shape, protocol, last: None };
    let by_protocol = [Protocol::Simple, Protocol::Ll128, Protocol::Ll];
    let mut candidates: Vec<[Candidate<'_>; 3]> =
        shapes.iter().map(|shape| by_protocol.map(|protocol| with(shape, protocol))).collect();
    let mut rows = Vec::with_capacity(shapes.len());
    envelope(|bytes| {
        rows.clear();
        rows.extend(candidates.iter_mut().filter_map(|of_shape| {
            let of_protocol =
                of_shape.iter_mut().filter_map(|c| c.choice(machine, collective, bytes));
            of_protocol.min_by_key(|row| row.predicted_ps)
        }));
        worth_it(&rows)
    })
}

/// An algorithm of a plan over the links of a host that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnHost {
    /// Which.
    pub algorithm: Algorithm,
    /// Of the plan's.
    pub channels: u32,
    /// What it asks of the links.
    pub load: Load,
}

/// [`table`] for processes of one host, by what its links were measured to do.
#[must_use]
pub fn measured_table(
    calibration: &Calibration,
    collective: Collective,
    ranks: usize,
    candidates: &[OnHost],
) -> Vec<SizeChoice> {
    envelope(|bytes| {
        let row = |of: &OnHost| {
            let (link, algorithm) = (HostLink::Shm, of.algorithm);
            let ns = calibrated::predict_ns(
                calibration,
                link,
                collective,
                algorithm,
                ranks,
                of.load,
                bytes,
            )?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a positive time; beyond 200 days it saturates"
            )]
            let predicted_ps = Some((ns * 1e3) as u64);
            Some(SizeChoice {
                max_bytes: bytes,
                algorithm: of.algorithm,
                protocol: Protocol::Simple,
                channels: of.channels,
                predicted_ps,
            })
        };
        worth_it(&candidates.iter().filter_map(row).collect::<Vec<_>>())
    })
}

/// Choices by size, equal neighbours joined.
fn envelope(mut fastest: impl FnMut(u64) -> Option<SizeChoice>) -> Vec<SizeChoice> {
    let mut rows: Vec<SizeChoice> = Vec::new();
    for power in SIZES {
        let bytes = 1_u64 << power;
        let Some(row) = fastest(bytes) else { continue };
        match rows.last_mut() {
            Some(last)
                if (last.algorithm, last.protocol, last.channels)
                    == (row.algorithm, row.protocol, row.channels) =>
            {
                *last = row;
            }
            _ => rows.push(row),
        }
    }
    if let Some(last) = rows.last_mut() {
        last.max_bytes = u64::MAX;
        last.predicted_ps = None;
    }
    rows
}

/// A shape under a protocol, asked size by size.
struct Candidate<'a> {
    shape: &'a Shape,
    protocol: Protocol,
    /// Of the channels last asked for: sizes that follow one another mostly take the same.
    last: Option<(u32, Option<Line>)>,
}

impl Candidate<'_> {
    fn choice(
        &mut self,
        machine: &Machine,
        collective: Collective,
        bytes: u64,
    ) -> Option<SizeChoice> {
        let Self { shape, protocol, .. } = *self;
        // As many channels as have enough to carry each, but one.
        let useful = (bytes / least_bytes(protocol)).max(1);
        let fitting = shape.prefixes.iter().rev().find(|(k, _)| u64::from(*k) <= useful);
        let &(channels, part) = fitting.or_else(|| shape.prefixes.first())?;
        let line = match self.last {
            Some((known, line)) if known == channels => line,
            _ => {
                let line = Line::new(machine, collective, shape, protocol, part);
                self.last = Some((channels, line));
                line
            }
        };
        Some(SizeChoice {
            max_bytes: bytes,
            algorithm: shape.algorithm,
            protocol,
            channels,
            predicted_ps: Some(line?.ps(bytes)?),
        })
    }
}

/// The first of `rows` that is within a twentieth of the fastest: what is best at infinite size comes first, and is left only where
/// that gains something.
fn worth_it(rows: &[SizeChoice]) -> Option<SizeChoice> {
    let time = |row: &SizeChoice| row.predicted_ps.unwrap_or(u64::MAX);
    let least = rows.iter().map(time).min()?;
    rows.iter().find(|row| time(row) <= least.saturating_add(least / 20)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DGX1: Machine = Machine {
        ranks: 8,
        hosts: 1,
        gpu_links: true,
        compute_capability: Some(70),
        amd_cpu: false,
    };

    fn ring(gbps: i128) -> Shape {
        Shape {
            algorithm: Algorithm::Ring,
            algbw_gbps: Fraction::integer(gbps),
            intra_hops: 14,
            inter_hops: 0,
            prefixes: [(1, Fraction::of(1, 2)), (2, Fraction::ONE)].into(),
        }
    }

    fn tree(gbps: i128) -> Shape {
        Shape {
            algorithm: Algorithm::Tree,
            algbw_gbps: Fraction::integer(gbps),
            intra_hops: 6,
            inter_hops: 0,
            prefixes: [(2, Fraction::ONE)].into(),
        }
    }

    #[track_caller]
    fn check(shape: &Shape, protocol: Protocol, bytes: u64, expect_us: u64) {
        let found = predict_ps(&DGX1, Collective::AllReduce, shape, protocol, Fraction::ONE, bytes);
        assert_eq!(found.map(|ps| ps / 1_000_000), Some(expect_us));
    }

    #[test]
    fn latency_and_bandwidth_add_up() {
        // 6.6 us and 14 hops of 0.6 us; at 64 MiB and half of 60 GB/s it is all transfer.
        check(&ring(60), Protocol::Ll, 8, 15);
        check(&ring(60), Protocol::Simple, 0, 56);
        check(&ring(60), Protocol::Simple, 60 << 20, 1_104);
        // LL stops at 39 GB/s of bus bandwidth, 22.3 of algorithm bandwidth.
        check(&ring(60), Protocol::Ll, 22_285_000, 1_014);
    }

    #[test]
    fn small_sizes_take_trees_and_large_ones_rings() {
        let rows = table(&DGX1, Collective::AllReduce, &[ring(68), tree(50)]);
        assert!(rows.is_sorted_by_key(|row| row.max_bytes));
        let (first, last) = (&rows[0], &rows[rows.len() - 1]);
        assert_eq!((first.algorithm, first.protocol), (Algorithm::Tree, Protocol::Ll));
        assert_eq!((last.algorithm, last.protocol), (Algorithm::Ring, Protocol::Simple));
        assert_eq!((last.max_bytes, last.channels, last.predicted_ps), (u64::MAX, 2, None));
    }

    #[test]
    fn few_bytes_use_few_channels() {
        let rows = table(&DGX1, Collective::AllGather, &[ring(120)]);
        assert_eq!(rows[0].channels, 1);
    }

    #[test]
    fn nothing_to_choose_from() {
        assert_eq!(table(&DGX1, Collective::AllReduce, &[]), []);
    }

    #[test]
    fn no_ll128_over_pcie() {
        let machine = Machine { gpu_links: false, ..DGX1 };
        let one = Fraction::ONE;
        let ll128 = predict_ps(&machine, Collective::AllReduce, &ring(9), Protocol::Ll128, one, 8);
        assert_eq!(ll128, None);
    }
}
