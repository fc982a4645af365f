//! The groups of data, tensor and pipeline parallelism: eight ranks in a grid of 2 x 2 x 2, a group along each dimension.

use super::*;

/// Ranks along one dimension of the grid: those that differ in one bit.
fn along(bit: u32) -> Vec<Vec<Rank>> {
    let pair = |rank: u32| vec![Rank(rank), Rank(rank | 1 << bit)];
    (0..8).filter(|rank| rank & (1 << bit) == 0).map(pair).collect()
}

#[test]
fn groups_along_every_dimension_work_at_once() {
    let options = |_| Options::for_all();
    group(&crate::even::full_plan(8, 1), options, |made, rank| {
        let mut world = made.unwrap();
        // Each dimension with a plan of its own kind.
        let plans: [fn(u32) -> Plan; 3] =
            [|n| ring_plan(n, 2), |n| tree_plan(n, 1, 2), |n| crate::even::full_plan(n, 1)];
        let mut groups: Vec<Communicator> = (0..3)
            .zip(plans)
            .map(|(bit, plan)| {
                let lists = along(bit);
                let made = world.subgroup(
                    &lists,
                    |ranks| {
                        assert!(lists.contains(&ranks.to_vec()), "{ranks:?}");
                        plan(u32::try_from(ranks.len()).unwrap())
                    },
                    Options::default(),
                );
                made.unwrap().expect("every rank is in a list")
            })
            .collect();
        for round in 0..3 {
            let count = [3, 5_000, 200_000][round];
            // One in each group and one in the world, all in flight; waited for in another order.
            let own = |factor: i64| vec![factor * i64::from(rank.0); count];
            let whole = world.start_all_reduce(own(1), ReduceOp::Sum).unwrap();
            let parts: Vec<_> = groups
                .iter_mut()
                .zip(1..)
                .map(|(group, factor)| group.start_all_reduce(own(factor), ReduceOp::Sum).unwrap())
                .collect();
            for (bit, (group, part)) in groups.iter_mut().zip(parts).enumerate().rev() {
                let (data, _) = group.wait(part).unwrap();
                let partner = i64::from(rank.0 ^ (1 << bit));
                let wanted = (i64::from(rank.0) + partner) * i64::try_from(bit + 1).unwrap();
                assert!(data.iter().all(|found| *found == wanted), "rank {rank}, dimension {bit}");
            }
            let (data, _) = world.wait(whole).unwrap();
            assert!(data.iter().all(|found| *found == 28));
        }
    });
}

#[test]
fn groups_need_not_be_of_one_size_nor_hold_everybody() {
    let options = |_| Options::for_all();
    group(&crate::even::full_plan(5, 1), options, |made, rank| {
        let mut world = made.unwrap();
        // In the order of the list: its first is rank 0 of the group.
        let lists = [vec![Rank(4), Rank(0), Rank(2)], vec![Rank(1)]];
        let plan = |ranks: &[Rank]| ring_plan(u32::try_from(ranks.len()).unwrap(), 1);
        let made = world.subgroup(&lists, plan, Options::default()).unwrap();
        let place = made.as_ref().map(|group| (group.rank().0, group.ranks()));
        let wanted = [Some((1, 3)), Some((0, 1)), Some((2, 3)), None, Some((0, 3))];
        assert_eq!(place, wanted[rank.index()]);
        if let Some(mut group) = made {
            let mut data = [1_i32];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data[0], i32::try_from(group.ranks()).unwrap());
        }
        let twice = [vec![Rank(0), Rank(1)], vec![Rank(1)]];
        let error = world.subgroup(&twice, plan, Options::default()).unwrap_err().to_string();
        assert_eq!(error, "a rank is in two lists, or twice in one");
    });
}
