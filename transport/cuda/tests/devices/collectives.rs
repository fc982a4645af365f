//! Every collective, element type and operation, in and out of place.

use half::{bf16, f16};
use topology::schedule::Blocks;
use topology::{Collective, Plan, Rank};
use transport::even::{full_plan, tree_plan};
use transport::schedule::shard;
use transport::{Element, ReduceOp};
use transport_cuda::{Communicator, CudaError, Options, Stream};

use crate::double::over;
use crate::group::{Guarded, group, options, stream};
use crate::number::{Number, combined, value};

const COUNTS: [usize; 5] = [0, 1, 7, 1003, 5000];

/// One rank's side of the checks.
pub(crate) struct Side<'a> {
    pub(crate) communicator: &'a mut Communicator,
    pub(crate) stream: Stream,
    rank: usize,
    ranks: usize,
    /// Elements before each memory, which leave it unaligned for wide loads.
    pub(crate) ahead: usize,
}

impl<'a> Side<'a> {
    pub(crate) fn new(communicator: &'a mut Communicator) -> Self {
        let (rank, ranks) = (communicator.rank().index(), communicator.ranks());
        let stream = stream(communicator);
        Self { communicator, stream, rank, ranks, ahead: 0 }
    }

    fn input<T: Number>(&self, count: usize, op: ReduceOp) -> Vec<T> {
        (0..count).map(|place| T::of(value(self.rank, place, op))).collect()
    }

    fn guarded<T: Number>(&self, data: &[T]) -> Guarded<T> {
        Guarded::new(self.communicator.context(), self.ahead, data)
    }

    pub(crate) fn done(&self) {
        // What the caller's stream waits for, it has waited for.
        self.stream.synchronize().unwrap();
        assert_eq!(self.communicator.failure().map(|failure| failure.to_string()), None);
    }

    fn shard(&self, count: usize) -> std::ops::Range<usize> {
        shard(count, Rank(u32::try_from(self.rank).unwrap()), self.ranks)
    }

    fn root(&self, count: usize) -> Rank {
        Rank(u32::try_from(count % self.ranks).unwrap())
    }

    pub(crate) fn all_reduce<T: Number>(&mut self, count: usize, op: ReduceOp) {
        let expected: Vec<T> = (0..count).map(|place| combined(self.ranks, place, op)).collect();
        let input = self.input::<T>(count, op);
        let (from, to) = (self.guarded(&input), self.guarded(&vec![T::of(5); count]));
        let pending =
            self.communicator.all_reduce(&from.memory(), &to.memory(), T::TYPE, op, &self.stream);
        let pending = pending.unwrap();
        self.done();
        same(&to.read(), &expected, &format!("all-reduce, {op} of {count} {}", T::TYPE));
        assert_eq!(from.read(), input);
        self.communicator.wait(pending).unwrap();
        let both = from.memory();
        let _ = self.communicator.all_reduce(&both, &both, T::TYPE, op, &self.stream).unwrap();
        self.done();
        same(&from.read(), &expected, &format!("all-reduce in place, {op} of {count} {}", T::TYPE));
    }

    pub(crate) fn reduce_scatter<T: Number>(&mut self, count: usize, op: ReduceOp) {
        let own = self.shard(count);
        let expected: Vec<T> = own.clone().map(|place| combined(self.ranks, place, op)).collect();
        let input = self.input::<T>(count, op);
        let (from, to) = (self.guarded(&input), self.guarded(&vec![T::of(5); own.len()]));
        let _ = self
            .communicator
            .reduce_scatter(&from.memory(), &to.memory(), T::TYPE, op, &self.stream)
            .unwrap();
        self.done();
        same(&to.read(), &expected, &format!("reduce-scatter, {op} of {count} {}", T::TYPE));
        assert_eq!(from.read(), input);
        let part = from.part(own.clone());
        let _ = self
            .communicator
            .reduce_scatter(&from.memory(), &part, T::TYPE, op, &self.stream)
            .unwrap();
        self.done();
        let after = from.read();
        assert_eq!(
            after[own.clone()],
            expected,
            "reduce-scatter in place, {op} of {count} {}",
            T::TYPE
        );
        assert_eq!(
            (&after[..own.start], &after[own.end..]),
            (&input[..own.start], &input[own.end..])
        );
    }

    pub(crate) fn reduce<T: Number>(&mut self, count: usize, op: ReduceOp) {
        let root = self.root(count);
        let is_root = root.index() == self.rank;
        let expected: Vec<T> = (0..count).map(|place| combined(self.ranks, place, op)).collect();
        let (input, before) = (self.input::<T>(count, op), vec![T::of(5); count]);
        let (from, to) = (self.guarded(&input), self.guarded(&before));
        let _ = self
            .communicator
            .reduce(&from.memory(), &to.memory(), T::TYPE, op, root, &self.stream)
            .unwrap();
        self.done();
        let wanted = if is_root { &expected } else { &before };
        assert_eq!(&to.read(), wanted, "reduce, {op} of {count} {}", T::TYPE);
        assert_eq!(from.read(), input);
        let both = from.memory();
        let _ = self.communicator.reduce(&both, &both, T::TYPE, op, root, &self.stream).unwrap();
        self.done();
        let wanted = if is_root { &expected } else { &input };
        assert_eq!(&from.read(), wanted, "reduce in place, {op} of {count} {}", T::TYPE);
    }

    pub(crate) fn all_gather<T: Number>(&mut self, count: usize) {
        let own = self.shard(count);
        let of = |rank: usize, place: usize| T::of(value(rank, place, ReduceOp::Sum));
        let owner = |place: usize| {
            let owns = |r: &usize| {
                shard(count, Rank(u32::try_from(*r).unwrap()), self.ranks).contains(&place)
            };
            (0..self.ranks).find(owns).unwrap()
        };
        let expected: Vec<T> = (0..count).map(|place| of(owner(place), place)).collect();
        let input: Vec<T> = own.clone().map(|place| of(self.rank, place)).collect();
        let (from, to) = (self.guarded(&input), self.guarded(&vec![T::of(5); count]));
        let _ = self
            .communicator
            .all_gather(&from.memory(), &to.memory(), T::TYPE, &self.stream)
            .unwrap();
        self.done();
        same(&to.read(), &expected, &format!("all-gather of {count} {}", T::TYPE));
        let mut whole = vec![T::of(5); count];
        whole[own.clone()].copy_from_slice(&input);
        let both = self.guarded(&whole);
        let _ = self
            .communicator
            .all_gather(&both.part(own), &both.memory(), T::TYPE, &self.stream)
            .unwrap();
        self.done();
        same(&both.read(), &expected, &format!("all-gather in place of {count} {}", T::TYPE));
        self.gather(count, &expected, &input);
        self.scatter(count, &expected, &input);
    }

    fn gather<T: Number>(&mut self, count: usize, expected: &[T], input: &[T]) {
        let root = self.root(count);
        let is_root = root.index() == self.rank;
        let place = (count, root);
        let whole = vec![T::of(5); if is_root { count } else { 0 }];
        let (from, to) = (self.guarded(input), self.guarded(&whole));
        let _ = self
            .communicator
            .gather(&from.memory(), &to.memory(), T::TYPE, place, &self.stream)
            .unwrap();
        self.done();
        assert_eq!(
            to.read(),
            if is_root { expected } else { &[] },
            "gather of {count} {}",
            T::TYPE
        );
        let own = self.shard(count);
        let mut whole = vec![T::of(5); count];
        whole[own.clone()].copy_from_slice(input);
        let both = self.guarded(&whole);
        let _ = self
            .communicator
            .gather(&both.part(own), &both.memory(), T::TYPE, place, &self.stream)
            .unwrap();
        self.done();
        assert_eq!(
            both.read(),
            if is_root { expected } else { &whole },
            "gather in place of {count}"
        );
    }

    fn scatter<T: Number>(&mut self, count: usize, all: &[T], expected: &[T]) {
        let root = self.root(count);
        let is_root = root.index() == self.rank;
        let place = (count, root);
        let own = self.shard(count);
        let (from, to) = (
            self.guarded(if is_root { all } else { &[] }),
            self.guarded(&vec![T::of(5); own.len()]),
        );
        let _ = self
            .communicator
            .scatter(&from.memory(), &to.memory(), T::TYPE, place, &self.stream)
            .unwrap();
        self.done();
        same(&to.read(), expected, &format!("scatter of {count} {}", T::TYPE));
        let other = vec![T::of(5); count];
        let both = self.guarded(if is_root { all } else { &other });
        let _ = self
            .communicator
            .scatter(&both.memory(), &both.part(own.clone()), T::TYPE, place, &self.stream)
            .unwrap();
        self.done();
        assert_eq!(both.read()[own], *expected, "scatter in place of {count} {}", T::TYPE);
    }

    pub(crate) fn broadcast<T: Number>(&mut self, count: usize) {
        let root = self.root(count);
        let is_root = root.index() == self.rank;
        let expected: Vec<T> =
            (0..count).map(|place| T::of(value(root.index(), place, ReduceOp::Sum))).collect();
        let input = self.input::<T>(count, ReduceOp::Sum);
        let (from, to) = (self.guarded(&input), self.guarded(&vec![T::of(5); count]));
        let _ = self
            .communicator
            .broadcast(&from.memory(), &to.memory(), T::TYPE, root, &self.stream)
            .unwrap();
        self.done();
        same(&to.read(), &expected, &format!("broadcast of {count} {}", T::TYPE));
        let both = from.memory();
        let _ = self.communicator.broadcast(&both, &both, T::TYPE, root, &self.stream).unwrap();
        self.done();
        same(
            &from.read(),
            &expected,
            &format!("broadcast in place of {count} {}, root {is_root}", T::TYPE),
        );
    }

    fn all_to_all<T: Number>(&mut self, count: usize) {
        let whole = count * self.ranks;
        let input: Vec<T> =
            (0..whole).map(|place| T::of(value(self.rank, place, ReduceOp::Sum))).collect();
        let sender = |place: usize| place / count.max(1);
        let sent = |place: usize| self.rank * count + place % count.max(1);
        let expected =
            (0..whole).map(|place| T::of(value(sender(place), sent(place), ReduceOp::Sum)));
        let expected: Vec<T> = expected.collect();
        let (from, to) = (self.guarded(&input), self.guarded(&vec![T::of(5); whole]));
        let _ = self
            .communicator
            .all_to_all(&from.memory(), &to.memory(), T::TYPE, &self.stream)
            .unwrap();
        self.done();
        same(&to.read(), &expected, &format!("all-to-all of {whole} {}", T::TYPE));
        if whole > 0 {
            let both = from.memory();
            let refused = self.communicator.all_to_all(&both, &both, T::TYPE, &self.stream);
            assert!(matches!(refused, Err(CudaError::Options(_))), "{refused:?}");
        }
    }

    fn all_to_all_uneven<T: Number>(&mut self, most: usize) {
        let ranks = self.ranks;
        let counts =
            (0..ranks * ranks).map(|pair| (pair * 37 + pair / ranks) % (most + 1)).collect();
        let blocks = Blocks::new(ranks, counts).unwrap();
        let input = self.input::<T>(blocks.sent(self.rank), ReduceOp::Sum);
        let mut expected: Vec<T> = Vec::new();
        for from in 0..ranks {
            let there = blocks.source(from, self.rank);
            expected.extend(there.map(|place| T::of(value(from, place, ReduceOp::Sum))));
        }
        let (from, to) = (self.guarded(&input), self.guarded(&vec![T::of(5); expected.len()]));
        let uneven = self.communicator.all_to_all_uneven(
            &from.memory(),
            &to.memory(),
            T::TYPE,
            &blocks,
            &self.stream,
        );
        let _ = uneven.unwrap();
        self.done();
        same(&to.read(), &expected, &format!("uneven all-to-all of up to {most} {}", T::TYPE));
    }

    /// Each to the next, even ranks first, of more than slots hold.
    fn messages<T: Number>(&mut self, count: usize) {
        let (next, before) =
            ((self.rank + 1) % self.ranks, (self.rank + self.ranks - 1) % self.ranks);
        let id = |rank: usize| Rank(u32::try_from(rank).unwrap());
        let input = self.input::<T>(count, ReduceOp::Sum);
        let (from, to) = (self.guarded(&input), self.guarded(&vec![T::of(5); count]));
        // Around an odd ring two neighbours are of one kind, and one of them waits for the other: still no circle.
        let (send, receive) = (from.memory(), to.memory());
        if self.rank.is_multiple_of(2) {
            let _ = self.communicator.send(&send, T::TYPE, id(next), &self.stream).unwrap();
            let _ = self.communicator.receive(&receive, T::TYPE, id(before), &self.stream).unwrap();
        } else {
            let _ = self.communicator.receive(&receive, T::TYPE, id(before), &self.stream).unwrap();
            let _ = self.communicator.send(&send, T::TYPE, id(next), &self.stream).unwrap();
        }
        self.done();
        let expected: Vec<T> =
            (0..count).map(|place| T::of(value(before, place, ReduceOp::Sum))).collect();
        same(&to.read(), &expected, &format!("messages of {count} {}", T::TYPE));
    }

    fn reductions<T: Number>(&mut self, count: usize) {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.combines(T::TYPE)) {
            self.all_reduce::<T>(count, op);
            self.reduce_scatter::<T>(count, op);
            self.reduce::<T>(count, op);
        }
    }

    fn moves<T: Number>(&mut self, count: usize) {
        self.all_gather::<T>(count);
        self.broadcast::<T>(count);
    }

    fn exchanges<T: Number>(&mut self, count: usize) {
        self.all_to_all::<T>(count);
        self.all_to_all_uneven::<T>(count);
        self.messages::<T>(count);
    }

    /// Everything.
    pub(crate) fn all(&mut self, counts: &[usize]) {
        for (place, count) in counts.iter().copied().enumerate() {
            self.ahead = place % 3;
            self.reductions::<f32>(count);
            self.reductions::<f64>(count);
            self.reductions::<f16>(count);
            self.reductions::<bf16>(count);
            self.reductions::<i8>(count);
            self.reductions::<i32>(count);
            self.reductions::<i64>(count);
            self.reductions::<u8>(count);
            self.moves::<f32>(count);
            self.moves::<f64>(count);
            self.moves::<bf16>(count);
            self.moves::<u8>(count);
            self.exchanges::<f32>(count / 4);
            self.exchanges::<u8>(count / 4);
            let _ = self.communicator.barrier(&self.stream).unwrap();
            self.done();
        }
    }
}

pub(crate) fn check(plan: &Plan, options: impl Fn() -> Options + Sync, counts: &[usize]) {
    group(
        plan,
        |_| options(),
        |made, _| {
            let mut communicator = made.unwrap();
            Side::new(&mut communicator).all(counts);
        },
    );
}

/// Elements alike; where they are not, the first that differs, for thousands tell nobody anything.
#[track_caller]
pub(crate) fn same<T: Number>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        panic!(
            "{what}: element {at} of {} is {:?}, not {:?}",
            found.len(),
            found[at],
            expected[at]
        );
    }
}

macro_rules! groups {
    ($($name:ident: $ranks:literal),*) => {$(
        #[test]
        fn $name() {
            let test = concat!("collectives::", stringify!($name));
            over(test, &[], || check(&full_plan($ranks, 2), options, &COUNTS));
        }
    )*};
}

groups!(among_two: 2, among_three: 3, among_five: 5, among_eight: 8);

#[test]
fn alone() {
    over("collectives::alone", &[], || {
        group(
            &full_plan(1, 1),
            |_| options(),
            |made, _| {
                let mut communicator = made.unwrap();
                let mut side = Side::new(&mut communicator);
                for count in COUNTS {
                    side.reductions::<f32>(count);
                    side.moves::<f32>(count);
                    side.all_to_all::<f32>(count);
                }
            },
        );
    });
}

#[test]
fn along_trees() {
    over("collectives::along_trees", &[], || {
        for (ranks, arity) in [(4, 1), (7, 2), (6, 3)] {
            let trees = || Options { collectives: Collective::ALL[..5].to_vec(), ..options() };
            group(
                &tree_plan(ranks, 2, arity),
                |_| trees(),
                |made, _| {
                    let mut communicator = made.unwrap();
                    let mut side = Side::new(&mut communicator);
                    for count in [0, 5, 5000] {
                        side.all_reduce::<f32>(count, ReduceOp::Avg);
                        side.reduce_scatter::<i32>(count, ReduceOp::Sum);
                        side.reduce::<bf16>(count, ReduceOp::Max);
                        side.broadcast::<u8>(count);
                    }
                },
            );
        }
    });
}

#[test]
fn through_the_host() {
    over("collectives::through_the_host", &[], || {
        let staged = || Options { peer: false, ..options() };
        check(&full_plan(4, 2), staged, &[7, 2003]);
    });
}

#[test]
fn operations_follow_each_other_without_waiting() {
    over("collectives::operations_follow_each_other_without_waiting", &[], || {
        let plan = full_plan(4, 2);
        let wanted = || Options { priorities: 2, ..options() };
        group(
            &plan,
            |_| wanted(),
            |made, rank| {
                let mut communicator = made.unwrap();
                let streams = [stream(&communicator), stream(&communicator)];
                let start = vec![if rank == Rank(0) { 1.0_f32 } else { 0.0 }; 3000];
                let buffers = [0, 1].map(|_| Guarded::new(communicator.context(), 0, &start));
                let mut last = None;
                // More messages than words of 32 bits count before they wrap, for they begin near their end.
                for turn in 0..40 {
                    for (priority, (stream, buffer)) in (0..).zip(streams.iter().zip(&buffers)) {
                        communicator.set_priority(priority).unwrap();
                        let memory = buffer.memory();
                        let op = if turn % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
                        last = Some(
                            communicator
                                .all_reduce(&memory, &memory, f32::TYPE, op, stream)
                                .unwrap(),
                        );
                    }
                }
                communicator.wait(last.unwrap()).unwrap();
                streams.iter().for_each(|stream| stream.synchronize().unwrap());
                // The first sum of twenty has one summand that is not nought, the others four alike; averages change nothing.
                let expected = 4.0_f32.powi(19);
                for buffer in &buffers {
                    assert_eq!(buffer.read(), vec![expected; 3000]);
                }
            },
        );
    });
}
