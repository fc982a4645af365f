//! Into which places a message may come before its step is done: those that nothing touches any more that may come before the step.
//!
//! A peer writes a place it was offered at any time until the message is released. So no earlier step may still have to read what lies
//! there (an all-reduce in place receives where it has sent from), or have to write it.

use std::collections::HashMap;

use topology::schedule::{Op, Slice, Step};

/// What must be done before a step's place may be offered: lanes, and how many of their steps.
pub(super) type Needs = Vec<(usize, usize)>;

/// For each lane, for each of its steps: what must be done before its message may come where the step puts it; `None` where the step puts
/// it nowhere as it is. `place` is where a slice lies, start and end, in bytes that tell buffers apart.
pub(super) fn landing<'a>(
    lanes: impl Iterator<Item = &'a [Step]> + Clone,
    place: impl Fn(Slice) -> (usize, usize),
) -> Vec<Vec<Option<Needs>>> {
    let mut touches = Vec::new();
    let mut awaited = Awaited::default();
    for (l, steps) in lanes.clone().enumerate() {
        for (s, step) in steps.iter().enumerate() {
            let slices = [reads(step.op).then_some(step.src), uses(step.op).then_some(step.dst)];
            for (start, end) in slices.into_iter().flatten().map(&place) {
                if start < end {
                    touches.push(Touch { start, end, lane: l, step: s });
                }
            }
            for after in &step.after {
                awaited.add((l, s), (after.lane as usize, after.step as usize));
            }
        }
    }
    touches.sort_unstable_by_key(|touch| touch.start);
    let longest = touches.iter().map(|touch| touch.end - touch.start).max().unwrap_or(0);
    let needs = |l: usize, s: usize, step: &Step| {
        if !matches!(step.op, Op::Recv | Op::RecvCopySend) {
            return None;
        }
        let (start, end) = place(step.dst);
        let from = touches.partition_point(|touch| touch.start + longest <= start);
        let near = touches[from..].iter().take_while(|touch| touch.start < end);
        let mut needs = Needs::new();
        for touch in near.filter(|touch| touch.end > start) {
            let later = if touch.lane == l {
                touch.step >= s
            } else {
                awaited.first((l, s), touch.lane).is_some_and(|first| touch.step >= first)
            };
            if later {
                continue;
            }
            let done = touch.step + 1;
            match needs.iter_mut().find(|(lane, _)| *lane == touch.lane) {
                Some((_, most)) => *most = done.max(*most),
                None => needs.push((touch.lane, done)),
            }
        }
        (start < end).then_some(needs)
    };
    let of_lane = |(l, steps): (usize, &[Step])| {
        steps.iter().enumerate().map(|(s, step)| needs(l, s, step)).collect()
    };
    lanes.enumerate().map(of_lane).collect()
}

/// Whether a step reads its source.
const fn reads(op: Op) -> bool {
    !matches!(op, Op::Recv | Op::RecvCopySend)
}

/// Whether a step reads or writes its destination.
const fn uses(op: Op) -> bool {
    !matches!(op, Op::Send | Op::RecvReduceSend)
}

/// What a step reads or writes.
struct Touch {
    start: usize,
    end: usize,
    lane: usize,
    step: usize,
}

/// By lane that waits and lane waited for: the steps that wait, ascending, with the last step that any of them and those before waits for.
#[derive(Default)]
struct Awaited(HashMap<(usize, usize), Vec<(usize, usize)>>);

impl Awaited {
    /// Steps of a lane come in their order.
    fn add(&mut self, (lane, step): (usize, usize), (other, awaited): (usize, usize)) {
        let waits = self.0.entry((lane, other)).or_default();
        let most = waits.last().map_or(awaited, |(_, most)| awaited.max(*most));
        waits.push((step, most));
    }

    /// The first step of a lane that is for certain later than another lane's.
    fn first(&self, (other, awaited): (usize, usize), lane: usize) -> Option<usize> {
        let waits = self.0.get(&(lane, other))?;
        let at = waits.partition_point(|(_, most)| *most < awaited);
        waits.get(at).map(|(step, _)| *step)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use topology::schedule::Program;
    use topology::{Collective, Rank};

    use super::super::any_steps::{any_lanes, place};
    use super::*;
    use crate::even::full_plan;
    use crate::schedule::{Sizing, schedule};

    fn found(program: &Program, ahead: usize) -> Vec<Vec<Option<Needs>>> {
        landing(program.lanes.iter().map(|lane| &lane.steps[..]), place(ahead))
    }

    /// Of the last rank: messages that may come at once, those that may come later, and all that it receives.
    fn counted(collective: Collective, root: Option<Rank>, ahead: usize) -> (usize, usize, usize) {
        let sizing = Sizing::new(1, 1 << 10).unwrap();
        let made = schedule(&full_plan(2, 1), collective, root, 8 << 10, sizing).unwrap();
        let program = &made.programs[1];
        let all = program.lanes.iter().flat_map(|lane| &lane.steps).filter(|s| s.op.receives());
        let found: Vec<_> = found(program, ahead).into_iter().flatten().flatten().collect();
        let free = found.iter().filter(|needs| needs.is_empty()).count();
        (free, found.len() - free, all.count())
    }

    #[test]
    fn what_nothing_touches_may_come_at_once() {
        const APART: usize = 1 << 30;
        for (collective, root) in [
            (Collective::Broadcast, Some(Rank(0))),
            (Collective::AllGather, None),
            (Collective::AllToAll, None),
            (Collective::Scatter, Some(Rank(0))),
        ] {
            let (free, later, all) = counted(collective, root, APART);
            assert!(free == all && later == 0, "{collective}: {free} and {later} of {all}");
        }
        // What is reduced has no place; what comes back in place comes where something was sent from.
        let (free, later, all) = counted(Collective::AllReduce, None, 0);
        assert!(free == 0 && later > 0 && later < all, "{free} and {later} of {all}");
    }

    /// Whether `late` is for certain not done before `early` is: by their lanes' order and one wait.
    fn is_later(lanes: &[Vec<Step>], early: (usize, usize), late: (usize, usize)) -> bool {
        if early.0 == late.0 {
            return late.1 >= early.1;
        }
        lanes[late.0][..=late.1].iter().any(|step| {
            step.after.iter().any(|d| d.lane as usize == early.0 && d.step as usize >= early.1)
        })
    }

    proptest! {
        /// In whatever order steps are done that their waits allow, none that touches a place is done between its offer and its message.
        #[test]
        fn nothing_touches_a_place_that_is_offered(
            lanes in any_lanes(),
            ahead in 0..30_usize,
        ) {
            let place = place(ahead);
            let found = landing(lanes.iter().map(|steps| &steps[..]), &place);
            for (l, steps) in lanes.iter().enumerate() {
                for (s, step) in steps.iter().enumerate() {
                    let (start, end) = place(step.dst);
                    let lands = matches!(step.op, Op::Recv | Op::RecvCopySend) && start < end;
                    prop_assert_eq!(found[l][s].is_some(), lands);
                    let Some(needs) = &found[l][s] else { continue };
                    for (m, others) in lanes.iter().enumerate() {
                        let touches = |other: &Step| {
                            let (from, to) = place(other.dst);
                            (from..to).any(|byte| (start..end).contains(&byte))
                        };
                        let before = |t: &usize| touches(&others[*t]) && !is_later(&lanes, (l, s), (m, *t));
                        let last = (0..others.len()).rfind(before);
                        let need = needs.iter().find(|(lane, _)| *lane == m).map(|(_, done)| *done);
                        prop_assert_eq!(need, last.map(|last| last + 1));
                    }
                }
            }
        }
    }
}
