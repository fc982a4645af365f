//! MSCCL's algorithm XML: a whole schedule in the form MSCCL and RCCL load.
//!
//! A lane becomes a thread block, a step a step, an element of the schedule a chunk: make the schedule over as many
//! elements as chunks are wanted. A step has room for one dependency, so further ones become `nop` steps before it;
//! every connection of a channel becomes a channel of its own, since a thread block is known by its channel and peers.
//!
//! The format as RCCL's `msccl_parser.cc` reads it; verified here by reading it back and simulating it, **never run
//! by MSCCL itself**.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use crate::formats::ReadError;
use crate::schedule::{Buffer, Lane, Op, Program, Schedule, Slice, Step, StepRef};
use crate::{Collective, Rank};

/// Most channels MSCCL takes.
pub const MOST_CHANNELS: usize = 32;

const FORMAT: &str = "MSCCL XML";
const MOST_BYTES: usize = 64 << 20;

/// Why a schedule cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// MSCCL has no such collective.
    #[error("MSCCL has no {collective}")]
    Collective {
        /// Asked for.
        collective: Collective,
    },
    /// More connections than channels.
    #[error("the schedule needs {channels} channels, MSCCL has {MOST_CHANNELS}")]
    Channels {
        /// Needed.
        channels: usize,
    },
}

const fn collective_name(collective: Collective) -> Option<&'static str> {
    match collective {
        Collective::AllReduce => Some("allreduce"),
        Collective::AllGather => Some("allgather"),
        Collective::ReduceScatter => Some("reducescatter"),
        Collective::Broadcast => Some("broadcast"),
        Collective::Reduce => Some("reduce"),
        Collective::AllToAll => Some("alltoall"),
        Collective::Gather => Some("gather"),
        Collective::Scatter => Some("scatter"),
        _ => None,
    }
}

/// The collective of a name; reduce-scatter also as the compiler's tools spell it.
fn collective_named(name: &str) -> Option<Collective> {
    let name = if name == "reduce_scatter" { "reducescatter" } else { name };
    Collective::ALL.iter().copied().find(|c| collective_name(*c) == Some(name))
}

const OPS: [(Op, &str); 8] = [
    (Op::Copy, "cpy"),
    (Op::Reduce, "re"),
    (Op::Send, "s"),
    (Op::Recv, "r"),
    (Op::RecvCopySend, "rcs"),
    (Op::RecvReduceCopy, "rrc"),
    (Op::RecvReduceSend, "rrs"),
    (Op::RecvReduceCopySend, "rrcs"),
];

const BUFFERS: [(Buffer, &str); 3] =
    [(Buffer::Input, "i"), (Buffer::Output, "o"), (Buffer::Scratch, "s")];

fn name_of<T: Copy + PartialEq>(table: &[(T, &'static str)], value: T) -> &'static str {
    table.iter().find(|(of, _)| *of == value).map_or("", |(_, name)| name)
}

/// A schedule as MSCCL XML under `name`, for messages of any size.
///
/// # Errors
/// Where MSCCL lacks the collective or enough channels.
pub fn write(schedule: &Schedule, name: &str) -> Result<String, ExportError> {
    let collective = schedule.collective;
    let coll = collective_name(collective).ok_or(ExportError::Collective { collective })?;
    let connections: BTreeSet<(u32, u32)> = schedule
        .programs
        .iter()
        .flat_map(|program| &program.lanes)
        .map(|lane| (lane.channel, lane.connection))
        .collect();
    let channels: BTreeMap<(u32, u32), usize> = connections.into_iter().zip(0..).collect();
    if channels.len() > MOST_CHANNELS {
        return Err(ExportError::Channels { channels: channels.len() });
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<algo name=\"{}\" proto=\"Simple\" nchannels=\"{}\" nchunksperloop=\"{}\" ngpus=\"{}\" coll=\"{coll}\" inplace=\"{}\" outofplace=\"1\" minBytes=\"0\" maxBytes=\"0\">",
        escape(name),
        channels.len(),
        schedule.count,
        schedule.programs.len(),
        // A block that arrives would overwrite one that has yet to leave.
        u8::from(collective != Collective::AllToAll)
    );
    for (rank, program) in schedule.programs.iter().enumerate() {
        let (input, output) = chunks(schedule);
        let _ = writeln!(
            text,
            "  <gpu id=\"{rank}\" i_chunks=\"{input}\" o_chunks=\"{output}\" s_chunks=\"{}\">",
            program.scratch
        );
        let numbers = Numbers::of(program);
        for (index, lane) in program.lanes.iter().enumerate() {
            let peer = |rank: Option<Rank>| rank.map_or(-1, |rank| i64::from(rank.0));
            let _ = writeln!(
                text,
                "    <tb id=\"{index}\" send=\"{}\" recv=\"{}\" chan=\"{}\">",
                peer(lane.send_to),
                peer(lane.recv_from),
                channels[&(lane.channel, lane.connection)]
            );
            for (place, step) in lane.steps.iter().enumerate() {
                let number = numbers.steps[index][place];
                let before = step.after.len().saturating_sub(1);
                for (offset, after) in step.after.iter().take(before).enumerate() {
                    let (depid, deps) = numbers.dependency(*after);
                    let _ = writeln!(
                        text,
                        "      <step s=\"{}\" type=\"nop\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"o\" dstoff=\"0\" cnt=\"0\" depid=\"{depid}\" deps=\"{deps}\" hasdep=\"0\"/>",
                        number - before + offset
                    );
                }
                let (depid, deps) =
                    step.after.last().map_or((-1, -1), |after| numbers.dependency(*after));
                let _ = writeln!(
                    text,
                    "      <step s=\"{number}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" cnt=\"{}\" depid=\"{depid}\" deps=\"{deps}\" hasdep=\"{}\"/>",
                    name_of(&OPS, step.op),
                    name_of(&BUFFERS, step.src.buffer),
                    step.src.offset,
                    name_of(&BUFFERS, step.dst.buffer),
                    step.dst.offset,
                    step.src.count.max(step.dst.count),
                    u8::from(numbers.awaited.contains(&(index, place)))
                );
            }
            text.push_str("    </tb>\n");
        }
        text.push_str("  </gpu>\n");
    }
    text.push_str("</algo>\n");
    Ok(text)
}

/// Chunks of input and output of each rank.
fn chunks(schedule: &Schedule) -> (usize, usize) {
    let shard = schedule.count / schedule.programs.len().max(1);
    match schedule.collective {
        Collective::AllGather | Collective::Gather => (shard, schedule.count),
        Collective::ReduceScatter | Collective::Scatter => (schedule.count, shard),
        _ => (schedule.count, schedule.count),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Step numbers once `nop` steps are counted, and which steps others wait for.
struct Numbers {
    steps: Vec<Vec<usize>>,
    awaited: BTreeSet<(usize, usize)>,
}

impl Numbers {
    fn of(program: &Program) -> Self {
        let mut awaited = BTreeSet::new();
        let mut steps = Vec::with_capacity(program.lanes.len());
        for lane in &program.lanes {
            let mut next = 0;
            let mut numbers = Vec::with_capacity(lane.steps.len());
            for step in &lane.steps {
                next += step.after.len().saturating_sub(1);
                numbers.push(next);
                next += 1;
                awaited.extend(
                    step.after.iter().map(|after| (after.lane as usize, after.step as usize)),
                );
            }
            steps.push(numbers);
        }
        Self { steps, awaited }
    }

    fn dependency(&self, after: StepRef) -> (i64, i64) {
        let step =
            self.steps.get(after.lane as usize).and_then(|lane| lane.get(after.step as usize));
        (i64::from(after.lane), step.and_then(|step| i64::try_from(*step).ok()).unwrap_or(-1))
    }
}

/// Reads MSCCL XML back into a schedule, `nop` steps folded into the dependencies of the step that follows.
///
/// # Errors
/// With the line and the reason, where the bytes are no such file.
pub fn read(bytes: &[u8]) -> Result<Schedule, ReadError> {
    let refuse = |line: usize, reason: String| ReadError { format: FORMAT, line, reason };
    if bytes.len() > MOST_BYTES {
        return Err(refuse(0, format!("larger than {MOST_BYTES} bytes")));
    }
    let text = core::str::from_utf8(bytes).map_err(|_| refuse(0, "not UTF-8".into()))?;
    let document = roxmltree::Document::parse(text)
        .map_err(|error| refuse(error.pos().row as usize, format!("{error}")))?;
    let reader = Reader { document: &document };
    reader.algorithm().map_err(|(line, reason)| refuse(line, reason))
}

struct Reader<'a> {
    document: &'a roxmltree::Document<'a>,
}

type Node<'a, 'i> = roxmltree::Node<'a, 'i>;
type Refusal = (usize, String);

impl Reader<'_> {
    fn line(&self, node: Node<'_, '_>) -> usize {
        self.document.text_pos_at(node.range().start).row as usize
    }

    fn text<'n>(&self, node: Node<'n, '_>, name: &str) -> Result<&'n str, Refusal> {
        node.attribute(name)
            .ok_or_else(|| (self.line(node), format!("<{}> has no {name}", node.tag_name().name())))
    }

    fn number(&self, node: Node<'_, '_>, name: &str) -> Result<i64, Refusal> {
        let text = self.text(node, name)?;
        text.parse().map_err(|_| (self.line(node), format!("{name} '{text}' is no number")))
    }

    fn count(&self, node: Node<'_, '_>, name: &str) -> Result<usize, Refusal> {
        let number = self.number(node, name)?;
        usize::try_from(number)
            .ok()
            .filter(|n| *n <= 1 << 32)
            .ok_or_else(|| (self.line(node), format!("{name} {number} is out of range")))
    }

    fn algorithm(&self) -> Result<Schedule, Refusal> {
        let root = self.document.root_element();
        let coll = self.text(root, "coll")?;
        let collective = collective_named(coll);
        let collective =
            collective.ok_or_else(|| (self.line(root), format!("coll '{coll}' is not known")))?;
        let gpus = self.count(root, "ngpus")?;
        let mut programs = Vec::new();
        for gpu in root.children().filter(Node::is_element) {
            if self.count(gpu, "id")? != programs.len() {
                return Err((self.line(gpu), "gpus are not in order".into()));
            }
            programs.push(self.program(gpu)?);
        }
        if programs.len() != gpus {
            return Err((
                self.line(root),
                format!("ngpus is {gpus}, and {} follow", programs.len()),
            ));
        }
        Ok(Schedule {
            collective,
            count: self.count(root, "nchunksperloop")?,
            root: None,
            programs,
        })
    }

    fn program(&self, gpu: Node<'_, '_>) -> Result<Program, Refusal> {
        let mut program = Program { scratch: self.count(gpu, "s_chunks")?, lanes: Vec::new() };
        // Where each numbered step went, so that dependencies can be told in places once all are read.
        let mut places: BTreeMap<(i64, i64), StepRef> = BTreeMap::new();
        let mut waits: Vec<(usize, usize, usize, (i64, i64))> = Vec::new();
        for (lane, block) in (0_u32..).zip(gpu.children().filter(Node::is_element)) {
            let peer = |name| -> Result<Option<Rank>, Refusal> {
                let number = self.number(block, name)?;
                if number < 0 {
                    Ok(None)
                } else {
                    u32::try_from(number)
                        .map(|n| Some(Rank(n)))
                        .map_err(|_| (self.line(block), format!("{name} is out of range")))
                }
            };
            let channel = u32::try_from(self.count(block, "chan")?)
                .map_err(|_| (self.line(block), String::from("chan is out of range")))?;
            let mut steps = Vec::new();
            let mut pending = Vec::new();
            for node in block.children().filter(Node::is_element) {
                let dependency = (self.number(node, "depid")?, self.number(node, "deps")?);
                if dependency.0 >= 0 {
                    pending.push(dependency);
                }
                let name = self.text(node, "type")?;
                if name == "nop" {
                    continue;
                }
                let (op, _) = OPS
                    .iter()
                    .copied()
                    .find(|(_, of)| *of == name)
                    .ok_or_else(|| (self.line(node), format!("type '{name}' is not known")))?;
                let slice = |buffer: &str, offset: &str| -> Result<Slice, Refusal> {
                    let name = self.text(node, buffer)?;
                    let buffer = BUFFERS
                        .iter()
                        .find(|(_, of)| *of == name)
                        .ok_or_else(|| (self.line(node), format!("buffer '{name}' is not known")))?
                        .0;
                    Ok(Slice {
                        buffer,
                        offset: self.count(node, offset)?,
                        count: self.count(node, "cnt")?,
                    })
                };
                let step = u32::try_from(steps.len())
                    .map_err(|_| (self.line(node), String::from("too many steps")))?;
                places.insert((i64::from(lane), self.number(node, "s")?), StepRef { lane, step });
                waits.extend(
                    pending.drain(..).map(|dependency| {
                        (self.line(node), lane as usize, step as usize, dependency)
                    }),
                );
                steps.push(Step {
                    op,
                    src: slice("srcbuf", "srcoff")?,
                    dst: slice("dstbuf", "dstoff")?,
                    after: Vec::new(),
                });
            }
            program.lanes.push(Lane {
                channel,
                connection: 0,
                recv_from: peer("recv")?,
                send_to: peer("send")?,
                steps,
            });
        }
        for (line, lane, step, dependency) in waits {
            let after = places.get(&dependency).ok_or_else(|| {
                (
                    line,
                    format!(
                        "depends on step {} of thread block {}, which is not there",
                        dependency.1, dependency.0
                    ),
                )
            })?;
            program.lanes[lane].steps[step].after.push(*after);
        }
        Ok(program)
    }
}

/// Body of the fuzz target.
pub fn fuzz(bytes: &[u8]) {
    let _ = read(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Schedule {
        let slice = |buffer, offset| Slice { buffer, offset, count: 1 };
        let step = |op, after: &[(u32, u32)]| Step {
            op,
            src: slice(Buffer::Input, 0),
            dst: slice(Buffer::Output, 1),
            after: after.iter().map(|(lane, step)| StepRef { lane: *lane, step: *step }).collect(),
        };
        let lane = |connection, recv: Option<u32>, send: Option<u32>, steps| Lane {
            channel: 0,
            connection,
            recv_from: recv.map(Rank),
            send_to: send.map(Rank),
            steps,
        };
        let program = |peer| Program {
            scratch: 2,
            lanes: alloc::vec![
                lane(
                    0,
                    Some(peer),
                    None,
                    alloc::vec![step(Op::Recv, &[]), step(Op::RecvReduceCopy, &[])]
                ),
                lane(
                    1,
                    None,
                    Some(peer),
                    alloc::vec![step(Op::Send, &[]), step(Op::Send, &[(0, 0), (0, 1)])]
                ),
            ],
        };
        Schedule {
            collective: Collective::AllReduce,
            count: 4,
            root: None,
            programs: alloc::vec![program(1), program(0)],
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let text = write(&example(), "a<b").unwrap();
        let mut expected = example();
        // A connection became a channel of its own.
        for lane in expected.programs.iter_mut().flat_map(|program| &mut program.lanes) {
            (lane.channel, lane.connection) = (lane.connection, 0);
        }
        assert_eq!(read(text.as_bytes()).unwrap(), expected);
        assert_eq!(text.matches("nop").count(), 2, "one for the second dependency on each rank");
    }

    #[test]
    fn refusals() {
        let schedule = Schedule { collective: Collective::Barrier, ..example() };
        assert_eq!(
            write(&schedule, "x"),
            Err(ExportError::Collective { collective: Collective::Barrier })
        );
        let error =
            read(write(&example(), "x").unwrap().replace("deps=\"1\"", "deps=\"9\"").as_bytes())
                .unwrap_err();
        assert!(error.reason.contains("step 9"), "{error}");
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..2000, byte: u8) {
            fuzz(&bytes);
            let mut text = write(&example(), "x").unwrap().into_bytes();
            let at = at % text.len();
            text[at] = byte;
            fuzz(&text);
        }
    }
}
