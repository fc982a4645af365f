//! The tuner plugin, loaded as NCCL loads it by a C program that restates the interface, for every version.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{example, lines};
use crate::cli::{check, dgx1v};

struct Plugin {
    folder: tempfile::TempDir,
    program: PathBuf,
    library: PathBuf,
}

impl Plugin {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("load");
        let compiled = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(&program)
            .arg(example("tuner/examples/load.c"))
            .arg("-ldl")
            .output()
            .expect("a C compiler, which Rust links with");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        // The name that NCCL_TUNER_PLUGIN=topod stands for.
        let library = folder.path().join("libnccl-tuner-topod.so");
        std::fs::copy(crate::programs::tuner_plugin(), &library).unwrap();
        Self { folder, program, library }
    }

    fn command(&self, program: &Path, file: Option<&Path>) -> Command {
        let mut command = Command::new(program);
        command.env_remove("TOPOD_TUNER_FILE").env_remove("NCCL_TUNER_CONFIG_FILE");
        if let Some(file) = file {
            command.env("TOPOD_TUNER_FILE", file);
        }
        command
    }

    fn ask(&self, file: Option<&Path>, ranks: u32, hosts: u32) -> (Vec<String>, String) {
        let mut command = self.command(&self.program, file);
        command.arg(&self.library).args([ranks.to_string(), hosts.to_string()]);
        let output: Output = command.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (lines(&output), log)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// Answers that are NCCL's own.
fn untouched(answers: &[String]) -> bool {
    let own = |line: &String| {
        line.ends_with("as NCCL has it channels 0")
            || line.ends_with("algorithm -1 protocol -1 channels 0")
            || line.starts_with("logged ")
    };
    answers.iter().all(own)
}

#[test]
fn every_version_answers_by_the_file() {
    let plugin = Plugin::new();
    let rows = "allreduce,0,65536,tree,ll,2,1,8\n\
                allreduce,65537,4294967295,tree,simple,-1,1,8\n\
                allreduce,65537,4294967295,nvls,simple,-1,1,8,-1,1\n\
                allreduce,0,18446744073709551615,ring,ll128,16,-1,-1\n\
                broadcast,0,100,ring,ll,-1,2,16\n";
    let file = plugin.write("rows.csv", rows);
    let (answers, log) = plugin.ask(Some(&file), 8, 1);
    assert!(log.contains("4 rows for 8 ranks on 1 hosts, digest "), "{log}");
    assert_eq!(answers.last().unwrap(), "logged 5");
    let has = |line: &str| assert!(answers.iter().any(|own| own == line), "{line}\n{answers:#?}");
    for version in ["v3", "v4", "v5", "v6"] {
        has(&format!("{version} allreduce 65536 registered=0: algorithm 0 protocol 0 channels 2"));
        // Tree with simple is ruled out: the next row that fits.
        has(&format!("{version} allreduce 65537 registered=0: algorithm 1 protocol 1 channels 16"));
        has(&format!(
            "{version} allreduce 1099511627776 registered=0: algorithm 1 protocol 1 channels 16"
        ));
        has(&format!("{version} broadcast 8 registered=0: as NCCL has it channels 0"));
        has(&format!("{version} sendrecv 8 registered=0: as NCCL has it channels 0"));
    }
    for version in ["v4", "v5", "v6"] {
        has(&format!("{version} allreduce 65537 registered=1: algorithm 4 protocol 2 channels 0"));
    }
    // Version 2 takes what it is told: only what any communicator can do.
    has("v2 allreduce 65536: algorithm 0 protocol 0 channels 2");
    has("v2 allreduce 65537: algorithm 0 protocol 2 channels 0");
    has("v2 allreduce 1099511627776: algorithm -1 protocol -1 channels 0");

    // The same on every rank: asked again, the same; another communicator has other rows.
    assert_eq!(plugin.ask(Some(&file), 8, 1), (answers, log));
    let (other, _) = plugin.ask(Some(&file), 16, 2);
    assert!(
        other
            .iter()
            .any(|line| line == "v5 broadcast 8 registered=0: algorithm 1 protocol 0 channels 0")
    );
}

#[test]
fn without_a_good_file_nccl_goes_its_own_way() {
    let plugin = Plugin::new();
    let (answers, log) = plugin.ask(None, 8, 1);
    assert!(untouched(&answers) && log.contains("NCCL's own tuning"), "{log}");
    let bad = plugin.write("bad.csv", "allreduce,0,1,tree,ll,1,1\n");
    let (answers, log) = plugin.ask(Some(&bad), 8, 1);
    assert!(untouched(&answers) && log.contains("line 1") && log.contains("7 fields"), "{log}");
    for path in ["/no/such/file", "/dev/zero", "/"] {
        let (answers, log) = plugin.ask(Some(Path::new(path)), 8, 1);
        assert!(untouched(&answers) && log.contains("NCCL's own tuning"), "{path}: {log}");
    }
    let binary = plugin.folder.path().join("binary");
    std::fs::write(&binary, [0xff, 0, 0xc3, b'\n', b','].repeat(1000)).unwrap();
    assert!(untouched(&plugin.ask(Some(&binary), 8, 1).0));
}

/// What topoctl exports is what the plugin takes, as rows and as the plan itself.
#[test]
fn it_takes_what_topoctl_exports() {
    let plugin = Plugin::new();
    let rows = plugin.folder.path().join("tuner.csv");
    let export = ["export", "--format", "tuner-csv", "--from", &dgx1v(), "-o"];
    check(&[&export[..], &[&rows.display().to_string()]].concat(), "", 0);
    let plan =
        plugin.write("plan.json", &check(&["plan", "--from", &dgx1v(), "-o", "json"], "", 0));
    let (by_rows, log) = plugin.ask(Some(&rows), 8, 1);
    let (by_plan, _) = plugin.ask(Some(&plan), 8, 1);
    assert_eq!(by_rows, by_plan, "{log}");
    assert!(!untouched(&by_rows), "{by_rows:#?}");
    assert!(untouched(&plugin.ask(Some(&rows), 4, 1).0), "a plan for 8 ranks is none for 4");
}

/// A call costs less than a microsecond, by count: some thousand instructions are one.
#[test]
fn a_call_costs_few_instructions() {
    let plugin = Plugin::new();
    let rows: String = (0..20)
        .map(|at| format!("allreduce,{},{},ring,simple,-1,1,8\n", at << 20, (at + 1) << 20))
        .collect();
    let file = plugin.write("rows.csv", &rows);
    let count = |calls: u32| -> Option<u64> {
        let mut command = plugin.command(Path::new("valgrind"), Some(&file));
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&plugin.program);
        command.arg(&plugin.library).args(["8", "1", &calls.to_string()]);
        let output = command.output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let (_, count) = text.split_once("Collected :")?;
        count.split_whitespace().next()?.parse().ok()
    };
    let (Some(few), Some(many)) = (count(1000), count(11_000)) else {
        println!("skipped: there is no valgrind");
        return;
    };
    let each = (many - few) / 10_000;
    println!("{each} instructions a call, of 20 rows");
    assert!(each < 2000, "{each}");
}
