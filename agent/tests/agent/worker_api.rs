//! The worker API over HTTP and gRPC on one port, and over a Unix socket.

use std::os::unix::fs::PermissionsExt;

use leasehold_proto::worker::v1 as wire;
use leasehold_proto::worker::v1::worker_service_client::WorkerServiceClient;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tonic::Code;

use super::coordinator::{Coordinator, PATIENCE};
use super::process::{Agent, exchange};

#[tokio::test]
async fn begins_and_ends_a_job_and_refuses_one_without_a_slot() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let (status, refused) = agent.ask("PUT", "/v1/jobs/a", "").await;
    assert_eq!((status, &refused["error"]["reason"]), (409, &json!("no_lease")));
    coordinator.pool(1);
    agent.pool(1).await;
    let (status, first) = agent.ask("PUT", "/v1/jobs/a", "").await;
    assert_eq!((status, &first), (200, &json!({"token": "1.1"})));
    let again = agent.ask("PUT", "/v1/jobs/a", "").await;
    assert_eq!(again, (200, first), "the same id is the same job");
    let (status, refused) = agent.ask("PUT", "/v1/jobs/b%2Fc", "").await;
    assert_eq!((status, &refused["error"]["reason"]), (409, &json!("no_slot")));
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("every slot is in use: 1 of 1"), "{message}");
    assert_eq!(agent.metric("leasehold_agent_running").await, "1");
    let name = "leasehold_agent_begin_refused_total{reason=\"no_slot\"}";
    assert_eq!(agent.metric(name).await, "1");

    // A waiting job gets the slot that an end frees.
    let waits = agent.ask("PUT", "/v1/jobs/b%2Fc?wait_ms=20000", "");
    let frees = async { agent.ask("DELETE", "/v1/jobs/a", "").await };
    let (waited, ended) = tokio::join!(waits, frees);
    assert_eq!(ended, (200, json!({})));
    assert_eq!(waited, (200, json!({"token": "1.1"})));
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(lease["pool"]["running"], 1);
    assert_eq!((&lease["cluster"], &lease["worker"]), (&json!("ci"), &json!("w1")));
    assert!(lease["pool"]["valid_for_ms"].as_u64().unwrap() <= 5_000);
    assert_eq!(agent.text("GET", "/readyz", "").await, (200, "ok\n".into()));
}

/// The token fences what the job writes: it must not change under it.
#[tokio::test]
async fn a_job_keeps_its_token_and_is_listed_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["--state-dir", dir.path().to_str().unwrap()];
    let coordinator = Coordinator::start().await;
    coordinator.pool(3);
    let mut agent = Agent::start(&coordinator, &options).await;
    agent.pool(3).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await, (200, json!({"token": "1.1"})));
    coordinator.pool(2);
    agent.pool(2).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await, (200, json!({"token": "1.2"})));
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await, (200, json!({"token": "1.1"})));
    let (_, mut listed) = agent.ask("GET", "/v1/jobs", "").await;
    for job in listed["jobs"].as_array_mut().unwrap() {
        assert!(job.as_object_mut().unwrap().remove("running_for_ms").unwrap().is_u64());
    }
    let jobs = json!([{"id": "a", "token": "1.1"}, {"id": "b", "token": "1.2"}]);
    assert_eq!(listed, json!({"jobs": jobs, "unnamed": 0}));

    // The next agent does not know since when they run.
    agent.kill().await;
    let agent = Agent::start(&coordinator, &options).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("GET", "/v1/jobs", "").await.1, json!({"jobs": jobs, "unnamed": 0}));
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await, (200, json!({"token": "1.1"})));
    let mut client = WorkerServiceClient::new(agent.channel().await);
    let listed = client.list_jobs(wire::ListJobsRequest {}).await.unwrap();
    let ids: Vec<_> = listed.into_inner().jobs.into_iter().map(|job| job.id).collect();
    assert_eq!(ids, ["a", "b"]);
    agent.signal(Signal::TERM);
    agent.log.line("2 jobs running (a, b), 0 streams held").await;
}

#[tokio::test]
async fn the_log_says_once_that_jobs_wait_for_a_slot() {
    const WAIT: &str = "jobs wait for a slot";
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let asked = agent.ask("PUT", "/v1/jobs/a?wait_ms=20000", "");
    let logged = async {
        let line = agent.log.line(WAIT).await;
        assert!(line.contains("INFO") && line.contains("\"slots\":0"), "{line}");
        // Each request is a turn of the driver, which looks at the queue.
        for _ in 0..3 {
            assert_eq!(agent.ask("GET", "/v1/jobs", "").await.0, 200);
        }
        coordinator.pool(1);
    };
    let ((status, answer), ()) = tokio::join!(asked, logged);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(agent.log.count(WAIT), 1, "{}", agent.log.text());
}

/// Otherwise a drain would wait for a worker to release what it has never heard of.
#[tokio::test]
async fn a_person_may_look_at_the_lease_in_place_of_the_worker() {
    let coordinator = Coordinator::start().await;
    let token = coordinator.grant("cars", "cars:new", false);
    let mut agent = Agent::start(&coordinator, &[]).await;
    let path = "/v1/lease?peek=true";
    let lease = agent.ask_until(path, |lease| lease["streams"][0].is_object()).await;
    assert_eq!(lease["streams"][0]["token"], token.to_string());
    let fewer = "/v1/lease?peek=true&without_streams=true";
    assert_eq!(agent.ask("GET", fewer, "").await.1["streams"], json!([]));
    agent.signal(Signal::TERM);
    coordinator.hear_release(token).await;
    assert_eq!(agent.code().await, Some(0));
}

#[tokio::test]
async fn a_long_poll_and_a_watch_see_a_change() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let lease = agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    let path = format!("/v1/lease?after_version={}&wait_ms=20000", lease["version"]);
    let granted = async { coordinator.grant("cars", "cars:new", false) };
    let ((status, changed), token) = tokio::join!(agent.ask("GET", &path, ""), granted);
    assert_eq!(status, 200);
    let stream = &changed["streams"][0];
    assert_eq!((&stream["set"], &stream["stream"]), (&json!("cars"), &json!("cars:new")));
    assert_eq!((&stream["state"], &stream["token"]), (&json!("held"), &json!(token.to_string())));

    let mut socket = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    socket.write_all(b"GET /v1/lease/watch HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut lines = BufReader::new(socket).lines();
    let mut next = async || -> serde_json::Value {
        loop {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap();
            let line = line.unwrap().expect("another line");
            if line.starts_with('{') {
                return serde_json::from_str(&line).unwrap();
            }
        }
    };
    let first = next().await;
    assert_eq!(first["streams"][0]["state"], "held");
    let mut valid = first["streams"][0]["valid_for_ms"].as_u64().unwrap();
    let mut grew = 0;
    while grew < 3 {
        let renewed = next().await["streams"][0]["valid_for_ms"].as_u64().unwrap();
        assert!(renewed >= valid, "a watch's times count from its start: {renewed} < {valid}");
        grew += usize::from(renewed > valid);
        valid = renewed;
    }
    coordinator.revoke("cars", "cars:new");
    while next().await["streams"][0]["state"] != "revoked" {}
    let path = |token: &str| format!("/v1/streams/cars/cars%3Anew?token={token}");
    let (status, wrong) = agent.ask("DELETE", &path("1.99"), "").await;
    assert_eq!((status, &wrong["error"]["reason"]), (409, &json!("not_held")));
    assert_eq!(agent.ask("DELETE", &path(&token.to_string()), "").await, (200, json!({})));
    coordinator.hear_release(token).await;
    while next().await["streams"] != json!([]) {}
}

#[tokio::test]
async fn serves_grpc_and_reflection_on_the_same_port() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let mut client = WorkerServiceClient::new(agent.channel().await);
    let begin = |id: &str| wire::BeginJobRequest { job_id: id.into(), wait_ms: 0 };
    let no = client.begin_job(begin("a")).await.unwrap_err();
    assert_eq!(no.code(), Code::FailedPrecondition);
    assert!(no.message().starts_with("no_lease: "), "{no:?}");
    coordinator.pool(1);
    agent.pool(1).await;
    let yes = client.begin_job(begin("a")).await.unwrap().into_inner();
    assert_eq!(yes.token, "1.1");
    let no = client.begin_job(begin("b")).await.unwrap_err();
    assert!(no.message().starts_with("no_slot: "), "{no:?}");
    let no = client.begin_job(begin("a\nb")).await.unwrap_err();
    assert_eq!(no.code(), Code::InvalidArgument);
    assert!(no.message().contains("control character"), "{no:?}");
    let mut watch =
        client.watch_lease(wire::WatchLeaseRequest::default()).await.unwrap().into_inner();
    let lease = watch.message().await.unwrap().unwrap().lease.unwrap();
    assert_eq!(lease.pool.unwrap().running, 1);
    client.end_job(wire::EndJobRequest { job_id: "a".into() }).await.unwrap();

    let services = reflected(&agent).await;
    assert!(services.contains("leasehold.worker.v1.WorkerService"), "{services}");
    assert!(!services.contains("AdminService"), "{services}");
}

/// Requests the list of services, as grpcurl does.
async fn reflected(agent: &Agent) -> String {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    let mut client = ServerReflectionClient::new(agent.channel().await);
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let request = ServerReflectionRequest { message_request, ..Default::default() };
    let answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    format!("{:?}", answers.into_inner().message().await.unwrap().unwrap())
}

#[tokio::test]
async fn serves_the_same_on_a_unix_socket_for_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let coordinator = Coordinator::start().await;
    let text = path.display().to_string();
    let mut agent = Agent::start(&coordinator, &["--socket", &text]).await;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = async || {
        let socket = tokio::net::UnixStream::connect(&path).await.unwrap();
        exchange(socket, "GET", "/v1/lease", "Host: anything\r\n", "").await
    };
    let (status, lease) = ask().await;
    assert_eq!(status, 200);
    assert!(lease.contains(r#""worker":"w1""#), "{lease}");

    // A successor replaces the socket of a killed agent, but not one in use.
    let coordinators = coordinator.address.to_string();
    let second = ["run", "--coordinator", &coordinators, "--cluster", "ci", "--worker", "w2"];
    let second = [&second[..], &["--listen", "127.0.0.1:0", "--socket", &text]].concat();
    let (code, said) = super::process::fail(&second).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("is in use by another process"), "{said}");
    agent.kill().await;
    let _successor =
        Agent::start(&coordinator, &["--socket", &text, "--socket-mode", "0660"]).await;
    assert_eq!(ask().await.0, 200);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

/// A worker that asks for each job never reports a second count: the first one would hold its slots
/// for ever.
#[tokio::test]
async fn takes_single_jobs_or_counts_and_not_both() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    coordinator.pool(4);
    agent.pool(4).await;
    let refused = async |method, path, body, words: &[&str]| {
        let (status, answer) = agent.ask(method, path, body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!((status, &answer["error"]["reason"]), (409, &json!("invalid")), "{answer}");
        words.iter().for_each(|word| assert!(message.contains(word), "{message}"));
    };
    let count = r#"{"running":0,"pool_size":4}"#;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    refused("PUT", "/v1/count", count, &["PUT /v1/jobs/ID", "POST /v1/start"]).await;
    let asked = wire::ReportCountRequest { running: 0, pool_size: 4 };
    let mut grpc = WorkerServiceClient::new(agent.channel().await);
    let status = grpc.report_count(asked).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");

    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s-1"}"#).await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/count", count).await, (200, json!({})));
    refused("PUT", "/v1/jobs/a", "", &["pool_size 4", "POST /v1/start"]).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s-2"}"#).await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
}

#[tokio::test]
async fn reports_a_count_and_a_new_start_to_the_coordinator() {
    use leasehold_types::message::{AgentMessage, Jobs};
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    coordinator.pool(4);
    agent.pool(4).await;
    let told = agent.ask("PUT", "/v1/count", r#"{"running":3,"pool_size":4}"#).await;
    assert_eq!(told, (200, json!({})));
    let running = |jobs: u32| {
        move |message: &AgentMessage| match message {
            AgentMessage::Beat(beat) => (beat.jobs == Jobs::Running(jobs)).then_some(()),
            _ => None,
        }
    };
    coordinator.hear("three jobs", running(3)).await;
    let start = r#"{"start_id":"s-1","running":1}"#;
    assert_eq!(agent.ask("POST", "/v1/start", start).await, (200, json!({})));
    coordinator.hear("one job", running(1)).await;
}
