//! Debian's ibsim stands for a fabric and its cards, so that the real ibnetdiscover walks over it.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{fabric, json};

/// The library that stands before libibumad, in Debian's place for it.
const UMAD: &str = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";

/// Two scalable units of four hosts with two rails, two spines above. `swapped` has the second NIC of one host at the leaf of the first.
fn network(swapped: bool) -> String {
    let mut text = String::new();
    let leaf_of = |host: usize, rail: usize| match (swapped, host, rail) {
        (true, 1, 1) => (0, 0, 20),
        _ => (host / 4, rail, host % 4 + 1),
    };
    let port = |text: &mut String, number: usize, id: &str, far: usize| {
        writeln!(text, "[{number}]\t\"{id}\"[{far}]").expect("text");
    };
    for unit in 0..2 {
        for rail in 0..2 {
            writeln!(text, "Switch\t36 \"S-leaf{unit}{rail}\"\t# \"leaf{unit}{rail}\"")
                .expect("text");
            for host in 0..8 {
                for nic in 0..2 {
                    let (at_unit, at_rail, number) = leaf_of(host, nic);
                    if (at_unit, at_rail) == (unit, rail) {
                        port(&mut text, number, &format!("H-{host}-{nic}"), 1);
                    }
                }
            }
            for spine in 0..2 {
                port(&mut text, 31 + spine, &format!("S-spine{spine}"), 2 * unit + rail + 1);
            }
            text.push('\n');
        }
    }
    for spine in 0..2 {
        writeln!(text, "Switch\t36 \"S-spine{spine}\"\t# \"spine{spine}\"").expect("text");
        for leaf in 0..4 {
            port(&mut text, leaf + 1, &format!("S-leaf{}{}", leaf / 2, leaf % 2), 31 + spine);
        }
        text.push('\n');
    }
    for host in 0..8 {
        for nic in 0..2 {
            let (unit, rail, number) = leaf_of(host, nic);
            writeln!(text, "Hca\t1 \"H-{host}-{nic}\"\t# \"n{host} mlx5_{nic}\"").expect("text");
            port(&mut text, 1, &format!("S-leaf{unit}{rail}"), number);
            text.push('\n');
        }
    }
    text
}

/// A running ibsim; it ends with the value.
struct Simulator(Child);

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the tools are there; says which are missing.
fn tools() -> bool {
    let found = |command: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<_> = std::env::split_paths(&path).collect();
        folders.push("/usr/sbin".into());
        folders.iter().any(|folder| folder.join(command).is_file())
    };
    let missing: Vec<&str> = [
        (found("ibsim"), "ibsim-utils"),
        (found("ibnetdiscover"), "infiniband-diags"),
        (Path::new(UMAD).is_file(), "libumad2sim0"),
    ]
    .into_iter()
    .filter_map(|(there, package)| (!there).then_some(package))
    .collect();
    if !missing.is_empty() {
        println!("skipped: there is no Debian package {}", missing.join(", "));
    }
    missing.is_empty()
}

/// Starts ibsim on a network, and returns what ibnetdiscover prints.
fn discover(folder: &Path, name: &str, text: &str, args: &[&str]) -> Vec<u8> {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    // ibsim listens on a socket named by this, and so beside others.
    let socket = folder.join(format!("{name}.sock"));
    let mut child = Command::new("ibsim")
        .arg("-s")
        .arg(&path)
        .env("IBSIM_SOCKNAME", &socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("ibsim starts");
    let stdout = child.stdout.take().expect("piped");
    let simulator = Simulator(child);
    // It serves from when it says so. Its output stays open: it would end where nobody reads.
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let ready = lines.find(|line| line.contains("ready"));
    let output = Command::new("ibnetdiscover")
        .args(args)
        .env("PATH", format!("/usr/sbin:{}", std::env::var("PATH").unwrap_or_default()))
        .env("LD_PRELOAD", UMAD)
        .env("SIM_HOST", "H-0-0")
        .env("IBSIM_SOCKNAME", &socket)
        .output()
        .expect("ibnetdiscover starts");
    drop(simulator);
    drop(lines);
    assert!(
        output.status.success(),
        "{:?} {ready:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

#[test]
fn ibnetdiscover_of_a_simulated_network() {
    if !tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fabric");
    let path = path.to_str().expect("UTF-8");
    for args in [&[][..], &["-p"]] {
        std::fs::write(path, discover(folder.path(), "net", &network(false), args))
            .expect("written");
        let (value, code) = json(&[path]);
        assert_eq!((code, value["links"].as_u64()), (0, Some(16 + 8)), "{args:?}: {value}");
        let tiers = value["tiers"].as_array().expect("tiers");
        assert_eq!(
            tiers.iter().map(|tier| tier["switches"].as_u64()).collect::<Vec<_>>(),
            [Some(4), Some(2)]
        );
        assert_eq!(tiers[0]["over_subscription"], 2.0);
        for host in value["hosts"].as_array().expect("hosts") {
            for nic in host["nics"].as_array().expect("NICs") {
                let number: u64 =
                    host["name"].as_str().expect("a name")[1..].parse().expect("a number");
                let rail = nic["rail"].as_u64().expect("a rail");
                assert_eq!(nic["leaf"], format!("leaf{}{rail}", number / 4), "{host}");
                assert_eq!(nic["name"], format!("mlx5_{rail}"), "{host}");
                // ibsim's links are of the oldest speed unless told otherwise.
                assert_eq!(nic["gbps"], 10.0, "{host}");
            }
        }
    }
    let (value, _) = json(&["--order", "--hosts", "n[0,4,1,5,2,6,3,7]", path]);
    assert_eq!(value["levels"], serde_json::json!(["leaf", "tier 2"]), "{value}");
    assert_eq!(value["before"]["ring"]["by_level"], serde_json::json!([0, 8]), "{value}");
    assert_eq!(value["after"]["ring"]["by_level"], serde_json::json!([6, 2]), "{value}");
}

#[test]
fn a_cable_at_the_wrong_leaf_is_found() {
    if !tools() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fabric");
    std::fs::write(&path, discover(folder.path(), "net", &network(true), &[])).expect("written");
    let output = fabric(&[path.to_str().expect("UTF-8")]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{stdout}");
    assert!(stdout.contains("degraded fabric-nic-off-rail: n1 mlx5_1"), "{stdout}");
    assert!(stdout.contains("it is at leaf00; others of rail 1 around are at leaf01"), "{stdout}");
}
