//! Places in a text, and faults that name them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Fault;
use crate::snapshot::FaultKind;

/// Where lines end, so that naming the line of an offset costs no scan. Inputs are below 4 GiB.
pub(super) struct Lines(Vec<u32>);

impl Lines {
    pub(super) fn of(text: &str) -> Self {
        Self((0..).zip(text.bytes()).filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect())
    }

    /// Line of a byte offset, from 1.
    pub(super) fn at(&self, offset: usize) -> usize {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        self.0.partition_point(|newline| *newline < offset) + 1
    }
}

/// What could not be read, at a line of the input.
pub(super) fn fault(reader: &str, line: usize, error: String) -> Fault {
    let place = if line == 0 { String::from("the whole input") } else { format!("line {line}") };
    Fault::new(reader, place, FaultKind::Malformed, error)
}

/// An excerpt of foreign text, short and printable, for a message.
pub(crate) fn excerpt(text: &str) -> String {
    const MOST: usize = 40;
    let mut short: String =
        text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_one() {
        let lines = Lines::of("a\nbc\n\nd");
        assert_eq!([0, 1, 2, 4, 5, 6].map(|at| lines.at(at)), [1, 1, 2, 2, 3, 4]);
    }

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(excerpt("a\u{1b}b"), "a b");
        assert_eq!(excerpt(&"x".repeat(100)).chars().count(), 41);
    }
}
