//! A rank's part of a schedule, ready to be enqueued any number of times.

use topology::Rank;
use topology::schedule::{Schedule, Step};
use transport::schedule::ConnectionId;

use crate::flagged::Encoded;
use crate::order::{Turn, order};
use crate::wire::{Wires, find};

/// A lane with its connections found.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) channel: u32,
    pub(crate) connection: u32,
    /// Place in [`Wires::receive`].
    pub(crate) receive: Option<usize>,
    /// Place in [`Wires::transmit`].
    pub(crate) transmit: Option<usize>,
    /// Which of the streams it runs on.
    pub(crate) stream: usize,
    pub(crate) steps: Vec<Step>,
    /// By step: whether one on another stream waits for it.
    pub(crate) marked: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) order: Vec<Turn>,
    /// Elements.
    pub(crate) scratch: usize,
    /// The same, of the rank that has most.
    pub(crate) most_scratch: usize,
    /// How many it uses.
    pub(crate) streams: usize,
    /// By messages with flags, in one launch.
    pub(crate) flagged: Option<Encoded>,
}

/// Why a schedule cannot be enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// A connection that was not made, or a step without the peer it needs.
    NotConnected,
    /// More slots are needed.
    Stuck,
}

impl Compiled {
    pub(crate) fn new(
        own: Rank,
        schedule: &mut Schedule,
        priority: u32,
        wires: &Wires,
        (slots, most_streams): (usize, usize),
    ) -> Result<Self, Unfit> {
        let order = order(schedule, slots).map_err(|_| Unfit::Stuck)?.swap_remove(own.index());
        let most_scratch = schedule.programs.iter().map(|p| p.scratch).max().unwrap_or(0);
        let program = std::mem::take(&mut schedule.programs[own.index()]);
        let streams = program.lanes.len().clamp(1, most_streams);
        let mut lanes = Vec::with_capacity(program.lanes.len());
        for (place, lane) in program.lanes.into_iter().enumerate() {
            let (channel, connection) = (lane.channel, lane.connection);
            let id = |from, to| ConnectionId { from, to, channel, connection }.of(priority);
            let receive = lane
                .recv_from
                .map(|from| find(&wires.receive, id(from, own)).ok_or(Unfit::NotConnected));
            let transmit = lane
                .send_to
                .map(|to| find(&wires.transmit, id(own, to)).ok_or(Unfit::NotConnected));
            let (receive, transmit) = (receive.transpose()?, transmit.transpose()?);
            let lacks = |step: &Step| {
                (step.op.receives() && receive.is_none()) || (step.op.sends() && transmit.is_none())
            };
            if lane.steps.iter().any(lacks) {
                return Err(Unfit::NotConnected);
            }
            let (stream, marked) = (place % streams, vec![false; lane.steps.len()]);
            lanes.push(Lane {
                channel,
                connection,
                receive,
                transmit,
                stream,
                steps: lane.steps,
                marked,
            });
        }
        let after: Vec<(usize, usize, usize)> = lanes
            .iter()
            .flat_map(|lane| {
                lane.steps.iter().flat_map(|step| &step.after).map(|d| (lane.stream, d))
            })
            .map(|(stream, d)| (stream, d.lane as usize, d.step as usize))
            .collect();
        for (stream, lane, step) in after {
            if lanes[lane].stream != stream {
                lanes[lane].marked[step] = true;
            }
        }
        Ok(Self { lanes, order, scratch: program.scratch, most_scratch, streams, flagged: None })
    }
}
