//! A group of ranks that execute collectives on device memory along a plan.

mod launch;
mod settings;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use topology::health::GpuDirect;
use topology::schedule::Blocks;
use topology::{Collective, Plan, Protocol, Rank};
use transport::schedule::{Sizing, connections_of_all, schedule, schedule_uneven, send_recv};
use transport::{Failure, Paths, ReduceOp, Rendezvous};

use self::settings::{check, claims, told};
use crate::buffer::{Buffer, Memory};
use crate::call::Call;
use crate::context::Context;
use crate::device::Device;
use crate::error::CudaError;
use crate::executor::{Lines, Places, Task};
use crate::ffi::Address;
use crate::flagged;
use crate::ipc::Opened;
use crate::kernels::{Combine, Image, Kernels};
use crate::meet::{Met, Setup, meet};
use crate::network::Network;
use crate::nvtx;
use crate::program::{Compiled, Unfit};
use crate::protocols::{Asked, Facts, Usable};
use crate::region::Parts;
use crate::segment::Segment;
use crate::stream::Stream;
use crate::watch::{Flight, Watch};
use crate::wire::{Link, Wires};

/// Programs kept for operations seen before; a training step repeats a few sizes.
const KEPT_PROGRAMS: usize = 64;

/// How long a rank that leaves waits for the others to close what they have of its memory.
const CLOSING: Duration = Duration::from_secs(5);

/// Settings of a group. All but `host`'s time limits and `image` must be equal on every rank.
#[derive(Debug)]
pub struct Options {
    /// Of the group on the hosts, which carries what ranks tell each other and what goes between hosts. Its collectives, paths and
    /// priorities are not looked at. Its `bandwidth` holds what goes to other hosts to so many bytes a second; what devices of one host
    /// copy, to each other or through memory of the host, is not held to it.
    pub host: transport::Options,
    /// What will be asked for; connections are made for these.
    pub collectives: Vec<Collective>,
    /// Priorities that operations may have, from 1 to 8. Each has connections and streams of its own.
    pub priorities: u32,
    /// Messages in flight per connection.
    pub slots: usize,
    /// Longest message in bytes. Each message takes some four calls of the driver, so large ones fill links better; of a connection,
    /// `slots` times as much device memory is taken.
    pub slot_bytes: usize,
    /// Most streams of a priority. Lanes of a schedule share them where there are more: the plan's channels run side by side.
    pub streams: usize,
    /// Most bytes that tensors of one [`Communicator::all_reduce_many`] are put together to.
    pub bucket_bytes: usize,
    /// Most bytes of device and pinned memory that a rank takes for the group, scratch memory included.
    pub memory_bytes: usize,
    /// Whether devices may write each other's memory; else all goes through memory of the host.
    pub peer: bool,
    /// What operations may go by: copies ([`Protocol::Simple`]), and messages that travel with their flags ([`Protocol::Ll`],
    /// [`Protocol::Ll128`]), which do an operation in one launch and are for small ones. With copies among them, the plan's choice by size
    /// is followed where it is one of these (without such a choice, what a single message carries goes with flags); without copies,
    /// everything goes with flags that a launch's parameters can hold.
    ///
    /// `None` follows what [`transport::Options::choice`] of `host` names (`NCCL_PROTO`, `TOPOD_PROTO`); where nothing is named, or names
    /// are only taken away, copies alone. No GPU has run the others yet: **they are off by default**.
    pub protocols: Option<Vec<Protocol>>,
    /// Bytes of data that a message with flags carries at most: a multiple of 256, up to 32 KiB. Of a connection, `slots` times some three
    /// times as much device memory is taken, where such messages are asked for.
    pub flagged_bytes: usize,
    /// Whether NICs read and write device memory for messages to other hosts (GPUDirect RDMA), as the host's facts say of this rank's GPU and
    /// its NIC ([`topology::health::gpudirect`]). Where it is not possible, or is refused, they go through memory of the host, and
    /// [`Communicator::links`] says why. `None`: it is not tried. No hardware has run it yet. Need not be equal.
    pub gpu_direct: Option<GpuDirect>,
    /// Longest time an operation that the caller's stream has come to goes without progress before the silent rank is named. A rank
    /// whose own stream is busy with something else is silent, so this is longer than for hosts. That a rank ended shows at once.
    pub timeout: Duration,
    /// Where the kernels come from.
    pub image: Image,
    /// Stands for the host's name, so that ranks of one host pass for ranks of several.
    #[doc(hidden)]
    pub pretended_host: Option<String>,
}

impl Options {
    /// Most priorities of a group.
    pub const MOST_PRIORITIES: u32 = 8;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host: transport::Options::default(),
            collectives: vec![Collective::AllReduce],
            priorities: 1,
            slots: 4,
            slot_bytes: 1 << 20,
            streams: 8,
            bucket_bytes: 32 << 20,
            memory_bytes: 4 << 30,
            peer: true,
            protocols: None,
            flagged_bytes: 8 << 10,
            gpu_direct: None,
            // As long as PyTorch waits for NCCL by default.
            timeout: Duration::from_secs(600),
            image: Image::Compile,
            pretended_host: None,
        }
    }
}

/// An operation that was enqueued. Whoever needs its result on the device needs not this: the caller's stream waits for it. It may be
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "whether the operation failed is told by `Communicator::wait`"]
pub struct Pending {
    ticket: u64,
}

/// What makes two operations run the same program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProgramKey {
    collective: Collective,
    root: Option<Rank>,
    receiver: Option<Rank>,
    count: usize,
    element_bytes: usize,
    blocks: Option<Blocks>,
    priority: u32,
    protocol: Protocol,
}

/// An operation to enqueue.
pub(crate) struct Request<'a> {
    pub(crate) call: Call,
    pub(crate) blocks: Option<Blocks>,
    pub(crate) input: &'a Memory,
    pub(crate) output: &'a Memory,
    /// What an average divides.
    pub(crate) result: Option<Memory>,
    /// What is put together before, and taken apart after: places in the input, and what belongs there.
    pub(crate) parts: Vec<(Memory, Memory)>,
}

/// One rank's part of a group.
///
/// Operations are collective: every rank calls the same ones in the same order. When one fails, it fails on every rank and the group is
/// of no further use. The streams of callers go on all the same, so whoever uses results must ask, with [`Communicator::wait`] or
/// [`Communicator::failure`], whether they are any.
///
/// Dropping it waits for what is in flight.
#[derive(Debug)]
pub struct Communicator {
    plan: Plan,
    rank: Rank,
    // Dropped in this order: who looks at events, then what they are of.
    watch: Option<Watch>,
    lines: Vec<Lines>,
    scratch: Vec<Option<Arc<Buffer>>>,
    buckets: Vec<Option<Arc<Buffer>>>,
    /// Scratch memory that was too short. To free it would wait for the device, so it is kept: each is at least twice as long as the one
    /// before.
    outgrown: Vec<Arc<Buffer>>,
    kernels: Result<Kernels, String>,
    wires: Wires,
    asked: Asked,
    usable: Usable,
    /// What kernels of messages with flags use by themselves, by priority.
    own_places: Option<Address>,
    /// Operations by protocol, and by why one went by copies that was to go with flags.
    by_protocol: BTreeMap<Protocol, u64>,
    by_copies: BTreeMap<String, u64>,
    /// Programs that do not fit into a launch, and why.
    unfit: HashMap<ProgramKey, String>,
    links: Vec<Link>,
    members: Vec<Rank>,
    opened: Opened,
    region: Option<Arc<Buffer>>,
    /// Slots that NICs reach.
    far: Option<Arc<Buffer>>,
    segment: Arc<Segment>,
    programs: HashMap<ProgramKey, Arc<Compiled>>,
    /// Collectives begun; their number on every rank.
    operations: u64,
    tickets: u64,
    priority: u32,
    options: Options,
    /// Bytes taken when it was made.
    fixed_bytes: usize,
    /// A few bytes for barriers.
    few: Arc<Buffer>,
    context: Arc<Context>,
}

impl Device {
    /// The device that a plan gives a rank.
    ///
    /// # Errors
    /// Where the plan names no address for it, or this process does not see it.
    pub fn of_rank(plan: &Plan, rank: Rank) -> Result<Self, CudaError> {
        let found = plan.ranks.get(rank.index()).and_then(|place| place.bus_id);
        Self::by_bus_id(found.ok_or(CudaError::NoAddress { rank })?)
    }
}

impl Communicator {
    /// Meets the other ranks of `plan` and connects their devices.
    ///
    /// # Errors
    /// Where there is no CUDA, a rank never comes or holds something else, a device refuses, or memory is lacking: on every rank, with the
    /// words of the one that found it.
    pub fn new(
        plan: &Plan,
        rank: Rank,
        rendezvous: &Rendezvous,
        context: &Arc<Context>,
        mut options: Options,
    ) -> Result<Self, CudaError> {
        check(&options)?;
        let connections = connections_of_all(plan, &options.collectives, options.priorities);
        let asked = Asked::new(&options);
        let flagged = asked.flagged(&options.collectives).then_some(options.flagged_bytes);
        let mut setup = Setup {
            slots: options.slots,
            slot_bytes: options.slot_bytes,
            peer: options.peer,
            gpu_direct: options.gpu_direct.clone(),
            host: options.pretended_host.clone(),
            claims: claims(&options, &asked),
            connections,
            priorities: options.priorities,
            flagged,
            facts: None,
        };
        let needed = Parts::new(&setup, rank).bytes();
        if needed > options.memory_bytes {
            return Err(CudaError::Budget { needed, budget: options.memory_bytes });
        }
        let host = std::mem::take(&mut options.host);
        // What goes between hosts waits for devices, and they for their callers.
        let several = plan.ranks.iter().any(|place| place.host != plan.ranks[0].host);
        let patient = several || options.pretended_host.is_some();
        let host = transport::Options {
            timeout: if patient { options.timeout } else { host.timeout },
            // Any two ranks have something to tell each other.
            collectives: vec![Collective::SendRecv],
            paths: Paths::Plan,
            priorities: 1,
            ..host
        };
        let mut group = transport::Communicator::new(plan, rank, rendezvous, host)?;
        // Before the last round of the meeting: loading waits for what other ranks run in the same context.
        let kernels = Kernels::load(context, &options.image, flagged.is_some());
        let kernels = kernels.map_err(|error| error.to_string());
        if flagged.is_some() {
            let resident = kernels.as_ref().map_err(Clone::clone).and_then(|k| k.resident.clone());
            let device = context.device();
            let (capability, together) = (device.capability(), device.launches_together()?);
            setup.facts = Some(Facts { capability, together, resident });
        }
        let few = Buffer::new(context, 64).and_then(|few| few.write(0, &[0_u8; 64]).map(|()| few));
        let ready = few.as_ref().map(drop).map_err(ToString::to_string);
        let met = meet(&mut group, plan, context, &setup, ready)?;
        let Met { segment, own, direct, placed, members, wires, links, opened, .. } = met;
        let Met { region, usable, own_places, bytes, .. } = met;
        let far = direct.as_ref().map(|direct| Arc::clone(&direct.buffer));
        if flagged.is_some() {
            told(&usable);
        }
        let few = few?;
        let network = own.map(|own| Network::new(own, direct, placed, options.slots));
        let watched = (&segment, members.clone(), &wires);
        let watch = Watch::new(group, context, watched, network, options.timeout)?;
        let priorities = options.priorities;
        Ok(Self {
            plan: plan.clone(),
            rank,
            watch: Some(watch),
            lines: (0..priorities).map(|p| Lines::new(Arc::clone(context), p)).collect(),
            scratch: (0..priorities).map(|_| None).collect(),
            buckets: (0..priorities).map(|_| None).collect(),
            outgrown: Vec::new(),
            kernels,
            wires,
            asked,
            usable,
            own_places,
            by_protocol: BTreeMap::new(),
            by_copies: BTreeMap::new(),
            unfit: HashMap::new(),
            links,
            members,
            opened,
            region,
            far,
            segment,
            programs: HashMap::new(),
            operations: 0,
            tickets: 0,
            priority: 0,
            options,
            fixed_bytes: bytes,
            few,
            context: Arc::clone(context),
        })
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Ranks in the group.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.plan.ranks.len()
    }

    /// The context whose memory and streams operations take.
    #[must_use]
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// How this rank sends to each other one.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Why a protocol is not used in this group; `None` where operations may go by it.
    #[must_use]
    pub fn why_not(&self, protocol: Protocol) -> Option<&str> {
        self.usable.why_not(protocol)
    }

    /// Operations enqueued so far, by the protocol they went by.
    #[must_use]
    pub const fn by_protocol(&self) -> &BTreeMap<Protocol, u64> {
        &self.by_protocol
    }

    /// Operations that went by copies though another protocol was asked for or chosen, by the reason.
    #[must_use]
    pub const fn by_copies(&self) -> &BTreeMap<String, u64> {
        &self.by_copies
    }

    /// How long messages to other hosts have waited for the budget of bytes a second ([`transport::Options::bandwidth`] of
    /// [`Options::host`]), in all.
    ///
    /// # Errors
    /// [`CudaError::Failed`] where the group broke.
    pub fn held(&self) -> Result<Duration, CudaError> {
        self.watch().with_group(|group| Ok(group.held()))
    }

    /// Bytes of device and pinned memory the group takes now, beside the callers' own.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let held = self.scratch.iter().chain(&self.buckets).flatten().chain(&self.outgrown);
        self.fixed_bytes + held.map(|buffer| buffer.bytes()).sum::<usize>()
    }

    /// Gives operations from now on a priority, from 0 up; every rank calls it at the same place among its operations. Those of a higher
    /// one have connections of their own and streams that the device prefers.
    ///
    /// # Errors
    /// Where the group was not made for so many.
    pub fn set_priority(&mut self, priority: u32) -> Result<(), CudaError> {
        if priority >= self.options.priorities {
            return Err(CudaError::NotConnected(format!("priority {priority}")));
        }
        self.priority = priority;
        Ok(())
    }

    /// Why the group is of no further use, if so.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.watch().failure().map(|failure| *failure)
    }

    /// Hears of failures where nothing is in flight.
    ///
    /// # Errors
    /// [`CudaError::Failed`] where the group broke.
    pub fn poll(&self) -> Result<(), CudaError> {
        self.watch().with_group(|group| Ok(group.progress().map(drop)?))
    }

    /// Whether an operation is done.
    ///
    /// # Errors
    /// [`CudaError::Failed`] where the group broke.
    pub fn test(&self, pending: Pending) -> Result<bool, CudaError> {
        self.watch().is_done(pending.ticket)
    }

    /// Waits on the host until an operation is done.
    ///
    /// # Errors
    /// [`CudaError::Failed`] where the group broke.
    pub fn wait(&self, pending: Pending) -> Result<(), CudaError> {
        let outcome = self.watch().wait(pending.ticket, None).map(drop);
        drop(self.watch().released());
        outcome
    }

    /// Waits at most `limit`; whether the operation is done.
    ///
    /// # Errors
    /// [`CudaError::Failed`] where the group broke.
    pub fn wait_for(&self, pending: Pending, limit: Duration) -> Result<bool, CudaError> {
        self.watch().wait(pending.ticket, Some(limit))
    }

    pub(crate) fn watch(&self) -> &Watch {
        self.watch.as_ref().unwrap_or_else(|| unreachable!("taken when this is dropped alone"))
    }

    pub(crate) const fn few(&self) -> &Arc<Buffer> {
        &self.few
    }

    pub(crate) const fn bucket_bytes(&self) -> usize {
        self.options.bucket_bytes
    }

    /// Whether so much more memory may be taken.
    fn afford(&self, more: usize) -> Result<(), CudaError> {
        let needed = self.bytes().saturating_add(more);
        let budget = self.options.memory_bytes;
        if needed > budget { Err(CudaError::Budget { needed, budget }) } else { Ok(()) }
    }

    /// Enqueues an operation.
    pub(crate) fn enqueue(
        &mut self,
        request: Request<'_>,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let call = request.call;
        drop(self.watch().released());
        let element_bytes = call.element.bytes();
        for (what, memory) in [("an input", request.input), ("an output", request.output)] {
            if !memory.address().is_multiple_of(element_bytes as u64) {
                let address = memory.address();
                return Err(CudaError::Unaligned { what, address, element_bytes });
            }
        }
        let combine = call.op.map(|op| self.combine(&call, op)).transpose()?;
        let mut key = ProgramKey {
            collective: call.collective,
            root: call.root,
            receiver: call.receiver,
            count: call.count,
            element_bytes,
            blocks: request.blocks,
            priority: self.priority,
            protocol: Protocol::Simple,
        };
        let (program, protocol) = self.chosen(&mut key)?;
        let priority = self.priority as usize;
        let scratch =
            self.scratch(program.scratch * element_bytes, program.most_scratch * element_bytes)?;
        self.lines[priority].extend(program.streams)?;
        let number = (call.collective != Collective::SendRecv).then_some(self.operations);
        let (begun, done) = self.watch().begin(number, &call)?;
        if number.is_some() {
            self.operations += 1;
        }
        let ticket = self.tickets;
        self.tickets += 1;
        let first = program.lanes.iter().map(|lane| {
            let receive = lane.receive.map_or(0, |at| self.wires.receive[at].next);
            (receive, lane.transmit.map_or(0, |at| self.wires.transmit[at].next))
        });
        let first = first.collect();
        *self.by_protocol.entry(protocol).or_default() += 1;
        let divide = request.result.as_ref().filter(|_| call.op == Some(ReduceOp::Avg));
        let divide = divide.map(|memory| (memory.address(), memory.bytes(), self.plan.ranks.len()));
        let places = Places {
            input: request.input.address(),
            output: request.output.address(),
            scratch: scratch.as_ref().map_or(0, |buffer| buffer.address()) as Address,
        };
        let launch = self.launch(&program, protocol, &call, places, (divide, ticket))?;
        // A launch divides by itself.
        let launches = launch.as_ref().is_some_and(|launch| launch.lanes > 0);
        let task = Task {
            program: &program,
            places,
            element_bytes,
            slots: (self.options.slots, self.options.slot_bytes),
            combine,
            divide: divide.filter(|_| !launches),
            flagged: launch,
            parts: &request.parts,
            caller: stream.raw,
            begun: &begun,
            done: &done,
        };
        let mut messages = Vec::new();
        let lines = &self.lines[priority];
        let range = nvtx::range(&call);
        let outcome = task.enqueue(lines, &mut self.wires, &mut messages);
        drop(range);
        let partly_in = if outcome.is_err() { lines.used(&program) } else { Vec::new() };
        let mut memory = vec![request.input.clone(), request.output.clone()];
        memory.extend(request.parts.into_iter().map(|(_, tensor)| tensor));
        memory.extend(scratch.map(|buffer| buffer.memory()));
        let slots = self.options.slots;
        let has_begun = false;
        let flight = Flight {
            ticket,
            number,
            call,
            program,
            first,
            slots,
            begun,
            done,
            has_begun,
            partly_in,
            memory,
        };
        self.watch().enqueued(flight, messages, outcome)?;
        Ok(Pending { ticket })
    }

    fn combine(&self, call: &Call, op: ReduceOp) -> Result<Combine, CudaError> {
        if !op.combines(call.element) {
            return Err(CudaError::NotCombined { op, element: call.element });
        }
        let kernels = self.kernels.as_ref().map_err(|why| CudaError::Kernels(why.clone()))?;
        Ok(Combine {
            function: kernels.function(call.element, op)?,
            element_bytes: call.element.bytes(),
            most_blocks: self.context.device().multiprocessors(),
        })
    }

    /// One with flags that does not fit into a launch's parameters on some rank says so.
    fn program(&mut self, key: ProgramKey) -> Result<Result<Arc<Compiled>, String>, CudaError> {
        if let Some(program) = self.programs.get(&key) {
            return Ok(Ok(Arc::clone(program)));
        }
        let with_flags = key.protocol != Protocol::Simple;
        let slot_bytes =
            if with_flags { self.options.flagged_bytes } else { self.options.slot_bytes };
        let sizing = Sizing::new(key.element_bytes, slot_bytes)?;
        let plan = &self.plan;
        let mut made = match (&key.blocks, key.root, key.receiver) {
            (Some(blocks), ..) => schedule_uneven(plan, blocks, sizing)?,
            (None, Some(from), Some(to)) => {
                send_recv(plan.ranks.len(), from, to, key.count, sizing)
            }
            // Nobody has the sum of all before everybody came.
            _ if key.collective == Collective::Barrier => {
                schedule(plan, Collective::AllReduce, None, key.count, sizing)?
            }
            _ => schedule(plan, key.collective, key.root, key.count, sizing)?,
        };
        let mut flagged = None;
        if with_flags {
            // Those of all priorities may be there at once.
            let resident = self.usable.resident / self.options.priorities;
            // What one rank's launch cannot hold, none's does: all go the same way.
            for (rank, program) in (0..).map(Rank).zip(&made.programs) {
                match flagged::encode(program, resident) {
                    Ok(own) if rank == self.rank => flagged = Some(own),
                    Ok(_) => {}
                    Err(unfit) => return Ok(Err(unfit)),
                }
            }
        }
        let streams = if with_flags { 1 } else { self.options.streams };
        let limits = (self.options.slots, streams);
        let program = Compiled::new(self.rank, &mut made, key.priority, &self.wires, limits);
        let program = program.map_err(|unfit| match unfit {
            Unfit::NotConnected => CudaError::NotConnected(key.collective.to_string()),
            Unfit::Stuck => {
                CudaError::Options("the schedule needs more slots than connections have")
            }
        })?;
        let program = Arc::new(Compiled { flagged, ..program });
        if self.programs.len() >= KEPT_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(key, Arc::clone(&program));
        Ok(Ok(program))
    }

    /// The priority's scratch memory, at least so long. Operations of a priority follow each other, so it serves all.
    fn scratch(&mut self, bytes: usize, most: usize) -> Result<Option<Arc<Buffer>>, CudaError> {
        let priority = self.priority as usize;
        let held = self.scratch[priority].as_ref().map_or(0, |buffer| buffer.bytes());
        // What one rank may not take, none does: all refuse alike.
        if most > held {
            self.afford(most)?;
        }
        if bytes > held {
            let longer = self.longer(bytes, held)?;
            self.outgrown.extend(self.scratch[priority].replace(longer));
        }
        Ok(self.scratch[priority].clone().filter(|_| bytes > 0))
    }

    /// The priority's bucket, at least so long.
    pub(crate) fn bucket(&mut self, bytes: usize) -> Result<Memory, CudaError> {
        let priority = self.priority as usize;
        let held = self.buckets[priority].as_ref().map_or(0, |buffer| buffer.bytes());
        if self.buckets[priority].is_none() || bytes > held {
            self.afford(bytes)?;
            let longer = self.longer(bytes, held)?;
            self.outgrown.extend(self.buckets[priority].replace(longer));
        }
        let bucket = self.buckets[priority].as_ref();
        Ok(bucket
            .map_or_else(|| unreachable!("just made"), |bucket| bucket.memory().part(0, bytes)))
    }

    /// At least twice as long as what is held, where that is allowed.
    fn longer(&self, bytes: usize, held: usize) -> Result<Arc<Buffer>, CudaError> {
        let twice = bytes.max(2 * held);
        let bytes = if self.afford(twice).is_ok() { twice } else { bytes };
        Buffer::new(&self.context, bytes)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A caller whose own copy met a device that is lost has told nobody.
        self.watch().ask_device();
        let ran_out = self.watch().drain();
        self.opened.close();
        if let Some(member) = self.members.iter().position(|rank| *rank == self.rank) {
            self.segment.go(member);
        }
        // Memory that another process has open, or may still write, must not be freed.
        let closed = self.watch().await_others(CLOSING);
        if (!ran_out || !closed)
            && let Some(region) = self.region.take()
        {
            tracing::warn!(rank = %self.rank, bytes = region.bytes(), "not every rank has closed this one's memory; it stays allocated");
            std::mem::forget(region);
        }
        if !ran_out {
            // Nor anything of a device that still runs, or stands still: freeing waits for it, for ever.
            std::mem::forget(std::mem::take(&mut self.lines));
            std::mem::forget(std::mem::take(&mut self.scratch));
            std::mem::forget(std::mem::take(&mut self.buckets));
            std::mem::forget(std::mem::take(&mut self.outgrown));
            std::mem::forget(self.far.take());
            std::mem::forget(std::mem::replace(&mut self.kernels, Err(String::new())));
            std::mem::forget((Arc::clone(&self.few), Arc::clone(&self.segment)));
        }
        self.watch = None;
    }
}
