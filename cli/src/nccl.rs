//! `topoctl nccl`: what stock NCCL takes from this host, and what of it goes wrong in silence.

mod diff;

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use topology::Finding;
use topology::nccl_conf::{self, ConfFile, ENVIRONMENT};
use topology::nccl_hca::{self, HcaFilter};

use crate::args::{NcclCommand, NcclHcaArgs, NcclLintArgs, TextFormat};
use crate::environment::one_host;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source;

/// Larger files are none of NCCL's.
const MOST_BYTES: u64 = 4 << 20;

pub(crate) fn run(command: &NcclCommand) -> Result<Exit, Failure> {
    match command {
        NcclCommand::Lint(args) => lint(args),
        NcclCommand::Hca(args) => hca(args),
        NcclCommand::Diff(args) => diff::run(args),
    }
}

#[derive(Debug, Serialize)]
struct Setting {
    variable: String,
    value: String,
    from: String,
    line: usize,
}

#[derive(Debug, Serialize)]
struct LintDocument {
    schema_version: u32,
    /// Places read, in NCCL's order.
    files: Vec<String>,
    /// What holds in the end.
    settings: Vec<Setting>,
    findings: Vec<Finding>,
}

fn lint(args: &NcclLintArgs) -> Result<Exit, Failure> {
    let topology = source::load(&args.source)?.topology;
    let host = one_host(&topology)?;
    let files = if args.conf.is_empty() {
        found(&args.root)
    } else {
        let given = |path: &PathBuf| {
            let name = path.display().to_string();
            let bytes = read(path).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
            Ok(ConfFile { name, text: String::from_utf8_lossy(&bytes).into_owned() })
        };
        args.conf.iter().map(given).collect::<Result<_, Failure>>()?
    };
    let open = |path: &str| read(&below(&args.root, path));
    let effective = nccl_conf::lint(&files, host, &open);
    let exit = Exit::of(effective.findings.iter().map(|finding| finding.severity));
    let settings = effective.settings.into_iter().map(|(variable, (from, setting))| Setting {
        variable,
        value: setting.value,
        from,
        line: setting.line,
    });
    let document = LintDocument {
        schema_version: 1,
        files: files.into_iter().map(|file| file.name).collect(),
        settings: settings.collect(),
        findings: effective.findings,
    };
    match args.output {
        TextFormat::Json => output::print_json(&document)?,
        TextFormat::Table => {
            let mut text = format!("read: {}\n", document.files.join(", "));
            for setting in &document.settings {
                let Setting { variable, value, from, line } = setting;
                let _ = match from.as_str() {
                    ENVIRONMENT => writeln!(text, "{variable}={value}  ({from})"),
                    _ => writeln!(text, "{variable}={value}  ({from}, line {line})"),
                };
            }
            text.push_str(&output::findings(&document.findings));
            output::print(&text)?;
        }
    }
    Ok(exit)
}

/// The environment's own variables of NCCL, then the files in the order NCCL reads them; those that are not there are left out.
fn found(root: &Path) -> Vec<ConfFile> {
    let environment: Vec<String> = std::env::vars()
        .filter(|(name, value)| name.starts_with("NCCL_") && !value.contains('\n'))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut files = vec![ConfFile { name: ENVIRONMENT.into(), text: environment.join("\n") }];
    let named = std::env::var("NCCL_CONF_FILE").ok().filter(|path| !path.is_empty());
    let own = named.or_else(|| Some(format!("{}/.nccl.conf", home(root)?)));
    for name in own.into_iter().chain(["/etc/nccl.conf".into()]) {
        if let Ok(bytes) = read(&below(root, &name)) {
            files.push(ConfFile { name, text: String::from_utf8_lossy(&bytes).into_owned() });
        }
    }
    files
}

/// This user's home by the user database, which is what NCCL asks; the environment where that does not tell.
fn home(root: &Path) -> Option<String> {
    let uid = std::fs::metadata("/proc/self").ok()?.uid().to_string();
    let database = std::fs::read_to_string(below(root, "/etc/passwd")).unwrap_or_default();
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2) == Some(&uid.as_str())).then(|| fields.get(5).map(|home| (*home).into()))
    };
    database.lines().find_map(entry).flatten().or_else(|| std::env::var("HOME").ok())
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Bytes of a regular file; a pipe would wait for a writer.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".into(),
        std::io::ErrorKind::PermissionDenied => "no permission".into(),
        _ => error.to_string(),
    };
    // Before it is opened, for that is what waits.
    if !std::fs::metadata(path).map_err(words)?.is_file() {
        return Err("not a file".into());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(words)?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(words)?;
    Ok(bytes)
}

#[derive(Debug, Serialize)]
struct HcaDocument {
    schema_version: u32,
    /// What to set; `null` where no port is known to be for traffic between GPUs.
    nccl_ib_hca: Option<String>,
    /// The string that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<String>,
    findings: Vec<Finding>,
}

fn hca(args: &NcclHcaArgs) -> Result<Exit, Failure> {
    let topology = source::load(&args.source)?.topology;
    let host = one_host(&topology)?;
    let exact = HcaFilter::of(&host.nics).map(|filter| filter.to_string());
    let found = args.check.as_deref().map(|text| nccl_hca::lint(text, &host.nics));
    let exit = match (&found, &exact) {
        (Some(found), _) => Exit::of(found.iter().map(|finding| finding.severity)),
        (None, Some(_)) => Exit::Ok,
        (None, None) => Exit::Unknown,
    };
    let document = HcaDocument {
        schema_version: 1,
        nccl_ib_hca: exact,
        checked: args.check.clone(),
        findings: found.unwrap_or_default(),
    };
    match args.output {
        TextFormat::Json => output::print_json(&document)?,
        TextFormat::Table if args.check.is_some() => {
            let text = output::findings(&document.findings);
            output::print(if text.is_empty() { "fine\n" } else { text.trim_start() })?;
        }
        TextFormat::Table => match &document.nccl_ib_hca {
            Some(text) => output::print(&format!("NCCL_IB_HCA=\"{text}\"\n"))?,
            None => output::warn("no port of this host is known to be for traffic between GPUs"),
        },
    }
    Ok(exit)
}
