//! Completions and manual pages, made of the command lines themselves so that they never tell of another.

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory as _};

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Exit, Failure};
use crate::output;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "topoctl", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}

pub(crate) fn pages(args: &ManArgs) -> Result<Exit, Failure> {
    let mut topoctl = Cli::command();
    topoctl.build();
    page(&args.folder, "1", topoctl.clone())?;
    for verb in
        topoctl.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
    {
        // The page names the whole command; clap knows its last word alone.
        let name: &'static str = format!("topoctl-{}", verb.get_name()).leak();
        page(&args.folder, "1", verb.clone().name(name).version(env!("CARGO_PKG_VERSION")))?;
    }
    page(&args.folder, "8", <daemon::Args as clap::CommandFactory>::command())?;
    Ok(Exit::Ok)
}

fn page(folder: &Path, section: &str, command: Command) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(command).section(section).manual("topod");
    page.render(&mut text).map_err(Failure::internal)?;
    let path = folder.join(format!("{name}.{section}"));
    fs::write(&path, text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}
