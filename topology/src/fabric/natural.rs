//! Names with numbers in them, in the order people count.

use core::cmp::Ordering;

/// `n2` before `n10`; texts that differ in leading zeros alone stay in text order, so that only equal names are equal.
#[must_use]
pub fn natural_cmp(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (text_a, digits_a, rest_a) = split(left);
        let (text_b, digits_b, rest_b) = split(right);
        let number = |digits: &str| digits.trim_start_matches('0').len();
        let order = text_a
            .cmp(text_b)
            .then_with(|| number(digits_a).cmp(&number(digits_b)))
            .then_with(|| digits_a.trim_start_matches('0').cmp(digits_b.trim_start_matches('0')));
        if order != Ordering::Equal {
            return order;
        }
        if rest_a.is_empty() || rest_b.is_empty() {
            return rest_a.len().cmp(&rest_b.len()).then_with(|| a.cmp(b));
        }
        (left, right) = (rest_a, rest_b);
    }
}

/// Text up to the first digit, the digits from there, and what follows.
fn split(name: &str) -> (&str, &str, &str) {
    let start = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let (text, rest) = name.split_at(start);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    (text, digits, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_count() {
        let mut names = ["n10", "n2", "n1", "n02", "m3", "n2a", "n", "n2-10", "n2-9", ""];
        names.sort_by(|a, b| natural_cmp(a, b));
        assert_eq!(names, ["", "m3", "n", "n1", "n02", "n2", "n2-9", "n2-10", "n2a", "n10"]);
    }

    #[test]
    fn numbers_of_any_length() {
        let long = "9".repeat(400);
        assert_eq!(natural_cmp(&long, "10"), Ordering::Greater);
        assert_eq!(natural_cmp(&long, &long), Ordering::Equal);
    }
}
