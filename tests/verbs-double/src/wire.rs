//! What becomes of a work request: from the requester's send queue to the responder's memory, and the completions of both.
//!
//! A queue pair's requests go one after another. Each is done at once where nothing stands in its way; otherwise the queue pair is
//! held until a time: that of a seed's delay, of an answer that does not come, or of a receiver that is not ready.

use std::time::{Duration, Instant};

use crate::abi::{
    Sge, WC_WITH_IMM, Wc, access, event, opcode, send_flag, state, status, wc_opcode,
};
use crate::completion::Entry;
use crate::config::LinkLayer;
use crate::device::Health;
use crate::fabric::{Address, Fabric};
use crate::fault::{self, Passage, Spoil};
use crate::memory;
use crate::queue_pair::{BITS_24, QueuePair, Receive, Send};

/// What one transmission came to.
enum Outcome {
    Done {
        /// Bytes that a read brought.
        bytes: u32,
    },
    Failed(u32),
    /// Again, then.
    Held(Instant),
    /// Never: the device does nothing any more, or waits without a limit.
    Stuck,
}

/// Why a responder refuses.
struct Refusal {
    /// What the requester's completion says.
    requester: u32,
    /// What the responder's receive says, where one was taken.
    receive: Option<(Receive, u32)>,
    event: i32,
}

/// Why a message was not taken.
enum NotTaken {
    NotReady,
    Refused(Box<Refusal>),
}

fn refused(requester: u32, event: i32) -> NotTaken {
    NotTaken::Refused(Box::new(Refusal { requester, receive: None, event }))
}

/// `IB_MTU` code to bytes.
fn mtu_bytes(code: u32) -> u64 {
    128 << code.clamp(1, 5)
}

/// Times that a receiver asks for, in units of 10 microseconds: `RNR NAK timer` of the InfiniBand specification, by code.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

fn length(pieces: &[Sge]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length)).sum()
}

/// The largest message of the specification, 2^31 bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

impl Fabric {
    /// Sends what can be sent of a queue pair's requests.
    pub(crate) fn transmit(&mut self, address: Address) {
        loop {
            let Some(qp) = self.qps.get_mut(&address) else { return };
            if qp.state != state::RTS || qp.held.is_some() {
                return;
            }
            let device = qp.device;
            let Some(send) = qp.sends.front_mut() else { return };
            if !send.begun {
                send.begun = true;
                self.begin(address, device);
                continue;
            }
            let send = send.clone();
            match self.attempt(address, &send) {
                Outcome::Done { bytes } => self.finish(address, status::SUCCESS, bytes),
                Outcome::Failed(status) => {
                    self.finish(address, status, 0);
                    self.fail_queue_pair(address, None);
                }
                Outcome::Held(until) => {
                    if let Some(qp) = self.qps.get_mut(&address) {
                        qp.held = Some(until);
                    }
                    self.rescheduled = true;
                    return;
                }
                Outcome::Stuck => return,
            }
        }
    }

    /// Counts a message, lets happen what is to happen with it, and holds it where a seed says so.
    fn begin(&mut self, address: Address, device: usize) {
        if let Some(device) = self.devices.get_mut(device) {
            device.messages += 1;
        }
        self.happenings(device, Some(address));
        if self.config.seed.is_none() || self.draw() & 3 != 0 {
            return;
        }
        let late = Duration::from_micros(self.draw() % 1000);
        if let Some(qp) = self.qps.get_mut(&address).filter(|qp| qp.state == state::RTS) {
            qp.held = Some(Instant::now() + late);
            self.rescheduled = true;
        }
    }

    /// The first request of a queue pair is over.
    fn finish(&mut self, address: Address, status: u32, bytes: u32) {
        let Some(qp) = self.qps.get_mut(&address) else { return };
        let Some(send) = qp.sends.pop_front() else { return };
        let signaled = qp.all_signaled || send.flags & send_flag::SIGNALED != 0;
        if status == status::SUCCESS && !signaled {
            qp.silent += 1;
            return;
        }
        let frees_send = std::mem::take(&mut qp.silent) + 1;
        let mut wc = completion(send.id, status, qp.number);
        if status == status::SUCCESS {
            wc.byte_len = bytes;
            wc.opcode = match send.opcode {
                opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
                opcode::RDMA_READ => wc_opcode::RDMA_READ,
                _ => wc_opcode::SEND,
            };
        }
        let queue = qp.send_cq;
        self.counts.completed(status);
        let entry = Entry { wc, qp: address, frees_send, frees_receive: 0 };
        self.complete(queue, entry, false);
    }

    /// Ends every request that waits, in order.
    pub(crate) fn flush(&mut self, address: Address) {
        loop {
            let Some(qp) = self.qps.get_mut(&address) else { return };
            qp.held = None;
            if !qp.sends.is_empty() {
                self.finish(address, status::WR_FLUSH_ERR, 0);
                continue;
            }
            let Some(receive) = qp.receives.pop_front() else { return };
            self.receive_failed(address, &receive, status::WR_FLUSH_ERR);
        }
    }

    fn receive_failed(&mut self, address: Address, receive: &Receive, status: u32) {
        let Some(qp) = self.qps.get(&address) else { return };
        let wc = completion(receive.id, status, qp.number);
        let queue = qp.recv_cq;
        self.counts.completed(status);
        let entry = Entry { wc, qp: address, frees_send: 0, frees_receive: 1 };
        self.complete(queue, entry, false);
    }

    fn attempt(&mut self, address: Address, send: &Send) -> Outcome {
        let Some(qp) = self.qps.get(&address) else { return Outcome::Stuck };
        let device = qp.device;
        if self.health(device) != Health::Well {
            return Outcome::Stuck;
        }
        let peer = self.destination(qp);
        let place = Passage {
            device: Some(device),
            peer: peer.and_then(|peer| self.qps.get(&peer)).map(|peer| peer.device),
            opcode: Some(send.opcode),
        };
        // Those that count messages count each once.
        let first = send.unanswered == 0 && send.not_ready == 0;
        if first && let Some(status) = fault::completion(&mut self.faults, place) {
            return Outcome::Failed(status);
        }
        if first && fault::message(&mut self.faults, place, &Spoil::LocalProtection) {
            return Outcome::Failed(status::LOC_PROT_ERR);
        }
        let Some(qp) = self.qps.get(&address) else { return Outcome::Stuck };
        let write = send.opcode == opcode::RDMA_READ;
        let total = match &send.inline {
            Some(data) => data.len() as u64,
            None => length(&send.pieces),
        };
        if total > MAX_MESSAGE {
            return Outcome::Failed(status::LOC_LEN_ERR);
        }
        if send.inline.is_none() && !self.local(qp.pd, &send.pieces, write) {
            return Outcome::Failed(status::LOC_PROT_ERR);
        }
        let attr = qp.attr;
        if send.unanswered > u32::from(attr.retry_cnt) {
            return Outcome::Failed(status::RETRY_EXC_ERR);
        }
        let cut = fault::message(&mut self.faults, place, &Spoil::Cut);
        let Some(peer) = peer.filter(|_| !cut) else {
            return self.unanswered(address);
        };
        if let Some(first_in) = self.qps.get_mut(&peer).filter(|peer| !peer.established) {
            first_in.established = true;
            let (context, waits) = (first_in.context, first_in.state == state::RTR);
            if waits {
                self.raise(context, event::COMM_EST, peer as u64, Some(peer));
            }
        }
        if first && fault::message(&mut self.faults, place, &Spoil::RemoteAccess) {
            self.fail_queue_pair(peer, Some(event::QP_ACCESS_ERR));
            return Outcome::Failed(status::REM_ACCESS_ERR);
        }
        match self.respond(address, peer, send, total) {
            Ok(()) => {
                let mtu = mtu_bytes(attr.path_mtu);
                let packets = u32::try_from(total.div_ceil(mtu).max(1)).unwrap_or(u32::MAX);
                if let Some(qp) = self.qps.get_mut(&address) {
                    qp.next_psn = qp.next_psn.wrapping_add(packets) & BITS_24;
                }
                if let Some(peer) = self.qps.get_mut(&peer) {
                    peer.expected_psn = peer.expected_psn.wrapping_add(packets) & BITS_24;
                }
                self.counts.message(send.opcode, total, send.inline.is_some());
                Outcome::Done { bytes: u32::try_from(total).unwrap_or(u32::MAX) }
            }
            Err(NotTaken::NotReady) => self.not_ready(address, peer),
            Err(NotTaken::Refused(refusal)) => {
                if let Some((receive, status)) = refusal.receive {
                    self.receive_failed(peer, &receive, status);
                }
                self.fail_queue_pair(peer, Some(refusal.event));
                Outcome::Failed(refusal.requester)
            }
        }
    }

    /// A transmission that nobody answers: again after the time that the queue pair has for answers.
    fn unanswered(&mut self, address: Address) -> Outcome {
        self.counts.unanswered += 1;
        let haste = self.config.haste;
        let Some(qp) = self.qps.get_mut(&address) else { return Outcome::Stuck };
        // 0 waits for ever.
        if qp.attr.timeout == 0 {
            return Outcome::Stuck;
        }
        if let Some(send) = qp.sends.front_mut() {
            send.unanswered += 1;
        }
        // 4.096 microseconds times a power of two (InfiniBand specification, Local ACK Timeout).
        let timeout = Duration::from_nanos(4096 << qp.attr.timeout) / haste;
        Outcome::Held(Instant::now() + timeout)
    }

    /// The receiver has posted nothing to receive into: again after the time that it asks for.
    fn not_ready(&mut self, address: Address, peer: Address) -> Outcome {
        self.counts.not_ready += 1;
        let timer = self.qps.get(&peer).map_or(0, |peer| peer.attr.min_rnr_timer);
        let haste = self.config.haste;
        let Some(qp) = self.qps.get_mut(&address) else { return Outcome::Stuck };
        let limit = qp.attr.rnr_retry;
        let Some(send) = qp.sends.front_mut() else { return Outcome::Stuck };
        // 7 is without limit.
        if limit != 7 && send.not_ready >= u32::from(limit) {
            return Outcome::Failed(status::RNR_RETRY_EXC_ERR);
        }
        send.not_ready += 1;
        // It answered, so its answers are waited for anew.
        send.unanswered = 0;
        let units = RNR_TIMERS.get(usize::from(timer)).copied().unwrap_or(1);
        Outcome::Held(Instant::now() + Duration::from_micros(10) * units / haste)
    }

    /// The queue pair that takes what this one sends: routed by its address, in a state to receive, and connected to it.
    fn destination(&self, qp: &QueuePair) -> Option<Address> {
        let source = self.devices.get(qp.device)?;
        let port = source.port(qp.attr.port_num.into()).filter(|port| port.active)?;
        let (device, number) = self.route(qp)?;
        let there = self.devices.get(device)?;
        let far = there.port(number.into())?;
        if !far.active || there.health != Health::Well {
            return None;
        }
        let address = *self.numbers.get(&(device, qp.attr.dest_qp_num))?;
        let peer = self.qps.get(&address)?;
        let back = &peer.attr.ah_attr;
        let returns = match source.link_layer {
            LinkLayer::InfiniBand => back.dlid == port.lid,
            LinkLayer::Ethernet => {
                port.gids.iter().flatten().any(|gid| gid.bytes == gid_bytes(back.grh.dgid))
            }
        };
        let connected = peer.receives()
            && peer.attr.port_num == number
            && peer.attr.dest_qp_num == qp.number
            && peer.expected_psn == qp.next_psn
            && returns;
        connected.then_some(address)
    }

    /// The device and port that an address leads to.
    fn route(&self, qp: &QueuePair) -> Option<(usize, u8)> {
        let source = self.devices.get(qp.device)?;
        let address = &qp.attr.ah_attr;
        let port = source.port(qp.attr.port_num.into())?;
        let wanted = gid_bytes(address.grh.dgid);
        let from = port.gids.get(usize::from(address.grh.sgid_index)).copied().flatten();
        for (number, device) in self.devices.iter().enumerate() {
            if device.link_layer != source.link_layer || device.subnet != source.subnet {
                continue;
            }
            for (place, far) in (1..).zip(&device.ports) {
                let has = |kind: Option<u32>| {
                    far.gids
                        .iter()
                        .flatten()
                        .any(|gid| gid.bytes == wanted && kind.is_none_or(|kind| gid.kind == kind))
                };
                let found = match device.link_layer {
                    LinkLayer::InfiniBand => {
                        far.lid == address.dlid && (address.is_global == 0 || has(None))
                    }
                    LinkLayer::Ethernet => from.is_some_and(|from| has(Some(from.kind))),
                };
                if found {
                    return Some((number, place));
                }
            }
        }
        None
    }

    /// The responder's part: checks, memory, and the completion of a receive.
    fn respond(
        &mut self,
        address: Address,
        peer_address: Address,
        send: &Send,
        total: u64,
    ) -> Result<(), NotTaken> {
        let invalid = || refused(status::REM_INV_REQ_ERR, event::QP_REQ_ERR);
        let gone = || refused(status::REM_OP_ERR, event::QP_FATAL);
        let qp = self.qps.get(&address).ok_or_else(gone)?;
        let peer = self.qps.get(&peer_address).ok_or_else(gone)?;
        // A packet longer than the responder's path takes is no request of its own.
        if total > mtu_bytes(peer.attr.path_mtu) && qp.attr.path_mtu > peer.attr.path_mtu {
            return Err(invalid());
        }
        let flags = peer.attr.qp_access_flags;
        match send.opcode {
            opcode::RDMA_READ => {
                if flags & access::REMOTE_READ == 0 || peer.attr.max_dest_rd_atomic == 0 {
                    return Err(invalid());
                }
                let from = self.remote(peer.pd, send, total, access::REMOTE_READ)?;
                let to = self.resolve(&send.pieces);
                self.counts.lost += memory::transfer(&from, &to, None);
                Ok(())
            }
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => {
                if flags & access::REMOTE_WRITE == 0 {
                    return Err(invalid());
                }
                let to = self.remote(peer.pd, send, total, access::REMOTE_WRITE)?;
                self.deliver(send, &to, address);
                if send.opcode == opcode::RDMA_WRITE {
                    return Ok(());
                }
                let receive = self.take_receive(peer_address)?;
                self.received(address, peer_address, &receive, send, total);
                Ok(())
            }
            _ => {
                let receive = self.take_receive(peer_address)?;
                let Some(peer) = self.qps.get(&peer_address) else { return Err(gone()) };
                let refuse = |receive, requester, status| {
                    let event = event::QP_REQ_ERR;
                    let receive = Some((receive, status));
                    NotTaken::Refused(Box::new(Refusal { requester, receive, event }))
                };
                if !self.local(peer.pd, &receive.pieces, true) {
                    return Err(refuse(receive, status::REM_OP_ERR, status::LOC_PROT_ERR));
                }
                if length(&receive.pieces) < total {
                    return Err(refuse(receive, status::REM_INV_REQ_ERR, status::LOC_LEN_ERR));
                }
                let to = self.resolve(&receive.pieces);
                self.deliver(send, &to, address);
                self.received(address, peer_address, &receive, send, total);
                Ok(())
            }
        }
    }

    /// The first receive of a queue pair; none where its receiver is not ready.
    fn take_receive(&mut self, address: Address) -> Result<Receive, NotTaken> {
        let receive = self.qps.get_mut(&address).and_then(|qp| qp.receives.pop_front());
        receive.ok_or(NotTaken::NotReady)
    }

    /// The memory that a request names by remote key, checked to the byte. Without bytes the key is not looked at (InfiniBand
    /// specification, C9-88).
    fn remote(
        &self,
        pd: Address,
        send: &Send,
        total: u64,
        wanted: u32,
    ) -> Result<Vec<memory::Piece>, NotTaken> {
        if total == 0 {
            return Ok(Vec::new());
        }
        let region = self.keys.get(&send.rkey).and_then(|address| self.regions.get(address));
        region
            .filter(|region| region.rkey == send.rkey && region.pd == pd)
            .filter(|region| region.access & wanted != 0)
            .and_then(|region| region.place(send.remote, total))
            .map(|piece| vec![piece])
            .ok_or_else(|| refused(status::REM_ACCESS_ERR, event::QP_ACCESS_ERR))
    }

    /// Whether local keys allow what a request does with their memory.
    fn local(&self, pd: Address, pieces: &[Sge], write: bool) -> bool {
        pieces.iter().filter(|piece| piece.length > 0).all(|piece| {
            let region = self.keys.get(&piece.lkey).and_then(|address| self.regions.get(address));
            region.is_some_and(|region| {
                region.lkey == piece.lkey
                    && region.pd == pd
                    && (!write || region.access & access::LOCAL_WRITE != 0)
                    && region.place(piece.addr, piece.length.into()).is_some()
            })
        })
    }

    /// The memory of pieces that were checked.
    fn resolve(&self, pieces: &[Sge]) -> Vec<memory::Piece> {
        let place = |piece: &Sge| {
            let region =
                self.keys.get(&piece.lkey).and_then(|address| self.regions.get(address))?;
            region.place(piece.addr, piece.length.into())
        };
        pieces.iter().filter_map(place).collect()
    }

    /// Writes a request's bytes; with a seed its packets land in another order.
    fn deliver(&mut self, send: &Send, to: &[memory::Piece], sender: Address) {
        let mtu = self.qps.get(&sender).map_or(256, |qp| mtu_bytes(qp.attr.path_mtu));
        let turned = self.config.seed.is_some() && self.draw() & 1 == 1;
        let packets = turned.then_some(mtu);
        self.counts.into_devices += memory::of_devices(to);
        self.counts.lost += match &send.inline {
            Some(data) => memory::scatter(data, to, packets),
            None => {
                let from = self.resolve(&send.pieces);
                self.counts.from_devices += memory::of_devices(&from);
                memory::transfer(&from, to, packets)
            }
        };
    }

    fn received(
        &mut self,
        from: Address,
        address: Address,
        receive: &Receive,
        send: &Send,
        total: u64,
    ) {
        let source = self.qps.get(&from).map_or(0, |qp| qp.number);
        let Some(qp) = self.qps.get(&address) else { return };
        let mut wc = completion(receive.id, status::SUCCESS, qp.number);
        wc.byte_len = u32::try_from(total).unwrap_or(u32::MAX);
        wc.src_qp = source;
        let slid = self.devices.get(qp.device).and_then(|_| {
            let from = self.qps.get(&from)?;
            Some(self.devices.get(from.device)?.port(from.attr.port_num.into())?.lid)
        });
        wc.slid = slid.unwrap_or(0);
        wc.opcode = match send.opcode {
            opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RECV_RDMA_WITH_IMM,
            _ => wc_opcode::RECV,
        };
        if matches!(send.opcode, opcode::RDMA_WRITE_WITH_IMM | opcode::SEND_WITH_IMM) {
            wc.imm_data = send.immediate;
            wc.wc_flags = WC_WITH_IMM;
        }
        let queue = qp.recv_cq;
        let entry = Entry { wc, qp: address, frees_send: 0, frees_receive: 1 };
        self.counts.completed(status::SUCCESS);
        self.complete(queue, entry, send.flags & send_flag::SOLICITED != 0);
    }
}

/// As `union ibv_gid` holds it.
fn gid_bytes(gid: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.chunks_exact_mut(8).zip(gid) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    bytes
}

/// A completion. Of one with an error only the request, the status, the queue pair and the vendor's code mean something: the rest is rubbish,
/// so that whoever goes by it is found out.
fn completion(id: u64, status: u32, number: u32) -> Wc {
    let mut wc = Wc { wr_id: id, status, qp_num: number, ..Wc::default() };
    if status != status::SUCCESS {
        wc.opcode = 0x5a5a_5a5a;
        wc.byte_len = 0xa5a5_a5a5;
        wc.imm_data = 0xa5a5_a5a5;
        wc.wc_flags = 0x5a5a_5a5a;
        wc.src_qp = 0xa5a5_a5a5;
        wc.vendor_err = 0x80 + status;
    }
    wc
}
