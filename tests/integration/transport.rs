//! Groups of real processes: this binary runs itself once per rank, so that ranks can be killed and stopped.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use planner::check::{self, ScheduleViolation};
use serde_json::{Value, json};
use topology::schedule::Blocks;
use topology::{Collective, Generation, Plan, Rank};
use transport::even::{pairs_plan, ring_plan, tree_plan};
use transport::schedule::{MIN_SLOTS, Sizing, schedule, schedule_uneven};
use transport::{Communicator, Options, Paths, ReduceOp, Rendezvous, Transport};

mod network;

/// How a rank finds its part.
const PART: &str = "TOPOD_TEST_RANK";
/// Begins every line of a rank that its parent reads; the rest is the test harness's.
const MARK: &str = "@rank ";
/// Far longer than anything here takes; only a hang gets there.
const HANG: Duration = Duration::from_secs(120);

fn plan(name: &str, ranks: u32) -> Plan {
    match name {
        "ring" => ring_plan(ranks, 2),
        "tree" => tree_plan(ranks, 2, 2),
        _ => panic!("no plan {name}"),
    }
}

/// Whole numbers, so that sums are exact in any order.
fn value(rank: u32, i: usize) -> f32 {
    let place = u16::try_from(i % 4093).unwrap();
    f32::from(place) + 5000.0 * f32::from(u16::try_from(rank).unwrap())
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// One rank of a group. Not a test of its own: the tests below run it.
#[test]
#[ignore = "run by the tests of this module, once per rank of a group"]
fn one_rank() {
    let part: Value = serde_json::from_str(&std::env::var(PART).unwrap()).unwrap();
    let number = |key: &str| part[key].as_u64().unwrap();
    let small = |key: &str| u32::try_from(number(key)).unwrap();
    let (rank, ranks) = (small("rank"), small("ranks"));
    let mut plan = plan(part["plan"].as_str().unwrap(), ranks);
    plan.topology.generation = Generation(number("generation"));
    plan.assumptions.extend(part["assumption"].as_str().map(str::to_owned));
    let rendezvous: Rendezvous = part["rendezvous"].as_str().unwrap().parse().unwrap();
    let halt_at = part["halt_at"].as_u64();
    let options = Options {
        timeout: Duration::from_millis(number("timeout_ms")),
        join_timeout: Duration::from_millis(number("join_timeout_ms")),
        transport: match part["transport"].as_str() {
            Some("shm") => Transport::Shm,
            Some("tcp") => Transport::Tcp,
            _ => Transport::Auto,
        },
        paths: if part["paths"] == "plan" { Paths::Plan } else { Paths::Auto },
        on_step: halt_at.map(|at| -> transport::StepHook {
            Box::new(move |step| {
                if step.step.operation == 1 && step.done as u64 == at {
                    say(&json!({ "halted": step.step.to_string() }));
                    loop {
                        std::thread::park();
                    }
                }
            })
        }),
        ..Options::default()
    };
    let mut communicator = match Communicator::new(&plan, Rank(rank), &rendezvous, options) {
        Ok(communicator) => communicator,
        Err(error) => return say(&json!({ "refused": error.to_string() })),
    };
    for count in part["counts"].as_array().unwrap() {
        let count = usize::try_from(count.as_u64().unwrap()).unwrap();
        let mut data: Vec<f32> = (0..count).map(|i| value(rank, i)).collect();
        match communicator.all_reduce(&mut data, ReduceOp::Sum) {
            Ok(stats) => {
                let of_ranks: f32 = (0..ranks).map(|r| value(r, 0)).sum();
                let factor = f32::from(u16::try_from(ranks).unwrap());
                let expect = |i: usize| value(0, i) * factor + of_ranks;
                let wrong = data.iter().enumerate().filter(|(i, v)| **v != expect(*i)).count();
                say(
                    &json!({ "count": count, "wrong": wrong, "us": u64::try_from(stats.elapsed.as_micros()).unwrap() }),
                );
            }
            Err(error) => {
                say(&json!({ "failed": error.to_string() }));
                if part["shrinks"] == true {
                    say(&json!({ "shrunk": shrink(&mut communicator, number("join_timeout_ms")) }));
                }
                return;
            }
        }
    }
    say(&json!({ "done": true }));
}

/// The ranks of a smaller group, in which an operation succeeds, or why there is none.
fn shrink(communicator: &mut Communicator, join_timeout_ms: u64) -> Value {
    let join_timeout = Duration::from_millis(join_timeout_ms);
    let mut left = Vec::new();
    let plan = |ranks: &[Rank]| {
        left = ranks.iter().map(|rank| rank.0).collect();
        ring_plan(u32::try_from(ranks.len()).unwrap(), 1)
    };
    match communicator.shrink(plan, Options { join_timeout, ..Options::default() }) {
        Ok(mut smaller) => {
            let mut ones = [1_i32; 3];
            smaller.all_reduce(&mut ones, ReduceOp::Sum).unwrap();
            assert_eq!(ones, [i32::try_from(left.len()).unwrap(); 3]);
            json!(left)
        }
        Err(error) => json!(error.to_string()),
    }
}

struct Process {
    child: Child,
    lines: Receiver<Value>,
}

impl Process {
    fn start(part: &Value) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = match part["host"].as_str() {
            Some(host) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", host]).arg(program);
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .args(["--exact", "transport::one_rank", "--ignored", "--nocapture"])
            .env(PART, part.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix(MARK) {
                    let _ = send.send(serde_json::from_str(said).unwrap());
                }
            }
        });
        Self { child, lines }
    }

    /// The next thing it says; a panic names what it is after a hang or an unexpected end.
    #[track_caller]
    fn next(&self, wanted: &str) -> Value {
        let line = self.lines.recv_timeout(HANG).unwrap_or_else(|e| panic!("no '{wanted}': {e}"));
        assert!(line.get(wanted).is_some(), "wanted '{wanted}', got {line}");
        line
    }

    #[track_caller]
    fn text(&self, wanted: &str) -> String {
        self.next(wanted)[wanted].as_str().unwrap().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Group {
    processes: Vec<Process>,
    /// Holds the rendezvous file while ranks meet.
    _folder: tempfile::TempDir,
}

impl Group {
    /// Starts `ranks` processes, those for which `adjust` gives a part.
    fn start(ranks: u32, plan: &str, mut adjust: impl FnMut(u32, &mut Value) -> bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let processes = (0..ranks)
            .filter_map(|rank| {
                let mut part = json!({
                    "rank": rank, "ranks": ranks, "plan": plan, "generation": 7,
                    "rendezvous": format!("file://{}/meet", folder.path().display()),
                    "timeout_ms": 60_000, "join_timeout_ms": 60_000, "counts": [],
                });
                adjust(rank, &mut part).then(|| Process::start(&part))
            })
            .collect();
        Self { processes, _folder: folder }
    }
}

/// Names in /dev/shm, and abstract sockets of processes that `pids` names: what a killed rank could leave behind.
fn leftovers(pids: &[u32]) -> BTreeSet<String> {
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let files = files.map(|f| f.file_name().to_string_lossy().into_owned());
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let ours = |line: &&str| pids.iter().any(|p| line.contains(&format!("@topod-transport-{p}-")));
    files
        .filter(|name| name.contains("topod"))
        .chain(sockets.lines().filter(ours).map(str::to_owned))
        .collect()
}

#[track_caller]
fn check_sizes(ranks: u32, plan: &str, transport: &str, counts: &[usize]) {
    let group = Group::start(ranks, plan, |_, part| {
        part["transport"] = json!(transport);
        part["counts"] = json!(counts);
        true
    });
    for (rank, process) in group.processes.iter().enumerate() {
        for count in counts {
            let line = process.next("wrong");
            assert_eq!(line["wrong"], 0, "rank {rank} of {ranks}, {count} elements");
            assert_eq!(line["count"], *count);
        }
        process.next("done");
    }
}

/// 8 B to 1 MiB, odd sizes among them.
const COUNTS: [usize; 9] = [2, 3, 16, 256, 1000, 4096, 16_384, 65_537, 262_144];
const MIB_64: usize = 16 << 20;

#[test]
fn two_ranks() {
    check_sizes(2, "ring", "shm", &[&COUNTS[..], &[MIB_64]].concat());
    check_sizes(2, "ring", "tcp", &[&COUNTS[..], &[MIB_64]].concat());
    check_sizes(2, "tree", "shm", &COUNTS);
    check_sizes(2, "tree", "tcp", &COUNTS);
}

#[test]
fn four_ranks() {
    check_sizes(4, "ring", "shm", &[&COUNTS[..], &[MIB_64 / 4]].concat());
    check_sizes(4, "ring", "tcp", &COUNTS);
    check_sizes(4, "tree", "shm", &[&COUNTS[..], &[MIB_64 / 4]].concat());
    check_sizes(4, "tree", "tcp", &COUNTS);
}

#[test]
fn eight_ranks() {
    check_sizes(8, "ring", "shm", &[&COUNTS[..], &[MIB_64]].concat());
    check_sizes(8, "ring", "tcp", &COUNTS);
    check_sizes(8, "tree", "shm", &COUNTS);
    check_sizes(8, "tree", "tcp", &COUNTS);
}

/// How a rank is taken out in the middle of an operation.
#[derive(Clone, Copy, PartialEq)]
enum Blow {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: it lives, and says nothing.
    Stop,
}

/// `victim` is struck after a few steps of the second operation; everybody else must name it.
#[track_caller]
fn strike(blow: Blow, ranks: u32, plan: &str, transport: &str, victim: u32) {
    // Over TCP there is but the one way.
    let ways: &[&str] = if transport == "shm" { &["auto", "plan"] } else { &["auto"] };
    for paths in ways {
        strike_on(blow, ranks, plan, transport, paths, victim);
    }
}

#[track_caller]
fn strike_on(blow: Blow, ranks: u32, plan: &str, transport: &str, paths: &str, victim: u32) {
    // A dead rank must be noticed long before this; a silent one cannot be before.
    let limit = Duration::from_secs(if blow == Blow::Kill { 60 } else { 2 });
    let mut group = Group::start(ranks, plan, |rank, part| {
        part["transport"] = json!(transport);
        part["paths"] = json!(paths);
        part["counts"] = json!([1000, 1 << 20]);
        part["timeout_ms"] = json!(u64::try_from(limit.as_millis()).unwrap());
        if rank == victim {
            part["halt_at"] = json!(5);
        }
        true
    });
    let pids: Vec<u32> = group.processes.iter().map(|p| p.child.id()).collect();
    for process in &group.processes {
        assert_eq!(process.next("wrong")["wrong"], 0);
    }
    let struck = &mut group.processes[victim as usize];
    struck.next("halted");
    let start = Instant::now();
    match blow {
        Blow::Kill => struck.child.kill().unwrap(),
        Blow::Stop => {
            let stop = format!("kill -STOP {}", struck.child.id());
            assert!(Command::new("sh").args(["-c", &stop]).status().unwrap().success());
        }
    }
    for (rank, process) in (0_u32..).zip(&group.processes) {
        if rank == victim {
            continue;
        }
        let error = process.text("failed");
        let what = match blow {
            Blow::Kill => " is lost: ",
            Blow::Stop => " did nothing for 2s",
        };
        assert!(error.starts_with(&format!("rank {victim} on ")), "rank {rank}: {error}");
        assert!(error.contains(what), "rank {rank}: {error}");
        assert!(error.contains("in all-reduce number 1, channel "), "rank {rank}: {error}");
        assert!(error.contains(&format!("(link {transport})")), "rank {rank}: {error}");
    }
    let slack = Duration::from_secs(15);
    let took = start.elapsed();
    assert!(took < slack, "{took:?}");
    drop(group);
    assert_eq!(leftovers(&pids), BTreeSet::new());
}

#[test]
fn a_killed_rank_is_named_by_all() {
    strike(Blow::Kill, 4, "ring", "shm", 2);
    strike(Blow::Kill, 4, "ring", "tcp", 2);
    strike(Blow::Kill, 8, "tree", "shm", 5);
    strike(Blow::Kill, 4, "tree", "tcp", 0);
    strike(Blow::Kill, 2, "ring", "shm", 0);
}

#[test]
fn a_stopped_rank_is_named_by_all() {
    strike(Blow::Stop, 6, "ring", "shm", 3);
    strike(Blow::Stop, 4, "ring", "tcp", 1);
    strike(Blow::Stop, 5, "tree", "shm", 0);
}

/// Groups run, and end as they should, with no room left in /dev/shm: in a mount namespace of their own with a tiny one.
#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn a_full_dev_shm_does_not_matter() {
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=4k none /dev/shm || exit 77; cat /dev/zero > /dev/shm/full 2>/dev/null; \
         exec '{}' --exact transport::two_ranks transport::a_killed_rank_is_named_by_all",
        program.display()
    );
    let ended = Command::new("unshare").args(["-m", "sh", "-c", &script]).output();
    match ended {
        Ok(ended) if ended.status.success() => {}
        // 77 is the script's own; 1 is unshare's where namespaces are not permitted.
        Ok(ended) if ended.stdout.is_empty() && matches!(ended.status.code(), Some(1 | 77)) => {
            eprintln!("skipped: this host permits no mount namespace");
        }
        Ok(ended) => panic!("{}", String::from_utf8_lossy(&ended.stdout)),
        Err(error) => eprintln!("skipped: unshare: {error}"),
    }
}

#[test]
fn a_rank_that_never_comes_is_named_by_all() {
    let group = Group::start(4, "ring", |rank, part| {
        part["join_timeout_ms"] = json!(6000);
        rank != 3
    });
    for process in &group.processes {
        assert_eq!(process.text("refused"), "rank 3 never came within 6s");
    }
    let group = Group::start(3, "ring", |rank, part| {
        part["join_timeout_ms"] = json!(6000);
        rank != 0
    });
    for process in &group.processes {
        let error = process.text("refused");
        assert!(error.starts_with("rank 0 never came within 6s: file://"), "{error}");
    }
}

#[test]
fn another_plan_or_generation_is_refused_by_all() {
    for (key, other, what) in [
        ("assumption", json!("another"), "plan digest"),
        ("generation", json!(8), "generation 7, rank 2 on "),
    ] {
        let group = Group::start(4, "ring", |rank, part| {
            if rank == 2 {
                part[key] = other.clone();
            }
            true
        });
        for process in &group.processes {
            let error = process.text("refused");
            assert!(error.starts_with("rank 0 on ") && error.contains("rank 2 on "), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }
}

#[test]
fn nothing_is_left_after_an_ordinary_end() {
    let mut group = Group::start(3, "ring", |_, part| {
        part["counts"] = json!([100]);
        true
    });
    let pids: Vec<u32> = group.processes.iter().map(|p| p.child.id()).collect();
    for process in &mut group.processes {
        process.next("wrong");
        process.next("done");
        assert!(process.child.wait().unwrap().success());
    }
    assert_eq!(leftovers(&pids), BTreeSet::new());
}

/// The planner's checker on the transport's schedules; neither uses anything of the other.
#[track_caller]
fn check_schedules(plan: &Plan, slots: usize) {
    for collective in [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
    ] {
        for count in [0, 1, 5, 64, 1000, 5003] {
            for slot_bytes in [128, 4096] {
                let sizing = Sizing::new(4, slot_bytes).unwrap();
                let ranks = u32::try_from(plan.ranks.len()).unwrap();
                let root = Some(Rank((ranks - 1).min(1)));
                let made = schedule(plan, collective, root, count, sizing).unwrap();
                if let Err(violation) = check::schedule(&made, slots) {
                    panic!(
                        "{collective}, {ranks} ranks, {count} elements, {slot_bytes} B slots: {violation}"
                    );
                }
            }
        }
    }
}

#[test]
fn direct_schedules_pass_the_checker_with_one_slot() {
    for ranks in [1, 2, 3, 4, 5, 8, 11] {
        for channels in [1, 3] {
            let plan = pairs_plan(ranks, channels);
            for count in [0, 1, 5, 64, 1000, 5003] {
                for slot_bytes in [128, 4096] {
                    let sizing = Sizing::new(4, slot_bytes).unwrap();
                    let root = Some(Rank((ranks - 1).min(1)));
                    let n = ranks as usize;
                    let blocks = (0..n * n).map(|i| count * (i % 3) / 2 + i % 2).collect();
                    let blocks = Blocks::new(n, blocks).unwrap();
                    let made = schedule_uneven(&plan, &blocks, sizing).unwrap();
                    check::schedule_uneven(&made, &blocks, 1).unwrap();
                    for (collective, count) in [
                        (Collective::Gather, count),
                        (Collective::Scatter, count),
                        (Collective::AllToAll, count * n),
                    ] {
                        let made = schedule(&plan, collective, root, count, sizing).unwrap();
                        check::schedule(&made, 1).unwrap_or_else(|violation| {
                            panic!("{collective}, {ranks} ranks, {count} elements: {violation}")
                        });
                    }
                }
            }
        }
    }
}

/// A block that goes astray is found.
#[test]
fn blocks_of_another_exchange_do_not_pass() {
    let sizing = Sizing::new(4, 4096).unwrap();
    let (sent, wanted) = ([3, 1, 2, 4], [3, 2, 1, 4]);
    let (sent, wanted) = (Blocks::new(2, sent.to_vec()), Blocks::new(2, wanted.to_vec()));
    let made = schedule_uneven(&pairs_plan(2, 1), &sent.unwrap(), sizing).unwrap();
    check::schedule_uneven(&made, &wanted.unwrap(), 1).unwrap_err();
}

#[test]
fn ring_schedules_pass_the_checker() {
    for ranks in [1, 2, 3, 4, 5, 6, 7, 8, 11] {
        check_schedules(&ring_plan(ranks, 1), MIN_SLOTS);
        check_schedules(&ring_plan(ranks, 3), MIN_SLOTS);
    }
}

#[test]
fn tree_schedules_pass_the_checker_with_one_slot() {
    for ranks in [1, 2, 3, 4, 5, 6, 7, 8, 11] {
        check_schedules(&tree_plan(ranks, 1, 1), 1);
        check_schedules(&tree_plan(ranks, 2, 2), 1);
        check_schedules(&tree_plan(ranks, 1, ranks), 1);
    }
}

/// Why [`MIN_SLOTS`] is what it is: a step that receives and sends in one needs a free slot while it holds a message.
#[test]
fn around_a_ring_one_slot_is_a_deadlock() {
    let sizing = Sizing::new(4, 128).unwrap();
    let made = schedule(&ring_plan(3, 1), Collective::AllReduce, None, 1000, sizing).unwrap();
    let violation = check::schedule(&made, 1).unwrap_err();
    assert!(matches!(violation, ScheduleViolation::Deadlock { .. }), "{violation}");
}
