//! `cargo xtask peers`: the collectives of this project and of MPI libraries and Gloo in turn on this machine, and a table of both.
//!
//! ```text
//!   libraries ── found, built ──▶ runs ── one process group each, short ──▶ results file ──▶ table, misses
//! ```
//!
//! A run is one library, link, collective, placement and number of ranks, over all sizes. What a run printed is kept at once, so a
//! command that was interrupted goes on where it stopped; a run that failed is kept as such, with why. A virtual machine's cores move:
//! what they need to reach each other's caches changes threefold from minute to minute. So everything is run several times, the
//! libraries in turn, and the best run of each counts. Over `veth` half of the ranks are on either of two hosts.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::workspace_root;

mod libraries;
mod table;
mod veth;

use libraries::Library;

/// Runs of each case.
const PASSES: u32 = 3;
/// Longest time of a run; a library that takes longer for these sizes is no rival.
const LIMIT: Duration = Duration::from_secs(40);
/// What each size is measured for, in milliseconds.
const BUDGET_MS: &str = "60";
/// Hot sizes; the last two only where few ranks leave memory and time for them.
const SIZES: [u64; 13] = [
    8,
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];
/// Cold sizes.
const COLD_SIZES: [u64; 2] = [1 << 20, 4 << 20];
const RANKS: [u32; 3] = [2, 4, 8];
/// With the placements each has in MPI and here.
const COLLECTIVES: [(&str, &[&str]); 10] = [
    ("all-reduce", &["in", "out"]),
    ("broadcast", &["in"]),
    ("all-gather", &["out"]),
    ("reduce-scatter", &["out"]),
    ("all-to-all", &["out"]),
    ("reduce", &["out"]),
    ("gather", &["out"]),
    ("scatter", &["out"]),
    ("send-recv", &["out"]),
    ("barrier", &["in"]),
];

/// What is measured in one go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    link: &'static str,
    collective: &'static str,
    placement: &'static str,
    cold: bool,
    ranks: u32,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for link in ["shm", "tcp", "veth"] {
            for ranks in RANKS {
                for (collective, placements) in COLLECTIVES {
                    for placement in placements {
                        let case = Self { link, collective, placement, cold: false, ranks };
                        // Out of cache the socket's copies hide the difference.
                        let cold = (link == "shm" && collective != "barrier")
                            .then(|| Self { cold: true, ..case.clone() });
                        all.push(case);
                        all.extend(cold);
                    }
                }
            }
        }
        all
    }

    fn sizes(&self) -> Vec<u64> {
        let most = match (self.link, self.ranks) {
            ("shm", 2) if self.collective == "all-reduce" => 256 << 20,
            ("shm", 2) => 64 << 20,
            (_, _) => 16 << 20,
        };
        match (self.collective, self.cold) {
            ("barrier", _) => vec![0],
            (_, true) => COLD_SIZES.to_vec(),
            (_, false) => SIZES.into_iter().filter(|size| *size <= most).collect(),
        }
    }

    fn key(&self, who: &str) -> String {
        let Self { link, collective, placement, cold, ranks } = self;
        let heat = if *cold { "cold" } else { "hot" };
        format!("{who}\t{link}\t{collective}\t{placement}\t{heat}\t{ranks}")
    }
}

pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let (mut results, mut only, mut passes) =
        (workspace_root().join("target/peers/results.tsv"), String::new(), PASSES);
    for pair in arguments.chunks(2) {
        match pair {
            ["--results", path] => results = PathBuf::from(path),
            ["--only", text] => only = (*text).to_owned(),
            ["--passes", count] => {
                passes = count.parse().map_err(|_| format!("{count} is no number of passes"))?;
            }
            _ => return Err(format!("unknown arguments {}", pair.join(" "))),
        }
    }
    let folder = results.parent().ok_or("the results file has no folder")?.to_path_buf();
    // Libraries that are told where they are need the whole path.
    let folder = fs::create_dir_all(&folder)
        .and_then(|()| fs::canonicalize(&folder))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let ours = build()?;
    let libraries = libraries::find(&folder);
    let hosts = veth::Hosts::new(&folder);
    if let Err(why) = &hosts {
        println!("peers: without two hosts: {why}");
    }
    let done = runs(&read(&results));
    let cases = || Case::all().into_iter().filter(|case| case.link != "veth" || hosts.is_ok());
    for (pass, case) in (0..passes).flat_map(|pass| cases().map(move |case| (pass, case))) {
        let mut who: Vec<(String, Vec<String>)> =
            vec![("ours".to_owned(), own(&ours, &case, false, &folder))];
        if case.link == "shm" {
            who.push(("registered".to_owned(), own(&ours, &case, true, &folder)));
        }
        let peers = libraries.iter().filter(|library| library.link == case.link);
        who.extend(peers.map(|library| (library.name.clone(), theirs(library, &case, &folder))));
        for (name, command) in who {
            let key = case.key(&name);
            if done.get(&key).is_some_and(|count| *count > pass) || !key.contains(&only) {
                continue;
            }
            let start = Instant::now();
            let lines = match measure(&command, case.ranks) {
                Ok(text) => rows(&name, &text, &case),
                Err(why) => format!("{key}\t-\t{why}\n"),
            };
            append(&results, &lines)?;
            println!("peers: {} in {:.1} s", key.replace('\t', " "), start.elapsed().as_secs_f64());
        }
    }
    println!("{}", table::render(&read(&results)));
    Ok(())
}

fn build() -> Result<PathBuf, String> {
    let root = workspace_root();
    let mut build = crate::cargo();
    build.args(["build", "--release", "-p", "cli"]);
    let status = build.status().map_err(|error| format!("cargo: {error}"))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    status
        .success()
        .then(|| target.join("release/topoctl"))
        .ok_or_else(|| "the build failed".to_owned())
}

fn own(program: &Path, case: &Case, registered: bool, folder: &Path) -> Vec<String> {
    let sizes: Vec<String> = case.sizes().iter().map(|size| size.max(&8).to_string()).collect();
    let (ranks, sizes) = (case.ranks.to_string(), sizes.join(","));
    let machine = workspace_root().join("tests/fixtures/dgx1v/snapshot.json");
    let mut command: Vec<String> = vec![program.display().to_string(), "bench".to_owned()];
    let machine = machine.display().to_string();
    let fixed = [
        case.collective,
        "--ranks",
        &ranks,
        "--sizes",
        &sizes,
        "--transport",
        if case.link == "veth" { "tcp" } else { case.link },
        "--placement",
        case.placement,
        "--from",
        &machine,
        "--min-time",
        BUDGET_MS,
        "-o",
        "json",
    ];
    command.extend(fixed.map(str::to_owned));
    if case.link == "veth" {
        return veth::own(folder, case.ranks, command);
    }
    command.push("--pin".to_owned());
    if case.cold {
        command.push("--cold".to_owned());
    }
    if registered {
        command.push("--registered".to_owned());
    }
    command
}

fn theirs(library: &Library, case: &Case, folder: &Path) -> Vec<String> {
    let mut command = library.run(case.ranks, folder);
    let heat = if case.cold { "cold" } else { "hot" };
    command.extend([case.collective, case.placement, heat, BUDGET_MS].map(str::to_owned));
    command.extend(case.sizes().iter().map(u64::to_string));
    command
}

/// Runs it before everything else on this machine, so that what others do shows little: on a core for each rank with real-time
/// priority, else as the nicest to itself, because ranks that only spin would keep the core from those they wait for.
fn measure(command: &[String], ranks: u32) -> Result<String, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let first: &[&str] =
        if ranks as usize <= cores { &["chrt", "-f", "20"] } else { &["nice", "-n", "-20"] };
    let limit = format!("{}", LIMIT.as_secs());
    let mut run = Command::new("timeout");
    run.args(["-k", "2", &limit]).args(first).args(command);
    run.stdin(Stdio::null())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let output = run.output().map_err(|error| format!("{}: {error}", command[0]))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Ok(text),
        Some(124 | 137) if text.trim().is_empty() => Err(format!("over {limit} s")),
        // What it got through before that counts.
        Some(124 | 137) => Ok(text),
        _ => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no word");
            Err(format!("{}: {}", output.status, last.trim()))
        }
    }
}

/// One line for each size: bytes, median, least and tenth percentile in microseconds, wrong elements.
fn rows(who: &str, text: &str, case: &Case) -> String {
    let key = case.key(who);
    let mut lines = String::new();
    if let Ok(report) = serde_json::from_str::<serde_json::Value>(text) {
        let results = report["results"].as_array().cloned().unwrap_or_default();
        for (row, bytes) in results.iter().zip(case.sizes()) {
            let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
            let figures = ["time_us", "time_min_us", "time_p10_us"].map(number);
            lines += &line(&key, bytes, figures, row["wrong"].as_u64().unwrap_or(1));
            let limit = number("memory_limit_us");
            if who == "registered" && limit.is_finite() {
                lines += &line(&case.key("limit"), bytes, [limit; 3], 0);
            }
        }
    }
    for words in text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
        let parsed: Option<Vec<f64>> = words.iter().map(|word| word.parse().ok()).collect();
        if let Some([_, median, least, tenth, wrong]) = parsed.as_deref()
            && let Some(bytes) = words.first().and_then(|bytes| bytes.parse().ok())
        {
            lines += &line(&key, bytes, [*median, *least, *tenth], u64::from(*wrong != 0.0));
        }
    }
    if lines.is_empty() { format!("{key}\t-\tprinted no figures\n") } else { lines }
}

fn line(key: &str, bytes: u64, [median, least, tenth]: [f64; 3], wrong: u64) -> String {
    format!("{key}\t{bytes}\t{median:.4}\t{least:.4}\t{tenth:.4}\t{wrong}\n")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn append(path: &Path, lines: &str) -> Result<(), String> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(lines.as_bytes()))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs that were made of each case, by the size that was measured most often.
fn runs(results: &str) -> BTreeMap<String, u32> {
    let mut sizes: BTreeMap<String, u32> = BTreeMap::new();
    for line in results.lines() {
        let size = line.splitn(8, '\t').take(7).collect::<Vec<_>>().join("\t");
        *sizes.entry(size).or_default() += 1;
    }
    let mut runs = BTreeMap::new();
    for (size, count) in sizes {
        let key = size.rsplit_once('\t').map_or("", |(key, _)| key).to_owned();
        let most = runs.entry(key).or_insert(0);
        *most = count.max(*most);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_printed_becomes_lines_and_counts_as_done() {
        let case =
            Case { link: "shm", collective: "broadcast", placement: "in", cold: false, ranks: 2 };
        let lines = rows("mpich", "8 0.25 0.2 0.21 0\nnoise\n64 0.5 0.4 0.41 3\n", &case);
        assert_eq!(lines.lines().count(), 2);
        assert!(lines.contains("\t64\t0.5000\t0.4000\t0.4100\t1\n"), "{lines}");
        assert_eq!(runs(&lines), BTreeMap::from([(case.key("mpich"), 1)]));
        let failed = rows("mpich", "", &case);
        let all = [lines.clone(), lines.clone(), failed].concat();
        assert_eq!(runs(&all), BTreeMap::from([(case.key("mpich"), 2)]));
        let json = r#"{"results":[{"bytes":8,"time_us":1.5,"time_min_us":1,"time_p10_us":1.25,"wrong":0,"memory_limit_us":0.5}]}"#;
        assert!(
            rows("registered", json, &case).contains("limit\tshm\tbroadcast\tin\thot\t2\t8\t0.5")
        );
        assert_eq!(rows("x", "", &case), "x\tshm\tbroadcast\tin\thot\t2\t-\tprinted no figures\n");
    }

    #[test]
    fn every_case_has_sizes() {
        let all = Case::all();
        assert!(all.iter().all(|case| !case.sizes().is_empty()));
        assert!(all.iter().any(|case| case.cold) && all.iter().any(|case| case.link == "tcp"));
    }
}
