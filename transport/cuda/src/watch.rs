//! Looks after operations in flight: a thread of each rank sees them end, hears of failures, names whom a rank waits for in vain, and
//! ends what cannot end by itself.
//!
//! ```text
//!   enqueue ──▶ flights ──▶ poll: events, the host's group, the words ──▶ done
//!                              └── failure ──▶ told to all; every word this rank's streams wait for is set far ahead (poisoned),
//!                                              again and again, until the streams have run out
//! ```
//!
//! A stream that waits for a word cannot be stopped otherwise; a kernel that waits looks at a word of its own, which is set too. What it then computes is nobody's result: the operation has failed on
//! every rank.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use topology::Rank;
use transport::{Communicator as Group, Failure, StepName, TransportError};

use crate::buffer::Memory;
use crate::call::Call;
use crate::context::Context;
use crate::error::{CudaError, DriverError};
use crate::ffi::{Driver, Handle};
use crate::network::{Message, Network};
use crate::order::Turn;
use crate::program::Compiled;
use crate::segment::{Presence, Segment, Word};
use crate::stream::Event;
use crate::wire::{Wires, in_word};

/// Between two looks while something is in flight.
const LOOK: Duration = Duration::from_millis(1);

/// The same while messages between hosts are on their way, which this thread carries.
const CARRY: Duration = Duration::from_micros(20);

/// Ahead of every number that a stream waits for, and behind none of them.
const POISON: u32 = 1 << 30;

/// How long streams may take to run out once nothing holds them; then what they use is left to them for ever.
const RUN_OUT: Duration = Duration::from_secs(5);

/// How long a peer that left may still have on its way what it had posted.
const LEFT: Duration = Duration::from_millis(500);

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) ticket: u64,
    /// The number that all ranks know it by; `None` for messages between two.
    pub(crate) number: Option<u64>,
    pub(crate) call: Call,
    pub(crate) program: Arc<Compiled>,
    /// By lane: the first message to receive and the first to send.
    pub(crate) first: Vec<(u64, u64)>,
    pub(crate) slots: usize,
    pub(crate) begun: Event,
    pub(crate) done: Event,
    pub(crate) has_begun: bool,
    /// Where the driver refused a part: the streams that have the rest. The events may then be as an earlier operation left them, so
    /// it is done when these have run out.
    pub(crate) partly_in: Vec<Handle>,
    /// Kept alive.
    pub(crate) memory: Vec<Memory>,
}

/// The words of a connection, with its peer.
#[derive(Clone, Debug)]
struct Watched {
    peer: Rank,
    posted: Word,
    consumed: Word,
}

/// What does not change.
#[derive(Debug)]
struct Sight {
    context: Arc<Context>,
    segment: Arc<Segment>,
    members: Vec<Rank>,
    own: Rank,
    transmit: Vec<Watched>,
    receive: Vec<Watched>,
    timeout: Duration,
}

#[derive(Debug)]
struct State {
    group: Group,
    flights: VecDeque<Flight>,
    spare: Vec<Event>,
    released: Vec<Memory>,
    failure: Option<Box<Failure>>,
    /// The owner is enqueuing something that is no flight yet.
    enqueuing: bool,
    stop: bool,
    /// Streams did not run out.
    abandoned: bool,
    patience: Patience,
    poison: Vec<(Word, u32)>,
    network: Option<Network>,
}

#[derive(Debug)]
struct Shared {
    sight: Sight,
    state: Mutex<State>,
    changed: Condvar,
}

/// How long nothing has moved.
#[derive(Debug)]
struct Patience {
    since: Instant,
    /// Sum of all words, and operations that ended.
    seen: u64,
    ended: u64,
}

#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn new(
        group: Group,
        context: &Arc<Context>,
        (segment, members, wires): (&Arc<Segment>, Vec<Rank>, &Wires),
        network: Option<Network>,
        timeout: Duration,
    ) -> Result<Self, CudaError> {
        let watched = |peer, wire: &crate::wire::Wire| Watched {
            peer,
            posted: wire.posted.clone(),
            consumed: wire.consumed.clone(),
        };
        let sight = Sight {
            context: Arc::clone(context),
            segment: Arc::clone(segment),
            members,
            own: group.rank(),
            transmit: wires.transmit.iter().map(|w| watched(w.id.to, w)).collect(),
            receive: wires.receive.iter().map(|w| watched(w.id.from, w)).collect(),
            timeout,
        };
        let state = State {
            group,
            flights: VecDeque::new(),
            spare: Vec::new(),
            released: Vec::new(),
            failure: None,
            enqueuing: false,
            stop: false,
            abandoned: false,
            patience: Patience { since: Instant::now(), seen: 0, ended: 0 },
            poison: Vec::new(),
            network,
        };
        let shared = Arc::new(Shared { sight, state: Mutex::new(state), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("topod-cuda".to_owned())
            .spawn(move || of_thread.run())
            .map_err(|source| CudaError::Local { what: "start a thread", source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Before anything is enqueued: hears of failures, says what is begun, and gives the events to record.
    pub(crate) fn begin(
        &self,
        number: Option<u64>,
        call: &Call,
    ) -> Result<(Event, Event), CudaError> {
        let sight = &self.shared.sight;
        let mut state = self.state();
        if state.failure.is_none()
            && let Err(error) = state.group.progress()
        {
            self.shared.fail(&mut state, error, None);
        }
        if state.failure.is_none()
            && let Some(number) = number
        {
            let member = sight.member(sight.own);
            sight.segment.call(member, number, call.signature());
            if let Some(failure) = sight.at_odds(&state.group, number, call, None) {
                self.shared.fail_by(&mut state, failure);
            }
        }
        if let Some(failure) = &state.failure {
            return Err(CudaError::Failed(failure.clone()));
        }
        let mut event = || state.spare.pop().map_or_else(|| Event::new(&sight.context), Ok);
        let events = (event()?, event()?);
        state.enqueuing = true;
        Ok(events)
    }

    /// After it was enqueued, or a part of it before the driver refused.
    pub(crate) fn enqueued(
        &self,
        flight: Flight,
        messages: Vec<Message>,
        outcome: Result<(), DriverError>,
    ) -> Result<(), CudaError> {
        let mut state = self.state();
        state.enqueuing = false;
        if state.flights.is_empty() {
            state.patience.since = Instant::now();
        }
        if let Err(error) = outcome {
            let step = self.shared.sight.blocked(&flight).map(|(_, step)| step);
            let failure = self.shared.device_failed(&state.group, &error, step);
            self.shared.fail_by(&mut state, failure);
        }
        state.flights.push_back(flight);
        if let Some(network) = &mut state.network {
            network.expect(messages);
        }
        self.shared.changed.notify_all();
        match &state.failure {
            Some(failure) => Err(CudaError::Failed(failure.clone())),
            None => Ok(()),
        }
    }

    /// Memory that operations no longer need. To free it may wait for the device, so that is its owner's to do: this must not wait.
    pub(crate) fn released(&self) -> Vec<Memory> {
        std::mem::take(&mut self.state().released)
    }

    pub(crate) fn failure(&self) -> Option<Box<Failure>> {
        self.state().failure.clone()
    }

    /// Whether an operation is done; hears of failures.
    pub(crate) fn is_done(&self, ticket: u64) -> Result<bool, CudaError> {
        let mut state = self.state();
        if state.failure.is_none() {
            self.shared.collect(&mut state);
        }
        match &state.failure {
            Some(failure) => Err(CudaError::Failed(failure.clone())),
            None => Ok(!state.flights.iter().any(|flight| flight.ticket == ticket)),
        }
    }

    /// Waits until an operation is done; whether it is within the limit.
    pub(crate) fn wait(&self, ticket: u64, limit: Option<Duration>) -> Result<bool, CudaError> {
        let start = Instant::now();
        // Short ones are worth some turns of the processor: a look by the thread comes a millisecond later.
        for _ in 0..64 {
            if self.is_done(ticket)? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        loop {
            if self.is_done(ticket)? {
                return Ok(true);
            }
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            let state = self.state();
            let pause = left.map_or(LOOK, |left| left.min(LOOK));
            drop(self.shared.changed.wait_timeout(state, pause));
        }
    }

    /// With the host's group, which operations that tell each other something first need.
    pub(crate) fn with_group<T>(
        &self,
        act: impl FnOnce(&mut Group) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let mut state = self.state();
        if let Some(failure) = &state.failure {
            return Err(CudaError::Failed(failure.clone()));
        }
        let outcome = act(&mut state.group);
        if let Err(CudaError::Failed(failure)) = &outcome {
            let failure = failure.clone();
            self.shared.fail_by(&mut state, *failure);
        }
        outcome
    }

    /// Ends the group where the device is lost: the others are to hear of that, not that this rank left.
    pub(crate) fn ask_device(&self) {
        const DEFAULT_STREAM: Handle = 0;
        let mut state = self.state();
        let asked = self.shared.sight.context.with(|driver| driver.is_idle(DEFAULT_STREAM));
        if let (None, Err(error)) = (&state.failure, asked) {
            let failure = self.shared.device_failed(&state.group, &error, None);
            self.shared.fail_by(&mut state, failure);
        }
    }

    /// Waits until nothing is in flight; whether the streams have run out.
    pub(crate) fn drain(&self) -> bool {
        let mut state = self.state();
        let carries = |state: &State| {
            state.failure.is_none() && state.network.as_ref().is_some_and(Network::is_busy)
        };
        while !state.flights.is_empty() || carries(&state) {
            let waited = self.shared.changed.wait_timeout(state, LOOK * 10);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.abandoned
    }

    /// Whether every rank of this host has closed what it had of others' memory, or has ended, within a limit.
    pub(crate) fn await_others(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let sight = &self.shared.sight;
        loop {
            let all = (0..sight.members.len()).all(|m| sight.segment.presence(m) == Presence::Gone);
            if all {
                return true;
            }
            let mut state = self.state();
            if start.elapsed() >= limit {
                return false;
            }
            // Who ended does not say so.
            let ended = state.failure.is_some() || state.group.progress().is_err();
            if ended && start.elapsed() >= limit / 4 {
                return false;
            }
            drop(self.shared.changed.wait_timeout(state, LOOK));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.state().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        let mut failed_at = None;
        while !state.stop {
            let carries =
                state.network.as_ref().is_some_and(Network::is_busy) && state.failure.is_none();
            let busy = !state.flights.is_empty() || state.enqueuing || carries;
            if !busy {
                failed_at = None;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            self.collect(&mut state);
            if state.failure.is_none() {
                self.look(&mut state);
            }
            if state.failure.is_some() {
                let since = *failed_at.get_or_insert_with(Instant::now);
                self.poison(&mut state);
                if since.elapsed() >= RUN_OUT && !state.flights.is_empty() {
                    tracing::error!(
                        "streams did not run out after a failure; what they use is left to them"
                    );
                    state.abandoned = true;
                    // Memory that a device may still write is nobody else's any more.
                    std::mem::forget(std::mem::take(&mut state.flights));
                    self.changed.notify_all();
                }
            }
            let pause = if carries { CARRY } else { LOOK };
            let waited = self.changed.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes in operations that have begun and those that are done.
    fn collect(&self, state: &mut State) {
        let failed = state.failure.is_some();
        let mut error = None;
        let seen = self.sight.context.with(|driver| {
            let mut at = 0;
            while at < state.flights.len() {
                let flight = &mut state.flights[at];
                match flight.look(driver) {
                    Ok(false) => at += 1,
                    // What a rank sends whose streams were let go is no result; that it has failed is heard in a moment.
                    Ok(true) if !failed && self.sight.somebody_has_aborted() => at += 1,
                    // After a failure an event that cannot be asked is one of a device that is gone.
                    Err(found) if !failed => {
                        let step = self.sight.blocked(flight).map(|(_, step)| step);
                        let found = found.on(self.sight.context.bus_id());
                        error = error.take().or(Some((found, step)));
                        at += 1;
                    }
                    Ok(true) | Err(_) => {
                        if let Some(flight) = state.flights.remove(at) {
                            state.spare.extend([flight.begun, flight.done]);
                            state.released.extend(flight.memory);
                            state.patience.ended += 1;
                        }
                        self.changed.notify_all();
                    }
                }
            }
            Ok(())
        });
        match seen {
            Err(_) if failed => {
                // A device that is lost runs nothing.
                let memory = state.flights.drain(..).flat_map(|flight| flight.memory);
                state.released.extend(memory);
                self.changed.notify_all();
            }
            Err(found) => error = error.or(Some((found, None))),
            Ok(()) => {}
        }
        if let Some((found, step)) = error {
            let failure = self.device_failed(&state.group, &found, step);
            self.fail_by(state, failure);
        }
    }

    /// Hears of failures, finds those that nobody tells of.
    fn look(&self, state: &mut State) {
        let State { group, network, .. } = state;
        let moved = network.as_mut().map_or(Ok(()), |network| network.progress(group));
        if let Err(error) = moved.and_then(|()| group.progress()) {
            let step =
                state.flights.front().and_then(|f| self.sight.blocked(f)).map(|(_, step)| step);
            self.fail(state, error, step);
            return;
        }
        let sum = self.sight.sum().wrapping_add(state.patience.ended);
        let own = self.sight.member(self.sight.own);
        if std::mem::replace(&mut state.patience.seen, sum) != sum {
            state.patience.since = Instant::now();
            self.sight.segment.set_waits_for(own, None);
        }
        let waited = state.patience.since.elapsed();
        let odds = state.flights.iter().find_map(|flight| {
            let number = flight.number?;
            self.sight.at_odds(&state.group, number, &flight.call, Some(flight))
        });
        if let Some(failure) = odds {
            self.fail_by(state, failure);
            return;
        }
        let begun = state.flights.iter().filter(|flight| flight.has_begun);
        let Some((flight, (peer, step))) =
            begun.filter_map(|flight| Some((flight, self.sight.blocked(flight)?))).next()
        else {
            return;
        };
        if waited >= self.sight.timeout / 16 {
            self.sight.segment.set_waits_for(own, Some(peer.0));
        }
        let gone = self.sight.has_gone(peer);
        let reported_by = self.sight.own;
        let failure = if gone && waited >= LEFT {
            let (culprit, cause) = (state.group.culprit(peer), "it left the group".to_owned());
            Failure::PeerLost { culprit, cause, step: Some(step), reported_by }
        } else if waited >= self.sight.timeout {
            let suspect = self.sight.suspect(peer, flight.number);
            let culprit = state.group.culprit(suspect);
            Failure::Timeout { culprit, waited: self.sight.timeout, step: Some(step), reported_by }
        } else {
            return;
        };
        self.fail_by(state, failure);
    }

    /// The host's group failed.
    fn fail(&self, state: &mut State, error: TransportError, step: Option<StepName>) {
        let failure = match error {
            TransportError::Failed(failure) | TransportError::Unusable(failure) => *failure,
            other => {
                let culprit = state.group.culprit(self.sight.own);
                Failure::Link {
                    culprit,
                    cause: other.to_string(),
                    step,
                    reported_by: self.sight.own,
                }
            }
        };
        self.fail_by(state, failure);
    }

    /// Ends the group: tells all, and lets the streams run out.
    fn fail_by(&self, state: &mut State, failure: Failure) {
        if state.failure.is_some() {
            return;
        }
        tracing::error!(rank = %self.sight.own, %failure, "operation on device memory failed");
        // Those that were told first know better.
        let told = state.group.give_up(failure);
        let failure = match told {
            TransportError::Failed(failure) | TransportError::Unusable(failure) => failure,
            other => unreachable!("a group that gives up has failed: {other}"),
        };
        state.failure = Some(failure);
        self.sight.segment.abort(self.sight.member(self.sight.own));
        state.poison = self
            .sight
            .waits()
            .map(|word| (word.clone(), word.value().wrapping_add(POISON)))
            .collect();
        self.poison(state);
        self.changed.notify_all();
    }

    fn poison(&self, state: &mut State) {
        state.poison.iter().for_each(|(word, value)| word.set(*value));
    }

    fn device_failed(&self, group: &Group, error: &DriverError, step: Option<StepName>) -> Failure {
        Failure::PeerLost {
            culprit: group.culprit(self.sight.own),
            cause: format!("its device failed: {error}"),
            step,
            reported_by: self.sight.own,
        }
    }
}

impl Flight {
    /// Whether it is done.
    fn look(&mut self, driver: &Driver) -> Result<bool, DriverError> {
        if !self.partly_in.is_empty() {
            for stream in &self.partly_in {
                if !driver.is_idle(*stream)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        if !self.has_begun {
            self.has_begun = driver.is_done(self.begun.raw)?;
        }
        if !self.has_begun { Ok(false) } else { driver.is_done(self.done.raw) }
    }
}

impl Sight {
    fn somebody_has_aborted(&self) -> bool {
        (0..self.members.len()).any(|member| self.segment.has_aborted(member))
    }

    /// A rank's place among those of this host.
    fn member(&self, rank: Rank) -> usize {
        self.members.iter().position(|member| *member == rank).unwrap_or(usize::MAX)
    }

    /// What this rank's streams wait for.
    fn waits(&self) -> impl Iterator<Item = &Word> {
        self.receive.iter().map(|w| &w.posted).chain(self.transmit.iter().map(|w| &w.consumed))
    }

    /// Changes whenever a message moves here.
    fn sum(&self) -> u64 {
        let all = self.receive.iter().chain(&self.transmit);
        all.map(|w| u64::from(w.posted.value()) + u64::from(w.consumed.value())).sum()
    }

    fn has_gone(&self, rank: Rank) -> bool {
        let member = self.members.iter().position(|member| *member == rank);
        member.is_some_and(|member| self.segment.presence(member) == Presence::Gone)
    }

    /// The first wait, in the order of enqueuing, for which there is nothing yet: for whom, and where.
    fn blocked(&self, flight: &Flight) -> Option<(Rank, StepName)> {
        let mut counts = vec![(0_u64, 0_u64); flight.program.lanes.len()];
        for Turn { place: (l, s), .. } in &flight.program.order {
            let lane = &flight.program.lanes[*l as usize];
            let step = &lane.steps[*s as usize];
            let (first, count) = (flight.first[*l as usize], &mut counts[*l as usize]);
            let mut peer = None;
            if let Some(at) = lane.receive.filter(|_| step.op.receives()) {
                count.0 += 1;
                let watched = &self.receive[at];
                if !watched.posted.is_at_least(in_word(first.0 + count.0)) {
                    peer = Some(watched.peer);
                }
            }
            if let Some(at) = lane.transmit.filter(|_| step.op.sends()) {
                count.1 += 1;
                let watched = &self.transmit[at];
                let needed = in_word(first.1 + count.1 - flight.slots as u64);
                if peer.is_none() && !watched.consumed.is_at_least(needed) {
                    peer = Some(watched.peer);
                }
            }
            if let Some(peer) = peer {
                let name = StepName {
                    operation: flight.number.unwrap_or(flight.ticket),
                    collective: flight.call.collective,
                    channel: lane.channel,
                    connection: lane.connection,
                    step: *s as usize,
                    of: lane.steps.len(),
                };
                return Some((peer, name));
            }
        }
        None
    }

    /// Whom everybody waits for, seen from a rank that waits for `peer` in an operation: along the chain of those that wait, until one
    /// that has not come to it, or waits for nobody.
    fn suspect(&self, peer: Rank, number: Option<u64>) -> Rank {
        let mut suspect = peer;
        for _ in 0..self.members.len() {
            let Some(member) = self.members.iter().position(|m| *m == suspect) else { break };
            if number.is_some_and(|number| self.segment.enqueued(member) <= number) {
                break;
            }
            match self.segment.waits_for(member) {
                Some(next) if next != self.own.0 => suspect = Rank(next),
                _ => break,
            }
        }
        suspect
    }

    /// A rank of this host that runs another operation under the same number.
    fn at_odds(
        &self,
        group: &Group,
        number: u64,
        call: &Call,
        flight: Option<&Flight>,
    ) -> Option<Failure> {
        let ours = call.signature();
        let others = self.members.iter().enumerate().filter(|(_, rank)| **rank != self.own);
        let mut said =
            others.filter_map(|(member, rank)| Some((*rank, self.segment.called(member, number)?)));
        let (rank, theirs) = said.find(|(_, theirs)| *theirs != ours)?;
        Some(Failure::OperationMismatch {
            culprit: group.culprit(rank),
            ours: format!("operation {number}, {}", Call::of(ours)),
            theirs: Call::of(theirs).to_string(),
            step: flight.and_then(|flight| self.blocked(flight)).map(|(_, step)| step),
            reported_by: self.own,
        })
    }
}
