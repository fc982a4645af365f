//! Verbs links over soft RoCE: Debian's kernel in an emulated machine, with no device of this one's.
//!
//! ```text
//!   kernel and modules (target/kernel) ─┐
//!   busybox, ip, rdma, libibverbs ──────┼─▶ archive in memory ─▶ QEMU ─▶ verbs/init.sh ─▶ examples/verbs_ranks.rs
//!   the ranks' program, stripped ───────┘                                          @verbs {...}  on the serial line
//! ```
//!
//! It shows that results are right and errors are told, never how fast anything is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::emulated::{self, Machine, Made, entry, pack, run, which};

/// What the ranks' program begins its lines with.
const MARK: &str = "@verbs ";
/// Sizes of the ranks' program, and the collectives it runs on each.
const COUNTS: [u64; 5] = [1, 37, 5000, 50_001, 1000];
/// And the size it runs on buffers that NICs read where they lie.
const LENT: u64 = 50_001;
const COLLECTIVES: [&str; 10] = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "send-recv",
    "barrier",
];

/// The folder that becomes the machine's first file system.
struct Root(PathBuf);

impl Root {
    fn put(&self, from: &Path, to: &str) -> Made<()> {
        let to = self.0.join(to.trim_start_matches('/'));
        if to.exists() {
            return Ok(());
        }
        let folder = to.parent().expect("a path below the root");
        let copied = fs::create_dir_all(folder).and_then(|()| fs::copy(from, &to));
        copied
            .map(|_| ())
            .map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
    }

    /// A program or library with all it is linked with.
    fn put_linked(&self, from: &Path, to: &str) -> Made<()> {
        self.put(from, to)?;
        // It fails where a program is static, and lists nothing then.
        let listed = Command::new("ldd").arg(from).output();
        let listed = listed.map_err(|error| format!("ldd: {error}"))?.stdout;
        let listed = String::from_utf8_lossy(&listed);
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            let real = Path::new(library).canonicalize().map_err(|error| error.to_string())?;
            self.put(&real, library)?;
        }
        Ok(())
    }
}

/// Kernel and archive, made once.
struct Image {
    kernel: PathBuf,
    archive: PathBuf,
    _folder: tempfile::TempDir,
}

fn image() -> Option<&'static Image> {
    static MADE: OnceLock<Made<Image>> = OnceLock::new();
    let made = MADE.get_or_init(Image::make);
    made.as_ref().inspect_err(|why| println!("skipped: no machine with soft RoCE: {why}")).ok()
}

impl Image {
    fn make() -> Made<Self> {
        let (kernel, boot) = emulated::kernel()?;
        let modprobe = which("modprobe")?;
        let modules = entry(&kernel.join("lib/modules"), "")?;
        let version = modules.file_name().expect("a version").to_string_lossy().into_owned();
        let kernel = kernel.to_string_lossy().into_owned();
        run(&which("depmod")?.to_string_lossy(), &["-b", &kernel, &version])?;

        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let root = Root(folder.path().join("root"));
        for empty in ["proc", "sys", "dev", "tmp", "run", "modules", "bin"] {
            fs::create_dir_all(root.0.join(empty)).map_err(|error| error.to_string())?;
        }
        root.put_linked(&which("busybox")?, "bin/busybox")?;
        for name in ["sh", "mount", "mkdir", "cat", "insmod", "poweroff"] {
            std::os::unix::fs::symlink("busybox", root.0.join("bin").join(name))
                .map_err(|error| error.to_string())?;
        }
        for name in ["ip", "rdma"] {
            root.put_linked(&which(name)?, &format!("usr/bin/{name}"))?;
        }
        let program = crate::programs::example("verbs_ranks");
        let stripped = folder.path().join("verbs_ranks");
        run("strip", &["-o", &stripped.to_string_lossy(), &program.to_string_lossy()])?;
        root.put_linked(&stripped, "usr/bin/verbs_ranks")?;
        // Loaded by name, so ldd does not list them.
        let libraries = Path::new("/usr/lib/x86_64-linux-gnu");
        let verbs = "libibverbs.so.1";
        root.put_linked(&libraries.join(verbs), &format!("{}/{verbs}", libraries.display()))?;
        let driver = entry(&libraries.join("libibverbs"), "librxe-")?;
        root.put_linked(&driver, &driver.to_string_lossy())?;
        let named = "/etc/libibverbs.d/rxe.driver";
        root.put(Path::new(named), named)?;

        let modprobe = modprobe.to_string_lossy();
        let mut order = Vec::new();
        // Without the first the third finds no checksum; the last two are for a network card.
        for module in ["crc32_generic", "veth", "rdma_rxe", "ib_uverbs", "virtio_pci", "virtio_net"]
        {
            let arguments = ["-d", &kernel, "-S", &version, "--show-depends", module];
            for line in run(&modprobe, &arguments)?.lines() {
                let Some(path) = line.trim().strip_prefix("insmod ") else { continue };
                let path = Path::new(path.trim());
                let name =
                    path.file_name().expect("a module is a file").to_string_lossy().into_owned();
                if !order.contains(&name) {
                    root.put(path, &format!("modules/{name}"))?;
                    order.push(name);
                }
            }
        }
        let write = |at: &str, text: &str| {
            fs::write(root.0.join(at), text).map_err(|error| format!("{at}: {error}"))
        };
        write("modules/order", &order.join("\n"))?;
        write("init", include_str!("verbs/init.sh"))?;
        run("chmod", &["+x", &root.0.join("init").to_string_lossy()])?;
        let archive = folder.path().join("archive");
        pack(&root.0, &archive)?;
        Ok(Self { kernel: boot, archive, _folder: folder })
    }
}

/// The wire between the network cards of two machines, frame by frame; it can be cut.
struct Wire {
    folder: tempfile::TempDir,
    cut: Arc<AtomicBool>,
}

impl Wire {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let cut = Arc::new(AtomicBool::new(false));
        for end in [0, 1] {
            let from = UnixDatagram::bind(Self::path(&folder, "wire", end)).expect("a socket");
            let to = Self::path(&folder, "card", 1 - end);
            let cut = Arc::clone(&cut);
            // It ends with the test's process: a machine that is gone takes nothing, and sends nothing.
            std::thread::spawn(move || {
                let mut frame = vec![0; 1 << 17];
                while let Ok(bytes) = from.recv(&mut frame) {
                    if !cut.load(Ordering::Relaxed) {
                        // A machine that is not yet there, or no more, hears nothing, as on any wire.
                        let _ = from.send_to(&frame[..bytes], &to);
                    }
                }
            });
        }
        Self { folder, cut }
    }

    fn path(folder: &tempfile::TempDir, what: &str, end: usize) -> PathBuf {
        folder.path().join(format!("{what}{end}"))
    }

    /// A network card at one of its ends.
    fn card(&self, end: usize) -> [String; 4] {
        let (card, wire) =
            (Self::path(&self.folder, "card", end), Self::path(&self.folder, "wire", end));
        let net = format!(
            "dgram,id=net,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            card.display(),
            wire.display()
        );
        let card = format!("virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{end},romfile=");
        ["-netdev".to_owned(), net, "-device".to_owned(), card]
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }
}

/// What the ranks' program says among it.
fn of_ranks(said: &[String]) -> Vec<Value> {
    // The console's own codes may stand before the first.
    let marked = said.iter().filter_map(|line| line.split_once(MARK).map(|(_, json)| json));
    let parse =
        |json| serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}: {said:#?}"));
    marked.map(parse).collect()
}

/// A rank that ran every collective: what it said, in its order. How many ends of verbs connections it had.
#[track_caller]
fn check_rank(said: &[Value], rank: u64, ranks: u64, pairs_each: u64) -> u64 {
    let place = format!("rank {rank} of {ranks}");
    let [first, checked @ .., last] = said else { panic!("{place} said nothing: {said:?}") };
    let objects: Vec<u64> = serde_json::from_value(first["objects"].clone())
        .unwrap_or_else(|e| panic!("{place}: {e}: {first}"));
    let [pairs, regions, queues] = objects[..] else { panic!("{first}") };
    assert!(regions == queues && pairs == pairs_each * queues, "{place}: {first}");
    let counts = COUNTS.iter().chain(&[LENT]);
    let mut expected = counts.flat_map(|count| COLLECTIVES.map(|name| (name, *count)));
    let mut traffic = Vec::new();
    for line in checked {
        if let (Some(copied), Some(lent)) = (line["copied"].as_u64(), line["lent"].as_u64()) {
            traffic.push((copied, lent));
            continue;
        }
        let (name, count) = expected.next().unwrap_or_else(|| panic!("{place}: {line}"));
        assert_eq!(
            (line["checked"].as_str(), line["count"].as_u64()),
            (Some(name), Some(count)),
            "{place}"
        );
        assert_eq!(line["wrong"], 0, "{place}: {line}");
        let elements = match name {
            "all-reduce" | "reduce-scatter" | "broadcast" | "scatter" | "send-recv" => count,
            "all-gather" | "all-to-all" => count * ranks,
            "reduce" if rank + 1 == ranks => count,
            "gather" if rank + 1 == ranks => count * ranks,
            _ => 0,
        };
        assert_eq!(line["elements"], elements, "{place}: {line}");
    }
    assert_eq!(expected.next(), None, "{place}");
    // Private memory is copied, whatever it is; of the other kind all is lent but what is short or does not last.
    let [(copied, 0), (rest, lent)] = traffic[..] else { panic!("{place}: {traffic:?}") };
    let none = copied == 0 && rest + lent == 0;
    assert!(if queues == 0 { none } else { copied > 0 && lent > rest }, "{place}: {traffic:?}");
    assert_eq!(last["left"], serde_json::json!([0, 0, 0]), "{place} leaks: {last}");
    queues
}

/// The kernel has of each device what it had before.
#[track_caller]
fn check_resources(said: &[String], devices: usize) {
    let lines = |word: &str| -> Vec<String> {
        said.iter().filter_map(|line| Some(line.split_once(word)?.1.to_owned())).collect()
    };
    let (before, after) = (lines("@before "), lines("@after "));
    assert_eq!(before.len(), devices, "{said:#?}");
    assert!(before.iter().all(|line| line.contains(" qp ") && line.contains(" mr ")), "{before:?}");
    assert_eq!(before, after);
}

/// What ranks said, by scenario and rank.
struct Scenarios {
    said: Vec<String>,
    by_rank: BTreeMap<(String, u64), Vec<Value>>,
}

impl Scenarios {
    /// Of a machine that did all it was to do.
    #[track_caller]
    fn of(said: Vec<String>) -> Self {
        let lines = of_ranks(&said);
        assert_eq!(lines.last().map(|line| line["over"] == true), Some(true), "{said:#?}");
        let mut by_rank: BTreeMap<(String, u64), Vec<Value>> = BTreeMap::new();
        for line in lines[..lines.len() - 1].iter().filter(|line| line.get("asks").is_none()) {
            assert!(line.get("wanted").is_none(), "{line}: {said:#?}");
            let scenario = line["scenario"].as_str().expect("a scenario").to_owned();
            let key = (scenario, line["rank"].as_u64().expect("a rank"));
            by_rank.entry(key).or_default().push(line["said"].clone());
        }
        Self { said, by_rank }
    }

    #[track_caller]
    fn take(&mut self, scenario: &str, rank: u64) -> Vec<Value> {
        self.by_rank
            .remove(&(scenario.to_owned(), rank))
            .unwrap_or_else(|| panic!("nothing of rank {rank} in {scenario}: {:#?}", self.said))
    }

    /// The error of an operation that failed, which leaves nothing behind.
    #[track_caller]
    fn failed(&mut self, scenario: &str, rank: u64) -> String {
        let said = self.take(scenario, rank);
        let [failed, left] = &said[..] else { panic!("rank {rank} in {scenario}: {said:?}") };
        assert_eq!(left["left"], serde_json::json!([0, 0, 0]), "rank {rank} leaks in {scenario}");
        let error = failed["failed"].as_str();
        error.unwrap_or_else(|| panic!("{scenario} succeeds: {said:?}")).to_owned()
    }

    /// Nothing else was said, and the kernel has of each device what it had before.
    #[track_caller]
    fn end(self, devices: usize) {
        assert_eq!(self.by_rank.keys().collect::<Vec<_>>(), Vec::<&(String, u64)>::new());
        check_resources(&self.said, devices);
    }
}

/// An error has all of these in it, and names the operation.
#[track_caller]
fn holds(text: &str, parts: &[&str]) {
    holds_of(text, "all-reduce", parts);
}

#[track_caller]
fn holds_of(text: &str, collective: &str, parts: &[&str]) {
    let place = format!("in {collective} number 1, channel ");
    for part in parts.iter().chain(&[place.as_str()]) {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}

/// Two ports in one machine with a wire between them; every fault is told by the names of who and what.
#[test]
fn collectives_and_faults_between_two_devices() {
    let Some(image) = image() else { return };
    let mut scenarios =
        Scenarios::of(Machine::boot((&image.kernel, &image.archive), 768, "", &[]).said());
    for (scenario, ranks, pairs_each) in [("two", 2, 1), ("pairs", 3, 3), ("adaptive", 2, 1)] {
        for rank in 0..ranks {
            let ends = check_rank(&scenarios.take(scenario, rank), rank, ranks, pairs_each);
            assert!(ends > 0, "rank {rank} in {scenario} has no verbs link");
        }
    }
    let (a, b) = (
        "rxea port 1 (GID ::ffff:10.8.0.1 at index 1)",
        "rxeb port 1 (GID ::ffff:10.8.0.2 at index 1)",
    );
    let (there, back) = (format!("{a} to {b}: "), format!("{b} to {a}: "));
    let peer = |rank: u64| format!("the link to rank {rank} on machine (link verbs) failed: ");
    for rank in 0..2 {
        // The rank whose NIC knows the cause says it, and the other is told.
        let text = scenarios.failed("wrong-key", rank);
        let by_0 = "noticed by rank 0";
        holds(&text, &[&peer(1), &there, "remote access error", "(status 10)", by_0]);
        // By turns both ranks would use the first port: the plan names each its own.
        let text = scenarios.failed("named", rank);
        holds(&text, &[&peer(1), &there, "remote access error", "(status 10)", by_0]);
        let text = scenarios.failed("flush", rank);
        holds(&text, &[&peer(1), &there, "work flushed", "(status 5)", by_0]);
        let text = scenarios.failed("lost", rank);
        let (to, way) = if text.contains(by_0) { (1, &there) } else { (0, &back) };
        holds(&text, &[&peer(to), way, "transport retry counter exceeded", "(status 12)"]);
        // What the device says beside completions explains what fails there.
        let by_1 = "noticed by rank 1";
        let text = scenarios.failed("address", rank);
        let gone = "rxeb port 1 has GID ::ffff:10.8.0.2 at index 1 no more";
        holds(&text, &[&peer(0), &back, gone, by_1]);
        // A wire that ends at one port ends at both, and either rank may be the first to see it.
        let text = scenarios.failed("cut", rank);
        let first = |text: &str| text.contains(by_0);
        let (to, way) = if first(&text) { (1, &there) } else { (0, &back) };
        let down =
            |text: &str| format!("rxe{} port 1 is down", if first(text) { "a" } else { "b" });
        holds(&text, &[&peer(to), way, &down(&text)]);
        let text = scenarios.failed("down", rank);
        let (to, way) = if first(&text) { (1, &there) } else { (0, &back) };
        let nothing = format!("{}, and nothing moves", down(&text));
        holds_of(&text, "broadcast", &[&peer(to), way, &nothing]);
    }
    let text = scenarios.failed("kill", 0);
    holds(&text, &["rank 1 on machine (link verbs) is lost: its process ended"]);
    scenarios.end(2);
}

/// Two ranks in one machine and one in another, joined by network cards with a wire between them.
#[test]
fn collectives_and_faults_between_two_machines() {
    let Some(image) = image() else { return };
    let wire = Wire::new();
    let mut machines = [0, 1].map(|number: usize| {
        let words = format!("MACHINE={number}");
        Machine::boot((&image.kernel, &image.archive), 512, &words, &wire.card(number))
    });
    for (what, cut) in [("kill", false), ("cut", true), ("mend", false)] {
        machines
            .iter_mut()
            .for_each(|machine| machine.wait_for(&serde_json::json!({ "asks": what }).to_string()));
        wire.cut(cut);
        machines.iter_mut().for_each(|machine| machine.say("done"));
    }
    let address = |at: u64| format!("rxea port 1 (GID ::ffff:10.9.0.{} at index 1)", at + 1);
    for (machine, ranks) in (0..)
        .zip([0..2, 2..3])
        .zip(machines)
        .map(|((at, ranks), machine)| ((at, Scenarios::of(machine.said())), ranks))
    {
        let (at, mut scenarios) = machine;
        for rank in ranks {
            let mut ends = |scenario| check_rank(&scenarios.take(scenario, rank), rank, 3, 1);
            let all = ends("three");
            // Chosen by what there is, ranks of one machine have none between them, and all have none to where RDMA is off.
            let here = if rank < 2 { all / 2 } else { 0 };
            assert!(all > 0 && all % 2 == 0, "rank {rank} has {all} ends");
            assert_eq!((ends("chosen"), ends("switched-off")), (all - here, 0), "rank {rank}");
            if rank < 2 {
                // All that are left are told who is not.
                let text = scenarios.failed("kill", rank);
                holds(&text, &["rank 2 on machine-1 (link verbs) is lost: its process ended"]);
            }
            // Each side finds out by itself: nothing passes between them.
            let text = scenarios.failed("cut", rank);
            let way = format!("{} to {}: ", address(at), address(1 - at));
            let there = format!("on machine-{} (link verbs) failed: ", 1 - at);
            holds(&text, &[&there, &way, "transport retry counter exceeded", "(status 12)"]);
        }
        scenarios.end(1);
    }
}
