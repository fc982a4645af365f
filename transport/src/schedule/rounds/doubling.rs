//! All-reduce by exchanges with the rank whose number differs in one bit.
//!
//! Of a number of members that is no power of two, those beyond the largest one in it first give their data to one each of the others, and
//! have the result from it in the end.

use std::ops::Range;

use topology::schedule::Buffer;

use super::{Move, Round, at};
use crate::schedule::split;

/// All of the data in every exchange.
pub(super) fn whole(members: &[usize], range: &Range<usize>, from: Buffer) -> Vec<Round> {
    let mut pass = Pass::new(members, range, from);
    pass.fold();
    let mut bit = 1;
    while bit < pass.core {
        let mut round = Round::default();
        for place in 0..pass.core {
            round.moves.push(pass.add(place ^ bit, place, range));
        }
        pass.end(round);
        bit *= 2;
    }
    pass.unfold()
}

/// Halves of halves, until every member has the sum of one part, and back.
pub(super) fn halves(members: &[usize], range: &Range<usize>, from: Buffer) -> Vec<Round> {
    let mut pass = Pass::new(members, range, from);
    pass.fold();
    let core = pass.core;
    let part = |parts: Range<usize>| {
        let first = split::part(range.clone(), parts.start, core, 1).start;
        first..split::part(range.clone(), parts.end - 1, core, 1).end
    };
    // Parts a member still sums up, when blocks of `length` are left.
    let own =
        |place: usize, length: usize| place / length * length..place / length * length + length;
    let mut length = core;
    while length > 1 {
        length /= 2;
        let mut round = Round::default();
        for place in 0..core {
            round.moves.push(pass.add(place ^ length, place, &part(own(place, length))));
        }
        pass.end(round);
    }
    while length < core {
        let mut round = Round::default();
        for place in 0..core {
            let other = place ^ length;
            let data = at(Buffer::Output, &part(own(other, length)));
            let (from, to) = (pass.members[other], pass.members[place]);
            round.moves.push(Move { from, to, src: data, dst: data, add: None });
        }
        pass.end(round);
        length *= 2;
    }
    pass.unfold()
}

struct Pass<'a> {
    members: &'a [usize],
    range: &'a Range<usize>,
    /// The largest power of two among the members.
    core: usize,
    /// Where each member of the core has its data.
    holds: Vec<Buffer>,
    rounds: Vec<Round>,
}

impl<'a> Pass<'a> {
    fn new(members: &'a [usize], range: &'a Range<usize>, from: Buffer) -> Self {
        let core = if members.is_empty() { 0 } else { 1 << members.len().ilog2() };
        Self { members, range, core, holds: vec![from; members.len()], rounds: Vec::new() }
    }

    /// Data of `from` added to what `to` has, kept in the output.
    fn add(&self, from: usize, to: usize, range: &Range<usize>) -> Move {
        Move {
            from: self.members[from],
            to: self.members[to],
            src: at(self.holds[from], range),
            dst: at(Buffer::Output, range),
            add: Some(at(self.holds[to], range)),
        }
    }

    fn end(&mut self, round: Round) {
        self.holds[..self.core].fill(Buffer::Output);
        self.rounds.push(round);
    }

    fn fold(&mut self) {
        let mut round = Round::default();
        for beyond in self.core..self.members.len() {
            round.moves.push(self.add(beyond, beyond - self.core, self.range));
        }
        if !round.moves.is_empty() {
            self.holds[..self.members.len() - self.core].fill(Buffer::Output);
            self.rounds.push(round);
        }
    }

    fn unfold(mut self) -> Vec<Round> {
        let mut round = Round::default();
        let data = at(Buffer::Output, self.range);
        for beyond in self.core..self.members.len() {
            let (from, to) = (self.members[beyond - self.core], self.members[beyond]);
            round.moves.push(Move { from, to, src: data, dst: data, add: None });
        }
        if self.members.len() == 1 {
            let own = at(self.holds[0], self.range);
            round.locals.push((
                self.members[0],
                crate::schedule::step(topology::schedule::Op::Copy, own, data),
            ));
        }
        self.rounds.push(round);
        self.rounds
    }
}
