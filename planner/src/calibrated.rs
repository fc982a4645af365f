//! Predictions from what a host's links were measured to do.
//!
//! ```text
//!   time = hops alpha + bytes of the busiest rank / rate, over the links          one line for all sizes
//!        + what it adds up and copies in memory of its own                        at the links' rate: those are copies too
//!        x how far the link was off the line at that size                         caches
//!        x how far the algorithm was off its links end to end at about that size  its own work
//! ```
//!
//! The last factor is kept between 0.3 and 1.5: beyond that something is wrong with the measurement, and a wrong table must not turn
//! a choice round.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use topology::calibration::{Calibration, HostLink, LinkFit, Point};
use topology::plan::Pattern;
use topology::{Algorithm, Channel, Collective, Fraction, Rank};

/// Bounds of an algorithm's own factor.
pub const FACTORS: (f64, f64) = (0.3, 1.5);

/// Relative error from which a measurement counts less: what lies further off the line than this is noise, a cache or a pause.
const HUBER: f64 = 0.1;
/// Rounds of reweighting; the line no longer moves long before.
const ROUNDS: usize = 50;

/// A line through times by size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Nanoseconds of no bytes.
    pub alpha_ns: f64,
    /// Nanoseconds a byte.
    pub ns_per_byte: f64,
}

/// The line that is nearest to times in nanoseconds by bytes, by least squares of the relative error with Huber's weights; `None`
/// where fewer than two sizes differ. Neither part is negative.
#[must_use]
pub fn fit(points: &[(u64, f64)]) -> Option<Line> {
    let usable: Vec<(f64, f64)> = points
        .iter()
        .filter(|(_, time)| time.is_finite() && *time > 0.0)
        .map(|&(bytes, time)| (bytes as f64, time))
        .collect();
    let first = usable.first()?.0;
    if usable.iter().all(|(bytes, _)| (bytes - first).abs() < 0.5) {
        return None;
    }
    let mut weights = vec![1.0; usable.len()];
    let mut line = Line { alpha_ns: 0.0, ns_per_byte: 0.0 };
    for _ in 0..ROUNDS {
        line = weighted(&usable, &weights);
        for (weight, &(bytes, time)) in weights.iter_mut().zip(&usable) {
            let off = ((line.alpha_ns + line.ns_per_byte * bytes) / time - 1.0).abs();
            *weight = if off <= HUBER { 1.0 } else { HUBER / off };
        }
    }
    Some(line)
}

/// Least squares of (alpha + beta bytes) / time - 1.
fn weighted(points: &[(f64, f64)], weights: &[f64]) -> Line {
    // Unknowns of 1/time and bytes/time, all aimed at 1.
    let (mut aa, mut ab, mut bb, mut a, mut b) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (&(bytes, time), weight) in points.iter().zip(weights) {
        let (x, y) = (1.0 / time, bytes / time);
        aa += weight * x * x;
        ab += weight * x * y;
        bb += weight * y * y;
        a += weight * x;
        b += weight * y;
    }
    let determinant = aa * bb - ab * ab;
    let alpha = (a * bb - b * ab) / determinant;
    let beta = (b * aa - a * ab) / determinant;
    if alpha.is_finite() && beta.is_finite() && alpha >= 0.0 && beta >= 0.0 {
        Line { alpha_ns: alpha, ns_per_byte: beta }
    } else if beta.is_finite() && beta >= 0.0 {
        Line { alpha_ns: 0.0, ns_per_byte: if bb > 0.0 { b / bb } else { 0.0 } }
    } else {
        Line { alpha_ns: if aa > 0.0 { a / aa } else { 0.0 }, ns_per_byte: 0.0 }
    }
}

/// A link from its points, ascending; `None` where they do not make a line.
#[must_use]
pub fn link(link: HostLink, points: Vec<Point>) -> Option<LinkFit> {
    let one_way: Vec<(u64, f64)> = points.iter().map(|p| (p.bytes, p.one_way_ns)).collect();
    let both: Vec<(u64, f64)> = points.iter().map(|p| (p.bytes, p.exchange_ns)).collect();
    let (one_way, both) = (fit(&one_way)?, fit(&both)?);
    let rate = |line: Line| (line.ns_per_byte > 0.0).then(|| 1.0 / line.ns_per_byte);
    Some(LinkFit {
        link,
        alpha_ns: one_way.alpha_ns,
        gbps: rate(one_way)?,
        duplex_gbps: rate(both)?,
        points,
        shared: Vec::new(),
    })
}

/// A factor at a size between those of `known`, ascending: along the logarithm of the size; beyond the ends, the ends'.
fn between(known: impl Iterator<Item = (u64, f64)>, bytes: u64) -> Option<f64> {
    let mut before: Option<(u64, f64)> = None;
    for (size, factor) in known {
        if size >= bytes {
            let Some((lower, below)) = before else { return Some(factor) };
            let (from, to, at) = (log2(lower), log2(size), log2(bytes));
            return Some(below + (factor - below) * (at - from) / (to - from));
        }
        before = Some((size, factor));
    }
    before.map(|(_, factor)| factor)
}

/// The logarithm, straight between powers of two.
fn log2(bytes: u64) -> f64 {
    let bytes = bytes.max(1);
    let whole = bytes.ilog2();
    f64::from(whole) + (bytes as f64 / (1_u64 << whole) as f64 - 1.0)
}

/// What a list of channels asks of a host's links for one byte of a collective's total data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Hops that one waits for after the other.
    pub hops: u32,
    /// Bytes that the rank which sends most sends.
    pub sent: f64,
    /// Bytes that a rank adds up or copies beside what links do: where everybody sends to everybody, what came is kept and added up in the
    /// order of ranks when all of it is there.
    pub worked: f64,
}

impl Load {
    /// Of channels that carry `collective` among `ranks`; where they have several roots and the collective one, of the root for which
    /// most is sent.
    #[must_use]
    pub fn of<'a>(
        channels: impl Iterator<Item = &'a Channel> + Clone,
        collective: Collective,
        ranks: usize,
    ) -> Self {
        let roots: BTreeSet<Rank> = channels.clone().filter_map(|channel| channel.root).collect();
        if !collective.has_root() || roots.len() < 2 {
            return Self::of_all(channels, collective, ranks);
        }
        let of_root = |root: Rank| {
            let own = channels.clone().filter(|c| c.root.is_none_or(|of| of == root));
            Self::of_all(own, collective, ranks)
        };
        roots.into_iter().map(of_root).fold(Self::default(), |worst, load| {
            if (load.sent, load.hops) > (worst.sent, worst.hops) { load } else { worst }
        })
    }

    /// With the work of an algorithm's ranks: one copy in, one addition for each other rank, one copy out.
    #[must_use]
    pub fn of_algorithm(self, algorithm: Algorithm, collective: Collective, ranks: usize) -> Self {
        let passes = ranks as f64 + 1.0;
        let worked = match (algorithm, collective) {
            (Algorithm::OneShot, Collective::AllReduce) => passes,
            (Algorithm::Direct, Collective::AllReduce | Collective::ReduceScatter) => {
                passes / ranks.max(1) as f64
            }
            _ => 0.0,
        };
        Self { worked, ..self }
    }

    /// Of channels that all carry data at once.
    fn of_all<'a>(
        channels: impl Iterator<Item = &'a Channel>,
        collective: Collective,
        ranks: usize,
    ) -> Self {
        let n = ranks.max(1) as f64;
        let shards = match collective {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter => (n - 1.0) / n,
            _ => 1.0,
        };
        let mut sent: BTreeMap<Rank, f64> = BTreeMap::new();
        let (mut hops, mut rounds) = (0_u32, 0_u32);
        for channel in channels {
            let part = match channel.pattern {
                Pattern::Ring => shards,
                Pattern::Tree | Pattern::Rounds => 1.0,
                // Everybody's whole data to everybody, the root's to all, or a shard each.
                Pattern::Pairs => match collective {
                    Collective::AllReduce if channel.reduce_edges.is_empty() => 1.0,
                    Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
                    _ => 1.0 / n,
                },
            };
            let ring_hops = u32::try_from(ranks.saturating_sub(1)).unwrap_or(u32::MAX);
            let passes = if collective == Collective::AllReduce { 2 } else { 1 };
            match channel.pattern {
                Pattern::Ring => hops = hops.max(passes * ring_hops),
                Pattern::Tree => hops = hops.max(passes * depth(channel)),
                Pattern::Pairs => hops = hops.max(1 + u32::from(!channel.reduce_edges.is_empty())),
                Pattern::Rounds => rounds += 1,
            }
            let of_edge = part * share(channel.share);
            for edge in channel.all_edges() {
                *sent.entry(edge.from).or_insert(0.0) += of_edge;
            }
        }
        let sent = sent.into_values().fold(0.0, f64::max);
        Self { hops: hops.max(rounds), sent, worked: 0.0 }
    }
}

fn share(fraction: Fraction) -> f64 {
    fraction.to_f64()
}

/// Longest chain of hops of a tree one way, whichever way its hops are listed.
fn depth(channel: &Channel) -> u32 {
    let way = |edges: &[topology::plan::ChannelEdge]| {
        let mut chain: BTreeMap<Rank, u32> = BTreeMap::new();
        for edge in edges {
            let here = chain.get(&edge.from).copied().unwrap_or(0) + 1;
            let there = chain.entry(edge.to).or_default();
            *there = here.max(*there);
        }
        chain.into_values().max().unwrap_or(0)
    };
    way(&channel.edges).max(way(&channel.reduce_edges))
}

/// Nanoseconds that the links alone take: without what the algorithm does beside.
#[must_use]
pub fn links_ns(fit: &LinkFit, cores: u32, ranks: usize, load: Load, bytes: u64) -> f64 {
    let sent = bytes as f64 * load.sent;
    // Over a link of memory data is passed over twice: into the slots, and out of them.
    let moved = sent + bytes as f64 * load.worked / 2.0;
    let line = moved / fit.duplex_gbps;
    let alpha = fit.alpha_ns;
    let off = fit.points.iter().map(|p| {
        let by_line = alpha + p.bytes as f64 / fit.duplex_gbps;
        (p.bytes, p.exchange_ns / by_line)
    });
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes that a rank sends, positive"
    )]
    let factor = between(off, moved as u64).unwrap_or(1.0);
    // Ranks without a core of their own take turns.
    let turns = (ranks as f64 / f64::from(cores.max(1))).max(1.0);
    let hops = f64::from(load.hops.max(1));
    let own = (alpha + line) * factor * turns + (hops - 1.0) * alpha * turns;
    // What links share shows only when several pairs load them together.
    let together = fit.shared.iter().filter(|_| ranks > 2).map(|s| ranks as f64 * sent / s.gbps);
    own.max(together.fold(0.0, f64::max))
}

/// Nanoseconds of an operation over a host's links; `None` where these were not measured.
#[must_use]
pub fn predict_ns(
    calibration: &Calibration,
    link: HostLink,
    collective: Collective,
    algorithm: Algorithm,
    ranks: usize,
    load: Load,
    bytes: u64,
) -> Option<f64> {
    let fit = calibration.link(link)?;
    let alone = links_ns(fit, calibration.cores, ranks, load, bytes);
    // Of another number of ranks an algorithm is as far off as of the nearest that was measured.
    let same = |m: &&topology::calibration::Measured| {
        (m.link, m.collective, m.algorithm) == (link, collective, algorithm)
    };
    let nearest = calibration
        .operations
        .iter()
        .filter(same)
        .min_by_key(|m| (m.ranks as usize).abs_diff(ranks));
    let factor = nearest
        .and_then(|m| between(m.factors.iter().map(|f| (f.bytes, f.factor)), bytes))
        .map_or(1.0, |factor| factor.clamp(FACTORS.0, FACTORS.1));
    Some(alone * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::calibration::{Measured, SCHEMA_VERSION, SharedRate, SizeFactor};

    fn points(alpha: f64, ns_per_byte: f64) -> Vec<(u64, f64)> {
        (3..=26).map(|p| (1_u64 << p, alpha + ns_per_byte * (1_u64 << p) as f64)).collect()
    }

    #[track_caller]
    fn near(found: f64, expected: f64, within: f64) {
        assert!((found / expected - 1.0).abs() < within, "{found}, not {expected}");
    }

    #[test]
    fn a_line_is_found_again() {
        let line = fit(&points(350.0, 0.1)).unwrap();
        near(line.alpha_ns, 350.0, 1e-9);
        near(line.ns_per_byte, 0.1, 1e-9);
    }

    #[test]
    fn a_few_pauses_do_not_move_it() {
        let mut noisy = points(350.0, 0.1);
        for (at, factor) in [(2, 8.0), (9, 3.0), (17, 5.0)] {
            noisy[at].1 *= factor;
        }
        let line = fit(&noisy).unwrap();
        near(line.alpha_ns, 350.0, 0.03);
        near(line.ns_per_byte, 0.1, 0.03);
    }

    #[test]
    fn nothing_is_negative_and_one_size_is_no_line() {
        let falling = [(8, 900.0), (1 << 20, 100.0), (1 << 24, 90.0)];
        let line = fit(&falling).unwrap();
        assert!(line.alpha_ns >= 0.0 && line.ns_per_byte >= 0.0, "{line:?}");
        assert_eq!(fit(&[(8, 1.0), (8, 2.0)]), None);
        assert_eq!(fit(&[]), None);
    }

    fn calibration() -> Calibration {
        let point = |p: u32| {
            let bytes = 1_u64 << p;
            // From 4 MiB on memory is half as fast.
            let slow = if p >= 22 { 2.0 } else { 1.0 };
            let exchange_ns = 400.0 + bytes as f64 / 5.0 * slow;
            Point { bytes, one_way_ns: 350.0 + bytes as f64 / 10.0 * slow, exchange_ns }
        };
        let fit = link(HostLink::Shm, (3..=26).map(point).collect()).unwrap();
        let factor = |bytes, factor| SizeFactor { bytes, time_ns: 1.0, factor };
        Calibration {
            schema_version: SCHEMA_VERSION,
            cpu: "Model".into(),
            cores: 2,
            links: vec![fit],
            operations: vec![Measured {
                link: HostLink::Shm,
                collective: Collective::AllReduce,
                algorithm: Algorithm::Ring,
                ranks: 2,
                factors: vec![factor(1 << 10, 1.2), factor(1 << 14, 9.0)],
            }],
        }
    }

    #[test]
    fn a_link_off_its_line_is_followed() {
        let calibration = calibration();
        let fit = calibration.link(HostLink::Shm).unwrap();
        for (bytes, expected) in [(1_u64 << 20, 400.0 + 209_715.2), (1 << 26, 400.0 + 26_843_545.6)]
        {
            let load = Load { hops: 1, sent: 1.0, worked: 0.0 };
            near(links_ns(fit, 2, 2, load, bytes), expected, 0.01);
            // Half of it over the link, and as much added up and copied: two passes over memory are as long as one message.
            let direct = Load { hops: 1, sent: 0.5, worked: 1.0 };
            near(links_ns(fit, 2, 2, direct, bytes), expected, 0.01);
        }
        // Four ranks on two cores take turns.
        let load = Load { hops: 3, sent: 1.0, worked: 0.0 };
        let two = links_ns(fit, 2, 2, load, 1 << 20);
        near(links_ns(fit, 2, 4, load, 1 << 20), 2.0 * two, 1e-9);
        // And no more than memory carries for all of them.
        let shared = [SharedRate { ranks: 4, gbps: 4.0 }].into();
        let slow = LinkFit { shared, ..fit.clone() };
        near(links_ns(&slow, 2, 4, load, 1 << 20), f64::from(1 << 20), 1e-9);
        near(links_ns(&slow, 2, 2, load, 1 << 20), two, 1e-9);
    }

    #[test]
    fn factors_lie_between_those_measured_and_within_bounds() {
        let calibration = calibration();
        let load = Load { hops: 2, sent: 1.0, worked: 0.0 };
        let of = |algorithm, bytes| {
            let collective = Collective::AllReduce;
            predict_ns(&calibration, HostLink::Shm, collective, algorithm, 2, load, bytes).unwrap()
        };
        let plain = |bytes| of(Algorithm::Tree, bytes);
        near(of(Algorithm::Ring, 512) / plain(512), 1.2, 1e-9);
        near(of(Algorithm::Ring, 1 << 16) / plain(1 << 16), FACTORS.1, 1e-9);
        let tcp = predict_ns(
            &calibration,
            HostLink::Tcp,
            Collective::AllReduce,
            Algorithm::Ring,
            2,
            load,
            8,
        );
        assert_eq!(tcp, None);
    }

    #[test]
    fn what_channels_ask() {
        let star = crate::check::sample::topology(
            4,
            1,
            crate::check::sample::both((0..4).map(|gpu| (gpu, 4, 100))),
        );
        let order = [0, 1, 2, 3];
        let ring =
            crate::check::sample::ring(&star, &[Collective::AllReduce], &order, Fraction::ONE);
        let load = Load::of([&ring].into_iter(), Collective::AllReduce, 4);
        assert_eq!((load.hops, load.sent), (6, 1.5));
        let load = Load::of([&ring].into_iter(), Collective::AllGather, 4);
        assert_eq!((load.hops, load.sent), (3, 0.75));
    }

    /// Of a collective with a root one root's trees run, of others all.
    #[test]
    fn one_root_at_a_time() {
        let topology = crate::test_hosts::copies("dgx1v", 1);
        let wanted = [Collective::AllGather, Collective::Broadcast];
        let request = topology::PlanRequest {
            collectives: wanted.to_vec(),
            gpus: Some([0, 1, 2, 3, 4].map(topology::GpuIndex).to_vec()),
            ..topology::PlanRequest::default()
        };
        let plan = crate::plan(&topology, &request).unwrap();
        let sets = plan.alternatives.iter().map(|set| &set.channels).chain([&plan.channels]);
        let trees: Vec<&Channel> =
            sets.flatten().filter(|c| c.pattern == Pattern::Tree && c.root.is_some()).collect();
        let gather = trees.iter().copied().filter(|c| c.collectives.contains(&wanted[0]));
        let roots: BTreeSet<_> = gather.clone().map(|channel| channel.root).collect();
        assert_eq!(roots.len(), 5);
        // A tree that carries all of its root's data as a broadcast would.
        let whole: Vec<Channel> = gather
            .map(|c| Channel { share: c.share * Fraction::integer(5), ..c.clone() })
            .collect();
        let all = Load::of(whole.iter(), wanted[1], 5);
        let each = roots.iter().map(|root| {
            let own = whole.iter().filter(|channel| channel.root == *root);
            Load::of(own, wanted[1], 5).sent
        });
        assert_eq!(all.sent, each.fold(0.0, f64::max));
        assert!(all.sent < Load::of(whole.iter(), wanted[0], 5).sent);
    }

    #[test]
    fn pairs_send_whole_data_or_shards() {
        let star = crate::check::sample::topology(
            4,
            1,
            crate::check::sample::both((0..4).map(|gpu| (gpu, 4, 100))),
        );
        let order = [0, 1, 2, 3];
        let ring =
            crate::check::sample::ring(&star, &[Collective::AllReduce], &order, Fraction::ONE);
        // A hop from each to its next, as pairs.
        let pairs = Channel { pattern: Pattern::Pairs, ..ring };
        let load = |channel: &Channel, of| {
            let load = Load::of([channel].into_iter(), of, 4);
            (load.hops, load.sent)
        };
        assert_eq!(load(&pairs, Collective::AllReduce), (1, 1.0));
        assert_eq!(load(&pairs, Collective::AllToAll), (1, 0.25));
        assert_eq!(load(&pairs, Collective::Broadcast), (1, 1.0));
        let two = Channel { reduce_edges: pairs.edges.clone(), ..pairs };
        assert_eq!(load(&two, Collective::AllReduce), (2, 0.5));
        let worked = |algorithm, of| Load::default().of_algorithm(algorithm, of, 4).worked;
        assert_eq!(worked(Algorithm::OneShot, Collective::AllReduce), 5.0);
        assert_eq!(worked(Algorithm::Direct, Collective::AllReduce), 1.25);
        assert_eq!(worked(Algorithm::Direct, Collective::AllToAll), 0.0);
        assert_eq!(worked(Algorithm::Ring, Collective::AllReduce), 0.0);
    }
}
