//! In which order a rank enqueues the steps of its lanes. Pure.
//!
//! A stream that waits for a peer may hold up others behind it: the hardware has few queues and shares them among streams, and the
//! driver knows nothing of waits for words in memory. So steps are enqueued in an order in which the whole group could do them one at a
//! time, with the slots its connections have:
//!
//! ```text
//!   one order for the group    r0 sends   r1 receives   r1 sends   r0 receives ...
//!   what each rank enqueues    r0: sends, receives      r1: receives, sends
//! ```
//!
//! The first step of that order that is not done waits for none behind it, whichever steps share a queue: something always moves. Every
//! rank finds the same order, for it depends on the schedule alone; one operation follows the other, so that holds across operations
//! too.

use std::collections::{BTreeMap, VecDeque};

use topology::schedule::{Lane, Schedule};

/// A step: place of its lane in the program, and its place in the lane.
pub(crate) type Place = (u32, u32);

/// A step in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) place: Place,
    /// Of a step that receives: the message's number among those that its sender sends to this rank, over all connections.
    pub(crate) message: Option<u32>,
}

/// A schedule that cannot be done with so many slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck;

type Way = (u32, u32, u32, u32);

/// By rank.
pub(crate) fn order(schedule: &Schedule, slots: usize) -> Result<Vec<Vec<Turn>>, Stuck> {
    let programs = &schedule.programs;
    let mut done: Vec<Vec<usize>> = programs.iter().map(|p| vec![0; p.lanes.len()]).collect();
    // By their numbers.
    let mut on_the_way: BTreeMap<Way, VecDeque<u32>> = BTreeMap::new();
    let mut sent: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut made: Vec<Vec<Turn>> = vec![Vec::new(); programs.len()];
    let mut left: usize = programs.iter().flat_map(|p| &p.lanes).map(|lane| lane.steps.len()).sum();
    while left > 0 {
        let before = left;
        // A step of every lane in turn: lanes that can run side by side are enqueued side by side.
        for (r, program) in programs.iter().enumerate() {
            for (l, lane) in program.lanes.iter().enumerate() {
                let Some(step) = lane.steps.get(done[r][l]) else { continue };
                let ready = step.after.iter().all(|d| {
                    done[r].get(d.lane as usize).is_some_and(|steps| *steps > d.step as usize)
                });
                let inward = inward(r, lane).filter(|_| step.op.receives());
                let outward = outward(r, lane).filter(|_| step.op.sends());
                let holds = |way: &Way| on_the_way.get(way).map_or(0, VecDeque::len);
                if !ready
                    || inward.is_some_and(|way| holds(&way) == 0)
                    || outward.is_some_and(|way| holds(&way) >= slots)
                {
                    continue;
                }
                let message = inward.and_then(|way| on_the_way.entry(way).or_default().pop_front());
                if let Some(way) = outward {
                    let count = sent.entry((way.0, way.1)).or_default();
                    on_the_way.entry(way).or_default().push_back(*count);
                    *count += 1;
                }
                made[r].push(Turn { place: (number(l), number(done[r][l])), message });
                done[r][l] += 1;
                left -= 1;
            }
        }
        if left == before {
            return Err(Stuck);
        }
    }
    Ok(made)
}

fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

fn inward(r: usize, lane: &Lane) -> Option<Way> {
    Some((lane.recv_from?.0, number(r), lane.channel, lane.connection))
}

fn outward(r: usize, lane: &Lane) -> Option<Way> {
    Some((number(r), lane.send_to?.0, lane.channel, lane.connection))
}

#[cfg(test)]
mod tests {
    use topology::schedule::{Op, Program};
    use topology::{Collective, Rank};
    use transport::even::{full_plan, tree_plan};
    use transport::schedule::rounds::{Rounds, in_rounds};
    use transport::schedule::{MIN_SLOTS, Sizing, schedule};

    use super::*;

    /// Does one rank's steps in its order, each only if it can be done, with one queue for all its lanes: what the hardware may do at
    /// worst. Whether all come to an end.
    fn runs_in_single_queues(schedule: &Schedule, orders: &[Vec<Turn>], slots: usize) -> bool {
        let mut at = vec![0; orders.len()];
        let mut held: BTreeMap<Way, usize> = BTreeMap::new();
        loop {
            let mut moved = false;
            // From the last rank on: another order than the one the order was found in.
            for r in (0..orders.len()).rev() {
                while let Some(Turn { place: (l, s), .. }) = orders[r].get(at[r]) {
                    let lane = &schedule.programs[r].lanes[*l as usize];
                    let step = &lane.steps[*s as usize];
                    let from = inward(r, lane).filter(|_| step.op.receives());
                    let to = outward(r, lane).filter(|_| step.op.sends());
                    let full = |way: &Way| held.get(way).copied().unwrap_or(0);
                    if from.is_some_and(|way| full(&way) == 0)
                        || to.is_some_and(|way| full(&way) >= slots)
                    {
                        break;
                    }
                    if let Some(way) = from {
                        *held.entry(way).or_default() -= 1;
                    }
                    if let Some(way) = to {
                        *held.entry(way).or_default() += 1;
                    }
                    at[r] += 1;
                    moved = true;
                }
            }
            if !moved {
                return at.iter().zip(orders).all(|(at, order)| *at == order.len());
            }
        }
    }

    #[test]
    fn every_collective_runs_with_one_queue_a_rank() {
        let collectives = [
            Collective::AllReduce,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast,
            Collective::Reduce,
            Collective::AllToAll,
            Collective::Gather,
            Collective::Scatter,
        ];
        let mut checked = 0;
        for ranks in [2, 3, 5, 8] {
            let plans = [full_plan(ranks, 1), full_plan(ranks, 3), tree_plan(ranks, 2, 2)];
            for (plan, collective) in plans.iter().flat_map(|p| collectives.map(|c| (p, c))) {
                for elements in [0, 7, 1000, 60_000] {
                    let count = elements * ranks as usize;
                    let root = collective.has_root().then_some(Rank(ranks - 1));
                    let sizing = Sizing::new(4, 4096).unwrap();
                    let Ok(made) = schedule(plan, collective, root, count, sizing) else {
                        continue;
                    };
                    for slots in [MIN_SLOTS, 4] {
                        let orders = order(&made, slots).unwrap();
                        let steps =
                            |p: &Program| p.lanes.iter().map(|l| l.steps.len()).sum::<usize>();
                        for (program, order) in made.programs.iter().zip(&orders) {
                            assert_eq!(order.len(), steps(program));
                            follows_dependencies(program, order);
                        }
                        assert!(
                            runs_in_single_queues(&made, &orders, slots),
                            "{collective} of {count} among {ranks}"
                        );
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 200, "{checked}");
    }

    #[test]
    fn rounds_run_with_one_queue_a_rank() {
        let sizing = Sizing::new(4, 256).unwrap();
        let collectives = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
        let kinds = Rounds::ALL.into_iter().flat_map(|kind| collectives.map(|c| (kind, c)));
        let mut checked = 0;
        for (kind, collective) in kinds.filter(|(kind, c)| kind.runs(*c)) {
            for (ranks, count) in [(2, 7), (3, 1000), (5, 64), (6, 3000), (8, 5000)] {
                let made = in_rounds(kind, collective, ranks, count, sizing).unwrap();
                for slots in [MIN_SLOTS, 4] {
                    let what = format!("{kind} {collective} of {count} among {ranks}");
                    let orders = order(&made, slots).unwrap_or_else(|_| panic!("{what}: stuck"));
                    for (program, order) in made.programs.iter().zip(&orders) {
                        follows_dependencies(program, order);
                    }
                    assert!(runs_in_single_queues(&made, &orders, slots), "{what}");
                    checked += 1;
                }
            }
        }
        assert_eq!(checked, 12 * 5 * 2);
    }

    fn follows_dependencies(program: &Program, order: &[Turn]) {
        let mut done = vec![0_u32; program.lanes.len()];
        for Turn { place: (l, s), message } in order {
            let step = &program.lanes[*l as usize].steps[*s as usize];
            assert_eq!(done[*l as usize], *s, "steps of a lane in turn");
            assert!(step.after.iter().all(|d| done[d.lane as usize] > d.step));
            assert_eq!(message.is_some(), step.op.receives());
            done[*l as usize] += 1;
        }
    }

    /// Messages on different connections may be received in another order than they are sent in; both ends know which is which.
    #[test]
    fn both_ends_number_messages_alike() {
        let sizing = Sizing::new(4, 256).unwrap();
        let made = schedule(&full_plan(4, 3), Collective::AllToAll, None, 4000, sizing).unwrap();
        let orders = order(&made, 2).unwrap();
        for (from, to) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let of = |r: usize, turn: &Turn| {
                let lane = &made.programs[r].lanes[turn.place.0 as usize];
                let step = &lane.steps[turn.place.1 as usize];
                (lane.clone(), step.op, step.src.count)
            };
            let sent = orders[from].iter().map(|turn| of(from, turn));
            let sent =
                sent.filter(|(lane, op, _)| op.sends() && lane.send_to == Some(Rank(number(to))));
            let sent: Vec<_> = sent.map(|(lane, _, count)| (lane.channel, count)).collect();
            let mut received: Vec<_> = orders[to]
                .iter()
                .filter_map(|turn| Some((turn.message?, of(to, turn))))
                .filter(|(_, (lane, ..))| lane.recv_from == Some(Rank(number(from))))
                .map(|(message, (lane, _, count))| (message, lane.channel, count))
                .collect();
            received.sort_unstable();
            let received: Vec<_> =
                received.into_iter().map(|(_, channel, count)| (channel, count)).collect();
            assert_eq!(sent, received, "{from} to {to}");
        }
    }

    #[test]
    fn a_circle_of_receives_is_found() {
        let sizing = Sizing::new(4, 4096).unwrap();
        let mut made = schedule(&full_plan(2, 1), Collective::AllReduce, None, 64, sizing).unwrap();
        for lane in made.programs.iter_mut().flat_map(|p| &mut p.lanes) {
            lane.steps.retain(|step| step.op != Op::Send);
        }
        assert_eq!(order(&made, 4), Err(Stuck));
    }
}
