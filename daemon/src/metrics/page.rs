//! The page itself.

use std::collections::BTreeMap;
use std::time::SystemTime;

use prometheus::TextEncoder;
use proto::v1;
use topology::health::Status;
use topology::snapshot::{LinkLayer, NicRole, PcieLink};
use topology::{Bandwidth, Collective, PathType, Topology, VertexId, VertexKind};

use super::Gauges;
use crate::plans::Made;
use crate::state::State;

/// Everything, in Prometheus' text format.
pub(crate) fn page(state: &State) -> Result<String, prometheus::Error> {
    let mut gauges = Gauges::default();
    let build = [env!("CARGO_PKG_VERSION").to_owned(), std::env::consts::ARCH.to_owned()];
    gauges.add(
        "topod_build_info",
        "The daemon's version, as labels; always 1.",
        ["version", "arch"],
        [(build, 1.0)],
    );
    daemon(state, &mut gauges);
    if let Some(published) = state.current() {
        let help = "Generation of the published topology.";
        gauges.one("topod_generation", help, number(published.generation.0));
        gpus(&published.topology, &mut gauges);
        nics(&published.topology, &mut gauges);
        pcie(&published.topology, &mut gauges);
        paths(&published.topology, &mut gauges);
    }
    if let Some(judged) = state.verdict() {
        verdict(&judged.report, &mut gauges);
    }
    plans(&state.plans.reached(), state.plans.prepared(), &mut gauges);
    let mut families = state.metrics.gather();
    families.extend(gauges.0);
    families.retain(|family| !family.get_metric().is_empty());
    families.sort_by(|a, b| a.name().cmp(b.name()));
    TextEncoder::new().encode_to_string(&families)
}

fn daemon(state: &State, gauges: &mut Gauges) {
    if let Some((at, wall)) = state.last_success() {
        let unix = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        gauges.one(
            "topod_last_success_timestamp_seconds",
            "Wall time of the latest reading that gave a topology.",
            unix.as_secs_f64(),
        );
        gauges.one(
            "topod_probe_age_seconds",
            "Time since the latest reading that gave a topology, by a clock that never jumps.",
            at.elapsed().as_secs_f64(),
        );
    }
    let failed = if state.last_error().is_some() { 1.0 } else { 0.0 };
    gauges.one("topod_probe_failed", "1 where the latest reading gave no topology.", failed);
    gauges.one("topod_watchers", "Watches that are open.", f64::from(state.watchers()));
    let warnings = i32::try_from(state.warnings().len()).unwrap_or(i32::MAX);
    gauges.one(
        "topod_warnings",
        "Things of the daemon's own that do not work, such as keeping its state; topoctl status tells them.",
        f64::from(warnings),
    );
}

fn gpus(topology: &Topology, gauges: &mut Gauges) {
    let gpus = || topology.hosts().iter().flat_map(|host| &host.gpus);
    let labels = ["gpu", "gpu_uuid", "pci_bus_id", "model"];
    let info = gpus().map(|gpu| {
        let bus_id = gpu.bus_id.map(|id| id.to_string()).unwrap_or_default();
        let (uuid, model) = (gpu.uuid.clone(), gpu.name.clone());
        ([gpu.index.to_string(), uuid.unwrap_or_default(), bus_id, model.unwrap_or_default()], 1.0)
    });
    gauges.add("topod_gpu_info", "A GPU, as labels; always 1.", labels, info);

    let links = gpus().flat_map(|gpu| {
        let active: u32 = gpu.links.iter().map(|links| links.count).sum();
        let series = |state: &str, count: u32| {
            let uuid = gpu.uuid.clone().unwrap_or_default();
            ([gpu.index.to_string(), uuid, state.to_owned()], f64::from(count))
        };
        // How many there should be is known only where the driver tells of those that are down.
        let expected = gpu.inactive_links.map(|down| series("expected", active + down));
        let told = active > 0 || expected.is_some();
        [told.then(|| series("active", active)), expected].into_iter().flatten()
    });
    let help = "NVLink or xGMI links of a GPU that are up, and that there should be.";
    gauges.add("topod_nvlink_links", help, ["gpu", "gpu_uuid", "state"], links);
}

fn nics(topology: &Topology, gauges: &mut Gauges) {
    let nics = || topology.hosts().iter().flat_map(|host| &host.nics);
    let info = nics().map(|nic| {
        let role = match nic.role {
            NicRole::Fabric => "fabric",
            NicRole::Other => "other",
            NicRole::Unknown => "unknown",
        };
        let layer = match nic.link_layer {
            Some(LinkLayer::Infiniband) => "infiniband",
            Some(LinkLayer::Ethernet) => "ethernet",
            None => "unknown",
        };
        let rail = nic.rail.map(|rail| rail.to_string()).unwrap_or_default();
        let bus_id = nic.bus_id.map(|id| id.to_string()).unwrap_or_default();
        ([nic.name.clone(), bus_id, role.to_owned(), rail, layer.to_owned()], 1.0)
    });
    let labels = ["nic", "pci_bus_id", "role", "rail", "link_layer"];
    gauges.add("topod_nic_info", "A port of a NIC, as labels; always 1.", labels, info);
    let up = nics().filter_map(|nic| {
        let up = nic.up?;
        Some(([nic.name.clone()], if up { 1.0 } else { 0.0 }))
    });
    gauges.add("topod_nic_up", "1 where the port is up; unknown ones are left out.", ["nic"], up);
}

fn pcie(topology: &Topology, gauges: &mut Gauges) {
    let links = || {
        let devices = topology.hosts().iter().flat_map(|host| &host.pci_devices);
        devices.flat_map(|device| {
            let most = [device.link.device_capable, device.link.slot_capable];
            let most = most
                .into_iter()
                .flatten()
                .reduce(|a, b| PcieLink { mtps: a.mtps.min(b.mtps), width: a.width.min(b.width) });
            let kinds = [("current", device.link.trained), ("max", most)];
            kinds.into_iter().filter_map(|(kind, link)| {
                Some(([device.bus_id.to_string(), kind.to_owned()], link?))
            })
        })
    };
    let labels = ["pci_bus_id", "kind"];
    gauges.add(
        "topod_pcie_link_width",
        "Lanes of a PCIe link as trained, and as both ends can.",
        labels,
        links().filter(|(_, link)| link.width > 0).map(|(at, link)| (at, f64::from(link.width))),
    );
    gauges.add(
        "topod_pcie_link_speed_transfers_per_second",
        "Transfers a second and lane of a PCIe link as trained, and as both ends can. GPUs at rest train down.",
        labels,
        links().filter(|(_, link)| link.mtps > 0).map(|(at, link)| (at, f64::from(link.mtps) * 1e6)),
    );
}

fn paths(topology: &Topology, gauges: &mut Gauges) {
    // Among several hosts every NIC is "over the network" for most GPUs, and the pairs are too many.
    if topology.hosts().len() != 1 {
        return;
    }
    let index = |id: VertexId| match topology.vertex(id).kind {
        VertexKind::Gpu { index } => index.to_string(),
        _ => String::new(),
    };
    let pairs =
        topology.gpus().iter().flat_map(|gpu| topology.nics().iter().map(move |nic| (*gpu, *nic)));
    let pairs: Vec<([String; 2], PathType, Bandwidth)> = pairs
        .map(|(gpu, nic)| {
            let path = topology.path(gpu, nic);
            let names = [index(gpu), topology.vertex(nic).name.clone()];
            (names, path.class, path.bottleneck)
        })
        .collect();
    gauges.add(
        "topod_path_class",
        "Class of the path between a GPU and a NIC, as a label; always 1.",
        ["gpu", "nic", "class"],
        pairs.iter().map(|([gpu, nic], class, _)| {
            ([gpu.clone(), nic.clone(), class.as_str().to_owned()], 1.0)
        }),
    );
    gauges.add(
        "topod_path_bandwidth_bytes_per_second",
        "Rate of the narrowest link between a GPU and a NIC, one direction.",
        ["gpu", "nic"],
        pairs.iter().map(|(names, _, rate)| (names.clone(), number(rate.kbps()) * 1e3)),
    );
}

fn verdict(report: &v1::HealthReport, gauges: &mut Gauges) {
    let statuses = [Status::Ok, Status::Unknown, Status::Degraded, Status::Critical];
    gauges.add(
        "topod_health_status",
        "1 for the verdict on the machine, 0 for the others.",
        ["status"],
        statuses.map(|status| {
            let holds = report.status() == v1::HealthStatus::from(status);
            ([status.to_string()], if holds { 1.0 } else { 0.0 })
        }),
    );
    let bad = report.findings.iter().filter_map(|finding| {
        let severity = match finding.severity() {
            v1::Severity::Degraded => "degraded",
            v1::Severity::Critical => "critical",
            v1::Severity::Info | v1::Severity::Unspecified => return None,
        };
        let labels = [finding.component.clone(), finding.code.clone(), severity.to_owned()];
        Some((labels, 1.0))
    });
    gauges.add(
        "topod_degraded",
        "A finding about a component; always 1, and gone with the finding.",
        ["component", "reason", "severity"],
        bad,
    );
    let faults = i32::try_from(report.faults.len()).unwrap_or(i32::MAX);
    gauges.one(
        "topod_probe_faults",
        "Facts that the latest reading could not read.",
        f64::from(faults),
    );
    let unchecked = i32::try_from(report.unchecked.len()).unwrap_or(i32::MAX);
    gauges.one("topod_unchecked_rules", "Health rules that lack a fact.", f64::from(unchecked));
}

fn plans(made: &[std::sync::Arc<Made>], prepared: usize, gauges: &mut Gauges) {
    let mut worst: BTreeMap<Collective, f64> = BTreeMap::new();
    for made in made {
        for (collective, (best, bound)) in &made.reached.collectives {
            let Some(bound) = bound.map(|bound| bound.to_f64()).filter(|bound| *bound > 0.0) else {
                continue;
            };
            let ratio = best.to_f64() / bound;
            let least = worst.entry(*collective).or_insert(ratio);
            *least = least.min(ratio);
        }
    }
    gauges.add(
        "topod_plan_bound_ratio",
        "What plans reach over what is proved to be possible: the worst of the plans kept.",
        ["collective"],
        worst.into_iter().map(|(collective, ratio)| ([collective.as_str().to_owned()], ratio)),
    );
    let kept = i32::try_from(made.len()).unwrap_or(i32::MAX);
    gauges.one("topod_plans_kept", "Plans that are kept for whoever asks next.", f64::from(kept));
    let prepared = u32::try_from(prepared).unwrap_or(u32::MAX);
    gauges.one(
        "topod_plans_prepared",
        "Plans made beforehand, for failures that have not happened.",
        f64::from(prepared),
    );
    // The one for the most GPUs stands for the machine.
    let Some(largest) = made.iter().max_by_key(|made| made.reached.ranks) else { return };
    let reached = &largest.reached;
    gauges.add(
        "topod_plan_channels",
        "Channels of the plan for the most GPUs.",
        ["pattern"],
        reached.channels.iter().map(|(pattern, n)| ([(*pattern).to_owned()], f64::from(*n))),
    );
    gauges.add(
        "topod_plan_predicted_busbw_bytes_per_second",
        "Bus bandwidth of large operations by the plan for the most GPUs.",
        ["collective"],
        reached.collectives.iter().map(|(collective, (best, _))| {
            let busbw = best.to_f64() * 1e9 * collective.busbw_factor(reached.ranks);
            ([collective.as_str().to_owned()], busbw)
        }),
    );
}

/// Metrics are floats; numbers beyond 2^53 lose their last digits there.
fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto::{OperationOutcome, OperationReport};
    use topology::Generation;

    use super::*;
    use crate::state::tests::{pair, read, state};

    #[track_caller]
    fn check(page: &str, line: &str) {
        assert!(page.lines().any(|found| found == line), "no '{line}' in\n{page}");
    }

    fn operation(
        outcome: OperationOutcome,
        bytes: u64,
        ms: u64,
        predicted_ms: u64,
    ) -> OperationReport {
        OperationReport {
            collective: Collective::AllReduce,
            outcome,
            bytes,
            duration: Duration::from_millis(ms),
            predicted: Some(Duration::from_millis(predicted_ms)),
        }
    }

    #[test]
    fn what_is_published_is_on_the_page() {
        let state = state();
        let before = page(&state).unwrap();
        check(&before, "topod_collectives_total{collective=\"all-reduce\",outcome=\"timeout\"} 0");
        assert!(!before.contains("topod_generation"), "nothing is published yet");

        read(&state, pair(10, vec![]));
        state.reading_succeeded(Duration::from_millis(2));
        state.judge(&pair(10, vec![]), Generation(1));
        let page = page(&state).unwrap();
        check(&page, "topod_generation 1");
        check(&page, "topod_readings_total{outcome=\"ok\"} 1");
        check(&page, "topod_probe_duration_seconds_bucket{le=\"0.003\"} 1");
        check(&page, "topod_health_status{status=\"ok\"} 1");
        check(&page, "topod_probe_failed 0");
    }

    #[test]
    fn operations_are_counted() {
        let state = state();
        state.metrics.operation(&operation(OperationOutcome::Ok, 1 << 20, 20, 9));
        state.metrics.operation(&operation(OperationOutcome::Ok, 8, 20, 9));
        state.metrics.operation(&operation(OperationOutcome::Timeout, 1 << 20, 30_000, 9));
        let page = page(&state).unwrap();
        let series = |name: &str, labels: &str, value: u64| {
            check(
                &page,
                &format!("topod_collective{name}{{collective=\"all-reduce\"{labels}}} {value}"),
            );
        };
        series("s_total", ",outcome=\"ok\"", 2);
        series("s_total", ",outcome=\"timeout\"", 1);
        series("_duration_seconds_count", "", 3);
        series("_duration_seconds_bucket", ",le=\"0.1\"", 2);
        series("_bytes_total", "", (1 << 20) + 8);
        // Of the small one, and of the one that did not end, bandwidth says nothing.
        series("_bandwidth_use_ratio_count", "", 1);
        series("_bandwidth_use_ratio_bucket", ",le=\"0.5\"", 1);
        series("_bandwidth_use_ratio_bucket", ",le=\"0.25\"", 0);
    }

    #[tokio::test]
    async fn plans_are_told_by_what_they_reach() {
        let state = state();
        read(&state, pair(10, vec![]));
        let published = state.current().unwrap();
        state.plans.get(&published, topology::PlanRequest::default()).await.unwrap();
        let page = page(&state).unwrap();
        check(&page, "topod_plan_bound_ratio{collective=\"all-reduce\"} 1");
        check(&page, "topod_plans_kept 1");
        check(
            &page,
            "topod_plan_predicted_busbw_bytes_per_second{collective=\"all-gather\"} 10000000000",
        );
    }
}
