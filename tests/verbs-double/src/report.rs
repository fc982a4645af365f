//! What a process did with the library and what it left behind: a line of JSON as it ends.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;

use serde_json::json;

use crate::abi::opcode;
use crate::engine;
use crate::fabric::Fabric;
use crate::ffi;
use crate::memory::Of;

/// What is counted over a process's life.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    calls: BTreeMap<&'static str, u64>,
    /// Rules that a caller broke, each text once.
    misuse: Vec<String>,
    messages: BTreeMap<&'static str, u64>,
    bytes: u64,
    inline: u64,
    /// Registrations that were made, by whose memory they are of.
    registered: BTreeMap<&'static str, u64>,
    /// Bytes that messages brought from devices' memory, and into it.
    pub(crate) from_devices: u64,
    pub(crate) into_devices: u64,
    statuses: BTreeMap<u32, u64>,
    /// Transmissions that nobody answered.
    pub(crate) unanswered: u64,
    /// Answers that a receiver was not ready.
    pub(crate) not_ready: u64,
    /// Pieces of registered memory that were unmapped when a NIC came to them.
    pub(crate) lost: u64,
    /// Most bytes that were registered at a time, over all devices.
    pub(crate) pinned_most: u64,
    /// Regions that were deregistered while a request named them.
    pub(crate) deregistered_in_use: u64,
    /// Lists of devices that nobody gave back.
    pub(crate) lists: u64,
    /// Objects that contexts ended with.
    pub(crate) closed_with: u64,
}

impl Counts {
    pub(crate) fn call(&mut self, name: &'static str) {
        *self.calls.entry(name).or_default() += 1;
    }

    pub(crate) fn misuse(&mut self, what: String) {
        // Enough to tell what is wrong.
        if self.misuse.len() < 100 && !self.misuse.contains(&what) {
            self.misuse.push(what);
        }
    }

    pub(crate) fn message(&mut self, code: u32, bytes: u64, inline: bool) {
        let name = match code {
            opcode::RDMA_WRITE => "rdma_write",
            opcode::RDMA_WRITE_WITH_IMM => "rdma_write_with_imm",
            opcode::SEND => "send",
            opcode::SEND_WITH_IMM => "send_with_imm",
            _ => "rdma_read",
        };
        *self.messages.entry(name).or_default() += 1;
        self.bytes += bytes;
        self.inline += u64::from(inline);
    }

    pub(crate) fn registered(&mut self, of: &Of) {
        let name = match of {
            Of::Host => "host",
            Of::DmaBuf { .. } => "dma_buf",
            Of::Peer => "peer",
        };
        *self.registered.entry(name).or_default() += 1;
    }

    pub(crate) fn completed(&mut self, status: u32) {
        *self.statuses.entry(status).or_default() += 1;
    }
}

/// What is to say now, as JSON.
pub(crate) fn text(fabric: &Fabric) -> String {
    let counts = &fabric.counts;
    let unacked: u64 = fabric.contexts.values().map(|context| context.unacked).sum::<u64>()
        + fabric.qps.values().map(|qp| qp.unacked_events).sum::<u64>()
        + fabric.cqs.values().map(|cq| cq.unacked_events + cq.unacked_completions).sum::<u64>();
    let messages = fabric.devices.iter().map(|device| device.messages);
    json!({
        "process": std::process::id(),
        "left": {
            "contexts": fabric.contexts.len(),
            "pds": fabric.pds.len(),
            "mrs": fabric.regions.len(),
            "channels": fabric.channels.len(),
            "cqs": fabric.cqs.len(),
            "qps": fabric.qps.len(),
            "lists": counts.lists,
            "unacknowledged": unacked,
            "closed_with": counts.closed_with,
        },
        "misuse": counts.misuse,
        "lost": counts.lost,
        "deregistered_in_use": counts.deregistered_in_use,
        "unanswered": counts.unanswered,
        "not_ready": counts.not_ready,
        "pinned_most": counts.pinned_most,
        "messages": counts.messages,
        "messages_by_device": messages.collect::<Vec<_>>(),
        "bytes": counts.bytes,
        "inline": counts.inline,
        "registered": counts.registered,
        "from_devices": counts.from_devices,
        "into_devices": counts.into_devices,
        "statuses": counts.statuses,
        "calls": counts.calls,
    })
    .to_string()
}

pub(crate) extern "C" fn write() {
    let Some((path, line)) = engine::at_end(|fabric| {
        fabric.config.report.clone().map(|path| (path, text(fabric) + "\n"))
    }) else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    // One write, so that lines of several processes do not mix.
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        complain(&format!("{}: {error}", path.display()));
    }
}

/// Has the report written when the process ends, where one is asked for.
pub(crate) fn at_exit(fabric: &Fabric) {
    if fabric.config.report.is_some() {
        ffi::at_exit(write);
    }
}

#[expect(clippy::print_stderr, reason = "an error number cannot say what is wrong")]
pub(crate) fn complain(why: &str) {
    eprintln!("verbs-double: {why}");
}
