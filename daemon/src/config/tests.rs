use clap::Parser as _;

use super::*;
use crate::chain;

fn args(args: &[&str]) -> Args {
    Args::try_parse_from([&["topod"], args].concat()).unwrap()
}

#[track_caller]
fn check(given: &[&str], expect: Result<&MachineSource, &str>) {
    match (args(given).validate(), expect) {
        (Ok((config, _)), Ok(source)) => assert_eq!(&config.source, source),
        (Err(error), Err(text)) => {
            let error = chain(&error);
            assert!(error.contains(text), "'{error}' does not say '{text}'");
        }
        (result, _) => panic!("{given:?} gave {result:?}"),
    }
}

const MACHINE: &str =
    r#"{"schema_version":1,"name":"a","gpus":["0","1"],"switches":[],"links":[]}"#;

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.xml");
    fs::write(&file, MACHINE).unwrap();
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let (dir, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
    let empty = empty.to_str().unwrap();
    let socket = &format!("{dir}/topod.sock")[..];
    let long = format!("{dir}/{}", "s".repeat(120));

    check(&["--socket", socket, "--source", file], Ok(&MachineSource::Recorded(file.into())));
    check(
        &["--socket", socket, "--sysfs-root", dir],
        Ok(&MachineSource::Probe(ProbeConfig::recorded(dir).with_child())),
    );
    check(&["--socket", socket], Ok(&MachineSource::Probe(ProbeConfig::live().with_child())));
    check(&["--socket", socket, "--source", "/nowhere"], Err("--source /nowhere: No such file"));
    check(&["--socket", socket, "--source", empty], Err(empty));
    check(&["--socket", socket, "--source", dir], Err("no sys in it"));
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("sys/bus/pci/devices")).unwrap();
    let tree = tree.to_str().unwrap();
    check(&["--socket", socket, "--source", tree], Ok(&MachineSource::Recorded(tree.into())));
    check(&["--socket", socket, "--sysfs-root", file], Err("not a directory"));
    check(&["--socket", socket, "--nvml", "/nowhere"], Err("--nvml /nowhere"));
    check(&["--socket", "/nowhere/topod.sock"], Err("its folder does not exist"));
    check(&["--socket", file], Err("something else at this path"));
    check(&["--socket", &long], Err("longer than"));
    check(&["--socket", socket, "--events", "udev"], Err("--events 'udev'"));
    check(&["--socket", socket, "--log", "daemon=loud"], Err("--log 'daemon=loud'"));
    check(&["--socket", socket, "--rates", "fast"], Err("--rates 'fast': "));
    check(&["--socket", socket, "--metrics", "0.0.0.0:1"], Err("no address of this host alone"));
    check(&["--socket", socket, "--metrics", "here"], Err("--metrics 'here' is neither"));
    check(&["--socket", socket, "--metrics", "unix:/nowhere/m"], Err("--metrics /nowhere/m: its"));
    check(&["--socket", socket, "--metrics-textfile", "/tmp/topod"], Err("end in .prom"));
    check(&["--socket", socket, "--metrics-textfile", "/nowhere/t.prom"], Err("its folder does"));
    check(&["--socket", socket, "--state", "/nowhere"], Err("--state /nowhere is not"));
    check(&["--socket", socket, "--config", "/nowhere"], Err("cannot read /nowhere: No such"));
}

#[test]
fn a_recorded_machine_is_not_probed() {
    let args = ["topod", "--source", "a", "--nvml", "b"];
    assert!(Args::try_parse_from(args).is_err());
}

/// A file's text to an error that begins with the file's place, or to a configuration.
#[track_caller]
fn check_file(text: &str, expect: Result<fn(&Config) -> bool, &str>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("topod.toml");
    let text = text.replace("DIR", folder.path().to_str().unwrap());
    fs::write(folder.path().join("machine.json"), MACHINE).unwrap();
    fs::write(&path, &text).unwrap();
    let (path, socket) = (path.to_str().unwrap(), folder.path().join("topod.sock"));
    let given = ["--config", path, "--socket", socket.to_str().unwrap()];
    match (args(&given).validate(), expect) {
        (Ok((config, _)), Ok(holds)) => assert!(holds(&config), "{config:?}"),
        (Err(error), Err(place)) => {
            let error = chain(&error);
            let expect = format!("{path}:{place}");
            assert!(error.starts_with(&expect), "'{error}' does not begin with '{expect}'");
        }
        (result, _) => panic!("{text} gave {result:?}"),
    }
}

#[test]
fn the_file_says_what_options_say() {
    check_file("", Ok(|config| config.limits == Limits::default() && config.poll == Some(POLL)));
    check_file(
        "poll_seconds = 0\nrates = \"nominal\"",
        Ok(|config| config.poll.is_none() && config.rates == RateModel::Nominal),
    );
    check_file(
        "events = \"none\"\nsource = 'DIR/machine.json'\nstate = 'DIR'",
        Ok(|config| {
            config.events == EventSource::None
                && matches!(config.source, MachineSource::Recorded(_))
                && config.state.is_some()
        }),
    );
    check_file(
        "metrics = '127.0.0.1:9835'\nmetrics_textfile = 'DIR/t.prom'\n[limits]\nstreams = 7",
        Ok(|config| {
            config.limits.streams == 7
                && config.metrics_textfile.is_some()
                && matches!(config.metrics, Some(MetricsAddress::Loopback(_)))
        }),
    );
}

#[test]
fn errors_name_line_and_column() {
    check_file("poll_seconds = \"often\"", Err("1:16: invalid type"));
    check_file("\n\nspeed = 7", Err("3:1: unknown field `speed`"));
    check_file("rates = ", Err("1:9: "));
    check_file("# ä\nrates = 'fast'", Err("2:9: rates 'fast': "));
    check_file("\n  events = \"udev\"", Err("2:12: events 'udev' is neither"));
    check_file("source = '/nowhere'", Err("1:10: source /nowhere: No such file"));
    check_file("source = 'DIR/machine.json'\nnvml = '/x'", Err("1:10: source "));
    check_file("[limits]\nstreams = 0", Err("2:11: limits.streams 0 lets nobody in"));
    check_file("[limits]\nstreams = -1", Err("2:11: invalid value"));
    check_file("[tcp]\nlisten = '0.0.0.0:1'", Err("1:1: missing field `certificate`"));
    check_file(
        "metrics = '10.0.0.1:1'",
        Err("1:11: metrics '10.0.0.1:1' is no address of this host"),
    );
    let tcp = "[tcp]\nlisten = 'here'\ncertificate = 'c'\nkey = 'k'\nclient_ca = 'a'";
    check_file(tcp, Err("2:10: tcp.listen 'here' is not an address"));
    let tcp = "[tcp]\nlisten = '[::]:1'\ncertificate = '/c'\nkey = '/k'\nclient_ca = '/a'";
    check_file(tcp, Err("1:1: tcp: cannot read /a: No such file"));
}

#[test]
fn the_command_line_wins() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("topod.toml");
    fs::write(&path, "rates = 'nominal'\nsource = '/nowhere'\nsocket = '/nowhere/s'").unwrap();
    let socket = folder.path().join("s");
    let given = ["--rates", "measured", "--socket", socket.to_str().unwrap(), "--config"];
    let given = [&given[..], &[path.to_str().unwrap(), "--sysfs-root", "/"]].concat();
    let (config, _) = args(&given).validate().unwrap();
    assert_eq!((config.rates, config.socket), (RateModel::Measured, socket));
    assert!(matches!(config.source, MachineSource::Probe(_)));
}

/// No file is ordinary; one that may not be read, or is none, is not.
#[test]
fn only_an_absent_default_file_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "rates = 'nominal'").unwrap();
    File::read_if_there(&folder.path().join("none")).unwrap();
    assert!(File::read_if_there(&file).unwrap().content.rates.is_some());
    for unreadable in [folder.path().to_owned(), file.join("below a file")] {
        let error = File::read_if_there(&unreadable).unwrap_err();
        assert!(matches!(error, FileError::Read { .. }), "{error}");
    }
}

#[test]
fn the_managers_folder_is_for_state_that_has_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (config, named) = (folder.path().join("topod.toml"), folder.path().join("named"));
    fs::create_dir(&named).unwrap();
    let socket = folder.path().join("s");
    let state = |text: &str, managers: &Path| {
        fs::write(&config, text).unwrap();
        let given = ["--socket", socket.to_str().unwrap(), "--config", config.to_str().unwrap()];
        let args = Args { state_directory: Some(managers.into()), ..args(&given) };
        args.validate().map(|(config, _)| config.state).map_err(|error| chain(&error))
    };
    assert_eq!(state("", folder.path()), Ok(Some(folder.path().into())));
    let text = format!("state = '{}'", named.display());
    assert_eq!(state(&text, folder.path()), Ok(Some(named.clone())));
    assert_eq!(state(&text, Path::new("/nowhere")), Ok(Some(named)));
    let refused = state("", Path::new("/nowhere")).unwrap_err();
    assert!(
        refused.starts_with("STATE_DIRECTORY in the environment: /nowhere is not"),
        "{refused}"
    );
}
