//! The queue pairs of verbs links, agreed over the control stream of each pair of ranks.
//!
//! The upper rank offers its ends with its hello; the lower connects its own, answers, and has them receive by then; the upper
//! connects in turn and says that it is ready. Nobody sends before its peer receives: what came too early would be sent again only
//! after the NIC's time limit.

use std::io;
use std::net::TcpStream;
use std::time::Instant;

use super::{Between, Here, invalid};
use crate::control::Stream;
use crate::frame::{self, remaining};
use crate::link::LinkKind;
use crate::link::verbs::{Answer, End, Offer};
use crate::schedule::{ConnectionId, rails};

/// Begins what is said after the answers.
const READY: &str = "ready";

fn ends(here: &Here<'_>, between: &Between) -> io::Result<Vec<End>> {
    let Some(nics) = here.nics else { return Err(invalid("verbs without NICs")) };
    let end = |id: ConnectionId| {
        let named = rails::nic(here.plan, here.own, id);
        End::new(nics, id, named, id.from == here.own, here.options)
    };
    between.connections.iter().copied().map(end).collect()
}

/// What the other rank says of why it cannot.
fn refuses(why: &str) -> io::Error {
    io::Error::other(format!("it refuses: {why}"))
}

/// The upper rank's first part; what it cannot make, the peer is told, too.
pub(super) fn offer(here: &Here<'_>, between: &mut Between, stream: &TcpStream) -> io::Result<()> {
    if between.connections.is_empty() {
        return Ok(());
    }
    let made = ends(here, between);
    let offers: Result<Vec<Offer>, String> = match &made {
        Ok(ends) => Ok(ends.iter().map(End::offer).collect()),
        Err(error) => Err(error.to_string()),
    };
    let told = frame::send(stream, &offers);
    between.ends = made?;
    told
}

/// The lower rank's part; what it refuses, the peer is told, too.
pub(super) fn take(here: &Here<'_>, between: &mut Between, stream: &TcpStream) -> io::Result<()> {
    if between.connections.is_empty() {
        return Ok(());
    }
    let offers: Result<Vec<Offer>, String> = frame::receive(stream)?;
    let offers = offers.map_err(|why| refuses(&why))?;
    let accepted = (|| {
        let mut ends = ends(here, between)?;
        if offers.len() != ends.len() {
            return Err(invalid("offers for another number of connections"));
        }
        let answers = ends.iter_mut().zip(&offers).map(|(end, offer)| end.accept(offer));
        let answers = answers.collect::<io::Result<Vec<Answer>>>()?;
        Ok((ends, answers))
    })();
    match accepted {
        Ok((ends, answers)) => {
            between.ends = ends;
            frame::send(stream, &Ok::<_, String>(answers))
        }
        Err(error) => {
            frame::send(stream, &Err::<Vec<Answer>, _>(error.to_string()))?;
            Err(error)
        }
    }
}

/// The control stream of a peer with whom there are verbs links.
fn stream(between: &Between, deadline: Instant) -> io::Result<Option<&TcpStream>> {
    let (true, Some(Stream::Tcp(stream))) =
        (between.culprit.link == LinkKind::Verbs && !between.ends.is_empty(), &between.control)
    else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(remaining(deadline).ok_or(io::ErrorKind::TimedOut)?))?;
    Ok(Some(stream))
}

/// The upper rank's second part.
pub(super) fn complete(between: &mut Between, deadline: Instant) -> io::Result<()> {
    let Some(stream) = stream(between, deadline)? else { return Ok(()) };
    let answers: Result<Vec<Answer>, String> = frame::receive(stream)?;
    let answers = answers.map_err(|why| refuses(&why))?;
    if answers.len() != between.ends.len() {
        return Err(invalid("answers for another number of connections"));
    }
    for (end, answer) in between.ends.iter_mut().zip(&answers) {
        end.complete(answer)?;
    }
    let Some(Stream::Tcp(stream)) = &between.control else { return Ok(()) };
    frame::send(stream, &READY)
}

/// The lower rank's last part.
pub(super) fn await_ready(between: &mut Between, deadline: Instant) -> io::Result<()> {
    let Some(stream) = stream(between, deadline)? else { return Ok(()) };
    let word: String = frame::receive(stream)?;
    if word == READY { Ok(()) } else { Err(invalid("something else than that it is ready")) }
}
