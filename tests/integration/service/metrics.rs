//! Metrics, alerts and dashboard, as Prometheus takes them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use daemon::{Config, MetricsAddress};
use proto::{OperationOutcome, OperationReport, v1};
use serde_json::Value;
use topology::Collective;

use super::activation::get;
use super::found;
use crate::daemon::harness::{Daemon, Place, machine, record};
use crate::workspace_root;

/// A port that was free a moment ago.
pub(super) fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A daemon on four GPUs with one port down, that keeps its state nowhere it can.
async fn start(metrics: MetricsAddress, place: Place) -> Daemon {
    let mut down = machine(4, 20);
    down.nics[0].up = Some(false);
    record(&place.machine(), &down);
    let config = Config {
        metrics: Some(metrics),
        // No folder: nothing can be written there.
        state: Some(place.path("no-such-folder")),
        ..place.config()
    };
    Daemon::start_with(place, config).await
}

async fn report(daemon: &Daemon, outcome: OperationOutcome, count: usize) {
    let operation = OperationReport {
        collective: Collective::AllReduce,
        outcome,
        bytes: 64 << 20,
        duration: Duration::from_millis(200),
        predicted: Some(Duration::from_millis(60)),
    };
    let operations = vec![v1::OperationReport::from(&operation); count];
    daemon.reports().report_operations(v1::ReportOperationsRequest { operations }).await.unwrap();
}

pub(super) async fn page(address: SocketAddr) -> String {
    let answer =
        tokio::task::spawn_blocking(move || get(TcpStream::connect(address).unwrap(), "/metrics"));
    let answer = answer.await.unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    page.to_owned()
}

#[tokio::test]
async fn the_page_is_in_order() {
    let address = free();
    let daemon = start(MetricsAddress::Loopback(address), Place::new()).await;
    daemon.plans().get_plan(v1::GetPlanRequest::default()).await.unwrap();
    report(&daemon, OperationOutcome::Ok, 2).await;
    let page = page(address).await;
    for line in [
        "topod_degraded{component=\"mlx5_0\",reason=\"nic-port-down\",severity=",
        "topod_gpu_info{gpu=\"0\",gpu_uuid=\"GPU-00000000-0000-0000-0000-000000000000\",",
        "topod_nvlink_links{gpu=\"3\",gpu_uuid=\"GPU-00000000-0000-0000-0000-000000000003\",state=\"active\"} 3",
        "topod_nic_up{nic=\"mlx5_0\"} 0",
        "topod_pcie_link_width{kind=\"current\",pci_bus_id=\"0000:10:00.0\"} 16",
        "topod_pcie_link_speed_transfers_per_second{kind=\"max\",pci_bus_id=\"0000:10:00.0\"} 8000000000",
        "topod_path_class{class=\"PHB\",gpu=\"0\",nic=\"mlx5_0\"} 1",
        "topod_plan_bound_ratio{collective=\"all-reduce\"} 1",
        "topod_collectives_total{collective=\"all-reduce\",outcome=\"ok\"} 2",
        "topod_state_write_errors_total 1",
        "topod_plans_total{origin=\"new\"} 1",
        "topod_plans_total{origin=\"repaired\"} 0",
        "topod_warnings 1",
    ] {
        assert!(page.lines().any(|found| found.starts_with(line)), "no {line} in\n{page}");
    }
    let other = move || get(TcpStream::connect(address).unwrap(), "/");
    let other = tokio::task::spawn_blocking(other).await.unwrap();
    assert!(other.contains(" 404 Not Found"), "{other}");

    if found("promtool", "prometheus") {
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped());
        let mut child = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaints.is_empty(), "{complaints}");
    }
    let (ended, _) = daemon.stop().await;
    ended.unwrap();
    TcpStream::connect(address).expect_err("the page ends with the daemon");
}

#[tokio::test]
async fn by_a_unix_socket() {
    let place = Place::new();
    let socket = place.path("metrics.sock");
    let daemon = start(MetricsAddress::Unix(socket.clone()), place).await;
    let path = socket.clone();
    let answer =
        tokio::task::spawn_blocking(move || get(UnixStream::connect(path).unwrap(), "/metrics"));
    assert!(answer.await.unwrap().contains("\ntopod_generation 1\n"));
    let (ended, _place) = daemon.stop().await;
    ended.unwrap();
    assert!(!socket.exists());
}

/// As node_exporter's textfile collector takes it: whole at any time, for every user, and gone with the daemon.
#[tokio::test]
async fn by_a_file() {
    let place = Place::new();
    let file = place.path("topod.prom");
    record(&place.machine(), &machine(4, 20));
    let config = Config { metrics_textfile: Some(file.clone()), ..place.config() };
    let daemon = Daemon::start_with(place, config).await;
    let generation = |number: u64| {
        let line = format!("\ntopod_generation {number}\n");
        let file = file.clone();
        async move || fs::read_to_string(&file).is_ok_and(|page| page.contains(&line))
    };
    until("the first generation in the file", generation(1)).await;
    daemon.reload(&machine(3, 20)).await;
    until("the second, at once", generation(2)).await;
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let (ended, place) = daemon.stop().await;
    ended.unwrap();
    assert!(!file.exists() && !place.path("topod.prom.new").exists());
}

#[test]
fn rules_pass_their_tests() {
    if !found("promtool", "prometheus") {
        return;
    }
    let folder = workspace_root().join("deploy/prometheus");
    for args in [["check", "rules", "topod.rules.yml"], ["test", "rules", "topod.rules.test.yml"]] {
        let output = Command::new("promtool").args(args).current_dir(&folder).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "config", "--syntax-only", "scrape.yml"]).current_dir(&folder);
    let output = promtool.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A Prometheus that ends with the test.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(target: SocketAddr) -> Self {
        let (folder, address) = (tempfile::tempdir().unwrap(), free());
        let rules = workspace_root().join("deploy/prometheus/topod.rules.yml");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\nscrape_configs:\n  - job_name: topod\n    static_configs: [{{ targets: ['{target}'] }}]\n",
            rules.display()
        );
        let path = folder.path().join("prometheus.yml");
        fs::write(&path, config).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=warn"])
            .spawn()
            .unwrap();
        Self { child, address, _folder: folder }
    }

    /// What it answers; nothing before it listens.
    async fn ask(&self, path: String) -> Option<Value> {
        let address = self.address;
        let answer = tokio::task::spawn_blocking(move || {
            Some(get(TcpStream::connect(address).ok()?, &path))
        });
        let answer = answer.await.unwrap()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    async fn query(&self, expression: &str) -> Option<Value> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.ask(format!("/api/v1/query?query={encoded}")).await
    }

    /// Waits until an alert fires.
    async fn fires(&self, name: &str) {
        let firing =
            |alert: &Value| alert["labels"]["alertname"] == name && alert["state"] == "firing";
        let fires = async || {
            let alerts = self.ask("/api/v1/alerts".into()).await;
            let alerts = alerts.as_ref().and_then(|alerts| alerts["data"]["alerts"].as_array());
            alerts.is_some_and(|alerts| alerts.iter().any(firing))
        };
        until(&format!("{name} fires"), fires).await;
    }
}

/// Asks until it holds: Prometheus tells nobody when it has scraped or judged.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let waited = tokio::time::timeout(crate::daemon::harness::PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("never seen: {what}"));
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn prometheus_scrapes_alerts_and_draws() {
    if !found("prometheus", "prometheus") {
        return;
    }
    let address = free();
    let daemon = start(MetricsAddress::Loopback(address), Place::new()).await;
    daemon.plans().get_plan(v1::GetPlanRequest::default()).await.unwrap();
    report(&daemon, OperationOutcome::Ok, 500).await;
    let prometheus = Prometheus::start(address);
    let scraped = async || {
        let up = prometheus.query("topod_generation").await;
        up.is_some_and(|up| up["data"]["result"].as_array().is_some_and(|r| !r.is_empty()))
    };
    until("the page is scraped", scraped).await;

    // What happens between two scrapes.
    report(&daemon, OperationOutcome::Timeout, 1).await;
    report(&daemon, OperationOutcome::Failed, 1).await;
    prometheus.fires("TopodCollectiveTimeout").await;
    prometheus.fires("TopodCollectiveFailures").await;

    let dashboard = fs::read_to_string(workspace_root().join("deploy/grafana/topod.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "panels have numbers of their own");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let expression =
                expression.replace("$instance", ".*").replace("$__rate_interval", "1m");
            let answer = prometheus.query(&expression).await.unwrap();
            assert_eq!(answer["status"], "success", "{}: {expression}: {answer}", panel["title"]);
        }
    }
    let shown = |title: &str| panels.iter().find(|panel| panel["title"] == title).unwrap();
    let findings = shown("Findings")["targets"][0]["expr"].as_str().unwrap();
    let found = prometheus.query(&findings.replace("$instance", ".*")).await.unwrap();
    assert_eq!(found["data"]["result"][0]["metric"]["reason"], "nic-port-down", "{found}");
}

/// Names in rules and dashboard are names on the page.
#[tokio::test]
async fn rules_and_dashboard_speak_of_what_there_is() {
    let address = free();
    let daemon = start(MetricsAddress::Loopback(address), Place::new()).await;
    daemon.plans().get_plan(v1::GetPlanRequest::default()).await.unwrap();
    report(&daemon, OperationOutcome::Ok, 1).await;
    let page = page(address).await;
    let known: BTreeSet<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    // A machine without a missing fact and links that are down has no series of these.
    let absent = ["topod_probe_errors_total"];
    for file in [
        "deploy/prometheus/topod.rules.yml",
        "deploy/grafana/topod.json",
        "deploy/prometheus/scrape.yml",
    ] {
        let text = fs::read_to_string(workspace_root().join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("topod_")) {
            assert!(known.contains(name) || absent.contains(&name), "{file}: there is no {name}");
        }
    }
}
