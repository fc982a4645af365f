//! A group of ranks that execute collectives along a plan.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::TcpListener;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};
use topology::formats::plan_json;
use topology::{Collective, Plan, Rank};

use self::messages::Ways;
use self::operation::{Active, Finished, ProgramKey};
use self::scratch::Scratch;
use self::watch::Patience;
use crate::arena::SharedBuffer;
use crate::control::Control;
use crate::element::Element;
use crate::error::{ConnectError, Culprit, Failure, TransportError};
use crate::executor::{Compiled, Links};
use crate::link::verbs::{FAREWELL, Registry};
use crate::link::{Fault, LinkKind};
use crate::mesh::{self, Listeners, Mesh};
use crate::observe::{Observer, Trace};
use crate::pace::{Pace, monotonic};
use crate::rendezvous::{Group, Join, Rendezvous, meet};
use crate::schedule::{MIN_SLOTS, Sizing, by_size, connections_of_all};
use crate::shared::Shared;
use crate::variables::NoAlgorithm;
use crate::waiter::Waiter;

mod account;
mod budget;
mod collectives;
mod device;
mod drive;
mod ffi;
mod fusion;
mod groups;
mod messages;
mod operation;
mod options;
mod pending;
mod point_to_point;
mod scratch;
mod settings;
mod shrink;
mod start;
#[cfg(test)]
mod tests;
mod watch;

pub use device::{Carried, DeviceMemory, DevicePart};
pub use ffi::{Call, Place};
pub use options::{Options, Path, Paths, Stats, Transport};
pub use pending::Pending;
pub use settings::{InvalidSetting, SETTINGS, Setting};

/// Digest of a plan: equal on ranks that hold the same.
#[must_use]
pub fn plan_digest(plan: &Plan) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(plan_json::write(plan, None));
    digest.iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// One rank's part of a group.
///
/// Operations are collective: every rank calls the same ones in the same order. When one fails, it fails on every rank,
/// and the communicator is of no further use; [`shrink`](Communicator::shrink) makes a new one of the ranks that live.
pub struct Communicator {
    plan: Plan,
    /// Collectives for which the plan has no algorithm that is allowed.
    forbidden: BTreeMap<Collective, NoAlgorithm>,
    rank: Rank,
    group: Group,
    /// Groups made of this one.
    splits: u64,
    options: Options,
    /// Memory it took when it was made, of the rank that took most.
    fixed_bytes: usize,
    links: Links,
    control: Control,
    waiter: Waiter,
    /// Where all ranks share a host.
    shared: Option<Shared>,
    /// Where NICs join ranks.
    registry: Option<Arc<Registry>>,
    /// Scratch memory no operation uses now.
    scratch: Scratch,
    programs: HashMap<ProgramKey, Arc<Compiled>>,
    /// Collectives started; their number on every rank.
    operations: u64,
    /// Everything started; what tells operations of this rank apart.
    tickets: u64,
    /// The connections of messages that need nobody to move them.
    ways: Ways,
    /// Messages sent to and received from each rank.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Monitored barriers begun.
    barriers: u64,
    /// In the order in which they were started.
    active: Vec<Active>,
    /// Done and not yet asked for.
    finished: Vec<Finished>,
    patience: Patience,
    /// What operations started from now on have.
    priority: u32,
    pace: Option<Pace>,
    observer: Option<Observer>,
    failure: Option<Box<Failure>>,
    /// Where the others find this rank should the group fail; taken when it is shrunk.
    listener: Option<TcpListener>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank)
            .field("ranks", &self.plan.ranks.len())
            .field("operations", &self.operations)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Communicator {
    /// Meets the other ranks of `plan` and connects to the peers it names.
    ///
    /// # Errors
    /// Where a rank never comes or holds another plan, generation or setting (named on every rank), or a connection fails.
    pub fn new(
        plan: &Plan,
        rank: Rank,
        rendezvous: &Rendezvous,
        options: Options,
    ) -> Result<Self, ConnectError> {
        check(plan, rank, &options)?;
        let listeners = Listeners::open(rendezvous.is_local(), &options)
            .map_err(|source| ConnectError::Local { what: "listen for peers", source })?;
        let own = Join::new(rank, claims(plan, &options), listeners.reach.clone());
        let group = meet(rendezvous, plan.ranks.len(), &own, options.join_timeout)?;
        Self::connect(plan, rank, group, options, listeners)
    }

    /// Connects to the peers of a group that has met.
    fn connect(
        plan: &Plan,
        rank: Rank,
        group: Group,
        mut options: Options,
        listeners: Listeners,
    ) -> Result<Self, ConnectError> {
        check(plan, rank, &options)?;
        let ranks = plan.ranks.len();
        let sockets = sockets_alone(&group, &options);
        if sockets {
            options.suit_tcp();
        }
        let by_size = sockets.then(|| over_sockets(plan, &options)).flatten();
        let (plan, forbidden) =
            options.choice.narrow(by_size.as_ref().unwrap_or(plan), &options.collectives);
        let wanted = connections_of_all(&plan, &options.collectives, options.priorities);
        let mesh = mesh::connect(rank, &group, &plan, &wanted, &options, &listeners)?;
        let Mesh { control, transmit, receive, pairs, doorbell, arena, registry } = mesh;
        let host = &group.members[rank.index()].reach.host;
        let (here, cores) = group.crowding(rank);
        let oversubscribed = here > cores;
        let shared = arena.map(|(arena, crosses)| Shared::new(arena, crosses, oversubscribed));
        if options.pin {
            let before = group.members.iter().take(rank.index());
            let place = before.filter(|m| m.reach.host.boot == host.boot).count();
            crate::pin::spread(place, here)
                .map_err(|source| ConnectError::Local { what: "bind to a core", source })?;
        }
        tracing::info!(
            target: "topod::init",
            "rank {rank} of {ranks} on {}: {here} ranks here on {cores} cores, {} connections, shared memory {}",
            host.name,
            transmit.len() + receive.len(),
            match &shared {
                Some(shared) if shared.crosses => "with the whole group, and each other's own",
                Some(_) => "with the whole group",
                None => "between pairs of one host at most",
            },
        );
        for (collective, reached) in &plan.collectives {
            if let Some(best) = &reached.best {
                let (algorithm, channels) = (best.algorithm, best.channels);
                tracing::info!(target: "topod::graph", "{collective}: {algorithm}, {channels} channels");
            }
        }
        let trace = options.trace.as_ref().map(|_| Trace::new(rank, &host.name));
        let observer = (options.observe || trace.is_some()).then(|| Observer::new(trace));
        let fixed_bytes = budget::fixed(&plan, &options);
        let links = Links { transmit, receive };
        Ok(Self {
            plan,
            observer,
            forbidden,
            rank,
            group,
            splits: 0,
            patience: Patience::new(options.timeout),
            priority: 0,
            pace: options.bandwidth.map(|rate| Pace::new(rate, monotonic())),
            fixed_bytes,

            options,
            ways: Ways::new(ranks, &links),
            links,
            control,
            waiter: Waiter::new(
                doorbell,
                pairs,
                shared.as_ref().map(|shared| Arc::clone(&shared.arena)),
                oversubscribed,
            ),
            shared,
            registry,
            scratch: Scratch::default(),
            programs: HashMap::new(),
            operations: 0,
            tickets: 0,
            sent: vec![0; ranks],
            received: vec![0; ranks],
            barriers: 0,
            active: Vec::new(),
            finished: Vec::new(),
            failure: None,
            listener: Some(listeners.tcp),
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

    /// Gives operations that are started from now on a priority, from 0 up. Every rank calls it at the same place among its operations.
    ///
    /// Those of a higher priority have connections of their own, so they pass lower ones that are in flight, and these have no turn
    /// while a higher one moves. All of priority 0 have the ways that their size has; the others go along channels.
    ///
    /// # Errors
    /// [`TransportError::NoPriority`] where the group was not made for so many ([`Options::priorities`]).
    pub const fn set_priority(&mut self, priority: u32) -> Result<(), TransportError> {
        let priorities = self.options.priorities;
        if priority >= priorities {
            return Err(TransportError::NoPriority { priority, priorities });
        }
        self.priority = priority;
        Ok(())
    }

    /// The priority that operations have which are started now.
    #[must_use]
    pub const fn priority(&self) -> u32 {
        self.priority
    }

    /// A buffer of zeros that operations use where it lies, if all ranks share a host; if verbs links join them, one that NICs send
    /// from where it lies, and else an ordinary one.
    ///
    /// NICs have it locked in memory from when it is first sent from until it is dropped or the communicator is. Buffers from
    /// elsewhere are copied on their way to a NIC: nobody could tell when their memory is another's.
    ///
    /// # Errors
    /// [`TransportError::NoMemory`] where the host has none left, or as much is taken as [`Options::heap_bytes`] and
    /// [`Options::memory_bytes`] allow.
    pub fn allocate<T: Element>(&self, length: usize) -> Result<SharedBuffer<T>, TransportError> {
        let made = match (&self.shared, &self.registry) {
            (Some(shared), _) => {
                SharedBuffer::shared(&shared.arena, &shared.heap, length, self.heap_limit())
            }
            (None, Some(registry)) => SharedBuffer::registered(registry, length),
            (None, None) => return Ok(SharedBuffer::private(length)),
        };
        made.map_err(|error| {
            let bytes = length.saturating_mul(size_of::<T>());
            TransportError::NoMemory { bytes, cause: error.to_string() }
        })
    }

    /// The plan as it goes: with those of its ways that may be used and, where sockets alone join the ranks, with choices by size for
    /// them.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether ranks of this group copy straight from each other's private memory.
    #[must_use]
    pub fn crosses_memory(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.crosses)
    }

    /// Makes links go wrong, to see how that is told; for tests of this library on real devices.
    #[doc(hidden)]
    pub fn provoke(&mut self, fault: Fault) {
        self.links.transmit.iter_mut().for_each(|half| half.link.provoke(fault));
    }

    /// A rank as errors name it.
    #[must_use]
    pub fn culprit(&self, rank: Rank) -> Culprit {
        self.control.culprit(rank)
    }

    /// Ends the group on every rank, for what a caller found who moves data of the group by means of its own, such as devices'. What
    /// the ranks were told before holds.
    pub fn give_up(&mut self, failure: Failure) -> TransportError {
        match &self.failure {
            Some(failure) => TransportError::Unusable(failure.clone()),
            None => self.broke(Box::new(failure)),
        }
    }

    /// Why the communicator is of no further use, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }
}

impl Communicator {
    /// Has the peers hear what they have to know before this rank's NICs forget it; those that have left need not.
    fn say_farewell(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        loop {
            let mut heard = true;
            for half in &mut self.links.receive {
                if self.control.has_left(half.id.from) {
                    half.link.forget();
                }
                heard &= half.link.leave();
            }
            if heard || Instant::now() >= deadline {
                break;
            }
            // A peer that leaves says so.
            let _ = self.control.listen();
            std::thread::yield_now();
        }
        // Each need not wait once more.
        self.links.receive.iter_mut().for_each(|half| half.link.forget());
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.leave_trace();
        // After a failure the peers know already.
        if self.failure.is_none() && !std::thread::panicking() {
            self.control.leave();
            self.say_farewell();
        }
        if let Some(registry) = &self.registry {
            registry.end();
        }
    }
}

/// Whether nothing but sockets joins any two ranks; every rank finds the same.
fn sockets_alone(group: &Group, options: &Options) -> bool {
    let all: Vec<_> = group.members.iter().map(|member| &member.reach).collect();
    let otherwise = |at: usize| all[..at].iter().any(|b| mesh::kind(all[at], b) != LinkKind::Tcp);
    match options.transport {
        Transport::Tcp => true,
        Transport::Auto => !(1..all.len()).any(otherwise),
        Transport::Shm | Transport::Verbs => false,
    }
}

/// The plan with choices by size for sockets, which is the same on every rank. `None` where the plan is to go as it is.
fn over_sockets(plan: &Plan, options: &Options) -> Option<Plan> {
    if options.paths == Paths::Plan {
        return None;
    }
    let made = by_size::for_links(plan, &options.collectives, &by_size::TCP, options.slot_bytes());
    // Ways that no memory is left for are left out.
    (budget::fixed(&made, options) <= options.memory_bytes).then_some(made)
}

/// Refuses nonsense before anything is sent.
fn check(plan: &Plan, rank: Rank, options: &Options) -> Result<(), ConnectError> {
    let ranks = plan.ranks.len();
    if rank.index() >= ranks {
        return Err(ConnectError::NoSuchRank { rank, ranks });
    }
    if options.slots() < MIN_SLOTS {
        return Err(ConnectError::Options("a connection needs at least two slots"));
    }
    if options.slots() > Options::MOST_SLOTS {
        return Err(ConnectError::Options("a connection has at most 4096 slots"));
    }
    if options.slot_bytes() > 1 << 30 {
        return Err(ConnectError::Options("slots are at most 1 GiB"));
    }
    if !(1..=Options::MOST_PRIORITIES).contains(&options.priorities) {
        return Err(ConnectError::Options("a group has 1 to 8 priorities"));
    }
    if !(1..=Options::MOST_SOCKETS).contains(&options.sockets) {
        return Err(ConnectError::Options("a connection has 1 to 16 sockets"));
    }
    Sizing::new(1, options.slot_bytes())?;
    budget::check(plan, options)
}

/// The links in words, with what both ends of each must have.
fn transport(options: &Options) -> String {
    let name = options.transport.as_str();
    match options.transport {
        Transport::Verbs | Transport::Auto => {
            format!("{name} with {} queue pairs a connection", options.ib.queue_pairs)
        }
        Transport::Shm | Transport::Tcp => name.to_owned(),
    }
}

/// What must be equal on all ranks.
fn claims(plan: &Plan, options: &Options) -> Vec<(String, String)> {
    let collectives: Vec<_> = options.collectives.iter().map(|c| c.as_str()).collect();
    [
        ("number of ranks", plan.ranks.len().to_string()),
        ("generation", plan.topology.generation.to_string()),
        ("plan digest", plan_digest(plan)),
        ("transport", transport(options)),
        ("slots", format!("{} of {} bytes", options.slots(), options.slot_bytes())),
        ("sockets of a connection", options.sockets.to_string()),
        ("paths", format!("{:?} with heaps of {} bytes", options.paths, options.heap_bytes)),
        ("memory budget", format!("{} bytes", options.memory_bytes)),
        ("priorities", options.priorities.to_string()),
        ("bandwidth", options.bandwidth.map_or(0, NonZeroU64::get).to_string()),
        ("collectives", collectives.join(",")),
        ("choice", options.choice.to_string()),
        ("cost of sockets", format!("{:?}", by_size::TCP)),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into()
}
