//! The verdict on the machine: got and watched.

use proto::{Reason, v1};
use tonic::Code;
use v1::watch_health_response::Event;

use super::harness::{Daemon, check_refused, machine};

#[tokio::test]
async fn findings_come_and_go() {
    let daemon = Daemon::start().await;
    let mut client = daemon.verdicts();
    let report = client.get_health(v1::GetHealthRequest {}).await.unwrap().into_inner();
    let mut report = report.report.unwrap();
    assert_eq!((report.generation, report.sequence), (1, 1));
    let request = v1::WatchHealthRequest { changes: true };
    let mut watched = client.watch_health(request).await.unwrap().into_inner();
    let mut next = async || watched.message().await.unwrap().unwrap().event.unwrap();
    assert_eq!(next().await, Event::Report(report.clone()));

    let mut down = machine(4, 20);
    down.nics[0].up = Some(false);
    daemon.reload(&down).await;
    let Event::Changes(changes) = next().await else { panic!("no changes") };
    let appeared = |code: &str| changes.appeared.iter().any(|finding| finding.code == code);
    assert!(appeared("nic-port-down"), "{changes:?}");
    changes.apply_to(&mut report).unwrap();

    daemon.reload(&machine(4, 20)).await;
    let Event::Changes(changes) = next().await else { panic!("no changes") };
    assert!(!changes.cleared.is_empty());
    changes.apply_to(&mut report).unwrap();
    let present = client.get_health(v1::GetHealthRequest {}).await.unwrap().into_inner();
    assert_eq!(present.report.unwrap().findings, report.findings);
    let status = daemon.status().await;
    assert_eq!((status.health(), status.watchers), (report.status(), 1));
}

/// Error counters make no generation, but they make a finding.
#[tokio::test]
async fn counters_are_judged_though_they_make_no_generation() {
    let daemon = Daemon::start().await;
    let request = v1::WatchHealthRequest { changes: false };
    let mut watched = daemon.verdicts().watch_health(request).await.unwrap().into_inner();
    watched.message().await.unwrap().unwrap();
    let mut errors = machine(4, 20);
    errors.gpus[1].link_errors =
        vec![topology::snapshot::LinkErrors { link: 0, replay: 9, recovery: 9, crc: 9 }];
    daemon.reload(&errors).await;
    let Event::Report(report) = watched.message().await.unwrap().unwrap().event.unwrap() else {
        panic!("no report")
    };
    assert_eq!((report.generation, report.sequence), (1, 2));
    assert!(report.findings.iter().any(|finding| finding.component.contains("GPU1")), "{report:?}");
    assert_eq!(daemon.status().await.published.unwrap().generation, 1);
}

#[tokio::test]
async fn reports_are_checked_and_counted() {
    let daemon = Daemon::start().await;
    let refused = v1::ReportOperationsRequest { operations: vec![v1::OperationReport::default()] };
    let refused = daemon.reports().report_operations(refused).await;
    check_refused(refused, Code::InvalidArgument, Reason::InvalidRequest);
}
