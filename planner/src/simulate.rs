//! A second opinion beside the cost model: transfers over links in time.
//!
//! ```text
//!   Schedule ── of_schedule ──▶ transfers: bytes, links, what they wait for ── simulate ──▶ when each is over
//! ```
//!
//! Two ways to share a link: all transfers on it at once, each as fast as the fairest division allows (max-min), as flows in a
//! network go; or one after the other in the order in which they come, as messages of one connection do. Data arrives one
//! latency after the last byte has left. Executors' own work is not simulated: what comes out is the least that links and
//! dependencies allow.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use topology::Rank;
use topology::schedule::Schedule;

/// How transfers share a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All at once, max-min fair.
    Fair,
    /// One after the other, first come, first served.
    Serial,
}

/// Bytes on their way over links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfer {
    /// How many.
    pub bytes: u64,
    /// The links crossed, each once, with the part of the bytes that crosses it.
    pub over: Vec<(usize, f64)>,
    /// From the last byte's leaving to its arrival, in nanoseconds.
    pub latency_ns: f64,
    /// Transfers that have to have arrived before it begins, all earlier in the list.
    pub after: Vec<usize>,
}

/// When each transfer has arrived, in nanoseconds from the start.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// By transfer.
    pub arrived_ns: Vec<f64>,
}

impl Timeline {
    /// When the last has arrived.
    #[must_use]
    pub fn end_ns(&self) -> f64 {
        self.arrived_ns.iter().copied().fold(0.0, f64::max)
    }
}

/// Runs `transfers` over links of `gbps` GB/s each (bytes a nanosecond).
///
/// # Errors
/// The first transfer that names no link, waits for one that is not before it, crosses a link of no rate or of one that is no number, or
/// ends at no time that a number holds.
pub fn simulate(gbps: &[f64], transfers: &[Transfer], sharing: Sharing) -> Result<Timeline, usize> {
    let sound = |(place, t): (usize, &Transfer)| {
        let links = t.over.iter().all(|&(link, part)| {
            let rate = gbps.get(link).copied().unwrap_or(f64::NAN);
            part > 0.0 && part.is_finite() && rate.is_finite() && (rate > 0.0 || t.bytes == 0)
        });
        let latency = t.latency_ns.is_finite() && t.latency_ns >= 0.0;
        (!links || !latency || t.after.iter().any(|before| *before >= place)).then_some(place)
    };
    if let Some(place) = transfers.iter().enumerate().find_map(sound) {
        return Err(place);
    }
    let mut run = Run::new(gbps, transfers);
    match sharing {
        Sharing::Fair => run.fair(),
        Sharing::Serial => run.serial(),
    }
    match run.arrived.iter().position(|time| !time.is_finite()) {
        Some(place) => Err(place),
        None => Ok(Timeline { arrived_ns: run.arrived }),
    }
}

/// A time that is a number, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Rounds in a row in which nothing ends or begins, from which a simulation is given up: none is to be expected to have two.
const MOST_IDLE: u32 = 64;

struct Run<'a> {
    gbps: &'a [f64],
    transfers: &'a [Transfer],
    /// By transfer: those that wait for it.
    next: Vec<Vec<usize>>,
    /// By transfer: how many it still waits for.
    missing: Vec<usize>,
    /// By transfer; without end until it has arrived.
    arrived: Vec<f64>,
    /// Arrivals and starts to come: time, then transfer, then whether it arrives.
    queue: BinaryHeap<Reverse<(Time, usize, bool)>>,
}

impl<'a> Run<'a> {
    fn new(gbps: &'a [f64], transfers: &'a [Transfer]) -> Self {
        let mut next = vec![Vec::new(); transfers.len()];
        for (place, transfer) in transfers.iter().enumerate() {
            for &before in &transfer.after {
                next[before].push(place);
            }
        }
        let missing: Vec<usize> = transfers.iter().map(|t| t.after.len()).collect();
        let free = missing.iter().enumerate().filter(|(_, missing)| **missing == 0);
        let queue = free.map(|(place, _)| Reverse((Time(0.0), place, false))).collect();
        let arrived = vec![f64::INFINITY; transfers.len()];
        Self { gbps, transfers, next, missing, arrived, queue }
    }

    /// A transfer has arrived: those that waited for it alone are ready.
    fn arrive(&mut self, place: usize, now: f64) {
        self.arrived[place] = now;
        for at in 0..self.next[place].len() {
            let waiting = self.next[place][at];
            self.missing[waiting] -= 1;
            if self.missing[waiting] == 0 {
                self.queue.push(Reverse((Time(now), waiting, false)));
            }
        }
    }

    fn serial(&mut self) {
        let mut free = vec![0.0_f64; self.gbps.len()];
        while let Some(Reverse((Time(now), place, arrives))) = self.queue.pop() {
            if arrives {
                self.arrive(place, now);
                continue;
            }
            let transfer = &self.transfers[place];
            let start = transfer.over.iter().fold(now, |start, (link, _)| start.max(free[*link]));
            let mut end = start;
            for &(link, part) in &transfer.over {
                free[link] = start + transfer.bytes as f64 * part / self.gbps[link];
                end = end.max(free[link]);
            }
            self.queue.push(Reverse((Time(end + transfer.latency_ns), place, true)));
        }
    }

    fn fair(&mut self) {
        let mut now = 0.0_f64;
        // What is under way: transfer, bytes left, rate.
        let mut active: Vec<(usize, f64, f64)> = Vec::new();
        // What rounding leaves of a transfer shrinks by far more than half each time.
        let mut idle = 0;
        while idle < MOST_IDLE {
            let leaves = active
                .iter()
                .map(|(_, left, rate)| now + left / rate)
                .fold(f64::INFINITY, f64::min);
            let event = self.queue.peek().map_or(f64::INFINITY, |Reverse((Time(time), ..))| *time);
            let then = leaves.min(event);
            if then.is_infinite() {
                return;
            }
            for (_, left, rate) in &mut active {
                *left -= *rate * (then - now);
            }
            now = then;
            let mut changed = false;
            // A thousandth of a byte is what rounding leaves, or what takes less time than the clock can tell.
            let (over, still): (Vec<_>, Vec<_>) = active
                .into_iter()
                .partition(|(_, left, rate)| *left < 1e-3 || now + left / rate <= now);
            active = still;
            for (place, ..) in over {
                changed = true;
                let arrival = now + self.transfers[place].latency_ns;
                self.queue.push(Reverse((Time(arrival), place, true)));
            }
            idle += 1;
            while let Some(&Reverse((Time(time), place, arrives))) = self.queue.peek()
                && time <= now
            {
                idle = 0;
                self.queue.pop();
                let transfer = &self.transfers[place];
                if arrives {
                    self.arrive(place, now);
                } else if transfer.bytes == 0 || transfer.over.is_empty() {
                    self.queue.push(Reverse((Time(now + transfer.latency_ns), place, true)));
                } else {
                    active.push((place, transfer.bytes as f64, 0.0));
                    changed = true;
                }
            }
            if changed {
                idle = 0;
                self.share(&mut active);
            }
        }
    }

    /// Max-min fair rates: all grow alike until a link is full, whose transfers then stay as they are.
    fn share(&self, active: &mut [(usize, f64, f64)]) {
        let mut left: BTreeMap<usize, f64> = BTreeMap::new();
        for (place, _, rate) in active.iter_mut() {
            *rate = 0.0;
            for (link, _) in &self.transfers[*place].over {
                left.insert(*link, self.gbps[*link]);
            }
        }
        let mut growing: Vec<usize> = (0..active.len()).collect();
        while !growing.is_empty() {
            let mut load: BTreeMap<usize, f64> = BTreeMap::new();
            for &at in &growing {
                for &(link, part) in &self.transfers[active[at].0].over {
                    *load.entry(link).or_insert(0.0) += part;
                }
            }
            let rate = |(link, load): (&usize, &f64)| left[link] / load;
            let rise = load.iter().map(rate).fold(f64::INFINITY, f64::min);
            // Equal links fill together, whatever rounding says.
            let full: Vec<usize> = load
                .iter()
                .filter(|entry| rate(*entry) <= rise * (1.0 + 1e-9))
                .map(|e| *e.0)
                .collect();
            let stops = |at: &usize| {
                self.transfers[active[*at].0].over.iter().any(|(link, _)| full.contains(link))
            };
            let (stopped, still): (Vec<usize>, Vec<usize>) =
                growing.iter().copied().partition(stops);
            for at in growing {
                active[at].2 += rise;
            }
            for (link, load) in load {
                if let Some(left) = left.get_mut(&link) {
                    *left = (*left - load * rise).max(0.0);
                }
            }
            // Some link is full, so some stop, unless rates are beyond what numbers hold.
            if stopped.is_empty() {
                return;
            }
            growing = still;
        }
    }
}

/// The transfers of a schedule. `way` says over which links a message between two ranks on a channel goes, and its latency in
/// nanoseconds.
///
/// A lane goes on to its next step when what it received is there; what it sends leaves in the order of its connection.
///
/// # Errors
/// Where a receive has no send: [`check::schedule`](crate::check::schedule) says more.
pub fn of_schedule(
    schedule: &Schedule,
    element_bytes: usize,
    way: impl Fn(Rank, Rank, u32) -> (Vec<(usize, f64)>, f64),
) -> Result<Vec<Transfer>, NoSend> {
    let mut made = Making::default();
    for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
        let mut lanes = Vec::new();
        for lane in &program.lanes {
            let mut steps = Vec::new();
            let mut before = None;
            for step in &lane.steps {
                // When what it works on is there.
                let ready = made.push(Transfer::default(), before);
                before = Some(ready);
                let mut end = ready;
                if let Some(to) = lane.send_to.filter(|_| step.op.sends()) {
                    let (over, latency_ns) = way(rank, to, lane.channel);
                    let count = if step.op.receives() { step.dst.count } else { step.src.count };
                    let bytes = (count * element_bytes) as u64;
                    end = made
                        .push(Transfer { bytes, over, latency_ns, after: Vec::new() }, Some(ready));
                    let line =
                        made.sent.entry((rank, to, lane.channel, lane.connection)).or_default();
                    // A message leaves when the one before it on its connection has.
                    let last = line.last().copied();
                    line.push(end);
                    made.after[end].extend(last);
                }
                steps.push((ready, end));
            }
            lanes.push(steps);
        }
        made.steps.push(lanes);
    }
    made.join(schedule)?;
    made.sorted()
}

/// A receive that no send is for, or steps that wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a step of the schedule waits for a message that is never sent")]
pub struct NoSend;

#[derive(Default)]
struct Making {
    transfers: Vec<Transfer>,
    after: Vec<Vec<usize>>,
    /// By rank, lane and step: when it may begin, and when it is over.
    steps: Vec<Vec<Vec<(usize, usize)>>>,
    /// By sender, receiver, channel and connection.
    sent: BTreeMap<(Rank, Rank, u32, u32), Vec<usize>>,
}

impl Making {
    fn push(&mut self, transfer: Transfer, after: Option<usize>) -> usize {
        self.transfers.push(transfer);
        self.after.push(after.into_iter().collect());
        self.transfers.len() - 1
    }

    /// Lets receives wait for their messages, and steps for those they name.
    fn join(&mut self, schedule: &Schedule) -> Result<(), NoSend> {
        let mut received: BTreeMap<(Rank, Rank, u32, u32), usize> = BTreeMap::new();
        for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
            for (at_lane, lane) in program.lanes.iter().enumerate() {
                for (at_step, step) in lane.steps.iter().enumerate() {
                    let ready = self.steps[rank.index()][at_lane][at_step].0;
                    for before in &step.after {
                        let (lane, step) = (before.lane as usize, before.step as usize);
                        let lane = self.steps[rank.index()].get(lane).ok_or(NoSend)?;
                        self.after[ready].push(lane.get(step).ok_or(NoSend)?.1);
                    }
                    if let Some(from) = lane.recv_from.filter(|_| step.op.receives()) {
                        let key = (from, rank, lane.channel, lane.connection);
                        let count = received.entry(key).or_default();
                        let message = self.sent.get(&key).and_then(|line| line.get(*count));
                        self.after[ready].push(*message.ok_or(NoSend)?);
                        *count += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Every transfer behind those it waits for.
    fn sorted(self) -> Result<Vec<Transfer>, NoSend> {
        let mut missing: Vec<usize> = self.after.iter().map(Vec::len).collect();
        let mut next = vec![Vec::new(); self.after.len()];
        for (place, after) in self.after.iter().enumerate() {
            after.iter().for_each(|before| next[*before].push(place));
        }
        let mut order: Vec<usize> = (0..missing.len()).filter(|at| missing[*at] == 0).collect();
        let mut done = 0;
        while let Some(&place) = order.get(done) {
            done += 1;
            for &waiting in &next[place] {
                missing[waiting] -= 1;
                if missing[waiting] == 0 {
                    order.push(waiting);
                }
            }
        }
        if order.len() < missing.len() {
            return Err(NoSend);
        }
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, old)| places[*old] = place);
        let mut transfers = self.transfers;
        let moved = order.iter().map(|&old| {
            let after = self.after[old].iter().map(|before| places[*before]).collect();
            Transfer { after, ..core::mem::take(&mut transfers[old]) }
        });
        Ok(moved.collect())
    }
}

/// Pieces in which a chain of `ranks` broadcasts `bytes` fastest: the S that makes (S + ranks - 2) (latency + bytes / (S gbps))
/// least, from what a chain in S pieces takes.
#[must_use]
pub fn chain_pieces(bytes: u64, ranks: usize, gbps: f64, latency_ns: f64) -> u64 {
    if ranks <= 2 || bytes == 0 {
        return 1;
    }
    let worth = (gbps * latency_ns).max(1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and far below 2^64: bytes of a message over bytes in flight, times ranks"
    )]
    let square = ((ranks - 2) as f64 * bytes as f64 / worth) as u64;
    let root = square.isqrt().max(1);
    let time = |pieces: u64| chain_ns(bytes, ranks, pieces, gbps, latency_ns);
    if time(root + 1) < time(root) { root + 1 } else { root }
}

/// Nanoseconds that a chain of `ranks` takes to broadcast `bytes` in equal pieces: N (S + K - 2) / (S B), and as many latencies.
#[must_use]
pub fn chain_ns(bytes: u64, ranks: usize, pieces: u64, gbps: f64, latency_ns: f64) -> f64 {
    let steps = pieces as f64 + ranks.saturating_sub(2) as f64;
    steps * (latency_ns + bytes as f64 / (pieces as f64 * gbps))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(bytes: u64, links: &[usize], after: &[usize]) -> Transfer {
        let over = links.iter().map(|link| (*link, 1.0)).collect();
        Transfer { bytes, over, latency_ns: 0.0, after: after.into() }
    }

    #[track_caller]
    fn arrive(gbps: &[f64], transfers: &[Transfer], sharing: Sharing, expected: &[f64]) {
        let found = simulate(gbps, transfers, sharing).unwrap().arrived_ns;
        let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close && found.len() == expected.len(), "{found:?}, not {expected:?}");
    }

    #[test]
    fn two_share_a_link() {
        let both = [over(100, &[0], &[]), over(300, &[0], &[])];
        arrive(&[10.0], &both, Sharing::Fair, &[20.0, 40.0]);
        arrive(&[10.0], &both, Sharing::Serial, &[10.0, 40.0]);
    }

    #[test]
    fn what_one_link_leaves_another_takes() {
        // The first two share link 0; the third has what the second leaves of link 1.
        let three = [over(60, &[0], &[]), over(60, &[0, 1], &[]), over(90, &[1], &[])];
        arrive(&[6.0, 12.0], &three, Sharing::Fair, &[20.0, 20.0, 10.0]);
    }

    #[test]
    fn parts_of_a_transfer_cross_links() {
        let split = Transfer { over: vec![(0, 0.5), (1, 0.5)], bytes: 100, ..Transfer::default() };
        arrive(&[10.0, 5.0], &[split], Sharing::Fair, &[10.0]);
    }

    #[test]
    fn latency_holds_what_follows_and_not_the_link() {
        let late = |after: &[usize]| Transfer { latency_ns: 7.0, ..over(10, &[0], after) };
        for sharing in [Sharing::Fair, Sharing::Serial] {
            arrive(&[10.0], &[late(&[]), late(&[0])], sharing, &[8.0, 16.0]);
        }
        arrive(&[10.0], &[late(&[]), late(&[])], Sharing::Serial, &[8.0, 9.0]);
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(simulate(&[1.0], &[over(1, &[1], &[])], Sharing::Fair), Err(0));
        assert_eq!(simulate(&[1.0], &[over(1, &[0], &[0])], Sharing::Serial), Err(0));
        assert_eq!(simulate(&[0.0], &[over(1, &[0], &[])], Sharing::Serial), Err(0));
        for rate in [f64::NAN, f64::INFINITY, -1.0, f64::MIN_POSITIVE / 4.0] {
            for sharing in [Sharing::Fair, Sharing::Serial] {
                assert_eq!(simulate(&[rate], &[over(u64::MAX, &[0], &[])], sharing), Err(0));
            }
        }
        let late = Transfer { latency_ns: f64::NAN, ..over(1, &[0], &[]) };
        assert_eq!(simulate(&[1.0], &[late], Sharing::Fair), Err(0));
    }

    /// Late in time, a few bytes take less than the clock can tell.
    #[test]
    fn what_the_clock_cannot_tell_ends() {
        let late = Transfer { latency_ns: 1e18, ..Transfer::default() };
        let all = [late, over(7, &[0], &[0]), over(u64::MAX, &[0, 1], &[0]), over(9, &[1], &[1])];
        for rates in [[1.0, 3.0], [1e9, 1e-3], [1e-9, 1e9]] {
            let found = simulate(&rates, &all, Sharing::Fair).unwrap();
            assert!(found.arrived_ns.iter().all(|time| *time >= 1e18), "{found:?}");
        }
    }

    /// Pieces down a chain, each behind the one before it on its hop.
    fn chain(bytes: u64, ranks: usize, pieces: u64) -> Vec<Transfer> {
        let hops = ranks - 1;
        let mut all = Vec::new();
        for piece in 0..usize::try_from(pieces).unwrap() {
            for hop in 0..hops {
                let mut after = Vec::new();
                after.extend((hop > 0).then(|| piece * hops + hop - 1));
                after.extend((piece > 0).then(|| (piece - 1) * hops + hop));
                all.push(over(bytes / pieces, &[hop], &after));
            }
        }
        all
    }

    #[test]
    fn a_chain_in_pieces_takes_what_its_formula_says() {
        let bytes = 27_720_000;
        for ranks in [2, 3, 4, 8, 16] {
            for pieces in [1, 2, 3, 7, 8, 40, 90] {
                let gbps = vec![12.5; ranks - 1];
                let expected = chain_ns(bytes, ranks, pieces, 12.5, 0.0);
                let closed =
                    bytes as f64 * (pieces as f64 + ranks as f64 - 2.0) / (pieces as f64 * 12.5);
                assert!((expected - closed).abs() < 1e-6 * closed);
                for sharing in [Sharing::Fair, Sharing::Serial] {
                    let found = simulate(&gbps, &chain(bytes, ranks, pieces), sharing).unwrap();
                    let off = (found.end_ns() - expected).abs() / expected;
                    assert!(off < 1e-9, "{ranks} ranks, {pieces} pieces: {}", found.end_ns());
                }
            }
        }
    }

    #[test]
    fn pieces_are_those_of_the_least_time() {
        for (bytes, ranks, gbps, latency) in [
            (1 << 20, 8, 20.0, 1000.0),
            (1 << 30, 16, 12.0, 5000.0),
            (4096, 4, 20.0, 3000.0),
            (1 << 26, 3, 100.0, 500.0),
        ] {
            let chosen = chain_pieces(bytes, ranks, gbps, latency);
            let time = |pieces| chain_ns(bytes, ranks, pieces, gbps, latency);
            let best = (1..5000).min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap();
            assert!(time(chosen) <= time(best) * 1.000_001, "{chosen} pieces, best {best}");
        }
        assert_eq!(chain_pieces(1 << 20, 2, 20.0, 1000.0), 1);
    }
}
