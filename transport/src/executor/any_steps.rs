//! Steps and places that tests of what lasts and what lands share.

use proptest::prelude::*;
use topology::schedule::{Buffer, Op, Slice, Step, StepRef};

/// Where slices lie: output `ahead` bytes after input, scratch far away.
pub(super) fn place(ahead: usize) -> impl Fn(Slice) -> (usize, usize) {
    move |slice| {
        let base = match slice.buffer {
            Buffer::Input => 0,
            Buffer::Output => ahead,
            Buffer::Scratch => 1 << 40,
        };
        (base + slice.offset, base + slice.offset + slice.count)
    }
}

/// Up to three lanes of any steps, some of which wait for another.
pub(super) fn any_lanes() -> impl Strategy<Value = Vec<Vec<Step>>> {
    const OPS: [Op; 8] = [
        Op::Copy,
        Op::Reduce,
        Op::Send,
        Op::Recv,
        Op::RecvCopySend,
        Op::RecvReduceCopy,
        Op::RecvReduceSend,
        Op::RecvReduceCopySend,
    ];
    let step = (0..OPS.len(), 0..20_usize, 0..6_usize, any::<bool>(), 0..4_u32, 0..6_u32).prop_map(
        |(op, offset, count, output, lane, step)| {
            let buffer = if output { Buffer::Output } else { Buffer::Input };
            let slice = Slice { buffer, offset, count };
            let after = if lane < 3 { vec![StepRef { lane, step }] } else { Vec::new() };
            Step { op: OPS[op], src: slice, dst: slice, after }
        },
    );
    proptest::collection::vec(proptest::collection::vec(step, 0..6), 1..4)
}
