//! Groups in which something goes wrong at random: no hang, no wrong element, and everybody says who it was.
//!
//! A rank that dies is a thread that unwinds: its sockets close without a goodbye, as a process's do. Processes are killed and
//! stopped in the integration tests.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::even::full_plan;

/// Random groups; a longer soak sets the variable.
const REPETITIONS: u64 = 200;
const SOAK: &str = "TOPOD_SOAK_REPETITIONS";

/// What a rank does that it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    Dies,
    /// Another rank, the one after it, dies at the same step.
    DiesWithAnother,
    /// Drops its communicator while others go on.
    Leaves,
    /// Passes a buffer of another length.
    OtherSize,
    /// Calls another collective.
    OtherCollective,
    /// Lives and does nothing.
    Stops,
}

/// A stream of numbers from a seed.
struct Numbers(u64);

impl Numbers {
    /// Below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    ranks: u32,
    transport: Transport,
    paths: Paths,
    cross_memory: bool,
    count: usize,
    fault: Fault,
    victim: u32,
    /// Steps of the victim before it.
    at: usize,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let transport = numbers.one_of(&[Transport::Shm, Transport::Shm, Transport::Tcp]);
        let ranks = 2 + u32::try_from(numbers.below(4)).unwrap();
        let fault = match numbers.below(100) {
            0..20 => Fault::Nothing,
            20..60 => Fault::Dies,
            60..70 if ranks > 3 => Fault::DiesWithAnother,
            60..78 => Fault::OtherSize,
            78..90 if transport == Transport::Shm => Fault::OtherCollective,
            78..96 => Fault::Leaves,
            _ => Fault::Stops,
        };
        let paths = numbers.one_of(&[Paths::Auto, Paths::Auto, Paths::Plan]);
        Self {
            ranks,
            transport,
            // Along channels two collectives of one size may each wait for the other's messages, until the time limit.
            paths: if fault == Fault::OtherCollective { Paths::Auto } else { paths },
            cross_memory: numbers.below(2) == 0,
            count: numbers.one_of(&[1, 10, 1000, 5000, 40_000]),
            fault,
            victim: u32::try_from(numbers.below(ranks.into())).unwrap(),
            at: usize::try_from(numbers.below(24)).unwrap(),
        }
    }

    fn dies(&self, rank: Rank) -> bool {
        let second = (self.victim + 1) % self.ranks;
        match self.fault {
            Fault::Dies => rank.0 == self.victim,
            Fault::DiesWithAnother => rank.0 == self.victim || rank.0 == second,
            _ => false,
        }
    }
}

/// Collectives in turn, and an all-reduce at the end, which needs everybody.
fn operate(group: &mut Communicator, case: &Case, misbehaves: bool) -> Result<(), TransportError> {
    let ranks = group.ranks();
    for operation in 0..4 {
        let last = operation == 3;
        let wrong = misbehaves && operation == 1;
        let count = case.count + usize::from(wrong && case.fault == Fault::OtherSize);
        let own = group.rank();
        let mut data: Vec<f32> = (0..count).map(|i| value(own, i)).collect();
        let part = crate::schedule::shard(count, own, ranks);
        let gathers = (operation == 2 && !last) || (wrong && case.fault == Fault::OtherCollective);
        if gathers {
            let mut all = vec![0.0; count];
            group.all_gather(&data[part], &mut all)?;
            let expect = (0..ranks).flat_map(|rank| {
                let rank = Rank(u32::try_from(rank).unwrap());
                crate::schedule::shard(count, rank, ranks).map(move |i| value(rank, i))
            });
            assert!(all.iter().copied().eq(expect), "{case:?}: what was gathered");
        } else {
            group.all_reduce(&mut data, ReduceOp::Sum)?;
            let all = || (0..u32::try_from(ranks).unwrap()).map(Rank);
            let sum = |i| all().map(|rank| value(rank, i)).sum::<f32>();
            assert!(data.iter().copied().eq((0..count).map(sum)), "{case:?}: what was summed");
        }
    }
    Ok(())
}

/// Those that live make a group of their own, which gives the right result.
fn goes_on(group: &mut Communicator, case: &Case) {
    let options = Options {
        transport: case.transport,
        paths: case.paths,
        slot_bytes: Some(4096),
        heap_bytes: 1 << 20,
        collectives: vec![Collective::AllReduce],
        ..Options::default()
    };
    let plan = |ranks: &[Rank]| full_plan(u32::try_from(ranks.len()).unwrap(), 2);
    let accused = group.failure().unwrap().culprit().rank == group.rank();
    let mut smaller = match group.shrink(plan, options) {
        Ok(smaller) => smaller,
        Err(ConnectError::Excluded(_)) if accused => return,
        // One that stopped is no proof, and one that was through may be on its way out.
        Err(ConnectError::TooFew { silent, .. })
            if case.fault == Fault::Stops || (case.at > 0 && !silent.is_empty()) =>
        {
            return;
        }
        Err(error) => panic!("{case:?}: rank {}: {error}", group.rank()),
    };
    let mut data: Vec<f32> = (0..case.count).map(|i| value(smaller.rank(), i)).collect();
    smaller.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    let all = || (0..u32::try_from(smaller.ranks()).unwrap()).map(Rank);
    let sum = |i| all().map(|rank| value(rank, i)).sum::<f32>();
    assert!(data.iter().copied().eq((0..case.count).map(sum)), "{case:?}: a smaller group's sum");
}

/// What a rank of the case ends with: nothing where it died.
fn one_rank(
    case: &Case,
    rank: Rank,
    rendezvous: &Rendezvous,
    ended: &AtomicUsize,
) -> Option<Result<(), TransportError>> {
    let mut steps = 0;
    let (at, dies) = (case.at, case.dies(rank));
    let stops = case.fault == Fault::Stops && rank.0 == case.victim;
    let others = case.ranks as usize - 1;
    let halt = move |ended: &AtomicUsize| {
        while ended.load(Ordering::Acquire) < others {
            std::thread::yield_now();
        }
        resume_unwind(Box::new("stopped"));
    };
    let mine = rank.0 == case.victim;
    let options = Options {
        // Far longer than anything here takes, but for what waits for it.
        timeout: Duration::from_secs(match case.fault {
            Fault::Stops => 4,
            Fault::Leaves => 8,
            _ => 60,
        }),
        transport: case.transport,
        paths: case.paths,
        cross_memory: case.cross_memory,
        slot_bytes: Some(4096),
        heap_bytes: 1 << 20,
        collectives: vec![Collective::AllReduce, Collective::AllGather],
        on_step: dies.then(|| -> crate::executor::StepHook {
            Box::new(move |_| {
                steps += 1;
                if steps > at {
                    resume_unwind(Box::new("died"));
                }
            })
        }),
        ..Options::default()
    };
    let plan = full_plan(case.ranks, 2);
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut group = Communicator::new(&plan, rank, rendezvous, options).unwrap();
        if stops {
            let mut data: Vec<f32> = (0..case.count).map(|i| value(rank, i)).collect();
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            halt(ended);
        }
        if mine && case.fault == Fault::Leaves {
            let mut data: Vec<f32> = (0..case.count).map(|i| value(rank, i)).collect();
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            return Ok(());
        }
        let result = operate(&mut group, case, mine);
        if dies {
            // It got through before its step came.
            resume_unwind(Box::new("died late"));
        }
        if result.is_err() {
            // The others hear of it before this one is gone.
            ended.fetch_add(1, Ordering::AcqRel);
            goes_on(&mut group, case);
        }
        result
    }));
    match lived {
        Ok(result) => Some(result),
        Err(why) if why.is::<&str>() && (dies || stops) => None,
        Err(why) => resume_unwind(why),
    }
}

/// Runs a case; panics with it where anything is not as it should be.
fn run(seed: u64) {
    let case = Case::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let rendezvous: Rendezvous =
        format!("file://{}/meet", folder.path().display()).parse().unwrap();
    let ended = AtomicUsize::new(0);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..case.ranks)
            .map(|rank| {
                let (case, rendezvous, ended) = (&case, &rendezvous, &ended);
                scope.spawn(move || one_rank(case, Rank(rank), rendezvous, ended))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let named = |failure: &Failure| {
        let culprit = failure.culprit().rank;
        culprit.0 == case.victim || case.dies(culprit)
    };
    for (rank, result) in (0_u32..).zip(results) {
        let Some(result) = result else { continue };
        let error = match (case.fault, result) {
            (Fault::Nothing, Ok(())) => continue,
            (Fault::Leaves, Ok(())) if rank == case.victim => continue,
            // It was through when the ranks that died still were there.
            (Fault::Dies | Fault::DiesWithAnother, Ok(())) if case.at > 0 => continue,
            (_, Ok(())) => panic!("seed {seed}, {case:?}: rank {rank} noticed nothing"),
            (_, Err(error)) => error,
        };
        let TransportError::Failed(failure) = &error else {
            panic!("seed {seed}, {case:?}: rank {rank}: {error}")
        };
        let right = match (case.fault, &**failure) {
            (Fault::OtherSize | Fault::OtherCollective, Failure::OperationMismatch { .. }) => true,
            (Fault::Stops, failure @ Failure::Timeout { .. })
            | (
                Fault::Dies | Fault::DiesWithAnother | Fault::Leaves,
                failure @ Failure::PeerLost { .. },
            ) => named(failure),
            _ => false,
        };
        assert!(right, "seed {seed}, {case:?}: rank {rank}: {error}");
    }
}

/// Several at a time, so that those that wait for a time limit hold up none.
#[test]
fn whatever_goes_wrong_everybody_says_so() {
    let repetitions =
        std::env::var(SOAK).ok().and_then(|text| text.parse().ok()).unwrap_or(REPETITIONS);
    let next = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= repetitions {
                        return;
                    }
                    run(seed);
                }
            });
        }
    });
}
