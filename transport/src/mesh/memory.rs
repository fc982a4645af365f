//! Passing memory and doorbells between ranks, and finding out what ranks may do in each other's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use topology::Rank;

use super::{Between, STRANGER, invalid};
use crate::arena::{self, Arena, Unanswered};
use crate::communicator::Options;
use crate::control::{Control, Notice, Stream};
use crate::error::{ConnectError, Failure};
use crate::frame::remaining;

/// Whether ranks may read each other's memory. The first thing that is done with all ranks of the group, and so where it shows
/// that one ended while it was set up: whoever sees it tells the others.
pub(super) fn explore(
    arena: &Arena,
    control: &mut Control,
    own: Rank,
    options: &Options,
    deadline: Instant,
) -> Result<bool, ConnectError> {
    let left = remaining(deadline).unwrap_or(STRANGER);
    let found = arena::probe(arena, options.cross_memory, left, || {
        control.listen().map_or(Ok(()), |notice| Err(Box::new(notice)))
    });
    let (culprit, cause) = match found {
        Ok(crosses) => return Ok(crosses),
        Err(Unanswered::Stopped(notice)) => match *notice {
            Notice::Told(failure) => (failure.culprit().clone(), failure.to_string()),
            Notice::Lost { culprit, cause } => (culprit, cause),
        },
        Err(Unanswered::Silent(rank)) => {
            let rank = Rank(u32::try_from(rank).unwrap_or(u32::MAX));
            (control.culprit(rank), "it says nothing".to_owned())
        }
    };
    control.fail(&Failure::PeerLost {
        culprit: culprit.clone(),
        cause: cause.clone(),
        step: None,
        reported_by: own,
    });
    Err(ConnectError::Peer { peer: culprit, source: io::Error::other(cause) })
}

/// Rank 0 makes the group's memory and passes it to everybody; `None` on every rank where it cannot.
pub(super) fn share(
    own: Rank,
    layout: arena::Layout,
    peers: &BTreeMap<Rank, Between>,
    deadline: Instant,
) -> Result<Option<Arena>, ConnectError> {
    let local = |source| ConnectError::Local { what: "share memory with the group", source };
    if own == Rank(0) {
        let made = Arena::create(layout);
        if let Err(error) = &made {
            tracing::warn!(%error, "the group shares no memory; operations run along the plan's channels");
        }
        for between in peers.values() {
            let Some(Stream::Unix(stream)) = &between.control else { continue };
            let fds: Vec<_> = made.iter().map(|arena| arena.file().as_fd()).collect();
            // To a rank that has just ended nothing can be passed; its end is noticed, and told, by what follows.
            if let Err(error) = pass(stream, &fds) {
                tracing::debug!(%error, peer = %between.culprit, "no memory passed");
            }
        }
        return Ok(made.ok());
    }
    let Some((between, Stream::Unix(stream))) =
        peers.get(&Rank(0)).and_then(|b| b.control.as_ref().map(|control| (b, control)))
    else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(remaining(deadline).unwrap_or(STRANGER))).map_err(local)?;
    match passed_any(stream).map_err(|error| between.failed(error))?.pop() {
        Some(file) => Arena::open(layout, File::from(file), own.index()).map(Some).map_err(local),
        None => Ok(None),
    }
}

/// Sends descriptors, with the one byte that must go along.
pub(super) fn pass(stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(invalid("too many descriptors to pass"));
    }
    sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives exactly `N` descriptors.
pub(super) fn passed<const N: usize>(stream: &UnixStream) -> io::Result<[OwnedFd; N]> {
    <[OwnedFd; N]>::try_from(passed_any(stream)?)
        .map_err(|_| invalid("not the descriptors expected"))
}

/// Receives the descriptors of one message.
fn passed_any(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let got =
        recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(fds)
}
