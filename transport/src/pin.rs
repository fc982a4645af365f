//! Binding a rank to a core.

use std::fs;
use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds this thread as the `place`-th of `ranks` on this host.
pub(crate) fn spread(place: usize, ranks: usize) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let order = order(&cores, |core| Place {
        second: sibling(core).is_some_and(|first| first < core && cores.contains(&first)),
        node: node(core),
    });
    let Some(core) = choose(&order, place, ranks) else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Where a core is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Another thread of the same physical core goes before it.
    second: bool,
    node: usize,
}

/// Physical cores first, node by node.
fn order(cores: &[usize], place: impl Fn(usize) -> Place) -> Vec<(Place, usize)> {
    let mut all: Vec<_> = cores.iter().map(|core| (place(*core), *core)).collect();
    all.sort_unstable();
    all
}

/// Evenly over the physical cores as far as they suffice, else over all in turn.
fn choose(order: &[(Place, usize)], place: usize, ranks: usize) -> Option<usize> {
    let physical = order.iter().filter(|(at, _)| !at.second).count();
    let at = if ranks <= physical {
        place * physical / ranks.max(1)
    } else {
        place.checked_rem(order.len())?
    };
    order.get(at).map(|(_, core)| *core)
}

/// The first thread of a core's physical core.
fn sibling(core: usize) -> Option<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let text = fs::read_to_string(path).ok()?;
    text.split([',', '-', '\n']).next()?.parse().ok()
}

/// The NUMA node of a core; 0 where the host does not say.
fn node(core: usize) -> usize {
    (0..1024)
        .take_while(|node| Path::new(&format!("/sys/devices/system/node/node{node}")).exists())
        .find(|node| Path::new(&format!("/sys/devices/system/node/node{node}/cpu{core}")).exists())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two cores with two threads each; threads 4 to 7 are second.
    fn host() -> Vec<(Place, usize)> {
        order(&[0, 1, 2, 3, 4, 5, 6, 7], |core| Place { second: core >= 4, node: core % 4 / 2 })
    }

    #[test]
    fn ranks_spread_over_nodes_and_share_cores_last() {
        let chosen = |ranks: usize| -> Vec<usize> {
            (0..ranks).map(|place| choose(&host(), place, ranks).unwrap()).collect()
        };
        assert_eq!(chosen(2), [0, 2]);
        assert_eq!(chosen(4), [0, 1, 2, 3]);
        assert_eq!(chosen(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(chosen(10)[8..], [0, 1]);
        assert_eq!(choose(&[], 0, 1), None);
    }

    #[test]
    fn a_thread_is_bound_to_one_core() {
        std::thread::spawn(|| {
            spread(0, 1).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        })
        .join()
        .unwrap();
    }
}
