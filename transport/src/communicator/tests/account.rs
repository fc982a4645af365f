//! What a group tells of its operations.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;

fn watched(_: Rank) -> Options {
    Options { observe: true, ..Options::for_all() }
}

#[test]
fn totals_are_of_what_was_done() {
    group(&crate::even::full_plan(3, 1), watched, |made, _| {
        let mut communicator = made.unwrap();
        for count in [4, 4, 300_000] {
            communicator.all_reduce(&mut vec![1.0_f32; count], ReduceOp::Sum).unwrap();
        }
        communicator.broadcast(&mut [0_u8; 10], Rank(0)).unwrap();
        let totals: BTreeMap<_, _> = communicator
            .totals()
            .into_iter()
            .map(|(collective, path, totals)| ((collective, path), totals))
            .collect();
        let small = totals[&(Collective::AllReduce, Path::Flat)];
        assert_eq!((small.operations, small.bytes), (2, 32));
        assert!(small.longest <= small.elapsed && !small.longest.is_zero());
        let large = totals[&(Collective::AllReduce, Path::Staged)];
        assert_eq!((large.operations, large.bytes), (1, 1_200_000));
        assert_eq!(totals[&(Collective::Broadcast, Path::Flat)].operations, 1);
        assert_eq!(totals.len(), 3);
    });
}

#[test]
fn nothing_is_kept_unless_asked_for() {
    group(
        &crate::even::full_plan(2, 1),
        |_| Options::for_all(),
        |made, _| {
            let mut communicator = made.unwrap();
            communicator.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap();
            assert!(communicator.totals().is_empty() && communicator.trace().is_none());
            assert_eq!(communicator.attribute().unwrap().operations, 0);
        },
    );
}

/// Only operations that all ranks end together count, each once, and every rank hears the same.
#[test]
fn who_was_waited_for_is_the_same_on_every_rank() {
    let told = group(&crate::even::full_plan(3, 1), watched, |made, _| {
        let mut communicator = made.unwrap();
        for count in [1, 1000, 100_000] {
            communicator.all_reduce(&mut vec![1.0_f32; count], ReduceOp::Sum).unwrap();
            communicator.broadcast(&mut vec![0_u8; count], Rank(1)).unwrap();
        }
        communicator.barrier().unwrap();
        let first = communicator.attribute().unwrap();
        communicator.all_reduce(&mut [1_i32], ReduceOp::Max).unwrap();
        (first, communicator.attribute().unwrap())
    });
    let (first, second) = &told[0];
    assert_eq!((first.operations, second.operations), (4, 1), "the second time only what is new");
    let mut ranks: Vec<Rank> = first.ranks.iter().map(|late| late.rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [Rank(0), Rank(1), Rank(2)]);
    assert!(first.ranks.iter().map(|late| late.times_last).sum::<u64>() <= 4);
    assert!(told.iter().all(|other| other == &told[0]));
}

/// What the trace-event format demands of the two kinds of events there are: complete ones ("X") and metadata ("M").
fn check_event(event: &Value) {
    assert!(event["name"].is_string() && event["cat"].is_string(), "{event}");
    assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
    assert!(event["ts"].as_f64().is_some_and(|ts| ts >= 0.0), "{event}");
    assert!(event["args"].is_object(), "{event}");
    match event["ph"].as_str().unwrap() {
        "X" => assert!(event["dur"].as_f64().is_some_and(|dur| dur >= 0.0), "{event}"),
        "M" => assert!(event["args"]["name"].is_string(), "{event}"),
        other => panic!("an event of phase {other}"),
    }
}

#[test]
fn a_trace_is_in_the_trace_event_format() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = format!("{}/trace.json", folder.path().display());
    let options = |_| Options { trace: Some(pattern.clone()), ..Options::for_all() };
    let texts = group(&crate::even::full_plan(2, 1), options, |made, _| {
        let mut communicator = made.unwrap();
        let flights: Vec<_> = (0..4)
            .map(|i| {
                let buffer = vec![1.0_f32; 50_000 * (4 - i)];
                communicator.start_all_reduce(buffer, ReduceOp::Sum).unwrap()
            })
            .collect();
        for flight in flights {
            communicator.wait(flight).unwrap();
        }
        communicator.barrier().unwrap();
        let mut text = Vec::new();
        communicator.trace().unwrap().write(&mut text).unwrap();
        text
    });
    for (rank, text) in texts.iter().enumerate() {
        let trace: Value = serde_json::from_slice(text).unwrap();
        assert_eq!(trace["displayTimeUnit"], "ns");
        assert_eq!(trace["otherData"]["left_out"], 0);
        let events = trace["traceEvents"].as_array().unwrap();
        events.iter().for_each(check_event);
        let mut slices: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        let names: Vec<&str> = slices.iter().map(|slice| slice["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), 5);
        assert_eq!(names.iter().filter(|name| **name == "all-reduce").count(), 4);
        assert_eq!(names[4], "barrier");
        assert!(events.iter().all(|event| event["pid"] == rank));
        // Slices of one lane lie one after the other: viewers show no others.
        slices.sort_by(|a, b| a["ts"].as_f64().partial_cmp(&b["ts"].as_f64()).unwrap());
        let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
        for slice in slices {
            let (start, lane) = (slice["ts"].as_f64().unwrap(), slice["tid"].as_u64().unwrap());
            let end = ends.insert(lane, start + slice["dur"].as_f64().unwrap());
            // To the nanosecond that doubles keep.
            assert!(end.is_none_or(|end| end <= start + 1e-3), "{slice} begins before {end:?}");
        }
        assert!(ends.len() > 1, "operations in flight at once are on lanes of their own");
    }
    // Both ranks are of one process here: the second file has a number.
    let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let files: Vec<_> = files.collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        serde_json::from_slice::<Value>(&std::fs::read(file).unwrap()).unwrap();
    }
}
