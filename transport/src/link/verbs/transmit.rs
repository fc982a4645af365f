//! The sending half.

use std::sync::Arc;

use super::ffi::{Lent, Write};
use super::line::{Done, Line, place, write_id};
use super::registry::{self, Piece};
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
        let Self { line, posted, consumed, completed, held, .. } = self;
        let any = line.poll(|line, done| match done {
            Done::Written { pair, upto } => {
                if let Some(completed) = completed.get_mut(pair) {
                    *completed = upto.max(*completed);
                }
            }
            Done::Arrived { pair, immediate } => {
                match credited(*posted, *consumed, immediate) {
                    Some(now) => *consumed = now,
                    None => line.corrupt("count of messages consumed", *consumed + 1, immediate),
                }
                line.receive_again(pair);
            }
        });
        if any {
            held.retain(|(pair, upto, _)| completed[*pair] < *upto);
        }
        any
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

/// Messages consumed after a credit that brought the lower half of their number; `None` where that cannot be.
fn credited(posted: u64, consumed: u64, immediate: u32) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is what goes along")]
    let more = immediate.wrapping_sub(consumed as u32);
    let now = consumed + u64::from(more);
    (more > 0 && now <= posted).then_some(now)
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
        registry::count(lent.is_some());
        // Of what is lent the header alone comes from the slot.
        let here = if lent.is_some() { HEADER } else { bytes };
        let upto = self.sent[pair] + 1;
        // Half of what a pair has in flight at most is complete before the window closes.
        let every = (self.slots / (2 * self.sent.len())).max(1) as u64;
        // What is lent is given back as soon as it can be.
        let signalled =
            lent.is_some() || self.completed[pair] + 1 == upto || upto.is_multiple_of(every);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what goes along")]
        let number = message as u32;
        let (address, rkey) = self.line.remote;
        let whole = Write {
            id: write_id(pair, upto),
            signalled,
            inline: lent.is_none() && bytes <= self.line.pairs[pair].most_inline,
            immediate: Some(number),
            // Slots are checked to be below 4 GiB.
            from: Some((start, u32::try_from(here).unwrap_or(u32::MAX))),
            lent,
            to: address + start as u64,
            rkey,
        };
        if self.adaptive && bytes > ANNOUNCED {
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
                let (to, rkey) = self.line.remote;
                let id = write_id(pair, upto);
                let nothing = Write {
                    id,
                    signalled: true,
                    inline: false,
                    immediate: None,
                    from: None,
                    lent: None,
                    to,
                    rkey,
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
        assert_eq!(credited(4, 2, 2), None);
        assert_eq!(credited(4, 2, 1), None);
        let most = u64::from(u32::MAX);
        assert_eq!(credited(most + 3, most, 1), Some(most + 2));
        assert_eq!(credited(most + 3, most, 3), None);
    }
}
