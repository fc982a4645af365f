//! Text that a POSIX shell reads back as it was.

use alloc::string::String;

/// A value between single quotes, where a shell takes every character for itself; a single quote ends the text, stands alone
/// behind a backslash, and begins it anew (POSIX.1-2017, XCU 2.2).
#[must_use]
pub fn quote(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('\'');
    for c in value.chars() {
        match c {
            '\'' => text.push_str("'\\''"),
            c => text.push(c),
        }
    }
    text.push('\'');
    text
}

/// A comment of one line: a line break in a device's name must not begin a command.
#[must_use]
pub fn comment(text: &str) -> String {
    let mut line = String::from("# ");
    line.extend(text.chars().map(|c| if c.is_control() { '?' } else { c }));
    line
}

/// Whether a shell takes it for the name of a variable.
#[must_use]
pub fn is_variable_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(word) && name.starts_with(|c: char| !c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted() {
        for (value, expect) in [
            ("", "''"),
            ("=mlx5_0:1", "'=mlx5_0:1'"),
            ("a'b", "'a'\\''b'"),
            ("$(rm -rf /) `x` \\ \"", "'$(rm -rf /) `x` \\ \"'"),
            ("a\nb", "'a\nb'"),
        ] {
            assert_eq!(quote(value), expect);
        }
        assert_eq!(comment("a\nb\r\u{1b}[0m"), "# a?b??[0m");
        for (name, expect) in
            [("A_1", true), ("_", true), ("", false), ("1A", false), ("A B", false), ("A=B", false)]
        {
            assert_eq!(is_variable_name(name), expect, "{name}");
        }
    }
}
