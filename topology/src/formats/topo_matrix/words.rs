//! The words of a pasted `nvidia-smi topo -m`: terminal codes, device names, cells, several of them merged or not.

use alloc::string::String;
use alloc::vec::Vec;

use crate::formats::DEVICE_LIMIT;
use crate::matrix::Cell;

/// Most words of a line that are looked at: a row's name, its cells and some more.
const WORD_LIMIT: usize = 2 * DEVICE_LIMIT;

/// The text without terminal codes: `ESC [ … letter` of any kind, and the `[4m` that is left where a chat or a web
/// page dropped the ESC. Newlines stay as they are.
pub(super) fn strip_terminal_codes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\u{1b}', '\u{9b}', '[']) {
        out.push_str(&rest[..at]);
        let code = &rest[at..];
        match code_length(code) {
            Some(length) => rest = &code[length..],
            None => {
                let first = code.chars().next().map_or(0, char::len_utf8);
                out.push_str(&code[..first]);
                rest = &code[first..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn code_length(code: &str) -> Option<usize> {
    let (parameters, escaped) = match code.strip_prefix('\u{1b}') {
        Some(rest) => (rest.strip_prefix('[')?, true),
        None => match code.strip_prefix('\u{9b}') {
            Some(rest) => (rest, true),
            None => (code.strip_prefix('[')?, false),
        },
    };
    let end = parameters.find(|c: char| !matches!(c, '0'..='?'))?;
    let last = parameters[end..].chars().next()?;
    // Without ESC only colours and underlines, which `topo -m` uses, are taken for codes.
    let is_code = if escaped { matches!(last, '@'..='~') } else { last == 'm' };
    is_code.then(|| code.len() - parameters.len() + end + last.len_utf8())
}

/// White space and the bars of a Markdown table separate words.
pub(super) fn words(line: &str) -> Vec<&str> {
    let words = line.split(|c: char| c.is_whitespace() || c == '|');
    words.filter(|word| !word.is_empty()).take(WORD_LIMIT).collect()
}

/// Device names in a header's word: one, or several run together (`NIC8NIC9`). `rest` is what follows the last
/// (`CPU` in `NIC9CPU`).
pub(super) fn device_names(word: &str) -> Option<(Vec<&str>, &str)> {
    let mut names = Vec::new();
    let mut rest = word;
    while let Some(length) = numbered_length(rest).filter(|_| names.len() <= DEVICE_LIMIT) {
        names.push(&rest[..length]);
        rest = &rest[length..];
    }
    match (names.is_empty(), rest) {
        (false, "" | "CPU" | "NUMA") => Some((names, rest)),
        // An RDMA device's own name, in the headers of older drivers.
        (true, _) if is_name(word) => Some((alloc::vec![word], "")),
        _ => None,
    }
}

/// Length of `GPU12`, `NIC3` or `mlx5_7` at the start of the word; their digits end where the next begins.
fn numbered_length(word: &str) -> Option<usize> {
    let prefix = ["GPU", "NIC", "mlx5_"].into_iter().find(|prefix| word.starts_with(prefix))?;
    let digits = word[prefix.len()..].bytes().take_while(u8::is_ascii_digit).count();
    let end = prefix.len() + digits;
    let next = &word[end..];
    let ends = next.is_empty()
        || ["GPU", "NIC", "mlx5_", "CPU", "NUMA"].iter().any(|prefix| next.starts_with(prefix));
    (digits > 0 && ends).then_some(end)
}

/// A name such as the kernel gives RDMA devices and interfaces: letters first, at least one digit.
fn is_name(word: &str) -> bool {
    const MOST: usize = 64;
    let mut bytes = word.bytes();
    word.len() <= MOST
        && bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
        && word.bytes().any(|b| b.is_ascii_digit())
        && word.parse::<Cell>().is_err()
}

/// Index of `GPU7`.
pub(super) fn gpu_index(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("GPU")?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// What stands at the start of a row's word.
pub(super) struct Cells<'a> {
    /// `None` is `N/A`, a cell the driver could not tell.
    pub(super) cells: Vec<Option<Cell>>,
    /// What follows them: the CPU list in `SYS0-55`.
    pub(super) rest: &'a str,
}

/// The cells in a word: one, or several run together (`NV18NV18`, `SYSSYS`). `None` for a word of another kind.
pub(super) fn cells(word: &str) -> Option<Cells<'_>> {
    if let Ok(cell) = word.parse() {
        return Some(Cells { cells: alloc::vec![Some(cell)], rest: "" });
    }
    if word == "N/A" {
        return Some(Cells { cells: alloc::vec![None], rest: "" });
    }
    let mut cells = Vec::new();
    let mut rest = word;
    while let Some(length) = cell_length(rest).filter(|_| cells.len() <= DEVICE_LIMIT) {
        cells.push(Some(rest[..length].parse().ok()?));
        rest = &rest[length..];
    }
    let list_follows = rest.bytes().next().is_none_or(|b| b.is_ascii_digit());
    (!cells.is_empty() && list_follows).then_some(Cells { cells, rest })
}

fn cell_length(word: &str) -> Option<usize> {
    const WORDS: [&str; 9] = ["NODE", "PIX", "PXB", "PHB", "SYS", "SOC", "C2C", "X", "x"];
    if let Some(plain) = WORDS.into_iter().find(|plain| word.starts_with(plain)) {
        return Some(plain.len());
    }
    let digits = word.strip_prefix("NV")?.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then_some(2 + digits)
}

/// Whether a word can stand in the affinity columns: a CPU list, a number, `N/A`, or `NUMA 0` written out.
pub(super) fn is_affinity(word: &str) -> bool {
    word == "N/A" || word == "NUMA" || word.bytes().next().is_some_and(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[track_caller]
    fn check_names(word: &str, expect: &[&str]) {
        let found = device_names(word).map(|(names, _)| names).unwrap_or_default();
        assert_eq!(found, expect, "{word}");
    }

    #[test]
    fn names_merged_and_not() {
        check_names("GPU0", &["GPU0"]);
        check_names("NIC8NIC9", &["NIC8", "NIC9"]);
        check_names("GPU0GPU1NIC0", &["GPU0", "GPU1", "NIC0"]);
        check_names("mlx5_0mlx5_1", &["mlx5_0", "mlx5_1"]);
        check_names("NIC17CPU", &["NIC17"]);
        check_names("mlx5_bond_0", &["mlx5_bond_0"]);
        check_names("rocep145s0", &["rocep145s0"]);
        for word in ["CPU", "Affinity", "NV12", "53.9", "GPU", "0-55", "GPU0:", "—", ""] {
            check_names(word, &[]);
        }
    }

    #[track_caller]
    fn check_cells(word: &str, expect: Option<(&str, &str)>) {
        let found = cells(word).map(|found| {
            let text: Vec<String> = found
                .cells
                .iter()
                .map(|cell| cell.map_or_else(|| "N/A".into(), |cell| cell.to_string()))
                .collect();
            (text.join(" "), found.rest)
        });
        assert_eq!(found.as_ref().map(|(text, rest)| (text.as_str(), *rest)), expect, "{word}");
    }

    #[test]
    fn cells_merged_and_not() {
        check_cells("NV18", Some(("NV18", "")));
        check_cells("NV18NV18", Some(("NV18 NV18", "")));
        check_cells("SYSSYS", Some(("SYS SYS", "")));
        check_cells("XSOC", Some(("X SYS", "")));
        check_cells("SYS0-55", Some(("SYS", "0-55")));
        check_cells("N/A", Some(("N/A", "")));
        for word in ["OK", "XGMI", "53.9", "PIX*", "0-55", "NV", "", "NODES"] {
            check_cells(word, None);
        }
    }

    #[track_caller]
    fn check_strip(text: &str, expect: &str) {
        assert_eq!(strip_terminal_codes(text), expect);
    }

    #[test]
    fn terminal_codes() {
        check_strip("\t\u{1b}[4mGPU0\tGPU1\u{1b}[0m\n", "\tGPU0\tGPU1\n");
        check_strip("[4mGPU0[0m", "GPU0");
        check_strip("\u{9b}1;31mX", "X");
        check_strip("[root@n1 ~]# x", "[root@n1 ~]# x");
        check_strip("\u{1b}[2K\u{1b}[1Gx", "x");
        check_strip("a\u{1b}", "a\u{1b}");
        check_strip("[", "[");
    }
}
