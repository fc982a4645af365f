//! A drawing that needs no Graphviz: the fabric on top, then NICs, PCIe from the root down to the GPUs, NVSwitches below.
//!
//! ```text
//!        fabric
//!     NIC   NIC   NIC          each column is a host bridge's subtree,
//!   numa0 ───────── numa1      so links of the tree hardly cross
//!   switch  switch  switch
//!   GPU GPU GPU GPU GPU GPU
//!          nvs0
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use topology::{LinkKind, Topology, VertexId, VertexKind};

const CELL_WIDTH: u32 = 118;
const ROW_HEIGHT: u32 = 130;
const BOX_WIDTH: u32 = 104;
const BOX_HEIGHT: u32 = 34;
const MARGIN: u32 = 40;

pub(super) fn render(topology: &Topology) -> String {
    let places = layout(topology);
    let columns = places.values().map(|(_, x)| x / 2 + 1).max().unwrap_or(1);
    let rows = places.values().map(|(row, _)| row + 1).max().unwrap_or(1);
    let (width, height) = (columns * CELL_WIDTH + 2 * MARGIN, rows * ROW_HEIGHT + 2 * MARGIN);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let centre = |id: VertexId| {
        let (row, x) = places.get(&id).copied().unwrap_or((0, 0));
        (MARGIN + x * CELL_WIDTH / 2 + CELL_WIDTH / 2, MARGIN + row * ROW_HEIGHT + ROW_HEIGHT / 2)
    };
    for (a, b, label, link) in super::dot::edges(topology) {
        let ((x1, y1), (x2, y2)) = (centre(a), centre(b));
        let (color, stroke) = match link.kind {
            LinkKind::NvLink | LinkKind::Xgmi => ("#5b9a00", 1 + link.count.min(6)),
            LinkKind::C2c => ("#00897b", 2),
            LinkKind::Socket => ("#c62828", 2),
            LinkKind::Net => ("#1565c0", 1),
            LinkKind::Pcie | LinkKind::Abstract => ("#666", 1),
        };
        // Links within a row bow below it, the farther the deeper, so that they do not run through the boxes between.
        let bow = if y1 == y2 { BOX_HEIGHT / 2 + x1.abs_diff(x2) / 9 } else { 0 };
        let (label_x, label_y) = (u32::midpoint(x1, x2), u32::midpoint(y1, y2) + bow);
        let _ = writeln!(
            text,
            "<path d=\"M{x1} {y1} Q{label_x} {} {x2} {y2}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{stroke}\" stroke-opacity=\"0.75\"><title>{} to {}: {} {label} GB/s</title></path>",
            u32::midpoint(y1, y2) + 2 * bow,
            escape(&topology.vertex(a).name),
            escape(&topology.vertex(b).name),
            link.kind,
        );
        let _ = writeln!(
            text,
            "<text x=\"{label_x}\" y=\"{label_y}\" font-size=\"9\" fill=\"{color}\" text-anchor=\"middle\" paint-order=\"stroke\" stroke=\"white\" stroke-width=\"3\">{label}</text>"
        );
    }
    for id in places.keys() {
        let (x, y) = centre(*id);
        let vertex = topology.vertex(*id);
        let color = match vertex.kind {
            VertexKind::Gpu { .. } => "#c5e1a5",
            VertexKind::NvSwitch | VertexKind::Switch => "#dcedc8",
            VertexKind::PcieSwitch | VertexKind::NicCard => "#eeeeee",
            VertexKind::NumaNode { .. } => "#ffe0b2",
            VertexKind::Nic { .. } => "#bbdefb",
            VertexKind::Fabric => "#e3f2fd",
        };
        let _ = writeln!(
            text,
            "<rect x=\"{}\" y=\"{}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"5\" fill=\"{color}\" stroke=\"#555\"/>\n<text x=\"{x}\" y=\"{}\" font-size=\"12\" text-anchor=\"middle\">{}</text>",
            x - BOX_WIDTH / 2,
            y - BOX_HEIGHT / 2,
            y + 4,
            escape(&vertex.name)
        );
    }
    text.push_str("</svg>\n");
    text
}

/// Row and twice the column of every vertex.
fn layout(topology: &Topology) -> BTreeMap<VertexId, (u32, u32)> {
    let row = |kind: &VertexKind| match kind {
        VertexKind::Fabric => 0,
        VertexKind::Nic { .. } => 1,
        VertexKind::NicCard => 2,
        VertexKind::NumaNode { .. } => 3,
        VertexKind::PcieSwitch => 4,
        VertexKind::Gpu { .. } => 5,
        VertexKind::NvSwitch | VertexKind::Switch => 6,
    };
    // Order of columns: by the way down from the NUMA node, so that a subtree stays together.
    let key = |id: VertexId| {
        let to_root = topology.numa_of(id).map(|numa| topology.path(id, numa).hops);
        let way: Vec<VertexId> = to_root.into_iter().flatten().map(|hop| hop.to).rev().collect();
        (topology.vertex(id).host.map_or(u32::MAX, |host| host.0), way, id)
    };
    let mut by_row: BTreeMap<u32, Vec<VertexId>> = BTreeMap::new();
    for id in topology.graph().node_indices() {
        by_row.entry(row(&topology.vertex(id).kind)).or_default().push(id);
    }
    let widest = by_row.values().map(Vec::len).max().unwrap_or(1);
    let mut places = BTreeMap::new();
    // Rows nobody is in take no space.
    for (row, (_, mut ids)) in (0..).zip(by_row) {
        ids.sort_by_cached_key(|id| key(*id));
        let count = ids.len();
        for (place, id) in ids.into_iter().enumerate() {
            // Spread evenly over the widest row; in half columns, so that everything stays an integer.
            let x = (2 * place + 1) * widest / count.max(1);
            places.insert(id, (row, u32::try_from(x.saturating_sub(1)).unwrap_or(u32::MAX)));
        }
    }
    places
}

fn escape(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
