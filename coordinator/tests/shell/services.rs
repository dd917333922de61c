//! Health and reflection, as grpcurl and probes ask for them.

use std::collections::BTreeSet;

use leasehold_types::limits::CALL_BYTES_MAX;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::agent::connect;
use crate::replica::Replica;

async fn health(channel: Channel, service: &str) -> Result<ServingStatus, tonic::Code> {
    let request = HealthCheckRequest { service: service.into() };
    let answer = HealthClient::new(channel).check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

#[tokio::test]
async fn health_knows_the_whole_and_each_service() {
    let replica = Replica::leading().await;
    let channel = connect(replica.grpc).await;
    for service in
        ["", "leasehold.coordinator.v1.SessionService", "leasehold.admin.v1.AdminService"]
    {
        assert_eq!(health(channel.clone(), service).await, Ok(ServingStatus::Serving), "{service}");
    }
    assert_eq!(health(channel, "no.such.Service").await, Err(tonic::Code::NotFound));
}

#[tokio::test]
async fn a_call_is_taken_up_to_its_largest_size() {
    let replica = Replica::leading().await;
    let channel = connect(replica.grpc).await;
    // A prefix of five bytes, then the field's tag and its length in three.
    let longest = CALL_BYTES_MAX - 5 - 1 - 3;
    let asked = health(channel.clone(), &"x".repeat(longest)).await;
    assert_eq!(asked, Err(tonic::Code::NotFound));
    let asked = health(channel, &"x".repeat(longest + 1)).await;
    assert_eq!(asked, Err(tonic::Code::ResourceExhausted));
}

/// The services that one version of reflection lists, and whether it knows a message of ours.
macro_rules! reflect {
    ($version:ident, $channel:expr) => {{
        use pb::server_reflection_request::MessageRequest;
        use pb::server_reflection_response::MessageResponse;
        use tonic_reflection::pb::$version as pb;
        let mut client = pb::server_reflection_client::ServerReflectionClient::new($channel);
        let requests = [
            MessageRequest::ListServices(String::new()),
            MessageRequest::FileContainingSymbol("leasehold.admin.v1.Worker".into()),
            MessageRequest::FileContainingSymbol("grpc.health.v1.Health".into()),
        ];
        let requests = requests.map(|request| pb::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        });
        let answers = client.server_reflection_info(tokio_stream::iter(requests)).await;
        let mut answers = answers.expect("answers").into_inner();
        let mut services = BTreeSet::new();
        let mut files = 0;
        while let Some(answer) = answers.message().await.expect("an answer") {
            match answer.message_response.expect("a response") {
                MessageResponse::ListServicesResponse(list) => {
                    services.extend(list.service.into_iter().map(|service| service.name));
                }
                MessageResponse::FileDescriptorResponse(file) => {
                    assert!(!file.file_descriptor_proto.is_empty());
                    files += 1;
                }
                other => panic!("unexpected answer: {other:?}"),
            }
        }
        (services, files)
    }};
}

#[tokio::test]
async fn both_versions_of_reflection_list_and_describe_every_service() {
    let replica = Replica::leading().await;
    let channel = connect(replica.grpc).await;
    for (version, (services, files)) in [
        ("grpc.reflection.v1", reflect!(v1, channel.clone())),
        ("grpc.reflection.v1alpha", reflect!(v1alpha, channel.clone())),
    ] {
        let own = format!("{version}.ServerReflection");
        let ours = [
            "grpc.health.v1.Health",
            "leasehold.admin.v1.AdminService",
            "leasehold.coordinator.v1.SessionService",
            own.as_str(),
        ];
        for service in ours {
            assert!(services.contains(service), "{version}: {service} in {services:?}");
        }
        assert_eq!(files, 2, "{version}");
    }
}
