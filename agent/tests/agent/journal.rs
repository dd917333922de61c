//! What the successor of a killed agent restores from the journal.

use std::io::Write;

use leasehold_types::message::{AgentMessage, HeldStream, Jobs, Report};

use super::coordinator::{Coordinator, PATIENCE};
use super::process::{Agent, SmallDisk, fail, until};

fn report(message: &AgentMessage) -> Option<Report> {
    match message {
        AgentMessage::Report(report) => Some(report.clone()),
        _ => None,
    }
}

/// An agent with this state folder and many slots.
async fn served(state: &str) -> (Coordinator, Agent) {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &["--state-dir", state]).await;
    coordinator.pool(100);
    agent.pool(100).await;
    (coordinator, agent)
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
    // The kill may have cut off the last write.
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
    // The id still names the same job.
    assert_eq!(successor.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    successor.ask_until("/v1/lease", |lease| lease["pool"]["running"] == 2).await;
}

#[tokio::test]
async fn renames_and_logs_a_damaged_journal_and_starts_without_memory() {
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
    std::fs::write(&journal, text.replacen("\"job\":\"a\"", "\"job\":\"b\"", 1)).unwrap();

    coordinator.forget();
    let successor = Agent::start(&coordinator, &["--state-dir", &state]).await;
    let said = successor.log.line("the journal is damaged").await;
    assert!(said.contains(journal.to_str().unwrap()) && said.contains("at byte"), "{said}");
    let report = coordinator.hear("the successor's report", report).await;
    assert!(!report.memory.aged, "the new journal must not cover the previous agent");
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
async fn on_a_full_disk_no_job_begins_without_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "a full disk under the journal") else { return };
    let state = disk.0.display().to_string();
    let (coordinator, mut agent) = served(&state).await;
    let ballast = disk.fill();
    // The last page of the journal has space for some records.
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
    agent.log.line("cannot write the journal").await;
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(agent.ask("PUT", "/v1/jobs/last", "").await.0, 200);
    agent.kill().await;
    coordinator.forget();
    let _successor = Agent::start(&coordinator, &["--state-dir", &state]).await;
    let report = coordinator.hear("the successor's report", report).await;
    assert_eq!(report.jobs, Jobs::Running(begun + 1));
}

/// On a full disk, and on a read-only disk.
#[tokio::test]
async fn an_agent_that_cannot_write_continues_with_the_content_of_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "a full disk at the start of an agent") else {
        return;
    };
    let state = disk.0.display().to_string();
    let (coordinator, mut agent) = served(&state).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let mut running = 1;
    for read_only in [false, true] {
        let ballast = (!read_only).then(|| disk.fill());
        if !read_only {
            running += agent.fill_journal().await;
        }
        agent.kill().await;
        if read_only {
            disk.remount("ro");
        }
        coordinator.forget();
        agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
        let (status, why) = agent.text("GET", "/readyz", "").await;
        assert_eq!(status, 503);
        assert!(why.contains("cannot write the journal"), "{why}");
        assert_eq!(agent.metric("leasehold_agent_journal_ok").await, "0");
        let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
        assert_eq!(lease["pool"]["running"], running, "{lease}");
        assert_ne!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
        match ballast {
            Some(ballast) => std::fs::remove_file(ballast).unwrap(),
            None => disk.remount("rw"),
        }
        let report = coordinator.hear("the report, once it can be written", report).await;
        assert_eq!(report.jobs, Jobs::Running(running));
        until("it is well", || agent.log.count("welcomed") > 0).await;
        agent.pool(100).await;
        assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
        assert_eq!(agent.metric("leasehold_agent_journal_ok").await, "1");
    }
}

/// A job whose end needs more room in the journal than the begin of one with a short name.
const ENDS: &str = "one-that-ends-and-whose-name-is-long-enough-that-its-end-is-the-longest-record";

#[tokio::test]
async fn confirms_the_end_of_a_job_only_once_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "the end of a job on a full disk") else {
        return;
    };
    let state = disk.0.display().to_string();
    let (coordinator, mut agent) = served(&state).await;
    assert_eq!(agent.ask("PUT", &format!("/v1/jobs/{ENDS}"), "").await.0, 200);
    let ballast = disk.fill();
    let begun = agent.fill_journal().await;
    for _ in 0..2 {
        let (status, answer) = agent.ask("DELETE", &format!("/v1/jobs/{ENDS}"), "").await;
        assert_eq!((status, answer["error"]["reason"].as_str()), (503, Some("journal")));
    }
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert_eq!(status, 503);
    assert!(why.contains("cannot write the journal"), "{why}");
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(agent.ask("DELETE", &format!("/v1/jobs/{ENDS}"), "").await.0, 200);
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
    agent.kill().await;
    coordinator.forget();
    let _successor = Agent::start(&coordinator, &["--state-dir", &state]).await;
    let report = coordinator.hear("the successor's report", report).await;
    assert_eq!(report.jobs, Jobs::Running(begun), "the ended job counts again");
}

#[tokio::test]
async fn the_sdk_repeats_the_end_of_a_job_until_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "an end that the SDK tells on a full disk")
    else {
        return;
    };
    let state = disk.0.display().to_string();
    let (_coordinator, agent) = served(&state).await;
    let address = Some(format!("http://{}", agent.address));
    let options = leasehold::Options { address, ..leasehold::Options::default() };
    let worker = leasehold::Worker::connect_with(options).await.unwrap();
    let job = worker.job(ENDS).await.unwrap();
    let ballast = disk.fill();
    let begun = agent.fill_journal().await;
    let end = tokio::spawn(job.end());
    agent.ask_until("/v1/lease", |lease| lease["pool"]["running"] == begun).await;
    assert!(!end.is_finished(), "the end is not written yet");
    std::fs::remove_file(&ballast).unwrap();
    tokio::time::timeout(PATIENCE, end).await.unwrap().unwrap();
    worker.close().await;
}

#[tokio::test]
async fn refuses_a_pipe_in_place_of_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let journal = dir.path().join("journal.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&journal).status();
    assert!(made.unwrap().success());
    let start = ["run", "--coordinator", "127.0.0.1:1", "--cluster", "ci", "--worker", "w1"];
    let start = [&start[..], &["--listen", "127.0.0.1:0", "--state-dir", &state]].concat();
    let (code, said) = fail(&start).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("not a regular file") && said.contains("journal.jsonl"), "{said}");
}

/// A copy that fits the worker and the boot, and knows fewer jobs than run.
#[tokio::test]
async fn an_older_copy_of_the_journal_is_detected_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start().await;
    coordinator.pool(4);
    let state = dir.path().display().to_string();
    let mut agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    agent.pool(4).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let (journal, copy) = (dir.path().join("journal.jsonl"), dir.path().join("copy"));
    std::fs::copy(&journal, &copy).unwrap();
    for job in ["b", "c", "d"] {
        assert_eq!(agent.ask("PUT", &format!("/v1/jobs/{job}"), "").await.0, 200);
    }
    agent.kill().await;
    std::fs::rename(&copy, &journal).unwrap();

    coordinator.forget();
    let agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    let report = coordinator.hear("the successor's report", report).await;
    assert_eq!(report.jobs, Jobs::Unknown, "{}", agent.log.text());
    let line = agent.log.line("the journal is damaged").await;
    assert!(line.contains("it is an older copy"), "{line}");
    assert!(dir.path().join("journal.jsonl.lost").exists());
}
