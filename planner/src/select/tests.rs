use proptest::prelude::*;

use super::*;
use crate::check::sample::{both, dgx1v, topology};

fn gpus(indices: &[u32]) -> Vec<GpuIndex> {
    indices.iter().copied().map(GpuIndex).collect()
}

#[track_caller]
fn selected(topology: &Topology, free: &[u32], count: usize) -> Selection {
    select(topology, count, Some(&gpus(free)), LinkPolicy::Auto).unwrap()
}

/// Four pairs of GPUs, each joined by a bridge; one switch joins them all, slowly.
fn four_pairs() -> Topology {
    let bridges = [(0, 1, 100), (2, 3, 100), (4, 5, 100), (6, 7, 100)];
    topology(8, 1, both(bridges.into_iter().chain((0..8).map(|gpu| (gpu, 8, 10)))))
}

/// Asking for one GPU four times leaves two pairs whole for who asks for two.
#[test]
fn singles_do_not_break_up_pairs() {
    let machine = four_pairs();
    let mut free: Vec<u32> = (0..8).collect();
    for _ in 0..4 {
        let taken = selected(&machine, &free, 1).best.gpus[0];
        free.retain(|gpu| *gpu != taken.0);
    }
    assert_eq!(free, [4, 5, 6, 7]);
    assert_eq!(selected(&machine, &free, 2).best.gpus, gpus(&[4, 5]));
    assert_eq!(selected(&machine, &[1, 2, 4, 6, 7], 2).best.gpus, gpus(&[6, 7]));
    // Three of five: there is an answer.
    assert_eq!(selected(&machine, &[1, 2, 3, 4, 6], 3).best.gpus.len(), 3);
}

#[test]
fn the_board_of_eight() {
    let machine = dgx1v();
    let all: Vec<u32> = (0..8).collect();
    for (count, wanted) in [(2, &[0, 3][..]), (4, &[0, 1, 2, 3]), (8, &all)] {
        let selection = selected(&machine, &all, count);
        assert_eq!(selection.best.gpus, gpus(wanted), "{count}");
        assert!(selection.exhaustive);
        assert_eq!(selection.best.gpus.len() + selection.left.len(), 8);
    }
    // The halves of the board are worth the same, and the lower is given.
    let half = selected(&machine, &all, 4);
    assert_eq!(half.alternatives[0].gpus, gpus(&[4, 5, 6, 7]));
    assert_eq!(half.alternatives[0].worth, half.best.worth);
}

#[test]
fn what_cannot_be_selected() {
    let machine = dgx1v();
    let error = |count, free: Option<&[u32]>| {
        let free = free.map(gpus);
        select(&machine, count, free.as_deref(), LinkPolicy::Auto).unwrap_err().to_string()
    };
    for (count, free, wanted) in [
        (0, None, "no GPU is asked for"),
        (9, None, "9 GPUs are asked for, and 8 are free"),
        (2, Some(&[5][..]), "2 GPUs are asked for, and 1 are free"),
        (1, Some(&[5, 5]), "GPU5 is named twice"),
        (1, Some(&[9]), "host 0 has no GPU9; it has GPU0 to GPU7"),
    ] {
        assert_eq!(error(count, free), wanted);
    }
}

fn machines() -> impl Strategy<Value = Topology> {
    (3_usize..9, 0_usize..3).prop_flat_map(|(ranks, switches)| {
        let nodes = ranks + switches;
        let link = (0..nodes, 0..nodes, 1_u64..5);
        proptest::collection::vec(link, ranks..3 * nodes).prop_map(move |links| {
            topology(ranks, switches, both(links.into_iter().filter(|(a, b, _)| a != b)))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Leaving out bounds that cannot win changes nothing; exchanges end at a set no better, and honest about it.
    #[test]
    fn shortcuts_change_nothing(machine in machines(), count in 1_usize..9) {
        let ranks = machine.gpus().len();
        prop_assume!(count <= ranks);
        let run = |sets, bounds| within(&machine, count, None, LinkPolicy::Auto, sets, bounds).unwrap();
        let full = run(u64::MAX, usize::MAX);
        let pruned = run(u64::MAX, 0);
        prop_assert_eq!(&full.best, &pruned.best);
        let exchanged = run(0, 0);
        prop_assert!(exchanged.best.worth <= full.best.worth);
        prop_assert!(!exchanged.exhaustive);
        prop_assert!(full.alternatives.iter().all(|other| other.worth <= full.best.worth));
    }

    #[test]
    fn sets_are_counted(of in 1_usize..12, count in 1_usize..12) {
        prop_assume!(count <= of);
        let mut set: Set = (0..count).collect();
        let mut sets = 1;
        while advance(&mut set, of) {
            sets += 1;
        }
        prop_assert_eq!(sets, binomial(of, count));
    }
}
