//! Many small tensors in one operation: packed into buckets, reduced, and put back where they came from, all in the order of streams.

use std::ops::Range;

use topology::Collective;
use transport::{ElementType, ReduceOp};

use crate::buffer::Memory;
use crate::call::Call;
use crate::communicator::{Communicator, Pending, Request};
use crate::error::CudaError;
use crate::stream::Stream;

/// Where a tensor begins in a bucket: at the widest load.
const BORDER: usize = 16;

impl Communicator {
    /// An all-reduce in place of each tensor, as many in one operation as fit into [`Options::bucket_bytes`](crate::Options::bucket_bytes);
    /// the last operation, which is done after all. `None` where there is no tensor.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_many(
        &mut self,
        tensors: &[Memory],
        element: ElementType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Option<Pending>, CudaError> {
        let mut last = None;
        for bucket in buckets(tensors.iter().map(Memory::bytes), self.bucket_bytes()) {
            last = Some(match &tensors[bucket] {
                [alone] => self.all_reduce(alone, alone, element, op, stream)?,
                several => self.all_reduce_bucket(several, element, op, stream)?,
            });
        }
        Ok(last)
    }

    fn all_reduce_bucket(
        &mut self,
        tensors: &[Memory],
        element: ElementType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<Pending, CudaError> {
        let bytes = tensors.iter().map(|tensor| tensor.bytes().next_multiple_of(BORDER)).sum();
        let size = element.bytes();
        if let Some(odd) = tensors.iter().find(|tensor| !tensor.bytes().is_multiple_of(size)) {
            let (what, found) = ("memory for whole elements", odd.bytes());
            return Err(CudaError::Length { what, expected: found.next_multiple_of(size), found });
        }
        let whole = self.bucket(bytes)?;
        let mut start = 0;
        let mut parts = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            parts.push((whole.part(start, tensor.bytes()), tensor.clone()));
            start += tensor.bytes().next_multiple_of(BORDER);
        }
        let (collective, root, receiver) = (Collective::AllReduce, None, None);
        let call = Call { collective, root, receiver, element, op: Some(op), count: bytes / size };
        let result = Some(whole.clone());
        self.enqueue(
            Request { call, blocks: None, input: &whole, output: &whole, result, parts },
            stream,
        )
    }
}

/// Which tensors go together: in their order, as many as fit, at least one.
fn buckets(bytes: impl Iterator<Item = usize>, most: usize) -> Vec<Range<usize>> {
    let mut made: Vec<Range<usize>> = Vec::new();
    let mut filled = 0_usize;
    for (at, size) in bytes.enumerate() {
        let size = size.next_multiple_of(BORDER);
        match made.last_mut() {
            Some(last) if filled.checked_add(size).is_some_and(|sum| sum <= most) => {
                last.end = at + 1;
                filled += size;
            }
            _ => {
                made.push(at..at + 1);
                filled = size;
            }
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_keep_the_order_and_the_limit() {
        // Tensors in each bucket.
        #[track_caller]
        fn check(bytes: &[usize], most: usize, expected: &[usize]) {
            let made = buckets(bytes.iter().copied(), most);
            let counts: Vec<usize> = made.iter().map(ExactSizeIterator::len).collect();
            assert_eq!(counts, expected, "{bytes:?} in {most}");
            assert!(made.iter().flat_map(Clone::clone).eq(0..bytes.len()), "{made:?}");
        }
        check(&[], 64, &[]);
        check(&[4, 4, 4], 32, &[2, 1]);
        check(&[16, 16, 16], 100, &[3]);
        check(&[200, 4, 200, 3], 64, &[1, 1, 1, 1]);
        check(&[5, 5], 0, &[1, 1]);
    }
}
