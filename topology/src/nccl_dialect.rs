//! What NCCL's own XML parser takes: a dialect narrower than XML.
//!
//! Its parser (`src/graph/xml.cc` of NCCL 2.30) knows elements, comments and attributes in quotes, told apart by single
//! blanks. It stops at what any XML library writes by habit: a declaration, a tab, a line break between attributes. A
//! stopped parser fails the job's start, so files for it are held to the dialect before anybody loads them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Most bytes of an attribute's value or of a name (`MAX_STR_LEN` is 255, with a quote and the closing zero).
pub const LONGEST_VALUE: usize = 253;

/// Most attributes of an element that are kept (`MAX_ATTR_COUNT`).
pub const MOST_ATTRIBUTES: usize = 16;

/// Most elements of a topology file: the parser's table has 256 places and wants one free at each step
/// (`NCCL_TOPO_XML_MAX_NODES`).
pub const MOST_TOPOLOGY_ELEMENTS: usize = 255;

/// What a text holds, as NCCL's parser counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Elements, without comments.
    pub elements: usize,
}

/// Where NCCL's parser stops or loses something, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Offence {
    /// From 1.
    pub line: usize,
    /// In words.
    pub reason: String,
}

/// Reads a text the way NCCL's parser does.
///
/// # Errors
/// At the first place it stops at, or takes otherwise than meant.
pub fn scan(text: &str) -> Result<Scan, Offence> {
    let mut scanner = Scanner { text: text.as_bytes(), at: 0 };
    let mut open: Vec<&[u8]> = Vec::new();
    let mut elements = 0;
    while let Some(tag) = scanner.tag()? {
        match tag {
            Tag::Open { name, single } => {
                elements += 1;
                if !single {
                    open.push(name);
                }
            }
            Tag::Close { name } if open.pop() != Some(name) => {
                return Err(scanner.offence(format!("</{}> closes nothing", shown(name))));
            }
            Tag::Close { .. } => {}
        }
    }
    match open.last() {
        Some(name) => Err(scanner.offence(format!("<{}> is never closed", shown(name)))),
        None => Ok(Scan { elements }),
    }
}

enum Tag<'a> {
    Open { name: &'a [u8], single: bool },
    Close { name: &'a [u8] },
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

const ENDS_EARLY: &str = "the file ends inside an element";
const LINE_BREAK: &str = "a line break inside an element, which NCCL's parser does not take";
const A_TAB: &str = "a tab, which NCCL's parser does not take";

impl<'a> Scanner<'a> {
    fn offence(&self, reason: impl Into<String>) -> Offence {
        let before = &self.text[..self.at.min(self.text.len())];
        Offence {
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            reason: reason.into(),
        }
    }

    fn next(&mut self) -> Result<u8, Offence> {
        let byte = self.text.get(self.at).copied().ok_or_else(|| self.offence(ENDS_EARLY))?;
        self.at += 1;
        Ok(byte)
    }

    /// The byte just taken, as an offence at its own line.
    fn unexpected(&mut self, byte: u8, expected: &str) -> Offence {
        self.at -= 1;
        match byte {
            b'\n' | b'\r' => self.offence(LINE_BREAK),
            b'\t' => self.offence(A_TAB),
            _ => self.offence(format!("'{}' where {expected} is expected", char::from(byte))),
        }
    }

    /// The next tag; comments are passed over. `None` at the end.
    fn tag(&mut self) -> Result<Option<Tag<'a>>, Offence> {
        loop {
            while matches!(self.text.get(self.at), Some(b' ' | b'\n' | b'\r')) {
                self.at += 1;
            }
            let rest = &self.text[self.at..];
            match rest {
                [] => return Ok(None),
                [b'\t', ..] => return Err(self.offence(A_TAB)),
                [b'<', b'?', ..] | [b'<', b'!', b'D', ..] => {
                    return Err(
                        self.offence("an XML declaration, which NCCL's parser does not take")
                    );
                }
                [b'<', b'!', b'-', b'-', ..] => self.comment(rest)?,
                [b'<', b'/', ..] => {
                    self.at += 2;
                    let (name, last) = self.name()?;
                    return match last {
                        b'>' => Ok(Some(Tag::Close { name })),
                        other => Err(self.unexpected(other, "'>'")),
                    };
                }
                [b'<', ..] => {
                    self.at += 1;
                    return self.element().map(Some);
                }
                _ => {
                    let reason = "text between elements, which NCCL's parser does not take";
                    return Err(self.offence(reason));
                }
            }
        }
    }

    fn comment(&mut self, rest: &[u8]) -> Result<(), Offence> {
        let end = rest.windows(3).skip(4).position(|window| window == b"-->");
        let length = end.ok_or_else(|| self.offence("a comment that never ends"))? + 4 + 3;
        self.at += length;
        Ok(())
    }

    /// A name and the byte that ends it.
    fn name(&mut self) -> Result<(&'a [u8], u8), Offence> {
        let start = self.at;
        loop {
            match self.next()? {
                byte @ (b' ' | b'>' | b'/' | b'\n' | b'\r' | b'=') => {
                    let name = &self.text[start..self.at - 1];
                    if name.len() > LONGEST_VALUE {
                        return Err(self.offence(format!("a name of {} bytes", name.len())));
                    }
                    return Ok((name, byte));
                }
                b'\t' => return Err(self.unexpected(b'\t', "")),
                _ => {}
            }
        }
    }

    fn element(&mut self) -> Result<Tag<'a>, Offence> {
        let (name, mut last) = self.name()?;
        if name.is_empty() || last == b'=' {
            return Err(self.unexpected(last, "the name of an element"));
        }
        let mut attributes = 0;
        while last == b' ' {
            let (key, end) = self.name()?;
            last = if end == b'=' { self.value()? } else { end };
            attributes += 1;
            if attributes > MOST_ATTRIBUTES && !key.is_empty() {
                return Err(self.offence(format!(
                    "more than {MOST_ATTRIBUTES} attributes; NCCL's parser drops the rest, and counts each blank too many as one"
                )));
            }
        }
        let single = last == b'/';
        if single {
            last = self.next()?;
        }
        match last {
            b'>' => Ok(Tag::Open { name, single }),
            other => Err(self.unexpected(other, "'>'")),
        }
    }

    /// Passes over a value; the byte after it.
    fn value(&mut self) -> Result<u8, Offence> {
        let quote = self.next()?;
        if !matches!(quote, b'"' | b'\'') {
            return Err(self.unexpected(quote, "a quote"));
        }
        let start = self.at;
        while self.next()? != quote {}
        let length = self.at - 1 - start;
        if length > LONGEST_VALUE {
            let reason = format!("a value of {length} bytes; NCCL's parser takes {LONGEST_VALUE}");
            return Err(self.offence(reason));
        }
        self.next()
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(40)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expect: Result<usize, (usize, &str)>) {
        match (scan(text), expect) {
            (Ok(scan), Ok(elements)) => assert_eq!(scan.elements, elements, "{text}"),
            (Err(error), Err((line, word))) => {
                assert!(error.line == line && error.reason.contains(word), "{error} of {text}");
            }
            (got, want) => panic!("{got:?}, not {want:?}, of {text}"),
        }
    }

    /// What libnccl was seen to take and to refuse, and what its source says beside.
    #[test]
    fn the_dialect() {
        check("<a version=\"1\">\n  <b x=\"1\" />\r\n<!-- c <d> -->\n  <b y='2'/>\n</a>\n", Ok(3));
        check("", Ok(0));
        check("<?xml version=\"1.0\"?>\n<a/>", Err((1, "declaration")));
        check("<a>\n\t<b/>\n</a>", Err((2, "a tab")));
        check("<a>\n<b x=\"1\"\n y=\"2\"/></a>", Err((2, "line break")));
        check("<a\tx=\"1\"/>", Err((1, "a tab")));
        check("<a>\ntext\n</a>", Err((2, "text between")));
        check("<a x=1/>", Err((1, "a quote")));
        check("<a><b></a>", Err((1, "closes nothing")));
        check("<a>\n<b/>\n", Err((3, "never closed")));
        check("<a", Err((1, "ends inside")));
        check("<!-- no end", Err((1, "never ends")));
        check("<a></a >", Err((1, "'>'")));
        let long = "v".repeat(LONGEST_VALUE);
        check(&format!("<a x=\"{long}\"/>"), Ok(1));
        check(&format!("<a x=\"{long}v\"/>"), Err((1, "254 bytes")));
        check(&format!("<a{}/>", " x=\"1\"".repeat(MOST_ATTRIBUTES)), Ok(1));
        check(&format!("<a{}/>", " x=\"1\"".repeat(MOST_ATTRIBUTES + 1)), Err((1, "attributes")));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[ <>/=\"'a-c\\-!?\\n\\t\u{e9}]{0,60}") {
            let _ = scan(&text);
        }
    }
}
