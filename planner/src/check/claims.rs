//! What a plan says of itself, against what was counted.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use topology::plan::{Candidate, CollectivePlan, Pattern, Plan};
use topology::{Algorithm, Channel, Collective, Fraction};

use super::CheckReport;
use super::loads::{Counted, channel_gbps};
use super::violation::{Claim, Place, Violation, ViolationKind};

/// Channels that every executor takes: MSCCL's limit, half of NCCL's (MAXCHANNELS).
pub const MOST_CHANNELS: u32 = 32;

/// Channels of one algorithm, as counted for one collective.
#[derive(Clone, Copy)]
struct Backing<'a> {
    /// `None` for the plan's own channels, which are whatever `best` says they are.
    algorithm: Option<Algorithm>,
    counted: &'a Counted,
    rings_only: bool,
}

/// Compares every claim with `report`, and adds to it the claims that nothing was counted for.
pub(super) fn check(plan: &Plan, report: &mut CheckReport, found: &mut Vec<Violation>) {
    let mut unchecked = Vec::new();
    for collective in report.collectives.keys() {
        if plan.collectives.get(collective).is_none_or(|entry| entry.best.is_none()) {
            let at = Place::default().collective(*collective);
            found.push(at.violation(ViolationKind::CollectiveWithoutBest));
        }
    }
    for (collective, entry) in &plan.collectives {
        let backings = backings(plan, report, *collective);
        self::collective(plan, *collective, entry, &backings, found, &mut unchecked);
    }
    numbers(&plan.channels, &report.collectives, plan.ranks.len(), Place::default(), found);
    for (number, (set, counts)) in plan.alternatives.iter().zip(&report.alternatives).enumerate() {
        let at = Place { alternative: Some(number), ..Place::default() };
        numbers(&set.channels, counts, plan.ranks.len(), at, found);
    }
    report.unchecked = unchecked;
}

fn backings<'a>(
    plan: &'a Plan,
    report: &'a CheckReport,
    collective: Collective,
) -> Vec<Backing<'a>> {
    let rings_only = |channels: &[Channel]| {
        channels
            .iter()
            .filter(|channel| channel.collectives.contains(&collective))
            .all(|channel| channel.pattern == Pattern::Ring)
    };
    let own = report.collectives.get(&collective).map(|counted| Backing {
        algorithm: None,
        counted,
        rings_only: rings_only(&plan.channels),
    });
    let others = plan.alternatives.iter().zip(&report.alternatives).filter_map(|(set, counts)| {
        Some(Backing {
            algorithm: Some(set.algorithm),
            counted: counts.get(&collective)?,
            rings_only: rings_only(&set.channels),
        })
    });
    own.into_iter().chain(others).collect()
}

fn collective(
    plan: &Plan,
    collective: Collective,
    entry: &CollectivePlan,
    backings: &[Backing<'_>],
    found: &mut Vec<Violation>,
    unchecked: &mut Vec<(Collective, Claim)>,
) {
    let at = Place::default().collective(collective);
    let own = backings.iter().find(|backing| backing.algorithm.is_none());
    let best = entry.best.as_ref();
    match (best, own) {
        (Some(best), Some(own)) => {
            candidate(entry, best, Claim::Best, own, at, found);
            if best.executors.is_empty() {
                found.push(at.violation(ViolationKind::NoExecutor));
            }
            if !entry.candidates.is_empty() && !entry.candidates.contains(best) {
                found.push(at.violation(ViolationKind::BestNotCandidate));
            }
            if own.counted.channels > MOST_CHANNELS {
                let (channels, limit) = (own.counted.channels, MOST_CHANNELS);
                found.push(at.violation(ViolationKind::TooManyChannels { channels, limit }));
            }
        }
        (Some(_), None) => found.push(at.violation(ViolationKind::NoChannels)),
        (None, _) if plan.findings.is_empty() => {
            found.push(at.violation(ViolationKind::NoBestNoFinding));
        }
        (None, _) => {}
    }
    // The plan's own channels stand for whatever algorithm `best` names.
    let of_algorithm = |wanted: Algorithm| {
        backings.iter().filter(move |backing| {
            backing.algorithm.or_else(|| best.map(|best| best.algorithm)) == Some(wanted)
        })
    };
    let ring = entry.ring.iter().map(|claimed| (Claim::Ring, claimed));
    let others = entry.candidates.iter().filter(|claimed| Some(*claimed) != best);
    let others = others.map(|claimed| (Claim::Candidate(claimed.algorithm), claimed));
    for (claim, claimed) in ring.chain(others) {
        let wanted = if claim == Claim::Ring { Algorithm::Ring } else { claimed.algorithm };
        let mut sets = of_algorithm(wanted).peekable();
        let Some(first) = sets.peek().copied() else {
            unchecked.push((collective, claim));
            continue;
        };
        // Several sets of one algorithm (say, forests of different height): the claim is about the one it fits.
        let fits = |set: &&Backing<'_>| set.counted.algbw_gbps == claimed.algbw_gbps;
        let set = of_algorithm(wanted).find(fits).unwrap_or(first);
        candidate(entry, claimed, claim, set, at, found);
    }
    sizes(
        entry,
        |algorithm| of_algorithm(algorithm).map(|set| set.counted.channels).max(),
        at,
        found,
    );
}

fn candidate(
    entry: &CollectivePlan,
    claimed: &Candidate,
    claim: Claim,
    set: &Backing<'_>,
    at: Place,
    found: &mut Vec<Violation>,
) {
    let counted = set.counted;
    let mut report = |kind| found.push(at.violation(kind));
    if claimed.algbw_gbps != counted.algbw_gbps {
        let (claimed, counted) = (claimed.algbw_gbps, counted.algbw_gbps);
        report(ViolationKind::Algbw { claim, claimed, counted });
    }
    if claimed.channels != counted.channels {
        let (claimed, counted) = (claimed.channels, counted.channels);
        report(ViolationKind::ChannelCount { claim, claimed, counted });
    }
    if claimed.height != counted.height {
        let (claimed, counted) = (claimed.height, counted.height);
        report(ViolationKind::Height { claim, claimed, counted });
    }
    if (claimed.algorithm == Algorithm::Ring) != set.rings_only
        || (claim == Claim::Ring && claimed.algorithm != Algorithm::Ring)
    {
        report(ViolationKind::AlgorithmPattern { claim, algorithm: claimed.algorithm });
    }
    let fits = match counted.rounds.is_empty() {
        true => !claimed.algorithm.is_rounds(),
        false => counted.rounds.contains(&claimed.algorithm),
    };
    if !fits {
        report(ViolationKind::AlgorithmPattern { claim, algorithm: claimed.algorithm });
    }
    let bound = entry.bound.as_ref().map(|bound| bound.algbw_gbps);
    if let Some(bound) = bound.filter(|bound| *bound < counted.algbw_gbps) {
        report(ViolationKind::BoundBelowCount { bound, counted: counted.algbw_gbps });
    }
    if claimed.optimal != (bound == Some(counted.algbw_gbps)) {
        report(ViolationKind::Optimal { claim, claimed: claimed.optimal });
    }
}

fn sizes(
    entry: &CollectivePlan,
    channels_of: impl Fn(Algorithm) -> Option<u32>,
    at: Place,
    found: &mut Vec<Violation>,
) {
    let rows = &entry.by_size;
    for (row, choice) in rows.iter().enumerate() {
        let ascends = match rows.get(row + 1) {
            Some(next) => choice.max_bytes < next.max_bytes,
            None => choice.max_bytes == u64::MAX,
        };
        if !ascends {
            found.push(at.violation(ViolationKind::SizeOrder { row }));
        }
        let there = channels_of(choice.algorithm).unwrap_or_default();
        if choice.channels == 0 || choice.channels > there {
            found.push(at.violation(ViolationKind::SizeChannels {
                row,
                algorithm: choice.algorithm,
                channels: choice.channels,
                found: there,
            }));
        }
    }
}

/// A channel is numbered by place and says what it carries under every collective that uses it: the least of them.
fn numbers(
    channels: &[Channel],
    counts: &BTreeMap<Collective, Counted>,
    ranks: usize,
    at: Place,
    found: &mut Vec<Violation>,
) {
    for (place, channel) in channels.iter().enumerate() {
        let at = Place { channel: Some(place), ..at };
        if usize::try_from(channel.index) != Ok(place) {
            found.push(at.violation(ViolationKind::ChannelIndex { index: channel.index }));
        }
        let mut least: Option<Fraction> = None;
        for collective in &channel.collectives {
            let Some(counted) = counts.get(collective) else { continue };
            if *collective == Collective::Barrier {
                continue;
            }
            match channel_gbps(channel, *collective, counted.algbw_gbps, ranks) {
                Some(gbps) => least = Some(least.map_or(gbps, |least| least.min(gbps))),
                None => found.push(at.violation(ViolationKind::Overflow)),
            }
        }
        let counted = least.unwrap_or(Fraction::ZERO);
        if channel.gbps != counted {
            let kind = ViolationKind::ChannelRate { claimed: channel.gbps, counted };
            found.push(at.violation(kind));
        }
    }
}
