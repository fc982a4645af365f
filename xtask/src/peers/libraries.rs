//! The libraries to compare with, and how each is run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::setup;
use crate::workspace_root;

/// A library with its benchmark built.
#[derive(Clone, Debug)]
pub(super) struct Library {
    pub(super) name: String,
    /// `shm` or `tcp`.
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
    /// The command for so many ranks, but for what is to be measured.
    pub(super) fn run(&self, ranks: u32) -> Vec<String> {
        let ranks = ranks.to_string();
        match &self.start {
            Start::Mpi { launcher, program } => {
                let program = program.display().to_string();
                [&launcher[..], &["-np".to_owned(), ranks, program]].concat()
            }
            Start::Script { interpreter, script } => {
                vec![interpreter.clone(), script.display().to_string(), ranks]
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
    Debian { packages: &'static [&'static str], compiler: &'static str, launcher: &'static str },
    Python { package: &'static str },
}

/// By link, as words on a command line.
const OPEN_MPI_4: &[(&str, &str)] = &[
    ("shm", "--oversubscribe --bind-to none --mca pml ob1 --mca btl self,vader"),
    (
        "tcp",
        "--oversubscribe --bind-to none --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo",
    ),
];
const OPEN_MPI_5: &[(&str, &str)] = &[
    ("shm", "--map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,sm"),
    (
        "tcp",
        "--map-by :OVERSUBSCRIBE --bind-to none --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo",
    ),
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
        origin: Origin::Python { package: "openmpi" },
        launchers: OPEN_MPI_5,
    },
    Wanted {
        name: "mpich-5",
        origin: Origin::Python { package: "mpich" },
        launchers: SHARED_MEMORY,
    },
    Wanted {
        name: "intel-mpi",
        origin: Origin::Python { package: "impi-devel" },
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
                    let launcher = std::iter::once(launcher.as_str())
                        .chain(arguments.split_whitespace())
                        .map(str::to_owned)
                        .collect();
                    let start = Start::Mpi { launcher, program: program.clone() };
                    Library { name: wanted.name.to_owned(), link, start }
                }));
            }
            Err(why) => println!("peers: without {}: {why}", wanted.name),
        }
    }
    match gloo() {
        Ok(library) => found.push(library),
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

/// Launcher and benchmark.
fn build(wanted: &Wanted, folder: &Path) -> Result<(String, PathBuf), String> {
    let program = folder.join(format!("mpi-{}", wanted.name));
    let (compiler, launcher) = match wanted.origin {
        Origin::Debian { packages, compiler, launcher } => {
            setup::provide(compiler, packages)?;
            (compiler.to_owned(), launcher.to_owned())
        }
        Origin::Python { package } => {
            let place = folder.join(package);
            let bin = place.join("bin");
            if !bin.join("mpicc").exists() {
                quiet(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
                quiet(Command::new(bin.join("pip")).args(["install", "--quiet", package]))?;
            }
            (bin.join("mpicc").display().to_string(), bin.join("mpirun").display().to_string())
        }
    };
    let source = workspace_root().join("tests/peers/mpi.c");
    quiet(Command::new(&compiler).args(["-O2", "-o"]).arg(&program).arg(source))?;
    Ok((launcher, program))
}

fn quiet(command: &mut Command) -> Result<(), String> {
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
