//! The collectives: what they ask of the caller's memory.
//!
//! Input and output may be the same memory: the operation is then done in place, as each says. Otherwise they must not overlap.

use topology::schedule::Blocks;
use topology::{Collective, Rank};
use transport::schedule::shard;
use transport::{ElementType, ReduceOp};

use crate::buffer::Memory;
use crate::call::Call;
use crate::communicator::{Communicator, Pending, Request};
use crate::error::CudaError;
use crate::stream::Stream;

impl Communicator {
    /// Combines the inputs of all ranks, element by element, into every rank's output. After everything in `stream`, which waits for it.
    ///
    /// # Errors
    /// Where memory does not fit, elements cannot be combined, or the group has no connections for it: nothing was enqueued.
    /// [`CudaError::Failed`] where the group broke.
    pub fn all_reduce(
        &mut self,
        input: &Memory,
        output: &Memory,
        element: ElementType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        expect("an output", input.bytes(), output.bytes())?;
        let call = call(Collective::AllReduce, element, Some(op), None, elements(input, element)?);
        let request = Request { result: Some(output.clone()), ..moves(call, input, output) };
        self.enqueue(request, stream)
    }

    /// Gathers every rank's shard into every rank's output, by rank. Rank `r` of `n` brings the elements `count * r / n ..
    /// count * (r + 1) / n` (rounded down) of the `count` in `output`; in place, `shard` is that part of it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather(
        &mut self,
        shard: &Memory,
        output: &Memory,
        element: ElementType,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let count = elements(output, element)?;
        self.expect_shard(count, element, shard)?;
        let call = call(Collective::AllGather, element, None, None, count);
        self.enqueue(moves(call, shard, output), stream)
    }

    /// Combines the inputs of all ranks, element by element, and leaves each rank its shard of the result, cut as in
    /// [`Communicator::all_gather`]; in place, `shard` is that part of the input.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter(
        &mut self,
        input: &Memory,
        shard: &Memory,
        element: ElementType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let count = elements(input, element)?;
        self.expect_shard(count, element, shard)?;
        let call = call(Collective::ReduceScatter, element, Some(op), None, count);
        let request = Request { result: Some(shard.clone()), ..moves(call, input, shard) };
        self.enqueue(request, stream)
    }

    /// Every rank's output becomes the input of `root`; the input of others is not looked at.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn broadcast(
        &mut self,
        input: &Memory,
        output: &Memory,
        element: ElementType,
        root: Rank,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        if self.rank() == root {
            expect("an input", output.bytes(), input.bytes())?;
        }
        let call =
            call(Collective::Broadcast, element, None, Some(root), elements(output, element)?);
        self.enqueue(moves(call, input, output), stream)
    }

    /// Combines the inputs of all ranks, element by element, into the output of `root`; elsewhere `output` is not written.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce(
        &mut self,
        input: &Memory,
        output: &Memory,
        element: ElementType,
        op: ReduceOp,
        root: Rank,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let call =
            call(Collective::Reduce, element, Some(op), Some(root), elements(input, element)?);
        let mut request = moves(call, input, output);
        if self.rank() == root {
            expect("an output", input.bytes(), output.bytes())?;
            request.result = Some(output.clone());
        }
        self.enqueue(request, stream)
    }

    /// Gathers every rank's shard of `count` elements, cut as in [`Communicator::all_gather`], into the output of `root`; elsewhere
    /// `output` is not looked at.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn gather(
        &mut self,
        shard: &Memory,
        output: &Memory,
        element: ElementType,
        (count, root): (usize, Rank),
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        self.expect_shard(count, element, shard)?;
        if self.rank() == root {
            expect("an output", bytes(count, element), output.bytes())?;
        }
        let call = call(Collective::Gather, element, None, Some(root), count);
        self.enqueue(moves(call, shard, output), stream)
    }

    /// Leaves every rank its shard of the `count` elements of the root's input, cut as in [`Communicator::all_gather`]; elsewhere `input`
    /// is not looked at.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn scatter(
        &mut self,
        input: &Memory,
        shard: &Memory,
        element: ElementType,
        (count, root): (usize, Rank),
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        self.expect_shard(count, element, shard)?;
        if self.rank() == root {
            expect("an input", bytes(count, element), input.bytes())?;
        }
        let call = call(Collective::Scatter, element, None, Some(root), count);
        self.enqueue(moves(call, input, shard), stream)
    }

    /// Sends block `r` of the input to rank `r`, for every rank, and leaves what comes from rank `r` in block `r` of the output; the
    /// blocks are the `n` equal parts of either. Not in place.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; and where `n` does not divide the length.
    pub fn all_to_all(
        &mut self,
        input: &Memory,
        output: &Memory,
        element: ElementType,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        expect("an output", input.bytes(), output.bytes())?;
        apart(input, output)?;
        let call = call(Collective::AllToAll, element, None, None, elements(input, element)?);
        self.enqueue(moves(call, input, output), stream)
    }

    /// As [`Communicator::all_to_all`] with blocks of any length, which every rank gives alike.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`].
    pub fn all_to_all_uneven(
        &mut self,
        input: &Memory,
        output: &Memory,
        element: ElementType,
        blocks: &Blocks,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let own = self.rank().index();
        expect("an input", bytes(blocks.sent(own), element), input.bytes())?;
        expect("an output", bytes(blocks.received(own), element), output.bytes())?;
        apart(input, output)?;
        let call = call(Collective::AllToAll, element, None, None, blocks.total());
        self.enqueue(Request { blocks: Some(blocks.clone()), ..moves(call, input, output) }, stream)
    }

    /// Sends to one rank, which receives as many elements of the same type; messages between two ranks arrive in order. The group must
    /// have been made for [`Collective::SendRecv`].
    ///
    /// Messages of more than the slots of a connection leave as they are received: two ranks that both send before they receive wait for
    /// each other then, unless the two are on different priorities.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn send(
        &mut self,
        data: &Memory,
        element: ElementType,
        to: Rank,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let own = self.rank();
        self.message(data, element, (own, to), stream)
    }

    /// Receives from one rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn receive(
        &mut self,
        data: &Memory,
        element: ElementType,
        from: Rank,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let own = self.rank();
        self.message(data, element, (from, own), stream)
    }

    fn message(
        &mut self,
        data: &Memory,
        element: ElementType,
        (from, to): (Rank, Rank),
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let ranks = self.ranks();
        if from == to || from.index() >= ranks || to.index() >= ranks {
            let other = if from == self.rank() { to } else { from };
            return Err(CudaError::NotConnected(format!(
                "messages between rank {} and rank {other}",
                self.rank()
            )));
        }
        let count = elements(data, element)?;
        let call = Call {
            receiver: Some(to),
            ..call(Collective::SendRecv, element, None, Some(from), count)
        };
        self.enqueue(moves(call, data, data), stream)
    }

    /// `stream` goes on once every rank has enqueued this and its stream has come to it. The group must have been made for
    /// [`Collective::AllReduce`] or [`Collective::Barrier`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&mut self, stream: &Stream) -> Result<Pending, CudaError> {
        let one = self.few().memory().part(0, 1);
        let call = call(Collective::Barrier, ElementType::U8, Some(ReduceOp::Max), None, 1);
        self.enqueue(moves(call, &one, &one), stream)
    }

    fn expect_shard(
        &self,
        count: usize,
        element: ElementType,
        found: &Memory,
    ) -> Result<(), CudaError> {
        let expected = shard(count, self.rank(), self.ranks()).len();
        expect("a shard", bytes(expected, element), found.bytes())
    }
}

const fn call(
    collective: Collective,
    element: ElementType,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    count: usize,
) -> Call {
    Call { collective, root, receiver: None, element, op, count }
}

const fn moves<'a>(call: Call, input: &'a Memory, output: &'a Memory) -> Request<'a> {
    Request { call, blocks: None, input, output, result: None, parts: Vec::new() }
}

const fn bytes(count: usize, element: ElementType) -> usize {
    count.saturating_mul(element.bytes())
}

fn elements(memory: &Memory, element: ElementType) -> Result<usize, CudaError> {
    let (found, size) = (memory.bytes(), element.bytes());
    if found.is_multiple_of(size) {
        return Ok(found / size);
    }
    let expected = found.next_multiple_of(size);
    Err(CudaError::Length { what: "memory for whole elements", expected, found })
}

const fn expect(what: &'static str, expected: usize, found: usize) -> Result<(), CudaError> {
    if expected == found { Ok(()) } else { Err(CudaError::Length { what, expected, found }) }
}

/// An exchange overwrites what it has not sent.
fn apart(input: &Memory, output: &Memory) -> Result<(), CudaError> {
    let end = |memory: &Memory| memory.address() + memory.bytes() as u64;
    let apart = end(input) <= output.address() || end(output) <= input.address();
    if apart || input.bytes() == 0 || output.bytes() == 0 {
        return Ok(());
    }
    Err(CudaError::Options("an all-to-all is not done in place"))
}
