//! Data to stdout, everything else to stderr. A reader that went away is no error.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;
use topology::Finding;

use crate::exit::Failure;

/// Writes data to stdout.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a diagnostic line to stderr; where even that fails there is nobody to tell.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr().lock(), "topoctl: {text}");
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    print(&format!("{text}\n"))
}

pub(crate) fn print_yaml(value: &impl Serialize) -> Result<(), Failure> {
    print(&serde_yaml_ng::to_string(value).map_err(Failure::internal)?)
}

/// What was found, with its evidence and fix; an empty line before each.
pub(crate) fn findings(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { code, severity, component, evidence, fix } in findings {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{severity} {code}: {component}\n  {evidence}\n  fix: {fix}");
    }
    text
}

/// Rows with columns padded to their widest cell; the last column is never padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            line.push_str(cell);
            line.extend(std::iter::repeat_n(
                ' ',
                widths[column].saturating_sub(cell.chars().count()),
            ));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "bb".into()], vec!["ccc".into(), "d".into()]];
        assert_eq!(table(&rows), "a    bb\nccc  d\n");
    }
}
