//! Several TCP connections for one connection of the plan: messages take them in turn.
//!
//! ```text
//!   message 0 ──▶ socket 0        message 1 ──▶ socket 1        message 2 ──▶ socket 0        ...
//! ```
//!
//! What a network gives one flow may be less than what the NIC carries: routers that spread flows over paths keep one flow on one, and
//! clouds limit what a flow may take. Messages stay in order, for both ends know which socket the next one takes.

use super::tcp::{TcpReceive, TcpTransmit};
use super::{Interest, LinkError, Receive, Tag, Transmit};
use crate::memory::Slot;

/// Sending half; at least one socket.
#[derive(Debug)]
pub(crate) struct StripedTransmit {
    sockets: Vec<TcpTransmit>,
    /// Of the next message.
    next: usize,
    /// Of the oldest message that may not have left yet.
    oldest: usize,
}

impl StripedTransmit {
    pub(crate) const fn new(sockets: Vec<TcpTransmit>) -> Self {
        Self { sockets, next: 0, oldest: 0 }
    }

    /// Moves what is queued on any socket: the peer takes messages in order, so one that is left behind holds up all that follow.
    fn flush(&mut self) -> Result<bool, LinkError> {
        let mut flushed = true;
        for socket in &mut self.sockets {
            flushed &= socket.poll_flushed()?;
        }
        // Its socket is the one that the peer reads next, and so the one that can be written first.
        let count = self.sockets.len() as u64;
        let queued = self.sockets.iter().zip(0..).filter(|(socket, _)| socket.is_queued());
        let message = queued.map(|(socket, at)| socket.written() * count + at).min();
        let oldest = message.map(|message| usize::try_from(message % count));
        self.oldest = oldest.and_then(Result::ok).unwrap_or(self.next);
        Ok(flushed)
    }
}

impl Transmit for StripedTransmit {
    fn poll_slot(&mut self) -> Result<Option<Slot>, LinkError> {
        self.flush()?;
        self.sockets[self.next].poll_slot()
    }

    fn post(&mut self, tag: &Tag) -> Result<(), LinkError> {
        self.sockets[self.next].post(tag)?;
        self.next = (self.next + 1) % self.sockets.len();
        Ok(())
    }

    fn holds(&self, buffer: Slot) -> bool {
        self.sockets[self.next].holds(buffer)
    }

    fn lend(&mut self, data: Slot, lasts: bool) -> bool {
        self.sockets[self.next].lend(data, lasts)
    }

    fn is_queued(&self) -> bool {
        self.sockets.iter().any(TcpTransmit::is_queued)
    }

    fn poll_flushed(&mut self) -> Result<bool, LinkError> {
        self.flush()
    }

    fn interest(&self) -> Interest<'_> {
        self.sockets[self.oldest].interest()
    }

    fn moved(&self) -> u64 {
        self.sockets.iter().map(Transmit::moved).sum()
    }
}

/// Receiving half; at least one socket.
#[derive(Debug)]
pub(crate) struct StripedReceive {
    sockets: Vec<TcpReceive>,
    /// Of the next message.
    next: usize,
}

impl StripedReceive {
    pub(crate) const fn new(sockets: Vec<TcpReceive>) -> Self {
        Self { sockets, next: 0 }
    }
}

impl Receive for StripedReceive {
    fn land(&mut self, place: Slot) {
        self.sockets[self.next].land(place);
    }

    fn poll_message(&mut self, expected: &Tag) -> Result<Option<Slot>, LinkError> {
        self.sockets[self.next].poll_message(expected)
    }

    fn release(&mut self) {
        self.sockets[self.next].release();
        self.next = (self.next + 1) % self.sockets.len();
    }

    fn interest(&self) -> Interest<'_> {
        self.sockets[self.next].interest()
    }

    fn moved(&self) -> u64 {
        self.sockets.iter().map(Receive::moved).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::tcp::tests::{IDENTITY, streams, tag, wait};
    use crate::memory::{Aligned, copy};

    const SLOT_BYTES: usize = 1 << 18;

    fn halves(sockets: usize) -> (StripedTransmit, StripedReceive) {
        let (mut out, mut inward) = (Vec::new(), Vec::new());
        for _ in 0..sockets {
            let (to, from) = streams();
            out.push(TcpTransmit::new(to, IDENTITY, 2, SLOT_BYTES));
            inward.push(TcpReceive::new(from, IDENTITY, SLOT_BYTES));
        }
        (StripedTransmit::new(out), StripedReceive::new(inward))
    }

    /// Sends messages of these sizes as far as slots allow, and hears them all.
    #[track_caller]
    fn carries(sockets: usize, sizes: &[usize]) {
        let (mut transmit, mut receive) = halves(sockets);
        let mut memory = Aligned::new(SLOT_BYTES);
        let mut sent = 0;
        for (at, bytes) in sizes.iter().enumerate() {
            while let Some(next) = sizes.get(sent) {
                let Some(slot) = transmit.poll_slot().unwrap() else { break };
                memory.bytes_mut().fill(u8::try_from(sent).unwrap());
                copy(slot.part(0, *next), memory.slot(0, *next));
                transmit.post(&tag(sent as u64, u32::try_from(*next).unwrap())).unwrap();
                sent += 1;
            }
            let expected = tag(at as u64, u32::try_from(*bytes).unwrap());
            let message = wait(|| {
                transmit.poll_flushed()?;
                receive.poll_message(&expected)
            });
            copy(memory.slot(0, *bytes), message.unwrap());
            assert!(memory.bytes()[..*bytes].iter().all(|byte| usize::from(*byte) == at));
            receive.release();
        }
        assert!(wait(|| Ok(transmit.poll_flushed()?.then_some(()))).is_ok());
        assert_eq!(transmit.moved(), receive.moved());
    }

    #[test]
    fn messages_arrive_in_order_over_any_number_of_sockets() {
        for sockets in 1..=5 {
            carries(sockets, &[8, SLOT_BYTES, 0, 4000, SLOT_BYTES, SLOT_BYTES, 1, SLOT_BYTES, 77]);
        }
    }

    #[test]
    fn a_socket_that_is_closed_ends_the_connection() {
        let (mut transmit, mut receive) = halves(3);
        transmit.poll_slot().unwrap();
        transmit.post(&tag(0, 8)).unwrap();
        assert!(wait(|| receive.poll_message(&tag(0, 8))).is_ok());
        receive.release();
        drop(transmit.sockets.remove(1));
        let error = wait(|| receive.poll_message(&tag(1, 8))).unwrap_err();
        assert!(matches!(error, LinkError::Closed), "{error}");
    }
}
