//! Words of messages.

use alloc::format;
use alloc::string::String;

/// A list for people: the first few, and how many more.
pub(crate) fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.len() {
        n if n > SHOWN => format!("{} and {} more", names[..SHOWN].join(", "), n - SHOWN),
        _ => names.join(", "),
    }
}
