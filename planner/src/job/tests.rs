use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use topology::Snapshot;
use topology::formats::job_plan_json;
use topology::snapshot::NicRole;

use super::*;
use crate::check::{self, job as check_job};
use crate::test_hosts::{host, joined};

fn fleet(hosts: &[Snapshot]) -> Fleet {
    Fleet::of(&joined(hosts)).unwrap()
}

fn planned(fleet: &Fleet) -> JobPlan {
    plan(fleet, &[], LinkPolicy::Auto).unwrap()
}

fn topologies(fleet: &Fleet) -> Vec<&Topology> {
    fleet.classes.iter().map(|class| &class.topology).collect()
}

/// A host whose first NICs for collectives have this rate.
fn slower(name: &str, nics: usize, mbit: u64) -> Snapshot {
    let mut host = host(name);
    let serving = host.nics.iter_mut().filter(|nic| nic.role != NicRole::Other);
    serving.take(nics).for_each(|nic| nic.mbit = Some(mbit));
    host
}

/// Part of its bound that a collective reaches, in thousandths.
fn permille(plan: &JobPlan, collective: Collective) -> i128 {
    let reached = &plan.collectives[&collective];
    (reached.algbw_gbps / reached.bound_gbps * Fraction::integer(1000)).floor()
}

/// Loads and rates by class are those of all channels, hop by hop, on the whole topology.
#[track_caller]
fn same_as_expanded(hosts: &[Snapshot]) {
    let whole = joined(hosts);
    let fleet = Fleet::of(&whole).unwrap();
    let plan = planned(&fleet);
    let by_class = check_job::job(&topologies(&fleet), &plan).unwrap();
    for (collective, counted) in by_class {
        let (ranks, channels) = plan.expand(collective).unwrap();
        let expanded = check::count(&whole, &ranks, &channels, collective).unwrap();
        assert_eq!(expanded.algbw_gbps, counted.algbw_gbps, "{collective}");
        let mut loads = BTreeMap::new();
        for (host, &class) in fleet.class_of.iter().enumerate() {
            let topology = &fleet.classes[class].topology;
            let there = |id| {
                let name = &topology.vertex(id).name;
                let prefixed = alloc::format!("{host}:{name}");
                whole.find(name).or_else(|| whole.find(&prefixed)).unwrap()
            };
            for (link, load) in &counted.loads[class] {
                let (from, to) = topology.graph().edge_endpoints(*link).unwrap();
                // Links of several kinds may join the two.
                let nth = topology.links_between(from, to).iter().position(|l| l == link);
                loads.insert(whole.links_between(there(from), there(to))[nth.unwrap()], *load);
            }
        }
        let expanded: BTreeMap<_, _> = expanded.loads.into_iter().collect();
        let links: alloc::collections::BTreeSet<_> = loads.keys().chain(expanded.keys()).collect();
        for link in links {
            let (from, to) = whole.graph().edge_endpoints(*link).unwrap();
            let ends = [from, to].map(|id| &whole.vertex(id).name);
            assert_eq!(loads.get(link), expanded.get(link), "{collective}: {ends:?}");
        }
    }
}

#[test]
fn by_class_is_what_it_stands_for() {
    same_as_expanded(&[host("dgx_h100"), host("dgx_h100")]);
    same_as_expanded(&[host("dgx1v"), host("dgx1v"), host("dgx1v")]);
    same_as_expanded(&[host("pcie_switches"), host("pcie_switches")]);
}

#[test]
fn by_class_is_what_it_stands_for_where_hosts_differ() {
    same_as_expanded(&[host("dgx_a100"), host("dgx1v"), slower("dgx_a100", 4, 50_000)]);
    same_as_expanded(&[host("dgx_a100"), host("gb200_tray"), host("dgx_a100")]);
    same_as_expanded(&[host("dgx_a100_four_nics"), slower("dgx_h100", 7, 10_000)]);
}

#[test]
fn equal_hosts_come_near_the_bound() {
    for (name, hosts) in
        [("dgx_h100", 2), ("dgx_h100", 4), ("dgx_h100", 64), ("dgx_a100", 2), ("dgx_a100", 16)]
    {
        let fleet = Fleet { classes: fleet(&[host(name)]).classes, class_of: vec![0; hosts] };
        let plan = planned(&fleet);
        for collective in PLANNED {
            let found = permille(&plan, collective);
            // Of two hosts the network has room to help inside, which the form by class leaves alone.
            let least = if hosts == 2 { 940 } else { 980 };
            assert!((least..=1000).contains(&found), "{name} x {hosts}: {collective} {found}");
        }
    }
}

/// What the planner that lists every hop reaches on two hosts, and its bound, hold for the form by class too.
#[test]
fn bounds_agree_with_the_whole_topology() {
    for name in ["dgx_h100", "dgx_a100"] {
        let hosts = [host(name), host(name)];
        let job = planned(&fleet(&hosts));
        let request = PlanRequest { collectives: PLANNED.to_vec(), ..PlanRequest::default() };
        let listed = crate::plan(&joined(&hosts), &request).unwrap();
        for collective in PLANNED {
            let (reached, listed) =
                (&job.collectives[&collective], &listed.collectives[&collective]);
            let (best, bound) = (listed.best.as_ref().unwrap(), listed.bound.as_ref().unwrap());
            assert!(reached.bound_gbps >= best.algbw_gbps, "{name}: {collective}");
            assert!(reached.algbw_gbps <= bound.algbw_gbps, "{name}: {collective}");
            assert!(
                reached.algbw_gbps * Fraction::of(100, 94) >= best.algbw_gbps,
                "{name}: {collective} {} of {}",
                reached.algbw_gbps,
                best.algbw_gbps
            );
        }
    }
}

/// A host whose NICs have a quarter of the rate is hub for less, and sends its own part once, which alone then limits.
#[test]
fn slow_hosts_are_hubs_for_less() {
    let slow = slower("dgx_h100", 8, 100_000);
    let mixed = planned(&fleet(&[host("dgx_h100"), host("dgx_h100"), slow.clone()]));
    let Exchange::Hubs(weights) = &mixed.collectives[&Collective::AllReduce].exchange else {
        panic!("hubs")
    };
    assert!(weights[1] < weights[0]);
    let slowest = planned(&fleet(&[slow.clone(), slow.clone(), slow]));
    let rate = |plan: &JobPlan| plan.collectives[&Collective::AllReduce].algbw_gbps;
    assert!(rate(&mixed) > rate(&slowest) * Fraction::of(11, 10));
    assert!(permille(&mixed, Collective::AllReduce) >= 990);
}

#[test]
fn thousands_of_hosts() {
    let classes: Vec<Snapshot> =
        [host("dgx_h100"), slower("dgx_h100", 1, 200_000), slower("dgx_h100", 2, 200_000)].into();
    let of = fleet(&classes);
    let class_of: Vec<usize> = (0..16_384).map(|host| host % 3).collect();
    let plan = planned(&Fleet { classes: of.classes.clone(), class_of });
    assert_eq!(plan.ranks(), 131_072);
    for collective in PLANNED {
        assert!(permille(&plan, collective) >= 900, "{collective} {}", permille(&plan, collective));
    }
    let text = job_plan_json::write(&plan);
    assert_eq!(job_plan_json::read(text.as_bytes()).unwrap(), plan);
    let runs = planned(&Fleet { classes: of.classes, class_of: vec![0; 16_384] });
    assert!(job_plan_json::write(&runs).len() < 1 << 20);
}

/// Every lie is found.
#[test]
fn changed_plans_are_refused() {
    let fleet = fleet(&[host("dgx_a100"), host("dgx_h100")]);
    let whole = planned(&fleet);
    let refused = |change: &dyn Fn(&mut JobPlan)| {
        let mut plan = whole.clone();
        change(&mut plan);
        assert_ne!(plan, whole);
        check_job::job(&topologies(&fleet), &plan).unwrap_err()
    };
    let claim = |plan: &mut JobPlan| {
        plan.collectives.get_mut(&Collective::AllReduce).unwrap().algbw_gbps =
            Fraction::integer(999)
    };
    assert!(refused(&claim)[0].contains("999 GB/s are claimed"));
    refused(&|plan| plan.classes[0].owners[0] = Fraction::of(1, 2));
    refused(&|plan| plan.classes[1].fingerprint = "another".into());
    refused(&|plan| plan.classes[1].uplinks[2][0].out[0] = "nothing".into());
    refused(&|plan| plan.classes[1].uplinks[2][0].share = Fraction::of(1, 2));
    refused(&|plan| plan.classes[0].uplinks[1][0].back.reverse());
    refused(&|plan| plan.classes[0].plan = None);
    refused(&|plan| plan.classes[0].plan.as_mut().unwrap().channels.clear());
    refused(&|plan| plan.class_of.push(7));
    refused(&|plan| {
        let reached = plan.collectives.get_mut(&Collective::AllReduce).unwrap();
        reached.exchange = Exchange::Hubs([Fraction::ONE, Fraction::ONE].into());
    });
    refused(&|plan| {
        let reached = plan.collectives.get_mut(&Collective::AllGather).unwrap();
        reached.bound_gbps = Fraction::integer(1);
    });
}

/// Fractions of a file that 128 bits do not hold together are wrong, and no more than that.
#[test]
fn fractions_that_do_not_fit_are_violations() {
    let fleet = fleet(&[host("dgx_h100"), host("dgx_a100")]);
    let plan = planned(&fleet);
    let huge = Fraction::new(i128::MAX / 3, i128::MAX - 2).unwrap();
    let change = |change: &dyn Fn(&mut JobPlan)| {
        let mut changed = plan.clone();
        change(&mut changed);
        let read = job_plan_json::read(job_plan_json::write(&changed).as_bytes());
        let found = check_job::job(&topologies(&fleet), &read.unwrap_or(changed)).unwrap_err();
        assert!(!found.is_empty());
        found
    };
    let owners = change(&|plan| {
        plan.classes[0].owners[0] = huge;
        plan.classes[0].owners[1] = Fraction::new(1, i128::MAX - 3).unwrap();
    });
    assert!(owners[0].contains("add up"), "{owners:?}");
    let ways = change(&|plan| plan.classes[1].uplinks[0].iter_mut().for_each(|u| u.share = huge));
    assert!(ways[0].contains("its ways carry"), "{ways:?}");
    let hubs = change(&|plan| {
        plan.collectives.get_mut(&Collective::AllReduce).unwrap().exchange =
            Exchange::Hubs([huge, Fraction::new(1, i128::MAX - 5).unwrap()].into());
    });
    assert!(hubs[0].contains("hubs do not share"), "{hubs:?}");
    // Parts that add up, and whose products do not fit.
    let rest = Fraction::ONE - huge;
    let products = change(&|plan| {
        for class in &mut plan.classes {
            class.owners.fill(Fraction::ZERO);
            class.owners[0] = huge;
            class.owners[1] = rest;
        }
    });
    assert!(products.iter().any(|found| found.contains("does not fit")), "{products:?}");
    let shares = change(&|plan| {
        let local = plan.classes[0].plan.as_mut().unwrap();
        local.channels.iter_mut().for_each(|channel| channel.share = huge);
    });
    assert!(shares[0].starts_with("class 0"), "{shares:?}");
}

#[test]
fn what_cannot_be_planned() {
    let no_nic = fleet(&[host("dgx1v")]);
    let mut classes = no_nic.classes;
    classes[0].gpus.iter_mut().for_each(|gpu| gpu.uplinks.clear());
    let two = Fleet { classes: classes.clone(), class_of: vec![0, 0] };
    assert_eq!(plan(&two, &[], LinkPolicy::Auto), Err(JobError::NoNetwork { class: 0 }));
    let none = Fleet { classes, class_of: Vec::new() };
    assert_eq!(plan(&none, &[], LinkPolicy::Auto), Err(JobError::NoHost));
    let one = fleet(&[host("dgx1v")]);
    let wanted = [Collective::Broadcast];
    assert_eq!(plan(&one, &wanted, LinkPolicy::Auto), Err(JobError::NotPlanned(wanted[0])));
    // One host alone is a job too.
    assert!(permille(&planned(&one), Collective::AllGather) >= 990);
}
