//! Everybody to everybody at once.

use std::ops::Range;

use topology::schedule::{Buffer, Op, Slice};

use super::{Blocks, Keep, Move, Round, at};
use crate::schedule::step;

/// Each member's blocks, which it has in `from`, to all others, at the place they have in the output's whole.
///
/// From the input, which is nothing but the member's blocks one after the other, they are also copied to its own output.
pub(super) fn all_gather(members: &[usize], blocks: &Blocks, from: Buffer) -> Vec<Round> {
    let mut round = Round::default();
    for (sender, pieces) in members.iter().zip(blocks) {
        let mut start = 0;
        for piece in pieces {
            let place = match from {
                Buffer::Input => at(from, &(start..start + piece.len())),
                _ => at(from, piece),
            };
            start += piece.len();
            let kept = at(Buffer::Output, piece);
            for receiver in members.iter().filter(|receiver| *receiver != sender) {
                round.moves.push(Move {
                    from: *sender,
                    to: *receiver,
                    src: place,
                    dst: kept,
                    add: None,
                });
            }
            if from == Buffer::Input {
                round.locals.push((*sender, step(Op::Copy, place, kept)));
            }
        }
    }
    vec![round]
}

/// Each member's blocks of what is in `from`, at the place they have in the whole, to it, where they are added up in the order of members.
pub(super) fn reduce_scatter(
    members: &[usize],
    blocks: &Blocks,
    from: Buffer,
    keep: Keep,
) -> Vec<Round> {
    // Scratch memory beyond what lies there by its place in the whole.
    let free = match from == Buffer::Scratch || keep == Keep::Scratch {
        true => blocks.iter().flatten().map(|piece| piece.end).max().unwrap_or(0),
        false => 0,
    };
    let mut round = Round::default();
    for (place, (receiver, pieces)) in members.iter().zip(blocks).enumerate() {
        let size: usize = pieces.iter().map(Range::len).sum();
        // What came from each member, then the sum.
        let slot = |member: usize, start: usize, piece: &Range<usize>| {
            let first = free + member * size + start;
            at(Buffer::Scratch, &(first..first + piece.len()))
        };
        let mut start = 0;
        for piece in pieces {
            for (sender_place, sender) in
                members.iter().enumerate().filter(|(other, _)| *other != place)
            {
                round.moves.push(Move {
                    from: *sender,
                    to: *receiver,
                    src: at(from, piece),
                    dst: slot(sender_place, start, piece),
                    add: None,
                });
            }
            let sum = slot(0, start, piece);
            let own = at(from, piece);
            let mut local =
                |op: Op, src: Slice, dst: Slice| round.locals.push((*receiver, step(op, src, dst)));
            if place == 0 {
                local(Op::Copy, own, sum);
            }
            for member in 1..members.len() {
                let part = if member == place { own } else { slot(member, start, piece) };
                local(Op::Reduce, part, sum);
            }
            let kept = match keep {
                Keep::InPlace => at(Buffer::Output, piece),
                Keep::Alone => at(Buffer::Output, &(start..start + piece.len())),
                Keep::Scratch => at(Buffer::Scratch, piece),
            };
            local(Op::Copy, sum, kept);
            start += piece.len();
        }
    }
    vec![round]
}

/// All of it from everybody to everybody.
pub(super) fn one_shot(members: &[usize], range: &Range<usize>, from: Buffer) -> Vec<Round> {
    let blocks: Vec<Vec<Range<usize>>> = members.iter().map(|_| vec![range.clone()]).collect();
    reduce_scatter(members, &blocks, from, Keep::InPlace)
}
