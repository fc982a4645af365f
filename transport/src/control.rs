//! The connections over which ranks tell each other that they live, that they leave, and what went wrong.
//!
//! Every rank has one to each peer of its plan and one to rank 0. It costs nothing while data moves: it is read only by a
//! rank that waits. A process that dies closes it; a rank that fails tells everybody it knows, who pass it on. A rank
//! that has waited a while says so now and then, with whom it thinks everybody waits for; one that says nothing is
//! suspected itself. So the silent rank's number travels along the chain of those that wait.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use topology::Rank;

use crate::error::{Culprit, Failure};
use crate::frame;
use crate::link::{LinkKind, Tag};

/// Longest time a failing rank takes to tell its peers, should their buffers be full.
const FAREWELL: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Message {
    /// The sender waits; for whom, as far as it knows, and in which collective.
    Waiting {
        suspect: Rank,
        doing: Option<Doing>,
    },
    /// The sender has done no step for a while, but parts of messages come.
    Moving,
    Failed(Failure),
    /// The sender has done its part and leaves.
    Goodbye,
    /// The sender came to a monitored barrier; to rank 0.
    Came {
        barrier: u64,
    },
    /// A monitored barrier is over; from rank 0. Who had not come is listed.
    Released {
        barrier: u64,
        missing: Vec<Rank>,
    },
}

/// A collective in flight. Ranks that do not agree on it may wait for each other on different connections, and never see each other's
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Doing {
    /// Without the length.
    pub(crate) tag: Tag,
    pub(crate) priority: u32,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, priority {}", self.tag, self.priority)
    }
}

/// Reads any bytes as control messages; what a fuzzer calls.
pub fn fuzz_messages(bytes: &[u8]) {
    let mut inbound = bytes.to_vec();
    while let Ok(Some(message)) = frame::decode::<Message>(&mut inbound) {
        let mut again = frame::encode(&message);
        let read = frame::decode::<Message>(&mut again).expect("what was encoded decodes");
        assert_eq!(read, Some(message));
    }
}

/// A stream of either family.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(s) => s.set_nonblocking(true),
            Self::Tcp(s) => s.set_nonblocking(true),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(s) => s.as_fd(),
            Self::Tcp(s) => s.as_fd(),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => (&mut &*s).read(out),
            Stream::Tcp(s) => (&mut &*s).read(out),
        }
    }
}

impl Write for &Stream {
    /// A peer that is gone is an error, never a signal: this library also runs in programs that leave SIGPIPE as it is.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.as_fd(), data, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// ```text
///   Here ── Goodbye ──▶ Left          both ── end of stream ──▶ closed; from Here that is a loss
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Here,
    Left,
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    rank: Rank,
    stream: Stream,
    open: bool,
    state: State,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    /// When it last said that it waits, and for whom.
    heard: Option<(Instant, Rank)>,
    /// The last collective it said it waits in.
    doing: Option<Doing>,
    /// It said that parts of messages come, and nobody has asked for that yet.
    moving: bool,
    /// Monitored barriers it came to.
    came: u64,
    /// It told of a failure.
    failed: bool,
    /// Its host closed the connection: the process ended, or dropped the group.
    ended: bool,
}

impl Peer {
    /// `stream` is non-blocking.
    pub(crate) fn new(rank: Rank, stream: Stream) -> Self {
        Self {
            rank,
            stream,
            open: true,
            state: State::Here,
            inbound: Vec::new(),
            outbound: Vec::new(),
            heard: None,
            doing: None,
            moving: false,
            came: 0,
            failed: false,
            ended: false,
        }
    }

    /// Sends what fits; a peer that is gone or does not read is none of this rank's trouble here.
    fn flush(&mut self) {
        while self.open && !self.outbound.is_empty() {
            match (&self.stream).write(&self.outbound) {
                Ok(bytes) if bytes > 0 => drop(self.outbound.drain(..bytes)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.outbound.clear(),
            }
        }
    }

    fn say(&mut self, message: &Message) {
        if self.open {
            self.outbound.extend(frame::encode(message));
            self.flush();
        }
    }
}

/// What listening to the peers brought.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A rank knows of a failure.
    Told(Failure),
    /// A rank's process ended, or its host was cut off.
    Lost { culprit: Culprit, cause: String },
}

/// All peers.
#[derive(Debug)]
pub(crate) struct Control {
    own: Rank,
    peers: Vec<Peer>,
    /// Everybody by rank, peer or not.
    members: Vec<Culprit>,
    /// Monitored barriers that are over, and who had not come.
    released: Vec<(u64, Vec<Rank>)>,
}

impl Control {
    pub(crate) fn new(own: Rank, peers: Vec<Peer>, members: Vec<Culprit>) -> Self {
        Self { own, peers, members, released: Vec::new() }
    }

    pub(crate) fn culprit(&self, rank: Rank) -> Culprit {
        let unknown = || Culprit { rank, host: "no host".to_owned(), link: LinkKind::Tcp };
        self.members.get(rank.index()).cloned().unwrap_or_else(unknown)
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.peers.iter().filter(|p| p.open).map(|p| p.stream.as_fd())
    }

    /// Whether a rank has left in good order.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.peers.iter().any(|p| p.rank == rank && p.state == State::Left)
    }

    /// Ranks that left, or whose process ended without a word. A time-out or a cut network is no proof of that.
    pub(crate) fn ended(&self) -> impl Iterator<Item = Rank> + '_ {
        let gone = |p: &&Peer| p.state == State::Left || (p.ended && !p.failed);
        self.peers.iter().filter(gone).map(|p| p.rank)
    }

    /// Reads what has come; what a rank was told goes before what it noticed itself.
    pub(crate) fn listen(&mut self) -> Option<Notice> {
        let mut fds: Vec<_> =
            self.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        if !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(ready) if ready > 0) {
            return None;
        }
        let (mut told, mut lost) = (None, None);
        for peer in self.peers.iter_mut().filter(|p| p.open) {
            let read = frame::fill(&peer.stream, &mut peer.inbound);
            let cause = loop {
                match frame::decode(&mut peer.inbound) {
                    Ok(Some(Message::Waiting { suspect, doing })) => {
                        peer.heard = Some((Instant::now(), suspect));
                        peer.doing = doing.or(peer.doing);
                    }
                    Ok(Some(Message::Moving)) => peer.moving = true,
                    Ok(Some(Message::Failed(failure))) => {
                        peer.failed = true;
                        told = told.or(Some(failure));
                    }
                    Ok(Some(Message::Goodbye)) => peer.state = State::Left,
                    Ok(Some(Message::Came { barrier })) => {
                        peer.came = peer.came.max(barrier.saturating_add(1))
                    }
                    Ok(Some(Message::Released { barrier, missing })) => {
                        self.released.push((barrier, missing));
                    }
                    Ok(None) => match read {
                        Ok(true) => break None,
                        Ok(false) => {
                            peer.ended = true;
                            break Some("its process ended".to_owned());
                        }
                        Err(error) => {
                            peer.ended = error.kind() == io::ErrorKind::ConnectionReset;
                            break Some(error.to_string());
                        }
                    },
                    Err(error) => break Some(format!("it sent nonsense: {error}")),
                }
            };
            if let Some(cause) = cause {
                peer.open = false;
                if peer.state == State::Here {
                    lost = lost.or(Some((peer.rank, cause)));
                }
            }
        }
        let lost = lost.map(|(rank, cause)| Notice::Lost { culprit: self.culprit(rank), cause });
        told.map(Notice::Told).or(lost)
    }

    /// Whom everybody waits for, seen from a rank that waits for `peer`: the peer itself where it has not been heard
    /// within `recent`, else whom it suspects.
    pub(crate) fn suspect(&self, peer: Rank, recent: Duration) -> Rank {
        let heard = self.peers.iter().find(|p| p.rank == peer).and_then(|p| p.heard);
        match heard {
            Some((at, suspect)) if at.elapsed() < recent && suspect != self.own => suspect,
            _ => peer,
        }
    }

    /// Tells all peers that this rank waits, and in what.
    pub(crate) fn wait_for(&mut self, suspect: Rank, doing: Option<Doing>) {
        self.mention(&Message::Waiting { suspect, doing });
    }

    /// A peer that waits in another collective than `ours`, which has the same number.
    pub(crate) fn differs(&self, ours: &Doing) -> Option<(Rank, Doing)> {
        let other = |peer: &Peer| peer.doing.map(|theirs| (peer.rank, theirs));
        self.peers
            .iter()
            .filter_map(other)
            .find(|(_, theirs)| theirs.tag.operation == ours.tag.operation && theirs != ours)
    }

    /// Tells all peers that parts of messages come, though this rank has done no step for a while.
    pub(crate) fn moves(&mut self) {
        self.mention(&Message::Moving);
    }

    fn mention(&mut self, message: &Message) {
        for peer in &mut self.peers {
            // A peer that does not read needs no second copy.
            if peer.outbound.is_empty() {
                peer.say(message);
            } else {
                peer.flush();
            }
        }
    }

    /// Whether a peer has said since the last question that parts of messages come.
    pub(crate) fn heard_moving(&mut self, rank: Rank) -> bool {
        let peer = self.peers.iter_mut().find(|peer| peer.rank == rank);
        peer.is_some_and(|peer| std::mem::take(&mut peer.moving))
    }

    /// Tells rank 0 that this rank came to a monitored barrier.
    pub(crate) fn came(&mut self, barrier: u64) {
        for peer in self.peers.iter_mut().filter(|p| p.rank == Rank(0)) {
            peer.say(&Message::Came { barrier });
        }
    }

    /// On rank 0, which has a connection to everybody: who has not come to a monitored barrier.
    pub(crate) fn missing(&self, barrier: u64) -> Vec<Rank> {
        self.peers.iter().filter(|p| p.came <= barrier).map(|p| p.rank).collect()
    }

    /// On rank 0: ends a monitored barrier.
    pub(crate) fn release(&mut self, barrier: u64, missing: &[Rank]) {
        self.farewell(&Message::Released { barrier, missing: missing.to_vec() });
    }

    /// On other ranks: who had not come to a monitored barrier, once it is over.
    pub(crate) fn released(&mut self, barrier: u64) -> Option<Vec<Rank>> {
        let at = self.released.iter().position(|(number, _)| *number == barrier)?;
        Some(self.released.swap_remove(at).1)
    }

    /// Tells all peers of a failure.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.farewell(&Message::Failed(failure.clone()));
    }

    /// Tells all peers that this rank leaves in good order.
    pub(crate) fn leave(&mut self) {
        self.farewell(&Message::Goodbye);
    }

    fn farewell(&mut self, message: &Message) {
        for peer in &mut self.peers {
            peer.say(message);
        }
        let deadline = Instant::now() + FAREWELL;
        while let Some(left) = frame::remaining(deadline) {
            let mut fds: Vec<_> = self
                .peers
                .iter()
                .filter(|p| p.open && !p.outbound.is_empty())
                .map(|p| PollFd::from_borrowed_fd(p.stream.as_fd(), PollFlags::OUT))
                .collect();
            if fds.is_empty() {
                return;
            }
            let left = Timespec::try_from(left).unwrap_or_default();
            let _ = poll(&mut fds, Some(&left));
            self.peers.iter_mut().for_each(Peer::flush);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A control with peers 1 and 2, and their ends.
    fn control() -> (Control, Control, UnixStream) {
        let pair = || {
            let (a, b) = UnixStream::pair().unwrap();
            a.set_nonblocking(true).unwrap();
            b.set_nonblocking(true).unwrap();
            (a, b)
        };
        let ((a, one), (b, two)) = (pair(), pair());
        let peer = |rank, stream| Peer::new(Rank(rank), Stream::Unix(stream));
        let members: Vec<_> = (0..4).map(member).collect();
        let own = Control::new(Rank(0), vec![peer(1, a), peer(2, b)], members.clone());
        (own, Control::new(Rank(1), vec![peer(0, one)], members), two)
    }

    fn member(rank: u32) -> Culprit {
        Culprit { rank: Rank(rank), host: format!("host{rank}"), link: LinkKind::Shm }
    }

    fn failure() -> Failure {
        Failure::Timeout {
            culprit: member(3),
            waited: Duration::from_secs(1),
            step: None,
            reported_by: Rank(1),
        }
    }

    #[test]
    fn a_failure_is_told_before_the_end_is_noticed() {
        let (mut own, mut one, two) = control();
        assert!(own.listen().is_none());
        one.fail(&failure());
        drop((one, two));
        assert!(matches!(own.listen(), Some(Notice::Told(f)) if f == failure()));
    }

    #[test]
    fn an_end_without_goodbye_is_a_loss() {
        let (mut own, mut one, two) = control();
        one.leave();
        drop(one);
        assert!(own.listen().is_none());
        assert!(own.has_left(Rank(1)) && !own.has_left(Rank(2)));
        drop(two);
        let Some(Notice::Lost { culprit, .. }) = own.listen() else { panic!("a loss") };
        assert_eq!(culprit.to_string(), "rank 2 on host2 (link shm)");
        assert_eq!(own.culprit(Rank(3)).to_string(), "rank 3 on host3 (link shm)");
        assert!(own.listen().is_none(), "noticed once");
    }

    #[test]
    fn the_silent_rank_is_suspected() {
        let (mut own, mut one, _two) = control();
        let recent = Duration::from_secs(60);
        assert_eq!(own.suspect(Rank(1), recent), Rank(1));
        one.wait_for(Rank(3), None);
        own.listen();
        assert_eq!(own.suspect(Rank(1), recent), Rank(3));
        assert_eq!(own.suspect(Rank(1), Duration::ZERO), Rank(1), "that was too long ago");
        assert_eq!(own.suspect(Rank(2), recent), Rank(2));
    }

    #[test]
    fn who_waits_in_another_collective_is_found() {
        let (mut own, mut one, _two) = control();
        let doing = |operation, count, priority| Doing {
            tag: Tag { operation, count, signature: 1, bytes: 0 },
            priority,
        };
        let ours = doing(4, 10, 0);
        for (theirs, differs) in [
            (doing(4, 10, 0), false),
            (doing(3, 11, 0), false),
            (doing(4, 11, 0), true),
            (doing(4, 10, 1), true),
        ] {
            one.wait_for(Rank(3), Some(theirs));
            // That it also waits elsewhere tells nothing of this.
            one.wait_for(Rank(3), None);
            own.listen();
            assert_eq!(own.differs(&ours), differs.then_some((Rank(1), theirs)));
        }
    }

    #[test]
    fn who_has_pieces_coming_is_heard_once() {
        let (mut own, mut one, _two) = control();
        assert!(!own.heard_moving(Rank(1)));
        one.moves();
        own.listen();
        assert!(!own.heard_moving(Rank(2)));
        assert!(own.heard_moving(Rank(1)) && !own.heard_moving(Rank(1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            fuzz_messages(&bytes);
        }
    }
}
