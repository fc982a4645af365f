//! A trace in Chrome's trace-event format, which Perfetto and chrome://tracing show: a process for each rank, operations as
//! slices, those that overlap on lanes of their own.

use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use topology::Rank;

use super::{Done, process_name};

/// Operations that are kept; later ones are counted only.
const MOST: usize = 1 << 20;

/// Operations of one rank, as slices.
#[derive(Clone, Debug)]
pub struct Trace {
    rank: Rank,
    host: String,
    /// An instant, and the time it was by the host's clock, so that traces of several ranks lie side by side.
    base: (Instant, Duration),
    slices: Vec<Slice>,
    /// When each lane is free again, after the base.
    lanes: Vec<Duration>,
    left_out: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    done: Done,
    lane: usize,
}

/// An event as the format has it; times in microseconds.
#[derive(Debug, Serialize)]
struct Event<'a, A> {
    name: &'a str,
    cat: &'a str,
    ph: &'a str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: usize,
    args: A,
}

#[derive(Debug, Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Debug, Serialize)]
struct Args {
    number: u64,
    bytes: u64,
    path: &'static str,
    channels: usize,
    steps: usize,
    sleeps: u64,
    /// 1e9 bytes of the collective's total data a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    algbw_gbps: Option<f64>,
}

impl Trace {
    pub(crate) fn new(rank: Rank, host: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Microseconds as doubles: of the last twelve days, they keep nanoseconds.
        let now = Duration::new(now.as_secs() % (1 << 20), now.subsec_nanos());
        let base = (Instant::now(), now);
        let host = host.to_owned();
        Self { rank, host, base, slices: Vec::new(), lanes: Vec::new(), left_out: 0 }
    }

    pub(super) fn add(&mut self, done: &Done) {
        if self.slices.len() == MOST {
            self.left_out += 1;
            return;
        }
        let start = done.start.saturating_duration_since(self.base.0);
        let end = start + done.stats.elapsed;
        let free = self.lanes.iter().position(|until| *until <= start);
        let lane = free.unwrap_or_else(|| {
            self.lanes.push(Duration::ZERO);
            self.lanes.len() - 1
        });
        self.lanes[lane] = end;
        self.slices.push(Slice { done: *done, lane });
    }

    /// Writes the trace.
    ///
    /// # Errors
    /// Where that fails.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let pid = self.rank.0;
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let name = process_name(self.rank, &self.host);
        let process = |name: &str, value: &str| {
            let args = Name { name: value };
            let event =
                Event { name, cat: "__metadata", ph: "M", ts: 0.0, dur: None, pid, tid: 0, args };
            serde_json::to_string(&event).map_err(io::Error::from)
        };
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"left_out\":{}}},",
            self.left_out
        )?;
        write!(out, "\"traceEvents\":[\n{}", process("process_name", &name)?)?;
        for slice in &self.slices {
            let Done { collective, number, start, stats } = slice.done;
            let seconds = stats.elapsed.as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
            let algbw = (seconds > 0.0).then(|| stats.bytes as f64 / seconds / 1e9);
            let event = Event {
                name: collective.as_str(),
                cat: "collective",
                ph: "X",
                ts: micros(self.base.1 + start.saturating_duration_since(self.base.0)),
                dur: Some(micros(stats.elapsed)),
                pid,
                tid: slice.lane,
                args: Args {
                    number,
                    bytes: stats.bytes,
                    path: stats.path.as_str(),
                    channels: stats.channels,
                    steps: stats.steps,
                    sleeps: stats.sleeps,
                    algbw_gbps: algbw,
                },
            };
            write!(out, ",\n{}", serde_json::to_string(&event)?)?;
        }
        out.write_all(b"\n]}\n")
    }
}
