//! One of each form passes; what is broken in it is found; and what passes computes the right numbers, in
//! whatever order its lanes happen to run.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use topology::schedule::{Op, Schedule, Slice, StepRef};
use topology::{Collective, Rank};

use super::sample::{
    Input, Output, Scratch, all_to_all, barrier, chain_all_reduce, one_shot_all_reduce,
    ring_all_gather, ring_all_reduce, ring_reduce_scatter, send_recv, slice, star_of,
};
use super::{Placement, ScheduleViolation, schedule, schedule_placed};
use crate::check::sample::Seed;

#[track_caller]
fn passes(sample: &Schedule, slots: usize) -> super::ScheduleReport {
    schedule(sample, slots).unwrap_or_else(|violation| panic!("{violation}"))
}

#[track_caller]
fn check(sample: &Schedule, slots: usize, message: &str) {
    assert_eq!(schedule(sample, slots).unwrap_err().to_string(), message);
}

/// One of each form, with the slots it needs.
fn samples(n: usize, count: usize) -> Vec<(Schedule, usize)> {
    let root = count % n;
    vec![
        // Everybody sends before anybody receives, and receives only when it can send: one slot is full for ever.
        (ring_all_reduce(n, count), 2),
        (ring_all_gather(n, count), 2),
        (ring_reduce_scatter(n, count), 2),
        (chain_all_reduce(n, count, 3), 1),
        (star_of(Collective::Broadcast, n, count, root), 1),
        (star_of(Collective::Reduce, n, count, root), 1),
        (star_of(Collective::Gather, n, count, root), 1),
        (star_of(Collective::Scatter, n, count, root), 1),
        (all_to_all(n, count / n), 1),
        (one_shot_all_reduce(n, count), 1),
        (send_recv(n, count, root, (root + 1) % n), 1),
    ]
}

#[test]
fn every_form_passes() {
    for n in 2..6 {
        for count in [0, 1, n, 17] {
            for (sample, slots) in samples(n, count) {
                if sample.collective == Collective::SendRecv && count == 0 {
                    continue;
                }
                let report = passes(&sample, slots);
                let once = [Collective::AllToAll, Collective::SendRecv];
                let placements = if once.contains(&sample.collective) { 1 } else { 2 };
                assert_eq!(report.placements.len(), placements, "{}", sample.collective);
            }
        }
        passes(&barrier(n), 1);
    }
}

#[test]
fn reports_what_moves() {
    let report = passes(&ring_all_reduce(4, 16), 2);
    assert_eq!((report.steps, report.messages, report.depth), (4 * 7, 4 * 6, 6));
    assert_eq!(report.sent.len(), 4);
    // 2 (N - 1) / N of the data over each hop.
    assert!(report.sent.values().all(|elements| *elements == 24));
}

#[test]
fn one_slot_stops_a_ring() {
    check(
        &ring_all_reduce(3, 9),
        1,
        "deadlock with 1 slots: rank 0, lane 0, step 1 waits for a free slot on 0 -> 1, channel 0, connection 0",
    );
    check(
        &send_recv(2, 3, 0, 1),
        0,
        "deadlock with 0 slots: rank 0, lane 0, step 0 waits for a free slot on 0 -> 1, channel 0, connection 0",
    );
}

#[test]
fn what_is_broken_is_named() {
    let broken = |valid: &Schedule, slots, message: &str, change: &dyn Fn(&mut Schedule)| {
        let mut schedule = valid.clone();
        change(&mut schedule);
        check(&schedule, slots, message);
    };
    let ring = ring_all_reduce(3, 9);
    broken(&ring, 2, "1 -> 2, channel 0, connection 0: 3 sends, 4 receives", &|s| {
        s.programs[1].lanes[0].steps.remove(0);
    });
    broken(&ring, 2, "rank 1, lane 0, step 1: the message has 2 elements, 3 are taken", &|s| {
        s.programs[0].lanes[0].steps[0].src.count = 2;
    });
    broken(&ring, 2, "rank 1, lane 0: 1 is no other rank", &|s| {
        s.programs[1].lanes[0].send_to = Some(Rank(1));
    });
    broken(&ring, 2, "rank 1, lane 0, step 1: the lane names no peer to receive from", &|s| {
        s.programs[1].lanes[0].recv_from = None;
    });
    broken(&ring, 2, "rank 2, lane 0, step 0: elements 7 + 3 of Input are outside its 9", &|s| {
        s.programs[2].lanes[0].steps[0].src.offset = 7;
    });
    broken(&ring, 2, "rank 2, lane 0, step 2: the input is written", &|s| {
        s.programs[2].lanes[0].steps[2].dst.buffer = Input;
    });
    broken(&ring, 2, "rank 0, lane 0, step 1: there is no step 0 of another lane 0", &|s| {
        s.programs[0].lanes[0].steps[1].after = vec![StepRef { lane: 0, step: 0 }];
    });
    broken(
        &ring,
        2,
        "rank 1, lane 0, step 2 (out of place): reads element 6 of Output, which nothing has written",
        &|s| s.programs[1].lanes[0].steps[2].src.buffer = Output,
    );
    broken(
        &ring,
        2,
        "rank 0 (out of place): element 0 of the output is with another element of rank 1",
        &|s| s.programs[1].lanes[0].steps[1].src.offset = 3,
    );
    broken(
        &ring,
        2,
        "rank 0 (out of place): element 6 of the output is without the data of rank 1",
        &|s| {
            // The last rank of shard 2's way stores what came without adding its own.
            let step = &mut s.programs[1].lanes[0].steps[2];
            (step.op, step.src) = (Op::RecvCopySend, step.dst);
        },
    );
    let chain = chain_all_reduce(3, 6, 2);
    broken(
        &chain,
        1,
        "rank 2, lane 0, step 0 and rank 2, lane 1, step 0 (out of place): both touch element 0 of Output, in no order",
        &|s| s.programs[2].lanes[1].steps[0].after.clear(),
    );
    let shot = one_shot_all_reduce(3, 4);
    broken(
        &shot,
        1,
        "rank 0, lane 0, step 2 (out of place): the data of rank 1 is in the sum twice",
        &|s| {
            s.programs[0].lanes[0].steps[2].src = slice(Scratch, 0..4);
        },
    );
    // Out of place all is well; in place the sum is begun while the input may still be sent.
    let mut early = shot.clone();
    early.programs[1].lanes[0].steps[0].after.clear();
    schedule_placed(&early, 1, Placement::OutOfPlace).unwrap();
    check(
        &early,
        1,
        "rank 1, lane 0, step 1 and rank 1, lane 2, step 0 (in place): both touch element 0 of Output, in no order",
    );
    broken(&barrier(3), 1, "rank 0 may leave the barrier before rank 1 came", &|s| {
        for program in &mut s.programs {
            program.lanes.pop();
        }
    });
    broken(&all_to_all(3, 2), 1, "7 elements cannot be cut in 3 equal blocks", &|s| s.count = 7);
    broken(&star_of(Collective::Reduce, 3, 4, 1), 1, "reduce needs a root among the ranks", &|s| {
        s.root = Some(Rank(3));
    });
    broken(
        &send_recv(3, 4, 0, 1),
        1,
        "0 ranks write their output, send-recv has one receiver",
        &|s| {
            s.programs[1].lanes.clear();
        },
    );
    broken(
        &chain,
        1,
        "deadlock with 1 slots: rank 0, lane 0, step 0 waits for lane 1, step 1",
        &|s| s.programs[0].lanes[0].steps[0].after = vec![StepRef { lane: 1, step: 1 }],
    );
    broken(&ring, 2, "0 -> 1, channel 0, connection 0: two lanes send", &|s| {
        let twin = s.programs[0].lanes[0].clone();
        s.programs[0].lanes.push(twin);
    });
    broken(
        &star_of(Collective::Broadcast, 2, 4, 0),
        1,
        "rank 0, lane 0, step 0 (in place): source and destination overlap",
        &|s| {
            let step = &mut s.programs[0].lanes[0].steps[0];
            (step.src, step.dst) = (slice(Input, 0..3), slice(Output, 1..4));
            // Out of place the rest of the output is still missing; look at what is found first in place.
            let placed = schedule_placed(s, 1, Placement::InPlace);
            assert!(matches!(placed, Err(ScheduleViolation::Overlap { .. })));
            s.programs[0].lanes[0].steps.push(super::sample::step(
                Op::Copy,
                slice(Input, 0..4),
                slice(Output, 0..4),
            ));
        },
    );
}

/// Runs a schedule on numbers, always a random one of the lanes that can go on; `None` if none can.
fn execute(
    schedule: &Schedule,
    slots: usize,
    placement: Placement,
    seed: &mut Seed,
) -> Option<Vec<Vec<u64>>> {
    let n = schedule.programs.len();
    let operation = super::Operation::new(schedule, None).unwrap();
    let layout = |rank: usize, scratch| {
        operation.layout(Rank(u32::try_from(rank).unwrap()), scratch, placement).unwrap()
    };
    const GARBAGE: u64 = 1 << 60;
    let mut memories = Vec::new();
    for (rank, program) in schedule.programs.iter().enumerate() {
        let layout = layout(rank, program.scratch);
        let mut memory = vec![
            vec![GARBAGE; schedule.count],
            vec![GARBAGE; schedule.count],
            vec![GARBAGE; program.scratch],
        ];
        let (place, elements) = layout.input();
        for (number, element) in elements.enumerate() {
            memory[place][element] = value(rank, number);
        }
        memories.push(memory);
    }
    let mut next: Vec<Vec<usize>> =
        schedule.programs.iter().map(|p| vec![0; p.lanes.len()]).collect();
    let mut wires = BTreeMap::<(usize, usize, u32, u32), VecDeque<Vec<u64>>>::new();
    loop {
        let mut ready = Vec::new();
        for (rank, program) in schedule.programs.iter().enumerate() {
            for (number, lane) in program.lanes.iter().enumerate() {
                let Some(step) = lane.steps.get(next[rank][number]) else { continue };
                let wire = |from: usize, to: usize| {
                    wires.get(&(from, to, lane.channel, lane.connection)).map_or(0, VecDeque::len)
                };
                let free = !step.op.sends() || wire(rank, lane.send_to.unwrap().index()) < slots;
                let come = !step.op.receives() || wire(lane.recv_from.unwrap().index(), rank) > 0;
                let after =
                    step.after.iter().all(|a| next[rank][a.lane as usize] > a.step as usize);
                if free && come && after {
                    ready.push((rank, number));
                }
            }
        }
        if ready.is_empty() {
            break;
        }
        let (rank, number) = ready[seed.below(ready.len())];
        let lane = &schedule.programs[rank].lanes[number];
        let step = &lane.steps[next[rank][number]];
        next[rank][number] += 1;
        let layout = layout(rank, schedule.programs[rank].scratch);
        let memory = &mut memories[rank];
        let read = |memory: &Vec<Vec<u64>>, slice: Slice| {
            let (place, elements) = layout.place(slice);
            memory[place][elements].to_vec()
        };
        let received = step.op.receives().then(|| {
            let from = lane.recv_from.unwrap().index();
            wires
                .get_mut(&(from, rank, lane.channel, lane.connection))
                .unwrap()
                .pop_front()
                .unwrap()
        });
        let add = |a: Vec<u64>, b: Vec<u64>| {
            a.into_iter().zip(b).map(|(a, b)| a.wrapping_add(b)).collect()
        };
        let result: Vec<u64> = match step.op {
            Op::Copy | Op::Send => read(memory, step.src),
            Op::Reduce => add(read(memory, step.dst), read(memory, step.src)),
            Op::Recv | Op::RecvCopySend => received.unwrap(),
            _ => add(read(memory, step.src), received.unwrap()),
        };
        if step.op.writes() {
            let (place, elements) = layout.place(step.dst);
            memory[place][elements].copy_from_slice(&result);
        }
        if step.op.sends() {
            let to = lane.send_to.unwrap().index();
            wires.entry((rank, to, lane.channel, lane.connection)).or_default().push_back(result);
        }
    }
    let finished = (0..n).all(|rank| {
        (0..next[rank].len())
            .all(|lane| next[rank][lane] == schedule.programs[rank].lanes[lane].steps.len())
    });
    finished.then(|| {
        memories
            .into_iter()
            .enumerate()
            .map(|(rank, memory)| {
                let (place, elements) = layout(rank, schedule.programs[rank].scratch).output();
                memory[place][elements].to_vec()
            })
            .collect()
    })
}

/// Sums of these tell whose elements are in them, and which.
fn value(rank: usize, element: usize) -> u64 {
    (1 << (8 * rank)) * (element as u64 + 1)
}

/// The result by the definition of the collective, where `rank` has one.
fn expected(schedule: &Schedule, rank: usize) -> Vec<u64> {
    let (n, count) = (schedule.programs.len(), schedule.count);
    let shard = |rank: usize| count * rank / n..count * (rank + 1) / n;
    let root = schedule.root.map(|root| root.index());
    let sum = |element| (0..n).map(|rank| value(rank, element)).sum();
    let gathered =
        || (0..n).flat_map(|of| (0..shard(of).len()).map(move |e| value(of, e))).collect();
    match schedule.collective {
        Collective::AllReduce => (0..count).map(sum).collect(),
        Collective::Reduce if root == Some(rank) => (0..count).map(sum).collect(),
        Collective::ReduceScatter => shard(rank).map(sum).collect(),
        Collective::Broadcast => (0..count).map(|e| value(root.unwrap(), e)).collect(),
        Collective::Scatter => shard(rank).map(|e| value(root.unwrap(), e)).collect(),
        Collective::AllGather => gathered(),
        Collective::Gather if root == Some(rank) => gathered(),
        Collective::AllToAll => {
            (0..n).flat_map(|of| shard(rank).map(move |e| value(of, e))).collect()
        }
        Collective::SendRecv if (root.unwrap() + 1) % n == rank => {
            (0..count).map(|e| value(root.unwrap(), e)).collect()
        }
        _ => vec![],
    }
}

/// One small change, wherever the numbers point.
fn mutate(schedule: &mut Schedule, seed: &mut Seed) {
    let rank = seed.below(schedule.programs.len());
    let lanes = &mut schedule.programs[rank].lanes;
    if lanes.is_empty() {
        return;
    }
    let place = seed.below(lanes.len());
    let steps = &mut lanes[place].steps;
    if steps.is_empty() {
        return;
    }
    let at = seed.below(steps.len());
    let ops = [
        Op::Copy,
        Op::Reduce,
        Op::Send,
        Op::Recv,
        Op::RecvCopySend,
        Op::RecvReduceCopy,
        Op::RecvReduceSend,
        Op::RecvReduceCopySend,
    ];
    let buffers = [Input, Output, Scratch];
    match seed.below(12) {
        0 => drop(steps.remove(at)),
        1 => steps.insert(at, steps[at].clone()),
        2 => steps[at].src.offset = seed.below(6),
        3 => steps[at].dst.offset = seed.below(6),
        4 => steps[at].op = ops[seed.below(ops.len())],
        5 => steps[at].src.buffer = buffers[seed.below(3)],
        6 => steps[at].dst.buffer = buffers[seed.below(3)],
        7 | 8 => drop(steps[at].after.pop()),
        9 => {
            let other = seed.below(steps.len());
            steps.swap(at, other);
        }
        10 => {
            let lane = u32::try_from(seed.below(3)).unwrap();
            let step = u32::try_from(seed.below(3)).unwrap();
            steps[at].after.push(StepRef { lane, step });
        }
        _ => steps[at].src.count = seed.below(5),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Against execution on numbers: what passes computes the right thing in every order tried, and what is rejected
    /// for a deadlock does not finish.
    #[test]
    fn agrees_with_execution(
        n in 2_usize..5,
        count in 1_usize..13,
        form in 0_usize..11,
        mutations in 0_usize..3,
        slots in 1_usize..3,
        seed: u64,
    ) {
        let (mut sample, _) = samples(n, count).swap_remove(form);
        let mut seed = Seed(seed);
        for _ in 0..mutations {
            mutate(&mut sample, &mut seed);
        }
        match schedule(&sample, slots) {
            Ok(report) => {
                for placement in report.placements {
                    for _ in 0..4 {
                        let outputs = execute(&sample, slots, placement, &mut seed);
                        let outputs = outputs.expect("what passes finishes");
                        for (rank, output) in outputs.iter().enumerate() {
                            prop_assert_eq!(output, &expected(&sample, rank), "rank {}", rank);
                        }
                    }
                }
            }
            Err(ScheduleViolation::Deadlock { .. }) => {
                prop_assert!(execute(&sample, slots, Placement::OutOfPlace, &mut seed).is_none());
            }
            Err(_) => {}
        }
    }

    /// Losing or repeating a step that receives or sends never passes.
    #[test]
    fn lost_and_repeated_messages_are_found(
        n in 2_usize..6,
        count in 6_usize..20,
        form in 0_usize..11,
        twice: bool,
        seed: u64,
    ) {
        let (mut sample, slots) = samples(n, count).swap_remove(form);
        let mut seed = Seed(seed);
        let rank = seed.below(n);
        let lanes = &mut sample.programs[rank].lanes;
        prop_assume!(!lanes.is_empty());
        let lane = seed.below(lanes.len());
        let steps = &mut lanes[lane].steps;
        prop_assume!(steps.iter().any(|step| step.op.sends() || step.op.receives()));
        let at = seed.below(steps.len());
        prop_assume!(steps[at].op != Op::Copy);
        if twice { steps.insert(at, steps[at].clone()) } else { drop(steps.remove(at)) }
        prop_assert!(schedule(&sample, slots).is_err());
    }
}

#[test]
fn thousands_of_steps_are_quick() {
    // 8 ranks, 16 rings, 64 pieces of 15 steps.
    let pieces = 64;
    let one = ring_all_reduce(8, 64);
    let mut all = ring_all_reduce(8, 64 * 16 * pieces);
    for program in &mut all.programs {
        program.lanes.clear();
    }
    for channel in 0..16 {
        for (program, of_one) in all.programs.iter_mut().zip(&one.programs) {
            let mut lane = of_one.lanes[0].clone();
            lane.channel = channel;
            let shift = |slice: Slice, piece: usize| Slice {
                offset: slice.offset + 64 * (channel as usize * pieces + piece),
                ..slice
            };
            let steps = lane.steps.clone();
            lane.steps = (0..pieces)
                .flat_map(|piece| {
                    steps.iter().map(move |step| {
                        let mut step = step.clone();
                        (step.src, step.dst) = (shift(step.src, piece), shift(step.dst, piece));
                        step
                    })
                })
                .collect();
            program.lanes.push(lane);
        }
    }
    let report = passes(&all, 2);
    assert_eq!(report.steps, 8 * 16 * pieces * 15);
}
