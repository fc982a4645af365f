//! How the devices of a group come together: the host's group carries what they tell each other.
//!
//! ```text
//!   who       host, process, device, settings; the slots others write and the handle that opens them
//!   ways      how each reaches each, found by trying; who could not, says why
//!   memory    the lowest rank of a host makes it,
//!   ready     the others open it
//! ```
//!
//! What fails on one rank is told in the round that follows, so that all give up with the same words.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use topology::health::GpuDirect;
use topology::{BusId, Plan, Rank};
use transport::Communicator as Group;
use transport::schedule::ConnectionId;

use crate::buffer::Buffer;
use crate::context::Context;
use crate::device::Device;
use crate::error::CudaError;
use crate::ffi::{Address, IPC_BYTES, IpcHandle};
use crate::flagged;
use crate::gpu_direct::Slots;
use crate::ipc::Opened;
use crate::protocols::{Facts, Reached, Usable};
use crate::region::Parts;
use crate::segment::{Layout, Name, Segment, Word};
use crate::wire::{FIRST, Flagged, Link, Way, Wire, Wires, in_word};

/// Groups this process has begun to make.
static GROUPS: AtomicU64 = AtomicU64::new(0);

/// More than any rank has to say.
const MOST_BYTES: usize = 1 << 24;

/// What the ends of all connections are made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    /// Whether devices may write each other's memory.
    pub(crate) peer: bool,
    /// Whether NICs may reach device memory, where that is wished.
    pub(crate) gpu_direct: Option<GpuDirect>,
    /// Stands for the host, in tests of ways between hosts.
    pub(crate) host: Option<String>,
    /// What must be equal on all ranks, by name.
    pub(crate) claims: Vec<(String, String)>,
    pub(crate) connections: Vec<ConnectionId>,
    pub(crate) priorities: u32,
    /// Bytes of data in a slot for messages with flags, where such are asked for.
    pub(crate) flagged: Option<usize>,
    /// What others must know for them.
    pub(crate) facts: Option<Facts>,
}

/// The device's side of a group.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) segment: Arc<Segment>,
    /// For what goes between hosts; this rank's alone.
    pub(crate) own: Option<Arc<Segment>>,
    /// The slots of that, where NICs reach them in device memory; and the ranks that have theirs so.
    pub(crate) direct: Option<Slots>,
    pub(crate) placed: BTreeSet<Rank>,
    /// The ranks of this host, ascending.
    pub(crate) members: Vec<Rank>,
    pub(crate) wires: Wires,
    pub(crate) links: Vec<Link>,
    pub(crate) opened: Opened,
    /// What others write.
    pub(crate) region: Option<Arc<Buffer>>,
    /// Which protocols may be used.
    pub(crate) usable: Usable,
    /// What kernels of messages with flags use by themselves: a part of the region for each priority.
    pub(crate) own_places: Option<Address>,
    /// Bytes of device memory and of pinned memory.
    pub(crate) bytes: usize,
}

/// Who a rank is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Who {
    host: String,
    /// Equal within a process alone.
    process: String,
    /// Groups this process had begun to make.
    groups: u64,
    bus_id: BusId,
    claims: Vec<(String, String)>,
    region: Option<Region>,
    facts: Option<Facts>,
}

/// The memory of a device that others write.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Region {
    /// Within its process.
    address: Address,
    /// Of the allocation, which the handle opens.
    base: Address,
    handle: Option<Vec<u8>>,
    /// Why there is no handle.
    why: String,
}

/// A round's word: or why there is none.
pub(crate) type Said<T> = Result<T, String>;

/// `ready` says why this rank cannot take part, if so.
pub(crate) fn meet(
    group: &mut Group,
    plan: &Plan,
    context: &Arc<Context>,
    setup: &Setup,
    ready: Said<()>,
) -> Result<Met, CudaError> {
    let own = group.rank();
    let made =
        ready.and_then(|()| Region::make(context, own, setup).map_err(|error| error.to_string()));
    let (region, buffer) = match made {
        Ok(Some((region, buffer))) => (Ok(Some(region)), Some(buffer)),
        Ok(None) => (Ok(None), None),
        Err(why) => (Err(why), None),
    };
    let who = region.map(|region| Who {
        host: setup.host.clone().unwrap_or_else(this_host),
        process: this_process().to_owned(),
        groups: GROUPS.fetch_add(1, Ordering::Relaxed),
        bus_id: context.bus_id(),
        claims: setup.claims.clone(),
        region,
        facts: setup.facts.clone(),
    });
    let all = round(group, &who)?;
    compare(&all)?;
    let near: Vec<Rank> =
        ranks(&all).filter(|r| all[r.index()].host == all[own.index()].host).collect();

    let mut opened = Opened::new(Arc::clone(context));
    let mut reach = Reach { context, plan, setup, all: &all, own, opened: &mut opened };
    let ways: Vec<(Way, String, Address)> = ranks(&all).map(|peer| reach.to(peer)).collect();
    let reached = ranks(&all).zip(&ways).map(|(peer, (way, why, _))| Reached {
        way: way.as_str().to_owned(),
        why: why.clone(),
        whole: setup.flagged.is_some() && reach.keeps_lines(peer),
    });
    let told: Vec<Vec<Reached>> = round(group, &Ok(reached.collect::<Vec<_>>()))?;
    let way = |id: &ConnectionId| told[id.from.index()][id.to.index()].way.as_str();
    let staged = |id: &&ConnectionId| way(id) == Way::Staged.as_str();
    let usable = match setup.flagged {
        None => Usable::not("the group was made without it"),
        Some(_) => {
            let member = |who: &Who| (who.process.clone(), who.bus_id.to_string());
            let members: Vec<_> = all.iter().map(member).collect();
            let members: Vec<_> = members
                .iter()
                .zip(&all)
                .map(|((process, device), who)| {
                    (process.as_str(), device.clone(), who.facts.as_ref())
                })
                .collect();
            let pairs = setup.connections.iter().map(|id| (id.from, id.to));
            Usable::of(&members, &told, pairs)
        }
    };

    let inside = |id: &&ConnectionId| near.contains(&id.from) && near.contains(&id.to);
    let local: Vec<ConnectionId> = setup.connections.iter().filter(inside).copied().collect();
    let through_host: Vec<ConnectionId> = local.iter().filter(staged).copied().collect();
    let of_connection = setup.slots * setup.slot_bytes;
    let layout = Layout {
        members: near.len(),
        words: 2 * local.len(),
        slot_bytes: through_host.len() * of_connection,
    };
    let first = &all[near[0].index()];
    let name = format!("/topod-cuda-{}-{}", first.process, first.groups);
    let mut held: Option<(Segment, Name)> = None;
    let made = if own == near[0] {
        Segment::create(&name, layout, context).map(|made| {
            (0..layout.words)
                .for_each(|word| made.0.word(word).store(in_word(FIRST), Ordering::Relaxed));
            held = Some(made);
        })
    } else {
        Ok(())
    };
    round(group, &made.map_err(|error| error.to_string()))?;
    let (segment, named) = match held {
        Some((segment, named)) => (Ok(segment), Some(named)),
        None => (Segment::open(&name, layout, context), None),
    };
    let member = near.iter().position(|rank| *rank == own).unwrap_or(0);
    let far: Vec<_> = setup
        .connections
        .iter()
        .filter(|id| !inside(id) && (id.from == own || id.to == own))
        .collect();
    let peers: BTreeSet<Rank> =
        far.iter().map(|id| if id.from == own { id.to } else { id.from }).collect();
    let far_bytes = far.len() * of_connection;
    let direct = if far.is_empty() {
        Err(String::new())
    } else {
        Slots::new(group, plan, context, setup.gpu_direct.as_ref(), &peers, far_bytes)
    };
    if let (Err(why), Some(_)) = (&direct, &setup.gpu_direct) {
        tracing::warn!(rank = %own, "messages to other hosts go through memory of the host: {why}");
    }
    let in_devices = round(group, &Ok(direct.is_ok()))?;
    let slot_bytes = if direct.is_ok() { 0 } else { far_bytes };
    let private = Layout { members: 1, words: 2 * far.len(), slot_bytes };
    let pinned = if far.is_empty() {
        Ok(None)
    } else {
        let who = &all[own.index()];
        // Its name is gone as soon as it is mapped.
        let name = format!("/topod-cuda-{}-{}-own", who.process, who.groups);
        Segment::create(&name, private, context).map(|(made, _)| Some(Arc::new(made)))
    };
    let both = segment.and_then(|segment| Ok((segment, pinned?)));
    let both = both.inspect(|(segment, _)| segment.come(member)).map_err(|error| error.to_string());
    round(group, &both.as_ref().map(drop).map_err(Clone::clone))?;
    drop(named);
    let (segment, pinned) = both.map_err(|cause| CudaError::Peer { rank: own, cause })?;
    let segment = Arc::new(segment);

    let mut wires = Wires::default();
    let own_pinned = if pinned.is_some() { private.bytes() } else { 0 };
    let far_slots = direct.as_ref().map_or(0, |direct| direct.buffer.bytes());
    let bytes = buffer.as_ref().map_or(0, |buffer| buffer.bytes());
    let bytes = bytes + layout.bytes() + own_pinned + far_slots;
    let parts = |rank: Rank| Parts::new(setup, rank);
    let own_start = buffer.as_ref().map_or(0, |buffer| buffer.address());
    for (at, id) in local.iter().enumerate().filter(|(_, id)| id.from == own || id.to == own) {
        let place = through_host.iter().position(|other| other == id);
        let slots = match place {
            Some(place) => segment.slots_address() + (place * of_connection) as Address,
            None if id.to == own => own_start + parts(own).slots(id),
            None => ways[id.to.index()].2 + parts(id.to).slots(id),
        };
        let start = |rank: Rank| if rank == own { own_start } else { ways[rank.index()].2 };
        let flagged = usable.any().then(|| {
            [0, 1].map(|protocol| Flagged {
                slots: start(id.to) + parts(id.to).flagged(id, protocol),
                credit: start(id.from) + parts(id.from).credit(id, protocol),
                next: flagged::FIRST,
            })
        });
        let (posted, consumed) = (Word::new(&segment, 2 * at), Word::new(&segment, 2 * at + 1));
        let wire = Wire { id: *id, slots, network: None, posted, consumed, next: FIRST, flagged };
        wires.add(own, wire);
    }
    for (at, id) in far.into_iter().enumerate() {
        let Some(made) = &pinned else { continue };
        let (posted, consumed) = (Word::new(made, 2 * at), Word::new(made, 2 * at + 1));
        posted.set(in_word(FIRST));
        consumed.set(in_word(FIRST));
        let start = at * of_connection;
        let slots = direct.as_ref().map(|direct| direct.buffer.address());
        let slots = slots.unwrap_or_else(|_| made.slots_address()) + start as Address;
        let (network, next) = (Some(start), FIRST);
        wires.add(own, Wire { id: *id, slots, network, posted, consumed, next, flagged: None });
    }
    wires.sort();
    let links = ranks(&all).zip(ways).filter(|(peer, _)| *peer != own);
    let links = links.map(|(peer, (way, why, _))| match &direct {
        Ok(direct) if way == Way::Network => {
            Link { peer, way: Way::GpuDirect, why: format!("{why}, by {}", direct.by) }
        }
        Err(told) if way == Way::Network && !told.is_empty() => {
            Link { peer, way, why: format!("{why}; {told}") }
        }
        _ => Link { peer, way, why },
    });
    let links = links.collect();
    let placed = (0..).map(Rank).zip(in_devices).filter(|(_, placed)| *placed);
    let placed = placed.map(|(rank, _)| rank).collect();
    let own_places = usable.any().then(|| own_start + parts(own).own());
    Ok(Met {
        segment,
        own: pinned,
        direct: direct.ok(),
        placed,
        members: near,
        wires,
        links,
        opened,
        region: buffer,
        usable,
        own_places,
        bytes,
    })
}

fn ranks(all: &[Who]) -> impl Iterator<Item = Rank> {
    (0..u32::try_from(all.len()).unwrap_or(u32::MAX)).map(Rank)
}

/// Every rank's word, told to all.
fn round<T: Serialize + DeserializeOwned>(
    group: &mut Group,
    own: &Said<T>,
) -> Result<Vec<T>, CudaError> {
    let words =
        serde_json::to_vec(own).map_err(|error| unreadable(group.rank(), &error.to_string()))?;
    let mut all = Vec::new();
    for (rank, words) in (0..).map(Rank).zip(exchange(group, words)?) {
        let said: Said<T> =
            serde_json::from_slice(&words).map_err(|error| unreadable(rank, &error.to_string()))?;
        all.push(said.map_err(|cause| CudaError::Peer { rank, cause })?);
    }
    Ok(all)
}

fn unreadable(rank: Rank, why: &str) -> CudaError {
    CudaError::Peer { rank, cause: format!("what it said cannot be read: {why}") }
}

/// What each rank has, on every rank.
pub(crate) fn exchange(group: &mut Group, own: Vec<u8>) -> Result<Vec<Vec<u8>>, CudaError> {
    let rank = group.rank();
    let others = |group: &Group| {
        (0..u32::try_from(group.ranks()).unwrap_or(u32::MAX)).map(Rank).filter(move |r| *r != rank)
    };
    let (mut lengths, mut bodies) = (Vec::new(), Vec::new());
    for peer in others(group) {
        lengths.push(group.start_send(vec![i64::try_from(own.len()).unwrap_or(i64::MAX)], peer)?);
        bodies.push(group.start_send(own.clone(), peer)?);
    }
    let mut all: BTreeMap<Rank, Vec<u8>> = BTreeMap::from([(rank, own)]);
    for peer in others(group) {
        let mut length = [0_i64];
        group.receive(&mut length, peer)?;
        let length = usize::try_from(length[0]).ok().filter(|length| *length <= MOST_BYTES);
        let length = length.ok_or_else(|| unreadable(peer, "its length makes no sense"))?;
        let mut body = vec![0; length];
        group.receive(&mut body, peer)?;
        all.insert(peer, body);
    }
    for sent in lengths {
        group.wait(sent)?;
    }
    for sent in bodies {
        group.wait(sent)?;
    }
    Ok(all.into_values().collect())
}

fn compare(all: &[Who]) -> Result<(), CudaError> {
    let Some(first) = all.first() else { return Ok(()) };
    for (b, other) in ranks(all).zip(all) {
        for ((what, a_value), (_, b_value)) in first.claims.iter().zip(&other.claims) {
            if a_value != b_value {
                return Err(CudaError::Differs {
                    what: what.clone(),
                    a: Rank(0),
                    a_value: a_value.clone(),
                    b,
                    b_value: b_value.clone(),
                });
            }
        }
    }
    Ok(())
}

impl Region {
    /// Slots for everything that others send here; `None` where nobody does, or may write device memory.
    fn make(
        context: &Arc<Context>,
        own: Rank,
        setup: &Setup,
    ) -> Result<Option<(Self, Arc<Buffer>)>, CudaError> {
        let parts = Parts::new(setup, own);
        if parts.bytes() == 0 || !setup.peer {
            return Ok(None);
        }
        let buffer = Buffer::new(context, parts.bytes())?;
        parts.begin(&buffer)?;
        let address = buffer.address();
        // An allocation may lie within a larger one, which is what a handle opens.
        let base = context.with(|driver| driver.range(address)).map_or(address, |(base, _)| base);
        let exported = context.with(|driver| driver.export(base));
        let why = exported.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let handle = exported.ok().map(|handle| handle.0.to_vec());
        Ok(Some((Self { address, base, handle, why }, buffer)))
    }
}

/// How this rank reaches others.
struct Reach<'a> {
    context: &'a Arc<Context>,
    plan: &'a Plan,
    setup: &'a Setup,
    all: &'a [Who],
    own: Rank,
    opened: &'a mut Opened,
}

impl Reach<'_> {
    /// The way to a peer, why it is no better, and where the peer's slots begin for this device.
    fn to(&mut self, peer: Rank) -> (Way, String, Address) {
        let (own, theirs) = (&self.all[self.own.index()], &self.all[peer.index()]);
        if peer == self.own {
            return (Way::Peer, String::new(), 0);
        }
        if own.host != theirs.host {
            return (Way::Network, "it is on another host".to_owned(), 0);
        }
        match self.straight(peer) {
            Ok(address) => (Way::Peer, String::new(), address),
            Err(why) => (Way::Staged, why, 0),
        }
    }

    /// Whether stores of 128 bytes to a peer stay whole, as far as is known: within a device, or over NVLink.
    fn keeps_lines(&self, peer: Rank) -> bool {
        let (own, theirs) = (&self.all[self.own.index()], &self.all[peer.index()]);
        let joined = || {
            let device = Device::by_bus_id(theirs.bus_id)?;
            self.context.device().has_nvlink_to(&device)
        };
        own.host == theirs.host && (own.bus_id == theirs.bus_id || joined().unwrap_or(false))
    }

    fn straight(&mut self, peer: Rank) -> Result<Address, String> {
        let (own, theirs) = (&self.all[self.own.index()], &self.all[peer.index()]);
        if !self.setup.peer {
            return Err("by the settings".to_owned());
        }
        let Some(region) = &theirs.region else { return Ok(0) };
        if crosses_nodes(self.plan, self.own, peer) {
            return Err("the plan's way to it crosses from one NUMA node to another".to_owned());
        }
        let words = |error: CudaError| error.to_string();
        let shared = own.bus_id == theirs.bus_id;
        let same_process = own.process == theirs.process;
        if !shared {
            let device = Device::by_bus_id(theirs.bus_id).map_err(words)?;
            if !self.context.device().reaches(&device).map_err(words)? {
                return Err(format!("{} cannot reach memory of {}", own.bus_id, theirs.bus_id));
            }
            if same_process {
                let context = Context::new(device).map_err(words)?;
                let enabled = self.context.with(|driver| driver.enable(context.raw));
                enabled.map_err(|error| error.to_string())?;
            }
        }
        if same_process {
            return Ok(region.address);
        }
        let handle =
            region.handle.as_deref().and_then(|bytes| <[u8; IPC_BYTES]>::try_from(bytes).ok());
        let handle = handle.ok_or_else(|| format!("its memory has no handle: {}", region.why))?;
        let base = self.opened.open(peer, region.base, IpcHandle(handle)).map_err(words)?;
        Ok(base + (region.address - region.base))
    }
}

/// Whether all ways that the plan has between two ranks cross from one NUMA node to another: there the host's memory is as near, and
/// requests from device to device are slow or not forwarded at all. A plan without physical ways says nothing.
fn crosses_nodes(plan: &Plan, from: Rank, to: Rank) -> bool {
    let of_set = plan.alternatives.iter().flat_map(|set| &set.channels);
    let channels = plan.channels.iter().chain(of_set);
    let edges = channels.flat_map(|channel| channel.edges.iter().chain(&channel.reduce_edges));
    let mut ways = edges.filter(|e| e.from == from && e.to == to).flat_map(|e| &e.paths).peekable();
    let node =
        |name: &&String| name.rsplit(['/', ':']).next().is_some_and(|n| n.starts_with("numa"));
    ways.peek().is_some() && ways.all(|way| way.via.iter().filter(node).count() > 1)
}

/// Tells machines apart, and boots.
fn this_host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| format!("process {}", this_process()), |text| text.trim().to_owned())
}

/// Tells processes apart, also those with one number in two namespaces.
fn this_process() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let mut bytes = [0; 16];
        let read =
            std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        if read.is_err() {
            bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        }
        format!("{:032x}", u128::from_le_bytes(bytes))
    })
}
