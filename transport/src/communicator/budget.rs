//! What a group may take of its host's memory, beside its callers' own buffers.
//!
//! What an operation will need is known before it starts, and it is the same on every rank: so a rank that is refused is not waited
//! for by the others.

use std::time::Duration;

use topology::Plan;

use super::{Communicator, Options, Transport};
use crate::arena;
use crate::error::{ConnectError, TransportError};
use crate::link::shm;
use crate::pace::span_ns;
use crate::schedule::{MIN_SLOTS, connections_of_all};
use crate::shared::scratch_bytes;

/// Connections of the rank that has most.
fn most_connections(plan: &Plan, options: &Options) -> usize {
    let mut of_rank = vec![0_usize; plan.ranks.len()];
    for connection in connections_of_all(plan, &options.collectives, options.priorities) {
        for end in [connection.from, connection.to] {
            if let Some(count) = of_rank.get_mut(end.index()) {
                *count += 1;
            }
        }
    }
    of_rank.into_iter().max().unwrap_or(0)
}

/// Memory that a group needs, in bytes: of the rank that needs most.
pub(super) fn fixed(plan: &Plan, options: &Options) -> usize {
    let ranks = plan.ranks.len();
    let slots = options.slots().max(MIN_SLOTS * options.sockets as usize);
    let connection = match options.transport {
        // A slot with its header, and a page for where a connection's slots begin.
        Transport::Tcp | Transport::Verbs => {
            slots.saturating_mul(options.slot_bytes() + 64).saturating_add(4096)
        }
        Transport::Auto | Transport::Shm => {
            shm::Layout::connection_bytes(slots, options.slot_bytes())
        }
    };
    let links = most_connections(plan, options).saturating_mul(connection);
    links.saturating_add(arena::fixed_bytes(ranks)).saturating_add(scratch_bytes(ranks))
}

/// Refuses a group that would not fit, before anybody is met.
pub(super) fn check(plan: &Plan, options: &Options) -> Result<(), ConnectError> {
    let (needed, budget) = (fixed(plan, options), options.memory_bytes);
    if needed > budget {
        return Err(ConnectError::Budget { needed, budget });
    }
    // A peer waits while each of this rank's connections has its turn, and must not take that for silence.
    if let Some(rate) = options.bandwidth {
        let bytes = most_connections(plan, options).saturating_mul(options.slot_bytes());
        let turn = Duration::from_nanos(span_ns(bytes as u64, rate));
        if turn > options.timeout / 4 {
            return Err(ConnectError::Options(
                "at this bandwidth a message over each connection takes longer than a quarter of the time limit: \
                 take smaller slots or a longer limit",
            ));
        }
    }
    Ok(())
}

impl Communicator {
    /// Refuses an operation whose scratch memory would not fit beside what the group has.
    pub(super) fn afford(&self, scratch: usize) -> Result<(), TransportError> {
        let (needed, budget) =
            (self.fixed_bytes.saturating_add(scratch), self.options.memory_bytes);
        if scratch > 0 && needed > budget {
            return Err(TransportError::Budget { needed, budget });
        }
        Ok(())
    }

    /// Bytes that registered buffers of this rank may take in all.
    pub(super) fn heap_limit(&self) -> usize {
        self.options.heap_bytes.min(self.options.memory_bytes.saturating_sub(self.fixed_bytes))
    }
}
