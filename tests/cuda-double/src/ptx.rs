//! As much of PTX as loading a module needs: its version and target, and each entry's parameters.

use crate::code::Code;

/// A function that can be launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    /// `.maxntid`, the launch bound, all dimensions together.
    pub(crate) most_threads: Option<u32>,
}

/// One parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Bytes.
    pub(crate) size: usize,
    pub(crate) alignment: usize,
    /// A structure by value, not a number.
    pub(crate) structure: bool,
    /// In a register for floating-point numbers where a host's function takes it.
    pub(crate) float: bool,
}

/// A module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ptx {
    /// As in 88 for 8.8.
    pub(crate) version: u32,
    /// As in 90.
    pub(crate) target: u32,
    pub(crate) entries: Vec<Entry>,
}

/// The latest PTX that a driver of a version knows, from the release notes in NVIDIA's PTX reference.
fn newest(driver: i32) -> u32 {
    match driver {
        ..12_000 => 78,
        12_000..12_010 => 80,
        12_010..12_020 => 81,
        12_020..12_030 => 82,
        12_030..12_040 => 83,
        12_040..12_050 => 84,
        12_050..12_080 => 85,
        12_080..12_090 => 87,
        12_090..13_000 => 88,
        _ => 90,
    }
}

/// Reads a module for a device and a driver.
///
/// # Errors
/// What the driver answers to a text that is none, is too new, or is for another device.
pub(crate) fn load(text: &str, capability: u32, driver: i32) -> Result<Ptx, Code> {
    let ptx = parse(text).ok_or(Code::INVALID_PTX)?;
    if ptx.version > newest(driver) {
        return Err(Code::UNSUPPORTED_PTX_VERSION);
    }
    // PTX of an earlier device is compiled for a later one, never the other way.
    if ptx.target > capability {
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    Ok(ptx)
}

fn parse(text: &str) -> Option<Ptx> {
    let text = without_comments(text);
    let after = |word: &str| text.split_once(word).map(|(_, rest)| rest.trim_start());
    let version = after(".version")?.split_whitespace().next()?;
    let (major, minor) = version.split_once('.')?;
    let version = major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?;
    let target = after(".target")?.strip_prefix("sm_")?;
    let digits = target.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(target.len());
    let target = target[..digits].parse().ok()?;
    if after(".address_size")?.split_whitespace().next()? != "64" {
        return None;
    }
    let entries = text.split(".entry").skip(1).map(entry).collect::<Option<_>>()?;
    Some(Ptx { version, target, entries })
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let mut rest = lines.collect::<Vec<_>>().join("\n");
    while let Some(begin) = rest.find("/*") {
        let end = rest[begin..].find("*/").map_or(rest.len(), |end| begin + end + 2);
        rest.replace_range(begin..end, " ");
    }
    rest
}

/// From behind the word `.entry`.
fn entry(text: &str) -> Option<Entry> {
    let text = text.trim_start();
    let name_end =
        text.find(|letter: char| letter == '(' || letter == '{' || letter.is_whitespace())?;
    let (name, rest) = text.split_at(name_end);
    let rest = rest.trim_start();
    let (parameters, rest) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (list, rest) = rest.split_once(')')?;
            let all = list.split(',').filter(|text| !text.trim().is_empty());
            (all.map(parameter).collect::<Option<_>>()?, rest)
        }
        None => (Vec::new(), rest),
    };
    // Directives stand between the parameters and the body, which must be there.
    let (directives, _) = rest.split_once('{')?;
    let most_threads = directives.split_once(".maxntid").map(|(_, rest)| {
        let line = rest.lines().next().unwrap_or_default();
        line.split(',')
            .filter_map(|text| text.split_whitespace().next()?.parse::<u32>().ok())
            .product()
    });
    Some(Entry { name: name.to_owned(), parameters, most_threads })
}

/// `.param .align 8 .b8 name[128]` or `.param .u64 .ptr .align 1 name`.
fn parameter(text: &str) -> Option<Parameter> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_type = |word: &&&str| {
        word[1..].starts_with(['b', 'u', 's', 'f']) && word[2..].chars().all(|c| c.is_ascii_digit())
    };
    let dotted = words.iter().filter(|word| word.starts_with('.') && word.len() > 2);
    let kind = *dotted.clone().find(is_type)?;
    let bytes = kind[2..].parse::<usize>().ok()? / 8;
    let align = words.iter().position(|word| *word == ".align");
    let pointer = words.contains(&".ptr");
    let alignment = match align.filter(|_| !pointer) {
        Some(place) => words.get(place + 1)?.parse().ok()?,
        None => bytes,
    };
    let name = words.last()?;
    let count = match name.split_once('[') {
        Some((_, count)) => Some(count.trim_end_matches(']').parse::<usize>().ok()?),
        None => None,
    };
    Some(Parameter {
        size: bytes * count.unwrap_or(1),
        alignment,
        structure: count.is_some(),
        float: kind.starts_with(".f"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//\n// Generated by NVIDIA NVVM Compiler\n//\n\n.version 8.8\n.target sm_90\n.address_size 64\n\n\
        \t// .globl\tfold\n\n.visible .entry fold(\n\t.param .align 8 .b8 fold_param_0[128],\n\t.param .u32 fold_param_1,\n\
        \t.param .u64 .ptr .align 1 fold_param_2,\n\t.param .f32 fold_param_3\n)\n.maxntid 512\n{\n\tret;\n}\n\
        .visible .entry nothing()\n{\n\tret;\n}\n";

    #[test]
    fn entries_and_their_parameters() {
        let ptx = load(TEXT, 90, 12_090).unwrap();
        assert_eq!((ptx.version, ptx.target), (88, 90));
        let fold = &ptx.entries[0];
        assert_eq!((fold.name.as_str(), fold.most_threads), ("fold", Some(512)));
        let sizes: Vec<_> = fold.parameters.iter().map(|p| (p.size, p.alignment)).collect();
        assert_eq!(sizes, [(128, 8), (4, 4), (8, 8), (4, 4)]);
        assert!(fold.parameters[0].structure && fold.parameters[3].float);
        assert_eq!((ptx.entries[1].name.as_str(), ptx.entries[1].parameters.len()), ("nothing", 0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(load(TEXT, 80, 12_090), Err(Code::NO_BINARY_FOR_GPU));
        assert_eq!(load(TEXT, 90, 12_040), Err(Code::UNSUPPORTED_PTX_VERSION));
        for text in ["", "nonsense", ".version 8.8\n.target sm_90\n", ".version x.y"] {
            assert_eq!(load(text, 90, 12_090), Err(Code::INVALID_PTX), "{text:?}");
        }
        let cut = &TEXT[..TEXT.find(".param .u32").unwrap()];
        assert_eq!(load(cut, 90, 12_090), Err(Code::INVALID_PTX));
    }
}
