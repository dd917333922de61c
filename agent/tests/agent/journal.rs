//! An agent that is killed beside its worker, and what its successor knows.

use std::io::Write;

use leasehold_types::message::{AgentMessage, HeldStream, Jobs, Report};

use super::coordinator::Coordinator;
use super::process::{Agent, SmallDisk, fail};

fn report(message: &AgentMessage) -> Option<Report> {
    match message {
        AgentMessage::Report(report) => Some(report.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn a_killed_agents_successor_claims_what_the_worker_holds() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let coordinator = Coordinator::start().await;
    let mut agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    coordinator.pool(3);
    let token = coordinator.grant("cars", "cars:new", false);
    agent.pool(3).await;
    for job in ["a", "b", "c"] {
        assert_eq!(agent.ask("PUT", &format!("/v1/jobs/{job}"), "").await.0, 200);
    }
    assert_eq!(agent.ask("DELETE", "/v1/jobs/b", "").await.0, 200);
    agent.ask_until("/v1/lease", |lease| lease["streams"][0]["state"] == "held").await;
    agent.kill().await;
    // The last write may have been cut by the kill.
    let journal = dir.path().join("journal.jsonl");
    let mut file = std::fs::OpenOptions::new().append(true).open(&journal).unwrap();
    file.write_all(br#"{"record":"job_ended","jo"#).unwrap();

    coordinator.forget();
    let successor = Agent::start(&coordinator, &["--state-dir", &state]).await;
    let report = coordinator.hear("the successor's report", report).await;
    assert_eq!(report.jobs, Jobs::Running(2));
    let held: Vec<_> = report.streams.iter().map(|HeldStream { token, .. }| *token).collect();
    assert_eq!(held, [token]);
    successor.ask_until("/v1/lease", |lease| lease["pool"]["running"] == 2).await;
    // The same id is still the same job.
    assert_eq!(successor.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    successor.ask_until("/v1/lease", |lease| lease["pool"]["running"] == 2).await;
}

#[tokio::test]
async fn a_damaged_journal_is_set_aside_loudly_and_speaks_for_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let coordinator = Coordinator::start().await;
    let mut agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    coordinator.pool(1);
    agent.pool(1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent.kill().await;
    let journal = dir.path().join("journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replacen("\"record\"", "\"rec\0rd\"", 1)).unwrap();

    coordinator.forget();
    let successor = Agent::start(&coordinator, &["--state-dir", &state]).await;
    successor.log.line("the journal is lost").await;
    let report = coordinator.hear("the successor's report", report).await;
    assert!(!report.memory.aged, "it must not speak for the agent before");
    assert_eq!(report.jobs, Jobs::Unknown);
    assert!(dir.path().join("journal.jsonl.lost").exists());
}

#[tokio::test]
async fn two_agents_cannot_share_a_state_dir() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let coordinator = Coordinator::start().await;
    let _agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    let address = coordinator.address.to_string();
    let second = ["run", "--coordinator", &address, "--cluster", "ci", "--worker", "w1"];
    let second = [&second[..], &["--listen", "127.0.0.1:0", "--state-dir", &state]].concat();
    let (code, said) = fail(&second).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("in use by another agent"), "{said}");
}

#[tokio::test]
async fn on_a_full_disk_no_job_begins_that_a_successor_would_not_know() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else {
        crate::process::left_out(
            "a full disk under the journal",
            "a memory file system cannot be mounted here (it needs root)",
        );
        return;
    };
    let state = disk.0.display().to_string();
    let coordinator = Coordinator::start().await;
    let mut agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    coordinator.pool(100);
    agent.pool(100).await;
    let ballast = disk.fill();
    // The journal's last page still takes some.
    let mut begun = 0;
    let refused = loop {
        let (status, answer) = agent.ask("PUT", &format!("/v1/jobs/job-{begun}"), "").await;
        if status != 200 {
            break (status, answer);
        }
        begun += 1;
    };
    assert_eq!((refused.0, refused.1["error"]["reason"].as_str()), (503, Some("journal")));
    let why = refused.1["error"]["message"].as_str().unwrap();
    assert!(why.contains("No space left") || why.contains("bytes fitted"), "{why}");
    agent.log.line("the journal cannot be written").await;
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(agent.ask("PUT", "/v1/jobs/last", "").await.0, 200);
    agent.kill().await;
    coordinator.forget();
    let _successor = Agent::start(&coordinator, &["--state-dir", &state]).await;
    let report = coordinator.hear("the successor's report", report).await;
    assert_eq!(report.jobs, Jobs::Running(begun + 1));
}
