//! How the ranks of a group that failed find out which of them live.
//!
//! ```text
//!   the lowest rank that lives   waits at the listener it was reached by, until each rank has come or is known to have ended
//!   the others                   try ranks from the lowest up: say who they are and whom they know to have ended, wait for the word
//! ```
//!
//! A rank is known to have ended when it said goodbye, or its host closed a control connection on which it had told no failure.
//! One that is silent may still live behind a cut network, and believe the same of this side; so where any is silent, more than half
//! must have come, and at most one side of a cut goes on.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use topology::Rank;

use crate::control::Control;
use crate::error::ConnectError;
use crate::frame::{self, remaining};
use crate::rendezvous::Group;

/// Longest time for a connection, and for a guest to say who it is.
const GREETING: Duration = Duration::from_secs(3);

/// Where those who live meet again: the first of them listens.
#[derive(Debug)]
pub(crate) enum Place {
    Here(TcpListener),
    There(SocketAddr),
}

/// What a survivor says.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    session: u64,
    from: Rank,
    /// Ranks it knows to have ended.
    ended: BTreeSet<Rank>,
}

/// What the first survivor answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Word {
    /// Who lives, in order.
    Survivors(Vec<Rank>),
    TooFew {
        came: Vec<Rank>,
        silent: Vec<Rank>,
    },
}

impl Word {
    fn ranks(self) -> Result<Vec<Rank>, ConnectError> {
        match self {
            Self::Survivors(ranks) => Ok(ranks),
            Self::TooFew { came, silent } => Err(ConnectError::TooFew { came, silent }),
        }
    }
}

/// What this rank knows.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub(crate) own: Rank,
    pub(crate) group: &'a Group,
    /// Tells who ends.
    pub(crate) control: &'a mut Control,
    /// Ranks that have ended for certain.
    pub(crate) ended: BTreeSet<Rank>,
    /// A rank nobody waits for, though it may live.
    pub(crate) accused: Option<Rank>,
}

impl Known<'_> {
    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0_u32..).take(self.group.members.len()).map(Rank)
    }

    /// Hears who has ended since. Of failures the group has one already.
    fn hear(&mut self) {
        let _ = self.control.listen();
        self.ended.extend(self.control.ended());
    }

    fn is_awaited(&self, rank: Rank) -> bool {
        !self.ended.contains(&rank) && self.accused != Some(rank)
    }

    /// The ranks that live, and where they meet. A rank that hears nothing from a lower one within `limit` goes on to the next.
    ///
    /// # Errors
    /// [`ConnectError::TooFew`] where some are silent and those who came are no majority.
    pub(crate) fn agree(
        mut self,
        listener: TcpListener,
        limit: Duration,
    ) -> Result<(Vec<Rank>, Place), ConnectError> {
        let own = self.own;
        for leader in self.ranks().filter(|rank| *rank < own) {
            self.hear();
            if !self.is_awaited(leader) {
                continue;
            }
            match self.follow(leader, limit) {
                Ok((word, place)) => return Ok((word.ranks()?, Place::There(place))),
                Err(error) => tracing::debug!(%leader, %error, "no word from a lower rank"),
            }
        }
        // Half of what the others wait for this rank's word.
        let word = self.lead(&listener, Instant::now() + limit / 2).map_err(|source| {
            ConnectError::Local { what: "wait for the ranks that live", source }
        })?;
        Ok((word.ranks()?, Place::Here(listener)))
    }

    fn follow(&self, leader: Rank, limit: Duration) -> io::Result<(Word, SocketAddr)> {
        let member = &self.group.members[leader.index()];
        let address = member.reach.address.unwrap_or(member.address);
        let address = SocketAddr::from((address, member.reach.port));
        let stream = TcpStream::connect_timeout(&address, limit.min(GREETING))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        let card = Card { session: self.group.session, from: self.own, ended: self.ended.clone() };
        frame::send(&stream, &card)?;
        Ok((frame::receive(&stream)?, address))
    }

    fn lead(&mut self, listener: &TcpListener, deadline: Instant) -> io::Result<Word> {
        listener.set_nonblocking(true)?;
        self.hear();
        let mut came: Vec<(Rank, TcpStream)> = Vec::new();
        loop {
            let has_come = |rank| rank == self.own || came.iter().any(|(other, _)| *other == rank);
            let awaited = self.ranks().any(|rank| self.is_awaited(rank) && !has_come(rank));
            let Some(left) = remaining(deadline).filter(|_| awaited) else { break };
            self.wait(listener, &came, left)?;
            self.hear();
            while let Ok((stream, from)) = listener.accept() {
                match self.greet(&stream, left) {
                    Ok(card) => {
                        self.ended.extend(card.ended);
                        came.retain(|(rank, _)| *rank != card.from);
                        came.push((card.from, stream));
                    }
                    Err(error) => tracing::debug!(%from, %error, "a stranger"),
                }
            }
            came.retain(|(rank, stream)| {
                let here = is_open(stream);
                if !here {
                    self.ended.insert(*rank);
                }
                here
            });
        }
        let mut ranks: Vec<Rank> = came.iter().map(|(rank, _)| *rank).chain([self.own]).collect();
        ranks.sort_unstable();
        let silent: Vec<Rank> =
            self.ranks().filter(|r| !self.ended.contains(r) && !ranks.contains(r)).collect();
        let word = if ranks.len() > silent.len() {
            Word::Survivors(ranks)
        } else {
            Word::TooFew { came: ranks, silent }
        };
        for (_, stream) in &came {
            // One that died in this moment is missed when the group is made.
            let _ = stream.set_nonblocking(false).and_then(|()| frame::send(stream, &word));
        }
        Ok(word)
    }

    /// Sleeps until somebody comes or goes.
    fn wait(
        &self,
        listener: &TcpListener,
        came: &[(Rank, TcpStream)],
        left: Duration,
    ) -> io::Result<()> {
        let mut fds: Vec<_> = std::iter::once(listener.as_fd())
            .chain(came.iter().map(|(_, stream)| stream.as_fd()))
            .chain(self.control.descriptors())
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The card of a rank of this group that comes for the first time or again.
    fn greet(&self, stream: &TcpStream, left: Duration) -> io::Result<Card> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(left.min(GREETING)))?;
        stream.set_write_timeout(Some(GREETING))?;
        let card: Card = frame::receive(stream)?;
        let other = |what: &'static str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if card.session != self.group.session {
            return other("of another group");
        }
        if card.from <= self.own || card.from.index() >= self.group.members.len() {
            return other("a rank that does not come to this one");
        }
        stream.set_nonblocking(true)?;
        Ok(card)
    }
}

/// Whether the other end has not closed; it says nothing more.
fn is_open(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
