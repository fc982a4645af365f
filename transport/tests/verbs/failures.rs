//! NICs that fail under a group: who says what of it, that every rank ends, and that nothing is left.

use std::sync::Barrier;

use topology::Rank;
use transport::{Communicator, ReduceOp};

use crate::double::{Double, over};
use crate::group::Group;

/// NICs give up after 3 times 67 ms.
const SOON: &[(&str, &str)] =
    &[("ib_timeout", "14"), ("ib_retry_cnt", "2"), ("timeout_ms", "20000")];

/// They send again for 3 times half a second, so that a busy machine does not end what came back in time.
const PATIENT: &[(&str, &str)] =
    &[("ib_timeout", "17"), ("ib_retry_cnt", "2"), ("timeout_ms", "20000")];

fn sum(group: &mut Communicator, count: usize) -> Result<(), String> {
    let ranks = i64::try_from(group.ranks()).expect("few ranks");
    let mut data = vec![1_i64; count];
    group.all_reduce(&mut data, ReduceOp::Sum).map_err(|error| transport::with_causes(&error))?;
    assert!(data.iter().all(|element| *element == ranks), "a wrong result");
    Ok(())
}

/// One operation that succeeds; then something happens, and another. What each rank said of that.
fn struck(
    double: &Double,
    ranks: u32,
    settings: &'static [(&'static str, &'static str)],
    faults: &str,
) -> Vec<Option<String>> {
    let group = Group { ranks, nics: 1, settings };
    let meet = Barrier::new(ranks as usize);
    let results = group.each(|group| {
        sum(group, 100).expect("nothing is wrong yet");
        meet.wait();
        if group.rank() == Rank(0) {
            double.set_faults(faults);
        }
        meet.wait();
        sum(group, 30_000).err()
    });
    double.set_faults("");
    results.into_iter().map(|result| result.expect("a group")).collect()
}

/// Every rank fails, and some rank's words have all of these.
#[track_caller]
fn all_fail(test: &str, variables: &[(&str, &str)], faults: &str, words: &[&str]) {
    for (case, ranks) in [("2", 2), ("3", 3)] {
        let variables = [&[("DEVICES", case)][..], variables].concat();
        over(test, case, &variables, |double| {
            let said = struck(double, ranks, SOON, faults);
            println!("{said:#?}");
            assert!(said.iter().all(Option::is_some), "{said:?}");
            let has = |said: &&String| words.iter().all(|words| said.contains(words));
            assert!(said.iter().flatten().any(|said| has(&said)), "{words:?} in {said:#?}");
            double.nothing_left();
        });
    }
}

macro_rules! fails {
    ($($name:ident: $variables:expr, $faults:literal, $words:expr;)*) => {
        $(#[test]
        fn $name() {
            all_fail(concat!("failures::", stringify!($name)), &$variables, $faults, &$words);
        })*
    };
}

fails! {
    a_refused_key_names_both_ends: [], "remote-access:device=0,peer=1,times=1",
        ["rank 1", "remote access error", "status 10", "mlx5_0 port 1 (GID fe80::", "to mlx5_1 port 1 (GID fe80::", "vendor error 0x8a"];
    memory_that_is_not_registered: [], "local-protection:device=0,times=1",
        ["local protection error", "status 4", "mlx5_0 port 1"];
    a_receiver_that_is_not_ready: [], "complete:device=1,status=13,times=1",
        ["receiver-not-ready retry counter exceeded", "status 13", "mlx5_1 port 1"];
    an_operation_that_the_peer_cannot_do: [], "complete:device=1,status=11,times=1",
        ["remote operation error", "status 11"];
    a_fatal_completion: [], "complete:device=0,status=19,times=1", ["fatal error", "status 19"];
    an_error_that_has_no_words: [], "complete:device=0,status=23,times=1", ["does not know (status 23)"];
    a_peer_that_does_not_answer: [], "cut:device=0,peer=1",
        ["transport retry counter exceeded", "status 12", "mlx5_0 port 1", "mlx5_1"];
    a_port_that_stays_down: [], "port-down:device=1", ["mlx5_1 port 1 is down"];
    a_lid_that_changes: [], "lid-change:device=1", ["mlx5_1 port 1 has another LID"];
    a_gid_that_goes: [("LINK_LAYER", "roce")], "gid-change:device=1",
        ["mlx5_1 port 1 has GID ::ffff:10.0.1.2 at index 3 no more"];
    a_device_that_fails: [], "device-fatal:device=1", ["mlx5_1", "the device failed or was removed"];
    a_device_that_is_pulled_out: [], "gone:device=0", ["mlx5_0", "the device failed or was removed"];
    a_device_that_gives_no_events: [], "eio:device=0", ["mlx5_0", "the device gives no events"];
    a_queue_pair_that_fails: [], "qp-fatal:device=0,after=0", ["mlx5_0", "a queue pair failed (event 1)"];
    a_post_that_is_refused: [], "call:post_send,device=1,times=1,code=12", ["mlx5_1", "takes no more work"];
    a_queue_that_cannot_be_polled: [], "call:poll_cq,device=0,code=5", ["mlx5_0"];
}

#[test]
fn a_port_that_is_back_in_time_ends_nothing() {
    for variables in [&[("LINK_LAYER", "ib")][..], &[("LINK_LAYER", "roce")]] {
        let test = "failures::a_port_that_is_back_in_time_ends_nothing";
        over(test, variables[0].1, variables, |double| {
            let said = struck(double, 2, PATIENT, "port-down:device=1,for=60");
            assert_eq!(said, [None, None]);
            assert!(double.report()["unanswered"].as_u64() > Some(0));
            // What changes nothing ends nothing either: subnet manager, partitions, registrations.
            for kind in [12, 13, 17] {
                let said = struck(double, 2, PATIENT, &format!("event:device=0,type={kind}"));
                assert_eq!(said, [None, None], "event {kind}");
            }
            double.nothing_left();
        });
    }
}
