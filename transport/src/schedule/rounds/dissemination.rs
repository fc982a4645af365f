//! Blocks that spread to ranks at distances 1, 2, 4, .. in turn (Bruck), or the other way about (PAT), among any number of members.
//!
//! Member i holds the block of member i - o under the offset o, in the order in which offsets come:
//!
//! ```text
//!   5 members, near first    0 | 1 | 2 3 | 4          far first    0 | 4 | 2 | 1 3
//!   at distance d            those o with o + d < 5 go to the member d further on, as o + d
//! ```
//!
//! so that each rank sends and hears one message in each round. A reduce-scatter is the same film backwards: sums come back the way that
//! blocks would have gone.

use std::ops::Range;

use topology::schedule::{Buffer, Op, Slice, Step};

use super::{Blocks, Move, Order, Round, at};
use crate::schedule::step;

/// Blocks that each member has in its input, one after the other.
pub(super) fn all_gather(members: &[usize], blocks: &Blocks, order: Order) -> Vec<Round> {
    let film = Film::new(members, blocks, order);
    let start =
        film.own(|own, alone| step(Op::Copy, Slice { buffer: Buffer::Input, ..alone }, own));
    let mut rounds = vec![start];
    rounds.extend(film.spread());
    film.leave(&mut rounds);
    rounds
}

/// Sums of blocks that each member has in `from`, at their place in the whole; the output is the member's alone.
pub(super) fn reduce_scatter(
    members: &[usize],
    blocks: &Blocks,
    from: Buffer,
    order: Order,
) -> Vec<Round> {
    let film = Film::new(members, blocks, order);
    let mut rounds = vec![film.take(from)];
    rounds.extend(film.sum());
    let end = film.own(|own, alone| step(Op::Copy, own, Slice { buffer: Buffer::Output, ..alone }));
    rounds.push(end);
    rounds
}

/// Both, one after the other.
pub(super) fn all_reduce(
    members: &[usize],
    blocks: &Blocks,
    from: Buffer,
    order: Order,
) -> Vec<Round> {
    let film = Film::new(members, blocks, order);
    let mut rounds = vec![film.take(from)];
    rounds.extend(film.sum());
    rounds.extend(film.spread());
    film.leave(&mut rounds);
    rounds
}

struct Film<'a> {
    members: &'a [usize],
    blocks: &'a Blocks,
    /// Offsets in the order in which they come.
    offsets: Vec<usize>,
    /// By round: distance, which of the offsets so far are sent, and the places they take.
    rounds: Vec<(usize, Vec<usize>, usize)>,
    /// By member: where in the scratch memory each offset's block begins, and the end.
    starts: Vec<Vec<usize>>,
}

impl<'a> Film<'a> {
    fn new(members: &'a [usize], blocks: &'a Blocks, order: Order) -> Self {
        let n = members.len();
        let mut distances: Vec<usize> =
            core::iter::successors(Some(1), |d| Some(2 * d)).take_while(|d| *d < n).collect();
        if order == Order::FarFirst {
            distances.reverse();
        }
        let mut offsets = vec![0];
        let mut rounds = Vec::new();
        for distance in distances {
            let sent: Vec<usize> =
                (0..offsets.len()).filter(|&at| offsets[at] + distance < n).collect();
            let first = offsets.len();
            let come: Vec<usize> = sent.iter().map(|&at| offsets[at] + distance).collect();
            offsets.extend(come);
            rounds.push((distance, sent, first));
        }
        // What lies in the scratch memory by its place in the whole must not be overwritten.
        let free = blocks.iter().flatten().map(|piece| piece.end).max().unwrap_or(0);
        let size = |block: usize| blocks[block].iter().map(Range::len).sum::<usize>();
        let starts = (0..n)
            .map(|place| {
                let mut at = free;
                let mut starts = vec![at];
                for offset in &offsets {
                    at += size((place + n - offset) % n);
                    starts.push(at);
                }
                starts
            })
            .collect();
        Self { members, blocks, offsets, rounds, starts }
    }

    /// The blocks a member holds in places of the order.
    fn held(&self, place: usize, order: Range<usize>) -> Slice {
        let starts = &self.starts[place];
        at(Buffer::Scratch, &(starts[order.start]..starts[order.end]))
    }

    /// A step of each member on its own block: where it is held, and the same elements from the start of a buffer on.
    fn own(&self, make: impl Fn(Slice, Slice) -> Step) -> Round {
        let members = self.members.iter().enumerate();
        let locals = members.map(|(place, member)| {
            let own = self.held(place, 0..1);
            (*member, make(own, Slice { offset: 0, ..own }))
        });
        Round { moves: Vec::new(), locals: locals.collect() }
    }

    /// Pieces of one block: where each is in the whole, and where it is held.
    fn pieces(
        &self,
        place: usize,
        at_order: usize,
    ) -> impl Iterator<Item = (Range<usize>, Slice)> + '_ {
        let n = self.members.len();
        let block = (place + n - self.offsets[at_order]) % n;
        let mut start = self.starts[place][at_order];
        self.blocks[block].iter().map(move |piece| {
            let held = at(Buffer::Scratch, &(start..start + piece.len()));
            start += piece.len();
            (piece.clone(), held)
        })
    }

    /// Each member's own part of every block, to where it is summed up.
    fn take(&self, from: Buffer) -> Round {
        let mut round = Round::default();
        self.pieces_of_all(|_, whole, held| step(Op::Copy, at(from, &whole), held), &mut round);
        round
    }

    /// Every block to its place in the output.
    fn leave(&self, rounds: &mut Vec<Round>) {
        let mut round = Round::default();
        self.pieces_of_all(
            |_, whole, held| step(Op::Copy, held, at(Buffer::Output, &whole)),
            &mut round,
        );
        rounds.push(round);
    }

    fn pieces_of_all(&self, make: impl Fn(usize, Range<usize>, Slice) -> Step, round: &mut Round) {
        for (place, member) in self.members.iter().enumerate() {
            for order in 0..self.offsets.len() {
                for (whole, held) in self.pieces(place, order) {
                    round.locals.push((*member, make(place, whole, held)));
                }
            }
        }
    }

    fn spread(&self) -> Vec<Round> {
        let forth = |near: (usize, Slice), far: (usize, Slice)| Move {
            from: near.0,
            to: far.0,
            src: near.1,
            dst: far.1,
            add: None,
        };
        self.rounds.iter().map(|round| self.exchange(round, forth)).collect()
    }

    fn sum(&self) -> Vec<Round> {
        let back = |near: (usize, Slice), far: (usize, Slice)| Move {
            from: far.0,
            to: near.0,
            src: far.1,
            dst: near.1,
            add: Some(near.1),
        };
        self.rounds.iter().rev().map(|round| self.exchange(round, back)).collect()
    }

    /// One round: what the near end of each pair holds of the blocks it sends, and where the far end holds them.
    fn exchange(
        &self,
        (distance, sent, first): &(usize, Vec<usize>, usize),
        moved: impl Fn((usize, Slice), (usize, Slice)) -> Move,
    ) -> Round {
        let n = self.members.len();
        let mut round = Round::default();
        for near in 0..n {
            let far = (near + distance) % n;
            // Neighbours in the order go in one message.
            let mut run = 0;
            while run < sent.len() {
                let mut end = run + 1;
                while end < sent.len() && sent[end] == sent[end - 1] + 1 {
                    end += 1;
                }
                let here = self.held(near, sent[run]..sent[end - 1] + 1);
                let there = self.held(far, first + run..first + end);
                if here.count > 0 {
                    round.moves.push(moved((self.members[near], here), (self.members[far], there)));
                }
                run = end;
            }
        }
        round
    }
}
