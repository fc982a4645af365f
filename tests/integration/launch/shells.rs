//! `topoctl env`, evaluated by the shells that people have.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use topology::snapshot::{LinkLayer, NicRole};
use topology::{Nic, Snapshot};

use super::{clean, host, recorded};
use crate::cli::check_json;

/// Each is skipped where it is not there; `sh` always is.
const SHELLS: [&[&str]; 4] = [&["sh"], &["dash"], &["bash", "--posix"], &["bash"]];

/// What a shell has set after evaluating the text, of what was not set before.
fn evaluated(
    shell: &[&str],
    from: &Path,
    arguments: &str,
    preset: &[(&str, &str)],
) -> Option<(BTreeMap<String, String>, String)> {
    let script =
        format!("eval \"$(\"$TOPOCTL\" env --from \"$MACHINE\" {arguments})\"; exec env -0");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-euc", &script]).env_clear().current_dir(folder.path());
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command.env("TOPOCTL", crate::programs::topoctl()).env("MACHINE", from);
    command.envs(preset.iter().copied());
    let output = command.output().ok()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{shell:?}: {error}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{shell:?} ran something: {left:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let own = ["PATH", "TOPOCTL", "MACHINE", "PWD", "OLDPWD", "_", "SHLVL"];
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.filter(|(name, _)| !own.contains(name));
    Some((pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), error))
}

/// Names that would run something if a shell saw them bare, each in a place where it is written out.
fn hostile() -> Snapshot {
    let mut host = host();
    host.nics[0].name = "m$(touch${IFS}pwned)`touch${IFS}pwned`;touch${IFS}pwned&|><*?~!".into();
    host.nics[1].name = "n\\".into();
    host.gpus[0].name = Some("'; touch pwned; '\n touch pwned\n".into());
    host.nics.push(Nic {
        role: NicRole::Other,
        role_reason: Some("x\ntouch pwned\r\n$(touch pwned)".into()),
        link_layer: Some(LinkLayer::Ethernet),
        up: Some(true),
        port: Some(1),
        netdevs: vec!["e'th 0\"\n$(touch pwned)\n'\\".into()],
        ..Nic::new("evil\ntouch pwned\n")
    });
    host
}

#[test]
fn every_shell_has_the_wanted_environment() {
    for machine in [host(), hostile()] {
        let (_folder, from) = recorded(&machine);
        for launcher in ["torchrun", "mpirun", "srun", "kubernetes"] {
            let name = from.display().to_string();
            let arguments =
                ["env", "--launcher", launcher, "--exec", "--from", &name, "-o", "json"];
            let document = check_json(&arguments, "", 0);
            let wanted: BTreeMap<String, String> = document["set"]
                .as_array()
                .unwrap()
                .iter()
                .map(|export| {
                    let text = |key: &str| export[key].as_str().unwrap().to_owned();
                    assert!(!text("reason").is_empty());
                    (text("name"), text("value"))
                })
                .collect();
            assert!(
                wanted.contains_key("NCCL_IB_HCA") && wanted.contains_key("CUDA_DEVICE_ORDER"),
                "{wanted:?}"
            );
            let mut shells = 0;
            for shell in SHELLS {
                let call = format!("--launcher {launcher} --exec");
                let Some((found, _)) = evaluated(shell, &from, &call, &[]) else { continue };
                assert_eq!(found, wanted, "{shell:?} {launcher}");
                shells += 1;
            }
            assert!(shells > 0);
        }
    }
}

#[test]
fn what_is_set_stays_and_errors_set_nothing() {
    let (folder, from) = recorded(&host());
    let preset = [("NCCL_IB_HCA", "^mlx5_9"), ("UCX_NET_DEVICES", "")];
    let (found, error) = evaluated(SHELLS[0], &from, "--launcher srun", &preset).unwrap();
    assert_eq!((found["NCCL_IB_HCA"].as_str(), found["UCX_NET_DEVICES"].as_str()), ("^mlx5_9", ""));
    assert!(error.contains("NCCL_IB_HCA='^mlx5_9' is set and stays"), "{error}");
    let (found, _) = evaluated(SHELLS[0], &from, "--launcher srun --force", &preset).unwrap();
    assert_eq!(found["NCCL_IB_HCA"], "=mlx5_0:1,mlx5_1:1");
    // Evaluated again, the same.
    let again: Vec<(&str, &str)> = found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(evaluated(SHELLS[0], &from, "--launcher srun", &again).unwrap().0, found);

    let bad = folder.path().join("bad.json");
    fs::write(&bad, "neither this nor that").unwrap();
    for (from, launcher) in [(folder.path().join("no-such"), "srun"), (bad, "srun"), (from, "pbs")]
    {
        let mut command = clean(crate::programs::topoctl());
        let output =
            command.args(["env", "--launcher", launcher, "--from"]).arg(from).output().unwrap();
        assert!(output.stdout.is_empty() && output.status.code() == Some(2));
        assert!(!output.stderr.is_empty());
    }
}

/// What a pod is given parses as YAML with the same values.
#[test]
fn pods_have_the_same_values() {
    let (_folder, from) = recorded(&hostile());
    let name = from.display().to_string();
    let call = ["env", "--launcher", "kubernetes", "--from", &name, "-o"];
    let json = check_json(&[&call[..], &["json"]].concat(), "", 0);
    let yaml = crate::cli::check(&[&call[..], &["k8s"]].concat(), "", 0);
    let mut lines = yaml.lines().filter(|line| !line.starts_with('#'));
    for export in json["set"].as_array().unwrap() {
        assert_eq!(
            lines.next(),
            Some(format!("- name: {}", export["name"].as_str().unwrap()).as_str())
        );
        let value = lines.next().unwrap().strip_prefix("  value: ").unwrap();
        assert_eq!(serde_json::from_str::<Value>(value).unwrap(), export["value"]);
    }
    assert_eq!(lines.next(), None);
}
