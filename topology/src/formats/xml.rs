//! XML inputs: found in a text, bounded, parsed, with lines for every refusal.

mod scan;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;

use roxmltree::{Document, Node, ParsingOptions};

use super::text::Lines;
use super::{ELEMENT_LIMIT, ReadError};

/// Roots of the formats that are read, as they begin. A terminal's lines may stand around such XML.
const ROOTS: [(&str, &str); 3] = [
    ("<system", "</system>"),
    ("<topology", "</topology>"),
    ("<nvidia_smi_log", "</nvidia_smi_log>"),
];

/// XML in a text, its document type blanked out.
pub(super) struct Markup<'a> {
    /// What it is read as, for messages.
    format: &'static str,
    lines: Lines,
    /// Offset of the XML in the text.
    start: usize,
    /// Offset of the last byte of the text that is not white space.
    end: usize,
    xml: Cow<'a, str>,
}

/// Where XML of a known root begins and ends in a text of other lines.
fn find(text: &str) -> Option<(usize, usize)> {
    let (at, close) = ROOTS
        .iter()
        .filter_map(|(open, close)| {
            let after = |at: usize| text.as_bytes().get(at + open.len()).copied();
            let mut found = text.match_indices(open).map(|(at, _)| at);
            let at =
                found.find(|at| matches!(after(*at), Some(b' ' | b'\t' | b'\n' | b'\r' | b'>')))?;
            Some((at, *close))
        })
        .min()?;
    let end = text.rfind(close).map(|end| end + close.len()).filter(|end| *end > at);
    Some((at, end.unwrap_or(text.len())))
}

/// Whether a text of other lines holds XML of a known root.
pub(super) fn is_in(text: &str) -> bool {
    find(text).is_some()
}

/// Name of the first element; empty where there is none.
pub(super) fn root_name(text: &str) -> &str {
    let text = match text.trim_start().starts_with('<') {
        true => text,
        false => find(text).map_or("", |(start, end)| &text[start..end]),
    };
    let mut rest = text;
    while let Some(open) = rest.find('<') {
        rest = &rest[open..];
        let close = match rest.as_bytes().get(1) {
            Some(b'?') => "?>",
            Some(b'!') if rest.starts_with("<!--") => "-->",
            Some(b'!') => ">",
            _ => {
                let name = &rest[1..];
                let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || "_-.:".contains(c)));
                return &name[..end.unwrap_or(name.len())];
            }
        };
        let Some(end) = rest.find(close) else { break };
        rest = &rest[end + close.len()..];
    }
    ""
}

impl<'a> Markup<'a> {
    /// The XML of a text: all of it where it begins so, else from a known root to its end.
    pub(super) fn of(text: &'a str, format: &'static str) -> Self {
        let whole = (text.len() - text.trim_start().len(), text.len());
        let (start, end) = match text.trim_start().starts_with('<') {
            true => whole,
            false => find(text).unwrap_or(whole),
        };
        Self {
            format,
            lines: Lines::of(text),
            start,
            end: text.trim_end().len(),
            xml: without_document_type(&text[start..end]),
        }
    }

    /// The document, where it is well-formed and within the limits.
    pub(super) fn document(&self) -> Result<Document<'_>, ReadError> {
        let refuse = |line, reason| ReadError { format: self.format, line, reason };
        scan::check(&self.xml)
            .map_err(|(at, reason)| refuse(self.lines.at(self.start + at), reason))?;
        let nodes_limit = u32::try_from(4 * ELEMENT_LIMIT).unwrap_or(u32::MAX);
        let options = ParsingOptions { nodes_limit, ..ParsingOptions::default() };
        Document::parse_with_options(&self.xml, options).map_err(|error| {
            if matches!(
                error,
                roxmltree::Error::UnclosedRootNode | roxmltree::Error::UnexpectedEndOfStream
            ) {
                return refuse(self.lines.at(self.end), "the file ends early: cut off here".into());
            }
            let row = usize::try_from(error.pos().row).unwrap_or(1).max(1);
            refuse(self.lines.at(self.start) + row - 1, format!("not well-formed XML: {error}"))
        })
    }

    /// Line of an element in the text, from 1.
    pub(super) fn line(&self, node: Node<'_, '_>) -> usize {
        self.lines.at(self.start + node.range().start)
    }

    pub(super) fn refuse(&self, node: Node<'_, '_>, reason: String) -> ReadError {
        ReadError { format: self.format, line: self.line(node), reason }
    }
}

/// Blanks out a document type that names a file and defines nothing itself (hwloc's and nvidia-smi's files have one);
/// the file is never opened. One that defines entities is left for the scan to refuse.
fn without_document_type(text: &str) -> Cow<'_, str> {
    let Some(start) = text.find("<!DOCTYPE") else { return Cow::Borrowed(text) };
    let Some(length) = text[start..].find('>') else { return Cow::Borrowed(text) };
    let (before, rest) = text.split_at(start);
    let (declaration, after) = rest.split_at(length + 1);
    if declaration.contains('[') {
        return Cow::Borrowed(text);
    }
    let blank =
        declaration.chars().map(|c| if c == '\n' { "\n".into() } else { " ".repeat(c.len_utf8()) });
    Cow::Owned(format!("{before}{}{after}", blank.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_found_past_the_prologue() {
        for (text, name) in [
            ("<system version=\"1\">", "system"),
            (
                "<?xml version=\"1.0\"?>\n<!-- <a> -->\n<!DOCTYPE b SYSTEM \"b.dtd\">\n<topology>",
                "topology",
            ),
            ("$ cat x\n<system>", "system"),
            ("$ nvidia-smi -q -x\n<?xml version=\"1.0\" ?>\n<nvidia_smi_log>", "nvidia_smi_log"),
            ("<systemd>", "systemd"),
            ("a <systemd> b", ""),
            ("<?xml", ""),
            ("<!--", ""),
            ("<", ""),
        ] {
            assert_eq!(root_name(text), name, "{text}");
        }
    }

    #[test]
    fn a_document_type_without_definitions_is_passed_over() {
        let text = "<?xml version=\"1.0\"?>\n<!DOCTYPE a\nSYSTEM \"é.dtd\">\n<a>\n<b x=\"1\"/></a>";
        let markup = Markup::of(text, "test");
        let document = markup.document().unwrap();
        let b = document.descendants().find(|node| node.has_tag_name("b")).unwrap();
        assert_eq!(markup.line(b), 5);
        let entity = "<!DOCTYPE a [<!ENTITY x 'y'>]>\n<a/>";
        let error = Markup::of(entity, "test").document().unwrap_err();
        assert_eq!((error.line, error.reason.contains("document types")), (1, true), "{error}");
    }

    #[test]
    fn lines_count_in_the_whole_text() {
        let text = "$ cat x\n\n<system>\n<cpu/></systems>\n$";
        let error = Markup::of(text, "test").document().unwrap_err();
        assert_eq!(error.line, 4, "{error}");
        let error = Markup::of("\n<system>\n<cpu>", "test").document().unwrap_err();
        assert!(error.reason.contains("cut off") && error.line == 3, "{error}");
    }
}
