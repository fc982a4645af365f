//! Ends of connections before they are connected, and what they tell each other for that.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::events;
use super::ffi::{Global, Pair, Queue, Region, Route};
use super::gid::{self, Gid};
use super::line::Line;
use super::nic::{Nic, Nics};
use super::places;
use super::receive::VerbsReceive;
use super::transmit::VerbsTransmit;
use crate::communicator::Options;
use crate::link::header::{HEADER, Identity};
use crate::memory::Aligned;
use crate::schedule::ConnectionId;
use crate::variables::Ib;

/// Inline data asked for; devices that have less say so.
const INLINE: u32 = 256;
/// Packets are numbered by 24 bits.
const PACKETS: u32 = 0x00ff_ffff;

/// What an end tells the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    nic: String,
    port: u8,
    infiniband: bool,
    lid: u16,
    mtu: i32,
    gids: Vec<Gid>,
    /// Number of each queue pair and of its first packet.
    pairs: Vec<(u32, u32)>,
    /// The receiver's memory.
    address: u64,
    key: u32,
}

/// What the end that was told answers: it also chooses the GIDs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    offer: Offer,
    gid: Gid,
    your_gid: Gid,
}

/// An end of a connection that is not yet connected.
#[derive(Debug)]
pub(crate) struct End {
    line: Line,
    nic: Arc<Nic>,
    id: ConnectionId,
    packets: Vec<u32>,
    ib: Ib,
    slots: usize,
    slot_bytes: usize,
}

fn refused(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl End {
    /// Makes the queue pairs and the memory of one end, on the port that is `named`; the receiver's memory can be written by the peer.
    pub(crate) fn new(
        nics: &Nics,
        id: ConnectionId,
        named: Option<&str>,
        sends: bool,
        options: &Options,
    ) -> io::Result<Self> {
        let nic = Arc::clone(nics.of_channel(id.channel, named));
        let (slots, slot_bytes) = (options.slots(), options.slot_bytes().next_multiple_of(HEADER));
        let place = HEADER + slot_bytes;
        if place as u64 > u64::from(nic.longest) {
            let (name, longest) = (nic.name(), nic.longest);
            return Err(refused(format!(
                "slots of {slot_bytes} bytes; {name} sends at most {longest} at once"
            )));
        }
        let many = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        // A message may be two pieces of work; and there is what flushes.
        let sends_posted = many(2 * slots + 4);
        let pairs = usize::try_from(options.ib.queue_pairs).unwrap_or(1);
        // A message for each slot, whichever pair it comes by; credits and letters come by the first.
        let receives = |pair: usize| match (sends, pair) {
            (false, _) => slots,
            (true, 0) => places::receives(slots),
            (true, _) => 0,
        };
        let entries = (0..pairs).map(|pair| sends_posted + many(receives(pair)));
        let queue = Arc::new(Queue::new(&nic.context, entries.fold(0, u32::saturating_add))?);
        let letters = slots * place;
        let memory = Aligned::new(letters + places::receives(slots) * places::LETTER);
        let region = Region::new(&nic.domain, memory, !sends)?;
        let pairs: Vec<Pair> = (0..pairs)
            .map(|at| {
                let receives = many(receives(at)).max(1);
                Pair::new(&nic.domain, &queue, sends_posted, receives, INLINE)
            })
            .collect::<io::Result<_>>()?;
        for pair in &pairs {
            pair.initialise(nic.port)?;
        }
        let random = || {
            let drawn = std::hash::RandomState::new().build_hasher().finish();
            u32::try_from(drawn & u64::from(PACKETS)).unwrap_or(0)
        };
        let packets: Vec<u32> = pairs.iter().map(|_| random()).collect();
        let sent_again = events::sent_again(options.ib.timeout, options.ib.retry_count);
        let grace = sent_again.min(options.timeout / 2);
        let line = Line::new(pairs, (region, letters), queue, Arc::clone(&nic), grace);
        // Before the peer can send.
        (0..packets.len()).try_for_each(|pair| line.receive_first(pair, receives(pair), sends))?;
        Ok(Self { line, nic, id, packets, ib: options.ib.clone(), slots, slot_bytes })
    }

    pub(crate) fn offer(&self) -> Offer {
        let nic = &self.nic;
        Offer {
            nic: nic.name().to_owned(),
            port: nic.port,
            infiniband: nic.infiniband,
            lid: nic.lid,
            mtu: nic.mtu,
            gids: nic.gids.clone(),
            pairs: self
                .line
                .pairs
                .iter()
                .map(|p| p.number)
                .zip(self.packets.iter().copied())
                .collect(),
            address: self.line.region.address(),
            key: self.line.region.rkey,
        }
    }

    /// Connects to the end that made the offer; what that end needs to do the same.
    pub(crate) fn accept(&mut self, theirs: &Offer) -> io::Result<Answer> {
        self.on_one_layer(theirs)?;
        let nic = &self.nic;
        let Some((own, peer)) = gid::choose(&nic.gids, &theirs.gids) else {
            let list =
                |gids: &[Gid]| gids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(refused(format!(
                "{} port {} and the peer's {} port {} have no kind of GID in common: here {}, there {}",
                nic.name(),
                nic.port,
                theirs.nic,
                theirs.port,
                list(&nic.gids),
                list(&theirs.gids)
            )));
        };
        self.connect(theirs, own, peer)?;
        Ok(Answer { offer: self.offer(), gid: own, your_gid: peer })
    }

    /// Connects to the end that answered.
    pub(crate) fn complete(&mut self, answer: &Answer) -> io::Result<()> {
        self.connect(&answer.offer, answer.your_gid, answer.gid)
    }

    /// Comes before GIDs are compared: between the two layers there are none in common.
    fn on_one_layer(&self, theirs: &Offer) -> io::Result<()> {
        let nic = &self.nic;
        if theirs.infiniband == nic.infiniband {
            return Ok(());
        }
        let layer = |infiniband| if infiniband { "InfiniBand" } else { "Ethernet" };
        Err(refused(format!(
            "{} is on {}, the peer's {} on {}",
            nic.name(),
            layer(nic.infiniband),
            theirs.nic,
            layer(theirs.infiniband)
        )))
    }

    fn connect(&mut self, theirs: &Offer, own: Gid, peer: Gid) -> io::Result<()> {
        self.on_one_layer(theirs)?;
        let nic = &self.nic;
        if theirs.pairs.len() != self.line.pairs.len() {
            let (ours, theirs) = (self.line.pairs.len(), theirs.pairs.len());
            return Err(refused(format!("{ours} queue pairs here, {theirs} at the peer")));
        }
        let global = Global {
            gid: peer.address.octets(),
            own_index: own.index,
            traffic_class: self.ib.traffic_class,
        };
        for ((pair, packet), (number, peer_packet)) in
            self.line.pairs.iter().zip(&self.packets).zip(&theirs.pairs)
        {
            pair.connect(&Route {
                port: nic.port,
                global: routed(nic.infiniband, &own, &peer, theirs.lid).then_some(global),
                lid: theirs.lid,
                mtu: nic.mtu.min(theirs.mtu),
                service_level: self.ib.service_level,
                peer_pair: *number,
                own_packet: *packet,
                peer_packet: *peer_packet,
                timeout: self.ib.timeout,
                retries: self.ib.retry_count,
            })?;
        }
        self.line.words = format!(
            "{} port {} (GID {}) to {} port {} (GID {})",
            nic.name(),
            nic.port,
            own,
            theirs.nic,
            theirs.port,
            peer
        );
        self.line.gid = Some(own);
        self.line.remote = (theirs.address, theirs.key);
        tracing::debug!(target: "topod::net", "connection {:?} by {}", self.id, self.line.words);
        Ok(())
    }

    pub(crate) fn into_transmit(self, session: u64, generation: u64) -> VerbsTransmit {
        let adaptive = self.ib.adaptive_routing.unwrap_or(self.nic.infiniband);
        let identity = Identity { session, generation, id: self.id };
        VerbsTransmit::new(self.line, identity, self.slots, self.slot_bytes, adaptive)
    }

    pub(crate) fn into_receive(self, session: u64, generation: u64) -> VerbsReceive {
        let identity = Identity { session, generation, id: self.id };
        VerbsReceive::new(self.line, identity, self.slots, self.slot_bytes)
    }
}

/// Whether a route needs GIDs: always over Ethernet; within an InfiniBand subnet local identifiers do.
const fn routed(infiniband: bool, own: &Gid, peer: &Gid, peer_lid: u16) -> bool {
    !infiniband || own.subnet() != peer.subnet() || peer_lid == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::verbs::gid::Protocol;

    #[test]
    fn only_routed_traffic_needs_gids() {
        let gid = |address: &str| Gid {
            index: 0,
            protocol: Protocol::InfiniBand,
            address: address.parse().unwrap(),
        };
        let (near, far) = (gid("fe80::1"), gid("fec0::1"));
        assert!(!routed(true, &near, &gid("fe80::2"), 7));
        assert!(routed(true, &near, &far, 7));
        assert!(routed(true, &near, &gid("fe80::2"), 0));
        assert!(routed(false, &near, &gid("fe80::2"), 0));
    }
}
