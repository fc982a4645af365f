//! The checker of schedules: symbolic execution of every step, with every way it could go wrong.
//!
//! Form first (peers, slices, matching lengths), then order (no cycle, so nobody waits for ever), then, for both
//! placements of the caller's buffers, data: what is read has been written, no rank's data comes into a sum twice,
//! no two lanes race, and every element of the output is what the collective asks for.

mod layout;
mod memory;
mod order;
mod race;
mod violation;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use topology::Rank;
use topology::schedule::{Blocks, Buffer, Op, Schedule, Slice};

pub use layout::Placement;
pub use violation::{At, Connection, ScheduleViolation, Waits, Wrong};

use layout::{Layout, OUTPUT, Operation, SCRATCH};
use memory::{Memory, Runs, Sum};
use order::Steps;
use race::{Access, Clocks};

/// What a correct schedule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleReport {
    /// Steps of all ranks.
    pub steps: usize,
    /// Messages.
    pub messages: usize,
    /// Longest chain of messages, each of which waits for the one before.
    pub depth: usize,
    /// Elements by sender and receiver.
    pub sent: BTreeMap<(Rank, Rank), usize>,
    /// The placements it is right for: in place only where the collective has such a form.
    pub placements: Vec<Placement>,
}

/// Checks `schedule` for connections of `slots` slots (1 is the hardest), out of place and in place.
///
/// Shards and buffers are NCCL's: rank `r` of `n` owns the elements `count * r / n .. count * (r + 1) / n`, rounded
/// down; in place, a shard lies where it belongs in the whole. All-to-all and send-receive have no form in place.
///
/// # Errors
/// The first violation, in order of rank, lane and step where that has a meaning.
pub fn schedule(schedule: &Schedule, slots: usize) -> Result<ScheduleReport, ScheduleViolation> {
    let mut report = schedule_placed(schedule, slots, Placement::OutOfPlace)?;
    let in_place = Operation::new(schedule, None)?.layout(Rank(0), 0, Placement::InPlace).is_some();
    if in_place {
        schedule_placed(schedule, slots, Placement::InPlace)?;
        report.placements.push(Placement::InPlace);
    }
    Ok(report)
}

/// As [`fn@schedule`], for one placement of the caller's buffers. A placement the collective does not have is taken
/// for [`Placement::OutOfPlace`].
///
/// # Errors
/// The first violation.
pub fn schedule_placed(
    schedule: &Schedule,
    slots: usize,
    placement: Placement,
) -> Result<ScheduleReport, ScheduleViolation> {
    let operation = Operation::new(schedule, None)?;
    check(schedule, &operation, slots, placement)
}

/// As [`fn@schedule`], for an all-to-all of `blocks`, out of place.
///
/// # Errors
/// The first violation; and where the schedule is for other ranks or another total.
pub fn schedule_uneven(
    schedule: &Schedule,
    blocks: &Blocks,
    slots: usize,
) -> Result<ScheduleReport, ScheduleViolation> {
    let operation = Operation::new(schedule, Some(blocks))?;
    check(schedule, &operation, slots, Placement::OutOfPlace)
}

fn check(
    schedule: &Schedule,
    operation: &Operation<'_>,
    slots: usize,
    placement: Placement,
) -> Result<ScheduleReport, ScheduleViolation> {
    let (mut layouts, mut used) = (Vec::new(), placement);
    for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
        let layout = operation.layout(rank, program.scratch, placement).or_else(|| {
            used = Placement::OutOfPlace;
            operation.layout(rank, program.scratch, used)
        });
        layouts.push(layout.expect("every collective has a form out of place"));
    }
    let placement = used;
    let steps = Steps::new(schedule, slots)?;
    for step in 0..steps.len() {
        form(&steps, step, &layouts, placement)?;
    }
    let order = steps.order(slots)?;
    let execution = Execution { steps: &steps, layouts: &layouts, placement };
    // With a race the order taken would decide what is found next.
    execution.races(&order)?;
    let memories = execution.run(&order)?;
    for (rank, (layout, memory)) in (0..).map(Rank).zip(layouts.iter().zip(&memories)) {
        output(operation, rank, layout, &memory[OUTPUT], placement)?;
    }
    if operation.is_barrier() {
        barrier(&steps, &order, operation.ranks())?;
    }
    Ok(report(&steps, &order, placement))
}

/// Slices of the steps: within their buffers, of equal length, never into the input.
fn form(
    steps: &Steps<'_>,
    number: usize,
    layouts: &[Layout],
    placement: Placement,
) -> Result<(), ScheduleViolation> {
    let (step, at) = (steps.step(number), steps.at(number));
    let layout = &layouts[at.rank.index()];
    let within = |slice: Slice| {
        let size = layout.size(slice.buffer);
        let end = slice.offset.checked_add(slice.count);
        if end.is_some_and(|end| end <= size) {
            Ok(())
        } else {
            Err(ScheduleViolation::Bounds { at, slice, size })
        }
    };
    if step.op.reads() {
        within(step.src)?;
    }
    if step.op.writes() {
        within(step.dst)?;
        if step.dst.buffer == Buffer::Input {
            return Err(ScheduleViolation::WritesInput { at });
        }
    }
    if step.op.reads() && step.op.writes() {
        if step.src.count != step.dst.count {
            let (from, into) = (step.src.count, step.dst.count);
            return Err(ScheduleViolation::Counts { at, from, into });
        }
        let (src, dst) = (layout.place(step.src), layout.place(step.dst));
        let apart = src.0 != dst.0 || src.1.end <= dst.1.start || dst.1.end <= src.1.start;
        if !apart && src != dst {
            return Err(ScheduleViolation::Overlap { at, placement });
        }
    }
    Ok(())
}

/// The steps over memory.
struct Execution<'a> {
    steps: &'a Steps<'a>,
    layouts: &'a [Layout],
    placement: Placement,
}

impl Execution<'_> {
    /// What each rank's memories hold in the end.
    fn run(&self, order: &[usize]) -> Result<Vec<[Memory; 3]>, ScheduleViolation> {
        let mut memories: Vec<[Memory; 3]> = Vec::new();
        for (rank, layout) in (0..).map(Rank).zip(self.layouts) {
            let mut memory = [Memory::default(), Memory::default(), Memory::default()];
            let (place, elements) = layout.input();
            memory[place].write(elements.start, &vec![(elements.len(), Sum::of(rank, 0))]);
            memories.push(memory);
        }
        let mut in_flight = BTreeMap::<usize, Runs>::new();
        for number in order {
            let (step, at) = (self.steps.step(*number), self.steps.at(*number));
            let layout = &self.layouts[at.rank.index()];
            let memory = &mut memories[at.rank.index()];
            let placement = self.placement;
            let received = self.steps.message[*number].map(|send| {
                in_flight
                    .remove(&send)
                    .expect("a message is sent before it is taken, and taken once")
            });
            let read = |memory: &[Memory; 3], slice: Slice| {
                let (place, elements) = layout.place(slice);
                let start = elements.start;
                memory[place].read(elements).map_err(|missing| ScheduleViolation::Unwritten {
                    at,
                    placement,
                    buffer: slice.buffer,
                    element: missing - start + slice.offset,
                })
            };
            let add = |left: &Runs, right: &Runs| {
                memory::add(left, right).map_err(|of| ScheduleViolation::Twice {
                    at,
                    placement,
                    of,
                })
            };
            let result = match (step.op, received) {
                (Op::Copy | Op::Send, _) => read(memory, step.src)?,
                (Op::Reduce, _) => add(&read(memory, step.dst)?, &read(memory, step.src)?)?,
                (Op::Recv | Op::RecvCopySend, Some(received)) => received,
                (_, received) => add(&read(memory, step.src)?, &received.unwrap_or_default())?,
            };
            if step.op.writes() {
                let (place, elements) = layout.place(step.dst);
                memory[place].write(elements.start, &result);
            }
            if step.op.sends() {
                in_flight.insert(*number, result);
            }
        }
        Ok(memories)
    }

    fn races(&self, order: &[usize]) -> Result<(), ScheduleViolation> {
        let mut groups = None;
        let mut of_rank: Vec<Vec<usize>> = vec![Vec::new(); self.layouts.len()];
        for step in order {
            of_rank[self.steps.at(*step).rank.index()].push(*step);
        }
        for ((rank, layout), own) in (0..).map(Rank).zip(self.layouts).zip(&of_rank) {
            let lanes = self.steps.lanes_of(rank);
            let mut accesses: [Vec<Access>; 3] = Default::default();
            for number in lanes.clone().flat_map(|lane| self.steps.steps_of(lane)) {
                let step = self.steps.step(number);
                // In place, the copy of a rank's own part is a copy onto itself, which executors leave out.
                if step.op == Op::Copy && layout.place(step.src) == layout.place(step.dst) {
                    continue;
                }
                let used = [
                    step.op.reads().then_some((step.src, false)),
                    step.op.writes().then_some((step.dst, true)),
                ];
                for (slice, writes) in used.into_iter().flatten() {
                    let (memory, elements) = layout.place(slice);
                    accesses[memory].push(Access { step: number, elements, writes });
                }
            }
            let clocks = Clocks::new(self.steps, own, |_| 0, lanes.clone());
            if accesses.iter().all(|a| race::find(self.steps, &clocks, a).is_none()) {
                continue;
            }
            // Other ranks' messages may order what the rank itself does not.
            let groups = groups.get_or_insert_with(|| race::groups(self.steps));
            let clocks = Clocks::new(self.steps, order, |lane| groups[lane], lanes);
            for (memory, accesses) in accesses.iter().enumerate() {
                if let Some(race) = race::find(self.steps, &clocks, accesses) {
                    return Err(self.describe(race, layout, memory));
                }
            }
        }
        Ok(())
    }

    /// A race in the words of the schedule.
    fn describe(&self, race: race::Race, layout: &Layout, memory: usize) -> ScheduleViolation {
        let step = self.steps.step(race.first);
        let touches = |slice: &Slice| {
            let (place, elements) = layout.place(*slice);
            (place == memory && elements.contains(&race.element))
                .then(|| (slice.buffer, race.element - elements.start + slice.offset))
        };
        let used = [(step.op.writes(), step.dst), (step.op.reads(), step.src)];
        let found = used.iter().filter(|(used, _)| *used).find_map(|(_, slice)| touches(slice));
        let fallback = if memory == SCRATCH { Buffer::Scratch } else { Buffer::Output };
        let (buffer, element) = found.unwrap_or((fallback, race.element));
        ScheduleViolation::Race {
            first: self.steps.at(race.first),
            second: self.steps.at(race.second),
            placement: self.placement,
            buffer,
            element,
        }
    }
}

/// Every element of a rank's output is what the collective asks for.
fn output(
    operation: &Operation<'_>,
    rank: Rank,
    layout: &Layout,
    memory: &Memory,
    placement: Placement,
) -> Result<(), ScheduleViolation> {
    let (_, place) = layout.output();
    for wanted in operation.wanted(rank) {
        let wrong = |element, found| ScheduleViolation::Output { rank, placement, element, found };
        let elements = place.start + wanted.output.start..place.start + wanted.output.end;
        let runs = memory
            .read(elements)
            .map_err(|missing| wrong(missing - place.start, Wrong::Unwritten))?;
        let mut here = wanted.output.start;
        for (len, sum) in runs {
            let element = wanted.element + (here - wanted.output.start);
            let of_all = || (0..).map(Rank).take(operation.ranks());
            let right = match wanted.of {
                Some(of) => sum.terms().eq([(of, element)]),
                None => sum.terms().eq(of_all().map(|rank| (rank, element))),
            };
            if right {
                here += len;
                continue;
            }
            let found: BTreeMap<Rank, usize> = sum.terms().collect();
            let of: BTreeSet<Rank> = match wanted.of {
                Some(of) => BTreeSet::from([of]),
                None => of_all().collect(),
            };
            let missing =
                of.iter().find(|of| !found.contains_key(of)).map(|of| Wrong::Missing(*of));
            let foreign = || found.keys().find(|r| !of.contains(r)).map(|r| Wrong::Foreign(*r));
            let shifted =
                || found.iter().find(|(_, e)| **e != element).map(|(r, _)| Wrong::Shifted(*r));
            if let Some(problem) = missing.or_else(foreign).or_else(shifted) {
                return Err(wrong(here, problem));
            }
            here += len;
        }
    }
    Ok(())
}

/// Nobody's last step may be done before everybody has begun.
fn barrier(steps: &Steps<'_>, order: &[usize], ranks: usize) -> Result<(), ScheduleViolation> {
    let mut heard: Vec<BTreeSet<Rank>> = vec![BTreeSet::new(); steps.len()];
    let mut leaving: Vec<BTreeSet<Rank>> = vec![BTreeSet::new(); ranks];
    for step in order {
        let rank = steps.at(*step).rank;
        let mut all = BTreeSet::from([rank]);
        for before in steps.before(*step) {
            all.extend(&heard[before]);
        }
        leaving[rank.index()].extend(&all);
        heard[*step] = all;
    }
    for (rank, heard) in (0..).map(Rank).zip(leaving) {
        let mut others = (0..).map(Rank).take(ranks);
        if let Some(other) = others.find(|other| *other != rank && !heard.contains(other)) {
            return Err(ScheduleViolation::Barrier { rank, other });
        }
    }
    Ok(())
}

fn report(steps: &Steps<'_>, order: &[usize], placement: Placement) -> ScheduleReport {
    let mut depth = vec![0_usize; steps.len()];
    let mut sent = BTreeMap::<(Rank, Rank), usize>::new();
    let mut messages = 0;
    for step in order {
        let mut longest = 0;
        for before in steps.before(*step) {
            let crossed = usize::from(steps.message[*step] == Some(before));
            longest = longest.max(depth[before] + crossed);
        }
        depth[*step] = longest;
        if let Some(send) = steps.message[*step] {
            messages += 1;
            let ends = (steps.at(send).rank, steps.at(*step).rank);
            *sent.entry(ends).or_default() += steps.elements_sent(send);
        }
    }
    ScheduleReport {
        steps: steps.len(),
        messages,
        depth: depth.into_iter().max().unwrap_or_default(),
        sent,
        placements: vec![placement],
    }
}
