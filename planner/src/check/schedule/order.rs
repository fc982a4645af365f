//! Order: which message each receive takes, what must be done before what, and whether everybody can finish.
//!
//! ```text
//!   lane      step ──▶ step ──▶ step            program order
//!   after     step of another lane ──▶ step
//!   message   i-th send ──▶ i-th receive        of a connection, first in first out
//!   slot      i-th receive ──▶ (i + slots)-th send
//! ```
//!
//! No step has a choice, so if one order of execution finishes, all do; and one does if this graph has no cycle.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use topology::Rank;
use topology::schedule::{Lane, Op, Schedule, Step, StepRef};

use super::violation::{At, Connection, ScheduleViolation, Waits};

/// All steps of a schedule by number: rank by rank, lane by lane.
#[derive(Debug)]
pub(super) struct Steps<'a> {
    lanes: Vec<LaneSteps<'a>>,
    /// First lane of each rank, and the number of lanes.
    by_rank: Vec<usize>,
    /// By step: the send whose message it takes.
    pub(super) message: Vec<Option<usize>>,
    /// By step: the receive that must free a slot first.
    slot: Vec<Option<usize>>,
}

#[derive(Debug)]
struct LaneSteps<'a> {
    rank: Rank,
    /// Place in its program.
    place: usize,
    lane: &'a Lane,
    first: usize,
}

/// Both ends of a connection: the numbers of its sends and receives, in order.
#[derive(Default)]
struct Ends {
    sends: Vec<usize>,
    receives: Vec<usize>,
    sender: Option<usize>,
    receiver: Option<usize>,
}

impl<'a> Steps<'a> {
    /// Numbers the steps and pairs sends with receives.
    pub(super) fn new(schedule: &'a Schedule, slots: usize) -> Result<Self, ScheduleViolation> {
        let mut lanes = Vec::new();
        let mut by_rank = vec![0];
        let mut first = 0;
        for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
            for (place, lane) in program.lanes.iter().enumerate() {
                lanes.push(LaneSteps { rank, place, lane, first });
                first += lane.steps.len();
            }
            by_rank.push(lanes.len());
        }
        let mut steps =
            Self { lanes, by_rank, message: vec![None; first], slot: vec![None; first] };
        steps.check_after()?;
        for (connection, ends) in steps.connections(schedule.programs.len())? {
            let (sends, receives) = (ends.sends.len(), ends.receives.len());
            if sends != receives {
                return Err(ScheduleViolation::Unmatched { connection, sends, receives });
            }
            for (place, (send, receive)) in ends.sends.iter().zip(&ends.receives).enumerate() {
                let (sent, taken) = (steps.elements_sent(*send), steps.elements_taken(*receive));
                if sent != taken {
                    let at = steps.at(*receive);
                    return Err(ScheduleViolation::Length { at, sent, taken });
                }
                steps.message[*receive] = Some(*send);
                if place >= slots {
                    steps.slot[*send] = Some(ends.receives[place - slots]);
                }
            }
        }
        Ok(steps)
    }

    fn connections(&self, ranks: usize) -> Result<BTreeMap<Connection, Ends>, ScheduleViolation> {
        let mut connections = BTreeMap::<Connection, Ends>::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            for peer in lane.lane.recv_from.iter().chain(&lane.lane.send_to) {
                if peer.index() >= ranks || *peer == lane.rank {
                    let (rank, lane) = (lane.rank, lane.place);
                    return Err(ScheduleViolation::Peer { rank, lane, peer: *peer });
                }
            }
            let Lane { channel, connection, .. } = *lane.lane;
            for (place, step) in lane.lane.steps.iter().enumerate() {
                let at = At { rank: lane.rank, lane: lane.place, step: place };
                if step.op.sends() {
                    let to = lane.lane.send_to;
                    let to = to.ok_or(ScheduleViolation::NoPeer { at, sends: true })?;
                    let key = Connection { from: lane.rank, to, channel, connection };
                    let ends = connections.entry(key).or_default();
                    if *ends.sender.get_or_insert(number) != number {
                        return Err(ScheduleViolation::Shared { connection: key, sends: true });
                    }
                    ends.sends.push(lane.first + place);
                }
                if step.op.receives() {
                    let from = lane.lane.recv_from;
                    let from = from.ok_or(ScheduleViolation::NoPeer { at, sends: false })?;
                    let key = Connection { from, to: lane.rank, channel, connection };
                    let ends = connections.entry(key).or_default();
                    if *ends.receiver.get_or_insert(number) != number {
                        return Err(ScheduleViolation::Shared { connection: key, sends: false });
                    }
                    ends.receives.push(lane.first + place);
                }
            }
        }
        Ok(connections)
    }

    fn check_after(&self) -> Result<(), ScheduleViolation> {
        for number in 0..self.len() {
            let at = self.at(number);
            for after in &self.step(number).after {
                let own = usize::try_from(after.lane) == Ok(at.lane);
                if own || self.referred(at.rank, *after).is_none() {
                    return Err(ScheduleViolation::After { at, after: *after });
                }
            }
        }
        Ok(())
    }

    /// The number of a step that another of `rank` names.
    fn referred(&self, rank: Rank, step: StepRef) -> Option<usize> {
        let lanes = &self.lanes[self.lanes_of(rank)];
        let lane = lanes.get(usize::try_from(step.lane).ok()?)?;
        let place = usize::try_from(step.step).ok()?;
        (place < lane.lane.steps.len()).then_some(lane.first + place)
    }

    pub(super) fn len(&self) -> usize {
        self.message.len()
    }

    /// Numbers of the lanes of a rank.
    pub(super) fn lanes_of(&self, rank: Rank) -> core::ops::Range<usize> {
        self.by_rank[rank.index()]..self.by_rank[rank.index() + 1]
    }

    /// How many lanes there are.
    pub(super) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Numbers of the steps of a lane.
    pub(super) fn steps_of(&self, lane: usize) -> core::ops::Range<usize> {
        let lane = &self.lanes[lane];
        lane.first..lane.first + lane.lane.steps.len()
    }

    /// Number of the lane of a step.
    pub(super) fn lane_of(&self, step: usize) -> usize {
        // Empty lanes share their first step's number with the lane after them.
        self.lanes.partition_point(|lane| lane.first <= step) - 1
    }

    pub(super) fn step(&self, step: usize) -> &'a Step {
        let lane = &self.lanes[self.lane_of(step)];
        &lane.lane.steps[step - lane.first]
    }

    /// Elements of the message that `step` sends.
    pub(super) fn elements_sent(&self, step: usize) -> usize {
        let step = self.step(step);
        if step.op == Op::RecvCopySend { step.dst.count } else { step.src.count }
    }

    /// Elements of the message that `step` takes.
    fn elements_taken(&self, step: usize) -> usize {
        let step = self.step(step);
        if step.op == Op::RecvReduceSend { step.src.count } else { step.dst.count }
    }

    pub(super) fn at(&self, step: usize) -> At {
        let lane = &self.lanes[self.lane_of(step)];
        At { rank: lane.rank, lane: lane.place, step: step - lane.first }
    }

    /// What must be done before `step`, whatever the number of slots.
    pub(super) fn before(&self, step: usize) -> impl Iterator<Item = usize> + '_ {
        let lane = &self.lanes[self.lane_of(step)];
        let previous = (step > lane.first).then(|| step - 1);
        let after = lane.lane.steps[step - lane.first].after.iter();
        let after = after.filter_map(move |after| self.referred(lane.rank, *after));
        previous.into_iter().chain(self.message[step]).chain(after)
    }

    /// An order in which all steps can be done, with as many slots as given to [`Steps::new`].
    pub(super) fn order(&self, slots: usize) -> Result<Vec<usize>, ScheduleViolation> {
        let all_before = |step| self.before(step).chain(self.slot[step]);
        let mut waiting: Vec<usize> =
            (0..self.len()).map(|step| all_before(step).count()).collect();
        let mut then = vec![Vec::new(); self.len()];
        for step in 0..self.len() {
            for before in all_before(step) {
                then[before].push(step);
            }
        }
        let mut order: Vec<usize> = (0..self.len()).filter(|step| waiting[*step] == 0).collect();
        let mut next = 0;
        while let Some(done) = order.get(next).copied() {
            next += 1;
            for step in &then[done] {
                waiting[*step] -= 1;
                if waiting[*step] == 0 {
                    order.push(*step);
                }
            }
        }
        if order.len() == self.len() {
            return Ok(order);
        }
        let mut done = vec![false; self.len()];
        for step in order {
            done[step] = true;
        }
        Err(self.stuck(&done, slots))
    }

    /// The first step that never runs though all before it in its lane do.
    fn stuck(&self, done: &[bool], slots: usize) -> ScheduleViolation {
        let first = |lane: usize| self.steps_of(lane).find(|step| !done[*step]);
        let step = (0..self.lanes.len())
            .find_map(first)
            .expect("the caller found fewer steps done than there are");
        let at = self.at(step);
        let lane = self.lanes[self.lane_of(step)].lane;
        let Lane { channel, connection, .. } = *lane;
        let named = |from, to| Connection { from, to, channel, connection };
        let pending = |on: Option<usize>| on.is_some_and(|step| !done[step]);
        let after = self.step(step).after.iter();
        let after = after.copied().find(|after| pending(self.referred(at.rank, *after)));
        let waits = match (after, lane.recv_from, lane.send_to) {
            (Some(after), _, _) => Waits::After(after),
            (None, Some(from), _) if pending(self.message[step]) => {
                Waits::Message(named(from, at.rank))
            }
            (None, _, to) => Waits::Slot(named(at.rank, to.unwrap_or(at.rank))),
        };
        ScheduleViolation::Deadlock { slots, at, waits }
    }
}
