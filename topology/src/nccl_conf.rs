//! What NCCL takes from its configuration files on a host, and what of it will hurt.
//!
//! ```text
//!   environment ─▶ NCCL_CONF_FILE, or where that is not set ~/.nccl.conf ─▶ /etc/nccl.conf       the first to set a variable wins
//! ```
//!
//! A line is `NAME=VALUE`, taken as it stands: blanks and quotes belong to name or value, a line without `=` is passed over, and
//! only a `#` in the first column begins a remark (`src/misc/param.cc` of NCCL 2.30). None of that is said when it goes wrong, and a
//! file put into an image for one kind of job fails others (Azure/azhpc-images#327).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::nccl_dialect::{MOST_TOPOLOGY_ELEMENTS, scan};
use crate::nccl_topo::MANY_ELEMENTS;
use crate::snapshot::Snapshot;
use crate::words::some_of;
use crate::{BusId, Finding, Severity, formats, nccl_graph, nccl_hca};

/// Topology file that NCCL loads where no variable names one (`src/graph/topo.cc`).
pub const DEFAULT_TOPOLOGY: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

/// Most bytes of a name or a value.
const LONGEST: usize = 1023;

/// A place that sets variables, in the order NCCL reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfFile {
    /// As people know it: `/etc/nccl.conf`, `environment`.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// One variable as a file sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As it stands before the `=`.
    pub variable: String,
    /// As it stands after it.
    pub value: String,
    /// From 1.
    pub line: usize,
}

/// What the files come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effective {
    /// By variable: the place and the setting that hold.
    pub settings: BTreeMap<String, (String, Setting)>,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
}

/// The settings of a file, in its order, as NCCL reads them; lines it passes over are left out.
#[must_use]
pub fn parse(text: &str) -> Vec<Setting> {
    let setting = |(line, text): (usize, &str)| {
        let (variable, value) = text.split_once('=').filter(|_| !text.starts_with('#'))?;
        Some(Setting { variable: variable.into(), value: value.into(), line })
    };
    (1..).zip(text.split('\n')).filter_map(setting).collect()
}

/// Examines what NCCL would take from `files` on a host. `open` gives the bytes of a file that they name, or why it cannot be
/// read.
#[must_use]
pub fn lint(
    files: &[ConfFile],
    host: &Snapshot,
    open: &dyn Fn(&str) -> Result<Vec<u8>, String>,
) -> Effective {
    let mut lint = Lint { found: Effective::default() };
    for file in files {
        lint.lines(file);
        lint.settings(file);
    }
    let value = |lint: &Lint, name: &str| -> Option<(String, String)> {
        let (place, setting) = lint.found.settings.get(name)?;
        let stated = (!setting.value.is_empty()).then(|| setting.value.clone())?;
        Some((at(place, setting.line), stated))
    };
    if let Some((place, path)) = value(&lint, "NCCL_GRAPH_FILE") {
        lint.graph_file(&place, &path, host, open(&path));
    }
    match value(&lint, "NCCL_TOPO_FILE") {
        Some((place, path)) => lint.topology_file(&place, &path, host, open(&path)),
        None => {
            if let Ok(bytes) = open(DEFAULT_TOPOLOGY) {
                lint.topology_file("NCCL's default", DEFAULT_TOPOLOGY, host, Ok(bytes));
            }
        }
    }
    if let Some((place, text)) = value(&lint, "NCCL_IB_HCA") {
        let mut found = nccl_hca::lint(&text, &host.nics);
        found.iter_mut().for_each(|finding| finding.component = place.clone());
        lint.found.findings.append(&mut found);
    }
    lint.found.findings.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.cmp(b)));
    lint.found
}

fn at(place: &str, line: usize) -> String {
    if place == ENVIRONMENT { place.into() } else { format!("{place}, line {line}") }
}

/// Name of the place that goes before all files.
pub const ENVIRONMENT: &str = "environment";

struct Lint {
    found: Effective,
}

impl Lint {
    fn finding(
        &mut self,
        code: &str,
        severity: Severity,
        component: impl Into<String>,
        evidence: impl Into<String>,
        fix: &str,
    ) {
        self.found.findings.push(Finding::new(code, severity, component, evidence, fix));
    }

    /// Lines that NCCL passes over without a word.
    fn lines(&mut self, file: &ConfFile) {
        for (line, text) in (1..).zip(file.text.split('\n')) {
            let plain = text.trim();
            if text.starts_with('#') || plain.is_empty() || text.contains('=') {
                continue;
            }
            let evidence = format!("'{}' has no '=' and is passed over", short(plain));
            let fix = "write NAME=VALUE, or '#' in the first column";
            self.finding(
                "nccl-conf-line-ignored",
                Severity::Degraded,
                at(&file.name, line),
                evidence,
                fix,
            );
        }
    }

    fn settings(&mut self, file: &ConfFile) {
        for setting in parse(&file.text) {
            let place = at(&file.name, setting.line);
            if file.name != ENVIRONMENT {
                self.spelling(&place, &setting);
            }
            let holds = self.found.settings.get(&setting.variable);
            match holds.map(|(file, holds)| (at(file, holds.line), holds.value.clone())) {
                None => {
                    let entry = (file.name.clone(), setting.clone());
                    self.found.settings.insert(setting.variable, entry);
                }
                Some((other, value)) if value != setting.value => {
                    let evidence = format!(
                        "{}={} has no effect: {other} sets it to '{}', and the first wins",
                        short(&setting.variable),
                        short(&setting.value),
                        short(&value)
                    );
                    let fix = "remove one of the two";
                    self.finding("nccl-conf-shadowed", Severity::Info, place, evidence, fix);
                }
                Some(_) => {}
            }
        }
    }

    /// Names and values that are not what they look like.
    fn spelling(&mut self, place: &str, setting: &Setting) {
        let Setting { variable, value, .. } = setting;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if variable.trim_start().starts_with('#') {
            let evidence =
                "a remark must begin in the first column: this line sets a variable of an odd name";
            self.finding(
                "nccl-conf-name-odd",
                Severity::Info,
                place,
                evidence,
                "move '#' to the first column",
            );
        } else if !variable.chars().all(plain) || variable.is_empty() {
            let evidence = format!("sets the variable '{}', blanks and all", short(variable));
            let fix = "write NAME=VALUE without blanks around the name, and without 'export'";
            self.finding("nccl-conf-name-odd", Severity::Degraded, place, evidence, fix);
        }
        let quoted = value.starts_with(['"', '\'']);
        let remark = value.contains(" #");
        if quoted || remark || value.trim() != value.as_str() {
            let what = match (quoted, remark) {
                (true, _) => "the quotes belong to the value",
                (_, true) => "what follows '#' belongs to the value",
                _ => "blanks or a carriage return at its ends belong to the value",
            };
            let evidence = format!("{}: {what}: '{}'", short(variable), short(value));
            let fix = "write the bare value, with line ends of Unix";
            self.finding("nccl-conf-value-odd", Severity::Degraded, place, evidence, fix);
        }
        if variable.len() > LONGEST || value.len() > LONGEST {
            let evidence = format!("{}: only {LONGEST} bytes are kept", short(variable));
            let fix = "shorten it";
            self.finding("nccl-conf-value-cut", Severity::Degraded, place, evidence, fix);
        }
    }

    /// A graph file is read again for every communicator and holds its GPUs to those it lists.
    fn graph_file(
        &mut self,
        place: &str,
        path: &str,
        host: &Snapshot,
        bytes: Result<Vec<u8>, String>,
    ) {
        const FIX: &str =
            "set NCCL_GRAPH_FILE for the jobs it is made for alone, never for a whole host";
        let refuse = |reason: String| format!("NCCL_GRAPH_FILE={path}: {reason}; every job fails");
        let file = match bytes {
            Err(error) => {
                let evidence = refuse(error);
                return self.finding(
                    "nccl-graph-file-unreadable",
                    Severity::Critical,
                    place,
                    evidence,
                    FIX,
                );
            }
            Ok(bytes) => nccl_graph::read(&bytes),
        };
        let graphs = match file {
            Ok(file) => file.graphs,
            Err(error) => {
                let evidence = refuse(error.to_string());
                return self.finding(
                    "nccl-graph-file-broken",
                    Severity::Critical,
                    place,
                    evidence,
                    FIX,
                );
            }
        };
        let channels = graphs.iter().filter(|graph| graph.pattern != NVLS);
        let listed: BTreeSet<u64> =
            channels.flat_map(|graph| &graph.channels).flat_map(|c| c.gpus.clone()).collect();
        if listed.is_empty() {
            return;
        }
        let own: BTreeSet<u64> = host.gpus.iter().map(|gpu| gpu.index.0.into()).collect();
        let words = |gpus: &BTreeSet<u64>| -> String {
            some_of(&gpus.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let foreign: BTreeSet<u64> = listed.difference(&own).copied().collect();
        if !own.is_empty() && !foreign.is_empty() {
            let evidence =
                refuse(format!("it lists GPUs {} that this host lacks", words(&foreign)));
            self.finding("nccl-graph-file-foreign", Severity::Critical, place, evidence, FIX);
            return;
        }
        let rest: BTreeSet<u64> = own.difference(&listed).copied().collect();
        let (severity, who) = match (rest.is_empty(), own.len()) {
            (false, _) => (Severity::Critical, format!("GPUs {} fail with it", words(&rest))),
            (true, 1) => return,
            (true, _) => {
                (Severity::Degraded, "jobs and communicators over fewer GPUs fail with it".into())
            }
        };
        let evidence = format!(
            "NCCL_GRAPH_FILE={path}: it fits communicators over exactly GPUs {}; {who}",
            words(&listed)
        );
        self.finding("nccl-graph-file-fixes-gpus", severity, place, evidence, FIX);
    }

    fn topology_file(
        &mut self,
        place: &str,
        path: &str,
        host: &Snapshot,
        bytes: Result<Vec<u8>, String>,
    ) {
        const FIX: &str = "write it anew: topoctl export --format nccl-topo (for a guest with --for-vm and --map)";
        let name = format!("topology file {path}");
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                let evidence =
                    format!("{name}: {error}; NCCL goes on without it and without a word");
                return self.finding(
                    "nccl-topo-file-unreadable",
                    Severity::Degraded,
                    place,
                    evidence,
                    FIX,
                );
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        let elements = match scan(&text) {
            Ok(scan) => scan.elements,
            Err(offence) => {
                let evidence = format!("{name}, {offence}; every job fails");
                return self.finding(
                    "nccl-topo-file-broken",
                    Severity::Critical,
                    place,
                    evidence,
                    FIX,
                );
            }
        };
        let evidence = |what: &str| {
            format!(
                "{name} has {elements} elements, NCCL's parser takes {MOST_TOPOLOGY_ELEMENTS}: {what}"
            )
        };
        if elements > MOST_TOPOLOGY_ELEMENTS {
            let evidence = evidence("every job fails");
            self.finding("nccl-topo-file-too-large", Severity::Critical, place, evidence, FIX);
        } else if elements > MANY_ELEMENTS {
            let evidence = evidence("each rank adds its GPU and the NICs that the file lacks");
            self.finding("nccl-topo-file-large", Severity::Degraded, place, evidence, FIX);
        }
        match formats::read(&bytes) {
            Ok(hosts) => self.addresses(place, &name, &hosts, host),
            Err(error) => {
                let evidence = format!("{name}: {error}");
                self.finding("nccl-topo-file-broken", Severity::Critical, place, evidence, FIX);
            }
        }
    }

    /// Addresses are how NCCL finds a device in the file.
    fn addresses(&mut self, place: &str, name: &str, file: &[Snapshot], host: &Snapshot) {
        const FIX: &str = "write the file for this host's addresses: topoctl export --format nccl-topo --for-vm --map";
        let own: BTreeSet<BusId> = host.gpus.iter().filter_map(|gpu| gpu.bus_id).collect();
        if own.is_empty() {
            return;
        }
        let [file] = file else {
            let evidence = format!("{name} holds {} hosts, NCCL takes one", file.len());
            return self.finding("nccl-topo-file-hosts", Severity::Degraded, place, evidence, FIX);
        };
        let listed: BTreeSet<BusId> = file.pci_devices.iter().map(|device| device.bus_id).collect();
        let missing: Vec<String> = own.difference(&listed).map(ToString::to_string).collect();
        if missing.len() == own.len() {
            let evidence = format!("{name} lists none of this host's GPUs: it is of another host");
            self.finding("nccl-topo-file-foreign", Severity::Degraded, place, evidence, FIX);
        } else if !missing.is_empty() {
            let evidence = format!("{name} lacks {}", some_of(&missing));
            self.finding("nccl-topo-file-lacks-gpus", Severity::Degraded, place, evidence, FIX);
        }
    }
}

/// Pattern of graphs whose channels list the head alone.
const NVLS: u32 = 5;

fn short(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

/// Body of the fuzz target: any text is read.
pub fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let file = ConfFile { name: "/etc/nccl.conf".into(), text };
    let open = |_: &str| Ok(bytes.to_vec());
    let _ = lint(&[file], &Snapshot::new(crate::snapshot::Source::Live), &open);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Gpu, PciDevice, PciKind, Source};
    use crate::{GpuIndex, Nic};
    use proptest::prelude::*;

    fn host(gpus: u32) -> Snapshot {
        let mut host = Snapshot::new(Source::Live);
        for index in 0..gpus {
            let bus_id = BusId::new(0, u8::try_from(index + 1).unwrap(), 0, 0);
            host.pci_devices.push(PciDevice::new(bus_id.unwrap(), PciKind::Gpu));
            host.gpus.push(Gpu { bus_id, ..Gpu::new(GpuIndex(index)) });
        }
        host.nics.push(Nic { port: Some(1), ..Nic::new("mlx5_0") });
        host
    }

    fn graph(gpus: &[u32]) -> String {
        let gpus: String = gpus.iter().map(|gpu| format!("<gpu dev=\"{gpu}\"/>")).collect();
        format!(
            "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"1\" speedintra=\"20\" speedinter=\"20\" latencyinter=\"0\" typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"1\">\n<channel>{gpus}</channel>\n</graph>\n</graphs>\n"
        )
    }

    fn topology(gpus: u32) -> String {
        let pci = |index: u32| {
            format!(
                "<pci busid=\"0000:{:02x}:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"/>\n",
                index + 1
            )
        };
        let pci: String = (0..gpus).map(pci).collect();
        format!(
            "<system version=\"1\">\n<cpu numaid=\"0\" arch=\"x86_64\">\n{pci}</cpu>\n</system>\n"
        )
    }

    /// With one conf file and files it names, on a host of so many GPUs, these codes.
    #[track_caller]
    fn check(gpus: u32, conf: &str, files: &[(&str, String)], expect: &[&str]) -> Effective {
        let open = |path: &str| -> Result<Vec<u8>, String> {
            let file = files.iter().find(|(name, _)| *name == path);
            file.map(|(_, text)| text.clone().into_bytes()).ok_or_else(|| "no such file".into())
        };
        let file = ConfFile { name: "/etc/nccl.conf".into(), text: conf.into() };
        let found = lint(&[file], &host(gpus), &open);
        let codes: Vec<&str> = found.findings.iter().map(|f| f.code.as_str()).collect();
        assert_eq!(codes, expect, "{conf}: {:#?}", found.findings);
        found
    }

    /// An image has a graph file for four GPUs in /etc/nccl.conf; a job with one dies (Azure/azhpc-images#327,
    /// NVIDIA/nccl#1008).
    #[test]
    fn field_case_072_a_graph_file_for_every_job() {
        let conf = "NCCL_GRAPH_FILE=/opt/graph.xml\n";
        let four = [("/opt/graph.xml", graph(&[0, 1, 2, 3]))];
        let found = check(4, conf, &four, &["nccl-graph-file-fixes-gpus"]);
        assert_eq!(found.findings[0].severity, Severity::Degraded);
        assert_eq!(found.findings[0].component, "/etc/nccl.conf, line 1");
        let found = check(8, conf, &four, &["nccl-graph-file-fixes-gpus"]);
        assert_eq!(found.findings[0].severity, Severity::Critical);
        assert!(found.findings[0].evidence.contains("GPUs 4, 5, 6, 7 fail"));
        check(1, conf, &four, &["nccl-graph-file-foreign"]);
        check(8, conf, &[], &["nccl-graph-file-unreadable"]);
        let broken =
            [("/opt/graph.xml", four[0].1.replace("<graphs", "<?xml version=\"1.0\"?><graphs"))];
        check(8, conf, &broken, &["nccl-graph-file-broken"]);
        check(1, conf, &[("/opt/graph.xml", graph(&[0]))], &[]);
    }

    /// Files are read in one order, and the first to set a variable wins.
    #[test]
    fn field_case_072_load_order() {
        let file = |name: &str, text: &str| ConfFile { name: name.into(), text: text.into() };
        let files = [
            file(ENVIRONMENT, "NCCL_DEBUG=WARN"),
            file("/home/a/.nccl.conf", "NCCL_DEBUG=INFO\nNCCL_ALGO=Ring\n"),
            file("/etc/nccl.conf", "NCCL_ALGO=Tree\nNCCL_PROTO=LL\n"),
        ];
        let found = lint(&files, &host(2), &|_| Err("no such file".into()));
        let holds = |name: &str| {
            let (place, setting) = &found.settings[name];
            (place.clone(), setting.value.clone())
        };
        assert_eq!(holds("NCCL_DEBUG"), (ENVIRONMENT.into(), "WARN".into()));
        assert_eq!(holds("NCCL_ALGO"), ("/home/a/.nccl.conf".into(), "Ring".into()));
        assert_eq!(holds("NCCL_PROTO"), ("/etc/nccl.conf".into(), "LL".into()));
        let codes: Vec<&str> = found.findings.iter().map(|f| f.code.as_str()).collect();
        assert_eq!(codes, ["nccl-conf-shadowed", "nccl-conf-shadowed"]);
    }

    #[test]
    fn lines_that_are_not_what_they_look_like() {
        check(2, "# remark\n\nNCCL_DEBUG=INFO\n", &[], &[]);
        check(2, "NCCL_DEBUG INFO\n", &[], &["nccl-conf-line-ignored"]);
        check(2, "export NCCL_DEBUG=INFO\n", &[], &["nccl-conf-name-odd"]);
        check(2, "NCCL_DEBUG =INFO\n", &[], &["nccl-conf-name-odd"]);
        check(2, " # NCCL_DEBUG=INFO\n", &[], &["nccl-conf-name-odd"]);
        check(2, "NCCL_DEBUG=\"INFO\"\n", &[], &["nccl-conf-value-odd"]);
        check(2, "NCCL_DEBUG=INFO\r\n", &[], &["nccl-conf-value-odd"]);
        check(2, "NCCL_DEBUG=INFO # why\n", &[], &["nccl-conf-value-odd"]);
        check(2, &format!("NCCL_DEBUG={}\n", "x".repeat(2000)), &[], &["nccl-conf-value-cut"]);
        check(2, "NCCL_IB_HCA=^=a,^=b\n", &[], &["nccl-hca-malformed"]);
    }

    #[test]
    fn topology_files() {
        let conf = "NCCL_TOPO_FILE=/t.xml\n";
        let with = |text: String| [("/t.xml", text)];
        check(2, conf, &with(topology(2)), &[]);
        check(2, conf, &[], &["nccl-topo-file-unreadable"]);
        check(2, conf, &with(format!("\t{}", topology(2))), &["nccl-topo-file-broken"]);
        check(3, conf, &with(topology(2)), &["nccl-topo-file-lacks-gpus"]);
        let other = topology(2).replace("0000:", "0001:");
        check(2, conf, &with(other.clone()), &["nccl-topo-file-foreign"]);
        // Without a variable there is the default, and its absence is ordinary.
        check(2, "", &[(DEFAULT_TOPOLOGY, other)], &["nccl-topo-file-foreign"]);
        check(2, "", &[], &[]);
    }

    /// "too many XML nodes (max 256)" (NVIDIA/nccl#2160): said before a job dies of it.
    #[test]
    fn field_case_073_count_of_elements() {
        let conf = "NCCL_TOPO_FILE=/t.xml\n";
        let with = |text: String| [("/t.xml", text)];
        check(2, conf, &with(topology(190)), &[]);
        check(2, conf, &with(topology(230)), &["nccl-topo-file-large"]);
        check(2, conf, &with(topology(254)), &["nccl-topo-file-too-large"]);
    }

    proptest! {
        #[test]
        fn never_panics(text in "(NCCL_TOPO_FILE=x\n|NCCL_IB_HCA=|=|#|<system version=\"1\">|[ -~]|\n){0,30}") {
            fuzz(text.as_bytes());
        }
    }
}
