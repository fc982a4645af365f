//! How long a schedule takes over links of one kind: by doing it in thought. Integers alone, so that every rank finds the same.
//!
//! A rank does one thing at a time, as the executor does: of what it could do, what can begin first.
//!
//! ```text
//!   sender    ├─ message + bytes ─┤
//!   link                          ├── latency ──┤
//!   receiver                                    ├─ message + bytes ─┤
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use topology::schedule::{Lane, Op, Schedule};

/// What messages between two ranks cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkCost {
    /// From when the sender let go of a message to when the receiver can take it, in nanoseconds.
    pub(crate) latency_ns: u64,
    /// Work at each end that does not depend on size, in nanoseconds.
    pub(crate) message_ns: u64,
    /// Work at each end by size, in picoseconds a byte.
    pub(crate) byte_ps: u64,
    /// A copy or a sum in memory, in picoseconds a byte.
    pub(crate) local_ps: u64,
}

/// Sender, receiver, channel, connection.
type Way = (u32, u32, u32, u32);

struct Rank {
    /// When it has done what it did, in picoseconds.
    now: u64,
    /// By lane: when each step was done.
    done: Vec<Vec<u64>>,
    /// By lane: whether its next step waits in the queue.
    queued: Vec<bool>,
}

/// Nanoseconds until the last rank is through; saturating.
pub(crate) fn time_ns(schedule: &Schedule, element_bytes: usize, cost: &LinkCost) -> u64 {
    let programs = &schedule.programs;
    let mut ranks: Vec<Rank> = programs
        .iter()
        .map(|program| Rank {
            now: 0,
            done: vec![Vec::new(); program.lanes.len()],
            queued: vec![false; program.lanes.len()],
        })
        .collect();
    let mut on_the_way: BTreeMap<Way, VecDeque<u64>> = BTreeMap::new();
    let mut hearer: BTreeMap<Way, (usize, usize)> = BTreeMap::new();
    for (r, program) in programs.iter().enumerate() {
        for (l, lane) in program.lanes.iter().enumerate() {
            if let Some(way) = inward(r, lane) {
                hearer.insert(way, (r, l));
            }
        }
    }
    let mut queue: BinaryHeap<Reverse<(u64, usize, usize)>> = BinaryHeap::new();
    for (r, program) in programs.iter().enumerate() {
        for l in 0..program.lanes.len() {
            enqueue(schedule, r, l, &mut ranks[r], &on_the_way, &mut queue);
        }
    }
    while let Some(Reverse((start, r, l))) = queue.pop() {
        if ranks[r].now > start {
            // The rank did something else meanwhile.
            queue.push(Reverse((ranks[r].now, r, l)));
            continue;
        }
        let lane = &programs[r].lanes[l];
        let step = &lane.steps[ranks[r].done[l].len()];
        let bytes = (step.src.count as u64).saturating_mul(element_bytes as u64);
        let end = start.saturating_add(work_ps(step.op, bytes, cost));
        if let Some(way) = inward(r, lane).filter(|_| step.op.receives()) {
            on_the_way.entry(way).or_default().pop_front();
        }
        ranks[r].now = end;
        ranks[r].done[l].push(end);
        ranks[r].queued[l] = false;
        for other in 0..programs[r].lanes.len() {
            enqueue(schedule, r, other, &mut ranks[r], &on_the_way, &mut queue);
        }
        if let Some(way) = outward(r, lane).filter(|_| step.op.sends()) {
            let there = end.saturating_add(cost.latency_ns.saturating_mul(1000));
            on_the_way.entry(way).or_default().push_back(there);
            if let Some(&(to, at)) = hearer.get(&way) {
                enqueue(schedule, to, at, &mut ranks[to], &on_the_way, &mut queue);
            }
        }
    }
    ranks.iter().map(|rank| rank.now).max().unwrap_or(0) / 1000
}

/// Queues the next step of a lane where everything it waits for is known.
fn enqueue(
    schedule: &Schedule,
    r: usize,
    l: usize,
    rank: &mut Rank,
    on_the_way: &BTreeMap<Way, VecDeque<u64>>,
    queue: &mut BinaryHeap<Reverse<(u64, usize, usize)>>,
) {
    let lane = &schedule.programs[r].lanes[l];
    let Some(step) = lane.steps.get(rank.done[l].len()).filter(|_| !rank.queued[l]) else { return };
    let mut start = rank.now;
    for before in &step.after {
        let done = rank.done.get(before.lane as usize).and_then(|d| d.get(before.step as usize));
        let Some(done) = done else { return };
        start = start.max(*done);
    }
    if step.op.receives() {
        let message =
            inward(r, lane).and_then(|way| on_the_way.get(&way)).and_then(VecDeque::front);
        let Some(there) = message else { return };
        start = start.max(*there);
    }
    rank.queued[l] = true;
    queue.push(Reverse((start, r, l)));
}

fn work_ps(op: Op, bytes: u64, cost: &LinkCost) -> u64 {
    let messages = u64::from(op.receives()) + u64::from(op.sends());
    // A message is copied where it lies anyway; only what is combined beside is more.
    let local = match op {
        Op::Send | Op::Recv | Op::RecvCopySend => 0,
        Op::Copy | Op::Reduce | Op::RecvReduceCopy | Op::RecvReduceSend => 1,
        Op::RecvReduceCopySend => 1,
    };
    let fixed = messages.saturating_mul(cost.message_ns).saturating_mul(1000);
    let by_size = messages.saturating_mul(cost.byte_ps) + local * cost.local_ps;
    fixed.saturating_add(by_size.saturating_mul(bytes))
}

fn inward(r: usize, lane: &Lane) -> Option<Way> {
    let from = lane.recv_from?;
    Some((from.0, super::rank(r).0, lane.channel, lane.connection))
}

fn outward(r: usize, lane: &Lane) -> Option<Way> {
    let to = lane.send_to?;
    Some((super::rank(r).0, to.0, lane.channel, lane.connection))
}

#[cfg(test)]
mod tests {
    use topology::Collective;

    use super::*;
    use crate::even::ring_plan;
    use crate::schedule::rounds::{Rounds, in_rounds};
    use crate::schedule::{Sizing, schedule};

    const COST: LinkCost = LinkCost { latency_ns: 100, message_ns: 10, byte_ps: 1000, local_ps: 0 };

    fn sizing() -> Sizing {
        Sizing::new(4, 1 << 20).unwrap()
    }

    #[track_caller]
    fn all_reduce(kind: Rounds, ranks: usize, count: usize, expected: u64) {
        let made = in_rounds(kind, Collective::AllReduce, ranks, count, sizing()).unwrap();
        assert_eq!(time_ns(&made, 4, &COST), expected, "{kind}, {ranks} ranks, {count} elements");
    }

    #[test]
    fn exchanges_cost_what_formulas_say() {
        // Each round: send, latency, receive; 4 ns an element at each end.
        let round = |elements: u64| 10 + 4 * elements + 100 + 10 + 4 * elements;
        all_reduce(Rounds::RecursiveDoubling, 2, 16, round(16));
        all_reduce(Rounds::RecursiveDoubling, 8, 16, 3 * round(16));
        all_reduce(Rounds::HalvingDoubling, 4, 64, 2 * round(32) + 2 * round(16));
        // The sends one after the other, and the last message's latency.
        all_reduce(Rounds::OneShot, 4, 1, 3 * 14 + 100 + 14);
    }

    #[test]
    fn rings_wait_for_each_hop() {
        let made = schedule(&ring_plan(4, 1), Collective::AllReduce, None, 64, sizing()).unwrap();
        // Of six hops the first send and the last receive stand alone, and between them each rank receives and sends.
        assert_eq!(time_ns(&made, 4, &COST), 6 * (10 + 64 + 100 + 10 + 64));
    }

    #[test]
    fn nothing_takes_no_time_and_the_largest_does_not_wrap() {
        all_reduce(Rounds::OneShot, 1, 0, 0);
        let dear = LinkCost { byte_ps: u64::MAX, latency_ns: u64::MAX, ..COST };
        let made = in_rounds(Rounds::OneShot, Collective::AllReduce, 2, 64, sizing()).unwrap();
        assert_eq!(time_ns(&made, 4, &dear), u64::MAX / 1000);
    }
}
