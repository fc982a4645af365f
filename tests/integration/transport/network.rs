//! Groups on two hosts whose network is slow, loses packets, or is cut.

use super::*;
use crate::hosts::Hosts;

/// Four ranks, the first two on one host and the others on the other.
fn start(hosts: &Hosts, adjust: impl Fn(&mut Value)) -> Group {
    Group::start(4, "ring", |rank, part| {
        part["host"] = json!(hosts.names()[usize::from(rank > 1)]);
        adjust(part);
        true
    })
}

/// A queue that holds so few packets that bursts lose some.
#[test]
fn a_network_that_loses_packets_loses_no_element() {
    let Some(hosts) = Hosts::new() else { return };
    if !hosts.shape("tbf rate 200mbit burst 4kb limit 30kb") {
        return;
    }
    let counts = [1_i64, 1000, 1 << 18];
    let group = start(&hosts, |part| part["counts"] = json!(counts));
    for process in &group.processes {
        for count in counts {
            let said = process.next("wrong");
            assert_eq!((said["count"].as_i64(), said["wrong"].as_i64()), (Some(count), Some(0)));
        }
        process.next("done");
    }
    assert!(hosts.dropped() > 0, "no packet was lost");
}

/// A message that the system takes in parts: the rest goes on its way while its sender waits for the next one. Where it does not, every
/// rank of a ring waits for the one before it.
#[test]
fn messages_larger_than_the_systems_buffers_arrive() {
    let Some(hosts) = Hosts::new() else { return };
    hosts.buffer(4096);
    let counts = [1_i64, 1 << 18];
    for plan in ["ring", "tree"] {
        let group = Group::start(4, plan, |rank, part| {
            part["host"] = json!(hosts.names()[usize::from(rank > 1)]);
            part["counts"] = json!(counts);
            part["timeout_ms"] = json!(20_000);
            true
        });
        for process in &group.processes {
            for count in counts {
                let said = process.next("wrong");
                let found = (said["count"].as_i64(), said["wrong"].as_i64());
                assert_eq!(found, (Some(count), Some(0)), "{plan}");
            }
            process.next("done");
        }
    }
}

/// In the middle of an operation. Neither side can know whether the other lives, and neither is most: no two groups come of one.
#[test]
fn a_cut_network_ends_the_group_on_both_sides() {
    let Some(hosts) = Hosts::new() else { return };
    // The second operation takes some ten seconds.
    if !hosts.shape("tbf rate 20mbit burst 16kb limit 100kb") {
        return;
    }
    let group = start(&hosts, |part| {
        part["counts"] = json!([10, 4 << 20]);
        part["timeout_ms"] = json!(2000);
        part["join_timeout_ms"] = json!(12_000);
        part["shrinks"] = json!(true);
    });
    for process in &group.processes {
        assert_eq!(process.next("wrong")["wrong"], 0);
    }
    hosts.cut();
    for (rank, process) in group.processes.iter().enumerate() {
        let error = process.text("failed");
        assert!(error.contains(" in all-reduce number 1, channel "), "rank {rank}: {error}");
        assert!(error.contains("did nothing for 2s") || error.contains("is lost"), "{error}");
        let other_side = if rank > 1 { ["rank 0 ", "rank 1 "] } else { ["rank 2 ", "rank 3 "] };
        assert!(other_side.iter().any(|name| error.starts_with(name)), "rank {rank}: {error}");
    }
    for (rank, process) in group.processes.iter().enumerate() {
        let shrunk = process.text("shrunk");
        assert!(shrunk.contains("may live behind a cut network"), "rank {rank}: {shrunk}");
    }
}

/// The others go on without it.
#[test]
fn a_group_on_two_hosts_goes_on_without_a_rank_that_was_killed() {
    let Some(hosts) = Hosts::new() else { return };
    let mut group = start(&hosts, |part| {
        part["counts"] = json!([1000, 1 << 20]);
        part["shrinks"] = json!(true);
        if part["rank"] == 1 {
            part["halt_at"] = json!(5);
        }
    });
    group.processes[1].next("wrong");
    group.processes[1].next("halted");
    group.processes[1].child.kill().unwrap();
    for rank in [0, 2, 3] {
        assert_eq!(group.processes[rank].next("wrong")["wrong"], 0);
        assert!(group.processes[rank].text("failed").starts_with("rank 1 on "));
        assert_eq!(group.processes[rank].next("shrunk")["shrunk"], json!([0, 2, 3]));
    }
}
