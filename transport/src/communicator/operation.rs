//! What an operation is while it is on its way.

use std::any::Any;
use std::time::{Duration, Instant};

use topology::schedule::Blocks;
use topology::{Collective, Rank};

use super::Stats;
use crate::control::Doing;
use crate::error::StepName;
use crate::executor::{Links, Operation};
use crate::kernel::Kernel;
use crate::memory::{Aligned, Slot};
use crate::shared::{Direct, Flat, Work};

/// What makes two operations run the same program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProgramKey {
    pub(super) collective: Collective,
    /// The sender for send-receive.
    pub(super) root: Option<Rank>,
    pub(super) receiver: Option<Rank>,
    pub(super) count: usize,
    pub(super) element_bytes: usize,
    pub(super) blocks: Option<Blocks>,
    pub(super) priority: u32,
}

/// An operation to start. The slots stay valid until it has finished or failed.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) collective: Collective,
    /// The sender for send-receive.
    pub(super) root: Option<Rank>,
    pub(super) receiver: Option<Rank>,
    /// As in [`topology::schedule::Schedule::count`].
    pub(super) count: usize,
    pub(super) blocks: Option<Blocks>,
    pub(super) kernel: Kernel,
    pub(super) input: Slot,
    pub(super) output: Slot,
    /// What is left to finish on this rank once everything has arrived.
    pub(super) result: Option<Slot>,
    /// As [`Operation::placed`].
    pub(super) placed: bool,
}

impl Request {
    pub(super) fn key(&self, priority: u32) -> ProgramKey {
        ProgramKey {
            priority,
            collective: self.collective,
            root: self.root,
            receiver: self.receiver,
            count: self.count,
            element_bytes: self.kernel.element_bytes(),
            blocks: self.blocks.clone(),
        }
    }

    pub(super) fn new(
        collective: Collective,
        count: usize,
        kernel: Kernel,
        input: Slot,
        output: Slot,
    ) -> Self {
        let (root, receiver, blocks, result, placed) = (None, None, None, None, false);
        Self { collective, root, receiver, count, blocks, kernel, input, output, result, placed }
    }
}

/// Buffers that an operation in flight owns.
pub(super) type Owned = Box<dyn Any + Send>;

/// How an operation is done.
pub(super) enum Task {
    Plan { operation: Operation, scratch: Aligned, channels: usize, steps: usize },
    Flat(Flat),
    Direct(Direct),
}

/// An operation in flight.
pub(super) struct Active {
    pub(super) ticket: u64,
    pub(super) priority: u32,
    pub(super) task: Task,
    pub(super) work: Work,
    pub(super) result: Option<Slot>,
    pub(super) owned: Option<Owned>,
    pub(super) start: Option<Instant>,
    /// What [`Stats`] counts from, as it stood when this began.
    pub(super) sleeps: u64,
    pub(super) held: Duration,
    /// The rank it waits for, where that is not the plan's affair.
    pub(super) waits: Option<usize>,
}

impl Active {
    /// What the others are to agree on; nothing of messages between two, whose numbers are their own.
    pub(super) fn doing(&self) -> Option<Doing> {
        let collective = self.work.collective != Collective::SendRecv;
        collective.then_some(Doing { tag: self.work.tag, priority: self.priority })
    }

    /// Where it is, in shared memory.
    pub(super) fn step_name(&self, ranks: usize) -> Option<StepName> {
        let (step, of) = match &self.task {
            Task::Plan { .. } => return None,
            Task::Flat(flat) => (flat.step(), Flat::STEPS),
            Task::Direct(direct) => (direct.step(), direct.steps(ranks)),
        };
        Some(StepName {
            operation: self.work.tag.operation,
            collective: self.work.collective,
            channel: StepName::SHARED,
            connection: 0,
            step,
            of,
        })
    }

    pub(super) fn waits_for(&self, links: &Links, ranks: usize) -> Option<(Rank, StepName)> {
        if let Task::Plan { operation, .. } = &self.task {
            return operation.waits_for(links);
        }
        let rank = Rank(u32::try_from(self.waits?).unwrap_or(u32::MAX));
        Some((rank, self.step_name(ranks)?))
    }
}

/// An operation that is done.
pub(super) struct Finished {
    pub(super) ticket: u64,
    pub(super) stats: Stats,
    pub(super) owned: Option<Owned>,
}
