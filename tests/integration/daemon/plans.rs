//! Plans: for what was asked, checked, made once, or refused with a reason.

use proto::{GpuSelector, PlanQuery, Reason, v1};
use tonic::{Code, Status};
use topology::snapshot::LinkPeer;
use topology::{Collective, Generation, GpuIndex, Plan, RateModel, Snapshot, lower};

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

#[tokio::test]
async fn why_a_plan_is_as_it_is() {
    let daemon = Daemon::start().await;
    let plan = v1::GetPlanRequest {
        collectives: vec![v1::Collective::AllGather.into()],
        ..Default::default()
    };
    let request = v1::ExplainPlanRequest { plan: Some(plan.clone()) };
    let explained = daemon.plans().explain_plan(request).await.unwrap().into_inner();
    let [gather] = &explained.collectives[..] else { panic!("{explained:?}") };
    assert_eq!(gather.collective(), v1::Collective::AllGather);
    // Four GPUs, three links of 20 GB/s each: every one receives 3/4 of the data at 60 GB/s.
    assert_eq!(gather.algbw_gbps, "80");
    assert!(!gather.full_links.is_empty() && explained.tried > 0);
    let refused = daemon.plans().explain_plan(v1::ExplainPlanRequest::default()).await;
    check_refused(refused, Code::InvalidArgument, Reason::InvalidRequest);

    let export = |format: v1::PlanFormat| v1::ExportPlanRequest {
        plan: Some(plan.clone()),
        format: format.into(),
    };
    let json = daemon.plans().export_plan(export(v1::PlanFormat::Json)).await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&json.into_inner().text).unwrap();
    assert_eq!(json["collectives"]["all-gather"]["bound"]["exact"], "80");
    let graph = daemon.plans().export_plan(export(v1::PlanFormat::NcclGraph)).await.unwrap();
    let graph = graph.into_inner();
    topology::nccl_graph::read(graph.text.as_bytes()).unwrap();
    assert!(graph.notes[0].contains("every communicator"));
}

#[tokio::test]
async fn gpus_are_selected() {
    let daemon = Daemon::start().await;
    let free = [0, 1, 3].map(|index| v1::GpuSelector::from(&GpuSelector::Uuid(gpu_uuid(index))));
    let request = v1::SelectGpusRequest { count: 2, free: free.to_vec(), links: 0 };
    let selected = daemon.plans().select_gpus(request.clone()).await.unwrap().into_inner();
    let best = selected.best.unwrap();
    let indices: Vec<u32> = best.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!((&indices[..], &selected.left[..]), (&[0, 1][..], &[3][..]));
    assert_eq!(best.gpus[1].uuid, Some(gpu_uuid(1)));
    assert_eq!(
        (best.all_reduce_gbps.as_deref(), selected.sets, selected.exhaustive),
        (Some("20"), 3, true)
    );
    let refused = daemon.plans().select_gpus(v1::SelectGpusRequest { count: 4, ..request }).await;
    check_refused(refused, Code::FailedPrecondition, Reason::NoPlan);
}

/// A job that hangs at its start: which of its ranks never came, and which came too late.
#[tokio::test]
async fn ranks_of_a_job_never_mix_generations() {
    let daemon = Daemon::start().await;
    let ask = async |rank: u32| {
        let member = proto::JobMember { job: "train.0".into(), rank, ranks_here: 4 };
        plan(&daemon, &PlanQuery { member: Some(member), ..Default::default() }).await
    };
    for rank in [0, 1, 3] {
        assert_eq!(ask(rank).await.unwrap().topology.generation, Generation(1));
    }
    let job = |name: &str| v1::GetJobRequest { job: name.into() };
    let known = daemon.plans().get_job(job("train.0")).await.unwrap().into_inner();
    let ranks: Vec<(u32, u64)> = known.ranks.iter().map(|r| (r.rank, r.generation)).collect();
    assert_eq!((&ranks[..], known.ranks_here), (&[(0, 1), (1, 1), (3, 1)][..], 4));

    daemon.reload(&machine(4, 25)).await;
    daemon.place.notification("STATUS=4 GPUs, 1 NICs, 0 faults, generation 2").await;
    let refused = ask(2).await;
    let status = check_refused(refused, Code::FailedPrecondition, Reason::MixedGenerations);
    assert!(status.message().contains("generation 1"), "{}", status.message());
    let refused = daemon.plans().get_job(job("train.1")).await;
    check_refused(refused, Code::NotFound, Reason::UnknownJob);
}

/// The machine without the link between two of its GPUs.
fn without_link(mut snapshot: Snapshot, one: u32, other: u32) -> Snapshot {
    for gpu in &mut snapshot.gpus {
        let gone = match gpu.index.0 {
            index if index == one => gpu_address(other),
            index if index == other => gpu_address(one),
            _ => continue,
        };
        gpu.links.retain(|links| links.peer != LinkPeer::Gpu(gone));
    }
    snapshot
}

/// What becomes of a plan as the machine changes: it is taken from those made beforehand, kept, or made anew, and the answer says which.
#[tokio::test]
async fn a_change_is_answered_from_what_is_there() {
    use v1::PlanOrigin::{Kept, New, Repaired, Replanned};

    let daemon = Daemon::start().await;
    let ask = async |machine: &Snapshot| {
        let request = v1::GetPlanRequest::default();
        let response = daemon.plans().get_plan(request).await.unwrap().into_inner();
        let told = (response.origin(), response.origin_generation);
        let plan = Plan::try_from(response).unwrap();
        // Wherever it comes from, it is one for the machine as it is.
        let now = lower(std::slice::from_ref(machine), RateModel::Effective).unwrap();
        planner::check::plan(&now, &plan).unwrap();
        (told, plan)
    };
    let change = async |machine: &Snapshot, generation: u64| {
        daemon.reload(machine).await;
        let published = |status: &v1::GetStatusResponse| {
            status.published.as_ref().is_some_and(|published| published.generation == generation)
        };
        daemon.status_when(published).await;
    };
    let whole = machine(4, 20);
    assert_eq!(ask(&whole).await.0, (New, None));
    // Six links, and the NIC with and without its port.
    daemon.status_when(|status| status.prepared_plans >= 6).await;

    let less = without_link(whole.clone(), 0, 1);
    change(&less, 2).await;
    let (told, plan) = ask(&less).await;
    assert_eq!((told, plan.topology.generation), ((Repaired, Some(1)), Generation(2)));
    assert!(plan.topology.what_if.is_empty(), "the machine is like that");
    assert_eq!(daemon.status().await.cached_plans, 1);

    // The NIC carries nothing inside a host: its rate is no reason for another plan.
    let mut slow = less.clone();
    slow.nics[0].mbit = Some(50_000);
    change(&slow, 3).await;
    let (told, plan) = ask(&slow).await;
    assert_eq!((told, plan.topology.generation), ((Kept, Some(2)), Generation(3)));

    let fewer = machine(3, 20);
    change(&fewer, 4).await;
    let (told, plan) = ask(&fewer).await;
    assert_eq!((told, plan.ranks.len()), ((Replanned, Some(3)), 3));

    // As it was at first: the plan of then.
    change(&whole, 5).await;
    assert_eq!(ask(&whole).await.0, (Kept, Some(1)));
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
}

/// What the daemon answers is what `topoctl map` says of the same machine.
#[tokio::test]
async fn ranks_are_mapped_as_topoctl_maps_them() {
    let daemon = Daemon::start().await;
    let job = v1::JobSizes { tp: 2, pp: 2, ..Default::default() };
    let model = v1::TransformerSizes { hidden: Some(8192), ..Default::default() };
    let given = vec![v1::AxisBytes { axis: v1::ParallelAxis::Pp.into(), bytes: 1 << 20 }];
    let request =
        v1::MapRanksRequest { job: Some(job), model: Some(model), given, ..Default::default() };
    let told = daemon.plans().map_ranks(request.clone()).await.unwrap().into_inner();
    let output = std::process::Command::new(crate::programs::topoctl())
        .args(["map", "--tp", "2", "--pp", "2", "--hidden", "8192", "--bytes-pp", "1MiB"])
        .args(["-o", "json", "--from"])
        .arg(daemon.place.machine())
        .output()
        .unwrap();
    let expect: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((told.generation, told.job.unwrap().dp), (1, Some(1)));
    assert_eq!(told.order.as_ref().unwrap().name, expect["order"]["name"]);
    let ranks: Vec<_> = told
        .ranks
        .iter()
        .map(|rank| {
            serde_json::json!([rank.rank, rank.host, rank.gpu, rank.bus_id, rank.tp, rank.pp])
        })
        .collect();
    let of = |rank: &serde_json::Value| {
        serde_json::json!(
            ["rank", "host", "gpu", "bus_id", "tp", "pp"].map(|key| rank[key].clone())
        )
    };
    let expected: Vec<_> = expect["ranks"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(ranks, expected);
    let axes = expect["axes"].as_array().unwrap();
    assert_eq!(told.axes.len(), axes.len());
    for (axis, expect) in told.axes.iter().zip(axes) {
        assert_eq!(
            (axis.bytes, axis.times),
            (expect["bytes"].as_u64().unwrap(), expect["times"].as_u64().unwrap())
        );
        assert_eq!(axis.tier, expect["tier"]);
    }
    assert_eq!(serde_json::json!(told.traffic), expect["traffic"]);
    assert_eq!(serde_json::json!(told.assumptions), expect["assumptions"]);

    let refused = async |change: fn(&mut v1::MapRanksRequest), code, reason| {
        let mut request = request.clone();
        change(&mut request);
        check_refused(daemon.plans().map_ranks(request).await, code, reason);
    };
    use Code::{InvalidArgument, NotFound};
    use Reason::{InvalidRequest, UnknownGpu};
    refused(|r| r.job.as_mut().unwrap().tp = 3, InvalidArgument, InvalidRequest).await;
    refused(|r| r.job.as_mut().unwrap().tp = u32::MAX, InvalidArgument, InvalidRequest).await;
    refused(|r| r.job.as_mut().unwrap().dp = Some(2), InvalidArgument, InvalidRequest).await;
    refused(|r| r.given[0].axis = 99, InvalidArgument, InvalidRequest).await;
    refused(|r| r.given[0].axis = 0, InvalidArgument, InvalidRequest).await;
    refused(|r| r.given.push(r.given[0]), InvalidArgument, InvalidRequest).await;
    let gone =
        |r: &mut v1::MapRanksRequest| r.gpus = vec![(&GpuSelector::Uuid("GPU-9".into())).into()];
    refused(gone, NotFound, UnknownGpu).await;
}
