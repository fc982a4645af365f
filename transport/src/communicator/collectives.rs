//! The collectives: what they ask of the caller's buffers.

use std::time::{Duration, Instant};

use topology::schedule::Blocks;
use topology::{Collective, Rank};

use super::operation::{Owned, Request};
use super::{Communicator, Path, Pending, Stats};
use crate::control::Notice;
use crate::element::{Element, ReduceOp};
use crate::error::TransportError;
use crate::kernel::Kernel;
use crate::memory::{Slot, caller, caller_mut};

impl Communicator {
    /// Combines the buffers of all ranks, element by element; every rank gets the result in place.
    ///
    /// For one plan and size the result has the same bits on every rank and in every run.
    ///
    /// # Errors
    /// [`TransportError::Failed`] on every rank where one dies, falls silent or runs something else.
    pub fn all_reduce<T: Element>(
        &mut self,
        buffer: &mut [T],
        op: ReduceOp,
    ) -> Result<Stats, TransportError> {
        let whole = caller_mut(buffer);
        self.operate(all_reduce::<T>(buffer.len(), op, whole, whole)?)
    }

    /// Combines the inputs of all ranks, element by element, into every rank's output.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where the two are not of one length.
    pub fn all_reduce_into<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<Stats, TransportError> {
        expect("an output", input.len(), output.len())?;
        self.operate(all_reduce::<T>(input.len(), op, caller(input), caller_mut(output))?)
    }

    /// Starts an [`Communicator::all_reduce`] on a buffer that is given back when it is done.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], for what is found before anything is sent.
    pub fn start_all_reduce<T: Element>(
        &mut self,
        mut buffer: Vec<T>,
        op: ReduceOp,
    ) -> Result<Pending<Vec<T>>, TransportError> {
        let whole = caller_mut(&mut buffer);
        let request = all_reduce::<T>(buffer.len(), op, whole, whole)?;
        self.start_owned(request, buffer)
    }

    /// Gathers every rank's shard into every rank's output, by rank.
    ///
    /// Rank `r` of `n` brings the elements `count * r / n .. count * (r + 1) / n` (rounded down) of the `count` in `output`;
    /// equal parts where `n` divides `count`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where `shard` is not of that length.
    pub fn all_gather<T: Element>(
        &mut self,
        shard: &[T],
        output: &mut [T],
    ) -> Result<Stats, TransportError> {
        self.expect_shard(output.len(), shard.len())?;
        self.operate(moves::<T>(
            Collective::AllGather,
            output.len(),
            caller(shard),
            caller_mut(output),
        ))
    }

    /// As [`Communicator::all_gather`], with this rank's shard at its place in the buffer.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
    ) -> Result<Stats, TransportError> {
        let whole = caller_mut(buffer);
        let shard = self.shard_of::<T>(whole, buffer.len());
        self.operate(moves::<T>(Collective::AllGather, buffer.len(), shard, whole))
    }

    /// Starts an [`Communicator::all_gather_in_place`] on a buffer that is given back when it is done.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], for what is found before anything is sent.
    pub fn start_all_gather<T: Element>(
        &mut self,
        mut buffer: Vec<T>,
    ) -> Result<Pending<Vec<T>>, TransportError> {
        let whole = caller_mut(&mut buffer);
        let shard = self.shard_of::<T>(whole, buffer.len());
        let request = moves::<T>(Collective::AllGather, buffer.len(), shard, whole);
        self.start_owned(request, buffer)
    }

    /// Combines the inputs of all ranks, element by element, and leaves each rank its shard of the result, cut as in
    /// [`Communicator::all_gather`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where `shard` is not of that length.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        shard: &mut [T],
        op: ReduceOp,
    ) -> Result<Stats, TransportError> {
        self.expect_shard(input.len(), shard.len())?;
        self.operate(reduce_scatter::<T>(input.len(), op, caller(input), caller_mut(shard))?)
    }

    /// As [`Communicator::reduce_scatter`], with this rank's result at its shard's place in the buffer; the rest of the buffer
    /// is not written.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        op: ReduceOp,
    ) -> Result<Stats, TransportError> {
        let whole = caller_mut(buffer);
        let shard = self.shard_of::<T>(whole, buffer.len());
        self.operate(reduce_scatter::<T>(buffer.len(), op, whole, shard)?)
    }

    /// Starts a [`Communicator::reduce_scatter_in_place`] on a buffer that is given back when it is done.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], for what is found before anything is sent.
    pub fn start_reduce_scatter<T: Element>(
        &mut self,
        mut buffer: Vec<T>,
        op: ReduceOp,
    ) -> Result<Pending<Vec<T>>, TransportError> {
        let whole = caller_mut(&mut buffer);
        let shard = self.shard_of::<T>(whole, buffer.len());
        let request = reduce_scatter::<T>(buffer.len(), op, whole, shard)?;
        self.start_owned(request, buffer)
    }

    /// Every rank's buffer becomes that of `root`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where the plan has no channel with that root.
    pub fn broadcast<T: Element>(
        &mut self,
        buffer: &mut [T],
        root: Rank,
    ) -> Result<Stats, TransportError> {
        let whole = caller_mut(buffer);
        self.operate(broadcast::<T>(buffer.len(), root, whole))
    }

    /// Starts a [`Communicator::broadcast`] on a buffer that is given back when it is done.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`], for what is found before anything is sent.
    pub fn start_broadcast<T: Element>(
        &mut self,
        mut buffer: Vec<T>,
        root: Rank,
    ) -> Result<Pending<Vec<T>>, TransportError> {
        let whole = caller_mut(&mut buffer);
        self.start_owned(broadcast::<T>(buffer.len(), root, whole), buffer)
    }

    /// Combines the inputs of all ranks, element by element, into the output of `root`; elsewhere `output` is not
    /// written.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`]; and where the two are not of one length.
    pub fn reduce<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Stats, TransportError> {
        expect("an output", input.len(), output.len())?;
        let request = self.reduction::<T>(input.len(), op, root, caller(input), caller_mut(output));
        self.operate(request?)
    }

    /// As [`Communicator::reduce`], with the result in the root's buffer; other buffers are not written.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn reduce_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<Stats, TransportError> {
        let whole = caller_mut(buffer);
        let request = self.reduction::<T>(buffer.len(), op, root, whole, whole)?;
        self.operate(request)
    }

    /// Gathers every rank's shard of `count` elements, cut as in [`Communicator::all_gather`], into the output of `root`;
    /// elsewhere `output` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`]; and where `shard`, or the root's `output`, is not as long as it must be.
    pub fn gather<T: Element>(
        &mut self,
        shard: &[T],
        output: &mut [T],
        count: usize,
        root: Rank,
    ) -> Result<Stats, TransportError> {
        self.expect_shard(count, shard.len())?;
        if self.rank() == root {
            expect("an output", count, output.len())?;
        }
        let request = moves::<T>(Collective::Gather, count, caller(shard), caller_mut(output));
        self.operate(Request { root: Some(root), ..request })
    }

    /// As [`Communicator::gather`] of equal or unequal shards that lie at their place in a buffer of all, of which only the
    /// root's is written.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn gather_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        root: Rank,
    ) -> Result<Stats, TransportError> {
        let whole = caller_mut(buffer);
        let shard = self.shard_of::<T>(whole, buffer.len());
        let request = moves::<T>(Collective::Gather, buffer.len(), shard, whole);
        self.operate(Request { root: Some(root), ..request })
    }

    /// Leaves every rank its shard of the `count` elements of the root's input, cut as in [`Communicator::all_gather`];
    /// elsewhere `input` is not looked at and may be empty.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`]; and where `shard`, or the root's `input`, is not as long as it must be.
    pub fn scatter<T: Element>(
        &mut self,
        input: &[T],
        shard: &mut [T],
        count: usize,
        root: Rank,
    ) -> Result<Stats, TransportError> {
        self.expect_shard(count, shard.len())?;
        if self.rank() == root {
            expect("an input", count, input.len())?;
        }
        let request = moves::<T>(Collective::Scatter, count, caller(input), caller_mut(shard));
        self.operate(Request { root: Some(root), ..request })
    }

    /// As [`Communicator::scatter`], with every rank's shard at its place in a buffer of all.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn scatter_in_place<T: Element>(
        &mut self,
        buffer: &mut [T],
        root: Rank,
    ) -> Result<Stats, TransportError> {
        let whole = caller_mut(buffer);
        let shard = self.shard_of::<T>(whole, buffer.len());
        let request = moves::<T>(Collective::Scatter, buffer.len(), whole, shard);
        self.operate(Request { root: Some(root), ..request })
    }

    /// Sends block `r` of the input to rank `r`, for every rank, and leaves what comes from rank `r` in block `r` of the output;
    /// the blocks are the `n` equal parts of either.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where the two are not of one length, or `n` does not divide it.
    pub fn all_to_all<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<Stats, TransportError> {
        expect("an output", input.len(), output.len())?;
        self.operate(moves::<T>(
            Collective::AllToAll,
            input.len(),
            caller(input),
            caller_mut(output),
        ))
    }

    /// As [`Communicator::all_to_all`], with `sends[r]` elements to rank `r` and `receives[r]` from it. The ranks first tell
    /// each other their counts, so that counts that do not match are an error on every rank before any data moves.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; where a buffer is not as long as its counts say; and [`TransportError::Blocks`] on every
    /// rank where any sends another count than is expected of it, after which the group is as usable as before.
    pub fn all_to_all_uneven<T: Element>(
        &mut self,
        input: &[T],
        sends: &[usize],
        output: &mut [T],
        receives: &[usize],
    ) -> Result<Stats, TransportError> {
        expect("an input", total(sends), input.len())?;
        expect("an output", total(receives), output.len())?;
        let blocks = self.agree_on_blocks(sends, receives)?;
        let (count, kernel) = (blocks.total(), Kernel::moving(T::TYPE));
        let (input, output) = (caller(input), caller_mut(output));
        let request = Request::new(Collective::AllToAll, count, kernel, input, output);
        self.operate(Request { blocks: Some(blocks), ..request })
    }

    /// What everybody sends and receives in an uneven all-to-all, told by all to all.
    pub(super) fn agree_on_blocks(
        &mut self,
        sends: &[usize],
        receives: &[usize],
    ) -> Result<Blocks, TransportError> {
        let ranks = self.ranks();
        expect("counts to send", ranks, sends.len())?;
        expect("counts to receive", ranks, receives.len())?;
        // To every rank the whole row, so that each knows what all send and expect, and all find the same mistake.
        let row: Vec<i64> = sends
            .iter()
            .chain(receives)
            .map(|count| i64::try_from(*count).unwrap_or(i64::MAX))
            .collect();
        let mut table = vec![0_i64; 2 * ranks * ranks];
        self.all_to_all(&row.repeat(ranks), &mut table)?;
        let count = |rank: usize, place: usize| {
            usize::try_from(table[rank * 2 * ranks + place]).unwrap_or(0)
        };
        let pairs = || (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        for (from, to) in pairs() {
            let (sends, receives) = (count(from, to), count(to, ranks + from));
            if sends != receives {
                let id = |rank: usize| Rank(u32::try_from(rank).unwrap_or(u32::MAX));
                let (from, to) = (id(from), id(to));
                return Err(TransportError::Blocks { from, to, sends, receives });
            }
        }
        let counts = pairs().map(|(from, to)| count(from, to)).collect();
        Blocks::new(ranks, counts).ok_or(TransportError::Length {
            what: "blocks of all ranks together",
            expected: usize::MAX,
            found: usize::MAX,
        })
    }

    /// Returns once every rank has called it. Runs along the plan's channels for all-reduce where the communicator was made
    /// for them, else through rank 0.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&mut self) -> Result<Stats, TransportError> {
        let mut nothing = [0_u8];
        let one = caller_mut(&mut nothing);
        let kernel = Kernel::new(u8::TYPE, ReduceOp::Max).expect("integers are compared");
        let request = Request::new(Collective::Barrier, 1, kernel, one, one);
        match self.operate(request) {
            Err(TransportError::NotConnected(_) | TransportError::Schedule(_)) => {
                let start = Instant::now();
                self.monitored_barrier(self.options.timeout)?;
                let elapsed = start.elapsed();
                let path = Path::Plan;
                Ok(Stats {
                    elapsed,
                    bytes: 0,
                    path,
                    channels: 0,
                    steps: 0,
                    sleeps: 0,
                    held: Duration::ZERO,
                })
            }
            other => other.map(|stats| Stats { bytes: 0, ..stats }),
        }
    }

    /// A barrier that says who does not come: rank 0 waits for everybody for `limit` and then tells all who was missing. It goes
    /// over the control connections, so it works whatever the communicator was made for, and a rank that came late hears
    /// that it was missed.
    ///
    /// # Errors
    /// [`TransportError::Missing`] on every rank that called, where one did not come in time; the group remains usable.
    pub fn monitored_barrier(&mut self, limit: Duration) -> Result<(), TransportError> {
        if let Some(failure) = &self.failure {
            return Err(TransportError::Unusable(failure.clone()));
        }
        let barrier = self.barriers;
        self.barriers += 1;
        let first = self.rank() == Rank(0);
        if !first {
            self.control.came(barrier);
        }
        // Others give rank 0 the time to wait for the last, and to tell.
        let grace = if first { Duration::ZERO } else { limit / 4 + Duration::from_secs(1) };
        let deadline = Instant::now() + limit + grace;
        let missing = loop {
            match self.control.listen() {
                Some(Notice::Told(failure)) => return Err(self.broke(Box::new(failure))),
                Some(Notice::Lost { culprit, cause }) => {
                    let failure = self.lost(culprit, cause, None);
                    return Err(self.broke(failure));
                }
                None => {}
            }
            let left = crate::frame::remaining(deadline);
            if first {
                let missing = self.control.missing(barrier);
                if missing.is_empty() || left.is_none() {
                    self.control.release(barrier, &missing);
                    break missing;
                }
            } else if let Some(missing) = self.control.released(barrier) {
                break missing;
            }
            let Some(left) = left else { break vec![Rank(0)] };
            self.waiter.sleep(self.control.descriptors(), std::iter::empty(), left);
        };
        if missing.is_empty() {
            Ok(())
        } else {
            Err(TransportError::Missing { ranks: missing, limit })
        }
    }

    fn reduction<T: Element>(
        &self,
        count: usize,
        op: ReduceOp,
        root: Rank,
        input: Slot,
        output: Slot,
    ) -> Result<Request, TransportError> {
        let request = Request::new(Collective::Reduce, count, kernel::<T>(op)?, input, output);
        let result = (self.rank() == root).then_some(output);
        Ok(Request { root: Some(root), result, ..request })
    }

    /// This rank's shard within a buffer of all.
    fn shard_of<T: Element>(&self, whole: Slot, count: usize) -> Slot {
        let shard = crate::schedule::shard(count, self.rank(), self.ranks());
        whole.part(shard.start * size_of::<T>(), shard.len() * size_of::<T>())
    }

    fn expect_shard(&self, count: usize, found: usize) -> Result<(), TransportError> {
        let shard = crate::schedule::shard(count, self.rank(), self.ranks());
        expect("a shard", shard.len(), found)
    }

    /// Starts an operation on a buffer it owns until it is done.
    pub(super) fn start_owned<B: Send + 'static>(
        &mut self,
        request: Request,
        buffer: B,
    ) -> Result<Pending<B>, TransportError> {
        // Moving the vector leaves what it points to where it is.
        let owned: Owned = Box::new(buffer);
        let ticket = self.start(request, Some(owned))?;
        if let Err(failure) = self.advance() {
            return Err(self.broke(failure));
        }
        Ok(Pending::new(ticket))
    }
}

pub(super) fn expect(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), TransportError> {
    if expected == found { Ok(()) } else { Err(TransportError::Length { what, expected, found }) }
}

/// Elements of all blocks together; more than there can be where that overflows.
pub(super) fn total(counts: &[usize]) -> usize {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

fn kernel<T: Element>(op: ReduceOp) -> Result<Kernel, TransportError> {
    Kernel::new(T::TYPE, op).ok_or(TransportError::NotCombined { op, element: T::TYPE })
}

fn all_reduce<T: Element>(
    count: usize,
    op: ReduceOp,
    input: Slot,
    output: Slot,
) -> Result<Request, TransportError> {
    let request = Request::new(Collective::AllReduce, count, kernel::<T>(op)?, input, output);
    Ok(Request { result: Some(output), ..request })
}

fn reduce_scatter<T: Element>(
    count: usize,
    op: ReduceOp,
    input: Slot,
    shard: Slot,
) -> Result<Request, TransportError> {
    let request = Request::new(Collective::ReduceScatter, count, kernel::<T>(op)?, input, shard);
    Ok(Request { result: Some(shard), ..request })
}

fn moves<T: Element>(collective: Collective, count: usize, input: Slot, output: Slot) -> Request {
    Request::new(collective, count, Kernel::moving(T::TYPE), input, output)
}

fn broadcast<T: Element>(count: usize, root: Rank, whole: Slot) -> Request {
    let request = moves::<T>(Collective::Broadcast, count, whole, whole);
    Request { root: Some(root), ..request }
}
