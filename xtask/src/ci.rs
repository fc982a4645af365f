//! `cargo xtask ci`.

use crate::codegen;

/// One check. The tests come last, so that their closing lines are the last long thing on the screen.
enum Step {
    Cargo(&'static str, &'static [&'static str]),
    Codegen,
}

const STEPS: [Step; 4] = [
    Step::Cargo("format", &["fmt", "--all", "--check"]),
    Step::Codegen,
    Step::Cargo(
        "lints",
        &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"],
    ),
    Step::Cargo("tests", &["test", "--workspace", "--no-fail-fast"]),
];

impl Step {
    fn name(&self) -> &'static str {
        match self {
            Self::Cargo(name, _) => name,
            Self::Codegen => "generated code",
        }
    }

    fn run(&self) -> Result<(), String> {
        match self {
            Self::Cargo(_, args) => cargo(args),
            Self::Codegen => codegen::check(),
        }
    }
}

/// Runs every step, whatever became of those before it.
///
/// # Errors
/// Names the steps that failed.
pub(crate) fn run() -> Result<(), String> {
    crate::setup::run();
    crate::setup::cuda();
    crate::setup::rdma();
    let mut failed = Vec::new();
    for step in &STEPS {
        println!("ci: {}", step.name());
        if let Err(error) = step.run() {
            println!("ci: {} failed: {error}", step.name());
            failed.push(format!("{} ({error})", step.name()));
        }
    }
    if failed.is_empty() {
        println!("ci: passed");
        Ok(())
    } else {
        Err(format!("ci failed: {}", failed.join("; ")))
    }
}

fn cargo(args: &[&str]) -> Result<(), String> {
    let status = crate::cargo()
        .args(args)
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {}: {status}", args.first().copied().unwrap_or_default()))
    }
}
