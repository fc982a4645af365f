//! Small messages that travel with their flags (LL and LL128): a rank's whole part of an operation as one launch.
//!
//! `flagged.cu` says how messages travel; this lays a rank's program out as that kernel's parameters:
//!
//! ```text
//!   places    addresses: the caller's memory, the lanes' connections, where the host says that it is over
//!   program   head │ a head for each lane │ steps: what, how many, from where, to where, after which
//! ```
//!
//! A launch's parameters are 4096 bytes, and what does not fit there goes by copies: it is no small operation.
//!
//! Lanes are blocks, which wait for each other and for those of other ranks. A cooperative launch promises that all of them are on the
//! device at once, and each rank has a device, or a process, of its own: so a lane waits for nothing but messages and lanes that run. With as many
//! slots as a connection has, the schedule can be done one step at a time ([`order`](crate::order)); lanes with queues between them then come to
//! their end in whatever order they are run.

use topology::Protocol;
use topology::schedule::{Buffer, Op, Program, Step};
use transport::{ElementType, ReduceOp};

use crate::ffi::Address;

/// Threads of a block: whole lines for LL128, and a pass moves some kilobytes.
pub(crate) const THREADS: u32 = 256;

/// Most lanes of a program.
pub(crate) const LANES: usize = 40;

/// Words of a program.
const WORDS: usize = 512;

/// Bytes of the two parameters of such a kernel, for those who write heads of PTX by hand.
pub const FLAGGED_PARAMETERS: [usize; 2] = [size_of::<Places>(), size_of::<Words>()];

/// The number of the first message of a connection: shortly before the numbers, their flags and credits begin again, so that
/// every group passes that.
pub(crate) const FIRST: u64 = (1 << 32) - 64;

/// The protocols here, as they are numbered.
pub(crate) const PROTOCOLS: [Protocol; 2] = [Protocol::Ll, Protocol::Ll128];

/// Which of [`PROTOCOLS`]; `None` for copies.
pub(crate) fn place(protocol: Protocol) -> Option<usize> {
    PROTOCOLS.iter().position(|known| *known == protocol)
}

/// The name of the function that runs operations on such elements by a protocol; `None` for one without such functions.
#[must_use]
pub fn flagged_name(protocol: Protocol, element: ElementType) -> Option<String> {
    let short = match protocol {
        Protocol::Ll => "ll",
        Protocol::Ll128 => "ll128",
        Protocol::Simple => return None,
    };
    Some(format!("topod_{short}_{}", element.as_str()))
}

/// Names of all such functions, each once.
#[must_use]
pub fn flagged_names() -> Vec<String> {
    let pairs = PROTOCOLS.into_iter().flat_map(|p| ElementType::ALL.map(|element| (p, element)));
    pairs.filter_map(|(protocol, element)| flagged_name(protocol, element)).collect()
}

/// Bytes of a slot that holds so many bytes of data.
pub(crate) const fn slot_bytes(place: usize, data: usize) -> usize {
    let words = data.div_ceil(8);
    if place == 0 { words * 16 } else { words.div_ceil(15) * 128 }
}

/// Addresses of a lane's connections for the device; 0 where it has none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) receive: Address,
    /// In the sender's memory.
    pub(crate) credit_given: Address,
    pub(crate) consumed: Address,
    pub(crate) send: Address,
    /// In this rank's memory.
    pub(crate) credit_taken: Address,
    pub(crate) posted: Address,
}

/// The first parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Input, output, scratch.
    pub(crate) buffers: [Address; 3],
    pub(crate) abort: Address,
    pub(crate) progress: Address,
    pub(crate) finished: Address,
    /// What is divided at the end.
    pub(crate) divided: Address,
    pub(crate) lanes: [Ends; LANES],
}

/// The second parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words(pub(crate) [u32; WORDS]);

/// Bytes of memory that lanes of a priority use to wait for each other: steps done by lane, and blocks done.
pub(crate) const OWN_BYTES: usize = (LANES * 8 + 8).next_multiple_of(64);
/// Where in it the count of blocks is.
pub(crate) const FINISHED: usize = LANES * 8;

/// Words before those of lanes, and of each lane before its steps.
const HEAD: usize = 7;
const HEAD_OF_LANE: usize = 8;

mod bit {
    pub(super) const RECEIVES: u32 = 1;
    pub(super) const SENDS: u32 = 2;
    pub(super) const WRITES: u32 = 4;
    pub(super) const READS: u32 = 8;
    pub(super) const COMBINES: u32 = 16;
    pub(super) const LOCAL: u32 = 32;
    pub(super) const MARKED: u32 = 1 << 10;
}

/// Most steps of other lanes that one waits for, and elements of a message.
const MOST_WAITS: usize = 31;
const MOST_ELEMENTS: usize = (1 << 16) - 1;

/// A rank's program as words, but for what differs from one operation to the next.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    words: Vec<u32>,
    /// Messages received and sent, by lane.
    messages: Vec<(u64, u64)>,
}

/// What an operation fills in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) op: Option<ReduceOp>,
    /// Elements to divide, and by how many ranks.
    pub(crate) divide: Option<(usize, usize)>,
    pub(crate) slots: usize,
    /// Bytes of data that a slot holds.
    pub(crate) data: usize,
    /// Of this rank's operations of the priority; never the same twice.
    pub(crate) turn: u64,
}

/// Of a lane's connections: the first number, and the words that the host watches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Next {
    pub(crate) received: u64,
    pub(crate) consumed: u32,
    pub(crate) sent: u64,
    pub(crate) posted: u32,
}

const fn what(op: Op) -> u32 {
    use bit::{COMBINES, LOCAL, READS, RECEIVES, SENDS, WRITES};
    match op {
        Op::Copy => READS | WRITES,
        Op::Reduce => READS | WRITES | LOCAL | COMBINES,
        Op::Send => READS | SENDS,
        Op::Recv => RECEIVES | WRITES,
        Op::RecvCopySend => RECEIVES | WRITES | SENDS,
        Op::RecvReduceCopy => RECEIVES | READS | COMBINES | WRITES,
        Op::RecvReduceSend => RECEIVES | READS | COMBINES | SENDS,
        Op::RecvReduceCopySend => RECEIVES | READS | COMBINES | WRITES | SENDS,
    }
}

const fn buffer(which: Buffer) -> u32 {
    match which {
        Buffer::Input => 0,
        Buffer::Output => 1,
        Buffer::Scratch => 2,
    }
}

fn word(value: usize) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| "it is longer than 32 bits count".to_owned())
}

/// # Errors
/// Why it does not fit into a launch's parameters.
pub(crate) fn encode(program: &Program, resident: u32) -> Result<Encoded, String> {
    let lanes = &program.lanes;
    let most = LANES.min(usize::try_from(resident).unwrap_or(LANES));
    if lanes.len() > most {
        return Err(format!("it has {} lanes, and a launch at most {most}", lanes.len()));
    }
    let waited = |lane: usize, step: usize| {
        let mut after = lanes.iter().enumerate().filter(|(l, _)| *l != lane);
        after.any(|(_, other)| {
            let refs = other.steps.iter().flat_map(|step| &step.after);
            refs.into_iter().any(|r| (r.lane as usize, r.step as usize) == (lane, step))
        })
    };
    let mut words = vec![0; HEAD + lanes.len() * HEAD_OF_LANE];
    let mut messages = Vec::with_capacity(lanes.len());
    for (l, lane) in lanes.iter().enumerate() {
        let at = HEAD + l * HEAD_OF_LANE;
        words[at] = word(words.len())?;
        words[at + 1] = word(lane.steps.len())?;
        for (s, step) in lane.steps.iter().enumerate() {
            put(&mut words, l, step, waited(l, s))?;
        }
        let count = |is: fn(Op) -> bool| lane.steps.iter().filter(|step| is(step.op)).count();
        messages.push((count(Op::receives) as u64, count(Op::sends) as u64));
    }
    if words.len() > WORDS {
        return Err(format!(
            "its program takes {} words, and a launch's parameters hold {WORDS}",
            words.len()
        ));
    }
    Ok(Encoded { words, messages })
}

fn put(words: &mut Vec<u32>, lane: usize, step: &Step, marked: bool) -> Result<(), String> {
    let elements = step.src.count;
    let others = || step.after.iter().filter(|before| before.lane as usize != lane);
    let waits = others().count();
    if elements > MOST_ELEMENTS || waits > MOST_WAITS {
        return Err(format!("a step of {elements} elements waits for {waits} others"));
    }
    let does = what(step.op);
    let marked = if marked { bit::MARKED } else { 0 };
    let buffers = buffer(step.src.buffer) << 6 | buffer(step.dst.buffer) << 8;
    words.push(does | buffers | marked | word(waits)? << 11 | word(elements)? << 16);
    if does & bit::READS != 0 {
        words.push(word(step.src.offset)?);
    }
    if does & (bit::WRITES | bit::LOCAL) != 0 {
        words.push(word(step.dst.offset)?);
    }
    for before in others() {
        if before.step >= 1 << 24 {
            return Err("it has too many steps".to_owned());
        }
        words.push(before.lane << 24 | before.step);
    }
    Ok(())
}

/// Low and high.
#[expect(clippy::cast_possible_truncation, reason = "halves")]
const fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Encoded {
    /// Messages received and sent by a lane.
    pub(crate) fn messages(&self, lane: usize) -> (u64, u64) {
        self.messages[lane]
    }

    /// Blocks of the launch; a rank without lanes launches nothing.
    pub(crate) fn lanes(&self) -> u32 {
        u32::try_from(self.messages.len()).unwrap_or(0)
    }

    /// The parameter of one operation.
    pub(crate) fn filled(&self, numbers: &Numbers, next: &[Next]) -> Words {
        let mut all = Words([0; WORDS]);
        all.0[..self.words.len()].copy_from_slice(&self.words);
        let short = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let (divided, ranks) = numbers.divide.unwrap_or((0, 0));
        let op = match numbers.op {
            None | Some(ReduceOp::Sum | ReduceOp::Avg) => 0,
            Some(ReduceOp::Prod) => 1,
            Some(ReduceOp::Min) => 2,
            Some(ReduceOp::Max) => 3,
            Some(ReduceOp::And) => 4,
            Some(_) => 5,
        };
        let [low, high] = halves(numbers.turn);
        let head = [
            op,
            short(ranks),
            short(divided),
            short(numbers.slots),
            short(numbers.data.div_ceil(8)),
            low,
            high,
        ];
        all.0[..HEAD].copy_from_slice(&head);
        for (lane, next) in next.iter().enumerate() {
            let at = HEAD + lane * HEAD_OF_LANE;
            let ([a, b], [c, d]) = (halves(next.received), halves(next.sent));
            all.0[at + 2..at + 8].copy_from_slice(&[a, b, next.consumed, c, d, next.posted]);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use topology::schedule::{Lane, Slice, StepRef};
    use topology::{Collective, Rank};
    use transport::even::full_plan;
    use transport::schedule::{Sizing, schedule};

    use super::*;

    #[test]
    fn parameters_fit_into_every_launch() {
        assert!(FLAGGED_PARAMETERS.iter().sum::<usize>() <= 4096, "{FLAGGED_PARAMETERS:?}");
        assert_eq!(flagged_names().len(), 2 * ElementType::ALL.len());
        // 8 bytes of 16, and 120 of 128.
        assert_eq!([slot_bytes(0, 256), slot_bytes(1, 256)], [512, 3 * 128]);
    }

    #[test]
    fn steps_are_laid_out() {
        let slice = |buffer, offset| Slice { buffer, offset, count: 5 };
        let step = |op, src, dst, after: &[(u32, u32)]| Step {
            op,
            src,
            dst,
            after: after.iter().map(|(lane, step)| StepRef { lane: *lane, step: *step }).collect(),
        };
        let (input, output) = (slice(Buffer::Input, 3), slice(Buffer::Output, 4));
        let lane = |steps| Lane {
            channel: 0,
            connection: 0,
            recv_from: Some(Rank(1)),
            send_to: Some(Rank(1)),
            steps,
        };
        let program = Program {
            scratch: 0,
            lanes: vec![
                lane(vec![step(Op::RecvReduceCopySend, input, output, &[])]),
                lane(vec![step(Op::Send, output, output, &[(0, 0)])]),
            ],
        };
        let encoded = encode(&program, 100).unwrap();
        let steps = &encoded.words[HEAD + 2 * HEAD_OF_LANE..];
        let all = 1 | 2 | 4 | 8 | 16;
        assert_eq!(steps[..3], [all | 1 << 8 | 1 << 10 | 5 << 16, 3, 4]);
        assert_eq!(steps[3..], [2 | 8 | 1 << 6 | 1 << 8 | 1 << 11 | 5 << 16, 4, 0]);
        assert_eq!(encoded.words[HEAD + HEAD_OF_LANE], encoded.words[HEAD] + 3);
        assert_eq!((encoded.messages(0), encoded.messages(1)), ((1, 1), (0, 1)));
        assert!(encode(&program, 1).unwrap_err().contains("2 lanes"));
    }

    #[test]
    fn what_is_long_does_not_fit() {
        let plan = full_plan(8, 2);
        let made = |count| {
            let sizing = Sizing::new(4, 8192).unwrap();
            let all = schedule(&plan, Collective::AllReduce, None, count, sizing).unwrap();
            encode(&all.programs[0], 100)
        };
        assert!(made(4096).is_ok());
        assert!(made(1 << 24).unwrap_err().contains("words"));
    }
}
