//! Small whole numbers of every type, and what they combine to.

use topology::Collective;
use transport::{Element, ReduceOp};

/// Elements repeat after this many; a prime, so that no chunk boundary falls together with it.
const PERIOD: usize = 1009;

/// A type with its small whole numbers.
pub(crate) trait Value: Element {
    /// Integers keep the bits that fit, as their sums do.
    fn of(value: f64) -> Self;
}

macro_rules! values {
    ($($type:ty, $from:expr);*) => {$(
        impl Value for $type {
            fn of(value: f64) -> Self {
                $from(value)
            }
        }
    )*};
}

#[expect(clippy::cast_possible_truncation, reason = "small whole numbers")]
const fn whole(value: f64) -> i64 {
    value as i64
}

/// The low bytes of a whole number, as wrapping sums keep them.
fn low<const N: usize>(value: f64) -> [u8; N] {
    let bytes = whole(value).to_le_bytes();
    std::array::from_fn(|at| bytes[at])
}

values!(
    f64, |v| v;
    i64, whole;
    i32, |v| Self::from_le_bytes(low(v));
    i8, |v| Self::from_le_bytes(low(v));
    u8, |v| Self::from_le_bytes(low(v))
);

impl Value for f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounded once, as the division would be")]
    fn of(value: f64) -> Self {
        value as Self
    }
}

impl Value for half::f16 {
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

impl Value for half::bf16 {
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
}

/// What is expected of a benchmark's buffers.
pub(crate) struct Values {
    pub(crate) collective: Collective,
    pub(crate) op: ReduceOp,
    pub(crate) ranks: usize,
    pub(crate) rank: usize,
    pub(crate) count: usize,
}

impl Values {
    /// What element `index` of the whole is on a rank.
    fn input(&self, rank: usize, index: usize) -> f64 {
        let place = index % PERIOD;
        let combines = matches!(
            self.collective,
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter
        );
        let value = match (combines, self.op) {
            // Up to 101 ranks hold different values in every place, so that what was never moved shows. Every type has them.
            (false, _) => (place * 7 + rank * 31) % 101,
            // A product of at most one 2 fits every type.
            (true, ReduceOp::Prod) => 1 + usize::from(place % self.ranks == rank),
            (true, _) => (place * 7 + rank * 31) % 3,
        };
        f64::from(u8::try_from(value).unwrap_or(0))
    }

    fn shard(&self, rank: usize) -> std::ops::Range<usize> {
        let rank = topology::Rank(u32::try_from(rank).unwrap_or(u32::MAX));
        transport::schedule::shard(self.count, rank, self.ranks)
    }

    /// This rank's input: the whole.
    pub(crate) fn fill<T: Value>(&self, buffer: &mut [T]) {
        let table: Vec<T> = (0..PERIOD).map(|i| T::of(self.input(self.rank, i))).collect();
        for chunk in buffer.chunks_mut(PERIOD) {
            chunk.copy_from_slice(&table[..chunk.len()]);
        }
    }

    /// Elements of the result that are wrong; `result` begins with element `start` of the whole.
    pub(crate) fn wrong<T: Value>(&self, result: &[T], start: usize) -> u64 {
        let table: Vec<T> = (0..PERIOD).map(|i| T::of(self.combined(i))).collect();
        let wrong = |range: std::ops::Range<usize>, value: &dyn Fn(usize) -> T| {
            range.filter(|i| result[i - start] != value(*i)).count() as u64
        };
        let of_rank = |rank: usize| move |i: usize| T::of(self.input(rank, i));
        let all = start..start + result.len();
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                wrong(all, &|i| table[i % PERIOD])
            }
            Collective::Broadcast | Collective::Scatter => wrong(all, &of_rank(0)),
            Collective::AllGather | Collective::Gather => {
                (0..self.ranks).map(|rank| wrong(self.shard(rank), &of_rank(rank))).sum()
            }
            Collective::AllToAll => {
                let own = self.shard(self.rank).start;
                (0..self.ranks)
                    .map(|rank| {
                        let from = self.shard(rank);
                        let (at, value) = (from.start, of_rank(rank));
                        wrong(from, &|i| value(i - at + own))
                    })
                    .sum()
            }
            Collective::SendRecv => wrong(all, &of_rank((self.rank + self.ranks - 1) % self.ranks)),
            Collective::Barrier => 0,
        }
    }

    fn combined(&self, index: usize) -> f64 {
        let of_all = (0..self.ranks).map(|rank| self.input(rank, index));
        let bits = |f: fn(u8, u8) -> u8| {
            let small = |value: f64| u8::try_from(whole(value)).unwrap_or(0);
            f64::from(of_all.clone().map(small).reduce(f).unwrap_or(0))
        };
        let sum = || of_all.clone().sum::<f64>();
        match self.op {
            ReduceOp::Prod => of_all.product(),
            ReduceOp::Min => of_all.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => of_all.fold(0.0, f64::max),
            #[expect(clippy::cast_precision_loss, reason = "a number of ranks")]
            ReduceOp::Avg => sum() / self.ranks as f64,
            ReduceOp::And => bits(|a, b| a & b),
            ReduceOp::Or => bits(|a, b| a | b),
            _ => sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_elements_are_counted() {
        let values = |rank| Values {
            collective: Collective::AllReduce,
            op: ReduceOp::Sum,
            ranks: 2,
            rank,
            count: 3000,
        };
        let (mut a, mut b) = (vec![0_i32; 3000], vec![0_i32; 3000]);
        values(0).fill(&mut a);
        values(1).fill(&mut b);
        let mut sum: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(values(0).wrong(&sum, 0), 0);
        assert_eq!(values(0).wrong(&sum[17..], 17), 0);
        sum[2000] += 1;
        assert_eq!(values(0).wrong(&sum, 0), 1);
        let gather = |rank| Values { collective: Collective::AllGather, ..values(rank) };
        gather(0).fill(&mut a);
        gather(1).fill(&mut b);
        let gathered: Vec<i32> = [&a[..1500], &b[1500..]].concat();
        assert_eq!(gather(0).wrong(&gathered, 0), 0);
        assert_eq!(gather(0).wrong(&a, 0), 1500, "no element of one rank is another's");
    }
}
