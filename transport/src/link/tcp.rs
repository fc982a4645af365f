//! A TCP connection per connection of the plan. Every message is a frame: a header, then the data, which is not encrypted.
//!
//! ```text
//!   small   data ──▶ slot ──▶ kernel        kernel ──▶ memory of the link ──▶ where it goes
//!   large   data ───────────▶ kernel        kernel ──────────────────────────▶ where it goes
//! ```

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use super::header::{HEADER, Identity, decode, encode, sequence};
use super::{Interest, LinkError, Receive, Tag, Transmit};
use crate::memory::{Aligned, Slot, copy, read_behind, write_behind};

/// Messages from so many bytes on go between the kernel and the caller's buffers; a shorter copy costs less than looking after two
/// places.
const DIRECT: usize = 8 << 10;

fn closed(error: io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted => LinkError::Closed,
        _ => LinkError::Io(error),
    }
}

/// Messages from so many bytes on go over a socket of their own direction, where there are two.
pub(super) const LONG: usize = 16 << 10;

/// Sending half: frames lie in memory of this process until the kernel has taken them, each in its slot but for data that is lent.
#[derive(Debug)]
pub(crate) struct TcpTransmit {
    stream: TcpStream,
    /// For messages below [`LONG`], if not the same.
    short: Option<TcpStream>,
    identity: Identity,
    memory: Aligned,
    slots: usize,
    slot_bytes: usize,
    /// Bytes of each slot's frame.
    lengths: Vec<usize>,
    /// Where the data of each slot's frame lies, unless in the slot.
    lent: Vec<Option<Slot>>,
    /// Of the message that is posted next: its data, and whether it lasts.
    lends: Option<(Slot, bool)>,
    posted: u64,
    written: u64,
    /// Bytes of the frame `written` the kernel has taken.
    offset: usize,
    /// Bytes the kernel has taken in all.
    moved: u64,
}

impl TcpTransmit {
    /// `stream` is non-blocking.
    pub(crate) fn new(
        stream: TcpStream,
        identity: Identity,
        slots: usize,
        slot_bytes: usize,
    ) -> Self {
        let slot_bytes = slot_bytes.next_multiple_of(HEADER);
        Self {
            stream,
            short: None,
            identity,
            memory: Aligned::new(slots * (HEADER + slot_bytes)),
            slots,
            slot_bytes,
            lengths: vec![0; slots],
            lent: vec![None; slots],
            lends: None,
            posted: 0,
            written: 0,
            offset: 0,
            moved: 0,
        }
    }

    /// With another socket for short messages; non-blocking as well.
    pub(crate) fn with_short(self, stream: TcpStream) -> Self {
        Self { short: Some(stream), ..self }
    }

    /// The socket that a frame of so many bytes goes over.
    fn socket(&self, frame: usize) -> &TcpStream {
        self.short.as_ref().filter(|_| frame < HEADER + LONG).unwrap_or(&self.stream)
    }

    /// Messages that have left whole.
    pub(crate) const fn written(&self) -> u64 {
        self.written
    }

    fn place(&self, message: u64) -> (usize, usize) {
        // The remainder is below `slots`, a usize.
        let slot = usize::try_from(message % self.slots as u64).unwrap_or(0);
        (slot, slot * (HEADER + self.slot_bytes))
    }

    /// Copies what the kernel has not taken yet of the message that was posted last into its slot.
    fn keep(&mut self, slot: usize, start: usize, data: Slot) {
        let first = self.written + 1 == self.posted;
        let gone = if first { self.offset.saturating_sub(HEADER) } else { 0 };
        let rest = data.bytes() - gone;
        copy(self.memory.slot(start + HEADER + gone, rest), data.part(gone, rest));
        self.lent[slot] = None;
    }

    fn write(&mut self) -> Result<(), LinkError> {
        while self.written < self.posted {
            let (slot, start) = self.place(self.written);
            let frame = start + self.offset..start + self.lengths[slot];
            let mut socket = self.socket(self.lengths[slot]);
            let taken = match self.lent[slot] {
                None => socket.write(&self.memory.bytes()[frame]),
                Some(data) => {
                    let header = &self.memory.bytes()[start..start + HEADER];
                    let (from, gone) =
                        (self.offset.min(HEADER), self.offset.saturating_sub(HEADER));
                    let rest = data.part(gone, data.bytes() - gone);
                    write_behind(socket, &header[from..], rest)
                }
            };
            match taken {
                Ok(0) => return Err(LinkError::Closed),
                Ok(bytes) => {
                    self.offset += bytes;
                    self.moved += bytes as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(closed(e)),
            }
            if self.offset == self.lengths[slot] {
                self.offset = 0;
                self.written += 1;
            }
        }
        Ok(())
    }
}

impl Transmit for TcpTransmit {
    fn poll_slot(&mut self) -> Result<Option<Slot>, LinkError> {
        self.write()?;
        if self.posted - self.written == self.slots as u64 {
            return Ok(None);
        }
        let (_, start) = self.place(self.posted);
        Ok(Some(self.memory.slot(start + HEADER, self.slot_bytes)))
    }

    fn post(&mut self, tag: &Tag) -> Result<(), LinkError> {
        let (slot, start) = self.place(self.posted);
        let header = encode(&self.identity, self.posted, tag);
        self.memory.bytes_mut()[start..start + HEADER].copy_from_slice(&header);
        self.lengths[slot] = HEADER + tag.bytes as usize;
        let lends = self.lends.take();
        self.lent[slot] = lends.map(|(data, _)| data);
        self.posted += 1;
        self.write()?;
        if let Some((data, false)) = lends
            && self.written < self.posted
        {
            self.keep(slot, start, data);
        }
        Ok(())
    }

    fn holds(&self, buffer: Slot) -> bool {
        buffer.bytes() >= DIRECT
    }

    fn lend(&mut self, data: Slot, lasts: bool) -> bool {
        self.lends = (data.bytes() >= DIRECT).then_some((data, lasts));
        self.lends.is_some()
    }

    fn is_queued(&self) -> bool {
        self.written < self.posted
    }

    fn poll_flushed(&mut self) -> Result<bool, LinkError> {
        self.write()?;
        Ok(!self.is_queued())
    }

    fn interest(&self) -> Interest<'_> {
        let next = self.lengths[self.place(self.written).0];
        Interest::Writable(self.socket(next).as_fd())
    }

    fn moved(&self) -> u64 {
        self.moved
    }
}

/// Most bytes that are read beyond a frame: what is there of the next ones is worth a call saved as long as moving it costs less.
const AHEAD: usize = 4096;

/// Receiving half. A frame begins where memory begins; of those behind it, what came with the same call lies behind. Data that has
/// landed lies where it goes instead, and then nothing lies behind.
#[derive(Debug)]
pub(crate) struct TcpReceive {
    stream: TcpStream,
    identity: Identity,
    memory: Aligned,
    /// Bytes in memory.
    filled: usize,
    /// Whether they begin with a header that was found to be the expected one.
    checked: bool,
    /// Of them, those of the frame that was shown last.
    frame: usize,
    /// Where the data of the next message goes, if it is to land there.
    place: Option<Slot>,
    /// Bytes that have landed.
    landed: usize,
    received: u64,
    /// Bytes that came in all.
    moved: u64,
    /// Times the kernel was asked for bytes.
    #[cfg(test)]
    calls: u64,
}

impl TcpReceive {
    /// `stream` is non-blocking.
    pub(crate) fn new(stream: TcpStream, identity: Identity, slot_bytes: usize) -> Self {
        let memory = Aligned::new(HEADER + slot_bytes + AHEAD);
        Self {
            stream,
            identity,
            memory,
            filled: 0,
            checked: false,
            frame: 0,
            place: None,
            landed: 0,
            received: 0,
            moved: 0,
            #[cfg(test)]
            calls: 0,
        }
    }
}

impl TcpReceive {
    /// The next message has this number.
    pub(super) const fn expect(&mut self, sequence: u64) {
        self.received = sequence;
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The message that has come or begun to come, with its number; it stays where it is.
    pub(super) fn peek(&mut self) -> Result<Option<(u64, Tag)>, LinkError> {
        if self.filled < HEADER {
            match (&self.stream).read(&mut self.memory.bytes_mut()[self.filled..HEADER]) {
                // An end shows where more is waited for.
                Ok(came) => {
                    self.filled += came;
                    self.moved += came as u64;
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(closed(e)),
            }
        }
        let header = self.memory.bytes().first_chunk().filter(|_| self.filled >= HEADER);
        header
            .map(|header| {
                let sequence = sequence(header);
                Ok((sequence, decode(&self.identity, sequence, header)?))
            })
            .transpose()
    }

    /// Asks the kernel once: for the rest of the message, or for more where that is worth it.
    fn read(&mut self, bytes: usize) -> io::Result<usize> {
        #[cfg(test)]
        {
            self.calls += 1;
        }
        let Some(place) = self.place else {
            let end = HEADER + bytes;
            // Of what a long frame leaves in the socket nothing is gained: it fills its calls by itself.
            let most = if end <= AHEAD { end + AHEAD } else { end };
            let came = (&self.stream).read(&mut self.memory.bytes_mut()[self.filled..most])?;
            self.filled += came;
            return Ok(came);
        };
        // What an earlier call brought of it moves, which is less than `AHEAD`.
        let early = self.filled.saturating_sub(HEADER);
        if early > 0 {
            copy(place.part(self.landed, early), self.memory.slot(HEADER, early));
            self.landed += early;
            self.filled = HEADER;
        }
        let header = &mut self.memory.bytes_mut()[self.filled.min(HEADER)..HEADER];
        let wanted = header.len();
        let came = read_behind(&self.stream, header, place.part(self.landed, bytes - self.landed))?;
        self.filled += came.min(wanted);
        self.landed += came - came.min(wanted);
        Ok(came)
    }
}

impl Receive for TcpReceive {
    fn land(&mut self, place: Slot) {
        // What has begun to come elsewhere goes on there.
        if place.bytes() >= DIRECT && (self.filled < HEADER + AHEAD || self.place.is_some()) {
            self.place = Some(place);
        }
    }

    fn poll_message(&mut self, expected: &Tag) -> Result<Option<Slot>, LinkError> {
        let bytes = expected.bytes as usize;
        let end = HEADER + bytes;
        loop {
            if !self.checked && self.filled >= HEADER {
                let header = self.memory.bytes().first_chunk().expect("memory holds a header");
                let theirs = decode(&self.identity, self.received, header)?;
                if theirs != *expected {
                    return Err(LinkError::Mismatch { ours: *expected, theirs });
                }
                self.checked = true;
            }
            if let Some(place) = self.place
                && self.checked
                && self.landed == bytes
            {
                self.frame = HEADER;
                return Ok(Some(place));
            }
            if self.filled >= end {
                self.frame = end;
                return Ok(Some(self.memory.slot(HEADER, bytes)));
            }
            match self.read(bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(came) => self.moved += came as u64,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(closed(e)),
            }
        }
    }

    fn release(&mut self) {
        self.checked = false;
        self.place = None;
        self.landed = 0;
        let rest = self.frame..self.filled;
        self.filled = rest.len();
        if !rest.is_empty() {
            self.memory.bytes_mut().copy_within(rest, 0);
        }
        self.received += 1;
    }

    fn interest(&self) -> Interest<'_> {
        Interest::Readable(self.stream.as_fd())
    }

    fn moved(&self) -> u64 {
        self.moved
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use topology::Rank;

    use super::*;
    use crate::link::header::fuzz_header;
    use crate::memory::copy;
    use crate::schedule::ConnectionId;

    pub(crate) const IDENTITY: Identity = Identity {
        session: 7,
        generation: 3,
        id: ConnectionId { from: Rank(0), to: Rank(1), channel: 2, connection: 1 },
    };

    pub(crate) fn streams() -> (TcpStream, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (inward, _) = listener.accept().unwrap();
        out.set_nonblocking(true).unwrap();
        inward.set_nonblocking(true).unwrap();
        (out, inward)
    }

    pub(crate) fn tag(operation: u64, bytes: u32) -> Tag {
        Tag { operation, count: 10, signature: 5, bytes }
    }

    pub(crate) fn wait<T>(
        mut poll: impl FnMut() -> Result<Option<T>, LinkError>,
    ) -> Result<T, LinkError> {
        loop {
            if let Some(done) = poll()? {
                return Ok(done);
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (out, inward) = streams();
        let slot_bytes = 1 << 20;
        let mut transmit = TcpTransmit::new(out, IDENTITY, 2, slot_bytes);
        let mut receive = TcpReceive::new(inward, IDENTITY, slot_bytes);
        let mut memory = Aligned::new(slot_bytes);
        let sizes = [8, 1 << 20, 0, 4000, 1 << 20, 1 << 20];
        let mut sent = 0;
        for (i, bytes) in sizes.into_iter().enumerate() {
            while sent < sizes.len() {
                let Some(slot) = transmit.poll_slot().unwrap() else { break };
                memory.bytes_mut().fill(u8::try_from(sent).unwrap());
                copy(slot.part(0, sizes[sent]), memory.slot(0, sizes[sent]));
                let bytes = u32::try_from(sizes[sent]).unwrap();
                transmit.post(&tag(sent as u64, bytes)).unwrap();
                sent += 1;
            }
            let expected = tag(i as u64, u32::try_from(bytes).unwrap());
            let message = wait(|| {
                transmit.poll_flushed()?;
                receive.poll_message(&expected)
            });
            copy(memory.slot(0, bytes), message.unwrap());
            assert!(memory.bytes()[..bytes].iter().all(|b| usize::from(*b) == i));
            receive.release();
        }
    }

    #[test]
    fn small_frames_that_wait_take_one_call() {
        let (out, inward) = streams();
        let mut transmit = TcpTransmit::new(out, IDENTITY, 8, 1024);
        let mut receive = TcpReceive::new(inward, IDENTITY, 1024);
        let sizes = [8_u32, 0, 100, 1024, 8, 8, 640];
        for (at, bytes) in sizes.into_iter().enumerate() {
            let slot = transmit.poll_slot().unwrap().unwrap().part(0, bytes as usize);
            let mut data = Aligned::new(1024);
            data.bytes_mut().fill(u8::try_from(at).unwrap());
            copy(slot, data.slot(0, bytes as usize));
            transmit.post(&tag(at as u64, bytes)).unwrap();
        }
        for (at, bytes) in sizes.into_iter().enumerate() {
            let message = wait(|| receive.poll_message(&tag(at as u64, bytes))).unwrap();
            let mut data = Aligned::new(1024);
            copy(data.slot(0, bytes as usize), message);
            assert!(data.bytes()[..bytes as usize].iter().all(|b| usize::from(*b) == at));
            assert_eq!(receive.calls, 1, "all seven were in the socket at the first");
            receive.release();
        }
        assert!(receive.poll_message(&tag(7, 8)).unwrap().is_none());
        assert_eq!(receive.calls, 2);
    }

    /// Sends messages, each lent or not, lasting or not, landing or not, over buffers of the kernel's that hold a part of them.
    #[track_caller]
    fn carries(messages: &[(usize, Option<bool>, bool)]) {
        let (out, inward) = streams();
        rustix::net::sockopt::set_socket_send_buffer_size(&out, 4096).unwrap();
        let most = messages.iter().map(|(bytes, ..)| *bytes).max().unwrap_or(0);
        let slots = 3;
        let mut transmit = TcpTransmit::new(out, IDENTITY, slots, most);
        let mut receive = TcpReceive::new(inward, IDENTITY, most);
        let mut sources: Vec<_> = messages.iter().map(|_| Aligned::new(most)).collect();
        let mut arrived = Aligned::new(most);
        let mut sent = 0;
        for (at, (bytes, _, lands)) in messages.iter().enumerate() {
            while let Some((bytes, lends, _)) = messages.get(sent) {
                let Some(slot) = transmit.poll_slot().unwrap() else { break };
                let source = &mut sources[sent];
                source.bytes_mut().fill(u8::try_from(sent + 1).unwrap());
                let data = source.slot(0, *bytes);
                let lent = lends.is_some_and(|lasts| transmit.lend(data, lasts));
                if !lent {
                    copy(slot.part(0, *bytes), data);
                }
                transmit.post(&tag(sent as u64, u32::try_from(*bytes).unwrap())).unwrap();
                if *lends != Some(true) {
                    source.bytes_mut().fill(0);
                }
                sent += 1;
            }
            arrived.bytes_mut().fill(0);
            let place = arrived.slot(0, *bytes);
            let expected = tag(at as u64, u32::try_from(*bytes).unwrap());
            let message = wait(|| {
                transmit.poll_flushed()?;
                if *lands {
                    receive.land(place);
                }
                receive.poll_message(&expected)
            });
            let message = message.unwrap();
            assert_eq!(message.same_place(place), *lands && *bytes >= DIRECT);
            copy(place, message);
            let wanted = u8::try_from(at + 1).unwrap();
            assert!(arrived.bytes()[..*bytes].iter().all(|byte| *byte == wanted), "{at}");
            receive.release();
        }
        assert_eq!(transmit.moved(), receive.moved());
    }

    #[test]
    fn data_goes_from_and_to_where_it_lies() {
        let sizes = [DIRECT, 8, 100_000, DIRECT - 1, 0, 3 * DIRECT + 1, 5000, 1 << 18];
        for lends in [None, Some(false), Some(true)] {
            for lands in [false, true] {
                carries(&sizes.map(|bytes| (bytes, lends, lands)));
            }
        }
    }

    #[track_caller]
    fn refuse(change: impl FnOnce(&mut Identity), expected: Tag, word: &str) {
        let (out, inward) = streams();
        let mut identity = IDENTITY;
        change(&mut identity);
        let mut transmit = TcpTransmit::new(out, identity, 2, 64);
        let mut receive = TcpReceive::new(inward, IDENTITY, 64);
        transmit.poll_slot().unwrap().unwrap();
        transmit.post(&tag(1, 8)).unwrap();
        let error = wait(|| receive.poll_message(&expected)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }

    #[test]
    fn a_strange_header_is_an_error() {
        refuse(|i| i.session = 8, tag(1, 8), "session");
        refuse(|i| i.generation = 4, tag(1, 8), "generation is 0x4, not 0x3");
        refuse(|i| i.id.channel = 9, tag(1, 8), "channel");
        refuse(|i| i.id.connection = 9, tag(1, 8), "connection");
        refuse(|_| {}, tag(2, 8), "number 2");
        refuse(|_| {}, tag(1, 12), "12 bytes");
    }

    #[test]
    fn a_closed_peer_is_an_error() {
        let (out, inward) = streams();
        let mut receive = TcpReceive::new(inward, IDENTITY, 64);
        drop(out);
        let error = wait(|| receive.poll_message(&tag(0, 8))).unwrap_err();
        assert!(matches!(error, LinkError::Closed), "{error}");
    }

    proptest! {
        #[test]
        fn messages_of_all_kinds_follow_each_other(
            messages in proptest::collection::vec(
                (prop_oneof![0_usize..100, 3000_usize..20_000, 60_000_usize..70_000], any::<Option<bool>>(), any::<bool>()),
                1..20,
            ),
        ) {
            carries(&messages);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            fuzz_header(&bytes);
        }

        #[test]
        fn headers_round_trip(
            sequence: u64, operation: u64, count: u64, signature: u64, bytes: u32, flip in 0_usize..40,
        ) {
            let tag = Tag { operation, count, signature, bytes };
            let mut header = encode(&IDENTITY, sequence, &tag);
            prop_assert_eq!(decode(&IDENTITY, sequence, &header).unwrap(), tag);
            header[flip] ^= 1;
            prop_assert!((4..8).contains(&flip) || decode(&IDENTITY, sequence, &header).is_err());
        }
    }
}
