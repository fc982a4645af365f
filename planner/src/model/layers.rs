//! Which direction each PCIe or socket link of a host serves: data on its way to the NICs, or from them.
//!
//! A link's capacity is one pool, two layers would count it twice. A cheapest maximum flow from the GPUs to the fabric
//! settles it: on a tree such a flow never uses both a link and its reverse (that could be rerouted more cheaply), and
//! the flow from the fabric is its mirror image. So each link serves one layer, and the full rate of the NICs remains.
//!
//! Where GPUs could fill the NICs without some link, the flow leaves it out by chance. Such a link serves the layer in which it leads
//! anywhere, if that is but one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use topology::VertexId;

use super::HostLink;

/// Capacity of each link that is neither a GPU's nor a NIC's own, for the way out and the way in. Links the flow does
/// not need are left out.
pub(super) fn directions(
    links: &[HostLink],
    is_gpu: impl Fn(VertexId) -> bool,
    is_nic: impl Fn(VertexId) -> bool,
    is_fabric: impl Fn(VertexId) -> bool,
) -> BTreeMap<(VertexId, VertexId), (u64, u64)> {
    // Only what leads outward: no link into a GPU, none from a NIC but to the fabric, none from the fabric.
    let outward: Vec<&HostLink> = links
        .iter()
        .filter(|l| !is_gpu(l.to) && !is_fabric(l.from) && (!is_nic(l.from) || is_fabric(l.to)))
        .collect();
    let flow = cheapest_maximum_flow(&outward, &is_gpu, &is_fabric);
    let flow_on = |from: VertexId, to: VertexId| flow.get(&(from, to)).copied().unwrap_or(0);
    // Whether data from a GPU can cross from one to the other on its way to the fabric.
    let (mut onward, mut back) = (BTreeMap::new(), BTreeMap::new());
    for link in &outward {
        onward.entry(link.from).or_insert_with(Vec::new).push(link.to);
        back.entry(link.to).or_insert_with(Vec::new).push(link.from);
    }
    let leads_out = |from: VertexId, to: VertexId| {
        let comes = reach(&back, from, to).into_iter().any(&is_gpu);
        comes && reach(&onward, to, from).into_iter().any(&is_fabric)
    };
    links
        .iter()
        .filter(|l| {
            [l.from, l.to].iter().all(|end| !is_gpu(*end) && !is_nic(*end) && !is_fabric(*end))
        })
        .filter_map(|l| {
            let (out, into) = (flow_on(l.from, l.to), flow_on(l.to, l.from));
            let total = u128::from(out) + u128::from(into);
            if total == 0 {
                // Data on its way in takes the ways out backwards.
                return match (leads_out(l.from, l.to), leads_out(l.to, l.from)) {
                    (true, false) => Some(((l.from, l.to), (l.capacity, 0))),
                    (false, true) => Some(((l.from, l.to), (0, l.capacity))),
                    _ => None,
                };
            }
            let out = u128::from(l.capacity) * u128::from(out) / total;
            let out = u64::try_from(out).expect("a part of a u64");
            Some(((l.from, l.to), (out, l.capacity - out)))
        })
        .collect()
}

/// What can be reached from `start` by `next`, without `avoided`.
fn reach(
    next: &BTreeMap<VertexId, Vec<VertexId>>,
    start: VertexId,
    avoided: VertexId,
) -> BTreeSet<VertexId> {
    let mut seen = BTreeSet::from([start]);
    let mut stack = vec![start];
    while let Some(at) = stack.pop() {
        for &to in next.get(&at).into_iter().flatten() {
            if to != avoided && seen.insert(to) {
                stack.push(to);
            }
        }
    }
    seen
}

/// Successive cheapest augmenting paths, every link costing 1.
fn cheapest_maximum_flow(
    links: &[&HostLink],
    is_gpu: impl Fn(VertexId) -> bool,
    is_fabric: impl Fn(VertexId) -> bool,
) -> BTreeMap<(VertexId, VertexId), u64> {
    struct Arc {
        from: usize,
        to: usize,
        left: u64,
        cost: i64,
    }
    let mut place: BTreeMap<VertexId, usize> = BTreeMap::new();
    for link in links {
        for end in [link.from, link.to] {
            let next = place.len();
            place.entry(end).or_insert(next);
        }
    }
    // Arc 2i is link i, arc 2i + 1 its residual.
    let mut arcs: Vec<Arc> = Vec::with_capacity(2 * links.len());
    for link in links {
        let (from, to) = (place[&link.from], place[&link.to]);
        arcs.push(Arc { from, to, left: link.capacity, cost: 1 });
        arcs.push(Arc { from: to, to: from, left: 0, cost: -1 });
    }
    let sources: Vec<usize> =
        place.iter().filter(|(id, _)| is_gpu(**id)).map(|(_, at)| *at).collect();
    let sink = place.iter().find(|(id, _)| is_fabric(**id)).map(|(_, at)| *at);
    let Some(sink) = sink else { return BTreeMap::new() };
    loop {
        let mut cost = vec![i64::MAX; place.len()];
        let mut arrival: Vec<Option<usize>> = vec![None; place.len()];
        for &source in &sources {
            cost[source] = 0;
        }
        // Bellman and Ford: residual arcs have negative cost, a cheapest flow leaves no negative cycle.
        for _ in 0..place.len() {
            let mut changed = false;
            for (index, arc) in arcs.iter().enumerate() {
                if arc.left > 0
                    && cost[arc.from] < i64::MAX
                    && cost[arc.from] + arc.cost < cost[arc.to]
                {
                    cost[arc.to] = cost[arc.from] + arc.cost;
                    arrival[arc.to] = Some(index);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        if cost[sink] == i64::MAX {
            break;
        }
        let mut path = Vec::new();
        let mut node = sink;
        while let Some(index) = arrival[node] {
            path.push(index);
            node = arcs[index].from;
        }
        let pushed = path.iter().map(|index| arcs[*index].left).min().unwrap_or(0);
        for index in path {
            arcs[index].left -= pushed;
            arcs[index ^ 1].left += pushed;
        }
    }
    links
        .iter()
        .enumerate()
        .map(|(i, link)| ((link.from, link.to), arcs[2 * i + 1].left))
        .filter(|(_, flow)| *flow > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vertices: 0 to 9 GPUs, 10 to 19 NICs, 20 the fabric, above that switches and NUMA nodes. Links go both ways.
    /// Ends of a link, and what it gives the way out and the way in.
    type Parts = ((u32, u32), (u64, u64));

    #[track_caller]
    fn check(links: &[(u32, u32, u64)], expect: &[Parts]) {
        let id = |n: u32| VertexId::new(n as usize);
        let links: Vec<HostLink> = links
            .iter()
            .flat_map(|&(a, b, capacity)| {
                [
                    HostLink { from: id(a), to: id(b), capacity },
                    HostLink { from: id(b), to: id(a), capacity },
                ]
            })
            .collect();
        let found = directions(
            &links,
            |v| v.index() < 10,
            |v| (10..20).contains(&v.index()),
            |v| v.index() == 20,
        );
        let expect: BTreeMap<_, _> =
            expect.iter().map(|&((a, b), parts)| ((id(a), id(b)), parts)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_nic_beside_its_gpus_needs_no_uplink() {
        check(&[(0, 21, 12), (1, 21, 12), (10, 21, 12), (10, 20, 12), (21, 22, 12)], &[]);
    }

    #[test]
    fn uplinks_lead_out_on_the_gpus_side_and_in_on_the_nics() {
        // GPU 0 below switch 21, NIC 10 below switch 23, NUMA node 22 between.
        check(
            &[(0, 21, 12), (21, 22, 12), (22, 23, 12), (10, 23, 12), (10, 20, 12)],
            &[((21, 22), (12, 0)), ((22, 21), (0, 12)), ((22, 23), (12, 0)), ((23, 22), (0, 12))],
        );
    }
    #[test]
    fn what_the_flow_leaves_out_by_chance_still_leads_out() {
        // GPUs 0 and 1 below bridges of their own could each fill the one NIC.
        let links =
            [(0, 21, 12), (1, 22, 12), (21, 23, 12), (22, 23, 12), (10, 23, 12), (10, 20, 12)];
        let both = |low: u32| [((low, 23), (12, 0)), ((23, low), (0, 12))];
        check(&links, &[both(21), both(22)].concat());
    }
}
