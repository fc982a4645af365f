//! Enqueues an operation: everything a rank does for it, on streams, without waiting for any of it.
//!
//! ```text
//!   caller's stream ──event──▶ first stream ──event──▶ the other streams      no earlier than the caller's work, and the operation before
//!   each stream                wait posted, wait consumed, copy or kernel, write consumed, write posted, ...
//!   the other streams ─event─▶ first stream, division ──event──▶ caller's stream
//! ```
//!
//! Small messages that travel with their flags take one launch in the place of all that is between the events.

use std::collections::BTreeMap;
use std::sync::Arc;

use topology::schedule::{Buffer as Which, Op, Slice, Step};

use crate::buffer::Memory;
use crate::context::Context;
use crate::error::{CudaError, DriverError};
use crate::ffi::{Address, Driver, Handle};
use crate::flagged::{self, Words};
use crate::kernels::Combine;
use crate::network::Message;
use crate::order::Turn;
use crate::program::{Compiled, Lane};
use crate::stream::{Event, Stream};
use crate::wire::{Wire, Wires, in_word};

/// Events of a stream by which steps on others wait for its steps, used in turn: what waits has taken what it waits for by then, and
/// one that is taken later waits for a little more.
const MARKS: usize = 16;

/// The streams of operations of one priority, which follow each other.
#[derive(Debug)]
pub(crate) struct Lines {
    context: Arc<Context>,
    priority: u32,
    streams: Vec<Stream>,
    marks: Vec<Vec<Event>>,
    /// One for each stream's end, and the fork's.
    ends: Vec<Event>,
}

impl Lines {
    pub(crate) const fn new(context: Arc<Context>, priority: u32) -> Self {
        Self { context, priority, streams: Vec::new(), marks: Vec::new(), ends: Vec::new() }
    }

    /// Makes what is missing of so many streams.
    pub(crate) fn extend(&mut self, streams: usize) -> Result<(), CudaError> {
        while self.streams.len() < streams {
            let marks: Result<Vec<_>, _> = (0..MARKS).map(|_| Event::new(&self.context)).collect();
            self.ends.push(Event::new(&self.context)?);
            self.marks.push(marks?);
            self.streams.push(Stream::with_priority(&self.context, self.priority)?);
        }
        Ok(())
    }

    /// Those of a program's operations.
    pub(crate) fn used(&self, program: &Compiled) -> Vec<Handle> {
        self.streams[..program.streams].iter().map(|stream| stream.raw).collect()
    }
}

/// The caller's memory and the communicator's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) input: Address,
    pub(crate) output: Address,
    pub(crate) scratch: Address,
}

/// A launch that does a rank's part of an operation.
pub(crate) struct Launch {
    pub(crate) function: Handle,
    pub(crate) lanes: u32,
    pub(crate) places: flagged::Places,
    pub(crate) program: Words,
}

/// What an operation is enqueued with.
pub(crate) struct Task<'a> {
    pub(crate) program: &'a Compiled,
    pub(crate) places: Places,
    pub(crate) element_bytes: usize,
    /// Slots of a connection, and bytes of a slot.
    pub(crate) slots: (usize, usize),
    /// `None` where nothing is combined.
    pub(crate) combine: Option<Combine>,
    /// What is divided at the end, by how many ranks.
    pub(crate) divide: Option<(Address, usize, usize)>,
    /// The launch that does all of it, where messages travel with their flags.
    pub(crate) flagged: Option<Launch>,
    /// What is put together before and taken apart after.
    pub(crate) parts: &'a [(Memory, Memory)],
    /// The caller's stream.
    pub(crate) caller: Handle,
    /// Recorded when the caller's stream has come to the operation, and when it is done.
    pub(crate) begun: &'a Event,
    pub(crate) done: &'a Event,
}

impl Task<'_> {
    /// Enqueues it. Where this fails, a part may have been: the group must end.
    pub(crate) fn enqueue(
        &self,
        lines: &Lines,
        wires: &mut Wires,
        messages: &mut Vec<Message>,
    ) -> Result<(), DriverError> {
        lines.context.with(|driver| {
            let streams = &lines.streams[..self.program.streams];
            let first = streams[0].raw;
            driver.record(self.begun.raw, self.caller)?;
            driver.wait_event(first, self.begun.raw)?;
            for (place, tensor) in self.parts.iter().filter(|(_, tensor)| tensor.bytes() > 0) {
                driver.copy(place.address(), tensor.address(), tensor.bytes(), first)?;
            }
            driver.record(lines.ends[0].raw, first)?;
            for other in &streams[1..] {
                driver.wait_event(other.raw, lines.ends[0].raw)?;
            }
            match &self.flagged {
                Some(launch) if launch.lanes > 0 => {
                    let parameters = (launch.places, launch.program);
                    driver.flagged(launch.function, launch.lanes, first, parameters)?;
                }
                Some(_) => {}
                None => self.steps(driver, lines, wires, messages)?,
            }
            for (other, end) in streams.iter().zip(&lines.ends).skip(1) {
                driver.record(end.raw, other.raw)?;
                driver.wait_event(first, end.raw)?;
            }
            if let (Some(combine), Some((target, bytes, ranks))) = (&self.combine, self.divide) {
                combine.divide(driver, first, target, bytes, ranks)?;
            }
            for (place, tensor) in self.parts.iter().filter(|(_, tensor)| tensor.bytes() > 0) {
                driver.copy(tensor.address(), place.address(), tensor.bytes(), first)?;
            }
            driver.record(self.done.raw, first)?;
            driver.wait_event(self.caller, self.done.raw)
        })
    }

    fn steps(
        &self,
        driver: &Driver,
        lines: &Lines,
        wires: &mut Wires,
        messages: &mut Vec<Message>,
    ) -> Result<(), DriverError> {
        let mut marks: BTreeMap<(u32, u32), Handle> = BTreeMap::new();
        let mut turns = vec![0; self.program.streams];
        for Turn { place: (l, s), message } in &self.program.order {
            let lane = &self.program.lanes[*l as usize];
            let step = &lane.steps[*s as usize];
            let stream = lines.streams[lane.stream].raw;
            for before in &step.after {
                // On the same stream it is enqueued already.
                if self.program.lanes[before.lane as usize].stream != lane.stream
                    && let Some(mark) = marks.get(&(before.lane, before.step))
                {
                    driver.wait_event(stream, *mark)?;
                }
            }
            self.pass(lane, step, *message, wires, messages);
            self.step(driver, stream, lane, step, wires)?;
            if lane.marked[*s as usize] {
                let mark = lines.marks[lane.stream][turns[lane.stream] % MARKS].raw;
                turns[lane.stream] += 1;
                driver.record(mark, stream)?;
                marks.insert((*l, *s), mark);
            }
        }
        Ok(())
    }

    /// Notes the messages of a step that go by the host's links.
    fn pass(
        &self,
        lane: &Lane,
        step: &Step,
        message: Option<u32>,
        wires: &Wires,
        messages: &mut Vec<Message>,
    ) {
        let inward = lane.receive.filter(|_| step.op.receives()).map(|at| &wires.receive[at]);
        let outward = lane.transmit.filter(|_| step.op.sends()).map(|at| &wires.transmit[at]);
        for (wire, peer, outward) in inward
            .map(|wire| (wire, wire.id.from, false))
            .into_iter()
            .chain(outward.map(|wire| (wire, wire.id.to, true)))
        {
            let Some(start) = wire.network else { continue };
            let (slots, slot_bytes) = self.slots;
            let place = usize::try_from(wire.next % slots as u64).unwrap_or(0);
            messages.push(Message {
                peer,
                outward,
                turn: if outward { 0 } else { message.unwrap_or(0) },
                posted: wire.posted.clone(),
                consumed: wire.consumed.clone(),
                number: wire.next,
                start: start + place * slot_bytes,
                bytes: step.src.count * self.element_bytes,
            });
        }
    }

    fn step(
        &self,
        driver: &Driver,
        stream: Handle,
        lane: &Lane,
        step: &Step,
        wires: &mut Wires,
    ) -> Result<(), DriverError> {
        let mut inward =
            lane.receive.filter(|_| step.op.receives()).map(|at| &mut wires.receive[at]);
        let mut outward =
            lane.transmit.filter(|_| step.op.sends()).map(|at| &mut wires.transmit[at]);
        if let Some(wire) = &inward {
            driver.wait_value(stream, wire.posted.address, in_word(wire.next + 1))?;
        }
        if let Some(wire) = &outward {
            let needed = in_word(wire.next + 1 - self.slots.0 as u64);
            // It never goes back, so what is there need not be waited for.
            if !wire.consumed.is_at_least(needed) {
                driver.wait_value(stream, wire.consumed.address, needed)?;
            }
        }
        let slot = |wire: &Wire| {
            let (slots, bytes) = self.slots;
            wire.slots + (wire.next % slots as u64) * bytes as u64
        };
        let (received, next) = (inward.as_deref().map(slot), outward.as_deref().map(slot));
        self.compute(driver, stream, step, (received, next))?;
        if let Some(wire) = &mut outward {
            wire.next += 1;
            driver.write_value(stream, wire.posted.address, in_word(wire.next))?;
        }
        if let Some(wire) = &mut inward {
            wire.next += 1;
            driver.write_value(stream, wire.consumed.address, in_word(wire.next))?;
        }
        Ok(())
    }

    fn place(&self, slice: Slice) -> Address {
        let start = match slice.buffer {
            Which::Input => self.places.input,
            Which::Output => self.places.output,
            Which::Scratch => self.places.scratch,
        };
        start + (slice.offset * self.element_bytes) as Address
    }

    fn compute(
        &self,
        driver: &Driver,
        stream: Handle,
        step: &Step,
        slots: (Option<Address>, Option<Address>),
    ) -> Result<(), DriverError> {
        let (src, dst) = (self.place(step.src), self.place(step.dst));
        let bytes = step.src.count * self.element_bytes;
        let copy = |target: Address, source: Address| {
            if target == source || bytes == 0 {
                return Ok(());
            }
            driver.copy(target, source, bytes, stream)
        };
        let two = |target, a, b| match &self.combine {
            Some(combine) => combine.two(driver, stream, target, (a, b), bytes),
            None => {
                unreachable!("a collective that combines has an operation, which its start checks")
            }
        };
        match (step.op, slots.0, slots.1) {
            (Op::Copy, ..) => copy(dst, src),
            (Op::Reduce, ..) => two(dst, dst, src),
            (Op::Send, _, Some(next)) => copy(next, src),
            (Op::Recv, Some(r), _) => copy(dst, r),
            (Op::RecvCopySend, Some(r), Some(next)) => copy(next, r).and_then(|()| copy(dst, r)),
            (Op::RecvReduceCopy, Some(r), _) => two(dst, src, r),
            (Op::RecvReduceSend, Some(r), Some(next)) => two(next, src, r),
            (Op::RecvReduceCopySend, Some(r), Some(next)) => {
                two(dst, src, r).and_then(|()| copy(next, dst))
            }
            (op, ..) => unreachable!("a {op:?} without its connection, which compiling refuses"),
        }
    }
}
