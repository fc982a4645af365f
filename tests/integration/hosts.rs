//! Two hosts with a network between them: network namespaces, joined by a pair of virtual Ethernet devices.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// They are deleted however the test ends.
pub(crate) struct Hosts {
    names: [String; 2],
    /// The device of each.
    ends: [String; 2],
}

/// The first host's address; the network is of those kept for documentation (RFC 5737).
pub(crate) const FIRST: &str = "198.51.100.1";
const SECOND: &str = "198.51.100.2";

impl Hosts {
    /// Says why there can be none.
    pub(crate) fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let hosts = Self {
            names: ["a", "b"].map(|which| format!("topod-{id}-{which}")),
            // A device's name has at most fifteen characters.
            ends: ["a", "b"].map(|which| format!("tp{id}{which}")),
        };
        let [a, b] = &hosts.names;
        let [end_a, end_b] = &hosts.ends;
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {end_a} netns {a} type veth peer name {end_b} netns {b}"),
            format!("-n {a} address add {FIRST}/24 dev {end_a}"),
            format!("-n {b} address add {SECOND}/24 dev {end_b}"),
            format!("-n {a} link set {end_a} up"),
            format!("-n {b} link set {end_b} up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        let made = steps.iter().all(|step| {
            let words: Vec<&str> = step.split(' ').collect();
            run("ip", &words)
                .inspect_err(|why| println!("skipped: no network namespaces here: {why}"))
                .is_ok()
        });
        made.then_some(hosts)
    }

    /// The network namespaces.
    pub(crate) fn names(&self) -> &[String; 2] {
        &self.names
    }

    /// Shapes what the hosts send each other, both ways; says why it cannot be done.
    pub(crate) fn shape(&self, discipline: &str) -> bool {
        self.names.iter().zip(&self.ends).all(|(name, end)| {
            let fixed = ["-n", name, "qdisc", "replace", "dev", end, "root"];
            let words = [&fixed[..], &discipline.split(' ').collect::<Vec<_>>()].concat();
            run("tc", &words)
                .inspect_err(|why| println!("skipped: no traffic control here: {why}"))
                .is_ok()
        })
    }

    /// Gives every connection made from here on a system's buffers of `bytes` in each direction, the least there are being 4096.
    pub(crate) fn buffer(&self, bytes: u32) {
        for name in &self.names {
            for which in ["tcp_wmem", "tcp_rmem"] {
                let script = format!("echo {bytes} {bytes} {bytes} > /proc/sys/net/ipv4/{which}");
                run("ip", &["netns", "exec", name, "sh", "-c", &script]).unwrap();
            }
        }
    }

    /// Packets that were lost on the way.
    pub(crate) fn dropped(&self) -> u64 {
        let count = |(name, end): (&String, &String)| {
            let text = run("tc", &["-n", name, "-s", "qdisc", "show", "dev", end]).unwrap();
            let (_, after) = text.split_once("(dropped ").unwrap();
            after.split(',').next().unwrap().trim().parse::<u64>().unwrap()
        };
        self.names.iter().zip(&self.ends).map(count).sum()
    }

    /// Takes the cable out.
    pub(crate) fn cut(&self) {
        run("ip", &["-n", &self.names[0], "link", "set", &self.ends[0], "down"]).unwrap();
    }
}

/// What it prints, or why it could not.
fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", words.join(" "), error.trim()))
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // Those that were never made are not there to be deleted.
            let mut delete = Command::new("ip");
            drop(delete.args(["netns", "delete", name]).stderr(Stdio::null()).status());
        }
    }
}
