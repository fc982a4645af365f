//! One connection of the plan over two sockets: short messages go over that of the connection the other way, long ones have their own.
//!
//! ```text
//!   there   short and long ──▶ socket 0          back   short ──▶ socket 0          long ──▶ socket 1
//! ```
//!
//! On a socket that both ends write, data carries the acknowledgement of what came; one that carries data one way alone takes a packet
//! for each. Between two ranks of one host an exchange of 8 bytes takes 6.1 us instead of 8.4, an all-reduce 6.3 instead of 8.1. But who
//! copies a long message into the kernel holds its socket, and what comes meanwhile has to wait: exchanges of 32 to 128 KiB took 1.1
//! to 1.3 times as long over one, those of 8 KiB nine tenths.
//!
//! Messages stay in order: both ends know where the next one goes, for they know how long it is. If they do not agree on that, it comes
//! over the other socket, where the receiver looks before it sleeps.

use super::tcp::{LONG, TcpReceive};
use super::{Interest, LinkError, Receive, Tag};
use crate::memory::Slot;

/// Polls in vain between two looks at the other socket.
const LOOK: u32 = 4096;

/// Receiving half of the connection back.
#[derive(Debug)]
pub(crate) struct PairedReceive {
    short: TcpReceive,
    long: TcpReceive,
    /// Messages that were released.
    received: u64,
    /// The message that is waited for.
    expected: Option<Tag>,
    /// Polls in vain since one was not.
    vain: u32,
    /// Whether the other socket holds a later message, so that it says nothing.
    ahead: bool,
}

impl PairedReceive {
    pub(crate) const fn new(short: TcpReceive, long: TcpReceive) -> Self {
        Self { short, long, received: 0, expected: None, vain: 0, ahead: false }
    }

    fn halves(&mut self, long: bool) -> (&mut TcpReceive, &mut TcpReceive) {
        if long { (&mut self.long, &mut self.short) } else { (&mut self.short, &mut self.long) }
    }

    /// Whether the next message came over the other socket, which is an error.
    fn look(&mut self, expected: &Tag) -> Result<(), LinkError> {
        let received = self.received;
        let (_, other) = self.halves(is_long(expected));
        let found = other.peek()?;
        self.ahead = found.is_some();
        match found {
            Some((sequence, theirs)) if sequence == received => {
                Err(LinkError::Mismatch { ours: *expected, theirs })
            }
            _ => Ok(()),
        }
    }
}

const fn is_long(tag: &Tag) -> bool {
    tag.bytes as usize >= LONG
}

impl Receive for PairedReceive {
    fn land(&mut self, place: Slot) {
        self.halves(place.bytes() >= LONG).0.land(place);
    }

    fn poll_message(&mut self, expected: &Tag) -> Result<Option<Slot>, LinkError> {
        let received = self.received;
        let (half, _) = self.halves(is_long(expected));
        half.expect(received);
        let found = half.poll_message(expected)?;
        self.expected = Some(*expected);
        if found.is_none() {
            self.vain = self.vain.wrapping_add(1);
            if self.vain.is_multiple_of(LOOK) {
                self.look(expected)?;
            }
        }
        Ok(found)
    }

    fn release(&mut self) {
        if let Some(expected) = self.expected.take() {
            self.halves(is_long(&expected)).0.release();
        }
        self.received += 1;
        self.vain = 0;
    }

    fn interest(&self) -> Interest<'_> {
        let long = self.expected.as_ref().is_some_and(is_long);
        let (half, other) =
            if long { (&self.long, &self.short) } else { (&self.short, &self.long) };
        match (half.descriptor(), other.descriptor()) {
            (half, _) if self.ahead => Interest::Readable(half),
            (half, other) => Interest::Either(half, other),
        }
    }

    fn arm(&mut self) -> bool {
        // What is wrong shows at the next poll, which looks again.
        let Some(expected) = self.expected else { return false };
        let wrong = self.look(&expected).is_err();
        if wrong {
            self.vain = LOOK - 1;
        }
        wrong
    }

    fn moved(&self) -> u64 {
        self.short.moved() + self.long.moved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Transmit;
    use crate::link::tcp::TcpTransmit;
    use crate::link::tcp::tests::{IDENTITY, streams, tag, wait};
    use crate::memory::{Aligned, copy};

    const MOST: usize = 3 * LONG;

    /// Both ends of the connection back.
    fn halves(slots: usize) -> (TcpTransmit, PairedReceive) {
        let ((out, inward), (long_out, long_inward)) = (streams(), streams());
        let transmit = TcpTransmit::new(long_out, IDENTITY, slots, MOST).with_short(out);
        let receive = |stream| TcpReceive::new(stream, IDENTITY, MOST);
        (transmit, PairedReceive::new(receive(inward), receive(long_inward)))
    }

    fn send(transmit: &mut TcpTransmit, number: u64, bytes: usize) -> bool {
        let Some(slot) = transmit.poll_slot().unwrap() else { return false };
        let mut data = Aligned::new(MOST);
        data.bytes_mut().fill(u8::try_from(number % 251).unwrap());
        copy(slot.part(0, bytes), data.slot(0, bytes));
        transmit.post(&tag(number, u32::try_from(bytes).unwrap())).unwrap();
        true
    }

    #[test]
    fn messages_of_all_lengths_stay_in_order() {
        let sizes = [8, LONG, LONG - 1, 0, MOST, MOST, 100, 200, LONG + 1, 4000, LONG, 1];
        for lands in [false, true] {
            let (mut transmit, mut receive) = halves(5);
            let (mut sent, mut memory) = (0, Aligned::new(MOST));
            for (at, bytes) in sizes.iter().enumerate() {
                while sent < sizes.len() && send(&mut transmit, sent as u64, sizes[sent]) {
                    sent += 1;
                }
                let expected = tag(at as u64, u32::try_from(*bytes).unwrap());
                let place = memory.slot(0, *bytes);
                let message = wait(|| {
                    transmit.poll_flushed()?;
                    if lands {
                        receive.land(place);
                    }
                    assert!(!receive.arm(), "nothing is wrong");
                    receive.poll_message(&expected)
                });
                copy(place, message.unwrap());
                assert!(memory.bytes()[..*bytes].iter().all(|byte| usize::from(*byte) == at));
                receive.release();
            }
            assert!(wait(|| Ok(transmit.poll_flushed()?.then_some(()))).is_ok());
            assert_eq!(transmit.moved(), receive.moved());
        }
    }

    /// A message of another length than is expected, after some that are right; whether the receiver sleeps or polls on.
    #[track_caller]
    fn differ(sent: usize, expected: usize, sleeps: bool) {
        let (mut transmit, mut receive) = halves(4);
        for number in 0..3 {
            assert!(send(&mut transmit, number, 8));
        }
        assert!(send(&mut transmit, 3, sent));
        for number in 0..3 {
            wait(|| receive.poll_message(&tag(number, 8))).unwrap();
            receive.release();
        }
        let expected = tag(3, u32::try_from(expected).unwrap());
        let error = wait(|| {
            transmit.poll_flushed()?;
            if sleeps {
                receive.arm();
            }
            receive.poll_message(&expected)
        });
        let error = error.unwrap_err();
        assert!(
            matches!(error, LinkError::Mismatch { theirs, .. } if theirs.bytes as usize == sent),
            "{error}"
        );
    }

    #[test]
    fn lengths_that_differ_are_named_over_either_socket() {
        for sleeps in [false, true] {
            differ(LONG, 8, sleeps);
            differ(8, LONG, sleeps);
            differ(16, 8, sleeps);
            differ(LONG + 64, LONG, sleeps);
        }
    }

    #[test]
    fn a_later_message_on_the_other_socket_keeps_nobody_awake() {
        let (mut transmit, mut receive) = halves(4);
        let expected = tag(0, 8);
        assert!(receive.poll_message(&expected).unwrap().is_none());
        assert!(!receive.arm());
        assert!(matches!(receive.interest(), Interest::Either(..)));
        assert!(send(&mut transmit, 0, 8) && send(&mut transmit, 1, LONG));
        wait(|| Ok(transmit.poll_flushed()?.then_some(()))).unwrap();
        // It comes when it comes.
        let seen = wait(|| {
            assert!(!receive.arm(), "the next message is the short one");
            Ok(receive.ahead.then_some(()))
        });
        seen.unwrap();
        assert!(matches!(receive.interest(), Interest::Readable(_)));
        wait(|| receive.poll_message(&expected)).unwrap();
        receive.release();
        let long = tag(1, u32::try_from(LONG).unwrap());
        assert_eq!(wait(|| receive.poll_message(&long)).unwrap().bytes(), LONG);
    }
}
