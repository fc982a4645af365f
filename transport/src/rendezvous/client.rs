//! Every rank but 0: find rank 0, join, wait for its word.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use topology::Rank;

use super::{Answer, Group, Join, Member, SeenAt};
use crate::error::{ConnectError, Refusal};
use crate::frame::{self, remaining};

/// Longest wait for one address to answer, so that the next is tried.
const ATTEMPT: Duration = Duration::from_secs(3);

/// `candidates` are where rank 0 may be now, `place` says so in words.
pub(super) fn join(
    candidates: impl Fn() -> io::Result<Vec<SocketAddr>>,
    place: &dyn fmt::Display,
    own: &Join,
    deadline: Instant,
    limit: Duration,
) -> Result<Group, ConnectError> {
    let mut missing: Option<Vec<Rank>> = None;
    let mut cause = String::from("no answer");
    let mut pause = Duration::from_millis(2);
    while let Some(left) = remaining(deadline) {
        let addresses = candidates().unwrap_or_else(|error| {
            cause = error.to_string();
            Vec::new()
        });
        for address in addresses {
            let Some(left) = remaining(deadline) else { break };
            match attempt(address, own, left, deadline, &mut missing) {
                Ok(Answer::Welcome { session, members }) => {
                    let members = members
                        .into_iter()
                        .map(|(reach, seen)| Member {
                            reach,
                            address: match seen {
                                SeenAt::Address(ip) => ip,
                                SeenAt::WithRankZero => address.ip(),
                            },
                        })
                        .collect();
                    return Ok(Group { session, members });
                }
                Ok(Answer::Refused(refusal)) => return Err(refusal.into()),
                Ok(Answer::Waiting { .. }) => {}
                Err(error) => cause = format!("{address}: {error}"),
            }
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(200));
    }
    match missing {
        Some(ranks) if !ranks.is_empty() => Err(Refusal::Missing { ranks, limit }.into()),
        _ => Err(ConnectError::NoRankZero { place: place.to_string(), limit, cause }),
    }
}

/// One try at one address, up to the final word.
fn attempt(
    address: SocketAddr,
    own: &Join,
    left: Duration,
    deadline: Instant,
    missing: &mut Option<Vec<Rank>>,
) -> io::Result<Answer> {
    let stream = TcpStream::connect_timeout(&address, left.min(ATTEMPT))?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(left))?;
    frame::send(&stream, own)?;
    loop {
        let left = remaining(deadline).ok_or(io::ErrorKind::TimedOut)?;
        stream.set_read_timeout(Some(left))?;
        match frame::receive(&stream)? {
            Answer::Waiting { missing: now } => *missing = Some(now),
            word => return Ok(word),
        }
    }
}
