//! Rank 0: hear everybody, compare, tell everybody.

use std::io::{self, Read};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use topology::Rank;

use super::{Answer, Group, Join, Member, Rendezvous, SeenAt, place};
use crate::error::{ConnectError, Refusal};
use crate::frame::{self, remaining};

/// How often ranks that wait are told who is still missing.
const NEWS: Duration = Duration::from_millis(250);
/// Longest time one rank that does not read may hold up the others.
const WRITE: Duration = Duration::from_secs(5);

/// A connection, and once it has spoken, its rank.
struct Guest {
    stream: TcpStream,
    inbound: Vec<u8>,
    join: Option<Join>,
    seen: IpAddr,
}

struct Server<'a> {
    own: &'a Join,
    ranks: usize,
    guests: Vec<Guest>,
    refusal: Option<Refusal>,
    /// Who has been told of the refusal, by rank.
    told: Vec<bool>,
    news: bool,
}

pub(super) fn serve(
    rendezvous: &Rendezvous,
    ranks: usize,
    own: &Join,
    deadline: Instant,
    limit: Duration,
) -> Result<Group, ConnectError> {
    let failed = |source| ConnectError::Serve { place: rendezvous.to_string(), source };
    let (listener, _posted) = place::open(rendezvous, own.reach().address).map_err(failed)?;
    serve_at(&listener, &failed, ranks, own, deadline, limit)
}

/// The same at a place where the others look for this rank already.
pub(super) fn serve_at(
    listener: &TcpListener,
    failed: &dyn Fn(io::Error) -> ConnectError,
    ranks: usize,
    own: &Join,
    deadline: Instant,
    limit: Duration,
) -> Result<Group, ConnectError> {
    listener.set_nonblocking(true).map_err(failed)?;
    let mut told = vec![false; ranks];
    told[0] = true;
    let mut server = Server { own, ranks, guests: Vec::new(), refusal: None, told, news: false };
    loop {
        if server.refusal.is_none() && server.missing().is_empty() {
            return server.welcome().map_err(failed);
        }
        if let Some(refusal) = &server.refusal
            && server.told.iter().all(|told| *told)
        {
            return Err(refusal.clone().into());
        }
        let Some(left) = remaining(deadline) else {
            let missing = Refusal::Missing { ranks: server.missing(), limit };
            let refusal = server.refusal.clone().unwrap_or(missing);
            server.refuse(refusal.clone());
            return Err(refusal.into());
        };
        wait(listener, &server.guests, left.min(NEWS)).map_err(failed)?;
        while let Ok((stream, from)) = listener.accept() {
            server.admit(stream, from.ip().to_canonical());
        }
        server.hear();
        server.spread_news();
    }
}

/// Sleeps until somebody connects or speaks.
fn wait(listener: &TcpListener, guests: &[Guest], limit: Duration) -> io::Result<()> {
    let mut fds: Vec<_> = std::iter::once(listener.as_fd())
        .chain(guests.iter().map(|g| g.stream.as_fd()))
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Server<'_> {
    fn missing(&self) -> Vec<Rank> {
        let here = |rank: Rank| {
            rank == Rank(0)
                || self.guests.iter().any(|g| g.join.as_ref().is_some_and(|j| j.rank == rank))
        };
        (0_u32..).take(self.ranks).map(Rank).filter(|rank| !here(*rank)).collect()
    }

    fn admit(&mut self, stream: TcpStream, seen: IpAddr) {
        let ready = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_write_timeout(Some(WRITE)));
        if ready.is_ok() {
            self.guests.push(Guest { stream, inbound: Vec::new(), join: None, seen });
        }
    }

    /// Takes in what guests say; drops those that left or talk nonsense.
    fn hear(&mut self) {
        let mut i = 0;
        while i < self.guests.len() {
            let guest = &mut self.guests[i];
            let open = frame::fill(&guest.stream as &TcpStream, &mut guest.inbound);
            let spoke = if guest.join.is_none() {
                frame::decode::<Join>(&mut guest.inbound)
            } else {
                Ok(None)
            };
            match (open, spoke) {
                (Ok(true), Ok(None)) => i += 1,
                (Ok(true), Ok(Some(join))) if join.rank != Rank(0) => {
                    self.introduce(i, join);
                    i += 1;
                }
                (open, spoke) => {
                    tracing::debug!(?open, ?spoke, from = %guest.seen, "rendezvous guest dropped");
                    // A rank that left may come again; others are told that it is missing.
                    self.news = true;
                    self.guests.swap_remove(i);
                }
            }
        }
    }

    fn introduce(&mut self, i: usize, join: Join) {
        let rank = join.rank;
        let twin = self.guests.iter().filter_map(|g| g.join.as_ref()).find(|j| j.rank == rank);
        let refusal = self.own.differs(&join).or_else(|| {
            twin.map(|twin| Refusal::Twice {
                rank,
                a_host: twin.reach.host.name.clone(),
                b_host: join.reach.host.name.clone(),
            })
        });
        self.guests[i].join = Some(join);
        self.news = true;
        if let Some(refusal) = self.refusal.clone().or(refusal) {
            tracing::warn!(%refusal, "ranks do not match");
            self.refuse(refusal);
        } else {
            let missing = self.missing();
            let _ = self.guests[i].tell(&Answer::Waiting { missing });
        }
    }

    /// Tells everybody here; those still to come are told when they do.
    fn refuse(&mut self, refusal: Refusal) {
        for guest in &mut self.guests {
            let Some(join) = &guest.join else { continue };
            let rank = join.rank.index();
            if self.told.get(rank) == Some(&true) {
                continue;
            }
            let _ = guest.tell(&Answer::Refused(refusal.clone()));
            if let Some(told) = self.told.get_mut(rank) {
                *told = true;
            }
        }
        self.refusal = Some(refusal);
    }

    fn spread_news(&mut self) {
        if !std::mem::take(&mut self.news) || self.refusal.is_some() {
            return;
        }
        let missing = self.missing();
        for guest in self.guests.iter_mut().filter(|g| g.join.is_some()) {
            let _ = guest.tell(&Answer::Waiting { missing: missing.clone() });
        }
    }

    fn welcome(mut self) -> io::Result<Group> {
        let mut session = [0; 8];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut session)?;
        let session = u64::from_ne_bytes(session);
        let by_rank = |rank: Rank| {
            self.guests.iter().find_map(|g| Some((g, g.join.as_ref().filter(|j| j.rank == rank)?)))
        };
        let others = (1_u32..).take(self.ranks - 1).map(Rank);
        let members: Vec<_> = std::iter::once((self.own.reach.clone(), SeenAt::WithRankZero))
            .chain(others.clone().filter_map(by_rank).map(|(guest, join)| {
                let seen = if guest.seen.is_loopback() {
                    SeenAt::WithRankZero
                } else {
                    SeenAt::Address(guest.seen)
                };
                (join.reach.clone(), seen)
            }))
            .collect();
        let own = Member { reach: self.own.reach.clone(), address: [127, 0, 0, 1].into() };
        let as_seen_here = std::iter::once(own)
            .chain(
                others
                    .filter_map(by_rank)
                    .map(|(guest, join)| Member { reach: join.reach.clone(), address: guest.seen }),
            )
            .collect();
        for guest in &mut self.guests {
            // One that died in this moment is noticed by its peers when they connect.
            let _ = guest.tell(&Answer::Welcome { session, members: members.clone() });
        }
        Ok(Group { session, members: as_seen_here })
    }
}

impl Guest {
    fn tell(&mut self, answer: &Answer) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        frame::send(&self.stream, answer)?;
        self.stream.set_nonblocking(true)
    }
}
