//! Faults that are asked for.
//!
//! `kind:key=value,key=value; kind:...` in one line, as README.md lists them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::code::Code;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A call answers with a code and does nothing. A name that ends in `*` is the start of one.
    Call(String),
    /// A device is gone once so many operations ran on its streams.
    Lost,
    /// An allocation of device memory finds none.
    Memory,
    /// An allocation of host memory finds none.
    HostMemory,
    /// No handle is given, or opened: `export`, `open`, `event`.
    Ipc(String),
    /// Nothing runs on a stream any more.
    Stall,
}

/// One fault: what, where and when.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) device: Option<usize>,
    /// Number of a stream as its device's were made, from 0; the default stream counts when it is first used.
    pub(crate) stream: Option<u64>,
    /// So many pass first.
    pub(crate) after: u64,
    /// So many are spoilt; all from there on without it.
    pub(crate) times: Option<u64>,
    pub(crate) code: Option<Code>,
    matched: AtomicU64,
}

impl Fault {
    /// Counts one that matched, and whether it is spoilt.
    fn strikes(&self) -> bool {
        let before = self.matched.fetch_add(1, Ordering::Relaxed);
        before >= self.after && self.times.is_none_or(|times| before - self.after < times)
    }
}

/// # Errors
/// Names the part that is none.
pub(crate) fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(';').map(str::trim).filter(|text| !text.is_empty()).map(parse_one).collect()
}

fn parse_one(text: &str) -> Result<Fault, String> {
    let wrong = |why: &str| format!("fault {text:?}: {why}");
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut keys = BTreeMap::new();
    let mut what = None;
    for part in rest.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((key, value)) => {
                let value: u64 = value.parse().map_err(|_| wrong("a value is no number"))?;
                keys.insert(key, value);
            }
            None => what = Some(part.to_owned()),
        }
    }
    let mut take = |key| keys.remove(key);
    let kind = match (kind, what) {
        ("call", Some(name)) => Kind::Call(name),
        ("lost", None) => Kind::Lost,
        ("oom", None) => Kind::Memory,
        ("host-oom", None) => Kind::HostMemory,
        ("ipc", Some(what)) if ["export", "open", "event"].contains(&what.as_str()) => {
            Kind::Ipc(what)
        }
        ("stall", None) => Kind::Stall,
        _ => return Err(wrong("no such fault")),
    };
    let small = |value: u64, why| u32::try_from(value).map_err(|_| wrong(why));
    let code = take("code").map(|code| small(code, "no such code")).transpose()?.map(Code);
    let device = take("device").map(|device| small(device, "no such device")).transpose()?;
    let fault = Fault {
        kind,
        device: device.and_then(|device| usize::try_from(device).ok()),
        stream: take("stream"),
        after: take("after").unwrap_or(0),
        times: take("times"),
        code,
        matched: AtomicU64::new(0),
    };
    match keys.keys().next() {
        Some(key) => Err(wrong(&format!("{key} means nothing"))),
        None => Ok(fault),
    }
}

/// The faults in force; tests change them while the double runs.
#[derive(Debug, Default)]
pub(crate) struct Faults(RwLock<Arc<Vec<Fault>>>);

impl Faults {
    pub(crate) fn new(faults: Vec<Fault>) -> Self {
        Self(RwLock::new(Arc::new(faults)))
    }

    pub(crate) fn replace(&self, faults: Vec<Fault>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(faults);
    }

    fn all(&self) -> Arc<Vec<Fault>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The first that strikes among those of a kind, counting each that matches.
    pub(crate) fn strike(
        &self,
        kind: impl Fn(&Kind) -> bool,
        device: Option<usize>,
        stream: Option<u64>,
    ) -> Option<Option<Code>> {
        let faults = self.all();
        let mut matching = faults.iter().filter(|fault| {
            kind(&fault.kind)
                && fault.device.is_none_or(|wanted| device == Some(wanted))
                && fault.stream.is_none_or(|wanted| stream == Some(wanted))
        });
        matching.find(|fault| fault.strikes()).map(|fault| fault.code)
    }

    pub(crate) fn call(&self, name: &str) -> Option<Code> {
        let same = |kind: &Kind| match kind {
            Kind::Call(wanted) => match wanted.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == wanted,
            },
            _ => false,
        };
        self.strike(same, None, None).map(|code| code.unwrap_or(Code::UNKNOWN))
    }

    pub(crate) fn ipc(&self, what: &str) -> bool {
        let same = |kind: &Kind| matches!(kind, Kind::Ipc(wanted) if wanted == what);
        self.strike(same, None, None).is_some()
    }

    /// Whether a stream is still held up; does not count.
    pub(crate) fn stalls(&self, device: usize, stream: u64, ran: u64) -> bool {
        self.all().iter().any(|fault| {
            fault.kind == Kind::Stall
                && fault.device.is_none_or(|wanted| wanted == device)
                && fault.stream.is_none_or(|wanted| wanted == stream)
                && ran >= fault.after
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_strike_when_and_where_they_are_asked_for() {
        let faults =
            Faults::new(parse("oom:device=1,after=2,times=1; call:cuEvent*,code=719").unwrap());
        let memory = |device| faults.strike(|kind| *kind == Kind::Memory, Some(device), None);
        assert_eq!(memory(0), None);
        assert_eq!((memory(1), memory(1), memory(1), memory(1)), (None, None, Some(None), None));
        assert_eq!(faults.call("cuEventRecord"), Some(Code::LAUNCH_FAILED));
        assert_eq!(faults.call("cuInit"), None);
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in ["gone", "oom:device=x", "ipc:all", "lost:color=1", "call:code=1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
