//! Which protocol an operation goes by, and the launch that does it where that is one of messages with flags.

use std::sync::Arc;

use topology::Protocol;

use super::{Communicator, KEPT_PROGRAMS, ProgramKey};
use crate::call::Call;
use crate::error::CudaError;
use crate::executor::{Launch, Places};
use crate::ffi::Address;
use crate::flagged;
use crate::program::Compiled;
use crate::wire::in_word;

impl Communicator {
    /// The program of an operation, by the protocol that suits it; every rank comes to the same.
    pub(super) fn chosen(
        &mut self,
        key: &mut ProgramKey,
    ) -> Result<(Arc<Compiled>, Protocol), CudaError> {
        let bytes = key.count.saturating_mul(key.element_bytes);
        let sizes = [bytes, self.options.flagged_bytes];
        let [bytes, data] = sizes.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
        let (protocol, mut why) =
            self.asked.choose(&self.plan, &self.usable, key.collective, (bytes, data));
        if protocol != Protocol::Simple {
            key.protocol = protocol;
            if let Some(known) = self.unfit.get(key) {
                why = Some(known.clone());
            } else {
                match self.program(key.clone())? {
                    Ok(program) => return Ok((program, protocol)),
                    Err(unfit) => {
                        let words = format!("{protocol} is not used: {unfit}");
                        if self.unfit.len() >= KEPT_PROGRAMS {
                            self.unfit.clear();
                        }
                        self.unfit.insert(key.clone(), words.clone());
                        why = Some(words);
                    }
                }
            }
            key.protocol = Protocol::Simple;
        }
        if let Some(why) = why {
            tracing::debug!(collective = %key.collective, bytes, why, "by copies");
            *self.by_copies.entry(why).or_default() += 1;
        }
        match self.program(key.clone())? {
            Ok(program) => Ok((program, Protocol::Simple)),
            Err(unfit) => unreachable!("copies fit always: {unfit}"),
        }
    }

    /// The launch of a program whose messages have flags, which have their numbers from here on; `None` for copies.
    pub(super) fn launch(
        &mut self,
        program: &Compiled,
        protocol: Protocol,
        call: &Call,
        places: Places,
        (divide, turn): (Option<(Address, usize, usize)>, u64),
    ) -> Result<Option<Launch>, CudaError> {
        let (Some(encoded), Some(at)) = (&program.flagged, flagged::place(protocol)) else {
            return Ok(None);
        };
        let kernels = self.kernels.as_ref().map_err(|why| CudaError::Kernels(why.clone()))?;
        let function = kernels.flagged(protocol, call.element);
        let missing = || CudaError::Kernels(format!("none for {protocol}"));
        let function = function.ok_or_else(missing)?;
        let mut lanes = [flagged::Ends::default(); flagged::LANES];
        let mut next = vec![flagged::Next::default(); program.lanes.len()];
        for (l, lane) in program.lanes.iter().enumerate() {
            let (received, sent) = encoded.messages(l);
            let (ends, next) = (&mut lanes[l], &mut next[l]);
            if let Some(wire) = lane.receive.map(|at| &mut self.wires.receive[at])
                && let Some(flagged) = &mut wire.flagged
            {
                let flagged = &mut flagged[at];
                (ends.receive, ends.credit_given) = (flagged.slots, flagged.credit);
                ends.consumed = wire.consumed.address;
                (next.received, next.consumed) = (flagged.next, in_word(wire.next));
                flagged.next += received;
                wire.next += received;
            }
            if let Some(wire) = lane.transmit.map(|at| &mut self.wires.transmit[at])
                && let Some(flagged) = &mut wire.flagged
            {
                let flagged = &mut flagged[at];
                (ends.send, ends.credit_taken) = (flagged.slots, flagged.credit);
                ends.posted = wire.posted.address;
                (next.sent, next.posted) = (flagged.next, in_word(wire.next));
                flagged.next += sent;
                wire.next += sent;
            }
        }
        let own = self.own_places.unwrap_or(0)
            + Address::from(self.priority) * flagged::OWN_BYTES as Address;
        let member = self.members.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let places = flagged::Places {
            buffers: [places.input, places.output, places.scratch],
            abort: self.segment.abort_address(member),
            progress: own,
            finished: own + flagged::FINISHED as Address,
            divided: divide.map_or(0, |(address, ..)| address),
            lanes,
        };
        let numbers = flagged::Numbers {
            op: call.op,
            divide: divide.map(|(_, bytes, ranks)| (bytes / call.element.bytes(), ranks)),
            slots: self.options.slots,
            data: self.options.flagged_bytes,
            // Steps of a turn are counted from it on: the first is not nought.
            turn: turn + 1,
        };
        let program = encoded.filled(&numbers, &next);
        Ok(Some(Launch { function, lanes: encoded.lanes(), places, program }))
    }
}
