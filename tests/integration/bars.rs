//! Whole plans against figures that others computed or published.
#![expect(
    clippy::print_stderr,
    reason = "skips and counts are for whoever reads the test's output"
)]

mod link_loads;
mod published;

/// What the bars hold; `None`, said aloud, where they are absent.
fn present<T>(read: Result<Vec<T>, String>) -> Option<Vec<T>> {
    match read {
        Ok(cases) => {
            assert!(!cases.is_empty(), "the bars are empty");
            Some(cases)
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}
