//! Invalid input: the agent refuses it with a clear error, and keeps running.

use serde_json::json;

use super::coordinator::Coordinator;
use super::process::{Agent, exchange, fail};

#[tokio::test]
async fn refuses_invalid_requests_with_a_reason_and_changes_nothing() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    coordinator.pool(2);
    agent.pool(2).await;
    let long = format!("/v1/jobs/{}", "x".repeat(257));
    let huge = format!(r#"{{"start_id":"{}"}}"#, "x".repeat(70_000));
    let wait = "query: wait_ms: invalid value \"-1\": expected a number of milliseconds: a whole \
                number from 0 to 60000, for example 5000";
    for (method, path, body, status, word) in [
        ("PUT", "/v1/jobs/a%0Ab", "", 400, "control character"),
        ("PUT", "/v1/jobs/%00", "", 400, "control character"),
        ("PUT", "/v1/jobs/%FF%FE", "", 400, "UTF-8"),
        ("PUT", "/v1/jobs/%20a", "", 400, "white space"),
        ("PUT", long.as_str(), "", 400, "256 bytes"),
        ("PUT", "/v1/jobs/a?wait_ms=60001", "", 400, "from 0 to 60000"),
        ("PUT", "/v1/jobs/a?wait_ms=-1", "", 400, wait),
        ("PUT", "/v1/jobs/a?wait_ms=abc", "", 400, "invalid value \"abc\": expected a number"),
        ("POST", "/v1/beat?within_ms=x", "", 400, "expected a number of milliseconds"),
        ("GET", "/v1/lease?peek=maybe", "", 400, "expected true or false"),
        ("PUT", "/v1/jobs/a?wait=5", "", 400, "unknown field"),
        ("GET", "/v1/lease?after_version=x", "", 400, "expected the version of a lease: a whole"),
        ("POST", "/v1/start", "", 400, "the body is empty: expected JSON, for example {\"start_id"),
        ("PUT", "/v1/count", "", 400, "the body is empty: expected JSON, for example {\"running\""),
        ("POST", "/v1/start", "{", 400, "body"),
        ("POST", "/v1/start", r#"{"start_id":"a\nb"}"#, 400, "control character"),
        ("POST", "/v1/start", r#"{"start_id":"a","runing":1}"#, 400, "runing"),
        ("POST", "/v1/start", huge.as_str(), 413, "65536 bytes"),
        ("PUT", "/v1/count", r#"{"running":-1,"pool_size":1}"#, 400, "-1"),
        ("PUT", "/v1/count", r#"{"running":10001,"pool_size":1}"#, 429, "10000"),
        ("DELETE", "/v1/streams/cars/a", "", 400, "token"),
        ("DELETE", "/v1/streams/cars/a?token=8", "", 400, "EPOCH.SEQ"),
        ("DELETE", "/v1/streams/Cars/a?token=8.1", "", 400, "DNS subdomain"),
        ("GET", "/v1/leases", "", 404, "/v1/lease/watch"),
        ("POST", "/v1/lease", "", 405, "GET /v1/lease"),
    ] {
        let (got, answer) = agent.ask(method, path, body).await;
        assert_eq!(got, status, "{method} {path}: {answer}");
        let error = &answer["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(word), "{method} {path}: {message}");
        let reason = if status == 429 { "limit" } else { "invalid" };
        assert_eq!(error["reason"], reason, "{method} {path}");
    }
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!((&lease["pool"]["running"], &lease["pool"]["size"]), (&json!(0), &json!(2)));
    let largest = r#"{"running":10000,"pool_size":10000}"#;
    assert_eq!(agent.ask("PUT", "/v1/count", largest).await, (200, json!({})));
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(lease["pool"]["running"], 10_000);
}

#[tokio::test]
async fn a_thousand_unknown_job_ids_leave_nothing_in_the_journal() {
    use leasehold_proto::worker::v1 as wire;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    coordinator.pool(1);
    agent.pool(1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/kept", "").await.0, 200);
    let mut client = wire::worker_service_client::WorkerServiceClient::new(agent.channel().await);
    for number in 0..1_000 {
        let job_id = format!("job-{number}");
        let begin = wire::BeginJobRequest { job_id: job_id.clone(), wait_ms: 0 };
        client.begin_job(begin).await.unwrap_err();
        client.end_job(wire::EndJobRequest { job_id }).await.unwrap();
    }
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(lease["pool"]["running"], 1);
    let journal = std::fs::read_to_string(dir.path().join("journal.jsonl")).unwrap();
    assert!(!journal.contains("job-"), "the journal contains ids of jobs that never ran");
}

#[tokio::test]
async fn refuses_web_pages_and_foreign_host_names() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    for headers in ["Host: evil.example\r\n", "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n"]
    {
        let socket = tokio::net::TcpStream::connect(agent.address).await.unwrap();
        let (status, answer) = exchange(socket, "POST", "/v1/drain", headers, "").await;
        assert_eq!(status, 403, "{answer}");
    }
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(lease["draining"], false);
}

#[tokio::test]
async fn exits_with_2_for_an_invalid_command_line_and_with_1_for_a_port_in_use() {
    let base = ["run", "--coordinator", "127.0.0.1:1", "--cluster", "ci", "--worker", "w1"];
    for (more, word) in [
        (&["--listen", "0.0.0.0:7411"][..], "--listen-anywhere"),
        (&["--adapter", "file"][..], "--file-path"),
        (&["--nonsense"][..], "--nonsense"),
    ] {
        let (code, said) = fail(&[&base[..], more].concat()).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(word), "{said}");
    }
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = fail(&[&base[..], &["--listen", &address]].concat()).await;
    assert_eq!(code, Some(1));
    assert!(said.contains(&address) && said.contains("in use"), "{said}");
    let tls = ["--listen", "127.0.0.1:0", "--tls-ca", "/nowhere/ca.pem"];
    let (code, said) = fail(&[&base[..], &tls].concat()).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("/nowhere/ca.pem"), "{said}");
}
