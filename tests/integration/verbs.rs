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
use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Some twenty times what a machine takes on a quiet host: only a hang gets there.
const HANG: Duration = Duration::from_secs(900);
/// What the ranks' program begins its lines with.
const MARK: &str = "@verbs ";
/// Sizes of the ranks' program, and the collectives it runs on each.
const COUNTS: [u64; 5] = [1, 37, 5000, 50_001, 1000];
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

type Made<T> = Result<T, String>;

/// What a command prints. What is missing is a reason to skip; what fails is a failure.
fn run(program: &str, arguments: &[&str]) -> Made<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where a command is.
fn which(command: &str) -> Made<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]);
    let mut found = folders.map(|folder| folder.join(command)).filter(|path| path.is_file());
    found.next().ok_or_else(|| format!("there is no {command}"))
}

/// The only entry of a folder whose name begins so.
fn entry(folder: &Path, begins: &str) -> Made<PathBuf> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut named = entries.flatten().map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begins))
    });
    named.next().ok_or_else(|| format!("nothing in {} begins with {begins}", folder.display()))
}

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
        if !cfg!(target_arch = "x86_64") {
            return Err("the machine is described for x86-64 alone".to_owned());
        }
        which("qemu-system-x86_64")?;
        which("cpio")?;
        let modprobe = which("modprobe")?;
        let kernel = crate::workspace_root().join("target/kernel");
        let boot = entry(&kernel.join("boot"), "vmlinuz-")
            .map_err(|why| format!("{why}; cargo xtask ci gets a kernel"))?;
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
        let pack = format!(
            "cd {} && find . | cpio --quiet -o -H newc > {}",
            root.0.display(),
            archive.display()
        );
        run("sh", &["-c", &pack])?;
        Ok(Self { kernel: boot, archive, _folder: folder })
    }
}

/// An emulated machine; it ends with the value.
struct Machine {
    child: Child,
    lines: Receiver<String>,
}

impl Machine {
    fn boot(image: &Image, memory_mib: u32, words: &str, devices: &[String]) -> Self {
        let mut command = Command::new("qemu-system-x86_64");
        // Emulated also where the processor could do it: nested virtual machines hang on some hosts.
        command.args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
        command.args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"]);
        command.args(["-m", &memory_mib.to_string()]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.archive);
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 {words}")]).args(devices);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("QEMU, which was found");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.split(b'\n').map_while(Result::ok) {
                let _ = send.send(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
        });
        Self { child, lines }
    }

    /// All it says until it has ended, or a panic with that after far too long.
    fn said(mut self) -> Vec<String> {
        let deadline = Instant::now() + HANG;
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it hangs: {said:#?}"),
            }
        }
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {said:#?}");
        said
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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

/// A rank that ran every collective: what it said, in its order.
#[track_caller]
fn check_rank(said: &[Value], rank: u64, ranks: u64, pairs_each: u64) {
    let place = format!("rank {rank} of {ranks}");
    let [first, checked @ .., last] = said else { panic!("{place} said nothing: {said:?}") };
    let objects: Vec<u64> = serde_json::from_value(first["objects"].clone())
        .unwrap_or_else(|e| panic!("{place}: {e}: {first}"));
    let [pairs, regions, queues] = objects[..] else { panic!("{first}") };
    assert!(queues > 0 && regions == queues && pairs == pairs_each * queues, "{place}: {first}");
    let mut expected = COUNTS.iter().flat_map(|count| COLLECTIVES.map(|name| (name, *count)));
    for line in checked {
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
    assert_eq!(last["left"], serde_json::json!([0, 0, 0]), "{place} leaks: {last}");
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

/// Two ports in one machine with a wire between them; every fault is told by the names of who and what.
#[test]
fn collectives_and_faults_between_two_devices() {
    let Some(image) = image() else { return };
    let said = Machine::boot(image, 768, "", &[]).said();
    let mut scenarios: BTreeMap<(String, u64), Vec<Value>> = BTreeMap::new();
    let lines = of_ranks(&said);
    assert_eq!(lines.last().map(|line| line["over"] == true), Some(true), "{said:#?}");
    for line in &lines[..lines.len() - 1] {
        assert!(line.get("wanted").is_none(), "{line}: {said:#?}");
        let key = (line["scenario"].as_str().unwrap().to_owned(), line["rank"].as_u64().unwrap());
        scenarios.entry(key).or_default().push(line["said"].clone());
    }
    let mut take = |scenario: &str, rank: u64| {
        scenarios
            .remove(&(scenario.to_owned(), rank))
            .unwrap_or_else(|| panic!("nothing of rank {rank} in {scenario}: {said:#?}"))
    };
    for (scenario, ranks, pairs_each) in [("two", 2, 1), ("pairs", 3, 3), ("adaptive", 2, 1)] {
        for rank in 0..ranks {
            check_rank(&take(scenario, rank), rank, ranks, pairs_each);
        }
    }
    let (a, b) = (
        "rxea port 1 (GID ::ffff:10.8.0.1 at index 1)",
        "rxeb port 1 (GID ::ffff:10.8.0.2 at index 1)",
    );
    let (there, back) = (format!("{a} to {b}: "), format!("{b} to {a}: "));
    let mut failed = |scenario: &str, rank: u64| {
        let said = take(scenario, rank);
        let [failed, left] = &said[..] else { panic!("rank {rank} in {scenario}: {said:?}") };
        assert_eq!(left["left"], serde_json::json!([0, 0, 0]), "rank {rank} leaks in {scenario}");
        failed["failed"]
            .as_str()
            .unwrap_or_else(|| panic!("{scenario} succeeds: {said:?}"))
            .to_owned()
    };
    let peer = |rank: u64| format!("the link to rank {rank} on machine (link verbs) failed: ");
    let holds = |text: &str, parts: &[&str]| {
        for part in parts.iter().chain(&["in all-reduce number 1, channel 0"]) {
            assert!(text.contains(part), "no '{part}' in: {text}");
        }
    };
    for rank in 0..2 {
        // The rank whose NIC knows the cause says it, and the other is told.
        let text = failed("wrong-key", rank);
        holds(
            &text,
            &[&peer(1), &there, "remote access error", "(status 10)", "noticed by rank 0"],
        );
        let text = failed("flush", rank);
        holds(&text, &[&peer(1), &there, "work flushed", "(status 5)", "noticed by rank 0"]);
        let text = failed("lost", rank);
        let (to, way) = if text.contains("noticed by rank 0") { (1, &there) } else { (0, &back) };
        holds(&text, &[&peer(to), way, "transport retry counter exceeded", "(status 12)"]);
        let text = failed("cut", rank);
        let (to, way) = if text.contains("noticed by rank 0") { (1, &there) } else { (0, &back) };
        holds(&text, &[&peer(to), way]);
        let status = ["(status 2)", "(status 12)"].iter().any(|status| text.contains(status));
        assert!(status, "neither that it cannot send nor that nobody answers: {text}");
    }
    holds(&failed("kill", 0), &["rank 1 on machine (link verbs) is lost: its process ended"]);
    assert_eq!(scenarios.keys().collect::<Vec<_>>(), Vec::<&(String, u64)>::new());
    check_resources(&said, 2);
}

/// A rank in each of two machines, joined by network cards.
#[test]
fn collectives_between_two_machines() {
    let Some(image) = image() else { return };
    // Both are free now; nobody else asks for these.
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let ports = [0, 1].map(|at: usize| sockets[at].local_addr().unwrap().port());
    drop(sockets);
    let machines = [0, 1].map(|rank: usize| {
        let (own, peer) = (ports[rank], ports[1 - rank]);
        let net = format!(
            "dgram,id=net,local.type=inet,local.host=127.0.0.1,local.port={own},\
             remote.type=inet,remote.host=127.0.0.1,remote.port={peer}"
        );
        let card = format!("virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{rank},romfile=");
        let devices = ["-netdev".to_owned(), net, "-device".to_owned(), card];
        Machine::boot(image, 512, &format!("RANK={rank}"), &devices)
    });
    for (rank, machine) in (0..).zip(machines) {
        let said = machine.said();
        check_rank(&of_ranks(&said), rank, 2, 1);
        check_resources(&said, 1);
    }
}
