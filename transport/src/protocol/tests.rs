//! The protocol in every order of execution that the memory model allows, by loom.
#![expect(unsafe_code, reason = "loom's cells tell whether two ranks touch a payload at once")]

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;

use crate::link::shm::{Layout, Place};

use super::{Long, Short, arm, claim, disarm, hear, may_sleep, observe, publish, ring};

words!(AtomicU64, AtomicU32);

/// Those orders with up to two preemptions: all would be too many.
fn bounded(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 20_000;
    model.check(run);
}

const SLOTS: u64 = 2;
const MESSAGES: u64 = 3;

/// A writer's numbers and payloads, and how far the reader is.
struct Ring {
    numbers: [AtomicU64; 2],
    payloads: [UnsafeCell<u64>; 2],
    completed: AtomicU64,
}

impl Ring {
    fn new() -> Self {
        Self {
            numbers: [AtomicU64::new(0), AtomicU64::new(0)],
            payloads: [UnsafeCell::new(0), UnsafeCell::new(0)],
            completed: AtomicU64::new(0),
        }
    }

    fn place(number: u64) -> usize {
        usize::try_from(number % SLOTS).unwrap()
    }

    fn is_free(&self, number: u64) -> bool {
        observe(&self.completed) + SLOTS > number
    }

    fn post(&self, number: u64) {
        // SAFETY: What the model is to show: nobody else touches it now; loom panics otherwise.
        self.payloads[Self::place(number)].with_mut(|payload| unsafe { *payload = 10 + number });
        publish(&self.numbers[Self::place(number)], number + 1);
    }

    fn is_posted(&self, number: u64) -> bool {
        observe(&self.numbers[Self::place(number)]) == number + 1
    }

    fn take(&self, number: u64) {
        // SAFETY: As in `post`.
        let found = self.payloads[Self::place(number)].with(|payload| unsafe { *payload });
        assert_eq!(found, 10 + number);
        publish(&self.completed, number + 1);
    }
}

#[test]
fn slots_are_never_written_while_they_are_read() {
    bounded(|| {
        let ring = Arc::new(Ring::new());
        let reader = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for number in 0..MESSAGES {
                    while !ring.is_posted(number) {
                        thread::yield_now();
                    }
                    ring.take(number);
                }
            })
        };
        for number in 0..MESSAGES {
            while !ring.is_free(number) {
                thread::yield_now();
            }
            ring.post(number);
        }
        reader.join().unwrap();
    });
}

/// Messages of several lengths, of which the third ends short of the end of the ring: the fourth begins where the first lay.
const LENGTHS: [usize; 4] = [192, 100, 192, 192];
const LAYOUT: Layout = Layout { connections: 1, slots: 2, slot_bytes: 192 };

/// A connection in shared memory: where data lies, both ends count by lengths; whose turn it is, numbers alone say.
struct Connection {
    numbers: [AtomicU64; 2],
    lines: Vec<UnsafeCell<u64>>,
    head: AtomicU64,
}

impl Connection {
    fn new() -> Self {
        let numbers = [AtomicU64::new(0), AtomicU64::new(0)];
        // Three of the longest.
        let lines = (0..9).map(|_| UnsafeCell::new(0)).collect();
        Self { numbers, lines, head: AtomicU64::new(0) }
    }

    fn lines(&self, place: Place) -> impl Iterator<Item = &UnsafeCell<u64>> {
        let bytes = LENGTHS[usize::try_from(place.message).unwrap()];
        let first = LAYOUT.data(0, Place::default(), 192);
        let start = (LAYOUT.data(0, place, bytes) - first) / 64;
        self.lines[start..start + bytes.div_ceil(64)].iter()
    }

    fn after(place: Place) -> Place {
        LAYOUT.after(place, LENGTHS[usize::try_from(place.message).unwrap()])
    }
}

#[test]
fn messages_of_any_length_are_never_written_while_they_are_read() {
    bounded(|| {
        let connection = Arc::new(Connection::new());
        let reader = {
            let connection = Arc::clone(&connection);
            thread::spawn(move || {
                let mut place = Place::default();
                for number in 0..4 {
                    while observe(&connection.numbers[Ring::place(number)]) != number + 1 {
                        thread::yield_now();
                    }
                    for line in connection.lines(place) {
                        // SAFETY: What the model is to show: nobody else writes it now; loom panics otherwise.
                        assert_eq!(line.with(|line| unsafe { *line }), 10 + number);
                    }
                    place = Connection::after(place);
                    publish(&connection.head, place.message);
                }
            })
        };
        let mut place = Place::default();
        for number in 0..4 {
            while observe(&connection.head) + SLOTS <= number {
                thread::yield_now();
            }
            for line in connection.lines(place) {
                // SAFETY: As above, and nobody reads it either.
                line.with_mut(|line| unsafe { *line = 10 + number });
            }
            publish(&connection.numbers[Ring::place(number)], number + 1);
            place = Connection::after(place);
        }
        reader.join().unwrap();
    });
}

/// Falls asleep on a bell that still says what was heard: here, does nothing until it says something else. Where nobody rings, loom
/// ends the model.
fn sleep(bell: &AtomicU32, heard: u32) {
    while bell.load(Ordering::Acquire) == heard {
        thread::yield_now();
    }
}

struct Board {
    number: [AtomicU64; 2],
    count: AtomicU32,
    flag: AtomicU32,
    bell: AtomicU32,
}

impl Board {
    fn new() -> Self {
        Self {
            number: [AtomicU64::new(0), AtomicU64::new(0)],
            count: AtomicU32::new(0),
            flag: AtomicU32::new(0),
            bell: AtomicU32::new(0),
        }
    }

    fn say(&self, rank: usize) {
        publish(&self.number[rank], 1);
        fence(Ordering::SeqCst);
        if may_sleep(&self.count) && claim(&self.flag) {
            ring(&self.bell);
        }
    }

    /// Sleeps until all of `ranks` have spoken; a message that no bell told of leaves it asleep, which loom finds.
    fn hear_from(&self, ranks: &[usize]) {
        let all = || ranks.iter().all(|rank| observe(&self.number[*rank]) == 1);
        while !all() {
            let heard = hear(&self.bell);
            arm(&self.flag, Some(&self.count), || fence(Ordering::SeqCst));
            if !all() {
                sleep(&self.bell, heard);
            }
            disarm(&self.flag, Some(&self.count));
        }
    }
}

#[test]
fn a_sleeper_misses_nothing() {
    loom::model(|| {
        let board = Arc::new(Board::new());
        let other = Arc::clone(&board);
        let sleeper = thread::spawn(move || other.hear_from(&[0]));
        board.say(0);
        sleeper.join().unwrap();
        assert_eq!(board.count.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_sleeper_misses_neither_of_two() {
    bounded(|| {
        let board = Arc::new(Board::new());
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                let board = Arc::clone(&board);
                thread::spawn(move || board.say(rank))
            })
            .collect();
        board.hear_from(&[0, 1]);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// An eventfd: what was rung before it is waited for ends the wait at once. Its mutex stands for the kernel's own lock, by which a
/// write that ends a wait comes before it.
struct Doorbell {
    rung: loom::sync::Mutex<bool>,
    changed: loom::sync::Condvar,
}

impl Doorbell {
    fn new() -> Self {
        Self { rung: loom::sync::Mutex::new(false), changed: loom::sync::Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// As a sleeping rank does: until it is readable, without a limit of time, then all that was rung is forgotten by a call of its own.
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        drop(rung);
        *self.rung.lock().unwrap() = false;
    }
}

/// One of two ranks that share a connection of one slot.
struct End {
    flag: AtomicU32,
    bell: Doorbell,
}

/// A pair in shared memory: the writer waits for room and the reader for a message, each asleep on its doorbell.
struct Pairwise {
    number: AtomicU64,
    payload: UnsafeCell<u64>,
    head: AtomicU64,
    writer: End,
    reader: End,
}

impl Pairwise {
    fn new() -> Self {
        let end = || End { flag: AtomicU32::new(0), bell: Doorbell::new() };
        let (number, head) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { number, payload: UnsafeCell::new(0), head, writer: end(), reader: end() }
    }

    /// Looks, raises the flag, looks once more, sleeps: what `Waiter` does once it has spun.
    fn wait(&self, own: &End, ready: impl Fn() -> bool) {
        while !ready() {
            arm(&own.flag, None::<&AtomicU32>, || fence(Ordering::SeqCst));
            if !ready() {
                own.bell.sleep();
            }
            disarm(&own.flag, None::<&AtomicU32>);
        }
    }

    fn wake(&self, other: &End) {
        fence(Ordering::SeqCst);
        if claim(&other.flag) {
            other.bell.ring();
        }
    }

    fn write(&self, messages: u64) {
        for number in 0..messages {
            self.wait(&self.writer, || observe(&self.head) == number);
            // SAFETY: What the model is to show: the reader is through with what lay there; loom panics otherwise.
            self.payload.with_mut(|payload| unsafe { *payload = 10 + number });
            publish(&self.number, number + 1);
            self.wake(&self.reader);
        }
    }

    fn read(&self, messages: u64) {
        for number in 0..messages {
            self.wait(&self.reader, || observe(&self.number) == number + 1);
            // SAFETY: As in `write`.
            let found = self.payload.with(|payload| unsafe { *payload });
            assert_eq!(found, 10 + number);
            publish(&self.head, number + 1);
            self.wake(&self.writer);
        }
    }
}

/// Both sides may be asleep at once, and neither for ever: a wait here has no limit of time, so that a ring that is lost is a deadlock,
/// which loom finds; without the fences it does. The waits block. Were they loops that yield, as above, two of them would only use each
/// other's branches up, whatever the protocol does.
#[test]
fn two_that_sleep_on_doorbells_wake_each_other() {
    bounded(|| {
        let pair = Arc::new(Pairwise::new());
        let other = Arc::clone(&pair);
        let reader = thread::spawn(move || other.read(2));
        pair.write(2);
        reader.join().unwrap();
    });
}
