//! The steps each rank takes to execute one collective of one size: a plan lowered to sends and receives.
//!
//! ```text
//!   Schedule            one collective, one size
//!     Program           one rank
//!       Lane            one channel's traffic with at most one peer to receive from and one to send to
//!         Step          one chunk: receive, reduce, copy, send; in order within the lane
//! ```
//!
//! Lanes of a rank run concurrently; `after` orders steps of different lanes of one rank. Between ranks
//! the only order is that of messages: the i-th send of a lane to rank B on a channel and connection
//! matches the i-th receive of B's lane for that connection. The form is that of MSCCL's thread blocks,
//! so a schedule can be exported and simulated by others.
//!
//! Types live here, so that the checker (which makes no schedules) and the transport (which makes and
//! runs them) share nothing else.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{Collective, Rank};

/// What every rank does for one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The operation.
    pub collective: Collective,
    /// Elements of the collective's total data: of each rank's buffer for all-reduce, reduce and broadcast,
    /// of the gathered buffer for all-gather, reduce-scatter, gather and scatter, of each rank's buffer for an even
    /// all-to-all, of all blocks together for an uneven one.
    pub count: usize,
    /// The rank singled out, where the collective has one.
    pub root: Option<Rank>,
    /// By rank.
    pub programs: Vec<Program>,
}

/// How many elements each rank sends to each in an all-to-all.
///
/// A rank's input holds its blocks by receiver, its output the blocks by sender, both without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    ranks: usize,
    /// By sender, then receiver.
    counts: Vec<usize>,
}

impl Blocks {
    /// From `ranks` times `ranks` counts, by sender, then receiver; `None` where there are not as many, or where they add up to
    /// more than memory could hold.
    #[must_use]
    pub fn new(ranks: usize, counts: Vec<usize>) -> Option<Self> {
        let fits = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)).is_some();
        (fits && Some(counts.len()) == ranks.checked_mul(ranks)).then_some(Self { ranks, counts })
    }

    /// Ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// Elements from one rank to another; 0 where there is no such rank.
    #[must_use]
    pub fn count(&self, from: usize, to: usize) -> usize {
        let known = from < self.ranks && to < self.ranks;
        if known { self.counts[from * self.ranks + to] } else { 0 }
    }

    /// Where in the sender's input the block lies.
    #[must_use]
    pub fn source(&self, from: usize, to: usize) -> Range<usize> {
        let start = (0..to).map(|before| self.count(from, before)).sum();
        start..start + self.count(from, to)
    }

    /// Where in the receiver's output the block lies.
    #[must_use]
    pub fn target(&self, from: usize, to: usize) -> Range<usize> {
        let start = (0..from).map(|before| self.count(before, to)).sum();
        start..start + self.count(from, to)
    }

    /// Elements of a rank's input.
    #[must_use]
    pub fn sent(&self, from: usize) -> usize {
        (0..self.ranks).map(|to| self.count(from, to)).sum()
    }

    /// Elements of a rank's output.
    #[must_use]
    pub fn received(&self, to: usize) -> usize {
        (0..self.ranks).map(|from| self.count(from, to)).sum()
    }

    /// Elements of all blocks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.counts.iter().sum()
    }
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Elements of scratch memory its steps address.
    pub scratch: usize,
    /// Concurrent lanes.
    pub lanes: Vec<Lane>,
}

/// One channel's traffic with at most one peer in each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Channel of the plan; part of the connection's identity.
    pub channel: u32,
    /// Tells apart several connections of one channel between the same ranks (the way up and the way down of a tree).
    pub connection: u32,
    /// Whom it receives from.
    pub recv_from: Option<Rank>,
    /// Whom it sends to.
    pub send_to: Option<Rank>,
    /// In order.
    pub steps: Vec<Step>,
}

/// One chunk's worth of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What.
    pub op: Op,
    /// Where data is read from; for operations that only receive, the same as `dst`.
    pub src: Slice,
    /// Where data is left; for `Send`, the same as `src`.
    pub dst: Slice,
    /// Steps of other lanes of this rank that must be done before.
    pub after: Vec<StepRef>,
}

/// A step of the same rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepRef {
    /// Place in [`Program::lanes`].
    pub lane: u32,
    /// Place in [`Lane::steps`].
    pub step: u32,
}

/// Elements of one of a rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slice {
    /// Which buffer.
    pub buffer: Buffer,
    /// First element.
    pub offset: usize,
    /// Elements.
    pub count: usize,
}

/// A rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's input; never written. In place it is the same memory as `Output`.
    Input,
    /// The caller's output.
    Output,
    /// The communicator's own.
    Scratch,
}

/// What a step does. `r` is the received chunk, `src` and `dst` the step's slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// `dst = src`, no message.
    Copy,
    /// `dst = dst + src`, no message.
    Reduce,
    /// Send `src`.
    Send,
    /// `dst = r`.
    Recv,
    /// `dst = r`, and send it on.
    RecvCopySend,
    /// `dst = src + r`.
    RecvReduceCopy,
    /// Send `src + r`; nothing is kept.
    RecvReduceSend,
    /// `dst = src + r`, and send it on.
    RecvReduceCopySend,
}

impl Op {
    /// Whether it consumes a message.
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(
            self,
            Self::Recv
                | Self::RecvCopySend
                | Self::RecvReduceCopy
                | Self::RecvReduceSend
                | Self::RecvReduceCopySend
        )
    }

    /// Whether it produces a message.
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(
            self,
            Self::Send | Self::RecvCopySend | Self::RecvReduceSend | Self::RecvReduceCopySend
        )
    }

    /// Whether it writes `dst`.
    #[must_use]
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Send | Self::RecvReduceSend)
    }

    /// Whether it reads `src`.
    #[must_use]
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Recv | Self::RecvCopySend)
    }
}
