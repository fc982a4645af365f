//! Ranks on two hosts that have RDMA and may not lock the memory for it: they go by sockets, and say why.
//!
//! The hosts are network namespaces; each rank is a process with a double of its own.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use topology::Rank;
use transport::even::full_plan;
use transport::{Communicator, LinkKind, Options, ReduceOp};

use crate::double::{Double, find};

/// Set in a rank's process.
const RANK: &str = "TOPOD_VERBS_TEST_RANK";
const FOLDER: &str = "TOPOD_VERBS_TEST_FOLDER";

/// Two network namespaces that are joined; deleted however the test ends.
struct Hosts([String; 2]);

impl Hosts {
    /// Says why there can be none.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let hosts = Self(["a", "b"].map(|which| format!("topod-verbs-{id}-{which}")));
        let [a, b] = &hosts.0;
        // A device's name has at most fifteen characters; addresses are of those kept for documentation (RFC 5737).
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add tv{id}a netns {a} type veth peer name tv{id}b netns {b}"),
            format!("-n {a} address add 198.51.100.1/24 dev tv{id}a"),
            format!("-n {b} address add 198.51.100.2/24 dev tv{id}b"),
            format!("-n {a} link set tv{id}a up"),
            format!("-n {b} link set tv{id}b up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        for step in steps {
            let done = Command::new("ip").args(step.split(' ')).output();
            let why = match done {
                Ok(output) if output.status.success() => continue,
                Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                Err(error) => error.to_string(),
            };
            println!("skipped: no network namespaces here: ip {step}: {why}");
            return None;
        }
        Some(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            // Those that were never made are not there to be deleted.
            let delete =
                Command::new("ip").args(["netns", "delete", host]).stderr(Stdio::null()).status();
            drop(delete);
        }
    }
}

/// What a rank's process does.
fn one_rank(rank: u32) {
    let folder = std::env::var(FOLDER).expect("a folder");
    let folder = Path::new(&folder);
    // It shows its devices from now on.
    let double = Double::load();
    let mut options = Options::default();
    options.set("debug", "INFO").expect("a setting");
    options.set("debug_subsys", "NET").expect("a setting");
    let log = folder.join(format!("log{rank}"));
    options.set("debug_file", log.to_str().expect("a path")).expect("a setting");
    options.log.install().expect("a log");
    let place = format!("file://{}", folder.join("meet").display());
    let place = place.parse().expect("a place");
    let made = Communicator::new(&full_plan(2, 1), Rank(rank), &place, options);
    let mut group = made.expect("a group");
    let peer = group.culprit(Rank(1 - rank));
    assert_eq!(peer.link, LinkKind::Tcp, "{peer}");
    let mut data = vec![i64::from(rank) + 1; 100_000];
    group.all_reduce(&mut data, ReduceOp::Sum).expect("a sum");
    assert!(data.iter().all(|element| *element == 3));
    drop(group);
    double.nothing_left();
}

fn start(test: &str, rank: u32, host: &str, folder: &Path, faults: &str) -> Child {
    let own = folder.join(format!("rank{rank}"));
    std::fs::create_dir(&own).expect("a folder");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host, "timeout", "--kill-after=5", "600"]);
    command.arg(std::env::current_exe().expect("this test has a path"));
    command.args([test, "--exact", "--nocapture"]);
    find(&mut command, &own, &[("FAULTS", faults)]);
    command.env(RANK, rank.to_string()).env(FOLDER, folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("ip runs")
}

#[test]
fn ranks_that_may_not_lock_memory_go_by_sockets() {
    let test = "fallback::ranks_that_may_not_lock_memory_go_by_sockets";
    if let Ok(rank) = std::env::var(RANK) {
        return one_rank(rank.parse().expect("a rank"));
    }
    let Some(hosts) = Hosts::new() else { return };
    // Less than a connection's slots take, on both hosts and on one.
    let limit = "register:bytes=1000000";
    for faults in [[limit, limit], ["", limit], [limit, ""]] {
        let folder = tempfile::tempdir().expect("a folder");
        let ranks = (0..2).zip(&hosts.0).zip(faults);
        let children: Vec<_> = ranks
            .map(|((rank, host), faults)| start(test, rank, host, folder.path(), faults))
            .collect();
        for (rank, child) in children.into_iter().enumerate() {
            let output = child.wait_with_output().expect("it ends");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let told = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success(), "rank {rank}, {faults:?}: {told}");
            let log = std::fs::read_to_string(folder.path().join(format!("log{rank}")));
            let log = log.expect("a log");
            let (from, to) = ("no RDMA from ", "no RDMA to ");
            let words = if faults[rank].is_empty() { to } else { from };
            let why = log
                .lines()
                .find(|line| line.contains(words))
                .unwrap_or_else(|| panic!("{words} in {log}"));
            assert!(why.contains("register ") && why.contains("`ulimit -l`"), "{why}");
        }
    }
}
