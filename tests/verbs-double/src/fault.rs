//! Faults that are asked for.
//!
//! `kind:key=value,key=value; kind:...` in one line, as README.md lists them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::abi::status;
use crate::errno::Errno;

/// What spoils one call, registration or message at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spoil {
    /// A call answers with an error number and does nothing. A name that ends in `*` is the start of one.
    Call(String),
    /// A registration finds no memory to pin; above so many bytes pinned together, where a number is given.
    Register { bytes: Option<u64> },
    /// A message does not arrive, and nobody says so.
    Cut,
    /// The responder refuses a message's access.
    RemoteAccess,
    /// The requester's own keys are refused.
    LocalProtection,
    /// A request ends with a status, and nothing is done.
    Complete(u32),
}

/// What happens to a device once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    PortDown {
        /// Until the port is back; for ever without it.
        down: Option<Duration>,
    },
    PortUp,
    LidChange,
    GidChange,
    /// The device says so and does nothing more.
    DeviceFatal,
    /// The device is pulled out: what would make or change something on it, and reading its events, is an I/O error. Drivers
    /// send a last event before, which may be left out.
    Gone {
        told: bool,
    },
    /// The queue pair whose message it is fails.
    QpFatal,
    /// An event of a port or the device, and nothing else.
    Event(i32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Spoil(Spoil),
    Happening(Happening),
}

/// One fault: what, where and when.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) device: Option<usize>,
    /// The device that a message goes to.
    pub(crate) peer: Option<usize>,
    pub(crate) port: u8,
    /// Only messages whose opcode is this.
    opcode: Option<u32>,
    /// So many pass first; what happens to a device happens at once without it.
    pub(crate) after: Option<u64>,
    times: Option<u64>,
    code: Option<Errno>,
    matched: u64,
    /// For happenings: it has.
    pub(crate) over: bool,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passage {
    pub(crate) device: Option<usize>,
    pub(crate) peer: Option<usize>,
    pub(crate) opcode: Option<u32>,
}

impl Fault {
    fn matches(&self, place: Passage) -> bool {
        self.device.is_none_or(|wanted| place.device == Some(wanted))
            && self.peer.is_none_or(|wanted| place.peer == Some(wanted))
            && self.opcode.is_none_or(|wanted| place.opcode == Some(wanted))
    }

    /// Counts one that matched, and whether it is spoilt.
    fn strikes(&mut self) -> bool {
        let before = self.matched;
        self.matched += 1;
        let after = self.after.unwrap_or(0);
        before >= after && self.times.is_none_or(|times| before - after < times)
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
    let small = |value: u64| u32::try_from(value).map_err(|_| wrong("a number is too large"));
    let happening = |happening| Kind::Happening(happening);
    let kind = match (kind, what) {
        ("call", Some(name)) => Kind::Spoil(Spoil::Call(name)),
        ("register", None) => Kind::Spoil(Spoil::Register { bytes: take("bytes") }),
        ("cut", None) => Kind::Spoil(Spoil::Cut),
        ("remote-access", None) => Kind::Spoil(Spoil::RemoteAccess),
        ("local-protection", None) => Kind::Spoil(Spoil::LocalProtection),
        ("complete", None) => {
            let wanted = take("status").ok_or_else(|| wrong("needs a status"))?;
            let wanted = small(wanted)?;
            if wanted == status::SUCCESS || wanted >= status::COUNT {
                return Err(wrong("no such error status"));
            }
            Kind::Spoil(Spoil::Complete(wanted))
        }
        ("port-down", None) => {
            happening(Happening::PortDown { down: take("for").map(Duration::from_millis) })
        }
        ("port-up", None) => happening(Happening::PortUp),
        ("lid-change", None) => happening(Happening::LidChange),
        ("gid-change", None) => happening(Happening::GidChange),
        ("device-fatal", None) => happening(Happening::DeviceFatal),
        ("gone", None) => happening(Happening::Gone { told: true }),
        ("eio", None) => happening(Happening::Gone { told: false }),
        ("qp-fatal", None) => happening(Happening::QpFatal),
        ("event", None) => {
            let event = take("type").ok_or_else(|| wrong("needs a type"))?;
            let event = i32::try_from(event).map_err(|_| wrong("no such event"))?;
            happening(Happening::Event(event))
        }
        _ => return Err(wrong("no such fault")),
    };
    let device = take("device").map(small).transpose()?;
    let peer = take("peer").map(small).transpose()?;
    let place = |device: u32| usize::try_from(device).unwrap_or(usize::MAX);
    let code = take("code").map(i32::try_from).transpose();
    let port = u8::try_from(take("port").unwrap_or(1)).map_err(|_| wrong("no such port"))?;
    let fault = Fault {
        device: device.map(place),
        peer: peer.map(place),
        port,
        opcode: take("opcode").map(small).transpose()?,
        after: take("after"),
        times: take("times"),
        code: code.map_err(|_| wrong("no such error number"))?.map(Errno),
        kind,
        matched: 0,
        over: false,
    };
    match keys.keys().next() {
        Some(key) => Err(wrong(&format!("{key} means nothing"))),
        None => Ok(fault),
    }
}

/// The first that strikes among those that `wanted` picks, counting each that matches.
fn strike(
    faults: &mut [Fault],
    place: Passage,
    wanted: impl Fn(&Spoil) -> bool,
) -> Option<Option<Errno>> {
    let mut matching = faults.iter_mut().filter(|fault| {
        matches!(&fault.kind, Kind::Spoil(spoil) if wanted(spoil)) && fault.matches(place)
    });
    matching.find_map(|fault| fault.strikes().then_some(fault.code))
}

/// Whether a call is to fail, and how.
pub(crate) fn call(faults: &mut [Fault], name: &str, device: Option<usize>) -> Option<Errno> {
    let same = |spoil: &Spoil| match spoil {
        Spoil::Call(wanted) => match wanted.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == wanted,
        },
        _ => false,
    };
    let place = Passage { device, ..Passage::default() };
    strike(faults, place, same).map(|code| code.unwrap_or(Errno::IO))
}

/// Whether a registration fails that would make it `pinned` bytes on the device.
pub(crate) fn register(faults: &mut [Fault], device: usize, pinned: u64) -> Option<Errno> {
    let same = |spoil: &Spoil| match spoil {
        Spoil::Register { bytes } => bytes.is_none_or(|limit| pinned > limit),
        _ => false,
    };
    let place = Passage { device: Some(device), ..Passage::default() };
    strike(faults, place, same).map(|code| code.unwrap_or(Errno::NO_MEMORY))
}

/// Whether a message is spoilt so.
pub(crate) fn message(faults: &mut [Fault], place: Passage, spoil: &Spoil) -> bool {
    strike(faults, place, |wanted| wanted == spoil).is_some()
}

/// A status that a message is to end with.
pub(crate) fn completion(faults: &mut [Fault], place: Passage) -> Option<u32> {
    faults.iter_mut().find_map(|fault| match fault.kind {
        Kind::Spoil(Spoil::Complete(status)) if fault.matches(place) => {
            fault.strikes().then_some(status)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_strike_when_and_where_they_are_asked_for() {
        let mut faults = parse(
            "register:device=1,after=2,times=1; call:ibv_create*,code=12; cut:device=0,peer=2",
        )
        .unwrap();
        let mut pin = |device| register(&mut faults, device, 1);
        assert_eq!(pin(0), None);
        let four = [pin(1), pin(1), pin(1), pin(1)];
        assert_eq!(four, [None, None, Some(Errno::NO_MEMORY), None]);
        assert_eq!(call(&mut faults, "ibv_create_qp", None), Some(Errno::NO_MEMORY));
        assert_eq!(call(&mut faults, "ibv_dereg_mr", None), None);
        let to = |peer| Passage { device: Some(0), peer: Some(peer), opcode: None };
        assert!(!message(&mut faults, to(1), &Spoil::Cut));
        assert!(message(&mut faults, to(2), &Spoil::Cut));
    }

    #[test]
    fn a_limit_of_bytes_refuses_what_goes_beyond_it() {
        let mut faults = parse("register:bytes=4096").unwrap();
        assert_eq!(register(&mut faults, 0, 4096), None);
        assert_eq!(register(&mut faults, 0, 4097), Some(Errno::NO_MEMORY));
        assert_eq!(register(&mut faults, 0, 1), None);
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in ["flood", "cut:device=x", "complete", "complete:status=0", "gone:color=1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
