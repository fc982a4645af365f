//! What a communicator is told, and what an operation tells.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use topology::Collective;

use crate::executor::StepHook;
use crate::observe::EndHook;
use crate::schedule::MIN_SLOTS;
use crate::variables::{Choice, Ib, Interfaces, Log};

/// Which links may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Shared memory within a host; between hosts RDMA where both ends have ports for it that understand each other, else TCP. The log
    /// says why.
    #[default]
    Auto,
    /// Shared memory alone; refused where a peer shares none.
    Shm,
    /// TCP alone.
    Tcp,
    /// RDMA alone, also within a host: InfiniBand or RoCE, by libibverbs.
    Verbs,
}

impl Transport {
    /// The word on command lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

/// Which way operations take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Paths {
    /// Through memory the whole group shares where all ranks are on one host. Where sockets alone join all ranks: in few rounds
    /// for sizes where those are faster, else along the plan's channels, and so in any other group.
    #[default]
    Auto,
    /// Along the plan's channels.
    Plan,
}

/// The way an operation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Path {
    /// The plan's channels.
    Plan,
    /// A slot of each rank in memory the group shares.
    Flat,
    /// Straight from and to the ranks' buffers.
    Direct,
    /// Round by round through a stage of each rank in memory the group shares.
    Staged,
}

impl Path {
    /// The word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Flat => "flat",
            Self::Direct => "direct",
            Self::Staged => "staged",
        }
    }
}

/// Settings of a communicator. All but the hook and the time limits must be equal on every rank.
pub struct Options {
    /// Longest time an operation goes without progress before the silent rank is named.
    pub timeout: Duration,
    /// Longest time for all ranks to come together.
    pub join_timeout: Duration,
    /// Which links.
    pub transport: Transport,
    /// Whether each operation is timed, by two looks at the clock that a message of a few bytes would feel.
    pub timed: bool,
    /// Which way operations take.
    pub paths: Paths,
    /// Whether ranks of one host copy straight from each other's private memory, where the kernel permits it (which is tried when the
    /// group is made, never assumed), in the place of going through stages in shared memory. One pass instead of two, and yet slower
    /// wherever it was measured, because the kernel pins and maps page by page; BENCHMARKS.md has the figures.
    pub cross_memory: bool,
    /// Most bytes of registered buffers per rank; costs address space until they are allocated.
    pub heap_bytes: usize,
    /// Most bytes a rank takes for the group beside its callers' own buffers: slots of links, memory shared with the group,
    /// registered buffers, and the scratch memory of an operation. What would take more is refused, on every rank.
    pub memory_bytes: usize,
    /// Whether the thread that makes the communicator is bound to a core: ranks of one host spread over the cores it may use, one
    /// of each physical core first, NUMA node by NUMA node. Memory it touches first is then of its own node.
    pub pin: bool,
    /// Messages in flight per connection; as suits the links without it: 16, and 4 where all ranks talk over TCP.
    pub slots: Option<usize>,
    /// Longest message in bytes; as suits the links without it: 128 KiB, and 512 KiB where all ranks talk over TCP.
    pub slot_bytes: Option<usize>,
    /// TCP connections for each connection of the plan, up to [`Options::MOST_SOCKETS`]; messages take them in turn. More than one for
    /// networks that give a single flow less than the NIC carries.
    pub sockets: u32,
    /// What will be asked for; connections are made for these.
    pub collectives: Vec<Collective>,
    /// Priorities that operations may have, up to [`Options::MOST_PRIORITIES`]. Each has connections of its own, with their memory.
    pub priorities: u32,
    /// Most bytes a second that this rank sends over the group's links, beside headers; a burst of 10 ms is not held back. With a
    /// budget, operations on one host go along the plan's channels too.
    pub bandwidth: Option<NonZeroU64>,
    /// Which of the plan's algorithms, and which protocols, may be used.
    pub choice: Choice,
    /// By which interface other hosts reach this rank; by default the one that reaches rank 0. Need not be equal.
    pub interfaces: Option<Interfaces>,
    /// How verbs links are used.
    pub ib: Ib,
    /// What [`Options::set_from_environment`] listens for. Need not be equal.
    pub log: Log,
    /// Whether account is kept of operations; costs the smallest ones some time. Need not be equal.
    pub observe: bool,
    /// Where a trace is written when the communicator is dropped, %r being the rank; implies `observe`. Need not be equal.
    pub trace: Option<String>,
    /// The socket of the daemon that is told how operations end; `default` for the usual one. What acts on it is the crate that knows the
    /// daemon, by [`Options::on_end`]. Need not be equal.
    pub report: Option<String>,
    /// Called when operations end. Operations are timed then. Need not be equal.
    pub on_end: Option<EndHook>,
    /// Called after every step.
    pub on_step: Option<StepHook>,
}

impl Options {
    /// Most priorities of a group.
    pub const MOST_PRIORITIES: u32 = 8;
    /// Most TCP connections for a connection of the plan.
    pub const MOST_SOCKETS: u32 = 16;

    /// Most messages in flight per connection.
    pub const MOST_SLOTS: usize = 4096;

    /// Messages in flight per connection where nothing says otherwise. With [`Options::SLOT_BYTES`] more than a second-level cache: a
    /// line that the other end still holds takes long to write. 16 carried twice as much as 4 within a host (two cores with 1 MiB each).
    const SLOTS: usize = 16;
    const SLOT_BYTES: usize = 128 << 10;
    /// The same memory where all ranks talk over TCP: a system call costs the same for more bytes, and large messages lie in no slot.
    /// 512 KiB carried 1.1 to 1.5 times as much as 128 KiB from 1 MiB up; 1 MiB no more, with long waits for whole messages.
    const SLOTS_OVER_TCP: usize = 4;
    const SLOT_BYTES_OVER_TCP: usize = 512 << 10;

    /// Messages in flight per connection.
    pub(crate) fn slots(&self) -> usize {
        self.slots.unwrap_or(Self::SLOTS)
    }

    /// Longest message in bytes.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes.unwrap_or(Self::SLOT_BYTES)
    }

    /// Chooses slots for TCP where nothing was said. Under a budget of bytes a second messages stay short: they take turns.
    pub(crate) fn suit_tcp(&mut self) {
        if self.slots.is_none() && self.slot_bytes.is_none() && self.bandwidth.is_none() {
            let slots = Self::SLOTS_OVER_TCP.max(MIN_SLOTS * self.sockets as usize);
            let bytes = Self::SLOTS_OVER_TCP * Self::SLOT_BYTES_OVER_TCP / slots;
            self.slots = Some(slots);
            self.slot_bytes = Some(bytes.max(Self::SLOT_BYTES));
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            join_timeout: Duration::from_secs(60),
            transport: Transport::Auto,
            timed: true,
            paths: Paths::Auto,
            cross_memory: false,
            heap_bytes: 1 << 30,
            memory_bytes: 16 << 30,
            pin: false,
            slots: None,
            slot_bytes: None,
            sockets: 1,
            collectives: vec![Collective::AllReduce],
            priorities: 1,
            bandwidth: None,
            choice: Choice::default(),
            interfaces: None,
            ib: Ib::default(),
            log: Log::default(),
            observe: false,
            trace: None,
            report: None,
            on_end: None,
            on_step: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("timeout", &self.timeout)
            .field("join_timeout", &self.join_timeout)
            .field("transport", &self.transport)
            .field("timed", &self.timed)
            .field("paths", &self.paths)
            .field("cross_memory", &self.cross_memory)
            .field("heap_bytes", &self.heap_bytes)
            .field("memory_bytes", &self.memory_bytes)
            .field("pin", &self.pin)
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .field("sockets", &self.sockets)
            .field("collectives", &self.collectives)
            .field("priorities", &self.priorities)
            .field("bandwidth", &self.bandwidth)
            .field("choice", &self.choice)
            .field("interfaces", &self.interfaces)
            .field("ib", &self.ib)
            .field("log", &self.log)
            .field("observe", &self.observe)
            .field("trace", &self.trace)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

/// What an operation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// From call to return on this rank; zero where operations are not timed.
    pub elapsed: Duration,
    /// Total data of the collective in bytes, as nccl-tests counts it.
    pub bytes: u64,
    /// The way it took.
    pub path: Path,
    /// Channels of the plan it ran on; 0 where it took another way.
    pub channels: usize,
    /// Steps this rank did.
    pub steps: usize,
    /// Times this rank slept.
    pub sleeps: u64,
    /// How long messages of this rank waited for [`Options::bandwidth`] meanwhile, of whichever operation.
    pub held: Duration,
}
