//! Plans for the graphs that others published schedules for.

use topology::{Collective, PlanRequest};

#[test]
fn plans_are_at_least_as_fast_as_published_schedules() {
    let Some(cases) = super::present(tests::bars::published()) else { return };
    let (mut compared, mut bounds_only) = (0, 0);
    for case in cases {
        let collective = match case.collective.as_str() {
            "allgather" => Collective::AllGather,
            "alltoall" => Collective::AllToAll,
            other => panic!("{other} is no collective these files are known to have"),
        };
        let name = format!("{} {collective}", case.graph.name);
        let theirs = case.best().expect("a figure");
        let topology = tests::bars::topology(case.graph).expect("a published graph is sound");
        let request = PlanRequest { collectives: vec![collective], ..PlanRequest::default() };
        let plan = planner::plan(&topology, &request).unwrap_or_else(|e| panic!("{name}: {e}"));
        let reached = &plan.collectives[&collective];
        // Printed with three to five digits.
        let least = theirs * 0.9999;
        let bound = reached.bound.as_ref().expect("a bound").algbw_gbps.to_f64();
        assert!(bound >= least, "{name}: the bound {bound} is below {theirs}, which was reached");
        match reached.best.as_ref().map(|ours| ours.algbw_gbps.to_f64()) {
            Some(ours) => {
                assert!(ours >= least, "{name}: {ours} of {theirs}");
                eprintln!("{name}: {ours:.3} GB/s, published {theirs}, bound {bound:.3}");
                compared += 1;
            }
            None => bounds_only += 1,
        }
    }
    eprintln!("{compared} compared, {bounds_only} with a bound alone");
    assert!(compared > 0);
}
