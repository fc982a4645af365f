//! Many small tensors in one operation: packed into buckets, reduced, and put back where they came from.

use std::ops::Range;

/// Which tensors go together: in their order, as many as fit, at least one. `bytes` are their sizes.
pub(super) fn buckets(bytes: &[usize], most: usize) -> Vec<Range<usize>> {
    let mut made: Vec<Range<usize>> = Vec::new();
    let mut filled = 0_usize;
    for (at, size) in bytes.iter().enumerate() {
        match made.last_mut() {
            Some(last) if filled.checked_add(*size).is_some_and(|sum| sum <= most) => {
                last.end = at + 1;
                filled += size;
            }
            _ => {
                made.push(at..at + 1);
                filled = *size;
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
        let check = |bytes: &[usize], most, expected: &[usize]| {
            let made = buckets(bytes, most);
            let counts: Vec<usize> = made.iter().map(ExactSizeIterator::len).collect();
            assert_eq!(counts, expected, "{bytes:?} in {most}");
            assert!(made.iter().flat_map(Clone::clone).eq(0..bytes.len()), "{made:?}");
        };
        check(&[], 10, &[]);
        check(&[4, 4, 4], 8, &[2, 1]);
        check(&[4, 4, 4], 100, &[3]);
        check(&[20, 4, 20, 3, 3, 3], 8, &[1, 1, 1, 2, 1]);
        check(&[0, 0, 8, 0], 8, &[4]);
        check(&[usize::MAX, usize::MAX], usize::MAX, &[1, 1]);
        check(&[5, 5], 0, &[1, 1]);
    }
}
