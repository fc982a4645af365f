//! Plans: for what was asked, checked, made once, or refused with a reason.

use proto::{GpuSelector, PlanQuery, Reason, v1};
use tonic::{Code, Status};
use topology::{Collective, Generation, GpuIndex, Plan, RateModel, lower};

use super::harness::{Daemon, check_refused, gpu_address, gpu_uuid, machine};

async fn plan(daemon: &Daemon, query: &PlanQuery) -> Result<Plan, Status> {
    let response = daemon.plans().get_plan(v1::GetPlanRequest::from(query)).await?;
    Ok(Plan::try_from(response.into_inner()).unwrap())
}

#[tokio::test]
async fn a_plan_is_for_the_gpus_asked_for() {
    let daemon = Daemon::start().await;
    let query = PlanQuery {
        gpus: vec![
            GpuSelector::Uuid(gpu_uuid(3)),
            GpuSelector::Index(GpuIndex(0)),
            GpuSelector::BusId(gpu_address(2)),
        ],
        collectives: vec![Collective::AllReduce],
        expected_generation: Some(Generation(1)),
        ..Default::default()
    };
    let plan = plan(&daemon, &query).await.unwrap();
    let gpus: Vec<u32> = plan.ranks.iter().map(|rank| rank.gpu.0).collect();
    assert_eq!(gpus, [3, 0, 2]);
    assert_eq!(plan.ranks[0].uuid, Some(gpu_uuid(3)));
    assert_eq!(plan.ranks[0].bus_id, Some(gpu_address(3)));
    assert_eq!(plan.topology.generation, Generation(1));
    assert_eq!(plan.collectives.keys().collect::<Vec<_>>(), [&Collective::AllReduce]);

    // What came over the wire still passes the check, on the graph a client makes.
    let topology = lower(&[machine(4, 20)], RateModel::Effective).unwrap();
    planner::check::plan(&topology, &plan).unwrap();
}

#[tokio::test]
async fn equal_requests_get_equal_plans_made_once() {
    let daemon = Daemon::start().await;
    let query = |collectives: &[Collective]| PlanQuery {
        collectives: collectives.to_vec(),
        ..Default::default()
    };
    let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
    let first = plan(&daemon, &query(&[reduce, gather])).await.unwrap();
    let second = plan(&daemon, &query(&[gather, reduce])).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(daemon.status().await.cached_plans, 1);

    daemon.reload(&machine(3, 20)).await;
    daemon.place.notification("STATUS=3 GPUs, 1 NICs, 0 faults, generation 2").await;
    assert_eq!(daemon.status().await.cached_plans, 0);
    let third = plan(&daemon, &query(&[reduce, gather])).await.unwrap();
    assert_eq!(third.topology.generation, Generation(2));
    assert_ne!(third.topology.fingerprint, first.topology.fingerprint);
}

#[tokio::test]
async fn requests_are_refused_with_a_reason() {
    let daemon = Daemon::start().await;
    let gpus = |selectors: &[GpuSelector]| {
        let query = PlanQuery { gpus: selectors.to_vec(), ..Default::default() };
        v1::GetPlanRequest::from(&query)
    };
    let index = |index| GpuSelector::Index(GpuIndex(index));
    let nameless = v1::GpuSelector { selector: None };
    let misspelt =
        v1::GpuSelector { selector: Some(v1::gpu_selector::Selector::BusId("slot 4".into())) };
    use Code::{FailedPrecondition, InvalidArgument, NotFound};
    use Reason::{InvalidRequest, NoPlan, UnknownGpu};
    let cases = [
        (gpus(&[index(0), index(9)]), NotFound, UnknownGpu),
        (gpus(&[GpuSelector::Uuid("GPU-9".into())]), NotFound, UnknownGpu),
        (gpus(&[index(2), GpuSelector::BusId(gpu_address(2))]), InvalidArgument, InvalidRequest),
        (gpus(&[index(1)]), FailedPrecondition, NoPlan),
        (
            v1::GetPlanRequest { gpus: vec![nameless], ..Default::default() },
            InvalidArgument,
            InvalidRequest,
        ),
        (
            v1::GetPlanRequest { gpus: vec![misspelt], ..Default::default() },
            InvalidArgument,
            InvalidRequest,
        ),
        (
            v1::GetPlanRequest { collectives: vec![99], ..Default::default() },
            InvalidArgument,
            InvalidRequest,
        ),
        (v1::GetPlanRequest { links: 99, ..Default::default() }, InvalidArgument, InvalidRequest),
    ];
    for (request, code, reason) in cases {
        check_refused(daemon.plans().get_plan(request).await, code, reason);
    }

    let stale = PlanQuery { expected_generation: Some(Generation(4)), ..Default::default() };
    let refused = plan(&daemon, &stale).await;
    let status = check_refused(refused, FailedPrecondition, Reason::GenerationMismatch);
    assert_eq!(status.message(), "the present topology is of generation 1, not 4");
}
