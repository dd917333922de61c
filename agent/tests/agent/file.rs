//! The adapter `file`: k8s-swarm's file, its versions, and a full disk.

use std::path::Path;

use rustix::process::Signal;
use tokio::process::Command;

use leasehold_types::message::AgentMessage;

use super::coordinator::Coordinator;
use super::process::{Agent, SmallDisk, pids, read, runs, until};

async fn start(coordinator: &Coordinator, path: &Path, more: &[&str]) -> Agent {
    let path = path.display().to_string();
    let args = [&["--adapter", "file", "--file-path", &path][..], more].concat();
    Agent::start(coordinator, &args).await
}

fn listed(streams: &[&str], version: u64) -> String {
    let jobs: String = streams.iter().map(|name| format!("      - {name}\n")).collect();
    let jobs =
        if jobs.is_empty() { "    jobs: []\n".into() } else { "    jobs:\n".to_owned() + &jobs };
    format!("workloads:\n  w1:\n{jobs}    version: {version}\nversion: {version}\n")
}

#[tokio::test]
async fn writes_the_streams_and_releases_a_revoked_one_after_the_reload() {
    let dir = tempfile::tempdir().unwrap();
    let (path, reloaded) = (dir.path().join("config.yml"), dir.path().join("reloaded"));
    std::fs::write(&path, "workloads: {}\nversion: 41\n").unwrap();
    let coordinator = Coordinator::start().await;
    // The reload succeeds only once `may` exists.
    let may = dir.path().join("may");
    let command = format!("test -e {} && cp $LEASEHOLD_FILE {}", may.display(), reloaded.display());
    std::fs::write(&may, "").unwrap();
    let agent = start(&coordinator, &path, &["--file-command", &command]).await;
    let token = coordinator.grant("cars", "cars:new", true);
    coordinator.grant("cars", "cars:updated", true);
    until("both are in the file", || read(&reloaded).matches("- cars:").count() == 2).await;
    let version: u64 = read(&path).lines().last().unwrap()["version: ".len()..].parse().unwrap();
    assert!(version > 41, "the version must grow across restarts: {version}");
    assert_eq!(read(&path), listed(&["cars:new", "cars:updated"], version));

    std::fs::remove_file(&may).unwrap();
    coordinator.revoke("cars", "cars:new");
    agent.log.line("--file-command exited with 1").await;
    assert_eq!(read(&path), listed(&["cars:updated"], version + 1));
    let released = |message: &AgentMessage| match message {
        AgentMessage::Beat(beat) => beat.released.iter().any(|release| release.token == token),
        _ => false,
    };
    assert_eq!(coordinator.count(released), 0, "released before the worker had reloaded");
    std::fs::write(&may, "").unwrap();
    coordinator.hear_release(token).await;
    assert_eq!(read(&reloaded), listed(&["cars:updated"], version + 1));
}

#[tokio::test]
async fn signals_the_process_in_the_pid_file_after_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pid) = (dir.path().join("config.yml"), dir.path().join("pid"));
    let told = dir.path().join("told");
    // Not HUP: nohup makes the tests ignore it, and a shell cannot change that.
    let script = format!(
        "trap 'echo told >> {}' USR1; echo $$ > {}; while :; do sleep 0.02; done",
        told.display(),
        pid.display()
    );
    let mut worker = Command::new("sh");
    let mut worker = worker.args(["-c", &script]).kill_on_drop(true).spawn().unwrap();
    until("the worker runs", || !read(&pid).is_empty()).await;
    let coordinator = Coordinator::start().await;
    let pid = pid.display().to_string();
    let more = ["--file-signal", "USR1", "--file-pid", &pid, "--file-settle", "10ms"];
    let _agent = start(&coordinator, &path, &more).await;
    let token = coordinator.grant("cars", "a", true);
    until("it is in the file", || read(&path).contains("- a\n")).await;
    until("the worker was told", || !read(&told).is_empty()).await;
    coordinator.revoke("cars", "a");
    coordinator.hear_release(token).await;
    assert!(!read(&path).contains("- a\n"));
    worker.kill().await.unwrap();
}

#[tokio::test]
async fn on_a_full_disk_the_old_file_stays_and_nothing_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let what = "a full disk under the worker's file";
    let Some(disk) = SmallDisk::mount(dir.path(), what) else { return };
    let path = disk.0.join("config.yml");
    let coordinator = Coordinator::start().await;
    let token = coordinator.grant("cars", "a", true);
    let agent = start(&coordinator, &path, &["--file-settle", "10ms"]).await;
    until("it is in the file", || read(&path).contains("- a\n")).await;
    let good = read(&path);

    let ballast = disk.fill();
    coordinator.revoke("cars", "a");
    agent.log.line("the worker's streams are out of date").await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("No space left"), "{why}");
    assert_ne!(agent.metric("leasehold_agent_file_failures_total").await, "0");
    assert_eq!(agent.metric("leasehold_agent_file_ok").await, "0");
    assert_eq!(read(&path), good, "the old file was changed");
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(
        lease["streams"][0]["state"], "revoked",
        "released although the file still lists it"
    );
    let released = |message: &AgentMessage| match message {
        AgentMessage::Beat(beat) => !beat.released.is_empty(),
        _ => false,
    };
    assert_eq!(coordinator.count(released), 0);

    std::fs::remove_file(&ballast).unwrap();
    coordinator.hear_release(token).await;
    assert!(!read(&path).contains("- a\n"));
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
    assert_eq!(agent.metric("leasehold_agent_file_ok").await, "1");
}

#[tokio::test]
async fn a_reader_never_sees_half_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yml");
    let coordinator = Coordinator::start().await;
    let _agent = start(&coordinator, &path, &["--file-settle", "1ms"]).await;
    until("the file is there", || path.exists()).await;
    let reading = path.clone();
    let reader = tokio::task::spawn_blocking(move || {
        let mut last = 0;
        while last < 200 {
            let text = std::fs::read_to_string(&reading).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.first(), Some(&"workloads:"), "{text:?}");
            let version = lines.last().unwrap().strip_prefix("version: ");
            let version: u64 = version.unwrap_or_else(|| panic!("torn: {text:?}")).parse().unwrap();
            assert!(version >= last, "the version fell from {last} to {version}");
            last = version;
        }
    });
    for number in 0..1000 {
        if reader.is_finished() {
            break;
        }
        let name = format!("stream:{number:04}");
        coordinator.grant("many", &name, true);
        until("it is in the file", || reader.is_finished() || read(&path).contains(&name)).await;
    }
    reader.await.unwrap();
}

#[tokio::test]
async fn is_not_ready_while_the_worker_cannot_be_notified() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pid) = (dir.path().join("config.yml"), dir.path().join("pid"));
    std::fs::write(&pid, "nonsense\n").unwrap();
    let coordinator = Coordinator::start().await;
    let shown = pid.display().to_string();
    let agent = start(&coordinator, &path, &["--file-signal", "WINCH", "--file-pid", &shown]).await;
    agent.log.line("the worker's streams are out of date").await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert_eq!(status, 503);
    assert!(why.contains(&shown) && why.contains("\"nonsense\""), "{why}");
    assert_eq!(agent.metric("leasehold_agent_file_ok").await, "0");
    assert_eq!(agent.metric("leasehold_agent_file_failures_total").await, "0");
    let mut worker = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
    std::fs::write(&pid, worker.id().unwrap().to_string()).unwrap();
    agent.metric_until("leasehold_agent_file_ok", |is_ok| is_ok == 1).await;
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
    worker.kill().await.unwrap();
}

#[tokio::test]
async fn restores_a_file_that_another_process_changes_or_deletes_and_notifies_the_worker() {
    let dir = tempfile::tempdir().unwrap();
    let (path, told) = (dir.path().join("config.yml"), dir.path().join("told"));
    let target = dir.path().join("target.yml");
    std::os::unix::fs::symlink("target.yml", &path).unwrap();
    let coordinator = Coordinator::start().await;
    let command = format!("echo $LEASEHOLD_FILE_VERSION >> {}", told.display());
    let agent = start(&coordinator, &path, &["--file-command", &command]).await;
    coordinator.grant("cars", "a", true);
    until("it is in the file", || read(&path).contains("- a\n")).await;
    let last = || read(&told).lines().last().and_then(|line| line.parse::<u64>().ok());

    std::fs::write(&path, "workloads: {}\nversion: 70\n").unwrap();
    until("it is restored", || read(&path) == listed(&["a"], 71)).await;
    until("the worker is notified", || last() == Some(71)).await;
    agent.log.line("another process changed the worker's file").await;
    std::fs::remove_file(&target).unwrap();
    until("the file is restored", || read(&path) == listed(&["a"], 72)).await;
    until("the worker is notified", || last() == Some(72)).await;
    agent.log.line("another process deleted the worker's file").await;
    assert!(path.is_symlink());
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
}

#[tokio::test]
async fn a_hanging_command_is_killed_when_its_agent_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, ids) = (dir.path().join("config.yml"), dir.path().join("ids"));
    let coordinator = Coordinator::start().await;
    let command = format!("sleep 1000 & echo $$ $! > {}; wait", ids.display());
    let agent = start(&coordinator, &path, &["--file-command", &command]).await;
    until("it hangs", || read(&ids).ends_with('\n')).await;
    let hanging = pids(&ids);
    assert!(hanging.iter().all(|id| runs(*id)));
    // Not with Agent::kill, which would also kill its children.
    agent.signal(Signal::KILL);
    until("all its processes have exited", || !hanging.iter().any(|id| runs(*id))).await;
}
