//! What goes into collectives and what must come out, as bytes of any element type.
//!
//! Numbers are small and whole, so that every type holds every sum and product of them exactly, in whatever order a plan combines.

use half::{bf16, f16};
use transport::{ElementType, ReduceOp};

use crate::reference::folded;

/// Ranks that bring factors other than one: 2^8 is a number of every type but those of 8 bits, which wrap alike.
const FACTORS: usize = 8;

/// What a rank brings at the places from `start` on.
pub(crate) fn brought(
    element: ElementType,
    op: ReduceOp,
    rank: usize,
    start: usize,
    count: usize,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * element.bytes());
    for place in start..start + count {
        let mixed = (rank * 7 + place * 3 + place / 11) % 8;
        let value = match op {
            ReduceOp::Prod if rank < FACTORS => 1 + mixed % 2,
            ReduceOp::Prod => 1,
            _ => mixed,
        };
        put(element, u8::try_from(value).unwrap_or(0), &mut bytes);
    }
    bytes
}

fn put(element: ElementType, value: u8, into: &mut Vec<u8>) {
    match element {
        ElementType::F32 => into.extend(f32::from(value).to_le_bytes()),
        ElementType::F64 => into.extend(f64::from(value).to_le_bytes()),
        ElementType::F16 => into.extend(f16::from(value).to_le_bytes()),
        ElementType::Bf16 => into.extend(bf16::from(value).to_le_bytes()),
        ElementType::I8 | ElementType::U8 => into.push(value),
        ElementType::I32 => into.extend(i32::from(value).to_le_bytes()),
        ElementType::I64 => into.extend(i64::from(value).to_le_bytes()),
    }
}

/// What all ranks together make of so many places from the first on.
pub(crate) fn combined(element: ElementType, op: ReduceOp, ranks: usize, count: usize) -> Vec<u8> {
    let sources: Vec<_> = (0..ranks).map(|rank| brought(element, op, rank, 0, count)).collect();
    let divisor = if op == ReduceOp::Avg { i32::try_from(ranks).unwrap_or(i32::MAX) } else { 0 };
    folded(element, op, divisor, &sources)
}

/// Bytes that nothing above makes: what must be overwritten, and what must not.
pub(crate) fn other(bytes: usize) -> Vec<u8> {
    vec![0xa5; bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_products_are_exact_in_every_type() {
        for element in ElementType::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.combines(element)) {
                for ranks in [1, 2, 3, 8, 16] {
                    // In the other order the result is the same: it does not depend on the plan.
                    let mut sources: Vec<_> =
                        (0..ranks).map(|rank| brought(element, op, rank, 0, 100)).collect();
                    sources.reverse();
                    let divisor =
                        if op == ReduceOp::Avg { i32::try_from(ranks).unwrap() } else { 0 };
                    let reversed = folded(element, op, divisor, &sources);
                    assert_eq!(
                        combined(element, op, ranks, 100),
                        reversed,
                        "{element} {op} {ranks}"
                    );
                }
            }
        }
        assert_eq!(brought(ElementType::I8, ReduceOp::Sum, 1, 0, 3), [7, 2, 5]);
        assert_eq!(brought(ElementType::I8, ReduceOp::Sum, 1, 1, 2), [2, 5]);
    }
}
