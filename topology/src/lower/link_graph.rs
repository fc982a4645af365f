//! A link graph is a graph already.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

use super::builder::Builder;
use crate::snapshot::LinkGraph;
use crate::{GpuIndex, HostId, Link, LinkKind, VertexKind};

pub(super) fn lower(
    builder: &mut Builder<'_>,
    host: HostId,
    graph: &LinkGraph,
) -> Result<(), String> {
    let mut places = BTreeMap::new();
    for (index, name) in (0..).zip(&graph.gpus) {
        places.insert(
            name,
            builder.add(Some(host), name, VertexKind::Gpu { index: GpuIndex(index) }, None)?,
        );
    }
    for name in &graph.switches {
        places.insert(name, builder.add(Some(host), name, VertexKind::Switch, None)?);
    }
    for (from, to, bandwidth) in &graph.links {
        let place = |name| {
            places.get(name).copied().ok_or_else(|| {
                format!("a link names '{name}', which is neither a GPU nor a switch")
            })
        };
        builder.link(
            place(from)?,
            place(to)?,
            Link { kind: LinkKind::Abstract, bandwidth: *bandwidth, count: 1, host_bridge: None },
        );
    }
    Ok(())
}
