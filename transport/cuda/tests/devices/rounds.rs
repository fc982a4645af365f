//! Plans that go in rounds: everybody with everybody, halving and doubling, Bruck's and PAT's, trees of any root, and one way inside hosts
//! with another between them.

use half::bf16;
use topology::plan::{ChannelSet, Pattern, SizeChoice};
use topology::{Algorithm, Channel, Collective, Fraction, HostId, Plan, Protocol, Rank};
use transport::ReduceOp;
use transport::even::full_plan;
use transport::schedule::select;
use transport_cuda::Options;

use crate::collectives::Side;
use crate::double::{is_child, over};
use crate::group::{group, options};

/// Messages of more than the slots hold, fewer elements than ranks, and none.
const COUNTS: [usize; 5] = [0, 1, 7, 1003, 9001];

const SHARDED: [Collective; 3] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];

/// An even plan that does some collectives in rounds, whatever their size.
fn in_rounds(ranks: u32, algorithm: Algorithm, collectives: &[Collective]) -> Plan {
    let mut plan = full_plan(ranks, 1);
    let round = Channel {
        index: 0,
        pattern: Pattern::Rounds,
        collectives: collectives.to_vec(),
        ranks: Vec::new(),
        root: None,
        nics: Vec::new(),
        share: Fraction::ONE,
        gbps: Fraction::ONE,
        edges: Vec::new(),
        reduce_edges: Vec::new(),
    };
    plan.alternatives.push(ChannelSet {
        algorithm,
        collectives: collectives.to_vec(),
        channels: vec![round],
    });
    for collective in collectives {
        let rows = &mut plan.collectives.get_mut(collective).unwrap().by_size;
        *rows = vec![SizeChoice {
            max_bytes: u64::MAX,
            algorithm,
            protocol: Protocol::Simple,
            channels: 1,
            predicted_ps: None,
        }];
    }
    for collective in collectives {
        let root = collective.has_root().then_some(Rank(0));
        let chosen = select(&plan, *collective, root, 4096).unwrap();
        assert!(chosen.iter().all(|c| c.channel.pattern == Pattern::Rounds), "{algorithm}");
    }
    plan
}

fn check(plan: &Plan, collectives: &[Collective], options: impl Fn(Rank) -> Options + Sync) {
    group(plan, options, |made, _| {
        let mut communicator = made.unwrap();
        let mut side = Side::new(&mut communicator);
        for (place, count) in COUNTS.into_iter().enumerate() {
            side.ahead = place % 3;
            for collective in collectives {
                match collective {
                    Collective::AllReduce => {
                        side.all_reduce::<f32>(count, ReduceOp::Avg);
                        side.all_reduce::<bf16>(count, ReduceOp::Max);
                        side.all_reduce::<i64>(count, ReduceOp::Prod);
                    }
                    Collective::AllGather => side.all_gather::<f32>(count),
                    Collective::ReduceScatter => side.reduce_scatter::<i32>(count, ReduceOp::Sum),
                    Collective::Broadcast => side.broadcast::<u8>(count),
                    _ => side.reduce::<f64>(count, ReduceOp::Min),
                }
            }
        }
    });
}

fn along(algorithm: Algorithm, collectives: &[Collective]) {
    for ranks in [2, 3, 4, 7] {
        check(&in_rounds(ranks, algorithm, collectives), collectives, |_| options());
    }
}

macro_rules! algorithms {
    ($($name:ident: $algorithm:ident $collectives:expr;)*) => {$(
        #[test]
        fn $name() {
            let test = concat!("rounds::", stringify!($name));
            over(test, &[], || along(Algorithm::$algorithm, &$collectives));
        }
    )*};
}

algorithms! {
    everybody_to_everybody: OneShot SHARDED[..1];
    direct_exchanges: Direct SHARDED;
    recursive_doubling: RecursiveDoubling SHARDED[..1];
    halving_and_doubling: HalvingDoubling SHARDED[..1];
    bruck: Bruck SHARDED;
    parallel_aggregated_trees: Pat SHARDED;
    trees_of_any_root: Tree [Collective::Broadcast, Collective::Reduce];
}

/// One way inside hosts, another between them: over peers' memory and over the hosts' links at once.
#[test]
fn two_hosts() {
    over("rounds::two_hosts", &[], || {
        let mut plan = in_rounds(4, Algorithm::Hierarchical, &SHARDED);
        plan.ranks.iter_mut().for_each(|place| place.host = HostId(place.rank.0 / 2));
        check(&plan, &SHARDED, |rank| Options {
            pretended_host: Some(format!("host {}", rank.0 / 2)),
            ..options()
        });
    });
}

/// As above with streams that are held up at random: a dependency between lanes that is missing shows with some.
#[test]
fn rounds_do_not_depend_on_who_is_ahead() {
    let test = "rounds::rounds_do_not_depend_on_who_is_ahead";
    for seed in ["3", "4"] {
        over(test, &[("TOPOD_CUDA_DOUBLE_SEED", seed)], || {
            for algorithm in [Algorithm::HalvingDoubling, Algorithm::Direct] {
                let plan = in_rounds(4, algorithm, &SHARDED[..1]);
                // One stream for all lanes, and one for each.
                for streams in [1, 8] {
                    let narrow = || Options { streams, ..options() };
                    group(
                        &plan,
                        |_| narrow(),
                        |made, _| {
                            let mut communicator = made.unwrap();
                            let mut side = Side::new(&mut communicator);
                            side.all_reduce::<f32>(2003, ReduceOp::Avg);
                        },
                    );
                }
            }
        });
        if is_child(test) {
            return;
        }
    }
}
