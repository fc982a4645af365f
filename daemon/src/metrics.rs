//! What Prometheus reads: counts that the daemon keeps, and gauges made of what is published when somebody asks.
//!
//! Base units; few series: one for each device, pair of GPU and NIC, and finding. Names and labels are an interface: rules, dashboards
//! and other people's queries use them.

use std::time::Duration;

use prometheus::core::Collector as _;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};
use proto::{OperationOutcome, OperationReport};
use topology::{Collective, Topology};

use crate::plans::Origin;

mod page;

pub(crate) use page::page;

/// Seconds of collectives, from shared memory's to those that time out.
const COLLECTIVE_SECONDS: [f64; 12] =
    [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 10.0];
/// Seconds of readings: files take milliseconds, drivers seconds.
const READING_SECONDS: [f64; 9] = [1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0];
/// What is reached of what is predicted.
const USE: [f64; 8] = [0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Smaller operations are bound by latency: that they leave bandwidth unused says nothing.
const LEAST_BYTES_FOR_USE: u64 = 1 << 20;

/// Counts since the daemon's start.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    readings: IntCounterVec,
    reading_seconds: Histogram,
    probe_errors: IntCounterVec,
    collectives: IntCounterVec,
    collective_seconds: HistogramVec,
    collective_use: HistogramVec,
    collective_bytes: IntCounterVec,
    state_write_errors: IntCounter,
    plans: IntCounterVec,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        // Names, labels and buckets are constants, and a test makes them all.
        Self::try_new().expect("the names of metrics are valid and differ")
    }

    fn try_new() -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels)
        };
        let histograms = |name: &str, help: &str, buckets: &[f64]| {
            HistogramVec::new(
                HistogramOpts::new(name, help).buckets(buckets.to_vec()),
                &["collective"],
            )
        };
        let metrics = Self {
            registry: Registry::new(),
            readings: counters(
                "topod_readings_total",
                "Readings of the machine, by whether they gave a topology.",
                &["outcome"],
            )?,
            reading_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "topod_probe_duration_seconds",
                    "Time that readings of the machine took.",
                )
                .buckets(READING_SECONDS.to_vec()),
            )?,
            probe_errors: counters(
                "topod_probe_errors_total",
                "Facts that could not be read, counted at each reading.",
                &["probe", "reason"],
            )?,
            collectives: counters(
                "topod_collectives_total",
                "Collectives that jobs reported, by how they ended.",
                &["collective", "outcome"],
            )?,
            collective_seconds: histograms(
                "topod_collective_duration_seconds",
                "Time that reported collectives took, however they ended.",
                &COLLECTIVE_SECONDS,
            )?,
            collective_use: histograms(
                "topod_collective_bandwidth_use_ratio",
                "Bandwidth of reported collectives of 1 MiB and more over what their plan predicts for their size.",
                &USE,
            )?,
            collective_bytes: counters(
                "topod_collective_bytes_total",
                "Data of reported collectives that ended well.",
                &["collective"],
            )?,
            state_write_errors: IntCounter::new(
                "topod_state_write_errors_total",
                "Times that the daemon's state could not be kept on disk.",
            )?,
            plans: counters(
                "topod_plans_total",
                "Plans that were answered with for the first time, by how the daemon came by them.",
                &["origin"],
            )?,
        };
        let all: [Box<dyn prometheus::core::Collector>; 9] = [
            Box::new(metrics.readings.clone()),
            Box::new(metrics.reading_seconds.clone()),
            Box::new(metrics.probe_errors.clone()),
            Box::new(metrics.collectives.clone()),
            Box::new(metrics.collective_seconds.clone()),
            Box::new(metrics.collective_use.clone()),
            Box::new(metrics.collective_bytes.clone()),
            Box::new(metrics.state_write_errors.clone()),
            Box::new(metrics.plans.clone()),
        ];
        for collector in all {
            metrics.registry.register(collector)?;
        }
        // A counter that appears with its first event shows no increase: what alerts count is there from the start.
        for collective in Collective::ALL {
            for outcome in OperationOutcome::ALL {
                metrics.collectives.with_label_values(&[collective.as_str(), outcome.as_str()]);
            }
        }
        for origin in Origin::WORDS {
            metrics.plans.with_label_values(&[origin]);
        }
        for outcome in ["ok", "failed"] {
            metrics.readings.with_label_values(&[outcome]);
        }
        Ok(metrics)
    }

    /// A reading of the machine ended.
    pub(crate) fn reading(&self, took: Duration, ok: bool) {
        self.readings.with_label_values(&[if ok { "ok" } else { "failed" }]).inc();
        self.reading_seconds.observe(took.as_secs_f64());
    }

    /// What the reading could not read.
    pub(crate) fn faults(&self, topology: &Topology) {
        for fault in topology.hosts().iter().flat_map(|host| &host.faults) {
            self.probe_errors.with_label_values(&[&fault.probe[..], fault.kind.as_str()]).inc();
        }
    }

    /// A job reported an operation.
    pub(crate) fn operation(&self, report: &OperationReport) {
        let collective = report.collective.as_str();
        let seconds = report.duration.as_secs_f64();
        self.collectives.with_label_values(&[collective, report.outcome.as_str()]).inc();
        self.collective_seconds.with_label_values(&[collective]).observe(seconds);
        if report.outcome != OperationOutcome::Ok {
            return;
        }
        self.collective_bytes.with_label_values(&[collective]).inc_by(report.bytes);
        if let Some(predicted) = report.predicted
            && report.bytes >= LEAST_BYTES_FOR_USE
            && seconds > 0.0
        {
            let reached = predicted.as_secs_f64() / seconds;
            self.collective_use.with_label_values(&[collective]).observe(reached);
        }
    }

    pub(crate) fn state_not_written(&self) {
        self.state_write_errors.inc();
    }

    /// Counts plans by origin.
    pub(crate) fn plans(&self) -> IntCounterVec {
        self.plans.clone()
    }

    fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.registry.gather()
    }
}

/// Gauges of one page, each made when the page is.
#[derive(Default)]
struct Gauges(Vec<prometheus::proto::MetricFamily>);

impl Gauges {
    /// A gauge with its series: label values in the order of `labels`.
    fn add<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        series: impl IntoIterator<Item = ([String; N], f64)>,
    ) {
        let Ok(gauge) = prometheus::GaugeVec::new(Opts::new(name, help), &labels) else { return };
        for (values, value) in series {
            gauge.with_label_values(&values).set(value);
        }
        self.0.extend(gauge.collect());
    }

    fn one(&mut self, name: &str, help: &str, value: f64) {
        self.add(name, help, [], [([], value)]);
    }
}
