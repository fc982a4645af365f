//! The protocol in every order of execution that the memory model allows, by loom.
#![expect(unsafe_code, reason = "loom's cells tell whether two ranks touch a payload at once")]

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;

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
