//! One lane over links that do what a test says.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use topology::Collective;
use topology::schedule::Lane as Wanted;

use super::*;
use crate::element::ElementType;
use crate::memory::{Aligned, caller_mut};

const ID: ConnectionId = ConnectionId { from: Rank(1), to: Rank(0), channel: 0, connection: 0 };

/// At each poll so many bytes have come; the last poll finds the message.
#[derive(Debug)]
struct Pieces {
    moved: Vec<u64>,
    polls: usize,
    memory: Aligned,
}

impl Receive for Pieces {
    fn poll_message(&mut self, _: &Tag) -> Result<Option<Slot>, LinkError> {
        self.polls += 1;
        Ok((self.polls == self.moved.len()).then(|| self.memory.slot(0, 64)))
    }

    fn release(&mut self) {}

    fn interest(&self) -> Interest<'_> {
        Interest::Doorbell
    }

    fn moved(&self) -> u64 {
        self.moved[self.polls - 1]
    }
}

/// Takes every message at once.
#[derive(Debug)]
struct Sink {
    memory: Aligned,
}

impl Transmit for Sink {
    fn poll_slot(&mut self) -> Result<Option<Slot>, LinkError> {
        Ok(Some(self.memory.slot(0, 64)))
    }

    fn post(&mut self, _: &Tag) -> Result<(), LinkError> {
        Ok(())
    }

    fn is_queued(&self) -> bool {
        false
    }

    fn poll_flushed(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn interest(&self) -> Interest<'_> {
        Interest::Doorbell
    }
}

fn step(op: Op, at: usize) -> Step {
    let slice = Slice { buffer: Buffer::Output, offset: at, count: 64 };
    Step { op, src: slice, dst: slice, after: Vec::new() }
}

fn start(lanes: Vec<Wanted>, data: &mut [u8], links: &mut Links) -> Operation {
    let program = Program { scratch: 0, lanes };
    let compiled = Compiled::new(Rank(0), program, 0, 0, links).unwrap();
    let whole = caller_mut(data);
    let buffers = Buffers { input: whole, output: whole, scratch: whole };
    let tag = Tag { operation: 0, count: 0, signature: 0, bytes: 0 };
    let kernel = Kernel::moving(ElementType::U8);
    Operation::new(Arc::new(compiled), buffers, kernel, tag, Collective::SendRecv, 0, links)
}

#[test]
fn a_message_that_comes_in_pieces_is_progress() {
    let link = Pieces { moved: vec![10, 10, 20, 20, 64], polls: 0, memory: Aligned::new(64) };
    let half = Half { id: ID, link: Box::new(link) as Box<dyn Receive>, turns: VecDeque::new() };
    let mut links = Links { transmit: Vec::new(), receive: vec![half] };
    let lane = Wanted {
        channel: 0,
        connection: 0,
        recv_from: Some(Rank(1)),
        send_to: None,
        steps: vec![step(Op::Recv, 0)],
    };
    let mut data = [0; 64];
    let mut operation = start(vec![lane], &mut data, &mut links);
    let found: Vec<Progress> =
        (0..5).map(|_| operation.progress(&mut links, &mut None, &mut None).unwrap()).collect();
    use Progress::{Blocked, Done, Trickled};
    assert_eq!(found, [Trickled, Blocked, Trickled, Blocked, Done]);
}

#[test]
fn lanes_share_a_budget_by_turns() {
    let to = |rank| ConnectionId { from: Rank(0), to: Rank(rank), ..ID };
    let sink = |id| {
        let link = Box::new(Sink { memory: Aligned::new(64) }) as Box<dyn Transmit>;
        Half { id, link, turns: VecDeque::new() }
    };
    let mut links = Links { transmit: vec![sink(to(1)), sink(to(2))], receive: Vec::new() };
    let lane = |rank| Wanted {
        channel: 0,
        connection: 0,
        recv_from: None,
        send_to: Some(Rank(rank)),
        steps: (0..4).map(|at| step(Op::Send, 64 * at)).collect(),
    };
    let mut data = [0; 256];
    let mut operation = start(vec![lane(1), lane(2)], &mut data, &mut links);
    // One message a second.
    let now = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&now);
    let clock = Box::new(move || Duration::from_secs(read.load(Ordering::Relaxed)));
    let mut pace = Some(Pace::new(NonZeroU64::new(64).unwrap(), clock));
    let mut order = Vec::new();
    for second in 0..8 {
        now.store(second, Ordering::Relaxed);
        pace.as_mut().unwrap().tick();
        let before = operation.counters.clone();
        let progress = operation.progress(&mut links, &mut pace, &mut None).unwrap();
        assert_eq!(progress == Progress::Done, second == 7, "{progress:?} at {second}");
        assert!(operation.waits_for(&links).is_none(), "it waits for nobody but itself");
        order.extend((0..2).filter(|l| operation.counters[*l] > before[*l]));
        assert_eq!(order.len() as u64, second + 1, "one message each second");
    }
    assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
}
