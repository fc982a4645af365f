//! Streams: a queue and a thread each.
//!
//! ```text
//!   submit ──▶ │ op │ op │ op │ ──▶ thread: delays by the seed ──▶ waits for what the default stream orders ──▶ runs
//! ```
//!
//! What a stream runs is ordered with nothing but its own queue, the default stream where it is not exempt from it, and what it
//! waits for as an operation. With a seed, each operation is put off by yielding, often not at all and at times for long, so that
//! streams get ahead of each other in ways that depend on the seed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::code::Code;
use crate::context::Context;
use crate::driver::Driver;
use crate::fault;

/// Not ordered with the default stream.
pub(crate) const NON_BLOCKING: u32 = 1;

/// How long a thread that waits for memory or another process sleeps after it has looked often enough.
const PAUSE: Duration = Duration::from_micros(50);

/// What a stream does, in its place.
type Task = Box<dyn FnOnce(&Stream) -> Result<(), Code> + Send>;

pub(crate) enum Work {
    /// Runs unless the context failed; its error ends the context.
    Run(Task),
    /// Runs in any case, for somebody waits for it.
    Always(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Run(_) => "Run",
            Self::Always(_) => "Always",
        })
    }
}

#[derive(Debug)]
struct Operation {
    work: Work,
    /// Streams that must first have run so many.
    after: Vec<(Arc<Stream>, u64)>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    submitted: u64,
    completed: u64,
    closing: bool,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// As its device's streams were made.
    pub(crate) number: u64,
    queue: Mutex<Queue>,
    submitted: Condvar,
    completed: Condvar,
    random: AtomicU64,
}

/// Waits a little: first by letting others run, then by sleeping.
pub(crate) fn pause(times: &mut u32) {
    if *times < 64 {
        *times += 1;
        thread::yield_now();
    } else {
        thread::sleep(PAUSE);
    }
}

impl Stream {
    pub(crate) fn start(
        driver: &'static Driver,
        context: &Arc<Context>,
        flags: u32,
        priority: i32,
    ) -> Arc<Self> {
        let number = driver.devices[context.device].streams.fetch_add(1, Ordering::Relaxed);
        let seed = driver.config.seed.unwrap_or(0);
        let own = (context.device as u64) << 32 | number;
        let stream = Arc::new(Self {
            handle: driver.handle(),
            context: Arc::clone(context),
            flags,
            priority,
            number,
            queue: Mutex::default(),
            submitted: Condvar::new(),
            completed: Condvar::new(),
            random: AtomicU64::new(if seed == 0 { 0 } else { mixed(seed ^ mixed(own)) | 1 }),
        });
        let weak = Arc::downgrade(&stream);
        context.streams.lock().unwrap_or_else(PoisonError::into_inner).push(weak);
        let of_thread = Arc::clone(&stream);
        let named = thread::Builder::new().name(format!("cuda{}.{number}", context.device));
        // Where no thread can be had, the call that wanted it answers with an unknown error.
        named.spawn(move || of_thread.work(driver)).expect("a thread for a stream");
        stream
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_default(&self) -> bool {
        let default = self.context.default_if_used();
        default.is_some_and(|default| std::ptr::eq(Arc::as_ptr(default), self))
    }

    /// Queues an operation; its number, from 1.
    pub(crate) fn submit(self: &Arc<Self>, work: Work) -> u64 {
        if self.flags & NON_BLOCKING != 0 {
            return self.push(work, Vec::new());
        }
        let _order = self.context.order();
        let pending = |stream: &Arc<Self>| {
            let queue = stream.queue();
            (queue.completed < queue.submitted).then(|| (Arc::clone(stream), queue.submitted))
        };
        let after = if self.is_default() {
            let streams = self.context.all_streams();
            let ordered = |stream: &&Arc<Self>| {
                stream.flags & NON_BLOCKING == 0 && !Arc::ptr_eq(stream, self)
            };
            streams.iter().filter(ordered).filter_map(pending).collect()
        } else {
            self.context.default_if_used().and_then(pending).into_iter().collect()
        };
        self.push(work, after)
    }

    fn push(&self, work: Work, after: Vec<(Arc<Self>, u64)>) -> u64 {
        let mut queue = self.queue();
        queue.submitted += 1;
        queue.waiting.push_back(Operation { work, after });
        self.submitted.notify_one();
        queue.submitted
    }

    /// Queues what runs unless the context failed.
    pub(crate) fn run(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<(), Code> + Send + 'static,
    ) -> u64 {
        self.submit(Work::Run(Box::new(work)))
    }

    /// Number of the last operation that was queued.
    pub(crate) fn submitted(&self) -> u64 {
        self.queue().submitted
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue();
        queue.completed == queue.submitted
    }

    /// Waits for an operation by its number.
    pub(crate) fn wait_for(&self, number: u64) {
        let mut queue = self.queue();
        while queue.completed < number {
            queue = self.completed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        self.wait_for(self.submitted());
        self.context.check()
    }

    /// Lets the thread end once the queue is empty.
    pub(crate) fn close(&self) {
        self.queue().closing = true;
        self.submitted.notify_one();
    }

    /// A number of this stream's own sequence; 0 without a seed.
    fn next_random(&self) -> u64 {
        let state = self.random.load(Ordering::Relaxed);
        if state == 0 {
            return 0;
        }
        let next = state.wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
        self.random.store(next, Ordering::Relaxed);
        mixed(next)
    }

    /// Puts an operation off, by the seed.
    pub(crate) fn put_off(&self) {
        let random = self.next_random();
        // Few in the mean: on a busy machine each yield may cost some milliseconds.
        let yields = match random % 16 {
            _ if random == 0 => 0,
            0..=11 => 0,
            12 | 13 => random >> 8 & 0x3,
            14 => random >> 8 & 0xf,
            _ => random >> 8 & 0x3f,
        };
        for _ in 0..yields {
            thread::yield_now();
        }
    }

    /// Where to part a copy in two that run in either order, by the seed: bytes, and whether the end goes first.
    pub(crate) fn parting(&self, length: u64) -> Option<(u64, bool)> {
        let random = self.next_random();
        (random % 4 == 1 && length > 1)
            .then(|| (1 + (random >> 8) % (length - 1), random >> 7 & 1 == 1))
    }

    fn work(&self, driver: &'static Driver) {
        let device = &driver.devices[self.context.device];
        loop {
            let operation = {
                let mut queue = self.queue();
                loop {
                    if let Some(operation) = queue.waiting.pop_front() {
                        break operation;
                    }
                    if queue.closing {
                        return;
                    }
                    queue = self.submitted.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            for (stream, number) in operation.after {
                stream.wait_for(number);
            }
            self.stall(driver);
            self.put_off();
            device.operations.fetch_add(1, Ordering::Relaxed);
            let lost = driver.faults.strike(
                |kind| *kind == fault::Kind::Lost,
                Some(self.context.device),
                Some(self.number),
            );
            if let Some(code) = lost {
                device.lost.store(true, Ordering::Release);
                self.context.fail(code.unwrap_or(Code::LAUNCH_FAILED));
            }
            match operation.work {
                Work::Always(work) => work(),
                Work::Run(work) => {
                    let result = self.context.check().and_then(|()| work(self));
                    if let Err(code) = result {
                        self.context.fail(code);
                    }
                }
            }
            self.queue().completed += 1;
            self.completed.notify_all();
        }
    }

    /// Stands still while a fault wants it to and the context lives.
    fn stall(&self, driver: &Driver) {
        let ran = self.queue().completed;
        let mut times = 0;
        while driver.faults.stalls(self.context.device, self.number, ran)
            && self.context.check().is_ok()
        {
            pause(&mut times);
        }
    }
}

/// Steele's mixing of 64 bits, as in splitmix64.
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
