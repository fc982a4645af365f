//! What tools expect of any gRPC server: health and reflection.

use tokio_stream::{StreamExt as _, once};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::harness::Daemon;

const SERVICES: [&str; 5] = [
    "topod.v1.HealthService",
    "topod.v1.PlanService",
    "topod.v1.ReportService",
    "topod.v1.StatusService",
    "topod.v1.TopologyService",
];

#[tokio::test]
async fn health_by_service() {
    let daemon = Daemon::start().await;
    let mut client = HealthClient::new(daemon.channel());
    for service in SERVICES.into_iter().chain([""]) {
        let request = HealthCheckRequest { service: service.into() };
        let answer = client.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let unknown = client.check(HealthCheckRequest { service: "topod.v1.Nothing".into() }).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);

    // Who watches is told of the end before it comes, and does not hold it up.
    let request = HealthCheckRequest { service: SERVICES[0].into() };
    let mut watched = client.watch(request).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    drop(client);
    let (ended, _place) = daemon.stop().await;
    ended.unwrap();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watched.message().await.unwrap().is_none());
}

/// Asks one reflection service, of either version: their messages are the same but for the package.
macro_rules! check_reflection {
    ($version:ident) => {{
        use tonic_reflection::pb::$version::ServerReflectionRequest;
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;

        let daemon = Daemon::start().await;
        let mut client = ServerReflectionClient::new(daemon.channel());
        let mut ask = async |question| {
            let request =
                ServerReflectionRequest { host: String::new(), message_request: Some(question) };
            let stream = client.server_reflection_info(once(request)).await.unwrap();
            let answer = stream.into_inner().next().await.unwrap().unwrap();
            answer.message_response.unwrap()
        };
        let MessageResponse::ListServicesResponse(listed) =
            ask(MessageRequest::ListServices(String::new())).await
        else {
            panic!("not a list")
        };
        let names: Vec<&str> = listed.service.iter().map(|s| s.name.as_str()).collect();
        for service in SERVICES.into_iter().chain(["grpc.health.v1.Health"]) {
            assert!(names.contains(&service), "{service} in {names:?}");
        }
        let symbol = "topod.v1.PlanService".to_owned();
        let MessageResponse::FileDescriptorResponse(files) =
            ask(MessageRequest::FileContainingSymbol(symbol)).await
        else {
            panic!("not a file")
        };
        assert!(!files.file_descriptor_proto.is_empty());
    }};
}

#[tokio::test]
async fn reflection_v1() {
    check_reflection!(v1);
}

#[tokio::test]
async fn reflection_v1alpha() {
    check_reflection!(v1alpha);
}
