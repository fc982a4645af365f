//! Races: two lanes of a rank touch the same memory, one of them writes, and nothing orders them.
//!
//! Order is reachability over program order, `after` and messages (also by way of other ranks); that slots are
//! scarce orders steps too, but a schedule may not count on how scarce they are. Reachability is kept as
//! vector clocks: by step, how many steps of each lane of the rank looked at are surely done. Lanes that no chain of
//! messages joins are never ordered, so clocks are kept for one such group at a time.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::order::Steps;

/// One step's use of a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) step: usize,
    pub(super) elements: Range<usize>,
    pub(super) writes: bool,
}

/// Two unordered steps and the first element both touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Race {
    pub(super) first: usize,
    pub(super) second: usize,
    pub(super) element: usize,
}

/// Happens-before within one rank.
pub(super) struct Clocks {
    /// By lane of the rank, then step of the lane: steps done before it, by lane of the same group.
    done: BTreeMap<usize, Vec<Vec<usize>>>,
    /// By lane of the rank: its place in its group's clocks, and the group.
    place: BTreeMap<usize, (usize, usize)>,
}

/// For each lane a number that lanes joined by messages or `after` share.
pub(super) fn groups(steps: &Steps<'_>) -> Vec<usize> {
    fn find(parent: &mut [usize], mut lane: usize) -> usize {
        while parent[lane] != lane {
            parent[lane] = parent[parent[lane]];
            lane = parent[lane];
        }
        lane
    }
    let mut parent: Vec<usize> = (0..steps.lane_count()).collect();
    for lane in 0..steps.lane_count() {
        for step in steps.steps_of(lane) {
            for before in steps.before(step) {
                let other = steps.lane_of(before);
                if other != lane {
                    let (a, b) = (find(&mut parent, lane), find(&mut parent, other));
                    parent[a.max(b)] = a.min(b);
                }
            }
        }
    }
    (0..parent.len()).map(|lane| find(&mut parent, lane)).collect()
}

impl Clocks {
    /// For the lanes `of_rank`. `order` is an order in which steps can be done: all of them, or for what the rank's own order and its
    /// `after`s alone make sure of (nearly always all that matters) the rank's. `group` is what lanes have in common that order joins.
    pub(super) fn new(
        steps: &Steps<'_>,
        order: &[usize],
        group: impl Fn(usize) -> usize,
        of_rank: Range<usize>,
    ) -> Self {
        let mut members = BTreeMap::<usize, Vec<usize>>::new();
        for lane in of_rank {
            members.entry(group(lane)).or_default().push(lane);
        }
        let mut clocks = Self { done: BTreeMap::new(), place: BTreeMap::new() };
        for (group, lanes) in &members {
            for (place, lane) in lanes.iter().enumerate() {
                clocks.place.insert(*lane, (place, *group));
            }
        }
        // A lane alone in its group needs no clock: its own order is all there is.
        members.retain(|_, lanes| lanes.len() > 1);
        let (Some(first), Some(last)) = (order.iter().min(), order.iter().max()) else {
            return clocks;
        };
        if members.is_empty() {
            return clocks;
        }
        let width = |group| members.get(&group).map_or(0, Vec::len);
        let looked_at = *first..last + 1;
        let mut known: Vec<Vec<usize>> = vec![Vec::new(); looked_at.len()];
        for step in order {
            let lane = steps.lane_of(*step);
            let width = width(group(lane));
            if width == 0 {
                continue;
            }
            let mut clock = vec![0; width];
            for before in steps.before(*step).filter(|before| looked_at.contains(before)) {
                for (mine, theirs) in clock.iter_mut().zip(&known[before - first]) {
                    *mine = (*mine).max(*theirs);
                }
            }
            if let Some((place, _)) = clocks.place.get(&lane) {
                clock[*place] = *step - steps.steps_of(lane).start + 1;
            }
            known[*step - first] = clock;
        }
        for lane in members.values().flatten() {
            let taken = steps.steps_of(*lane).map(|step| core::mem::take(&mut known[step - first]));
            clocks.done.insert(*lane, taken.collect());
        }
        clocks
    }

    /// Whether `first` is surely done when `second` begins. Both are steps of the rank.
    fn before(&self, steps: &Steps<'_>, first: usize, second: usize) -> bool {
        let (from, to) = (steps.lane_of(first), steps.lane_of(second));
        if from == to {
            return first < second;
        }
        let ((place, group), (_, other)) = (self.place[&from], self.place[&to]);
        group == other
            && self.done.get(&to).is_some_and(|clocks| {
                let clock = &clocks[second - steps.steps_of(to).start];
                clock[place] > first - steps.steps_of(from).start
            })
    }
}

/// The first race among the accesses to one memory of one rank.
pub(super) fn find(steps: &Steps<'_>, clocks: &Clocks, accesses: &[Access]) -> Option<Race> {
    let mut accesses: Vec<_> = accesses.iter().filter(|a| !a.elements.is_empty()).collect();
    accesses.sort_by_key(|access| (access.elements.start, access.step));
    let (mut reads, mut writes) = (Vec::<&Access>::new(), Vec::<&Access>::new());
    for access in accesses {
        let start = access.elements.start;
        reads.retain(|open| open.elements.end > start);
        writes.retain(|open| open.elements.end > start);
        let reads_matter = access.writes;
        let open = writes.iter().chain(reads.iter().filter(|_| reads_matter));
        for open in open {
            let (first, second) = (open.step.min(access.step), open.step.max(access.step));
            if first != second
                && !clocks.before(steps, first, second)
                && !clocks.before(steps, second, first)
            {
                return Some(Race { first, second, element: start });
            }
        }
        if access.writes { writes.push(access) } else { reads.push(access) }
    }
    None
}
