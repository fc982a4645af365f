//! The libraries to compare with, and how each is run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::veth;
use crate::setup;
use crate::workspace_root;

/// A library with its benchmark built.
#[derive(Clone, Debug)]
pub(super) struct Library {
    pub(super) name: String,
    /// `shm`, `tcp` or `veth`.
    pub(super) link: &'static str,
    start: Start,
}

/// How its ranks are started.
#[derive(Clone, Debug)]
enum Start {
    Mpi {
        launcher: Vec<String>,
        program: PathBuf,
    },
    /// The script starts them itself.
    Script {
        interpreter: String,
        script: PathBuf,
    },
}

impl Library {
    /// The command for so many ranks, but for what is to be measured. `folder` has the scripts that start ranks on two hosts.
    pub(super) fn run(&self, ranks: u32, folder: &Path) -> Vec<String> {
        let apart = self.link == "veth";
        match &self.start {
            Start::Mpi { launcher, program } => {
                let launcher =
                    if apart { veth::mpi(folder, ranks, launcher) } else { launcher.clone() };
                let rest = ["-np".to_owned(), ranks.to_string(), program.display().to_string()];
                [&launcher[..], &rest].concat()
            }
            Start::Script { interpreter, script } => {
                let command =
                    vec![interpreter.clone(), script.display().to_string(), ranks.to_string()];
                if apart { veth::gloo(command) } else { command }
            }
        }
    }
}

/// What to look for.
struct Wanted {
    name: &'static str,
    /// Debian's package, or the package of a Python index that brings compiler wrapper and launcher.
    origin: Origin,
    /// By link.
    launchers: &'static [(&'static str, &'static str)],
}

enum Origin {
    Debian {
        packages: &'static [&'static str],
        compiler: &'static str,
        launcher: &'static str,
    },
    /// With the variable by which it finds itself where it has one: it was made to be installed elsewhere.
    Python {
        package: &'static str,
        root: Option<&'static str>,
    },
}

/// By link, as words on a command line.
const OPEN_MPI_4: &[(&str, &str)] = &[
    ("shm", "--oversubscribe --bind-to none --mca pml ob1 --mca btl self,vader"),
    (
        "tcp",
        "--oversubscribe --bind-to none --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo",
    ),
    ("veth", "--oversubscribe --bind-to none --mca pml ob1 --mca btl self,tcp"),
];
const OPEN_MPI_5: &[(&str, &str)] = &[
    ("shm", "--map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,sm"),
    (
        "tcp",
        "--map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo",
    ),
    ("veth", "--map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,tcp"),
];
const SHARED_MEMORY: &[(&str, &str)] = &[("shm", "")];

const WANTED: [Wanted; 5] = [
    Wanted {
        name: "open-mpi-4",
        origin: Origin::Debian {
            packages: &["openmpi-bin", "libopenmpi-dev"],
            compiler: "mpicc.openmpi",
            launcher: "mpirun.openmpi",
        },
        launchers: OPEN_MPI_4,
    },
    Wanted {
        name: "mpich-4",
        origin: Origin::Debian {
            packages: &["mpich", "libmpich-dev"],
            compiler: "mpicc.mpich",
            launcher: "mpirun.mpich",
        },
        launchers: SHARED_MEMORY,
    },
    Wanted {
        name: "open-mpi-5",
        origin: Origin::Python { package: "openmpi", root: None },
        launchers: OPEN_MPI_5,
    },
    Wanted {
        name: "mpich-5",
        origin: Origin::Python { package: "mpich", root: None },
        launchers: SHARED_MEMORY,
    },
    Wanted {
        name: "intel-mpi",
        origin: Origin::Python { package: "impi-devel", root: Some("I_MPI_ROOT") },
        launchers: SHARED_MEMORY,
    },
];

/// Finds, installs where that is possible, and builds; says what is missing and why.
pub(super) fn find(folder: &Path) -> Vec<Library> {
    let mut found = Vec::new();
    for wanted in &WANTED {
        match build(wanted, folder) {
            Ok((launcher, program)) => {
                found.extend(wanted.launchers.iter().map(|(link, arguments)| {
                    let arguments = arguments.split_whitespace().map(str::to_owned);
                    let launcher = launcher.iter().cloned().chain(arguments).collect();
                    let start = Start::Mpi { launcher, program: program.clone() };
                    Library { name: wanted.name.to_owned(), link, start }
                }));
            }
            Err(why) => println!("peers: without {}: {why}", wanted.name),
        }
    }
    match gloo() {
        Ok(library) => {
            found.push(Library { link: "veth", ..library.clone() });
            found.push(library);
        }
        Err(why) => println!("peers: without Gloo: {why}"),
    }
    found
}

/// Gloo through Debian's torch, which has TCP alone: compared with where ranks of one host talk over TCP.
fn gloo() -> Result<Library, String> {
    let interpreter = "/usr/bin/python3";
    let imports = || quiet(Command::new(interpreter).args(["-c", "import torch.distributed"]));
    if imports().is_err() {
        setup::add(&["python3-torch"])?;
        imports()?;
    }
    let script = workspace_root().join("tests/peers/gloo.py");
    let start = Start::Script { interpreter: interpreter.to_owned(), script };
    Ok(Library { name: "gloo".to_owned(), link: "tcp", start })
}

/// Launcher, as words, and benchmark.
fn build(wanted: &Wanted, folder: &Path) -> Result<(Vec<String>, PathBuf), String> {
    let program = folder.join(format!("mpi-{}", wanted.name));
    let source = workspace_root().join("tests/peers/mpi.c");
    let compile = |compiler: &[String]| {
        let (first, rest) = compiler.split_first().ok_or("no compiler")?;
        quiet(Command::new(first).args(rest).args(["-O2", "-o"]).arg(&program).arg(&source))
    };
    let (compiler, launcher) = match wanted.origin {
        Origin::Debian { packages, compiler, launcher } => {
            setup::provide(compiler, packages)?;
            let (compiler, launcher) = (vec![compiler.to_owned()], vec![launcher.to_owned()]);
            // The compiler may be there without the headers.
            if compile(&compiler).is_ok() {
                return Ok((launcher, program));
            }
            setup::add(packages)?;
            (compiler, launcher)
        }
        Origin::Python { package, root } => {
            let place = folder.join(package);
            let bin = place.join("bin");
            if !bin.join("mpicc").exists() {
                quiet(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
                quiet(Command::new(bin.join("pip")).args(["install", "--quiet", package]))?;
            }
            let root = root.map(|root| {
                let libraries = place.join("lib").display().to_string();
                let root = format!("{root}={}", place.display());
                vec!["env".to_owned(), root, format!("LD_LIBRARY_PATH={libraries}")]
            });
            let command = |name: &str| {
                let mut command = root.clone().unwrap_or_default();
                command.push(bin.join(name).display().to_string());
                command
            };
            (command("mpicc"), command("mpirun"))
        }
    };
    compile(&compiler)?;
    Ok((launcher, program))
}

pub(super) fn quiet(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no word");
    Err(format!("{name}: {}", last.trim()))
}
