//! The one place that computes: every element type and operation by the same few loops.
//!
//! Plain loops over slices of one length: the compiler vectorises them, for AVX2 where the processor has it, which is all
//! there is to gain, for the loops run at the speed of memory. Types of 16 bits are widened to `f32` in pieces that stay in
//! the first-level cache.
#![expect(unsafe_code, reason = "links hand out places in memory that other processes share")]

use std::mem::MaybeUninit;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::{Element, ElementType, ReduceOp};
use crate::memory::{Slot, Space, copy};

/// The loops of one element type and operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// Memory it works on.
    pub(crate) space: Space,
    pub(crate) element: ElementType,
    /// `None` where nothing is combined.
    pub(crate) op: Option<ReduceOp>,
    loops: Loops,
}

#[derive(Clone, Copy, Debug)]
struct Loops {
    /// `dst = a (op) b`; `dst` may be the same place as either.
    pair: fn(dst: Slot, a: Slot, b: Slot),
    /// `dst = dst / ranks`.
    divide: fn(dst: Slot, ranks: usize),
}

/// Bytes that stay in the first-level cache between two passes over them.
const PIECE: usize = 8 << 10;

impl Kernel {
    /// For collectives that combine nothing.
    pub(crate) fn moving(element: ElementType) -> Self {
        Self { op: None, ..Self::of(element, ReduceOp::Sum) }
    }

    /// `None` where the operation does not combine such elements.
    pub(crate) fn new(element: ElementType, op: ReduceOp) -> Option<Self> {
        op.combines(element).then(|| Self::of(element, op))
    }

    fn of(element: ElementType, op: ReduceOp) -> Self {
        let loops = match element {
            ElementType::F32 => of_type::<f32>(op),
            ElementType::F64 => of_type::<f64>(op),
            ElementType::F16 => of_type::<f16>(op),
            ElementType::Bf16 => of_type::<bf16>(op),
            ElementType::I8 => of_type::<i8>(op),
            ElementType::I32 => of_type::<i32>(op),
            ElementType::I64 => of_type::<i64>(op),
            ElementType::U8 => of_type::<u8>(op),
        };
        Self { space: Space::Host, element, op: Some(op), loops }
    }

    /// The same for memory elsewhere, of which it moves elements and combines none.
    pub(crate) fn in_space(self, space: Space) -> Self {
        Self { space, op: None, ..self }
    }

    pub(crate) const fn element_bytes(&self) -> usize {
        self.element.bytes()
    }

    /// `dst = a (op) b`; `dst` may be the same place as either.
    pub(crate) fn reduce(&self, dst: Slot, a: Slot, b: Slot) {
        (self.loops.pair)(dst, a, b);
    }

    /// `dst = a (op) b` and `next = dst`; each target may be the same place as a source.
    pub(crate) fn reduce_both(&self, dst: Slot, next: Slot, a: Slot, b: Slot) {
        for (start, bytes) in pieces(dst.bytes()) {
            let part = |slot: Slot| slot.part(start, bytes);
            (self.loops.pair)(part(dst), part(a), part(b));
            copy(part(next), part(dst));
        }
    }

    /// Combines the sources in their order and leaves the result in every target. A target may be the same place as a source.
    pub(crate) fn fold(&self, targets: &[Slot], sources: &[Slot]) {
        match (targets, sources) {
            (_, []) => {}
            (_, [only]) => targets.iter().for_each(|target| copy(*target, *only)),
            ([target], [a, b]) => (self.loops.pair)(*target, *a, *b),
            // Needs no memory in between: a piece of either source has been read before anything is written over it.
            ([first, second], [a, b]) => self.reduce_both(*first, *second, *a, *b),
            (_, [first, second, rest @ ..]) => {
                let mut memory = MaybeUninit::<Piece>::uninit();
                for (start, bytes) in pieces(first.bytes()) {
                    let part = |slot: &Slot| slot.part(start, bytes);
                    let sum = Slot::of_piece(&mut memory).part(0, bytes);
                    (self.loops.pair)(sum, part(first), part(second));
                    for source in rest {
                        (self.loops.pair)(sum, sum, part(source));
                    }
                    targets.iter().for_each(|target| copy(part(target), sum));
                }
            }
        }
    }

    /// What remains to be done once everything is combined, on the result.
    pub(crate) fn finish(&self, result: Slot, ranks: usize) {
        if self.op == Some(ReduceOp::Avg) {
            (self.loops.divide)(result, ranks);
        }
    }
}

/// Memory for one piece, of any element type.
#[repr(align(64))]
struct Piece(#[expect(dead_code, reason = "reached by address")] [u8; PIECE]);

impl Slot {
    fn of_piece(memory: &mut MaybeUninit<Piece>) -> Self {
        // SAFETY: `fold` writes it before it reads it, and keeps it as long as the slot.
        unsafe { Self::new(std::ptr::NonNull::from(memory).cast(), PIECE, Default::default()) }
    }
}

fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(PIECE).map(move |start| (start, PIECE.min(bytes - start)))
}

/// What the operations need of a type.
trait Number: Element {
    /// What it is computed in.
    fn add(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn most(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn over(self, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn most(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn over(self, ranks: usize) -> Self {
                // More ranks than an element can count leave a quotient of 0, which the wider division gives.
                let quotient = i64::from(self) / i64::try_from(ranks).unwrap_or(i64::MAX);
                Self::try_from(quotient).unwrap_or_default()
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn most(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            fn and(self, _: Self) -> Self {
                unreachable!("no kernel combines floats by bits")
            }
            fn or(self, _: Self) -> Self {
                unreachable!("no kernel combines floats by bits")
            }
            #[inline(always)]
            fn over(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        }
    )*};
}

integers!(i8, i32, i64, u8);
floats!(f32, f64);

/// An operation on any type.
trait Combine {
    fn of<T: Number>(a: T, b: T) -> T;
}

macro_rules! operations {
    ($($name:ident => $method:ident),*) => {$(
        struct $name;
        impl Combine for $name {
            #[inline(always)]
            fn of<T: Number>(a: T, b: T) -> T {
                a.$method(b)
            }
        }
    )*};
}

operations!(Sum => add, Prod => times, Min => least, Max => most, And => and, Or => or);

/// A type with its loops.
trait Looped: Element {
    fn pair<O: Combine>(dst: Slot, a: Slot, b: Slot);
    fn divide(dst: Slot, ranks: usize);
}

fn of_type<T: Looped>(op: ReduceOp) -> Loops {
    let pair = match op {
        ReduceOp::Sum | ReduceOp::Avg => widest::<T, Sum>(),
        ReduceOp::Prod => widest::<T, Prod>(),
        ReduceOp::Min => widest::<T, Min>(),
        ReduceOp::Max => widest::<T, Max>(),
        ReduceOp::And => widest::<T, And>(),
        ReduceOp::Or => widest::<T, Or>(),
    };
    Loops { pair, divide: T::divide }
}

/// The loop for the widest registers this processor has among those the code was made for.
fn widest<T: Looped, O: Combine>() -> fn(Slot, Slot, Slot) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,f16c")]
        fn with_avx2<T: Looped, O: Combine>(dst: Slot, a: Slot, b: Slot) {
            T::pair::<O>(dst, a, b);
        }
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c") {
            // SAFETY: The processor was just asked for both.
            return |dst, a, b| unsafe { with_avx2::<T, O>(dst, a, b) };
        }
    }
    T::pair::<O>
}

macro_rules! looped {
    ($($type:ty),*) => {$(
        impl Looped for $type {
            #[inline(always)]
            fn pair<O: Combine>(dst: Slot, a: Slot, b: Slot) {
                pair_plain::<Self, O>(dst, a, b);
            }
            fn divide(dst: Slot, ranks: usize) {
                // SAFETY: The result is this rank's alone.
                let all = unsafe { dst.write::<Self>() };
                all.iter_mut().for_each(|x| *x = x.over(ranks));
            }
        }
    )*};
}

looped!(f32, f64, i8, i32, i64, u8);

/// `dst`, `a` and `b` are apart or the same place: input and output of one operation, received messages, slots to send.
#[inline(always)]
fn pair_plain<T: Number, O: Combine>(dst: Slot, a: Slot, b: Slot) {
    assert!(dst.bytes() == a.bytes() && a.bytes() == b.bytes(), "slots of one length");
    // SAFETY: Any bits are a number, and nobody else writes a source while it is combined.
    let read = |slot: Slot| unsafe { slot.read::<T>() };
    // SAFETY: Nobody else looks at a target, and `read` is used below only on what is apart from it.
    let write = |slot: Slot| unsafe { slot.write::<T>() };
    match (dst.same_place(a), dst.same_place(b)) {
        (false, false) => {
            for ((d, a), b) in write(dst).iter_mut().zip(read(a)).zip(read(b)) {
                *d = O::of(*a, *b);
            }
        }
        (true, false) => write(dst).iter_mut().zip(read(b)).for_each(|(d, b)| *d = O::of(*d, *b)),
        (false, true) => write(dst).iter_mut().zip(read(a)).for_each(|(d, a)| *d = O::of(*a, *d)),
        (true, true) => write(dst).iter_mut().for_each(|d| *d = O::of(*d, *d)),
    }
}

/// Elements widened at a time.
const WIDE: usize = 512;

macro_rules! looped_in_f32 {
    ($($type:ty),*) => {$(
        impl Looped for $type {
            #[inline(always)]
            fn pair<O: Combine>(dst: Slot, a: Slot, b: Slot) {
                assert!(dst.bytes() == a.bytes() && a.bytes() == b.bytes(), "slots of one length");
                let (mut left, mut right) = ([0_f32; WIDE], [0_f32; WIDE]);
                let length = dst.bytes() / size_of::<Self>();
                for start in (0..length).step_by(WIDE) {
                    let count = WIDE.min(length - start);
                    let part = |slot: Slot| {
                        slot.part(start * size_of::<Self>(), count * size_of::<Self>())
                    };
                    let (left, right) = (&mut left[..count], &mut right[..count]);
                    // SAFETY: Any bits are a number, and both are read to their end before `dst` is written.
                    let read = |slot: Slot| unsafe { part(slot).read::<Self>() };
                    read(a).convert_to_f32_slice(left);
                    read(b).convert_to_f32_slice(right);
                    for (l, r) in left.iter_mut().zip(right) {
                        *l = O::of(*l, *r);
                    }
                    // SAFETY: Written here alone.
                    unsafe { part(dst).write::<Self>() }.convert_from_f32_slice(left);
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "a number of ranks")]
            fn divide(dst: Slot, ranks: usize) {
                // SAFETY: The result is this rank's alone.
                let all = unsafe { dst.write::<Self>() };
                all.iter_mut().for_each(|x| *x = Self::from_f32(x.to_f32() / ranks as f32));
            }
        }
    )*};
}

looped_in_f32!(f16, bf16);

#[cfg(test)]
mod tests;
