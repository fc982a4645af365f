//! Slurm's host lists: `n[1-3,07],m2`, `rack[0-1]node[0-3]`.
//!
//! Numbers keep the width that their first has zeros to; with several pairs of brackets every combination is meant, the last
//! running fastest.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::COUNT_LIMIT;
use crate::formats::excerpt;

/// The names a list stands for, in its order.
///
/// # Errors
/// Names what is wrong: brackets that do not match, a range that is none, more names than the limit.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for item in items(list)? {
        let item = item.trim();
        if item.is_empty() {
            return Err(format!("'{}' has an empty name in it", excerpt(list)));
        }
        let mut these = alloc::vec![String::new()];
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            // Checked by `items`.
            let (ranges, after) = after.split_once(']').unwrap_or((after, ""));
            let values = numbers(ranges)?;
            if these.len().saturating_mul(values.len()) + names.len() > COUNT_LIMIT {
                return Err(format!("'{}' are more than {COUNT_LIMIT} names", excerpt(list)));
            }
            these = these
                .iter()
                .flat_map(|so_far| {
                    values.iter().map(move |value| format!("{so_far}{before}{value}"))
                })
                .collect();
            rest = after;
        }
        names.extend(these.into_iter().map(|name| name + rest));
        if names.len() > COUNT_LIMIT {
            return Err(format!("'{}' are more than {COUNT_LIMIT} names", excerpt(list)));
        }
    }
    Ok(names)
}

/// Split at commas outside brackets.
fn items(list: &str) -> Result<Vec<&str>, String> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if inside => return Err(format!("'{}': a bracket in brackets", excerpt(list))),
            '[' => inside = true,
            ']' if !inside => return Err(format!("'{}': a bracket closes nothing", excerpt(list))),
            ']' => inside = false,
            ',' if !inside => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("'{}': a bracket is not closed", excerpt(list)));
    }
    items.push(&list[start..]);
    Ok(items)
}

/// Numbers of `1-3,07`, as written.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut values: Vec<String> = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| -> Result<u64, String> {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let number = if digits { text.parse().ok() } else { None };
            number.ok_or_else(|| format!("'{}' is no range of numbers", excerpt(range)))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("'{}' runs backwards", excerpt(range)));
        }
        let limit = u64::try_from(COUNT_LIMIT).unwrap_or(u64::MAX);
        if to - from >= limit || values.len() > COUNT_LIMIT {
            return Err(format!("'{}' are more than {COUNT_LIMIT} names", excerpt(range)));
        }
        let width = if first.starts_with('0') { first.len().min(20) } else { 0 };
        values.extend((from..=to).map(|value| format!("{value:0width$}")));
    }
    Ok(values)
}

/// A list that stands for the names, in their order: runs of one prefix with rising numbers are one range.
#[must_use]
pub fn fold(names: &[String]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < names.len() {
        let start = at;
        while at + 1 < names.len() && follows(&names[at], &names[at + 1]) {
            at += 1;
        }
        if !text.is_empty() {
            text.push(',');
        }
        if at == start {
            text.push_str(&names[start]);
        } else {
            let (prefix, first) = tail(&names[start]);
            let (_, last) = tail(&names[at]);
            text.push_str(&format!("{prefix}[{first}-{last}]"));
        }
        at += 1;
    }
    text
}

/// A name and the digits at its end.
fn tail(name: &str) -> (&str, &str) {
    name.split_at(name.trim_end_matches(|c: char| c.is_ascii_digit()).len())
}

fn follows(a: &str, b: &str) -> bool {
    let ((prefix_a, first), (prefix_b, second)) = (tail(a), tail(b));
    let number = |digits: &str| digits.parse::<u64>().ok();
    let next = number(first).and_then(|n| n.checked_add(1));
    let padded = first.starts_with('0') || second.starts_with('0');
    prefix_a == prefix_b
        && next.is_some()
        && next == number(second)
        && (!padded || first.len() == second.len())
        && (padded || next.is_some_and(|next| next.to_string() == second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(list: &str, expect: &[&str]) {
        assert_eq!(expand(list).unwrap(), expect, "{list}");
    }

    #[test]
    fn lists() {
        check("a", &["a"]);
        check("n[1-3,07]", &["n1", "n2", "n3", "n07"]);
        check("n[08-11]", &["n08", "n09", "n10", "n11"]);
        check("n[1-2],m,o[5]", &["n1", "n2", "m", "o5"]);
        check("r[0-1]n[0-1]", &["r0n0", "r0n1", "r1n0", "r1n1"]);
        check("[1101-1102]", &["1101", "1102"]);
        check("switch.2.[1-2]", &["switch.2.1", "switch.2.2"]);
        check("u[1-2]-ib", &["u1-ib", "u2-ib"]);
    }

    #[test]
    fn refusals() {
        for (list, said) in [
            ("n[1-3", "not closed"),
            ("n1]", "closes nothing"),
            ("n[[1]]", "bracket in brackets"),
            ("n[3-1]", "backwards"),
            ("n[a]", "no range"),
            ("n[]", "no range"),
            ("n[1-]", "no range"),
            ("n[0-99999999]", "more than"),
            ("n[0-9999]m[0-9999]", "more than"),
            ("a,,b", "empty name"),
            ("", "empty name"),
        ] {
            let error = expand(list).unwrap_err();
            assert!(error.contains(said), "{list}: {error}");
        }
    }

    #[test]
    fn folded() {
        let names = |list: &str| expand(list).unwrap();
        assert_eq!(fold(&names("n1,n2,n3,n9,m[08-10]")), "n[1-3],n9,m[08-10]");
        assert_eq!(fold(&names("n3,n2,n1")), "n3,n2,n1");
        assert_eq!(fold(&[]), "");
    }

    proptest! {
        #[test]
        fn folding_keeps_names(names in proptest::collection::vec("[a-c]{0,2}[0-9]{1,3}", 1..20)) {
            prop_assert_eq!(expand(&fold(&names)).unwrap(), names);
        }
    }
}
