use alloc::collections::BTreeMap;

use proptest::prelude::*;
use topology::Topology;

use super::evaluate::Evaluator;
use super::*;
use crate::check::sample::{both, topology};
use crate::test_hosts::{copies, host, joined};

fn job(tp: usize, cp: usize, dp: usize, pp: usize) -> Job {
    Job { tp, cp, dp, pp, ep: 1 }
}

fn request(job: Job, model: &Model) -> MapRequest {
    let traffic = Traffic::new(&job, model, &Given::new());
    MapRequest { job, traffic, gpus: None, links: LinkPolicy::Auto }
}

fn mapped(fleet: &Fleet, job: Job) -> Mapping {
    map(fleet, &request(job, &Model::default())).unwrap()
}

/// Times of operations by their groups: as sets, or in order for a chain.
type Times = BTreeMap<(usize, Vec<Vec<usize>>), Option<(u64, u64)>>;

/// The least time of all permutations, by taking and putting back.
fn brute_force(fleet: &Fleet, request: &MapRequest) -> Option<StepTime> {
    fn place(
        evaluator: &mut Evaluator<'_>,
        taken: &mut Vec<usize>,
        times: &mut Times,
        best: &mut Option<StepTime>,
    ) {
        let ranks = evaluator.places.len();
        if taken.len() == ranks {
            let mut all = Vec::new();
            for operation in 0..evaluator.groups.len() {
                let chain = evaluator.traffic.operations[operation].motion == Motion::Chain;
                let gpus = |group: &Vec<usize>| {
                    let mut gpus: Vec<usize> = group.iter().map(|&rank| taken[rank]).collect();
                    if !chain {
                        gpus.sort_unstable();
                    }
                    gpus
                };
                let mut groups: Vec<Vec<usize>> =
                    evaluator.groups[operation].iter().map(gpus).collect();
                groups.sort_unstable();
                let time = *times.entry((operation, groups)).or_insert_with(|| {
                    evaluator.operation(operation, taken).ok().map(|time| time.known())
                });
                let Some(time) = time else { return };
                all.push(time);
            }
            let time = evaluator.step_of(&all);
            if best.as_ref().is_none_or(|best| time < *best) {
                *best = Some(time);
            }
            return;
        }
        for gpu in 0..ranks {
            if !taken.contains(&gpu) {
                taken.push(gpu);
                place(evaluator, taken, times, best);
                taken.pop();
            }
        }
    }
    let places = places(fleet, None).unwrap();
    let loader = Loader::new(fleet, request.links);
    let mut evaluator = Evaluator::new(loader, request.job, &request.traffic, places);
    let mut best = None;
    place(&mut evaluator, &mut Vec::new(), &mut Times::new(), &mut best);
    best
}

fn graphs() -> impl Strategy<Value = Topology> {
    (4_usize..7, 0_usize..2).prop_flat_map(|(ranks, switches)| {
        let ranks = if ranks == 5 { 4 } else { ranks };
        let nodes = ranks + switches;
        let link = (0..nodes, 0..nodes, 1_u64..5);
        proptest::collection::vec(link, nodes..3 * nodes).prop_map(move |links| {
            topology(ranks, switches, both(links.into_iter().filter(|(a, b, _)| a != b)))
        })
    })
}

/// Every way to write a number of ranks as tp, cp, dp, pp.
fn jobs(ranks: usize) -> Vec<Job> {
    let divides = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
    divides(ranks)
        .flat_map(|tp| {
            divides(ranks / tp).flat_map(move |cp| {
                divides(ranks / tp / cp).map(move |dp| job(tp, cp, dp, ranks / tp / cp / dp))
            })
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn few_ranks_equal_brute_force(graph in graphs(), pick in any::<prop::sample::Index>()) {
        let fleet = Fleet::of(&graph).unwrap();
        let jobs = jobs(fleet.gpus());
        let request = request(jobs[pick.index(jobs.len())], &Model::default());
        let best = brute_force(&fleet, &request);
        match map(&fleet, &request) {
            Ok(found) => {
                prop_assert_eq!(Some(&found.step), best.as_ref());
                prop_assert!(found.identity.is_none_or(|identity| found.step <= identity));
            }
            Err(_) => prop_assert_eq!(best, None),
        }
    }
}

/// On the boards, and with hosts of two.
#[test]
fn eight_ranks_equal_brute_force() {
    let boards = [joined(&[host("dgx1v")]), joined(&[host("pcie_switches")])];
    for (board, shape) in boards.iter().zip([job(2, 1, 2, 2), job(2, 1, 4, 1)]) {
        let fleet = Fleet::of(board).unwrap();
        assert_eq!(fleet.gpus(), 8);
        let request = request(shape, &Model::default());
        assert_eq!(Some(map(&fleet, &request).unwrap().step), brute_force(&fleet, &request));
    }
}

#[test]
fn never_worse_than_ranks_in_index_order() {
    let hosts = [copies("dgx_h100", 2), copies("dgx1v", 2), copies("pcie_switches", 2)];
    for fleet in hosts.iter().map(|hosts| Fleet::of(hosts).unwrap()) {
        for shape in [job(2, 2, 2, 2), job(1, 1, 4, 4), job(8, 1, 2, 1)] {
            let found = mapped(&fleet, shape);
            assert!(found.step <= found.identity.unwrap(), "{shape:?}");
        }
    }
}

/// Pairs of GPUs that two links join are given to tensor parallelism.
#[test]
fn tensor_groups_take_the_widest_links() {
    let fleet = Fleet::of(&joined(&[host("dgx1v")])).unwrap();
    let found = mapped(&fleet, job(2, 1, 4, 1));
    let tp = &found.axes[0];
    assert_eq!((tp.operation.axis, tp.tier, tp.groups), (Axis::Tp, Tier::GpuLinks, 4));
    assert_eq!(tp.axis_kbps.map(Fraction::floor), Some(40_000_000));
    assert!(found.step < found.identity.unwrap());
    assert!(found.exhaustive);
    assert_eq!(found.order.name, "tp-cp-ep-dp-pp");
    assert_eq!(found.order.megatron.as_deref(), Some("the default"));
    assert_eq!(found.order.visible.concat().len(), 8);
}

#[test]
fn hosts_hold_whole_tensor_groups() {
    let fleet = Fleet::of(&copies("dgx_h100", 4)).unwrap();
    let found = mapped(&fleet, job(8, 1, 2, 2));
    assert_eq!(found.axes[0].tier, Tier::GpuLinks);
    let rest: Vec<Tier> = found.axes[1..].iter().map(|axis| axis.tier).collect();
    assert_eq!(rest, [Tier::Rail, Tier::Rail]);
    assert_eq!(found.warnings, []);
    for rank in &found.ranks {
        assert_eq!(rank.rank / 8, rank.host);
        assert_eq!(rank.at.tp, usize::try_from(rank.gpu.0).unwrap());
    }
    assert!(!found.alternatives.is_empty());
    assert!(found.alternatives.iter().all(|other| other.step >= found.step));
}

#[test]
fn what_is_wrong_with_a_mapping_is_said() {
    let codes = |fleet: &Fleet, shape: Job| -> Vec<String> {
        mapped(fleet, shape).warnings.into_iter().map(|finding| finding.code).collect()
    };
    let fleet = Fleet::of(&copies("dgx_h100", 2)).unwrap();
    assert!(codes(&fleet, job(16, 1, 1, 1)).contains(&"tp-group-leaves-nvlink-domain".into()));
    let pcie = Fleet::of(&joined(&[host("pcie_switches")])).unwrap();
    assert!(codes(&pcie, job(2, 1, 4, 1)).contains(&"tp-group-leaves-nvlink-domain".into()));
    // A NIC at a lower rate than the others.
    let mut slow = host("dgx_h100");
    for nic in slow.nics.iter_mut().take(1) {
        nic.up = Some(true);
        nic.mbit = Some(100_000);
    }
    let fleet = Fleet::of(&joined(&[slow, host("dgx_h100")])).unwrap();
    let found = codes(&fleet, job(8, 1, 2, 1));
    assert!(found.contains(&"degraded-link-used".into()), "{found:?}");
}

#[test]
fn bubble_and_what_is_hidden() {
    let fleet = Fleet::of(&copies("dgx_h100", 2)).unwrap();
    let shape = job(4, 1, 2, 2);
    let unknown = map(&fleet, &request(shape, &Model::default())).unwrap();
    assert_eq!(unknown.step.bubble, Fraction::of(1, 8));
    assert_eq!((unknown.step.bubble_ps, unknown.step.step_ps), (None, None));
    assert_eq!(unknown.step.exposed_ps, unknown.step.communication_ps);
    let known =
        map(&fleet, &request(shape, &Model { tflops: Some(400), ..Model::default() })).unwrap();
    assert!(known.step.exposed_ps < known.step.communication_ps);
    assert!(known.step.step_ps.unwrap() > known.step.bubble_ps.unwrap());
}

#[test]
fn small_operations_wait_for_latency() {
    let fleet = Fleet::of(&copies("dgx_h100", 2)).unwrap();
    let shape = job(8, 1, 2, 1);
    let sensitivity = |bytes: u64| {
        let traffic = Traffic::new(&shape, &Model::default(), &[(Axis::Tp, bytes)].into());
        let request = MapRequest { traffic, ..request(shape, &Model::default()) };
        map(&fleet, &request).unwrap().axes[0].sensitivity()
    };
    assert_eq!(sensitivity(1 << 10), "latency");
    assert_eq!(sensitivity(1 << 30), "bandwidth");
}

#[test]
fn what_cannot_be_mapped() {
    let fleet = Fleet::of(&joined(&[host("dgx1v")])).unwrap();
    let error = |job: Job, gpus: Option<&[u32]>| {
        let gpus = gpus.map(|gpus| gpus.iter().copied().map(GpuIndex).collect());
        let request = MapRequest { gpus, ..request(job, &Model::default()) };
        map(&fleet, &request).unwrap_err().to_string()
    };
    assert!(error(job(3, 1, 1, 1), None).contains("3 ranks, and there are 8 GPUs"));
    assert_eq!(error(job(2, 1, 1, 1), Some(&[0, 9])), "host 0 has no GPU9");
    assert_eq!(error(job(2, 1, 1, 1), Some(&[1, 1])), "GPU1 is named twice");
    assert!(error(job(2, 1, 0, 1), None).contains("at least one rank"));
    let apart = topology(4, 0, both([(0, 1, 5), (2, 3, 5)]));
    let found = map(&Fleet::of(&apart).unwrap(), &request(job(4, 1, 1, 1), &Model::default()));
    assert!(matches!(found, Err(MapError::Apart(_))));
}

#[test]
fn named_gpus_alone() {
    let fleet = Fleet::of(&joined(&[host("dgx1v")])).unwrap();
    let gpus = [4, 5, 6, 7].map(GpuIndex).to_vec();
    let request =
        MapRequest { gpus: Some(gpus.clone()), ..request(job(2, 1, 2, 1), &Model::default()) };
    let found = map(&fleet, &request).unwrap();
    let mut used: Vec<GpuIndex> = found.ranks.iter().map(|rank| rank.gpu).collect();
    used.sort_unstable();
    assert_eq!(used, gpus);
}
