//! The words of a change, before any name is looked up.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Bandwidth;

/// How much a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    /// So many parallel links; of PCIe so many lanes.
    Count(u32),
    /// So much in each direction that is meant.
    Rate(Bandwidth),
}

/// What can be added beside links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewKind {
    Gpu,
    Nic,
}

/// One change; devices and links as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Remove { what: String, count: Option<u32> },
    Set { link: String, amount: Amount },
    Slow { what: String, amount: Amount },
    AddLink { link: String, amount: Option<Amount> },
    AddDevice { kind: NewKind, name: String, to: String, rate: Option<Bandwidth> },
    Move { what: String, to: String },
}

/// The forms there are, for messages.
pub(super) const FORMS: &str = "known are 'remove A-B [xN]', 'remove A', 'A-B xN|RATE', 'slow A-B|A to xN|RATE', \
    'add A-B [xN|RATE]', 'add gpu|nic NAME to A [RATE]', 'move A to B'";

/// Reads one change.
pub(super) fn parse(text: &str) -> Result<Change, String> {
    let words = joined(text);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some(first) = words.first() else {
        return Err(format!("no change is named; {FORMS}"));
    };
    let verb = first.to_ascii_lowercase();
    let rest = &words[1..];
    match verb.as_str() {
        "remove" => remove(rest),
        "slow" => slow(rest),
        "add" => add(rest),
        "move" => match plain(rest)[..] {
            [what, to] => Ok(Change::Move { what: what.into(), to: to.into() }),
            _ => Err("'move' takes a device and where to: 'move A to B'".into()),
        },
        "set" => set(rest),
        _ if words.len() > 1 => set(&words),
        _ => Err(format!("'{first}' says nothing to do; {FORMS}")),
    }
}

/// Words between white space; `A - B`, `A -B` and `25 GB/s` are one word each.
fn joined(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for word in text.split_whitespace() {
        let hangs = |word: &str| word.ends_with(['-', '>']);
        let unit = unit(word).is_some()
            && words.last().is_some_and(|last| last.parse::<f64>().is_ok_and(f64::is_finite));
        match words.last_mut() {
            Some(last) if open || unit || word.starts_with(['-', '>']) => last.push_str(word),
            _ => words.push(word.into()),
        }
        open = hangs(word);
    }
    words
}

/// Without the small words `to`, `at`, `on` and `by`, which only help reading.
fn plain<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let small = |word: &&str| ["to", "at", "on", "by"].iter().any(|w| word.eq_ignore_ascii_case(w));
    words.iter().copied().filter(|word| !small(word)).collect()
}

fn remove(words: &[&str]) -> Result<Change, String> {
    match plain(words)[..] {
        [what] => Ok(Change::Remove { what: what.into(), count: None }),
        [what, count] => match amount(count)? {
            Amount::Count(count) => Ok(Change::Remove { what: what.into(), count: Some(count) }),
            Amount::Rate(_) => Err(format!("'{count}': so many links are removed, such as x1")),
        },
        _ => Err("'remove' takes one device or link: 'remove A-B [xN]'".into()),
    }
}

fn slow(words: &[&str]) -> Result<Change, String> {
    match plain(words)[..] {
        [what, to] => Ok(Change::Slow { what: what.into(), amount: amount(to)? }),
        _ => Err("'slow' takes a device or link and a rate: 'slow A to 12.5GB/s'".into()),
    }
}

fn set(words: &[&str]) -> Result<Change, String> {
    match plain(words)[..] {
        [link, to] => Ok(Change::Set { link: link.into(), amount: amount(to)? }),
        _ => Err(format!("a link and what it has is needed: 'A-B xN' or 'A-B 25GB/s'; {FORMS}")),
    }
}

fn add(words: &[&str]) -> Result<Change, String> {
    let words = plain(words);
    let kind = words.first().and_then(|word| match word.to_ascii_lowercase().as_str() {
        "gpu" => Some(NewKind::Gpu),
        "nic" => Some(NewKind::Nic),
        _ => None,
    });
    if let Some(kind) = kind {
        let (name, to, rate) = match words[1..] {
            [name, to] => (name, to, None),
            [name, to, rate] => (name, to, Some(rate)),
            _ => {
                return Err("'add gpu' and 'add nic' take a name and where to: \
                     'add nic mlx5_8 to 0000:05:00.0 [25GB/s]'"
                    .into());
            }
        };
        let rate = rate.map(amount).transpose()?;
        let rate = match rate {
            Some(Amount::Count(count)) => {
                return Err(format!("x{count}: a new device needs a rate, such as 25GB/s"));
            }
            Some(Amount::Rate(rate)) => Some(rate),
            None => None,
        };
        return Ok(Change::AddDevice { kind, name: name.into(), to: to.into(), rate });
    }
    match words[..] {
        [link] => Ok(Change::AddLink { link: link.into(), amount: None }),
        [link, more] => Ok(Change::AddLink { link: link.into(), amount: Some(amount(more)?) }),
        _ => Err("'add' takes one link: 'add A-B [xN|RATE]'".into()),
    }
}

/// `x4`, `12.5GB/s`, `200Gbit/s`.
fn amount(word: &str) -> Result<Amount, String> {
    let not = || {
        format!(
            "'{word}' is neither a number of links such as x2 nor a rate such as 12.5GB/s or 200Gbit/s"
        )
    };
    if let Some(count) = word.strip_prefix(['x', 'X']) {
        return match count.parse::<u32>() {
            Ok(0) => Err(format!("'{word}': to have none left, say 'remove'")),
            Ok(count) if count <= 1024 => Ok(Amount::Count(count)),
            Ok(_) => Err(format!("'{word}': more than 1024 links")),
            Err(_) => Err(not()),
        };
    }
    let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (number, unit_text) = word.split_at(digits);
    let number: f64 = number.parse().map_err(|_| not())?;
    let gbps = match unit(unit_text) {
        Some(gbps) => number * gbps,
        None if unit_text.eq_ignore_ascii_case("gb/s") => {
            return Err(format!("'{word}': write GB/s for bytes or Gbit/s for bits"));
        }
        None if unit_text.is_empty() => {
            return Err(format!("'{word}' has no unit: write {number}GB/s or {number}Gbit/s"));
        }
        None => return Err(not()),
    };
    match Bandwidth::from_gbps(gbps) {
        Some(rate) if rate.is_zero() => {
            Err(format!("'{word}': to have nothing left, say 'remove'"))
        }
        Some(rate) => Ok(Amount::Rate(rate)),
        None => Err(format!("'{word}' is no rate that a link could have")),
    }
}

/// How many GB/s a unit is.
fn unit(text: &str) -> Option<f64> {
    match text {
        "GB/s" => Some(1.0),
        "MB/s" => Some(1e-3),
        "kB/s" => Some(1e-6),
        "Gbit/s" => Some(0.125),
        "Mbit/s" => Some(0.125e-3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &Change) {
        assert_eq!(parse(text).as_ref(), Ok(expect), "{text}");
    }

    #[track_caller]
    fn refused(text: &str, part: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }

    fn gbps(gbps: f64) -> Amount {
        Amount::Rate(Bandwidth::from_gbps(gbps).unwrap())
    }

    #[test]
    fn forms() {
        let link = || "GPU0-GPU3".to_owned();
        check("remove GPU0-GPU3", &Change::Remove { what: link(), count: None });
        check(" Remove  GPU0 - GPU3 x1", &Change::Remove { what: link(), count: Some(1) });
        check("GPU0-GPU3 x1", &Change::Set { link: link(), amount: Amount::Count(1) });
        check("set GPU0-GPU3 to 25 GB/s", &Change::Set { link: link(), amount: gbps(25.0) });
        let nic = || "mlx5_0".to_owned();
        check("slow mlx5_0 to 12.5GB/s", &Change::Slow { what: nic(), amount: gbps(12.5) });
        check("slow mlx5_0 to 100Gbit/s", &Change::Slow { what: nic(), amount: gbps(12.5) });
        check("add GPU0-GPU3", &Change::AddLink { link: link(), amount: None });
        check("add GPU0-GPU3 25GB/s", &Change::AddLink { link: link(), amount: Some(gbps(25.0)) });
        check(
            "move mlx5_0 to 0000:05:00.0",
            &Change::Move { what: nic(), to: "0000:05:00.0".into() },
        );
        let new = |kind, name: &str, to: &str, rate| Change::AddDevice {
            kind,
            name: name.into(),
            to: to.into(),
            rate,
        };
        check("add nic n9 to 05:00.0", &new(NewKind::Nic, "n9", "05:00.0", None));
        let rate = Bandwidth::from_gbps(0.25);
        check("add gpu GPU8 to nvs0 at 250MB/s", &new(NewKind::Gpu, "GPU8", "nvs0", rate));
    }

    #[test]
    fn refusals() {
        refused("", "no change is named");
        refused("GPU0-GPU3", "says nothing to do");
        refused("remove", "takes one device or link");
        refused("remove GPU0-GPU3 25GB/s", "such as x1");
        refused("slow mlx5_0", "takes a device or link and a rate");
        refused("slow mlx5_0 to 12.5", "has no unit: write 12.5GB/s or 12.5Gbit/s");
        refused("slow mlx5_0 to 12.5gb/s", "GB/s for bytes or Gbit/s for bits");
        refused("slow mlx5_0 to fast", "neither a number of links");
        refused("GPU0-GPU3 x0", "say 'remove'");
        refused("GPU0-GPU3 0GB/s", "say 'remove'");
        refused("GPU0-GPU3 x99999", "more than 1024");
        refused("GPU0-GPU3 1e99GB/s", "neither a number of links");
        refused("GPU0-GPU3 99999999999GB/s", "no rate that a link could have");
        refused("add nic mlx5_9", "take a name and where to");
        refused("add nic mlx5_9 to nvs0 x2", "needs a rate");
        refused("move mlx5_0", "takes a device and where to");
        refused("make GPU0 faster please", "a link and what it has");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in ".{0,60}") {
            let _ = parse(&text);
        }
    }
}
