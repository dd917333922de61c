//! Bindings: what a worker that serves pipelines gets, and how it releases one.

use leasehold_proto::worker::v1 as wire;
use leasehold_proto::worker::v1::worker_service_client::WorkerServiceClient;
use leasehold_types::message::AgentMessage;
use leasehold_types::{Load, Token};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tonic::Code;

use super::coordinator::{Coordinator, PATIENCE, route};
use super::process::Agent;

/// The load that the newest report has for a token.
async fn hear_load(coordinator: &Coordinator, token: Token) -> Option<Load> {
    let pick = |message: &AgentMessage| match message {
        AgentMessage::Report(report) => {
            report.streams.iter().find(|held| held.token == token).map(|held| held.load)
        }
        _ => None,
    };
    coordinator.hear("a report of the binding", pick).await
}

#[tokio::test]
async fn an_agent_that_names_no_address_says_so_once_its_worker_serves_a_pipeline() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    for share in ["first/in/0", "second/in/0"] {
        coordinator.share(share, "2.5", &[]);
    }
    agent.ask_until("/v1/lease", |lease| lease["bindings"][1].is_object()).await;
    // The answer of the API may arrive before the line of the log.
    let complaint = "nobody is told where it is reached";
    agent.log.line(complaint).await;
    assert_eq!(agent.log.count(complaint), 1, "{}", agent.log.text());
}

#[tokio::test]
async fn a_binding_has_a_load_and_routes_and_is_released() {
    let coordinator = Coordinator::start().await;
    let more = ["--worker-address", "fd00::7", "--worker-port", "8080"];
    let agent = Agent::start(&coordinator, &more).await;
    let address = coordinator.hear("a hello", |message| match message {
        AgentMessage::Hello(hello) => Some(hello.address.clone()),
        _ => None,
    });
    assert_eq!(address.await.map(|address| address.to_string()), Some("[fd00::7]:8080".into()));
    let token = coordinator.share("first/in/0", "2.5", &[]);
    let one = |lease: &serde_json::Value| lease["bindings"][0]["token"].is_string();
    agent.ask_until("/v1/lease", one).await;
    assert!(!agent.log.text().contains("nobody is told where it is reached"));
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    let mut binding = lease["bindings"][0].clone();
    assert!(binding["valid_for_ms"].as_u64().unwrap() <= 5_000);
    binding.as_object_mut().unwrap().remove("valid_for_ms");
    let mut wanted = json!({"pipeline": "first", "node": "in", "index": 0, "state": "held",
        "token": token.to_string(), "documents_per_second": 2.5, "next": []});
    assert_eq!((&binding, &lease["streams"]), (&wanted, &json!([])));

    // A long poll ends when the routes change under the same token.
    let path = format!("/v1/lease?after_version={}&wait_ms=20000", lease["version"]);
    let routes = [route("out", &[("w2", "10.0.0.2:80", "10"), ("w3", "10.0.0.3:80", "2.5")])];
    let told = async { coordinator.share("first/in/0", "2.5", &routes) };
    let ((_, lease), same) = tokio::join!(agent.ask("GET", &path, ""), told);
    assert_eq!(same, token);
    wanted["next"] = json!([{"node": "out", "endpoints": [
        {"worker": "w2", "address": "10.0.0.2:80", "documents_per_second": 10, "draining": false},
        {"worker": "w3", "address": "10.0.0.3:80", "documents_per_second": 2.5,
         "draining": false}]}]);
    assert_eq!(lease["bindings"][0]["next"], wanted["next"]);
    assert_eq!(agent.metric("leasehold_agent_bindings").await, "1");
    assert_eq!(agent.metric("leasehold_agent_streams").await, "0");

    coordinator.revoke("shares:", "first/in/0");
    let revoked = |lease: &serde_json::Value| lease["bindings"][0]["state"] == "revoked";
    agent.ask_until("/v1/lease", revoked).await;
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert!(lease["bindings"][0]["release_within_ms"].as_u64().unwrap() <= 30_000);
    for (path, status, reason) in [
        ("first/in/0?token=1.99", 409, "not_held"),
        ("first/in/1?token=1.1", 409, "not_held"),
        ("other%2Ffirst/in/0?token=1.1", 409, "not_held"),
        ("First/in/0?token=1.1", 400, "invalid"),
        ("first/in/x?token=1.1", 400, "invalid"),
    ] {
        let (code, said) = agent.ask("DELETE", &format!("/v1/bindings/{path}"), "").await;
        assert_eq!((code, &said["error"]["reason"]), (status, &json!(reason)), "{path}");
    }
    let path = format!("/v1/bindings/first/in/0?token={token}");
    assert_eq!(agent.ask("DELETE", &path, "").await, (200, json!({})));
    coordinator.hear_release(token).await;
    agent.ask_until("/v1/lease", |lease| lease["bindings"] == json!([])).await;
}

#[tokio::test]
async fn grpc_returns_the_same_binding() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let routes = [route("out", &[("w2", "10.0.0.2:80", "10")])];
    let token = coordinator.share("first/in/3", "2.5", &routes);
    let one = |lease: &serde_json::Value| lease["bindings"][0]["token"].is_string();
    agent.ask_until("/v1/lease", one).await;
    let mut client = WorkerServiceClient::new(agent.channel().await);
    let lease = client.get_lease(wire::GetLeaseRequest::default()).await.unwrap();
    let binding = lease.into_inner().lease.unwrap().bindings.remove(0);
    assert_eq!((binding.index, binding.documents_per_second), (3, 2.5));
    assert_eq!(binding.state(), wire::StreamLeaseState::Held);
    assert_eq!(binding.next[0].endpoints[0].address, "10.0.0.2:80");
    let mut release = wire::ReleaseBindingRequest {
        pipeline: binding.pipeline,
        node: binding.node,
        index: 4,
        token: binding.token,
    };
    let no = client.release_binding(release.clone()).await.unwrap_err();
    assert_eq!(no.code(), Code::FailedPrecondition);
    release.index = 3;
    client.release_binding(release).await.unwrap();
    coordinator.hear_release(token).await;
}

#[tokio::test]
async fn a_restarted_agent_claims_the_binding_with_its_load() {
    let dir = tempfile::tempdir().unwrap();
    let more = ["--state-dir", dir.path().to_str().unwrap()];
    let coordinator = Coordinator::start().await;
    let mut agent = Agent::start(&coordinator, &more).await;
    let routes = [route("out", &[("w2", "10.0.0.2:80", "10")])];
    let token = coordinator.share("first/in/0", "2.5", &routes);
    let known = |lease: &serde_json::Value| lease["bindings"][0]["next"][0]["node"] == "out";
    agent.ask_until("/v1/lease", known).await;
    agent.kill().await;
    coordinator.forget();
    let agent = Agent::start(&coordinator, &more).await;
    assert_eq!(hear_load(&coordinator, token).await.map(Load::as_f64), Some(2.5));
    let lease = agent.ask_until("/v1/lease", known).await;
    assert_eq!(lease["bindings"][0]["token"], token.to_string());
}

#[tokio::test]
async fn releases_a_revoked_binding_if_the_worker_sees_no_bindings() {
    let dir = tempfile::tempdir().unwrap();
    let (file, state) = (dir.path().join("config.yml"), dir.path().join("state"));
    let (file, state) = (file.to_str().unwrap(), state.to_str().unwrap());
    let more = ["--adapter", "file", "--file-path", file, "--state-dir", state];
    let coordinator = Coordinator::start().await;
    let mut agent = Agent::start(&coordinator, &more).await;
    let first = coordinator.share("first/in/0", "2.5", &[]);
    let second = coordinator.share("second/in/0", "2.5", &[]);
    coordinator.grant("cars", "cars:new", false);
    let both = |lease: &serde_json::Value| lease["bindings"][1]["token"].is_string();
    agent.ask_until("/v1/lease", both).await;
    agent.log.line("\"streams\":1").await;
    let text = super::process::read(file.as_ref());
    assert!(text.contains("cars:new") && !text.contains("first"), "{text}");
    coordinator.revoke("shares:", "first/in/0");
    coordinator.hear_release(first).await;

    // The same after a restart of the agent.
    agent.kill().await;
    coordinator.forget();
    let _agent = Agent::start(&coordinator, &more).await;
    hear_load(&coordinator, second).await;
    coordinator.revoke("shares:", "second/in/0");
    coordinator.hear_release(second).await;
}

/// A worker in Python that serves one binding and prints the destinations of two documents.
const WORKER: &str = r#"
import leasehold
worker = leasehold.Worker()
def serve(binding):
    while not binding.pick("out"):
        assert not binding.stopping.wait(0.01)
    print(binding.pipeline, binding.index, binding.token, binding.documents_per_second)
    print(*sorted(binding.pick("out").address for _ in range(2)), flush=True)
    binding.stopping.wait()
worker.run_bindings(serve)
"#;

#[tokio::test]
async fn a_worker_in_python_serves_a_binding() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let token = coordinator.share("first/in/3", "2.5", &[]);
    let mut worker = tokio::process::Command::new("python3")
        .args(["-c", WORKER])
        .env("LEASEHOLD_ADDR", format!("http://{}", agent.address))
        .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/sdk/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines();
    let routes = [route("out", &[("w2", "10.0.0.2:80", "10"), ("w3", "10.0.0.3:80", "10")])];
    coordinator.share("first/in/3", "2.5", &routes);
    let mut next = async || {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        line.unwrap().unwrap().expect("it prints two lines")
    };
    assert_eq!(next().await, format!("first 3 {token} 2.5"));
    assert_eq!(next().await, "10.0.0.2:80 10.0.0.3:80");
    coordinator.revoke("shares:", "first/in/3");
    coordinator.hear_release(token).await;
    coordinator.drain();
    assert!(tokio::time::timeout(PATIENCE, worker.wait()).await.unwrap().unwrap().success());
}

#[tokio::test]
async fn a_worker_in_rust_serves_a_binding() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let routes = |worker: &str| [route("out", &[(worker, "10.0.0.2:80", "10")])];
    let token = coordinator.share("first/in/3", "2.5", &routes("w2"));
    let address = Some(format!("http://{}", agent.address));
    let options = leasehold::Options { address, ..leasehold::Options::default() };
    let worker = leasehold::Worker::connect_with(options).await.unwrap();
    let serving = worker.clone();
    let served = tokio::spawn(async move {
        serving
            .run_bindings(|binding| async move {
                let share = (binding.node().to_owned(), binding.index(), binding.token());
                assert_eq!(share, ("in".into(), 3, token));
                // Each call returns the newest routes.
                while binding.pick("out").is_none_or(|to| to.worker != "w3") {
                    assert!(binding.is_valid() && !binding.is_revoked());
                    tokio::task::yield_now().await;
                }
                binding.stopping().await;
            })
            .await;
    });
    let known = |lease: &serde_json::Value| lease["bindings"][0]["token"].is_string();
    agent.ask_until("/v1/lease", known).await;
    assert_eq!(coordinator.share("first/in/3", "2.5", &routes("w3")), token);
    let other = |lease: &serde_json::Value| {
        lease["bindings"][0]["next"][0]["endpoints"][0]["worker"] == "w3"
    };
    agent.ask_until("/v1/lease", other).await;
    coordinator.revoke("shares:", "first/in/3");
    coordinator.hear_release(token).await;
    coordinator.drain();
    tokio::time::timeout(PATIENCE, served).await.unwrap().unwrap();
}
