//! A look over the markup before it is parsed, so that the parser's memory and time stay bounded.
//!
//! The XML library refuses document types and can cap the number of nodes; it caps neither depth nor
//! attributes, and checks attributes for duplicates pair by pair. This scan knows tags, comments, CDATA and
//! quotes, nothing more; what is malformed is left for the library to name.

use alloc::format;
use alloc::string::String;

use crate::formats::{ATTRIBUTE_LIMIT, DEPTH_LIMIT, ELEMENT_LIMIT};

/// Offset of the offence and its name.
pub(super) fn check(text: &str) -> Result<(), (usize, String)> {
    let mut depth = 0usize;
    let mut elements = 0usize;
    let mut at = 0;
    while let Some(open) = text[at..].find('<').map(|found| at + found) {
        let rest = &text[open..];
        let skip = |end: &str| rest.find(end).map_or(text.len(), |found| open + found + end.len());
        if rest.starts_with("<!--") {
            at = skip("-->");
        } else if rest.starts_with("<![CDATA[") {
            at = skip("]]>");
        } else if rest.starts_with("<?") {
            at = skip("?>");
        } else if rest.starts_with("<!") {
            return Err((open, "document types and entities are not read".into()));
        } else {
            let tag = Tag::scan(rest);
            if tag.attributes > ATTRIBUTE_LIMIT {
                return Err((open, format!("an element with over {ATTRIBUTE_LIMIT} attributes")));
            }
            // The library copies those in force for every element that adds one.
            if rest[..tag.length].contains("xmlns") {
                return Err((open, "XML namespaces are not read".into()));
            }
            if rest.starts_with("</") {
                depth = depth.saturating_sub(1);
            } else {
                elements += 1;
                if elements > ELEMENT_LIMIT {
                    return Err((open, format!("more than {ELEMENT_LIMIT} elements")));
                }
                if !tag.empty {
                    depth += 1;
                }
                if depth > DEPTH_LIMIT {
                    return Err((open, format!("elements nested more than {DEPTH_LIMIT} deep")));
                }
            }
            at = open + tag.length;
        }
    }
    Ok(())
}

struct Tag {
    length: usize,
    /// Ends in `/>`.
    empty: bool,
    /// Counted by their `=` outside quotes.
    attributes: usize,
}

impl Tag {
    fn scan(text: &str) -> Self {
        let mut tag = Self { length: text.len(), empty: false, attributes: 0 };
        let mut quote = None;
        let mut previous = b'<';
        for (at, byte) in text.bytes().enumerate() {
            match quote {
                Some(open) if byte == open => quote = None,
                Some(_) => {}
                None => match byte {
                    b'"' | b'\'' => quote = Some(byte),
                    b'=' => tag.attributes += 1,
                    b'>' => {
                        tag.length = at + 1;
                        tag.empty = previous == b'/';
                        return tag;
                    }
                    _ => {}
                },
            }
            previous = byte;
        }
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_scan(text: &str, offence: Option<&str>) {
        let found = check(text).err().map(|(_, reason)| reason);
        match (found, offence) {
            (None, None) => {}
            (Some(found), Some(word)) => assert!(found.contains(word), "{found}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn bounds() {
        check_scan("<a><b x='>'/><!-- <c><d> --></a>", None);
        check_scan("<a x=\"a=b=c\">", None);
        check_scan("<!DOCTYPE x [<!ENTITY y 'z'>]><x/>", Some("document types"));
        check_scan(&"<a>".repeat(DEPTH_LIMIT), None);
        check_scan(&"<a>".repeat(DEPTH_LIMIT + 1), Some("deep"));
        check_scan(&"<a></a>".repeat(ELEMENT_LIMIT), None);
        check_scan(&"<a/>".repeat(ELEMENT_LIMIT + 1), Some("elements"));
        check_scan(&format!("<a {}/>", "x='1' ".repeat(ATTRIBUTE_LIMIT + 1)), Some("attributes"));
        for cut in ["<", "<!--", "<![CDATA[", "<?", "<a b='", "</", "<a/"] {
            check_scan(cut, None);
        }
    }
}
