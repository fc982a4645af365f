//! An emulated machine: Debian's kernel with an archive of files as its first and only file system, and a serial line.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Some twenty times what a machine takes on a quiet host: only a hang gets there.
const HANG: Duration = Duration::from_secs(900);

/// What is made, or why it cannot be: what is missing is a reason to skip.
pub(crate) type Made<T> = Result<T, String>;

/// What a command prints. What is missing is a reason to skip; what fails is a failure.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) -> Made<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where a command is.
pub(crate) fn which(command: &str) -> Made<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]);
    let mut found = folders.map(|folder| folder.join(command)).filter(|path| path.is_file());
    found.next().ok_or_else(|| format!("there is no {command}"))
}

/// The only entry of a folder whose name begins so.
pub(crate) fn entry(folder: &Path, begins: &str) -> Made<PathBuf> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut named = entries.flatten().map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begins))
    });
    named.next().ok_or_else(|| format!("nothing in {} begins with {begins}", folder.display()))
}

/// The folder with Debian's kernel and its modules, and the kernel.
pub(crate) fn kernel() -> Made<(PathBuf, PathBuf)> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the machine is described for x86-64 alone".to_owned());
    }
    which("qemu-system-x86_64")?;
    which("cpio")?;
    let folder = crate::workspace_root().join("target/kernel");
    let kernel = entry(&folder.join("boot"), "vmlinuz-")
        .map_err(|why| format!("{why}; cargo xtask ci gets a kernel"))?;
    Ok((folder, kernel))
}

/// Packs a folder as the kernel takes it.
pub(crate) fn pack(root: &Path, archive: &Path) -> Made<()> {
    let pack = format!(
        "cd {} && find . | cpio --quiet -o -H newc > {}",
        root.display(),
        archive.display()
    );
    run("sh", &["-c", &pack]).map(|_| ())
}

/// An emulated machine; it ends with the value.
pub(crate) struct Machine {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Machine {
    /// With 2 processors; `words` are for the kernel and what it starts, `devices` for QEMU.
    pub(crate) fn boot(
        (kernel, archive): (&Path, &Path),
        memory_mib: u32,
        words: &str,
        devices: &[String],
    ) -> Self {
        let mut command = Command::new("qemu-system-x86_64");
        // Emulated also where the processor could do it: nested virtual machines hang on some hosts.
        command.args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
        command.args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"]);
        command.args(["-m", &memory_mib.to_string()]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(archive);
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 {words}")]).args(devices);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("QEMU, which was found");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.split(b'\n').map_while(Result::ok) {
                let _ = send.send(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
        });
        Self { child, lines, said: Vec::new() }
    }

    /// Its next line; nothing once it has ended, or a panic after far too long.
    pub(crate) fn line(&mut self) -> Option<&str> {
        match self.lines.recv_timeout(HANG) {
            Ok(line) => self.said.push(line),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => panic!("it hangs: {:#?}", self.said),
        }
        self.said.last().map(String::as_str)
    }

    /// Waits until it says a line with some text in it.
    pub(crate) fn wait_for(&mut self, text: &str) {
        while let Some(line) = self.line() {
            if line.contains(text) {
                return;
            }
        }
        panic!("it never says '{text}': {:#?}", self.said);
    }

    /// Says something to whoever reads its serial line.
    pub(crate) fn say(&mut self, line: &str) {
        let console = self.child.stdin.as_mut().expect("a pipe");
        console
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| console.flush())
            .expect("it listens");
    }

    /// All it says until it has ended.
    pub(crate) fn said(mut self) -> Vec<String> {
        while self.line().is_some() {}
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {:#?}", self.said);
        std::mem::take(&mut self.said)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
