use topology::snapshot::LinkPeer;
use topology::{Snapshot, what_if};

use super::*;
use crate::test_hosts::{host, joined};

fn request() -> PlanRequest {
    PlanRequest {
        collectives: [Collective::AllReduce, Collective::AllGather].into(),
        ..PlanRequest::default()
    }
}

fn standing(topology: &Topology, prepared: Prepared) -> Standing {
    let plan = crate::plan(topology, &request()).unwrap();
    Standing::new(topology, plan, request(), prepared).unwrap()
}

fn best(plan: &Plan, collective: Collective) -> Fraction {
    plan.collectives[&collective].best.as_ref().unwrap().algbw_gbps
}

/// The host with `left` links from one GPU to a peer, both ways.
fn with_links(mut host: Snapshot, gpu: usize, peer: &LinkPeer, left: u32) -> Snapshot {
    let own = host.gpus[gpu].bus_id;
    for (at, other) in host.gpus.iter_mut().enumerate() {
        for links in &mut other.links {
            let forth = at == gpu && links.peer == *peer;
            let back = other.bus_id.is_some_and(|id| *peer == LinkPeer::Gpu(id))
                && own.is_some_and(|own| links.peer == LinkPeer::Gpu(own));
            if forth || back {
                links.count = left;
            }
        }
        other.links.retain(|links| links.count > 0);
    }
    host
}

/// Every host with a link less between a GPU and a peer, and with none between two GPUs.
fn failed(name: &str) -> Vec<Snapshot> {
    let whole = host(name);
    let mut all = Vec::new();
    for (gpu, of) in whole.gpus.iter().enumerate() {
        for links in &of.links {
            if matches!(links.peer, LinkPeer::Gpu(_)) && links.count > 1 {
                all.push(with_links(whole.clone(), gpu, &links.peer, 0));
            }
            all.push(with_links(whole.clone(), gpu, &links.peer, links.count - 1));
        }
    }
    all
}

/// What stood ready is what would be planned now, whatever link failed.
#[test]
fn failures_find_their_plan_ready() {
    for (name, step) in [("dgx1v", 11), ("dgx_a100", 5)] {
        let whole = joined(&[host(name)]);
        let prepared = Prepared::all(&whole, &request()).unwrap();
        let standing = standing(&whole, prepared);
        for snapshot in failed(name).into_iter().step_by(step) {
            let now = joined(&[snapshot]);
            let outcome = standing.after(&now).unwrap();
            assert!(!matches!(outcome, Outcome::Replan(_)), "{name}");
            check::plan(&now, outcome.plan()).unwrap();
            let fresh = crate::plan(&now, &request()).unwrap();
            for collective in request().collectives {
                let (found, fresh) = (best(outcome.plan(), collective), best(&fresh, collective));
                assert!(
                    found * Fraction::of(100, 99) >= fresh,
                    "{name}: {collective} {found} {fresh}"
                );
            }
        }
    }
}

/// Links that carry less than they can may get slower by that much.
#[test]
fn room_is_used_before_anything_else() {
    let mut host = host("dgx_a100");
    let whole = joined(&[host.clone()]);
    let standing = standing(&whole, Prepared::new());
    // NICs carry nothing inside a host.
    host.nics[0].mbit = Some(10_000);
    let now = joined(&[host.clone()]);
    let outcome = standing.after(&now).unwrap();
    assert!(matches!(outcome, Outcome::Keep(_)));
    assert_eq!(outcome.plan().topology.fingerprint, now.fingerprint());
    check::plan(&now, outcome.plan()).unwrap();
    // The links of a GPU carry all they can.
    let peer = host.gpus[2].links[0].peer.clone();
    let count = host.gpus[2].links[0].count;
    let now = joined(&[with_links(host, 2, &peer, count - 1)]);
    let outcome = standing.after(&now).unwrap();
    assert!(matches!(outcome, Outcome::Replan(_)));
    check::plan(&now, outcome.plan()).unwrap();
}

/// A link that comes back is worth another plan where that is better, and not where it is not.
#[test]
fn what_got_faster_is_used_where_it_helps() {
    let peer = host("dgx_a100").gpus[2].links[0].peer.clone();
    let less = joined(&[with_links(host("dgx_a100"), 2, &peer, 6)]);
    let standing = standing(&less, Prepared::new());
    let outcome = standing.after(&joined(&[host("dgx_a100")])).unwrap();
    assert!(matches!(outcome, Outcome::Replan(_)));
    let mut nics = with_links(host("dgx_a100"), 2, &peer, 6);
    nics.nics[0].mbit = Some(400_000);
    let outcome = standing.after(&joined(&[nics])).unwrap();
    assert!(matches!(outcome, Outcome::Keep(_)));
}

/// What a plan tells of the machine is of the machine as it is, not as it was when the plan was made.
#[test]
fn what_is_told_of_the_machine_is_renewed() {
    let good = host("dgx_a100");
    let mut bad = good.clone();
    // A NIC that lost its link is told of, and carries nothing inside a host.
    bad.nics[0].up = Some(false);
    bad.gpus[0].uuid = Some("GPU-of-another".into());
    let [good, bad] = [good, bad].map(|host| joined(&[host]));
    let fresh = |topology: &Topology| crate::plan(topology, &request()).unwrap();
    let health = health_of(&bad);
    assert!(health.iter().any(|finding| !health_of(&good).contains(finding)), "{health:?}");
    let prepared = Prepared::all(&good, &request()).unwrap();
    for (from, to) in [(&good, &bad), (&bad, &good)] {
        let outcome = standing(from, Prepared::new()).after(to).unwrap();
        assert!(matches!(outcome, Outcome::Keep(_)));
        let (found, wanted) = (outcome.plan(), fresh(to));
        assert_eq!(found.findings, wanted.findings);
        assert_eq!(found.assumptions, wanted.assumptions);
        assert_eq!(found.ranks, wanted.ranks);
    }
    let peer = host("dgx_a100").gpus[2].links[0].peer.clone();
    let mut less = with_links(host("dgx_a100"), 2, &peer, 6);
    less.nics[0].up = Some(false);
    let now = joined(&[less]);
    let standing = standing(&good, prepared);
    let outcome = standing.after(&now).unwrap();
    let (found, wanted) = (outcome.plan(), fresh(&now));
    assert_eq!(found.findings, wanted.findings);
    assert_eq!(found.assumptions, wanted.assumptions);
}

#[test]
fn another_machine_is_planned_anew() {
    let standing = standing(&joined(&[host("dgx_a100")]), Prepared::new());
    let mut fewer = host("dgx_a100");
    fewer.gpus.pop();
    let outcome = standing.after(&joined(&[fewer])).unwrap();
    assert!(matches!(outcome, Outcome::Replan(ref plan) if plan.ranks.len() == 7));
    let same = standing.after(&joined(&[host("dgx_a100")])).unwrap();
    assert_eq!(same, Outcome::Keep(standing.plan().clone()));
}

#[test]
fn failures_are_those_of_links_and_nics() {
    let whole = joined(&[host("dgx1v")]);
    let failures = single_failures(&whole);
    // 16 pairs, 8 of them with two links; 4 NICs, each also without its cable.
    assert_eq!(failures.len(), 16 + 8 + 2 * 4, "{failures:?}");
    for failure in &failures {
        what_if::apply(&whole, &[failure]).unwrap();
    }
}
