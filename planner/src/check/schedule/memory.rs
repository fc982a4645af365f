//! Symbolic memory: which ranks' elements each element is the sum of, kept by runs.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;

use topology::Rank;

/// The sum in a run of elements: whose input, and which element of it at the run's first element. The next element
/// of the run is the sum of the next element of each. Ascending by rank, each rank once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    terms: Rc<[(Rank, usize)]>,
    /// To be added to each element number: a part of a run shares its terms.
    skip: usize,
}

impl Sum {
    /// One rank's input from `element` on.
    pub(super) fn of(rank: Rank, element: usize) -> Self {
        Self { terms: Rc::new([(rank, element)]), skip: 0 }
    }

    /// Whose which element, ascending by rank.
    pub(super) fn terms(&self) -> impl Iterator<Item = (Rank, usize)> {
        self.terms.iter().map(|(rank, element)| (*rank, element + self.skip))
    }

    /// The same run without its first elements.
    fn skipping(&self, elements: usize) -> Self {
        Self { terms: Rc::clone(&self.terms), skip: self.skip + elements }
    }

    /// The sum of both, or the rank that is in both.
    fn plus(&self, other: &Self) -> Result<Self, Rank> {
        let mut terms: Vec<_> = self.terms().chain(other.terms()).collect();
        terms.sort_unstable();
        match terms.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(pair[0].0),
            None => Ok(Self { terms: terms.into(), skip: 0 }),
        }
    }
}

/// Consecutive runs: elements, sum.
pub(super) type Runs = Vec<(usize, Sum)>;

/// Element-wise sum of two pieces of equal length, or the rank that is twice in it.
pub(super) fn add(left: &Runs, right: &Runs) -> Result<Runs, Rank> {
    let mut sums = Runs::new();
    let (mut left, mut right) = (left.iter(), right.iter());
    let (mut a, mut b) = (left.next().cloned(), right.next().cloned());
    while let (Some((a_len, a_sum)), Some((b_len, b_sum))) = (&a, &b) {
        let len = *a_len.min(b_len);
        sums.push((len, a_sum.plus(b_sum)?));
        let rest =
            |total: usize, sum: &Sum| (total > len).then(|| (total - len, sum.skipping(len)));
        let (a_rest, b_rest) = (rest(*a_len, a_sum), rest(*b_len, b_sum));
        a = a_rest.or_else(|| left.next().cloned());
        b = b_rest.or_else(|| right.next().cloned());
    }
    Ok(sums)
}

/// Elements of one piece of a rank's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// By first element: end, sum. No two overlap.
    runs: BTreeMap<usize, (usize, Sum)>,
}

impl Memory {
    /// What is in `range`, or the first element that nothing has written.
    pub(super) fn read(&self, range: Range<usize>) -> Result<Runs, usize> {
        let mut runs = Runs::new();
        let mut here = range.start;
        while here < range.end {
            let (start, (end, sum)) = self.runs.range(..=here).next_back().ok_or(here)?;
            if *end <= here {
                return Err(here);
            }
            let until = range.end.min(*end);
            runs.push((until - here, sum.skipping(here - start)));
            here = until;
        }
        Ok(runs)
    }

    /// Replaces what is from `start` on.
    pub(super) fn write(&mut self, start: usize, runs: &Runs) {
        let end = start + runs.iter().map(|(len, _)| len).sum::<usize>();
        if start == end {
            return;
        }
        // A run that begins before and reaches in keeps its head, and its tail where it reaches beyond.
        if let Some((before, (until, sum))) = self.runs.range(..start).next_back()
            && *until > start
        {
            let (before, until, sum) = (*before, *until, sum.clone());
            if until > end {
                self.runs.insert(end, (until, sum.skipping(end - before)));
            }
            self.runs.insert(before, (start, sum));
        }
        let inside: Vec<usize> = self.runs.range(start..end).map(|(from, _)| *from).collect();
        for from in inside {
            if let Some((until, sum)) = self.runs.remove(&from)
                && until > end
            {
                self.runs.insert(end, (until, sum.skipping(end - from)));
            }
        }
        let mut here = start;
        for (len, sum) in runs.iter().filter(|(len, _)| *len > 0) {
            self.runs.insert(here, (here + len, sum.clone()));
            here += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a memory that keeps every element.
        #[test]
        fn runs_are_elements(writes in proptest::collection::vec((0_usize..20, 1_usize..10, 0_u32..5, 0_usize..9), 0..12)) {
            let mut memory = Memory::default();
            let mut elements = vec![None; 32];
            for (start, len, rank, first) in writes {
                memory.write(start, &vec![(len, Sum::of(Rank(rank), first))]);
                for at in 0..len {
                    elements[start + at] = Some((Rank(rank), first + at));
                }
            }
            for (at, expect) in elements.iter().enumerate() {
                let found = memory.read(at..at + 1).ok().map(|runs| runs[0].1.terms().next().unwrap());
                prop_assert_eq!(found, *expect);
            }
            let written = elements.iter().position(Option::is_none).unwrap();
            let runs = memory.read(0..written).unwrap();
            prop_assert_eq!(runs.iter().map(|(len, _)| len).sum::<usize>(), written);
            prop_assert_eq!(memory.read(0..32).err(), Some(written));
        }

        #[test]
        fn sums_are_element_wise(cuts in proptest::collection::vec(1_usize..6, 1..6), other in proptest::collection::vec(1_usize..6, 1..6)) {
            let len = cuts.iter().sum::<usize>().min(other.iter().sum());
            let piece = |rank, cuts: &[usize]| {
                let mut memory = Memory::default();
                let mut start = 0;
                for cut in cuts {
                    memory.write(start, &vec![(*cut, Sum::of(Rank(rank), start))]);
                    start += cut;
                }
                memory.read(0..len).unwrap()
            };
            let sum = add(&piece(1, &cuts), &piece(0, &other)).unwrap();
            let mut at = 0;
            for (run, sum) in &sum {
                prop_assert_eq!(sum.terms().collect::<Vec<_>>(), [(Rank(0), at), (Rank(1), at)]);
                at += run;
            }
            prop_assert_eq!(at, len);
            prop_assert_eq!(add(&piece(1, &cuts), &piece(1, &other)), Err(Rank(1)));
        }
    }
}
