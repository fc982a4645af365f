//! What a device says beside completions: ports that go down, GIDs that change, queue pairs and devices that fail.
//!
//! No thread waits for it. The descriptor of a device's events does not block; it wakes a rank that sleeps on one of its connections,
//! and is read before a rank sleeps and where a connection has failed.
//!
//! ```text
//!   device, completion queue or queue pair fails ──▶ the connection has failed
//!   port down, GID gone, LID changed             ──▶ suspected: named with whatever fails, and the failure itself where nothing
//!                                                    moves for as long as the NIC would have sent again
//!   port active, the GID is back                 ──▶ forgotten
//! ```
//!
//! A port that was down for a moment is no failure: NICs send again, and so a cable can be plugged in anew.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ffi::{CQ_ERR, Context, Event, GID_CHANGE, Object, PORT_ACTIVE as ACTIVE};
use super::gid::{self, Gid};

/// `enum ibv_event_type` in order, with what each means here.
pub(super) const WORDS: [(&str, &str); 20] = [
    ("IBV_EVENT_CQ_ERR", "a completion queue overran"),
    ("IBV_EVENT_QP_FATAL", "a queue pair failed"),
    ("IBV_EVENT_QP_REQ_ERR", "the peer sent an invalid request"),
    ("IBV_EVENT_QP_ACCESS_ERR", "the peer wrote where it may not"),
    ("IBV_EVENT_COMM_EST", "a first packet came before the queue pair was ready"),
    ("IBV_EVENT_SQ_DRAINED", "a send queue is drained"),
    ("IBV_EVENT_PATH_MIG", "a path was taken instead of another"),
    ("IBV_EVENT_PATH_MIG_ERR", "no other path can be taken"),
    ("IBV_EVENT_DEVICE_FATAL", "the device failed or was removed"),
    ("IBV_EVENT_PORT_ACTIVE", "the port is active"),
    ("IBV_EVENT_PORT_ERR", "the port is down"),
    ("IBV_EVENT_LID_CHANGE", "the LID changed"),
    ("IBV_EVENT_PKEY_CHANGE", "the table of partition keys changed"),
    ("IBV_EVENT_SM_CHANGE", "another subnet manager answers"),
    ("IBV_EVENT_SRQ_ERR", "a shared receive queue failed"),
    ("IBV_EVENT_SRQ_LIMIT_REACHED", "a shared receive queue runs low"),
    ("IBV_EVENT_QP_LAST_WQE_REACHED", "a queue pair has taken its last receive"),
    ("IBV_EVENT_CLIENT_REREGISTER", "the subnet manager wants registrations anew"),
    ("IBV_EVENT_GID_CHANGE", "the table of GIDs changed"),
    ("IBV_EVENT_WQ_FATAL", "a work queue failed"),
];

const QP_FATAL: i32 = 1;
const QP_REQ_ERR: i32 = 2;
const QP_ACCESS_ERR: i32 = 3;
const DEVICE_FATAL: i32 = 8;
const PORT_ACTIVE: i32 = 9;
const PORT_ERR: i32 = 10;
const LID_CHANGE: i32 = 11;

fn words(kind: i32) -> &'static str {
    let known = usize::try_from(kind).ok().and_then(|kind| WORDS.get(kind));
    known.map_or("something this library does not know", |(_, words)| words)
}

/// What a connection stands on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) port: u8,
    pub(super) gid: Option<Gid>,
    /// Numbers of its queue pairs.
    pub(super) pairs: &'a [u32],
    /// Its completion queue.
    pub(super) queue: usize,
}

/// What the events say against a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It has failed, and whether that is the cause, as for [`LinkError::Nic`](crate::link::LinkError::Nic).
    Failed(String, bool),
    /// It may still work.
    Suspected(String),
}

/// What was said so far.
#[derive(Debug, Default)]
struct State {
    fatal: Option<String>,
    down: BTreeSet<u8>,
    moved: BTreeSet<u8>,
    /// Tables of ports whose GIDs changed, as they are now.
    gids: BTreeMap<u8, Vec<Gid>>,
    pairs: BTreeMap<u32, i32>,
    queues: BTreeSet<usize>,
}

impl State {
    /// Takes one in; `table` is what a port's GIDs are now. Whether it may be against a connection.
    fn take(&mut self, event: Event, table: impl FnOnce(u8) -> Vec<Gid>) -> bool {
        match (event.kind, event.object) {
            (DEVICE_FATAL, _) => self.fatal = Some(words(DEVICE_FATAL).to_owned()),
            (CQ_ERR, Object::Queue(queue)) => drop(self.queues.insert(queue)),
            (kind @ (QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR), Object::Pair(pair)) => {
                self.pairs.entry(pair).or_insert(kind);
            }
            (PORT_ERR, Object::Port(port)) => drop(self.down.insert(port)),
            (PORT_ACTIVE, Object::Port(port)) => {
                self.down.remove(&port);
                return false;
            }
            (LID_CHANGE, Object::Port(port)) => drop(self.moved.insert(port)),
            (GID_CHANGE, Object::Port(port)) => drop(self.gids.insert(port, table(port))),
            _ => return false,
        }
        true
    }

    fn against(&self, place: &Place<'_>) -> Option<Trouble> {
        let failed =
            |kind: i32, cause| Trouble::Failed(format!("{} (event {kind})", words(kind)), cause);
        if let Some(why) = &self.fatal {
            return Some(Trouble::Failed(why.clone(), true));
        }
        if self.queues.contains(&place.queue) {
            return Some(failed(CQ_ERR, true));
        }
        // A peer that did wrong knows better what.
        if let Some(kind) = place.pairs.iter().find_map(|pair| self.pairs.get(pair)) {
            return Some(failed(*kind, *kind == QP_FATAL));
        }
        let Place { port, gid, .. } = place;
        let mut suspected = Vec::new();
        if self.down.contains(port) {
            suspected.push(format!("port {port} is down"));
        }
        if self.moved.contains(port) {
            suspected.push(format!("port {port} has another LID"));
        }
        if let (Some(gid), Some(now)) = (gid, self.gids.get(port))
            && !now.iter().any(|other| (other.index, other.address) == (gid.index, gid.address))
        {
            suspected.push(format!("port {port} has GID {gid} no more"));
        }
        (!suspected.is_empty()).then(|| Trouble::Suspected(suspected.join(", ")))
    }
}

/// A device that is listened to.
#[derive(Debug)]
pub(super) struct Watch {
    context: Arc<Context>,
    /// Where the kernel shows the device.
    folder: PathBuf,
    state: Mutex<State>,
}

impl Watch {
    pub(super) fn new(context: Arc<Context>, folder: PathBuf) -> Self {
        Self { context, folder, state: Mutex::default() }
    }

    /// Becomes readable when something is said.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.context.events()
    }

    /// Reads what has been said meanwhile; what all of it says against a connection, in words that name the device.
    pub(super) fn against(&self, place: &Place<'_>) -> Option<Trouble> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(&mut state);
        Some(self.named(state.against(place)?))
    }

    /// As [`Watch::against`] for a connection that has failed: events may come a moment later, so port and GIDs are looked at.
    pub(super) fn explain(&self, place: &Place<'_>) -> Option<Trouble> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(&mut state);
        let port = place.port;
        // What cannot be asked any more has said so, or will.
        if self.context.port(port).is_ok_and(|attributes| attributes.state != ACTIVE) {
            state.down.insert(port);
        }
        let table = self.table(port);
        state.gids.insert(port, table);
        Some(self.named(state.against(place)?))
    }

    fn table(&self, port: u8) -> Vec<Gid> {
        gid::table(&self.folder.join("ports").join(port.to_string()))
    }

    fn read(&self, state: &mut State) {
        let name = &self.context.name;
        loop {
            match self.context.next_event() {
                Ok(Some(event)) => {
                    let Event { kind, object } = event;
                    if state.take(event, |port| self.table(port)) {
                        tracing::warn!(target: "topod::net", "{name} {object}: {} (event {kind})", words(kind));
                    } else {
                        tracing::info!(target: "topod::net", "{name} {object}: {} (event {kind})", words(kind));
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let why = || format!("the device gives no events: {error}");
                    state.fatal.get_or_insert_with(why);
                    break;
                }
            }
        }
    }

    fn named(&self, trouble: Trouble) -> Trouble {
        let name = &self.context.name;
        match trouble {
            Trouble::Failed(why, cause) => Trouble::Failed(format!("{name}: {why}"), cause),
            Trouble::Suspected(why) => Trouble::Suspected(format!("{name} {why}")),
        }
    }
}

/// How long a NIC sends again what is not answered: the time limit of a packet, once and for each retry. Devices may take up to four
/// times as long for each (InfiniBand Architecture Specification, volume 1, 9.7.6.1.3).
pub(super) fn sent_again(timeout: u8, retries: u8) -> Duration {
    let once = Duration::from_nanos(4096)
        .saturating_mul(1_u32.checked_shl(timeout.into()).unwrap_or(u32::MAX));
    once.saturating_mul(u32::from(retries) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::verbs::gid::Protocol;

    fn gid(address: &str) -> Gid {
        Gid { index: 1, protocol: Protocol::RoceV2, address: address.parse().unwrap() }
    }

    /// What events say against a connection by pairs 7 and 8 on port 1.
    #[track_caller]
    fn check(events: &[(i32, Object)], table: &[&str], expected: Option<Trouble>) {
        let mut state = State::default();
        for (kind, object) in events {
            let event = Event { kind: *kind, object: *object };
            state.take(event, |_| table.iter().map(|address| gid(address)).collect());
        }
        let own = Some(gid("::ffff:10.0.0.1"));
        let place = Place { port: 1, gid: own, pairs: &[7, 8], queue: 70 };
        assert_eq!(state.against(&place), expected, "{events:?}");
    }

    fn suspected(words: &str) -> Option<Trouble> {
        Some(Trouble::Suspected(words.to_owned()))
    }

    fn failed(words: &str, cause: bool) -> Option<Trouble> {
        Some(Trouble::Failed(words.to_owned(), cause))
    }

    #[test]
    fn ports_that_are_down_are_suspected_until_they_are_active() {
        let port = Object::Port;
        check(&[], &[], None);
        check(&[(PORT_ERR, port(2))], &[], None);
        check(&[(PORT_ERR, port(1))], &[], suspected("port 1 is down"));
        check(&[(PORT_ERR, port(1)), (PORT_ACTIVE, port(1))], &[], None);
        check(&[(PORT_ACTIVE, port(1)), (PORT_ERR, port(1))], &[], suspected("port 1 is down"));
        check(&[(LID_CHANGE, port(1))], &[], suspected("port 1 has another LID"));
    }

    #[test]
    fn only_the_loss_of_its_own_gid_is_against_a_connection() {
        let changed = [(GID_CHANGE, Object::Port(1))];
        check(&changed, &["fe80::1", "::ffff:10.0.0.1"], None);
        let gone = "port 1 has GID ::ffff:10.0.0.1 at index 1 no more";
        check(&changed, &["fe80::1"], suspected(gone));
        let both = [changed[0], (PORT_ERR, Object::Port(1))];
        check(&both, &[], suspected(&format!("port 1 is down, {gone}")));
        check(&[(GID_CHANGE, Object::Port(2))], &[], None);
    }

    #[test]
    fn what_fails_ends_what_uses_it() {
        let gone = "the device failed or was removed";
        check(
            &[(DEVICE_FATAL, Object::Device), (PORT_ACTIVE, Object::Port(1))],
            &[],
            failed(gone, true),
        );
        check(
            &[(CQ_ERR, Object::Queue(70))],
            &[],
            failed("a completion queue overran (event 0)", true),
        );
        check(&[(CQ_ERR, Object::Queue(71))], &[], None);
        check(&[(QP_FATAL, Object::Pair(8))], &[], failed("a queue pair failed (event 1)", true));
        let wrote = "the peer wrote where it may not (event 3)";
        check(
            &[(QP_ACCESS_ERR, Object::Pair(7)), (QP_FATAL, Object::Pair(7))],
            &[],
            failed(wrote, false),
        );
        check(&[(QP_FATAL, Object::Pair(9))], &[], None);
    }

    #[test]
    fn what_is_not_known_is_against_nothing() {
        for kind in [-1, 4, 5, 12, 13, 17, 20, i32::MAX] {
            check(
                &[(kind, Object::Device), (kind, Object::Port(1)), (kind, Object::Pair(7))],
                &[],
                None,
            );
        }
        assert!(words(20).contains("does not know"));
    }

    #[test]
    fn numbers_are_those_of_the_list() {
        for (number, name) in [
            (CQ_ERR, "CQ_ERR"),
            (QP_FATAL, "QP_FATAL"),
            (QP_REQ_ERR, "QP_REQ_ERR"),
            (QP_ACCESS_ERR, "QP_ACCESS_ERR"),
            (DEVICE_FATAL, "DEVICE_FATAL"),
            (PORT_ACTIVE, "PORT_ACTIVE"),
            (PORT_ERR, "PORT_ERR"),
            (LID_CHANGE, "LID_CHANGE"),
            (GID_CHANGE, "GID_CHANGE"),
        ] {
            assert_eq!(WORDS[usize::try_from(number).unwrap()].0, format!("IBV_EVENT_{name}"));
        }
    }

    #[test]
    fn nics_send_again_for_so_long() {
        assert_eq!(sent_again(14, 2), Duration::from_nanos(4096 * 16384 * 3));
        // NCCL's defaults: some 34 s.
        assert_eq!(sent_again(20, 7).as_secs(), 34);
        assert!(sent_again(31, 7).as_secs() > 70_000);
        assert!(sent_again(255, 7) >= sent_again(31, 7));
    }
}
