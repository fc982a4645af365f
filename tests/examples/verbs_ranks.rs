//! Collectives over verbs between processes, with every element checked, and faults with what is said of them.
//!
//! ```text
//!   verbs_ranks          in a machine with the RDMA devices rxea and rxeb, whose interfaces are va and vb
//!   verbs_ranks host N   in one of two machines, N being 0 or 1: ranks 0 and 1 are on the first, rank 2 on the second
//!   verbs_ranks rank     one rank; its part is in VERBS_PART
//! ```
//!
//! Every line begins with `@verbs ` and is JSON. The test of the virtual machines (`integration/verbs.rs`) reads them, and answers a
//! line that asks for something on the standard input.

use std::io::{BufRead, BufReader, Write};
use std::ops::DerefMut;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use topology::plan::EdgePath;
use topology::{Collective, Fraction, Plan, Rank};
use transport::even::full_plan;
use transport::{
    Communicator, Element, Fault, Options, ReduceOp, Rendezvous, Transport, VerbsObjects,
    verbs_messages, verbs_objects,
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
            let number = std::env::args().nth(2).and_then(|text| text.parse().ok());
            one_of_two(number.expect("the number of this machine"));
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
        slot_bytes: Some(32 << 10),
        collectives: Collective::ALL.to_vec(),
        ..Options::default()
    };
    for (name, value) in part["options"].as_object().into_iter().flatten() {
        options.set(name, value.as_str().expect("a setting")).expect("a setting");
    }
    options.set_from_environment().expect("settings");
    let mut plan = full_plan(ranks, 1);
    if part["named"] == true {
        name_nics(&mut plan);
    }
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

/// Has the ring of two ranks cross the wire, from either's own port to the other's.
fn name_nics(plan: &mut Plan) {
    let ring = &mut plan.channels[0];
    ring.nics = vec!["rxea".to_owned(), "rxeb".to_owned()];
    for edge in &mut ring.edges {
        let (from, to) = if edge.from == Rank(0) { ("rxea", "rxeb") } else { ("rxeb", "rxea") };
        let via = [from, "wire", to].map(str::to_owned).to_vec();
        edge.paths = vec![EdgePath { via, share: Fraction::of(1, 1) }];
    }
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
        checked::<i64>(communicator, count, false, |value| value, |element| element);
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole numbers")]
    checked::<f32>(communicator, 1000, false, |value| value as f32, |element| element as i64);
    // A NIC reads these where they lie, where they last as long as it may have to send.
    let before = verbs_messages();
    say(&json!({ "copied": before.sent - before.lent, "lent": before.lent }));
    checked::<i64>(communicator, COUNTS[3], true, |value| value, |element| element);
    let now = verbs_messages();
    let (sent, lent) = (now.sent - before.sent, now.lent - before.lent);
    say(&json!({ "copied": sent - lent, "lent": lent }));
}

/// Memory of a caller: its own, or the communicator's.
fn buffer<T: Element + Default>(
    communicator: &Communicator,
    allocated: bool,
    count: usize,
) -> Box<dyn DerefMut<Target = [T]>> {
    if allocated {
        Box::new(communicator.allocate(count).expect("memory"))
    } else {
        Box::new(vec![T::default(); count])
    }
}

/// Runs every collective and says how many elements of each are wrong.
fn checked<T: Element + Default + PartialEq>(
    communicator: &mut Communicator,
    count: usize,
    allocated: bool,
    to: impl Fn(i64) -> T,
    from: impl Fn(T) -> i64,
) {
    let (ranks, own) = (communicator.ranks(), communicator.rank().index());
    let root = Rank(u32::try_from(ranks - 1).expect("few ranks"));
    let is_root = own == root.index();
    let zeros = |c: &Communicator, count: usize| buffer::<T>(c, allocated, count);
    let data = |c: &Communicator, rank: usize, count: usize| {
        let mut data = buffer::<T>(c, allocated, count);
        data.iter_mut().enumerate().for_each(|(i, element)| *element = to(value(rank, i)));
        data
    };
    let sum = |i: usize| (0..ranks).map(|rank| value(rank, i)).sum::<i64>();
    let report = |what: &str, found: &[T], expected: &dyn Fn(usize) -> i64| {
        let wrong = found.iter().enumerate().filter(|(i, v)| from(**v) != expected(*i)).count();
        say(&json!({ "checked": what, "count": count, "elements": found.len(), "wrong": wrong }));
    };

    let mut all = data(communicator, own, count);
    communicator.all_reduce(&mut all, ReduceOp::Sum).expect("all-reduce");
    report("all-reduce", &all, &sum);

    let mut whole = zeros(communicator, count * ranks);
    let own_data = data(communicator, own, count);
    communicator.all_gather(&own_data, &mut whole).expect("all-gather");
    report("all-gather", &whole, &|i| value(i / count, i % count));

    let mut shard = zeros(communicator, count);
    let blocks = data(communicator, own, count * ranks);
    communicator.reduce_scatter(&blocks, &mut shard, ReduceOp::Sum).expect("reduce-scatter");
    report("reduce-scatter", &shard, &|i| sum(own * count + i));

    let mut all = if is_root { data(communicator, own, count) } else { zeros(communicator, count) };
    communicator.broadcast(&mut all, root).expect("broadcast");
    report("broadcast", &all, &|i| value(root.index(), i));

    let mut all = zeros(communicator, count);
    communicator.reduce(&own_data, &mut all, ReduceOp::Sum, root).expect("reduce");
    report("reduce", if is_root { &all[..] } else { &[] }, &sum);

    let mut whole = zeros(communicator, if is_root { count * ranks } else { 0 });
    communicator.gather(&own_data, &mut whole, count * ranks, root).expect("gather");
    report("gather", &whole, &|i| value(i / count, i % count));

    let parts = data(communicator, own, if is_root { count * ranks } else { 0 });
    let mut shard = zeros(communicator, count);
    communicator.scatter(&parts, &mut shard, count * ranks, root).expect("scatter");
    report("scatter", &shard, &|i| value(root.index(), own * count + i));

    let mut whole = zeros(communicator, count * ranks);
    communicator.all_to_all(&blocks, &mut whole).expect("all-to-all");
    report("all-to-all", &whole, &|i| value(i / count, own * count + i % count));

    let place = |step: usize| Rank(u32::try_from((own + step) % ranks).expect("few ranks"));
    let mut got = zeros(communicator, count);
    let (to, from) = (place(1), place(ranks - 1));
    communicator.exchange(&own_data, to, &mut got, from).expect("exchange");
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
    let done = match part["operation"].as_str() {
        // Rank 1 sends nothing: no message of its own can fail.
        Some("broadcast") => communicator.broadcast(&mut data, Rank(0)),
        _ => communicator.all_reduce(&mut data, ReduceOp::Sum),
    };
    match done {
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

/// Where the ranks of a scenario are.
#[derive(Clone, Copy)]
enum Place {
    /// All here, on the two devices in turn, which can reach each other only over the wire between them.
    Here(u32),
    /// Ranks 0 and 1 on machine 0, rank 2 on machine 1; they meet at this port of the first.
    OneOfTwo(u32, u16),
}

impl Place {
    const fn ranks(self) -> u32 {
        match self {
            Self::Here(ranks) => ranks,
            Self::OneOfTwo(..) => 3,
        }
    }

    const fn here(self) -> std::ops::Range<u32> {
        match self {
            Self::Here(ranks) => 0..ranks,
            Self::OneOfTwo(0, _) => 0..2,
            Self::OneOfTwo(..) => 2..3,
        }
    }

    fn rendezvous(self, scenario: &str) -> String {
        match self {
            Self::Here(_) => format!("file:///tmp/{scenario}"),
            Self::OneOfTwo(_, port) => format!("tcp://10.9.0.1:{port}"),
        }
    }

    const fn device(self, rank: u32) -> &'static str {
        match self {
            Self::Here(_) if rank % 2 == 1 => "=rxeb",
            _ => "=rxea",
        }
    }
}

/// A process of this machine with its rank.
type Ranks = Vec<(u32, Process)>;

/// Starts the ranks that are here.
fn start(
    scenario: &str,
    place: Place,
    part: &Value,
    change: impl Fn(u32, &mut Value),
    environment: &[(&str, &str)],
) -> Ranks {
    let started = place.here().map(|rank| {
        let mut part = part.clone();
        part["rank"] = json!(rank);
        part["ranks"] = json!(place.ranks());
        part["rendezvous"] = json!(place.rendezvous(scenario));
        change(rank, &mut part);
        let own = [("NCCL_IB_HCA", place.device(rank))];
        let environment = [&own[..], environment].concat();
        (rank, Process::start(&part, &environment))
    });
    started.collect()
}

/// Passes on what every rank says until it has said what it has left.
fn pass_on(scenario: &str, processes: &Ranks, except: Option<u32>) {
    for (rank, process) in processes {
        if Some(*rank) == except {
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

fn all(scenario: &str, place: Place, environment: &[(&str, &str)]) {
    let processes = start(scenario, place, &json!({ "what": "all" }), |_, _| {}, environment);
    pass_on(scenario, &processes, None);
}

/// `blow` is dealt between an operation that succeeds and one that must not. `dies` is the rank that it kills, `strikes` the one that
/// does wrong itself, and what.
fn fault(
    scenario: &str,
    place: Place,
    part: &Value,
    (strikes, dies): (Option<(u32, &str)>, Option<u32>),
    blow: impl Fn(&mut Ranks),
) {
    let mut whole = json!({ "what": "fault", "fault": "none" });
    whole["options"] = part.clone();
    whole["operation"] = json!(if scenario == "down" { "broadcast" } else { "all-reduce" });
    let change = |rank: u32, part: &mut Value| {
        if let Some((striker, fault)) = strikes
            && rank == striker
        {
            part["fault"] = json!(fault);
        }
    };
    // Either rank may use either port: which one it does, the plan says.
    let both = [("NCCL_IB_HCA", "=rxea,rxeb")];
    let named = scenario == "named";
    whole["named"] = json!(named);
    let environment = if named { &both[..] } else { &[] };
    let mut processes = start(scenario, place, &whole, change, environment);
    for (rank, process) in &processes {
        for wanted in ["objects", "ready"] {
            let line = process.next();
            if line.get(wanted).is_none() {
                say(&json!({ "scenario": scenario, "rank": rank, "said": line, "wanted": wanted }));
            }
        }
    }
    blow(&mut processes);
    pass_on(scenario, &processes, dies);
}

/// Asks whoever started this machine for something, and waits until it is done.
fn ask(what: &str) {
    say(&json!({ "asks": what }));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("an answer");
}

fn go(processes: &mut Ranks) {
    processes.iter_mut().for_each(|(_, process)| process.go());
}

/// Kills a rank where it is here, and lets the others go on.
fn kill(processes: &mut Ranks, dies: u32) {
    for (rank, process) in processes {
        if *rank == dies {
            let _ = process.child.kill();
        } else {
            process.go();
        }
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
        say(&json!({ "scenario": "ip", "wanted": format!("ip {arguments}: {status:?}") }));
    }
}

/// A few milliseconds, tried twice: what does not answer is given up soon.
fn soon() -> Value {
    json!({ "ib_timeout": "14", "ib_retry_cnt": "2", "timeout_ms": "20000" })
}

fn whole() {
    let soon = soon();
    let two = Place::Here(2);
    all("two", two, &[]);
    all("pairs", Place::Here(3), &[("NCCL_IB_QPS_PER_CONNECTION", "3"), ("TOPOD_SLOTS", "5")]);
    all("adaptive", two, &[("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_GID_INDEX", "1")]);
    fault("wrong-key", two, &soon, (Some((0, "wrong-key")), None), go);
    fault("named", two, &soon, (Some((0, "wrong-key")), None), go);
    fault("flush", two, &soon, (Some((0, "flush")), None), go);
    fault("kill", two, &soon, (None, Some(1)), |processes| kill(processes, 1));
    // Frames for an address that nobody has: both ports stay up, and nothing arrives.
    fault("lost", two, &soon, (None, None), |processes| {
        ip("neigh replace 10.8.0.2 lladdr 02:00:00:00:00:99 dev va nud permanent");
        ip("neigh replace 10.8.0.1 lladdr 02:00:00:00:00:99 dev vb nud permanent");
        go(processes);
    });
    ip("neigh del 10.8.0.2 dev va");
    ip("neigh del 10.8.0.1 dev vb");
    // The address goes that the port speaks by.
    fault("address", two, &soon, (None, None), |processes| {
        ip("addr del 10.8.0.2/24 dev vb");
        go(processes);
    });
    ip("addr add 10.8.0.2/24 dev vb");
    // It went with the address that it is from.
    ip("route add 10.8.0.1/32 dev vb src 10.8.0.2 table 102");
    fault("cut", two, &soon, (None, None), |processes| {
        ip("link set vb down");
        go(processes);
    });
    ip("link set vb up");
    ip("route add 10.8.0.1/32 dev vb src 10.8.0.2 table 102");
    // The port goes of a rank that only waits.
    fault("down", two, &soon, (None, None), |processes| {
        ip("link set vb down");
        go(processes);
    });
    say(&json!({ "over": true }));
}

fn one_of_two(machine: u32) {
    let soon = soon();
    let at = |port| Place::OneOfTwo(machine, port);
    all("three", at(4711), &[]);
    // What there is decides: memory within a machine, RDMA between the two.
    all("chosen", at(4714), &[("TOPOD_TRANSPORT", "auto")]);
    // And TCP where RDMA is switched off on one of them.
    let off = if machine == 1 { "1" } else { "0" };
    all("switched-off", at(4715), &[("TOPOD_TRANSPORT", "auto"), ("NCCL_IB_DISABLE", off)]);
    fault("kill", at(4712), &soon, (None, Some(2)), |processes| {
        // Once all ranks of both machines are ready.
        ask("kill");
        kill(processes, 2);
    });
    // The wire between the machines ends, whose other side sees nothing of it.
    fault("cut", at(4713), &soon, (None, None), |processes| {
        ask("cut");
        go(processes);
    });
    ask("mend");
    say(&json!({ "over": true }));
}
