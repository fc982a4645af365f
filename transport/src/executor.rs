//! Runs one rank's program: every lane as far as it goes, over and over, in the caller's thread.
//!
//! Nothing here blocks or looks at a clock, so an operation can as well be driven from a handle or a progress thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use topology::Rank;
use topology::schedule::{Buffer, Op, Program, Slice, Step};

use crate::error::StepName;
use crate::kernel::Kernel;
use crate::link::{Interest, LinkError, Receive, Tag, Transmit};
use crate::memory::{Slot, Space, copy, copy_both};
use crate::mesh::Half;
use crate::pace::Pace;
use crate::schedule::ConnectionId;

#[cfg(test)]
mod any_steps;
mod landing;
mod lasting;

/// The halves of all connections, each list sorted by connection.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) transmit: Vec<Half<dyn Transmit>>,
    pub(crate) receive: Vec<Half<dyn Receive>>,
}

/// A lane with its links found.
#[derive(Debug)]
struct Lane {
    channel: u32,
    connection: u32,
    /// Index into [`Links::receive`].
    receive: Option<usize>,
    /// Index into [`Links::transmit`].
    transmit: Option<usize>,
    steps: Vec<Step>,
}

/// A program ready to run, any number of times.
#[derive(Debug)]
pub(crate) struct Compiled {
    lanes: Vec<Lane>,
    /// Elements.
    pub(crate) scratch: usize,
    /// The same, of the rank that has most.
    pub(crate) most_scratch: usize,
    /// Steps of all lanes.
    pub(crate) steps: usize,
    /// Channels it uses.
    pub(crate) channels: usize,
    /// By lane and step, which messages need not be copied, with how far output lay from input where they overlapped.
    spared: Mutex<Option<(Option<usize>, Arc<Spared>)>>,
}

/// Which messages need not be copied, by lane and step.
#[derive(Debug)]
struct Spared {
    /// What is sent lasts.
    lasting: Vec<Vec<bool>>,
    /// What must be done before what is received may come where it is put; `None` where it is put nowhere as it is.
    landing: Vec<Vec<Option<landing::Needs>>>,
}

impl Compiled {
    /// Over the connections of a priority. `None` where a lane's does not exist, two lanes would share one, or a step has no peer for
    /// what it does.
    pub(crate) fn new(
        own: Rank,
        program: Program,
        most_scratch: usize,
        priority: u32,
        links: &Links,
    ) -> Option<Self> {
        let mut used = (vec![false; links.receive.len()], vec![false; links.transmit.len()]);
        let claim = |used: &mut Vec<bool>, at: Option<usize>| {
            let at = at?;
            (!std::mem::replace(&mut used[at], true)).then_some(at)
        };
        let mut lanes = Vec::with_capacity(program.lanes.len());
        for lane in program.lanes {
            let (channel, connection) = (lane.channel, lane.connection);
            let receive = match lane.recv_from {
                Some(from) => {
                    let id = ConnectionId { from, to: own, channel, connection }.of(priority);
                    Some(claim(&mut used.0, find(&links.receive, id))?)
                }
                None => None,
            };
            let transmit = match lane.send_to {
                Some(to) => {
                    let id = ConnectionId { from: own, to, channel, connection }.of(priority);
                    Some(claim(&mut used.1, find(&links.transmit, id))?)
                }
                None => None,
            };
            let fits = |step: &Step| {
                (!step.op.receives() || receive.is_some())
                    && (!step.op.sends() || transmit.is_some())
            };
            if !lane.steps.iter().all(fits) {
                return None;
            }
            lanes.push(Lane { channel, connection, receive, transmit, steps: lane.steps });
        }
        let steps = lanes.iter().map(|lane| lane.steps.len()).sum();
        let mut channels: Vec<_> = lanes.iter().map(|lane| lane.channel).collect();
        channels.sort_unstable();
        channels.dedup();
        let (scratch, channels) = (program.scratch, channels.len());
        let spared = Mutex::default();
        Some(Self { lanes, scratch, most_scratch, steps, channels, spared })
    }

    /// Which messages need not be copied from and to buffers that lie so.
    fn spared(&self, buffers: &Buffers, element_bytes: usize) -> Arc<Spared> {
        let start = |slot: Slot| slot.address().addr().get();
        let (input, output) = (start(buffers.input), start(buffers.output));
        let apart =
            input + buffers.input.bytes() <= output || output + buffers.output.bytes() <= input;
        let ahead = (!apart).then(|| output.wrapping_sub(input));
        let mut known = self.spared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, spared)) = &*known
            && *of == ahead
        {
            return Arc::clone(spared);
        }
        let place = |slice: Slice| {
            let base = match slice.buffer {
                Buffer::Input => input,
                Buffer::Output => output,
                Buffer::Scratch => start(buffers.scratch),
            };
            let from = base + slice.offset * element_bytes;
            (from, from + slice.count * element_bytes)
        };
        let lanes = self.lanes.iter().map(|lane| &lane.steps[..]);
        let landing = landing::landing(lanes.clone(), place);
        let found = Arc::new(Spared { lasting: lasting::lasting(lanes, place), landing });
        *known = Some((ahead, Arc::clone(&found)));
        found
    }
}

fn find<L: ?Sized>(halves: &[Half<L>], id: ConnectionId) -> Option<usize> {
    halves.binary_search_by_key(&id, |half| half.id).ok()
}

/// The caller's buffers and the communicator's own. In place, input and output are one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) input: Slot,
    pub(crate) output: Slot,
    pub(crate) scratch: Slot,
}

/// What a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// Nothing: it ran, or is done.
    No,
    /// A step of another lane.
    Lane,
    /// A message.
    Message,
    /// A free slot, or that posted messages leave.
    Slot,
    /// That the budget has room for a message.
    Budget,
}

/// A step that was done; what a hook sees.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepDone {
    /// Which.
    pub step: StepName,
    /// Steps of the operation done so far on this rank, this one included.
    pub done: usize,
    /// Steps of the operation on this rank.
    pub of: usize,
}

/// Called after every step; for traces and for tests that stop at one.
pub type StepHook = Box<dyn FnMut(&StepDone) + Send>;

/// Whether [`Operation::progress`] got anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    Moved,
    /// No step was done, but parts of messages moved.
    Trickled,
    Blocked,
}

/// A link that failed under a lane.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) peer: Rank,
    pub(crate) step: StepName,
    pub(crate) error: LinkError,
}

/// How far the messages of a lane have been offered places.
#[derive(Clone, Copy, Debug, Default)]
struct Offered {
    /// Messages that were received and released.
    received: usize,
    /// The step that is looked at next, and messages received by those before.
    step: usize,
    messages: usize,
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Operation {
    program: Arc<Compiled>,
    buffers: Buffers,
    kernel: Kernel,
    /// Without the length, which is each step's.
    tag: Tag,
    collective: topology::Collective,
    /// Its turn on connections that earlier operations still use.
    ticket: u64,
    /// Next step of each lane.
    counters: Vec<usize>,
    /// Lanes that have given their connections up.
    over: Vec<bool>,
    blocked: Vec<Blocked>,
    /// By lane: bytes that had moved over its links when it was looked at last.
    seen: Vec<u64>,
    /// Which messages go from where their data lies and come where it is to be, where links can.
    spared: Option<Arc<Spared>>,
    /// By lane: how far its messages have been offered places.
    offered: Vec<Offered>,
    /// Messages wait until the receiver has said where they go: it takes them nowhere else.
    pub(crate) placed: bool,
    /// The lane that goes first: one that waits for the budget is not passed by others for ever.
    first: usize,
    done: usize,
}

impl Operation {
    /// Queues for the connections of its lanes: operations that share one use it in the order in which they were started,
    /// which is the same on every rank.
    pub(crate) fn new(
        program: Arc<Compiled>,
        buffers: Buffers,
        kernel: Kernel,
        tag: Tag,
        collective: topology::Collective,
        ticket: u64,
        links: &mut Links,
    ) -> Self {
        let spaces = [buffers.input.space, buffers.output.space];
        assert_eq!(spaces, [kernel.space; 2], "a kernel for the memory it works on");
        assert!(program.scratch == 0 || kernel.space == buffers.scratch.space);
        let lanes = program.lanes.len();
        for lane in &program.lanes {
            if let Some(at) = lane.receive {
                links.receive[at].turns.push_back(ticket);
            }
            if let Some(at) = lane.transmit {
                links.transmit[at].turns.push_back(ticket);
            }
        }
        let lends = program.lanes.iter().filter_map(|lane| lane.transmit).any(|at| {
            let link = &links.transmit[at].link;
            link.holds(buffers.input) || link.holds(buffers.output)
        });
        let lands = program.lanes.iter().filter_map(|lane| lane.receive).any(|at| {
            let link = &links.receive[at].link;
            link.holds(buffers.output)
        });
        let spared = (lends || lands).then(|| program.spared(&buffers, kernel.element_bytes()));
        Self {
            program,
            buffers,
            kernel,
            tag,
            collective,
            ticket,
            counters: vec![0; lanes],
            over: vec![false; lanes],
            blocked: vec![Blocked::No; lanes],
            seen: vec![0; lanes],
            spared,
            offered: vec![Offered::default(); lanes],
            placed: false,
            first: 0,
            done: 0,
        }
    }

    /// Runs every lane as far as it goes now.
    pub(crate) fn progress(
        &mut self,
        links: &mut Links,
        pace: &mut Option<Pace>,
        hook: &mut Option<StepHook>,
    ) -> Result<Progress, Broken> {
        let before = self.done;
        let (mut all_done, mut trickled) = (true, false);
        let program = Arc::clone(&self.program);
        let lanes = program.lanes.len();
        let first = self.first;
        let mut held = None;
        for l in (first..lanes).chain(0..first) {
            let lane = &program.lanes[l];
            let before = self.counters[l];
            let outcome = self.run_lane(l, lane, links, pace, hook).and_then(|blocked| {
                // What a lane has posted goes on its way while it waits for a message: that one may depend on it.
                if matches!(blocked, Blocked::Message | Blocked::Lane | Blocked::Budget) {
                    flush(lane, links)?;
                }
                Ok(blocked)
            });
            self.blocked[l] = match outcome {
                Ok(blocked) => blocked,
                Err((peer, error)) => return Err(Broken { peer, step: self.name(l, lane), error }),
            };
            match self.blocked[l] {
                Blocked::Message | Blocked::Slot => trickled |= self.trickles(l, lane, links),
                Blocked::Budget if self.counters[l] == before => held = held.or(Some(l)),
                _ => {}
            }
            all_done &= self.over[l];
        }
        self.first = held.unwrap_or(0);
        Ok(match (all_done, self.done > before) {
            (true, _) => Progress::Done,
            (false, true) => Progress::Moved,
            (false, false) if trickled => Progress::Trickled,
            (false, false) => Progress::Blocked,
        })
    }

    /// Whether a part of a message moved since the lane was looked at last.
    fn trickles(&mut self, l: usize, lane: &Lane, links: &Links) -> bool {
        let came = lane.receive.map_or(0, |at| links.receive[at].link.moved());
        let left = lane.transmit.map_or(0, |at| links.transmit[at].link.moved());
        let moved = came.wrapping_add(left);
        std::mem::replace(&mut self.seen[l], moved) != moved
    }

    fn run_lane(
        &mut self,
        l: usize,
        lane: &Lane,
        links: &mut Links,
        pace: &mut Option<Pace>,
        hook: &mut Option<StepHook>,
    ) -> Result<Blocked, (Rank, LinkError)> {
        if self.over[l] {
            return Ok(Blocked::No);
        }
        let mine = |turns: &VecDeque<u64>| turns.front() == Some(&self.ticket);
        if !lane.receive.is_none_or(|at| mine(&links.receive[at].turns))
            || !lane.transmit.is_none_or(|at| mine(&links.transmit[at].turns))
        {
            return Ok(Blocked::Lane);
        }
        while let Some(step) = lane.steps.get(self.counters[l]) {
            self.offer(l, lane, links);
            let ready =
                |d: &topology::schedule::StepRef| self.counters[d.lane as usize] > d.step as usize;
            if !step.after.iter().all(ready) {
                return Ok(Blocked::Lane);
            }
            let bytes = step.src.count * self.kernel.element_bytes();
            // Messages are at most a slot, which is checked to be below 4 GiB.
            let tag = Tag { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), ..self.tag };
            let received = match lane.receive.filter(|_| step.op.receives()) {
                Some(at) => {
                    let half = &mut links.receive[at];
                    if matches!(step.op, Op::Recv | Op::RecvCopySend) {
                        half.link.land(self.place(step.dst));
                    }
                    match half.link.poll_message(&tag).map_err(|e| (half.id.from, e))? {
                        Some(slot) => Some(slot),
                        None => return Ok(Blocked::Message),
                    }
                }
                None => None,
            };
            let next = match lane.transmit.filter(|_| step.op.sends()) {
                Some(_) if pace.as_mut().is_some_and(|pace| !pace.allows()) => {
                    return Ok(Blocked::Budget);
                }
                Some(at) => {
                    let half = &mut links.transmit[at];
                    let Some(slot) = half.link.poll_slot_of(bytes).map_err(|e| (half.id.to, e))?
                    else {
                        return Ok(Blocked::Slot);
                    };
                    let waits = self.placed && bytes > 0;
                    if waits && !half.link.has_place().map_err(|e| (half.id.to, e))? {
                        return Ok(Blocked::Slot);
                    }
                    Some(slot.part(0, bytes))
                }
                None => None,
            };
            let lent = self.lends(l, step, lane.transmit.filter(|_| next.is_some()), links);
            if self.kernel.space == Space::Device && bytes > 0 {
                // Nothing here touches a device's memory.
                let landed = received.is_none_or(|slot| slot.same_place(self.place(step.dst)));
                let (from, to) =
                    (lane.receive.filter(|_| !landed), lane.transmit.filter(|_| !lent));
                let from = from.map(|at| links.receive[at].id.from);
                if let Some(peer) = from.or_else(|| to.map(|at| links.transmit[at].id.to)) {
                    let what = "a message of device memory that the NIC does not carry";
                    return Err((peer, LinkError::Io(std::io::Error::other(what))));
                }
            }
            self.compute(step, received, next.filter(|_| !lent));
            if let Some(at) = lane.receive.filter(|_| received.is_some()) {
                links.receive[at].link.release();
                self.offered[l].received += 1;
            }
            if let Some(at) = lane.transmit.filter(|_| next.is_some()) {
                let half = &mut links.transmit[at];
                half.link.post(&tag).map_err(|e| (half.id.to, e))?;
                if let Some(pace) = pace {
                    pace.spend(bytes);
                }
            }
            self.done += 1;
            if let Some(hook) = hook {
                let step = self.name(l, lane);
                hook(&StepDone { step, done: self.done, of: self.program.steps });
            }
            self.counters[l] += 1;
        }
        if let Some(at) = lane.transmit {
            let half = &mut links.transmit[at];
            if !half.link.poll_flushed().map_err(|e| (half.id.to, e))? {
                return Ok(Blocked::Slot);
            }
            half.turns.pop_front();
        }
        if let Some(at) = lane.receive {
            links.receive[at].turns.pop_front();
        }
        self.over[l] = true;
        Ok(Blocked::No)
    }

    fn place(&self, slice: Slice) -> Slot {
        let buffer = match slice.buffer {
            Buffer::Input => self.buffers.input,
            Buffer::Output => self.buffers.output,
            Buffer::Scratch => self.buffers.scratch,
        };
        let size = self.kernel.element_bytes();
        buffer.part(slice.offset * size, slice.count * size)
    }

    /// Offers places to the messages that come next, as far as their places are free.
    fn offer(&mut self, l: usize, lane: &Lane, links: &mut Links) {
        let (Some(spared), Some(at)) = (&self.spared, lane.receive) else { return };
        let link = &mut links.receive[at].link;
        let window = link.window();
        if window == 0 {
            return;
        }
        let Offered { received, mut step, mut messages } = self.offered[l];
        if step < self.counters[l] {
            (step, messages) = (self.counters[l], received);
        }
        let free = |(lane, done): &(usize, usize)| self.counters[*lane] >= *done;
        while let Some(next) = lane.steps.get(step)
            && messages - received <= window
        {
            if next.op.receives() {
                if let Some(needs) = &spared.landing[l][step] {
                    if !needs.iter().all(free) {
                        break;
                    }
                    link.offer(messages - received, self.place(next.dst));
                }
                messages += 1;
            }
            step += 1;
        }
        self.offered[l] = Offered { received, step, messages };
    }

    /// Whether the link sends what this step sends from where it lies, or will lie.
    fn lends(&self, l: usize, step: &Step, transmit: Option<usize>, links: &mut Links) -> bool {
        let (Some(at), Some(spared)) = (transmit, &self.spared) else { return false };
        let data = match step.op {
            Op::Send => step.src,
            Op::RecvCopySend | Op::RecvReduceCopySend => step.dst,
            // What it sends lies in no buffer.
            _ => return false,
        };
        links.transmit[at].link.lend(self.place(data), spared.lasting[l][self.counters[l]])
    }

    /// What a step does but for its messages; into `next` goes what is sent, unless it is sent from where it lies.
    fn compute(&self, step: &Step, received: Option<Slot>, next: Option<Slot>) {
        let (src, dst) = (self.place(step.src), self.place(step.dst));
        match (step.op, received, next) {
            (Op::Copy, ..) => copy(dst, src),
            (Op::Reduce, ..) => self.kernel.reduce(dst, dst, src),
            (Op::Send, _, Some(next)) => copy(next, src),
            (Op::Send, _, None) => {}
            (Op::Recv, Some(r), _) | (Op::RecvCopySend, Some(r), None) => copy(dst, r),
            (Op::RecvCopySend, Some(r), Some(next)) => copy_both(dst, next, r),
            (Op::RecvReduceCopy, Some(r), _) | (Op::RecvReduceCopySend, Some(r), None) => {
                self.kernel.reduce(dst, src, r);
            }
            (Op::RecvReduceSend, Some(r), Some(next)) => self.kernel.reduce(next, src, r),
            (Op::RecvReduceCopySend, Some(r), Some(next)) => {
                self.kernel.reduce_both(dst, next, src, r);
            }
            (op, ..) => unreachable!("a {op:?} without its link, which compiling refuses"),
        }
    }

    fn name(&self, l: usize, lane: &Lane) -> StepName {
        StepName {
            operation: self.tag.operation,
            collective: self.collective,
            channel: lane.channel,
            connection: lane.connection,
            step: self.counters[l],
            of: lane.steps.len(),
        }
    }

    /// The first lane that waits for a peer: for whom, and where.
    pub(crate) fn waits_for(&self, links: &Links) -> Option<(Rank, StepName)> {
        self.program.lanes.iter().enumerate().find_map(|(l, lane)| {
            let peer = match self.blocked[l] {
                Blocked::Message => links.receive[lane.receive?].id.from,
                Blocked::Slot => links.transmit[lane.transmit?].id.to,
                Blocked::No | Blocked::Lane | Blocked::Budget => return None,
            };
            Some((peer, self.name(l, lane)))
        })
    }

    /// Whether what it has sent still arrives, also where it waits for something else.
    pub(crate) fn check(&self, links: &mut Links) -> Result<(), Broken> {
        for (l, lane) in self.program.lanes.iter().enumerate().filter(|(l, _)| !self.over[*l]) {
            let Some(half) = lane.transmit.map(|at| &mut links.transmit[at]) else { continue };
            if half.turns.front() == Some(&self.ticket) {
                let broken = |error| Broken { peer: half.id.to, step: self.name(l, lane), error };
                half.link.check().map_err(broken)?;
            }
        }
        Ok(())
    }

    /// Says to the links it waits for that this rank is about to sleep; whether one can move already.
    pub(crate) fn arm(&self, links: &mut Links) -> bool {
        let mut any = false;
        for (lane, blocked) in self.program.lanes.iter().zip(&self.blocked) {
            any |= match (blocked, lane.receive, lane.transmit) {
                (Blocked::Message, Some(at), _) => links.receive[at].link.arm(),
                (Blocked::Slot, _, Some(at)) => links.transmit[at].link.arm(),
                _ => false,
            };
        }
        any
    }

    /// What to sleep on.
    pub(crate) fn interests<'a>(&'a self, links: &'a Links) -> impl Iterator<Item = Interest<'a>> {
        self.program.lanes.iter().zip(&self.blocked).flat_map(|(lane, blocked)| {
            let receive = lane.receive.filter(|_| *blocked == Blocked::Message);
            let transmit = lane.transmit.map(|at| &links.transmit[at].link);
            let transmit = transmit.filter(|link| *blocked == Blocked::Slot || link.is_queued());
            let receive = receive.map(|at| links.receive[at].link.interest());
            receive.into_iter().chain(transmit.map(|link| link.interest()))
        })
    }
}

/// Moves what the lane's connection has queued.
fn flush(lane: &Lane, links: &mut Links) -> Result<(), (Rank, LinkError)> {
    let Some(at) = lane.transmit else { return Ok(()) };
    let half = &mut links.transmit[at];
    if half.link.is_queued() {
        half.link.poll_flushed().map_err(|error| (half.id.to, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
