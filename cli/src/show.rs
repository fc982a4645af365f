//! `topoctl show`: what is connected to what.

mod document;
mod dot;
mod svg;
mod text;

use topology::Topology;

use crate::args::{ShowArgs, ShowFormat};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::source::{self, Origin};

pub(crate) fn run(args: &ShowArgs) -> Result<Exit, Failure> {
    let Origin { topology, generation, .. } = source::load(&args.source)?;
    render(&topology, generation, args.output)?;
    Ok(Exit::Ok)
}

fn render(topology: &Topology, generation: u64, format: ShowFormat) -> Result<(), Failure> {
    match format {
        ShowFormat::Table => output::print(&text::render(topology)),
        ShowFormat::Json => output::print_json(&document::Document::new(topology, generation)),
        ShowFormat::Yaml => output::print_yaml(&document::Document::new(topology, generation)),
        ShowFormat::Dot => output::print(&dot::render(topology)),
        ShowFormat::Svg => output::print(&svg::render(topology)),
    }
}
