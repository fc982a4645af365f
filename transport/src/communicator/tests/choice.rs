//! Algorithms and protocols that were chosen, in groups at work.

use super::*;
use crate::error::Refusal;

fn chosen(setting: &'static str, value: &'static str) -> impl Fn(Rank) -> Options + Sync {
    move |_| {
        let mut options = Options::for_all();
        options.set(setting, value).unwrap();
        options
    }
}

/// The way that a small and a large all-reduce, and an all-to-all, take.
#[track_caller]
fn check(setting: &'static str, value: &'static str, ways: [Path; 3]) {
    let plan = crate::even::full_plan(2, 1);
    group(&plan, chosen(setting, value), |made, rank| {
        let mut communicator = made.unwrap();
        for (count, way) in [(4, ways[0]), (200_000, ways[1])] {
            let mut data: Vec<f32> = (0..count).map(|i| value_of(rank, i)).collect();
            let stats = communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(stats.path, way, "{setting}={value}, {count} elements");
            let wanted = |i| value_of(Rank(0), i) + value_of(Rank(1), i);
            assert!(data.iter().enumerate().all(|(i, found)| *found == wanted(i)));
        }
        let stats = communicator.all_to_all(&[1_u8, 2], &mut [0_u8; 2]).unwrap();
        assert_eq!(stats.path, ways[2], "{setting}={value}");
    });
}

fn value_of(rank: Rank, i: usize) -> f32 {
    value(rank, i)
}

#[test]
fn a_choice_decides_the_way() {
    let (plan, flat, staged) = (Path::Plan, Path::Flat, Path::Staged);
    check("algo", "ring,direct", [flat, staged, flat]);
    check("algo", "ring", [plan, plan, flat]);
    check("algo", "broadcast:ring", [flat, staged, flat]);
    check("proto", "LL", [flat, staged, flat]);
    check("proto", "Simple", [staged, staged, flat]);
}

#[test]
fn what_the_plan_has_not_is_refused_when_it_is_called() {
    group(&ring_plan(2, 1), chosen("algo", "tree"), |made, _| {
        let mut communicator = made.unwrap();
        let error = communicator.all_reduce(&mut [1_i32], ReduceOp::Sum).unwrap_err().to_string();
        assert_eq!(error, "algorithms 'tree' are allowed for all-reduce, and the plan has ring");
        communicator.barrier().unwrap();
    });
}

#[test]
fn ranks_that_choose_otherwise_do_not_come_together() {
    let options = |rank: Rank| {
        let mut options = Options::for_all();
        options.set("algo", if rank == Rank(0) { "ring" } else { "tree" }).unwrap();
        options
    };
    group(&ring_plan(2, 1), options, |made, _| {
        let Err(ConnectError::Refused(refusal)) = made else { panic!("they came together") };
        let Refusal::Differs { what, a_value, b_value, .. } = *refusal else { panic!("{refusal}") };
        assert_eq!(what, "choice");
        assert!(a_value.contains("'ring'") && b_value.contains("'tree'"), "{a_value} {b_value}");
    });
}

#[test]
fn an_interface_that_is_not_there_is_named_with_those_that_are() {
    let options = Options { interfaces: Some("=nowhere0".parse().unwrap()), ..Options::default() };
    let rendezvous = "file:///nonexistent/meet".parse().unwrap();
    let made = Communicator::new(&ring_plan(2, 1), Rank(0), &rendezvous, options);
    let error = made.unwrap_err().to_string();
    assert!(error.contains("no interface that is up is among '=nowhere0'; there are "), "{error}");
    assert!(error.contains("lo"), "{error}");
}

/// Over TCP, the loopback named as the interface.
#[test]
fn an_interface_that_is_named_carries_the_links() {
    let options = |_| Options {
        interfaces: Some("=lo".parse().unwrap()),
        transport: Transport::Tcp,
        ..Options::default()
    };
    group(&ring_plan(3, 1), options, |made, rank| {
        let mut data = [rank.0.cast_signed()];
        made.unwrap().all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [3]);
    });
}
