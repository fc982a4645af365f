//! One rank of the transport's collectives on device memory: every one checked to the element, then timed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use topology::schedule::Blocks;
use topology::{Collective, Protocol, Rank};
use transport::schedule::shard;
use transport::{ElementType, ReduceOp, Rendezvous, even};
use transport_cuda::{
    Buffer, Communicator, Context, CudaError, Device, Image, Memory, Options, Pending, Stream,
};

use super::cases::{brought, combined, other};
use super::{Found, Part, Timed, batches, silence, sizes};
use crate::budget::Deadline;
use crate::reference::first_difference;

/// Bytes before and behind each memory that nobody may write.
const AROUND: usize = 64;

/// Channels where all ranks share a GPU: more only cut messages up.
const SHARED_CHANNELS: u32 = 2;
/// Channels where each has its own: rings in both directions, as many as H100s have pairs of NVLinks to a switch, rounded down.
const OWN_CHANNELS: u32 = 8;

/// Those that are timed.
const TIMED: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
];

type Outcome<T = ()> = Result<T, CudaError>;

/// Channels of the even plan.
pub(crate) fn channels(shared: bool) -> u32 {
    if shared { SHARED_CHANNELS } else { OWN_CHANNELS }
}

/// Does a rank's part.
pub(crate) fn as_rank(part: &Part) -> Found {
    let (check, all) = (Deadline::after(part.check), Deadline::after(part.all));
    let mut found = Found::default();
    if let Err(error) = join(part, check, all, &mut found) {
        found.failure = Some(error.to_string());
    }
    found
}

fn join(part: &Part, check: Deadline, all: Deadline, found: &mut Found) -> Outcome {
    let image = match &part.ptx {
        Some(file) => Image::Given(
            std::fs::read(file)
                .map_err(|source| CudaError::Local { what: "read the kernels", source })?,
        ),
        None => Image::Compile,
    };
    let options = Options {
        host: transport::Options {
            timeout: silence(part.quick),
            join_timeout: silence(part.quick),
            ..transport::Options::default()
        },
        collectives: Collective::ALL.to_vec(),
        protocols: Some(vec![part.protocol.unwrap_or(Protocol::Simple)]),
        slot_bytes: if part.quick { 64 << 10 } else { 1 << 20 },
        timeout: silence(part.quick),
        image,
        ..Options::default()
    };
    let plan = even::full_plan(part.ranks, channels(part.shared));
    let place = format!("file://{}/meet", part.folder.display());
    let rendezvous: Rendezvous =
        place.parse().map_err(|_| CudaError::Options("the folder's path is no rendezvous"))?;
    let device = Device::by_ordinal(usize::try_from(part.device).unwrap_or(usize::MAX))?;
    let context = Context::new(device)?;
    let communicator = Communicator::new(&plan, Rank(part.rank), &rendezvous, &context, options)?;
    for link in communicator.links() {
        *found.ways.entry(link.way.as_str().to_owned()).or_default() += 1;
        found.why.extend(Some(link.why.clone()).filter(|why| !why.is_empty()));
    }
    if let Some(why) = part.protocol.and_then(|protocol| communicator.why_not(protocol)) {
        found.why_not = Some(why.to_owned());
        return Ok(());
    }
    let stream = Stream::new(&context)?;
    let (rank, ranks) = (part.rank as usize, part.ranks as usize);
    let clock = Buffer::new(&context, 1)?;
    let mut side = Side { communicator, stream, context, rank, ranks, ahead: 0, clock, found };
    let (counts, sizes) = extent(part);
    let outcome = side.check(counts, check).and_then(|()| side.measure(part.quick, sizes, all));
    side.found.by_protocol = side.communicator.by_protocol().clone();
    side.found.by_copies = side.communicator.by_copies().keys().cloned().collect();
    outcome
}

/// Elements of which results are checked, and bytes that are timed: of messages with flags small ones.
fn extent(part: &Part) -> (&'static [usize], &'static [usize]) {
    match (part.protocol, part.quick) {
        (None, true) => (&[0, 1, 1003], sizes(true)),
        (None, false) => (&[0, 1, 7, 1003, 65_537, 1_000_003], sizes(false)),
        (Some(_), true) => (&[1003], &sizes(true)[..1]),
        (Some(_), false) => (&[0, 1, 7, 1003, 16_411], &sizes(false)[..2]),
    }
}

/// One rank's side.
struct Side<'a> {
    communicator: Communicator,
    stream: Stream,
    context: Arc<Context>,
    rank: usize,
    ranks: usize,
    /// Elements before each memory: one leaves it unaligned for wide loads.
    ahead: usize,
    /// What rank 0's clock says.
    clock: Arc<Buffer>,
    found: &'a mut Found,
}

/// Memory with what is around it.
struct Guarded {
    buffer: Arc<Buffer>,
    start: usize,
    bytes: usize,
}

impl Guarded {
    fn memory(&self) -> Memory {
        self.buffer.memory().part(self.start, self.bytes)
    }

    fn part(&self, range: &Range<usize>) -> Memory {
        self.memory().part(range.start, range.len())
    }

    /// What is there now; `None` where what is around it was written.
    fn read(&self) -> Outcome<Option<Vec<u8>>> {
        let mut all = vec![0_u8; self.buffer.bytes()];
        self.buffer.read(0, &mut all)?;
        let end = self.start + self.bytes;
        let around = all[..self.start].iter().chain(&all[end..]);
        let untouched = around.into_iter().all(|byte| *byte == 0xa5);
        Ok(untouched.then(|| all[self.start..end].to_vec()))
    }
}

impl Side<'_> {
    /// Whether there is time for more: as rank 0's clock says, so that all ranks do the same.
    fn goes_on(&mut self, deadline: Deadline) -> Outcome<bool> {
        self.clock.write(0, &[u8::from(!deadline.is_over())])?;
        let said = self.clock.memory();
        let pending =
            self.communicator.broadcast(&said, &said, ElementType::U8, Rank(0), &self.stream)?;
        self.communicator.wait(pending)?;
        let mut said = [0_u8];
        self.clock.read(0, &mut said)?;
        Ok(said[0] == 1)
    }

    fn guarded(&self, element: ElementType, data: &[u8]) -> Outcome<Guarded> {
        let start = AROUND + self.ahead * element.bytes();
        let mut all = other(start + data.len() + AROUND);
        all[start..start + data.len()].copy_from_slice(data);
        let buffer = Buffer::of(&self.context, &all)?;
        Ok(Guarded { buffer, start, bytes: data.len() })
    }

    /// What the caller's stream waits for, it has waited for; then the failure of the group, if there is one.
    fn done(&self, pending: Pending) -> Outcome {
        self.stream.synchronize()?;
        self.communicator.wait(pending)
    }

    fn compare(
        &mut self,
        what: &str,
        element: ElementType,
        memory: &Guarded,
        expected: &[u8],
    ) -> Outcome {
        let Some(found) = memory.read()? else {
            self.found.wrong.push(format!("{what}: wrote beside its memory"));
            return Ok(());
        };
        self.found.checked += (expected.len() / element.bytes()) as u64;
        if let Some((at, found, expected)) = first_difference(element, &found, expected) {
            let wrong = format!("{what}: element {at} is {found:02x?}, not {expected:02x?}");
            self.found.wrong.push(wrong);
        }
        Ok(())
    }

    /// From one memory to another, of which the first stays as it is.
    fn apart(
        &mut self,
        what: &str,
        element: ElementType,
        input: &[u8],
        (before, after): (&[u8], &[u8]),
        call: impl FnOnce(&mut Communicator, &Memory, &Memory, &Stream) -> Outcome<Pending>,
    ) -> Outcome {
        let (from, to) = (self.guarded(element, input)?, self.guarded(element, before)?);
        let pending = call(&mut self.communicator, &from.memory(), &to.memory(), &self.stream)?;
        self.done(pending)?;
        let what = format!("{what} of {element}");
        self.compare(&what, element, &to, after)?;
        self.compare(&format!("{what}, its input"), element, &from, input)
    }

    /// Within one memory, of which input and output are parts.
    fn in_place(
        &mut self,
        what: &str,
        element: ElementType,
        (before, after): (&[u8], &[u8]),
        (input, output): (Range<usize>, Range<usize>),
        call: impl FnOnce(&mut Communicator, &Memory, &Memory, &Stream) -> Outcome<Pending>,
    ) -> Outcome {
        let both = self.guarded(element, before)?;
        let (from, to) = (both.part(&input), both.part(&output));
        let pending = call(&mut self.communicator, &from, &to, &self.stream)?;
        self.done(pending)?;
        self.compare(&format!("{what} in place of {element}"), element, &both, after)
    }

    /// Every collective, element type and operation at every count.
    fn check(&mut self, counts: &[usize], deadline: Deadline) -> Outcome {
        for (place, count) in counts.iter().copied().enumerate() {
            self.ahead = place % 2;
            for element in ElementType::ALL {
                if !self.goes_on(deadline)? {
                    let missed = format!(
                        "{count} elements of {element} and what follows were not checked: no time"
                    );
                    self.found.missed.push(missed);
                    return Ok(());
                }
                // The largest with one operation: the others differ from it by a kernel that was checked by itself.
                let large = count > 100_000;
                for op in ReduceOp::ALL.into_iter().filter(|op| op.combines(element)) {
                    if !large || op == ReduceOp::Sum {
                        self.reductions(element, op, count)?;
                    }
                }
                self.moves(element, count)?;
                self.exchanges(element, count)?;
                let pending = self.communicator.barrier(&self.stream)?;
                self.done(pending)?;
            }
        }
        Ok(())
    }

    fn root(&self, count: usize) -> Rank {
        Rank(u32::try_from(count % self.ranks).unwrap_or(0))
    }

    /// A rank's shard, in elements.
    fn shard(&self, count: usize, rank: usize) -> Range<usize> {
        shard(count, Rank(u32::try_from(rank).unwrap_or(0)), self.ranks)
    }

    fn reductions(&mut self, element: ElementType, op: ReduceOp, count: usize) -> Outcome {
        let input = brought(element, op, self.rank, 0, count);
        let sum = combined(element, op, self.ranks, count);
        let bytes = input.len();
        let before = other(bytes);
        let name = |collective: &str| format!("{collective}, {op}, {count}");
        let whole = 0..bytes;

        let all_reduce = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.all_reduce(a, b, element, op, s)
        };
        let what = name("all-reduce");
        self.apart(&what, element, &input, (&before, &sum), all_reduce)?;
        let both = (whole.clone(), whole.clone());
        self.in_place(&what, element, (&input, &sum), both, all_reduce)?;

        let own = self.shard(count, self.rank);
        let own = own.start * element.bytes()..own.end * element.bytes();
        let reduce_scatter = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.reduce_scatter(a, b, element, op, s)
        };
        let what = name("reduce-scatter");
        let result = (&before[own.clone()], &sum[own.clone()]);
        self.apart(&what, element, &input, result, reduce_scatter)?;
        let mut after = input.clone();
        after[own.clone()].copy_from_slice(&sum[own.clone()]);
        self.in_place(&what, element, (&input, &after), (whole.clone(), own), reduce_scatter)?;

        let root = self.root(count);
        let is_root = root.index() == self.rank;
        let reduce = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.reduce(a, b, element, op, root, s)
        };
        let what = name("reduce");
        let result = (&before[..], if is_root { &sum[..] } else { &before[..] });
        self.apart(&what, element, &input, result, reduce)?;
        let after = if is_root { &sum } else { &input };
        self.in_place(&what, element, (&input, after), (whole.clone(), whole), reduce)
    }

    fn moves(&mut self, element: ElementType, count: usize) -> Outcome {
        let width = element.bytes();
        let op = ReduceOp::Sum;
        let own = self.shard(count, self.rank);
        let own_bytes = own.start * width..own.end * width;
        let input = brought(element, op, self.rank, own.start, own.len());
        let shards = (0..self.ranks).map(|rank| (rank, self.shard(count, rank)));
        let all: Vec<u8> = shards
            .flat_map(|(rank, range)| brought(element, op, rank, range.start, range.len()))
            .collect();
        let before = other(all.len());
        let mut placed = before.clone();
        placed[own_bytes.clone()].copy_from_slice(&input);
        let whole = 0..all.len();
        let root = self.root(count);
        let is_root = root.index() == self.rank;

        let gather = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.all_gather(a, b, element, s)
        };
        let what = format!("all-gather, {count}");
        self.apart(&what, element, &input, (&before, &all), gather)?;
        let parts = (own_bytes.clone(), whole.clone());
        self.in_place(&what, element, (&placed, &all), parts.clone(), gather)?;

        let to_root = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.gather(a, b, element, (count, root), s)
        };
        let what = format!("gather, {count}");
        let result = (&before[..], if is_root { &all[..] } else { &before[..] });
        self.apart(&what, element, &input, result, to_root)?;
        let after = if is_root { &all } else { &placed };
        self.in_place(&what, element, (&placed, after), parts, to_root)?;

        let from_root = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.scatter(a, b, element, (count, root), s)
        };
        let what = format!("scatter, {count}");
        let source = if is_root { &all } else { &before };
        let result = (&before[own_bytes.clone()], &input[..]);
        self.apart(&what, element, source, result, from_root)?;
        let mut after = source.clone();
        after[own_bytes.clone()].copy_from_slice(&input);
        let parts = (whole.clone(), own_bytes);
        self.in_place(&what, element, (source, &after), parts, from_root)?;

        let of_root = brought(element, op, root.index(), 0, count);
        let of_own = brought(element, op, self.rank, 0, count);
        let broadcast = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.broadcast(a, b, element, root, s)
        };
        let what = format!("broadcast, {count}");
        self.apart(&what, element, &of_own, (&before, &of_root), broadcast)?;
        let both = (whole.clone(), whole);
        self.in_place(&what, element, (&of_own, &of_root), both, broadcast)
    }

    fn exchanges(&mut self, element: ElementType, count: usize) -> Outcome {
        let (own, ranks, op) = (self.rank, self.ranks, ReduceOp::Sum);
        // As many to each as makes the count in all.
        let each = count / ranks;
        let block = |from: usize, to: usize| brought(element, op, from, to * each, each);
        let input = brought(element, op, own, 0, each * ranks);
        let result: Vec<u8> = (0..ranks).flat_map(|from| block(from, own)).collect();
        let exchange = move |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            c.all_to_all(a, b, element, s)
        };
        let what = format!("all-to-all, {each} to each");
        self.apart(&what, element, &input, (&other(result.len()), &result), exchange)?;

        let counts = (0..ranks * ranks).map(|pair| (pair * 37 + pair / ranks) % (each + 1));
        if let Some(blocks) = Blocks::new(ranks, counts.collect()) {
            let input = brought(element, op, own, 0, blocks.sent(own));
            let result: Vec<u8> = (0..ranks)
                .flat_map(|from| {
                    let there = blocks.source(from, own);
                    brought(element, op, from, there.start, there.len())
                })
                .collect();
            let what = format!("uneven all-to-all, up to {each}");
            let uneven = |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
                c.all_to_all_uneven(a, b, element, &blocks, s)
            };
            self.apart(&what, element, &input, (&other(result.len()), &result), uneven)?;
        }
        self.messages(element, count)
    }

    /// Each to the next. Even ranks send first, so that no circle waits.
    fn messages(&mut self, element: ElementType, count: usize) -> Outcome {
        if self.ranks < 2 {
            return Ok(());
        }
        let at = |rank: usize| Rank(u32::try_from(rank % self.ranks).unwrap_or(0));
        let (next, before) = (at(self.rank + 1), at(self.rank + self.ranks - 1));
        let input = brought(element, ReduceOp::Sum, self.rank, 0, count);
        let result = brought(element, ReduceOp::Sum, before.index(), 0, count);
        let sends_first = self.rank.is_multiple_of(2);
        let pass = |c: &mut Communicator, a: &Memory, b: &Memory, s: &Stream| {
            if sends_first {
                let _ = c.send(a, element, next, s)?;
                c.receive(b, element, before, s)
            } else {
                let _ = c.receive(b, element, before, s)?;
                c.send(a, element, next, s)
            }
        };
        let what = format!("message, {count}");
        self.apart(&what, element, &input, (&other(result.len()), &result), pass)
    }

    /// Every collective that has a rate, at every size.
    fn measure(&mut self, quick: bool, sizes: &[usize], deadline: Deadline) -> Outcome {
        let mut timed: BTreeMap<(Collective, usize), Vec<f64>> = BTreeMap::new();
        for bytes in sizes.iter().copied() {
            for collective in TIMED {
                if !self.goes_on(deadline)? {
                    let missed = format!(
                        "{collective} of {bytes} bytes and what follows were not timed: no time"
                    );
                    self.found.missed.push(missed);
                    self.keep(timed);
                    return Ok(());
                }
                let each = self.timed(collective, bytes, batches(bytes, quick))?;
                timed.insert((collective, bytes), each);
            }
        }
        self.keep(timed);
        Ok(())
    }

    fn keep(&mut self, timed: BTreeMap<(Collective, usize), Vec<f64>>) {
        let each = timed.into_iter();
        let each = each.map(|((collective, bytes), microseconds)| Timed {
            collective,
            bytes,
            microseconds,
        });
        self.found.timed.extend(each);
    }

    /// Batches of an operation, each after a barrier, by the host's clock.
    fn timed(
        &mut self,
        collective: Collective,
        bytes: usize,
        (batches, repeats): (usize, u32),
    ) -> Outcome<Vec<f64>> {
        let (element, op, root) = (ElementType::F32, ReduceOp::Sum, Rank(0));
        // So many elements that ranks divide them.
        let count = (bytes / element.bytes()).next_multiple_of(self.ranks);
        let bytes = count * element.bytes();
        let zero = vec![0_u8; bytes];
        let (from, to) = (Buffer::of(&self.context, &zero)?, Buffer::of(&self.context, &zero)?);
        let (from, to) = (from.memory(), to.memory());
        let own = self.shard(count, self.rank);
        let (own, own_bytes) = (own.start * element.bytes(), own.len() * element.bytes());
        let mut each = Vec::new();
        // The first is not counted.
        for batch in 0..=batches {
            let pending = self.communicator.barrier(&self.stream)?;
            self.done(pending)?;
            let start = Instant::now();
            let mut last = None;
            for _ in 0..repeats {
                let (c, s) = (&mut self.communicator, &self.stream);
                last = Some(match collective {
                    Collective::AllReduce => c.all_reduce(&from, &to, element, op, s)?,
                    Collective::AllGather => {
                        c.all_gather(&from.part(own, own_bytes), &to, element, s)?
                    }
                    Collective::ReduceScatter => {
                        c.reduce_scatter(&from, &to.part(own, own_bytes), element, op, s)?
                    }
                    Collective::Broadcast => c.broadcast(&from, &to, element, root, s)?,
                    Collective::Reduce => c.reduce(&from, &to, element, op, root, s)?,
                    _ => c.all_to_all(&from, &to, element, s)?,
                });
            }
            self.stream.synchronize()?;
            let took = start.elapsed();
            if let Some(last) = last {
                self.communicator.wait(last)?;
            }
            if batch > 0 {
                each.push(took.as_secs_f64() * 1e6 / f64::from(repeats));
            }
        }
        Ok(each)
    }
}
