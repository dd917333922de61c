//! Ten Travis workers under a real coordinator, replaced one after another while the budget rises
//! and falls. What they wrote down themselves shows that they never ran more jobs than it allows.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tests::process::{Agent, Coordinator, Process, eventually, get};
use tests::toolbox;

const WORKERS: usize = 10;

/// A worker and its agent, as in one pod.
struct Pod {
    name: String,
    agent: Agent,
    worker: Process,
    journal: PathBuf,
}

/// A budget that holds from a moment on.
struct BudgetChange {
    from: u64,
    jobs: u32,
}

/// The cluster, and the budgets that it has had.
struct TravisFixture {
    coordinator: Coordinator,
    budgets: Vec<BudgetChange>,
}

impl Pod {
    fn start(fixture: &TravisFixture, name: &str) -> Self {
        let folder = fixture.coordinator.folder();
        let journal = folder.join(format!("{name}.journal"));
        let mut command = Command::new("python3");
        command.arg(toolbox::root().join("agent/tests/travis_worker.py"));
        command.args(["--worker", name, "--job-ms", "100", "900", "--journal"]).arg(&journal);
        command.env("TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR", "127.0.0.1:0");
        command.env("TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH", "leasehold:leasehold");
        command.env("TRAVIS_WORKER_POOL_SIZE", "0");
        let worker = Process::start(&mut command, &folder.join(format!("{name}.worker.log")));
        let port = eventually("the worker's port", || lines(&journal).first()?["port"].as_u64());
        let url = format!("http://127.0.0.1:{port}");
        let more = ["--adapter", "travis", "--travis-url", &url, "--travis-interval", "200ms"];
        let agent = fixture.coordinator.agent("builds", name, &more);
        Self { name: name.into(), agent, worker, journal }
    }

    fn drain(&self) {
        self.agent.process.signal(Signal::TERM);
    }

    /// Waits until its agent reports all running jobs, in the drain, or has ended.
    fn counts_right(&mut self) {
        let what = format!("the drain of {}", self.name);
        let shut = |line: &Value| line["what"] == "shut_down";
        eventually(&what, || {
            let over = self.agent.process.ended().is_some();
            (over || lines(&self.journal).iter().any(shut)).then_some(())
        });
        eventually(&format!("the count of {}", self.name), || {
            let before = self.running();
            let jobs_in_lease =
                get(self.agent.api, "/v1/lease").and_then(|(_, body)| running_in(&body));
            let over = self.agent.process.ended().is_some();
            (over || (before == self.running() && jobs_in_lease == Some(before))).then_some(())
        });
    }

    /// Waits until both have ended as they should.
    fn ends(&mut self) {
        assert_eq!(self.agent.process.wait().code(), Some(0), "{}", self.agent.process.log());
        // One that never had a processor waits for its container's stop signal; one that had some
        // ends by itself, and if it were paused it would not hear that signal.
        if self.worker.ended().is_none() {
            self.worker.signal(Signal::INT);
        }
        assert_eq!(self.worker.wait().code(), Some(0), "{}", self.worker.log());
        let lines = lines(&self.journal);
        let bad = |line: &&Value| ["trap", "lost"].iter().any(|bad| line["what"] == *bad);
        assert_eq!(lines.iter().find(bad), None, "{}", self.agent.process.log());
        assert_eq!(self.running(), 0, "{lines:?}");
    }

    fn running(&self) -> i64 {
        lines(&self.journal).iter().map(change).sum()
    }
}

impl TravisFixture {
    fn start(jobs: u32) -> Self {
        let coordinator = Coordinator::start(&[("builds.yaml", &manifest(jobs))]);
        Self { coordinator, budgets: vec![BudgetChange { from: 0, jobs }] }
    }

    fn set(&mut self, jobs: u32) {
        let before = self.budgets.last().map_or(0, |cap| cap.jobs);
        if jobs > before {
            self.budgets.push(BudgetChange { from: now(), jobs });
        }
        let folder = self.coordinator.folder().join("manifests");
        let new = folder.join(".new");
        std::fs::write(&new, manifest(jobs)).expect("the manifest is written");
        std::fs::rename(&new, folder.join("builds.yaml")).expect("it takes its place");
        if jobs < before {
            // Nothing is killed: it holds from when what ran before has ended.
            eventually("the slots to come back", || {
                let known = self.metric("leasehold_jobs_max")? == jobs;
                (known && self.metric("leasehold_slots_committed")? <= jobs).then_some(())
            });
            self.budgets.push(BudgetChange { from: now(), jobs });
        }
    }

    fn metric(&self, name: &str) -> Option<u32> {
        let (_, text) = get(self.coordinator.http, "/metrics")?;
        let name = format!("{name}{{cluster=\"builds\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
    }

    /// Waits until all of the budget is in use.
    fn is_used(&self) {
        let jobs = self.budgets.last().map_or(0, |cap| cap.jobs);
        eventually(&format!("all of {jobs} slots to be used"), || {
            (self.metric("leasehold_jobs_running")? == jobs).then_some(())
        });
    }

    /// The most jobs that ran at once; at no moment more than the budget of then.
    fn judge(&self, journals: &[PathBuf]) -> i64 {
        let mut steps: Vec<(u64, i64)> = Vec::new();
        for line in journals.iter().flat_map(|journal| lines(journal)) {
            steps.push((line["at"].as_u64().expect("a time"), change(&line)));
        }
        steps.sort_unstable();
        let (mut running, mut peak) = (0, 0);
        for (at, change) in steps {
            running += change;
            peak = peak.max(running);
            let cap = self.budgets.iter().rev().find(|cap| cap.from <= at).expect("the first");
            assert!(running <= i64::from(cap.jobs), "{running} jobs run, {} may", cap.jobs);
        }
        assert_eq!(running, 0, "jobs without an end");
        peak
    }
}

#[test]
fn ten_travis_workers_stay_within_the_budget_while_they_are_replaced() {
    let mut fixture = TravisFixture::start(12);
    let start =
        |fixture: &TravisFixture, number: usize| Pod::start(fixture, &format!("w-{number}"));
    let mut old: Vec<Pod> = (0..WORKERS).map(|number| start(&fixture, number)).collect();
    fixture.is_used();
    fixture.set(20);
    fixture.is_used();
    fixture.set(7);
    fixture.is_used();
    fixture.set(12);

    let journals = |pods: &[Pod]| pods.iter().map(|pod| pod.journal.clone()).collect::<Vec<_>>();
    let mut all = journals(&old);
    let (mut new, mut leaving) = (Vec::new(), Vec::<Pod>::new());
    for number in 0..WORKERS {
        // A new one comes while old ones drain, and the budget changes meanwhile.
        new.push(start(&fixture, WORKERS + number));
        let mut pod = old.remove(0);
        pod.drain();
        match number {
            4 => fixture.set(6),
            6 => fixture.set(15),
            _ => {}
        }
        pod.counts_right();
        leaving.push(pod);
        if leaving.len() > 2 {
            leaving.remove(0).ends();
        }
    }
    leaving.iter_mut().for_each(Pod::ends);
    fixture.is_used();
    all.extend(journals(&new));
    new.iter().for_each(Pod::drain);
    new.iter_mut().for_each(Pod::ends);
    let peak = fixture.judge(&all);
    assert_eq!(peak, 20, "the whole budget was used");
}

fn manifest(jobs: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: builds}}\n\
         spec: {{maxJobs: {jobs}, maxJobsPerWorker: 3}}\n"
    )
}

/// What a worker has recorded.
fn lines(journal: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("a line of the journal")).collect()
}

/// How many jobs more a line means.
fn change(line: &Value) -> i64 {
    match line["what"].as_str() {
        Some("job_start") => 1,
        Some("job_end") => -1,
        _ => 0,
    }
}

/// The jobs in a lease, or `None` if the agent no longer shows any.
fn running_in(lease: &str) -> Option<i64> {
    let lease: Value = serde_json::from_str(lease).ok()?;
    lease["pool"]["running"].as_i64()
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let part = |number: i64| u64::try_from(number).expect("it is after the boot");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
