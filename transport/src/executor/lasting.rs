//! Which messages can be sent from where their data lies, instead of from a copy: those whose data nothing writes afterwards.
//!
//! A NIC reads what it sends when it gets to it, and again where it has to send again. Until then the data must last: what a later
//! step of the operation writes there (the way back of an all-reduce in place) would go to the peer in its stead. Beyond the
//! operation nothing has to last, as it ends only when all it has sent has arrived.

use topology::schedule::{Op, Slice, Step};

/// For each lane, for each of its steps: whether what it sends is something, lies in a buffer and is not written any more. `place` is where a
/// slice lies, start and end, in bytes that tell buffers apart.
pub(super) fn lasting<'a>(
    lanes: impl Iterator<Item = &'a [Step]> + Clone,
    place: impl Fn(Slice) -> (usize, usize),
) -> Vec<Vec<bool>> {
    let writes = |step: &Step| match step.op {
        Op::Send | Op::RecvReduceSend => false,
        // In place it changes nothing.
        Op::Copy => place(step.src) != place(step.dst),
        _ => true,
    };
    let mut written = Vec::new();
    for (l, steps) in lanes.clone().enumerate() {
        for (s, step) in steps.iter().enumerate().filter(|(_, step)| writes(step)) {
            let (start, end) = place(step.dst);
            if start < end {
                written.push(Written { start, end, lane: l, step: s });
            }
        }
    }
    written.sort_unstable_by_key(|written| written.start);
    let longest = written.iter().map(|written| written.end - written.start).max().unwrap_or(0);
    let lasts = |l: usize, s: usize, step: &Step| {
        let (start, end) = match step.op {
            Op::Send => place(step.src),
            Op::RecvCopySend | Op::RecvReduceCopySend => place(step.dst),
            Op::Copy | Op::Reduce | Op::Recv | Op::RecvReduceCopy | Op::RecvReduceSend => {
                return false;
            }
        };
        let before = |written: &Written| {
            written.lane == l && written.step <= s
                || step.after.iter().any(|after| {
                    after.lane as usize == written.lane && after.step as usize >= written.step
                })
        };
        let from = written.partition_point(|written| written.start + longest <= start);
        let near = written[from..].iter().take_while(|written| written.start < end);
        start < end && near.filter(|written| written.end > start).all(before)
    };
    let of_lane = |(l, steps): (usize, &[Step])| {
        steps.iter().enumerate().map(|(s, step)| lasts(l, s, step)).collect()
    };
    lanes.enumerate().map(of_lane).collect()
}

/// What a step writes.
struct Written {
    start: usize,
    end: usize,
    lane: usize,
    step: usize,
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

    /// By the definition: a later step that writes one of the bytes, "later" being all that is not before for certain.
    fn by_definition(
        lanes: &[Vec<Step>],
        place: &impl Fn(Slice) -> (usize, usize),
    ) -> Vec<Vec<bool>> {
        let of = |l: usize, s: usize| {
            let step = &lanes[l][s];
            let (start, end) = match step.op {
                Op::Send => place(step.src),
                Op::RecvCopySend | Op::RecvReduceCopySend => place(step.dst),
                _ => return false,
            };
            start < end
                && !(0..lanes.len()).any(|m| {
                    (0..lanes[m].len()).any(|t| {
                        let other = &lanes[m][t];
                        let (from, to) = place(other.dst);
                        let writes = match other.op {
                            Op::Send | Op::RecvReduceSend => false,
                            Op::Copy => place(other.src) != place(other.dst),
                            _ => true,
                        };
                        let overlaps = (from..to).any(|byte| (start..end).contains(&byte));
                        let waited_for = step.after.iter().any(|after| {
                            (after.lane as usize, true) == (m, after.step as usize >= t)
                        });
                        writes && overlaps && !(m == l && t <= s) && !waited_for
                    })
                })
        };
        (0..lanes.len()).map(|l| (0..lanes[l].len()).map(|s| of(l, s)).collect()).collect()
    }

    fn found(program: &Program, ahead: usize) -> Vec<Vec<bool>> {
        lasting(program.lanes.iter().map(|lane| &lane.steps[..]), place(ahead))
    }

    /// How many messages of rank 0 can go from where they lie, and how many it sends.
    fn counted(collective: Collective, root: Option<Rank>, ahead: usize) -> (usize, usize) {
        let sizing = Sizing::new(1, 1 << 10).unwrap();
        let made = schedule(&full_plan(2, 1), collective, root, 8 << 10, sizing).unwrap();
        let program = &made.programs[0];
        let sends = program.lanes.iter().flat_map(|lane| &lane.steps).filter(|s| s.op.sends());
        (found(program, ahead).into_iter().flatten().filter(|lasts| *lasts).count(), sends.count())
    }

    #[test]
    fn what_is_only_sent_lasts() {
        const APART: usize = 1 << 30;
        for (collective, root) in [
            (Collective::Broadcast, Some(Rank(0))),
            (Collective::AllGather, None),
            (Collective::AllToAll, None),
            (Collective::Scatter, Some(Rank(0))),
            (Collective::ReduceScatter, None),
        ] {
            let (lasting, sends) = counted(collective, root, APART);
            assert!(sends > 0 && lasting == sends, "{collective}: {lasting} of {sends}");
        }
        // What is copied onto itself is not written.
        let (lasting, sends) = counted(Collective::Broadcast, Some(Rank(0)), 0);
        assert!(sends > 0 && lasting == sends, "{lasting} of {sends}");
        // In place the first half of the way is overwritten by the second.
        let (apart, sends) = counted(Collective::AllReduce, None, APART);
        let (in_place, _) = counted(Collective::AllReduce, None, 0);
        assert!(in_place < apart && apart <= sends, "{in_place} {apart} of {sends}");
    }

    proptest! {
        #[test]
        fn the_search_finds_what_the_definition_says(
            lanes in any_lanes(),
            ahead in 0..30_usize,
        ) {
            let place = place(ahead);
            let found = lasting(lanes.iter().map(|steps| &steps[..]), &place);
            prop_assert_eq!(found, by_definition(&lanes, &place));
        }
    }
}
