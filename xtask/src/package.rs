//! `cargo xtask deb`: a Debian package of both programs, NCCL's tuner plugin, their unit, user, completions and manual pages.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace_root;

/// What is installed as it lies in the repository.
const FILES: [(&str, &str); 12] = [
    ("deploy/systemd/topod.service", "usr/lib/systemd/system/topod.service"),
    ("deploy/systemd/topod.socket", "usr/lib/systemd/system/topod.socket"),
    ("deploy/systemd/topod.sysusers", "usr/lib/sysusers.d/topod.conf"),
    ("deploy/systemd/topod.tmpfiles", "usr/lib/tmpfiles.d/topod.conf"),
    ("deploy/topod.toml", "etc/topod/topod.toml"),
    ("deploy/man/topod.toml.5", "usr/share/man/man5/topod.toml.5"),
    ("deploy/prometheus/topod.rules.yml", "usr/share/doc/topod/examples/topod.rules.yml"),
    ("deploy/prometheus/scrape.yml", "usr/share/doc/topod/examples/scrape.yml"),
    ("deploy/grafana/topod.json", "usr/share/doc/topod/examples/dashboard.json"),
    ("deploy/examples/remote.conf", "usr/share/doc/topod/examples/remote.conf"),
    ("deploy/examples/acs.conf", "usr/share/doc/topod/examples/acs.conf"),
    ("README.md", "usr/share/doc/topod/README.md"),
];

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/topoctl"),
    ("zsh", "usr/share/zsh/vendor-completions/_topoctl"),
    ("fish", "usr/share/fish/vendor_completions.d/topoctl.fish"),
];

/// Builds the package of the programs in `programs`, or of a release build that is made first; returns its path.
///
/// # Errors
/// In words.
pub(crate) fn deb(programs: Option<&Path>, out: Option<&Path>) -> Result<PathBuf, String> {
    let programs = match programs {
        Some(programs) => programs.to_owned(),
        None => release()?,
    };
    let out = out.map_or_else(|| workspace_root().join("target/debian"), Path::to_owned);
    make_folder(&out)?;
    let root = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    let root = root.path();
    let mut glibc = (0, 0);
    let architecture = run(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let binaries = [
        ("topod", "usr/bin/topod".to_owned(), 0o755),
        ("topoctl", "usr/bin/topoctl".to_owned(), 0o755),
        // Where the loader looks without being told: NCCL_TUNER_PLUGIN=topod has NCCL load libnccl-tuner-topod.so.
        (
            "libnccl_tuner_topod.so",
            format!("usr/lib/{}-linux-gnu/libnccl-tuner-topod.so", env::consts::ARCH),
            0o644,
        ),
    ];
    for (name, to, mode) in binaries {
        let (from, to) = (programs.join(name), root.join(to));
        install(&from, &to, mode)?;
        run(Command::new("strip").arg(&to))?;
        let bytes = fs::read(&to).map_err(|error| at(&to, &error))?;
        glibc = glibc.max(glibc_of(&bytes));
    }
    for (from, to) in FILES {
        install(&workspace_root().join(from), &root.join(to), 0o644)?;
    }
    write(&root.join("usr/share/doc/topod/copyright"), COPYRIGHT, 0o644)?;
    let topoctl = root.join("usr/bin/topoctl");
    for (shell, to) in COMPLETIONS {
        let script = run(Command::new(&topoctl).args(["completions", shell]))?;
        write(&root.join(to), &script, 0o644)?;
    }
    manual(&topoctl, root)?;
    for script in SCRIPTS {
        let from = workspace_root().join("deploy/deb").join(script);
        install(&from, &root.join("DEBIAN").join(script), 0o755)?;
    }
    write(&root.join("DEBIAN/conffiles"), "/etc/topod/topod.toml\n", 0o644)?;
    write(&root.join("DEBIAN/control"), &control(architecture, glibc), 0o644)?;
    folders_for_everyone(root)?;

    let package = out.join(format!("topod_{}_{architecture}.deb", env!("CARGO_PKG_VERSION")));
    let mut dpkg_deb = Command::new("dpkg-deb");
    dpkg_deb.args(["--root-owner-group", "-Zgzip", "--build"]).arg(root).arg(&package);
    if env::var_os("SOURCE_DATE_EPOCH").is_none()
        && let Ok(date) = run(Command::new("git").args(["log", "-1", "--format=%ct"]))
    {
        // Equal sources give equal packages.
        dpkg_deb.env("SOURCE_DATE_EPOCH", date.trim());
    }
    run(&mut dpkg_deb)?;
    Ok(package)
}

const COPYRIGHT: &str = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Files: *
Copyright: the topod authors
License: Apache-2.0
 On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0.
";

fn control(architecture: &str, glibc: (u32, u32)) -> String {
    format!(
        "Package: topod
Version: {}
Architecture: {architecture}
Maintainer: the topod authors <topod@localhost>
Section: admin
Priority: optional
Depends: libc6 (>= {}.{}), libgcc-s1, systemd | systemd-standalone-sysusers | systemd-sysusers
Description: topology discovery and channel planning for GPU hosts
 topod runs on every GPU host. It reads what NVLink, NVSwitch, PCIe, NUMA nodes
 and NICs are there and how they are connected, judges their health, and plans
 the channels over which collectives run fastest. topoctl shows, explains,
 checks and plans, with a daemon or from a recorded file. For stock NCCL there
 is a tuner plugin: NCCL_TUNER_PLUGIN=topod.
 .
 No GPU driver is needed: libraries are found at run time.
",
        env!("CARGO_PKG_VERSION"),
        glibc.0,
        glibc.1
    )
}

fn release() -> Result<PathBuf, String> {
    let mut build = crate::cargo();
    build.args(["build", "--release", "-p", "daemon", "-p", "cli", "-p", "transport-tuner"]);
    let status = build.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo build: {status}"));
    }
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_root().join("target"), PathBuf::from);
    Ok(target.join("release"))
}

fn manual(topoctl: &Path, root: &Path) -> Result<(), String> {
    let made = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    run(Command::new(topoctl).arg("man").arg(made.path()))?;
    for entry in fs::read_dir(made.path()).map_err(|error| at(made.path(), &error))? {
        let page = entry.map_err(|error| at(made.path(), &error))?.path();
        let section = page.extension().unwrap_or_default().to_string_lossy().into_owned();
        let name = page.file_name().unwrap_or_default();
        install(&page, &root.join(format!("usr/share/man/man{section}")).join(name), 0o644)?;
    }
    for section in ["man1", "man5", "man8"] {
        let folder = root.join("usr/share/man").join(section);
        for entry in fs::read_dir(&folder).map_err(|error| at(&folder, &error))? {
            let page = entry.map_err(|error| at(&folder, &error))?.path();
            run(Command::new("gzip").args(["-9n"]).arg(page))?;
        }
    }
    Ok(())
}

/// The newest version of the C library that a program asks for, by the names of symbol versions in it.
fn glibc_of(program: &[u8]) -> (u32, u32) {
    let name = b"GLIBC_";
    let places = program.windows(name.len()).enumerate().filter(|(_, bytes)| bytes == name);
    let versions = places.map(|(place, _)| {
        let rest = &program[place + name.len()..];
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(0);
        let text = String::from_utf8_lossy(&rest[..end]).into_owned();
        let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    });
    versions.max().unwrap_or((2, 17))
}

fn make_folder(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    to.parent().map_or(Ok(()), make_folder)?;
    fs::copy(from, to).map_err(|error| at(from, &error))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(|error| at(to, &error))
}

fn write(to: &Path, text: &str, mode: u32) -> Result<(), String> {
    to.parent().map_or(Ok(()), make_folder)?;
    fs::write(to, text).map_err(|error| at(to, &error))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(|error| at(to, &error))
}

/// Whatever the mask of the user is, installed folders are readable.
fn folders_for_everyone(folder: &Path) -> Result<(), String> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .map_err(|error| at(folder, &error))?;
    for entry in fs::read_dir(folder).map_err(|error| at(folder, &error))? {
        let path = entry.map_err(|error| at(folder, &error))?.path();
        if path.is_dir() {
            folders_for_everyone(&path)?;
        }
    }
    Ok(())
}

/// What a command prints.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{name}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_counts() {
        assert_eq!(glibc_of(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0"), (2, 34));
        assert_eq!(glibc_of(b"GLIBC_PRIVATE"), (0, 0));
        assert_eq!(glibc_of(b"static"), (2, 17));
    }
}
