//! Connects this rank to the peers its plan names, and to rank 0.
//!
//! Of two ranks the upper dials. It first dials all its peers and sends each what it needs (over the kernel's backlog, so
//! nobody need be listening yet), then accepts, then reads the answers: no order of ranks can deadlock.
//!
//! ```text
//!   shared memory   one Unix stream per pair: hello, memory and doorbell ──▶   ◀── doorbell;   then control
//!   TCP             one stream per pair for control, one per connection of the plan; each begins with a hello
//!   verbs           one stream per pair for control: hello, offers ──▶   ◀── answers;   ready ──▶;   then control
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use topology::{Plan, Rank};

use crate::arena::{self, Arena};
use crate::communicator::{Options, Paths, Transport};
use crate::control::{Control, Peer, Stream};
use crate::error::{ConnectError, Culprit};
use crate::frame::{self, remaining};
use crate::host::Host;
use crate::link::header::Identity;
use crate::link::paired::PairedReceive;
use crate::link::shm::{Doorbell, Layout, Pair, Segment, ShmReceive, ShmTransmit, Side};
use crate::link::striped::{StripedReceive, StripedTransmit};
use crate::link::tcp::{TcpReceive, TcpTransmit};
use crate::link::verbs::{End, Nics, Registry, against};
use crate::link::{LinkKind, Receive, Transmit};
use crate::rendezvous::{Group, Reach, listen};
use crate::schedule::{ConnectionId, MIN_SLOTS};
use crate::variables::{Interfaces, interfaces_here};

mod memory;
mod verbs;

use memory::{explore, pass, passed, share};

/// Longest time a stranger on the listening port may take to say who it is.
const STRANGER: Duration = Duration::from_secs(2);

/// Begins every stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    session: u64,
    from: Rank,
    /// `None` on the control stream; else for which connection, and which of its sockets.
    data: Option<(ConnectionId, u32)>,
}

/// Where this rank can be reached; opened before it joins, so that no peer comes too early.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) tcp: TcpListener,
    unix: UnixListener,
    pub(crate) reach: Reach,
    /// Where links are chosen by what there is.
    nics: Option<Nics>,
}

impl Listeners {
    /// With a choice of interfaces, its address is told to the others. `local`: nobody is on another host.
    pub(crate) fn open(local: bool, options: &Options) -> io::Result<Self> {
        let address = options.interfaces.as_ref().map(reachable_by).transpose()?;
        let local = local && address.is_none_or(|address| address.is_loopback());
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let tcp = listen(local, 0)?;
        // Process numbers repeat across PID namespaces that share a network, ports do not.
        let port = tcp.local_addr()?.port();
        let name = format!("topod-transport-{}-{port}-{count}", std::process::id());
        let unix = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
        tcp.set_nonblocking(true)?;
        unix.set_nonblocking(true)?;
        let nics = nics_for_choice(local, options);
        let rdma = nics.as_ref().map(Nics::ports).map_err(Clone::clone);
        let reach = Reach { host: Host::this(), port, unix: name, address, rdma };
        Ok(Self { tcp, unix, reach, nics: nics.ok() })
    }
}

/// The NICs by which other hosts may be reached, or why there are none.
fn nics_for_choice(local: bool, options: &Options) -> Result<Nics, String> {
    let none = |why: &str| Err(why.to_owned());
    if options.transport != Transport::Auto {
        return none("links are not chosen by what there is");
    }
    if options.ib.disable {
        return none("RDMA is switched off");
    }
    if local {
        return none("all ranks are on one host");
    }
    if !Nics::any() {
        return none("it has no RDMA device");
    }
    let nics =
        Nics::open(&options.ib).map(Nics::of_one_layer).map_err(|error| error.to_string())?;
    let bytes = options.slots().saturating_mul(options.slot_bytes());
    nics.take(bytes).map_err(|error| error.to_string())?;
    Ok(nics)
}

/// The address of the first interface that is chosen.
fn reachable_by(interfaces: &Interfaces) -> io::Result<IpAddr> {
    let all = interfaces_here()?;
    let Some(found) = interfaces.choose(&all) else {
        let names: BTreeSet<_> = all.iter().map(|found| found.name.as_str()).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let what = format!("no interface that is up is among '{interfaces}'; there are {names}");
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    };
    tracing::info!(target: "topod::net", "ranks of other hosts reach this one by {} at {}", found.name, found.address);
    Ok(found.address)
}

/// Half of a connection with the rank at its other end.
#[derive(Debug)]
pub(crate) struct Half<L: ?Sized> {
    pub(crate) id: ConnectionId,
    pub(crate) link: Box<L>,
    /// Operations that use it, the one whose turn it is first.
    pub(crate) turns: VecDeque<u64>,
}

/// Everything connected.
#[derive(Debug)]
pub(crate) struct Mesh {
    pub(crate) control: Control,
    /// Sorted by connection.
    pub(crate) transmit: Vec<Half<dyn Transmit>>,
    /// Sorted by connection.
    pub(crate) receive: Vec<Half<dyn Receive>>,
    pub(crate) pairs: Vec<Arc<Pair>>,
    pub(crate) doorbell: Doorbell,
    /// The memory all ranks share, and whether they read each other's own.
    pub(crate) arena: Option<(Arena, bool)>,
    /// Verbs: the buffers that NICs read where they lie.
    pub(crate) registry: Option<Arc<Registry>>,
}

impl Mesh {
    fn send(&mut self, id: ConnectionId, link: impl Transmit + 'static) {
        self.transmit.push(Half { id, link: Box::new(link), turns: VecDeque::new() });
    }

    fn receive(&mut self, id: ConnectionId, link: impl Receive + 'static) {
        self.receive.push(Half { id, link: Box::new(link), turns: VecDeque::new() });
    }

    /// Half of a connection over TCP. With `shared`, the socket of the connection the other way, short messages go over that.
    fn join(
        &mut self,
        id: ConnectionId,
        sends: bool,
        mut sockets: Vec<TcpStream>,
        shared: Option<TcpStream>,
        identity: Identity,
        options: &Options,
    ) {
        let bytes = options.slot_bytes();
        // Messages in flight are shared out.
        let slots = options.slots().div_ceil(sockets.len().max(1)).max(MIN_SLOTS);
        let transmit = |stream| TcpTransmit::new(stream, identity, slots, bytes);
        let receive = |stream| TcpReceive::new(stream, identity, bytes);
        // One needs no turns.
        let only = if sockets.len() == 1 { sockets.pop() } else { None };
        match (sends, only) {
            (true, Some(stream)) => match shared {
                Some(shared) => self.send(id, transmit(stream).with_short(shared)),
                None => self.send(id, transmit(stream)),
            },
            (false, Some(stream)) => match shared {
                Some(shared) => {
                    self.receive(id, PairedReceive::new(receive(shared), receive(stream)));
                }
                None => self.receive(id, receive(stream)),
            },
            (true, None) => {
                self.send(id, StripedTransmit::new(sockets.into_iter().map(transmit).collect()));
            }
            (false, None) => {
                self.receive(id, StripedReceive::new(sockets.into_iter().map(receive).collect()));
            }
        }
    }
}

/// What is between this rank and one peer.
struct Between {
    connections: Vec<ConnectionId>,
    culprit: Culprit,
    control: Option<Stream>,
    /// By connection and socket of it.
    streams: BTreeMap<(ConnectionId, u32), TcpStream>,
    /// Sockets of each connection.
    sockets: u32,
    /// Upper rank, shared memory: what the answer completes.
    segment: Option<Segment>,
    pair: Option<Arc<Pair>>,
    /// Verbs: what becomes the halves of its connections, in their order.
    ends: Vec<End>,
    /// Verbs: why this rank has refused the peer's offers.
    refused: Option<io::Error>,
}

impl Between {
    fn complete(&self) -> bool {
        self.control.is_some()
            && match self.culprit.link {
                LinkKind::Shm => true,
                LinkKind::Tcp => {
                    self.streams.len() == self.connections.len() * self.sockets as usize
                }
                LinkKind::Verbs => self.ends.len() == self.connections.len(),
            }
    }

    fn failed(&self, source: impl Into<io::Error>) -> ConnectError {
        ConnectError::Peer { peer: self.culprit.clone(), source: source.into() }
    }

    fn layout(&self, options: &Options) -> Layout {
        Layout {
            connections: self.connections.len(),
            slots: options.slots(),
            slot_bytes: options.slot_bytes(),
        }
    }
}

pub(crate) fn connect(
    own: Rank,
    group: &Group,
    plan: &Plan,
    connections: &[ConnectionId],
    options: &Options,
    listeners: &Listeners,
) -> Result<Mesh, ConnectError> {
    let generation = plan.topology.generation.0;
    let local = |what| move |source| ConnectError::Local { what, source };
    let deadline = Instant::now() + options.join_timeout;
    let doorbell = Doorbell::new().map_err(local("create an eventfd"))?;
    let members = members(own, group, options)?;
    let opened = match options.transport {
        Transport::Verbs => Some(Nics::open(&options.ib).map_err(local("use RDMA"))?),
        _ => None,
    };
    let by_rdma = members.iter().any(|m| m.rank != own && m.link == LinkKind::Verbs);
    let nics = opened.as_ref().or(listeners.nics.as_ref()).filter(|_| by_rdma);
    let here = Here { own, group, plan, options, doorbell: &doorbell, nics };
    let mut peers = plan_peers(own, &members, connections, options.sockets);
    for (rank, between) in peers.range_mut(..own) {
        dial(&here, *rank, between, deadline).map_err(|source| between.failed(source))?;
    }
    accept(&here, &mut peers, listeners, deadline)?;
    for between in peers.range_mut(..own).map(|(_, between)| between) {
        answer(between, deadline).map_err(|source| between.failed(source))?;
        verbs::complete(between, deadline).map_err(|source| between.failed(source))?;
    }
    // Nobody sends before its peer can receive.
    for (_, between) in peers.range_mut(own..) {
        verbs::await_ready(between, deadline).map_err(|source| between.failed(source))?;
    }
    let everybody_near =
        members.iter().all(|m| m.rank == own || m.link == LinkKind::Shm) && members.len() > 1;
    let shares = everybody_near && options.paths == Paths::Auto;
    let (here, cores) = group.crowding(own);
    let (ranks, crowded) = (members.len(), here > cores);
    let layout = arena::Layout { ranks, heap_bytes: options.heap_bytes, crowded };
    let arena = if shares { share(own, layout, &peers, deadline)? } else { None };
    let mut mesh = Mesh {
        control: Control::new(own, Vec::new(), Vec::new()),
        transmit: Vec::new(),
        receive: Vec::new(),
        pairs: Vec::new(),
        doorbell,
        arena: None,
        registry: nics.map(|nics| Arc::clone(&nics.registry)),
    };
    let mut controls = Vec::new();
    for (rank, between) in peers {
        let Between { connections, control, streams, pair, ends, .. } = between;
        let mut ends = ends.into_iter();
        let stream = control.expect("every control stream was dialled or accepted");
        stream.set_nonblocking().map_err(local("set up a stream"))?;
        controls.push(Peer::new(rank, stream));
        for (i, id) in connections.into_iter().enumerate() {
            let sends = id.from == own;
            if let Some(pair) = &pair {
                let pair = Arc::clone(pair);
                if sends {
                    mesh.send(id, ShmTransmit::new(pair, i));
                } else {
                    mesh.receive(id, ShmReceive::new(pair, i));
                }
                continue;
            }
            if let Some(end) = ends.next() {
                if sends {
                    mesh.send(id, end.into_transmit(group.session, generation));
                } else {
                    mesh.receive(id, end.into_receive(group.session, generation));
                }
                continue;
            }
            let mut sockets = Vec::new();
            for socket in 0..options.sockets {
                let stream = streams.get(&(id, socket));
                let stream = stream.expect("every stream was dialled or accepted");
                let stream = stream
                    .set_nonblocking(true)
                    .and_then(|()| stream.set_nodelay(true))
                    .and_then(|()| stream.try_clone())
                    .map_err(local("set up a stream"))?;
                sockets.push(stream);
            }
            // The one of the two that comes first keeps a socket to itself but for the other's short messages.
            let there = ConnectionId { from: id.to, to: id.from, ..id };
            let shared = streams.get(&(there, 0)).filter(|_| options.sockets == 1 && there < id);
            let shared = shared.map(TcpStream::try_clone).transpose();
            let shared = shared.map_err(local("set up a stream"))?;
            let identity = Identity { session: group.session, generation, id };
            mesh.join(id, sends, sockets, shared, identity, options);
        }
        mesh.pairs.extend(pair);
    }
    mesh.transmit.sort_by_key(|half| half.id);
    mesh.receive.sort_by_key(|half| half.id);
    mesh.control = Control::new(own, controls, members);
    if let Some(arena) = arena {
        let crosses = explore(&arena, &mut mesh.control, own, options, deadline)?;
        if arena.is_light() {
            mesh.pairs.iter().for_each(|pair| pair.lighten());
        }
        mesh.arena = Some((arena, crosses));
    }
    Ok(mesh)
}

/// Everybody by rank, with the link this rank reaches them by.
fn members(own: Rank, group: &Group, options: &Options) -> Result<Vec<Culprit>, ConnectError> {
    let reach = &group.members[own.index()].reach;
    let mut told = BTreeSet::new();
    let all = (0..).map(Rank).zip(&group.members);
    all.map(|(rank, member)| {
        let host = &member.reach.host;
        let (link, why) = match options.transport {
            Transport::Auto => chosen(reach, &member.reach),
            Transport::Tcp => (LinkKind::Tcp, String::new()),
            Transport::Verbs => (LinkKind::Verbs, String::new()),
            Transport::Shm if reach.host.shares_memory_with(host) => (LinkKind::Shm, String::new()),
            Transport::Shm => {
                return Err(ConnectError::NotShared { own, rank, host: host.name.clone() });
            }
        };
        if !why.is_empty() && rank != own && told.insert((host.name.clone(), why.clone())) {
            tracing::info!(target: "topod::net", "ranks on {} are reached by {link}: {why}", host.name);
        }
        Ok(Culprit { rank, host: host.name.clone(), link })
    })
    .collect()
}

/// The link between two ranks where it is chosen by what there is; the same seen from both.
pub(crate) fn kind(own: &Reach, peer: &Reach) -> LinkKind {
    match (&own.rdma, &peer.rdma) {
        _ if own.host.shares_memory_with(&peer.host) => LinkKind::Shm,
        (Ok(here), Ok(there)) if against(here, there).is_none() => LinkKind::Verbs,
        _ => LinkKind::Tcp,
    }
}

/// The same, and why.
fn chosen(own: &Reach, peer: &Reach) -> (LinkKind, String) {
    let link = kind(own, peer);
    let why = match (link, &own.rdma, &peer.rdma) {
        (LinkKind::Shm, ..) => "they share a host".to_owned(),
        (LinkKind::Verbs, ..) => "both ends have RDMA ports".to_owned(),
        (LinkKind::Tcp, Err(why), _) => format!("no RDMA from {}: {why}", own.host.name),
        (LinkKind::Tcp, _, Err(why)) => format!("no RDMA to {}: {why}", peer.host.name),
        (LinkKind::Tcp, Ok(here), Ok(there)) => against(here, there).unwrap_or_default(),
    };
    (link, why)
}

/// The peers by rank: those with connections, and rank 0 (for rank 0: everybody).
fn plan_peers(
    own: Rank,
    members: &[Culprit],
    connections: &[ConnectionId],
    sockets: u32,
) -> BTreeMap<Rank, Between> {
    let mut peers = BTreeMap::new();
    for culprit in members {
        let rank = culprit.rank;
        let between: Vec<_> = connections
            .iter()
            .filter(|c| (c.from == own && c.to == rank) || (c.to == own && c.from == rank))
            .copied()
            .collect();
        if rank == own || (between.is_empty() && rank != Rank(0) && own != Rank(0)) {
            continue;
        }
        peers.insert(
            rank,
            Between {
                connections: between,
                culprit: culprit.clone(),
                control: None,
                streams: BTreeMap::new(),
                sockets,
                segment: None,
                pair: None,
                ends: Vec::new(),
                refused: None,
            },
        );
    }
    peers
}

/// What connecting to any peer takes of this rank.
struct Here<'a> {
    own: Rank,
    group: &'a Group,
    plan: &'a Plan,
    options: &'a Options,
    doorbell: &'a Doorbell,
    nics: Option<&'a Nics>,
}

fn dial(here: &Here<'_>, rank: Rank, between: &mut Between, deadline: Instant) -> io::Result<()> {
    let Here { own, group, options, doorbell, .. } = *here;
    let left = || remaining(deadline).ok_or(io::ErrorKind::TimedOut);
    let member = &group.members[rank.index()];
    let hello = |data| Hello { session: group.session, from: own, data };
    if between.culprit.link == LinkKind::Shm {
        let stream = UnixStream::connect_addr(&UnixAddr::from_abstract_name(&member.reach.unix)?)?;
        stream.set_write_timeout(Some(left()?))?;
        frame::send(&stream, &hello(None))?;
        if !between.connections.is_empty() {
            let (segment, file) = Segment::create(between.layout(options))?;
            pass(&stream, &[file.as_fd(), doorbell.descriptor().as_fd()])?;
            between.segment = Some(segment);
        }
        between.control = Some(Stream::Unix(stream));
        return Ok(());
    }
    let address = member.reach.address.unwrap_or(member.address);
    let address = SocketAddr::from((address, member.reach.port));
    let open = |data| -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, left()?)?;
        stream.set_nodelay(true)?;
        frame::send(&stream, &hello(data))?;
        Ok(stream)
    };
    let control = open(None)?;
    if between.culprit.link == LinkKind::Verbs {
        verbs::offer(here, between, &control)?;
        between.control = Some(Stream::Tcp(control));
        return Ok(());
    }
    between.control = Some(Stream::Tcp(control));
    for id in &between.connections {
        for socket in 0..between.sockets {
            between.streams.insert((*id, socket), open(Some((*id, socket)))?);
        }
    }
    Ok(())
}

/// Takes in all upper peers.
fn accept(
    here: &Here<'_>,
    peers: &mut BTreeMap<Rank, Between>,
    listeners: &Listeners,
    deadline: Instant,
) -> Result<(), ConnectError> {
    let upper = |rank: &Rank| *rank > here.own;
    loop {
        if let Some(between) = peers.values_mut().find(|between| between.refused.is_some())
            && let Some(source) = between.refused.take()
        {
            return Err(between.failed(source));
        }
        let waiting = peers.iter().find(|(rank, between)| upper(rank) && !between.complete());
        let Some((_, waiting)) = waiting else { return Ok(()) };
        let left = remaining(deadline).ok_or_else(|| waiting.failed(io::ErrorKind::TimedOut))?;
        let mut fds = [listeners.tcp.as_fd(), listeners.unix.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let limit = Timespec::try_from(left).unwrap_or_default();
        let _ = poll(&mut fds, Some(&limit));
        // A stranger, or a peer that dies in this moment, is dropped; who is missing in the end is named.
        if let Ok((stream, _)) = listeners.tcp.accept()
            && let Err(error) = accept_tcp(stream, here, peers, left)
        {
            tracing::debug!(%error, "connection refused");
        }
        if let Ok((stream, _)) = listeners.unix.accept()
            && let Err(error) = accept_unix(stream, here, peers, left)
        {
            tracing::debug!(%error, "connection refused");
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The peer a hello is from.
fn greet<'a>(
    hello: &Hello,
    group: &Group,
    peers: &'a mut BTreeMap<Rank, Between>,
) -> io::Result<&'a mut Between> {
    if hello.session != group.session {
        return Err(invalid("a connection of another group"));
    }
    peers.get_mut(&hello.from).ok_or_else(|| invalid("a connection from a rank that is no peer"))
}

fn accept_tcp(
    stream: TcpStream,
    here: &Here<'_>,
    peers: &mut BTreeMap<Rank, Between>,
    left: Duration,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(left.min(STRANGER)))?;
    let hello: Hello = frame::receive(&stream)?;
    let between = greet(&hello, here.group, peers)?;
    match hello.data {
        None if between.culprit.link == LinkKind::Verbs => {
            stream.set_read_timeout(Some(left))?;
            if let Err(error) = verbs::take(here, between, &stream) {
                between.refused = Some(error);
            }
            between.control = Some(Stream::Tcp(stream));
        }
        None => between.control = Some(Stream::Tcp(stream)),
        Some((id, socket)) if between.connections.contains(&id) && socket < between.sockets => {
            between.streams.insert((id, socket), stream);
        }
        Some(_) => return Err(invalid("a connection that is not in the plan")),
    }
    Ok(())
}

fn accept_unix(
    stream: UnixStream,
    here: &Here<'_>,
    peers: &mut BTreeMap<Rank, Between>,
    left: Duration,
) -> io::Result<()> {
    let Here { group, options, doorbell, .. } = *here;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(left.min(STRANGER)))?;
    let hello: Hello = frame::receive(&stream)?;
    let between = greet(&hello, group, peers)?;
    if !between.connections.is_empty() {
        let [file, bell] = passed(&stream)?;
        let segment = Segment::open(between.layout(options), &File::from(file))?;
        pass(&stream, &[doorbell.descriptor().as_fd()])?;
        between.pair = Some(Arc::new(Pair::new(segment, Side::Lower, bell.into())));
    }
    between.control = Some(Stream::Unix(stream));
    Ok(())
}

/// Completes what [`dial`] began.
fn answer(between: &mut Between, deadline: Instant) -> io::Result<()> {
    let (Some(segment), Some(Stream::Unix(stream))) = (between.segment.take(), &between.control)
    else {
        return Ok(());
    };
    stream.set_read_timeout(Some(remaining(deadline).ok_or(io::ErrorKind::TimedOut)?))?;
    let [bell] = passed(stream)?;
    between.pair = Some(Arc::new(Pair::new(segment, Side::Upper, bell.into())));
    Ok(())
}
