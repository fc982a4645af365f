//! Collectives over verbs between processes, with every element checked, and faults with what is said of them.
//!
//! ```text
//!   verbs_ranks          in a machine with the RDMA devices rxea and rxeb, whose interfaces are va and vb: everything below
//!   verbs_ranks rank     one rank; its part is in VERBS_PART
//!   verbs_ranks host     one rank of two on as many machines: VERBS_RANK, VERBS_RENDEZVOUS
//! ```
//!
//! Every line begins with `@verbs ` and is JSON. The test of the virtual machine (`integration/verbs.rs`) reads them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use topology::{Collective, Rank};
use transport::even::full_plan;
use transport::{
    Communicator, Element, Fault, Options, ReduceOp, Rendezvous, Transport, VerbsObjects,
    verbs_objects,
};

const MARK: &str = "@verbs ";
/// Far longer than anything takes, emulated or not.
const HANG: Duration = Duration::from_secs(500);

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    // The other end is gone only when the whole test is.
    let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        None => whole(),
        Some("rank") => {
            let part = std::env::var("VERBS_PART").expect("a part");
            one_rank(&serde_json::from_str(&part).expect("a part in JSON"));
        }
        Some("host") => {
            let text = |name: &str| std::env::var(name).expect(name);
            let rank: u32 = text("VERBS_RANK").parse().expect("a rank");
            let part = json!({ "rank": rank, "ranks": 2, "what": "all", "rendezvous": text("VERBS_RENDEZVOUS") });
            one_rank(&part);
        }
        Some(other) => panic!("no part '{other}'"),
    }
}

/// What rank `rank` puts in place `i`: small whole numbers, so that sums are exact in any order.
fn value(rank: usize, i: usize) -> i64 {
    i64::try_from((i * 7 + rank * 31) % 1009).expect("below 1009")
}

fn one_rank(part: &Value) {
    let number = |key: &str| part[key].as_u64().expect("a number");
    let small = |key: &str| u32::try_from(number(key)).expect("a small number");
    let (rank, ranks) = (small("rank"), small("ranks"));
    let rendezvous: Rendezvous =
        part["rendezvous"].as_str().expect("a place").parse().expect("a place");
    let mut options = Options {
        timeout: Duration::from_secs(60),
        transport: Transport::Verbs,
        slot_bytes: 32 << 10,
        collectives: Collective::ALL.to_vec(),
        ..Options::default()
    };
    for (name, value) in part["options"].as_object().into_iter().flatten() {
        options.set(name, value.as_str().expect("a setting")).expect("a setting");
    }
    options.set_from_environment().expect("settings");
    let plan = full_plan(ranks, 1);
    let made = Communicator::new(&plan, Rank(rank), &rendezvous, options);
    let mut communicator = match made {
        Ok(communicator) => communicator,
        Err(error) => {
            return say(&json!({ "refused": transport::with_causes(&error), "left": left() }));
        }
    };
    say(&json!({ "objects": objects(verbs_objects()) }));
    match part["what"].as_str().expect("what to do") {
        "all" => every_collective(&mut communicator),
        "fault" => one_that_fails(&mut communicator, part),
        other => panic!("nothing is called '{other}'"),
    }
    drop(communicator);
    say(&json!({ "left": left() }));
}

fn objects(of: VerbsObjects) -> [u64; 3] {
    [of.queue_pairs, of.regions, of.completion_queues]
}

/// What this process has left when it has dropped everything.
fn left() -> [u64; 3] {
    objects(verbs_objects())
}

/// Sizes in elements: one, odd ones, several slots.
const COUNTS: [usize; 4] = [1, 37, 5000, 50_001];

fn every_collective(communicator: &mut Communicator) {
    for count in COUNTS {
        checked::<i64>(communicator, count, |value| value, |element| element);
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole numbers")]
    checked::<f32>(communicator, 1000, |value| value as f32, |element| element as i64);
}

/// Runs every collective and says how many elements of each are wrong.
fn checked<T: Element + Default + PartialEq>(
    communicator: &mut Communicator,
    count: usize,
    to: impl Fn(i64) -> T,
    from: impl Fn(T) -> i64,
) {
    let (ranks, own) = (communicator.ranks(), communicator.rank().index());
    let root = Rank(u32::try_from(ranks - 1).expect("few ranks"));
    let is_root = own == root.index();
    let data =
        |rank: usize, count: usize| -> Vec<T> { (0..count).map(|i| to(value(rank, i))).collect() };
    let zeros = |count: usize| vec![T::default(); count];
    let sum = |i: usize| (0..ranks).map(|rank| value(rank, i)).sum::<i64>();
    let report = |what: &str, found: &[T], expected: &dyn Fn(usize) -> i64| {
        let wrong = found.iter().enumerate().filter(|(i, v)| from(**v) != expected(*i)).count();
        say(&json!({ "checked": what, "count": count, "elements": found.len(), "wrong": wrong }));
    };

    let mut all = data(own, count);
    communicator.all_reduce(&mut all, ReduceOp::Sum).expect("all-reduce");
    report("all-reduce", &all, &sum);

    let mut whole = zeros(count * ranks);
    communicator.all_gather(&data(own, count), &mut whole).expect("all-gather");
    report("all-gather", &whole, &|i| value(i / count, i % count));

    let mut shard = zeros(count);
    communicator
        .reduce_scatter(&data(own, count * ranks), &mut shard, ReduceOp::Sum)
        .expect("reduce-scatter");
    report("reduce-scatter", &shard, &|i| sum(own * count + i));

    let mut all = if is_root { data(own, count) } else { zeros(count) };
    communicator.broadcast(&mut all, root).expect("broadcast");
    report("broadcast", &all, &|i| value(root.index(), i));

    let mut all = zeros(count);
    communicator.reduce(&data(own, count), &mut all, ReduceOp::Sum, root).expect("reduce");
    report("reduce", if is_root { &all } else { &[] }, &sum);

    let mut whole = zeros(if is_root { count * ranks } else { 0 });
    communicator.gather(&data(own, count), &mut whole, count * ranks, root).expect("gather");
    report("gather", &whole, &|i| value(i / count, i % count));

    let parts = if is_root { data(own, count * ranks) } else { Vec::new() };
    let mut shard = zeros(count);
    communicator.scatter(&parts, &mut shard, count * ranks, root).expect("scatter");
    report("scatter", &shard, &|i| value(root.index(), own * count + i));

    let mut whole = zeros(count * ranks);
    communicator.all_to_all(&data(own, count * ranks), &mut whole).expect("all-to-all");
    report("all-to-all", &whole, &|i| value(i / count, own * count + i % count));

    let place = |step: usize| Rank(u32::try_from((own + step) % ranks).expect("few ranks"));
    let mut got = zeros(count);
    let (to, from) = (place(1), place(ranks - 1));
    communicator.exchange(&data(own, count), to, &mut got, from).expect("exchange");
    report("send-recv", &got, &|i| value(from.index(), i));

    communicator.barrier().expect("barrier");
    report("barrier", &[], &|_| 0);
}

/// One all-reduce that must succeed; then, once told to, one that must not.
fn one_that_fails(communicator: &mut Communicator, part: &Value) {
    let mut data = vec![1_i64; 4];
    communicator.all_reduce(&mut data, ReduceOp::Sum).expect("nothing is wrong yet");
    assert_eq!(data, [i64::try_from(communicator.ranks()).expect("few ranks"); 4]);
    say(&json!({ "ready": true }));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a word to go on");
    match part["fault"].as_str() {
        Some("wrong-key") => communicator.provoke(Fault::WrongKey),
        Some("flush") => communicator.provoke(Fault::Flush),
        Some("none") | None => {}
        Some(other) => panic!("no fault '{other}'"),
    }
    let mut data = vec![1_i64; 20_000];
    match communicator.all_reduce(&mut data, ReduceOp::Sum) {
        Ok(_) => say(&json!({ "failed": Value::Null })),
        Err(error) => say(&json!({ "failed": error.to_string() })),
    }
}

struct Process {
    child: Child,
    lines: Receiver<Value>,
}

impl Process {
    fn start(part: &Value, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new("/proc/self/exe")
            .arg("rank")
            .env("VERBS_PART", part.to_string())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix(MARK) {
                    let _ = send.send(serde_json::from_str(said).expect("JSON"));
                }
            }
        });
        Self { child, lines }
    }

    /// The next thing it says; an empty object where it says nothing more.
    fn next(&self) -> Value {
        self.lines.recv_timeout(HANG).unwrap_or_else(|_| json!({}))
    }

    fn go(&mut self) {
        let _ = writeln!(self.child.stdin.as_mut().expect("a pipe"), "go");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ranks on the two devices in turn, which can reach each other only over the wire between them.
fn start(
    scenario: &str,
    ranks: u32,
    part: &Value,
    change: impl Fn(u32, &mut Value),
    environment: &[(&str, &str)],
) -> Vec<Process> {
    let started = (0..ranks).map(|rank| {
        let mut part = part.clone();
        part["rank"] = json!(rank);
        part["ranks"] = json!(ranks);
        part["rendezvous"] = json!(format!("file:///tmp/{scenario}"));
        change(rank, &mut part);
        let device = if rank % 2 == 0 { "=rxea" } else { "=rxeb" };
        let environment = [&[("NCCL_IB_HCA", device)][..], environment].concat();
        Process::start(&part, &environment)
    });
    started.collect()
}

/// Passes on what every rank says until it has said what it has left.
fn pass_on(scenario: &str, processes: &[Process], except: Option<usize>) {
    for (rank, process) in processes.iter().enumerate() {
        if Some(rank) == except {
            continue;
        }
        loop {
            let line = process.next();
            let last = line.get("left").is_some() || line == json!({});
            say(&json!({ "scenario": scenario, "rank": rank, "said": line }));
            if last {
                break;
            }
        }
    }
}

fn all(scenario: &str, ranks: u32, environment: &[(&str, &str)]) {
    let processes = start(scenario, ranks, &json!({ "what": "all" }), |_, _| {}, environment);
    pass_on(scenario, &processes, None);
}

/// Two ranks; `blow` is dealt between an operation that succeeds and one that must not.
fn fault(scenario: &str, part: &Value, strikes: Option<u32>, blow: impl Fn(&mut [Process])) {
    let mut whole = json!({ "what": "fault", "fault": "none" });
    whole["options"] = part.clone();
    let change = |rank: u32, part: &mut Value| {
        if Some(rank) == strikes {
            part["fault"] = json!(scenario);
        }
    };
    let mut processes = start(scenario, 2, &whole, change, &[]);
    for (rank, process) in processes.iter().enumerate() {
        for wanted in ["objects", "ready"] {
            let line = process.next();
            if line.get(wanted).is_none() {
                say(&json!({ "scenario": scenario, "rank": rank, "said": line, "wanted": wanted }));
            }
        }
    }
    blow(&mut processes);
    let except = (scenario == "kill").then_some(1);
    pass_on(scenario, &processes, except);
}

fn go(processes: &mut [Process]) {
    processes.iter_mut().for_each(Process::go);
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
        say(&json!({ "scenario": "cut", "wanted": format!("ip {arguments}: {status:?}") }));
    }
}

fn whole() {
    all("two", 2, &[]);
    all("pairs", 3, &[("NCCL_IB_QPS_PER_CONNECTION", "3"), ("TOPOD_SLOTS", "5")]);
    all("adaptive", 2, &[("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_GID_INDEX", "1")]);
    // A few milliseconds, tried twice: what does not answer is given up soon.
    let soon = json!({ "ib_timeout": "14", "ib_retry_cnt": "2", "timeout_ms": "20000" });
    fault("wrong-key", &soon, Some(0), go);
    fault("flush", &soon, Some(0), go);
    fault("kill", &soon, None, |processes| {
        let _ = processes[1].child.kill();
        processes[0].go();
    });
    // Frames for an address that nobody has: both ports stay up, and nothing arrives.
    fault("lost", &soon, None, |processes| {
        ip("neigh replace 10.8.0.2 lladdr 02:00:00:00:00:99 dev va nud permanent");
        ip("neigh replace 10.8.0.1 lladdr 02:00:00:00:00:99 dev vb nud permanent");
        go(processes);
    });
    ip("neigh del 10.8.0.2 dev va");
    ip("neigh del 10.8.0.1 dev vb");
    fault("cut", &soon, None, |processes| {
        ip("link set vb down");
        go(processes);
    });
    say(&json!({ "over": true }));
}
