//! The mapping that takes least: every one for few ranks, nested orders with the best order of each host's GPUs for more.

use alloc::vec::Vec;

use super::evaluate::{Assignment, Evaluator, StepTime};
use super::job::{Job, MEGATRON, Nesting};

/// Ranks up to which every mapping is looked at: 8 are 40,320.
pub const MOST_EXACT: usize = 8;
/// Ranks times mappings looked at beyond that.
const MOST_WORK: usize = 200_000;

/// A mapping with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) assignment: Assignment,
    pub(crate) time: StepTime,
}

/// The mapping of a nesting over GPUs in this order.
pub(crate) fn nested(job: &Job, nesting: &Nesting, order: &[usize]) -> Assignment {
    let mut assignment = alloc::vec![0; order.len()];
    for (number, &place) in order.iter().enumerate() {
        assignment[job.number(&MEGATRON, job.coordinates(nesting, number))] = place;
    }
    assignment
}

/// The best first, then the best of each nesting; empty where no mapping joins all groups.
pub(crate) fn search(evaluator: &mut Evaluator<'_>) -> Vec<Found> {
    let job = evaluator.job;
    let identity: Vec<usize> = (0..evaluator.places.len()).collect();
    let mut found: Vec<Found> = Vec::new();
    for nesting in job.nestings() {
        let assignment = nested(&job, &nesting, &identity);
        found.extend(evaluator.step(&assignment).map(|time| Found { assignment, time }));
    }
    // Sorting is stable: of equal ones Megatron's own order comes first.
    found.sort_by(|a, b| a.time.cmp(&b.time));
    let best = if identity.len() <= MOST_EXACT {
        every(evaluator)
    } else {
        found.first().cloned().map(|start| exchanged(evaluator, start))
    };
    if let Some(best) = best
        && found.first().is_none_or(|first| best.time < first.time)
    {
        found.insert(0, best);
    }
    found.dedup_by(|later, earlier| later.assignment == earlier.assignment);
    found
}

/// The best of all; of equal ones the first in lexical order.
fn every(evaluator: &mut Evaluator<'_>) -> Option<Found> {
    let mut assignment: Assignment = (0..evaluator.places.len()).collect();
    let mut best: Option<Found> = None;
    loop {
        if let Some(time) = evaluator.step(&assignment)
            && best.as_ref().is_none_or(|best| time < best.time)
        {
            best = Some(Found { assignment: assignment.clone(), time });
        }
        if !advance(&mut assignment) {
            return best;
        }
    }
}

/// The next permutation in lexical order.
pub(crate) fn advance(order: &mut [usize]) -> bool {
    let Some(at) = (1..order.len()).rev().find(|&at| order[at - 1] < order[at]) else {
        return false;
    };
    let Some(other) = (at..order.len()).rev().find(|&other| order[other] > order[at - 1]) else {
        return false;
    };
    order.swap(at - 1, other);
    order[at..].reverse();
    true
}

/// Improved by exchanging two GPUs of one class on all its hosts at once, as long as that helps and the budget lasts.
fn exchanged(evaluator: &mut Evaluator<'_>, start: Found) -> Found {
    let mut best = start;
    let budget = evaluator.steps + (MOST_WORK / evaluator.places.len()).max(50) as u64;
    let classes = evaluator.fleet().classes.len();
    loop {
        let mut better: Option<Found> = None;
        for class in 0..classes {
            let gpus = evaluator.fleet().classes[class].gpus.len();
            for (a, b) in (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| (a, b))) {
                if evaluator.steps >= budget {
                    return better.unwrap_or(best);
                }
                let Some(assignment) = swapped(evaluator, &best.assignment, class, a, b) else {
                    continue;
                };
                if let Some(time) = evaluator.step(&assignment)
                    && time < better.as_ref().unwrap_or(&best).time
                {
                    better = Some(Found { assignment, time });
                }
            }
        }
        match better {
            Some(found) => best = found,
            None => return best,
        }
    }
}

/// The mapping with two GPUs of each host of a class exchanged; `None` where one of them takes no part.
fn swapped(
    evaluator: &Evaluator<'_>,
    assignment: &[usize],
    class: usize,
    a: usize,
    b: usize,
) -> Option<Assignment> {
    let fleet = evaluator.fleet();
    let places = &evaluator.places;
    let mut takes: Vec<usize> = (0..places.len()).collect();
    let mut any = false;
    for (at, place) in places.iter().enumerate() {
        if fleet.class_of[place.host] == class && place.gpu == a {
            let other = places.iter().position(|p| p.host == place.host && p.gpu == b)?;
            takes.swap(at, other);
            any = true;
        }
    }
    any.then(|| assignment.iter().map(|&place| takes[place]).collect())
}
