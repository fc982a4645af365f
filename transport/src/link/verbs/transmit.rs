//! The sending half.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::ffi::{Lent, To, Write};
use super::line::{Done, Line, place, write_id};
use super::places::{self, Target};
use super::receive::number;
use super::registry::{Piece, SENT, WORTH_LENDING};
use crate::link::header::{HEADER, Identity, encode};
use crate::link::{Fault, Interest, LinkError, Tag, Transmit};
use crate::memory::Slot;

/// Messages longer than this are announced by one of their own where routing is adaptive (NCCL's threshold).
const ANNOUNCED: usize = 8192;

/// Sending half.
#[derive(Debug)]
pub(crate) struct VerbsTransmit {
    line: Line,
    identity: Identity,
    slots: usize,
    slot_bytes: usize,
    adaptive: bool,
    posted: u64,
    /// Messages whose slots the receiver has given back.
    consumed: u64,
    /// Where messages to come may be written, in their order.
    targets: VecDeque<Target>,
    /// Data of the next message, where it is not copied.
    lent: Option<(Lent, Arc<Piece>)>,
    /// Buffers with the pair and the number of a message sent from them. A receiver may have consumed it and its NIC's acknowledgement be
    /// lost: the operation is over then, and this NIC sends again from memory that must still be there. (The receiver's passes over it.)
    held: Vec<(usize, u64, Arc<Piece>)>,
    /// Of each pair: messages posted, how many of them the last signalled write covers, and how many are complete.
    sent: Vec<u64>,
    signalled: Vec<u64>,
    completed: Vec<u64>,
}

impl VerbsTransmit {
    /// By a line that is connected.
    pub(super) fn new(
        line: Line,
        identity: Identity,
        slots: usize,
        slot_bytes: usize,
        adaptive: bool,
    ) -> Self {
        let (sent, signalled, completed) =
            (vec![0; line.pairs.len()], vec![0; line.pairs.len()], vec![0; line.pairs.len()]);
        let (posted, consumed) = (0, 0);
        Self {
            line,
            identity,
            slots,
            slot_bytes,
            adaptive,
            posted,
            consumed,
            targets: VecDeque::new(),
            lent: None,
            held: Vec::new(),
            sent,
            signalled,
            completed,
        }
    }

    fn start(&self, message: u64) -> usize {
        place(message, self.slots, self.slot_bytes)
    }

    fn pair(&self, message: u64) -> usize {
        usize::try_from(message % self.sent.len() as u64).unwrap_or(0)
    }

    /// Whether the slot of the next message is free at both ends.
    fn is_free(&self) -> bool {
        let slots = self.slots as u64;
        if self.posted - self.consumed == slots {
            return false;
        }
        self.posted
            .checked_sub(slots)
            .is_none_or(|last| self.completed[self.pair(last)] > last / self.sent.len() as u64)
    }

    fn poll(&mut self) -> bool {
        let Self { line, posted, consumed, targets, completed, held, .. } = self;
        let any = line.poll(|line, done| match done {
            Done::Written { pair, upto } => {
                if let Some(completed) = completed.get_mut(pair) {
                    *completed = upto.max(*completed);
                }
            }
            Done::Arrived { receive, immediate, letter } => {
                if let Some(bytes) = letter {
                    let told = line.read(receive, bytes).and_then(places::read);
                    if told.map(|told| targets.extend(told)).is_none() {
                        line.corrupt("what came with a letter", 0, immediate);
                    }
                }
                match credited(*posted, *consumed, immediate) {
                    Some(now) => *consumed = now,
                    None => line.corrupt("count of messages consumed", *consumed, immediate),
                }
                line.receive_again(receive, true);
            }
        });
        if any {
            held.retain(|(pair, upto, _)| completed[*pair] < *upto);
        }
        any
    }

    /// The place offered for a message of so many bytes, where there is one. Those of messages before have no use any more.
    fn target(&mut self, message: u64, bytes: u32) -> Option<Target> {
        while self.targets.pop_front_if(|target| target.message < message).is_some() {}
        // Where the two ends are at odds about the message, it goes through the slot, and that is found there.
        self.targets.pop_front_if(|target| (target.message, target.bytes) == (message, bytes))
    }

    /// Whether a place was offered for the next message.
    fn is_placed(&self) -> bool {
        self.targets.iter().any(|target| target.message == self.posted)
    }

    /// Nothing follows what has failed: the peer would take an announcement, or the next message, for what did not come.
    fn write(&mut self, pair: usize, write: &Write) {
        if self.line.failed.is_some() {
            return;
        }
        let result = self.line.pairs[pair].post_write(&self.line.region, write);
        self.line.posted(result);
    }
}

/// Messages consumed after a credit that brought the lower half of their number, or as many as before after a letter; `None` where that
/// cannot be.
fn credited(posted: u64, consumed: u64, immediate: u32) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is what goes along")]
    let more = immediate.wrapping_sub(consumed as u32);
    let now = consumed + u64::from(more);
    (now <= posted).then_some(now)
}

impl Transmit for VerbsTransmit {
    fn poll_slot(&mut self) -> Result<Option<Slot>, LinkError> {
        if !self.is_free() {
            self.poll();
            if !self.is_free() {
                self.line.check()?;
                return Ok(None);
            }
        }
        Ok(Some(self.line.region.slot(self.start(self.posted) + HEADER, self.slot_bytes)))
    }

    fn post(&mut self, tag: &Tag) -> Result<(), LinkError> {
        let message = self.posted;
        let (start, pair) = (self.start(message), self.pair(message));
        let header = encode(&self.identity, message, tag);
        self.line.region.bytes_mut()[start..start + HEADER].copy_from_slice(&header);
        let bytes = HEADER + tag.bytes as usize;
        let (lent, piece) = self.lent.take().unzip();
        SENT.add(lent.is_some());
        if tag.bytes as usize >= WORTH_LENDING && self.targets.is_empty() {
            // A place may have come, though no credit was needed.
            self.poll();
        }
        let target = self.target(message, tag.bytes);
        let upto = self.sent[pair] + 1;
        // Half of what a pair has in flight at most is complete before the window closes.
        let every = (self.slots / (2 * self.sent.len())).max(1) as u64;
        // What is lent is given back as soon as it can be.
        let signalled =
            lent.is_some() || self.completed[pair] + 1 == upto || upto.is_multiple_of(every);
        let (address, key) = self.line.remote;
        let to = To::Memory { address: address + start as u64, key };
        // Slots are checked to be below 4 GiB.
        let from = |start, bytes| Some((start, u32::try_from(bytes).unwrap_or(u32::MAX)));
        // Of what is lent, or lands elsewhere, the header alone comes from the slot.
        let here = if lent.is_some() || target.is_some() { HEADER } else { bytes };
        let most_inline = self.line.pairs[pair].most_inline;
        let whole = Write {
            id: write_id(pair, upto),
            signalled,
            inline: (lent.is_none() || target.is_some()) && here <= most_inline,
            immediate: Some(number(message, target.is_some())),
            from: from(start, here),
            lent,
            to,
        };
        if let Some(Target { address, key, .. }) = target {
            let data = match lent {
                Some(_) => None,
                None => from(start + HEADER, tag.bytes as usize),
            };
            let to = To::Memory { address, key };
            let (signalled, inline, immediate) = (false, false, None);
            self.write(pair, &Write { signalled, inline, immediate, from: data, to, ..whole });
            self.write(pair, &Write { lent: None, ..whole });
        } else if self.adaptive && bytes > ANNOUNCED {
            self.write(pair, &Write { signalled: false, immediate: None, ..whole });
            self.write(pair, &Write { from: None, lent: None, inline: false, ..whole });
        } else {
            self.write(pair, &whole);
        }
        self.held.extend(piece.map(|piece| (pair, upto, piece)));
        self.sent[pair] = upto;
        if signalled {
            self.signalled[pair] = upto;
        }
        self.posted += 1;
        // A failure shows when something is waited for.
        Ok(())
    }

    fn holds(&self, data: Slot) -> bool {
        self.line.holds(data)
    }

    fn lend(&mut self, data: Slot, lasts: bool) -> bool {
        self.lent = if lasts { self.line.lend(data) } else { None };
        self.lent.is_some()
    }

    fn register(&mut self, memory: Slot) -> Result<(), String> {
        self.line.register(memory)
    }

    fn has_place(&mut self) -> Result<bool, LinkError> {
        if !self.is_placed() {
            self.poll();
        }
        if !self.is_placed() {
            self.line.check()?;
            return Ok(false);
        }
        Ok(true)
    }

    fn is_queued(&self) -> bool {
        // The NIC has it.
        false
    }

    fn poll_flushed(&mut self) -> Result<bool, LinkError> {
        if self.completed != self.sent {
            self.poll();
        }
        if self.completed == self.sent || self.consumed == self.posted {
            return Ok(true);
        }
        self.line.check()?;
        for pair in 0..self.sent.len() {
            let upto = self.sent[pair];
            if self.signalled[pair] < upto {
                let (address, key) = self.line.remote;
                let nothing = Write {
                    id: write_id(pair, upto),
                    signalled: true,
                    inline: false,
                    immediate: None,
                    from: None,
                    lent: None,
                    to: To::Memory { address, key },
                };
                self.write(pair, &nothing);
                self.signalled[pair] = upto;
            }
        }
        Ok(false)
    }

    fn interest(&self) -> Interest<'_> {
        self.line.interest()
    }

    fn arm(&mut self) -> bool {
        let failed = self.line.failed.is_some();
        self.line.arm();
        // A failure of before has been seen.
        self.poll() || self.line.failed.is_some() != failed
    }

    fn check(&mut self) -> Result<(), LinkError> {
        if self.completed == self.sent {
            return Ok(());
        }
        self.poll();
        if self.completed == self.sent || self.consumed == self.posted {
            return Ok(());
        }
        self.line.check()
    }

    fn close(&mut self) {
        self.line.close(0, Duration::ZERO);
    }

    fn provoke(&mut self, fault: Fault) {
        match fault {
            Fault::WrongKey => self.line.remote.1 = !self.line.remote.1,
            Fault::Flush => {
                for pair in &self.line.pairs {
                    if let Err(error) = pair.fail() {
                        tracing::warn!(target: "topod::net", %error, "cannot fail a queue pair");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_count_on_across_the_lower_half() {
        assert_eq!(credited(4, 0, 1), Some(1));
        assert_eq!(credited(4, 0, 4), Some(4));
        assert_eq!(credited(4, 0, 5), None);
        assert_eq!(credited(4, 2, 2), Some(2));
        assert_eq!(credited(4, 2, 1), None);
        let most = u64::from(u32::MAX);
        assert_eq!(credited(most + 3, most, 1), Some(most + 2));
        assert_eq!(credited(most + 3, most, 3), None);
    }
}
