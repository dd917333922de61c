//! Ten Travis workers under a real coordinator, replaced one after another while the budget rises
//! and falls. What they wrote down themselves shows that they never ran more jobs than it allows.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_demo::checker::{job_steps, peak};
use leasehold_demo::clock::now_ns;
use leasehold_demo::evidence::Evidence;
use leasehold_demo::journal::{Event, Line};
use rustix::process::Signal;
use serde_json::Value;
use tests::answers::{lease, metric};
use tests::process::{Agent, Coordinator, Process, eventually, put_manifest};
use tests::toolbox;

const WORKERS: usize = 10;

/// A worker and its agent, as in one pod.
struct Pod {
    name: String,
    agent: Agent,
    worker: Process,
    journal: PathBuf,
}

/// The cluster, and the budgets that it has had.
struct TravisFixture {
    coordinator: Coordinator,
    /// Since when each holds, and how many jobs it allows.
    budgets: Vec<(u64, u32)>,
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
                lease(self.agent.api).and_then(|lease| lease["pool"]["running"].as_i64());
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
        Self { coordinator, budgets: vec![(0, jobs)] }
    }

    fn set(&mut self, jobs: u32) {
        let before = self.budgets.last().map_or(0, |(_, jobs)| *jobs);
        if jobs > before {
            self.budgets.push((now_ns(), jobs));
        }
        put_manifest(self.coordinator.folder(), "builds.yaml", &manifest(jobs));
        if jobs < before {
            // Nothing is killed: it holds from when what ran before has ended.
            eventually("the slots to come back", || {
                let known = self.metric("leasehold_jobs_max")? == jobs;
                (known && self.metric("leasehold_slots_committed")? <= jobs).then_some(())
            });
            self.budgets.push((now_ns(), jobs));
        }
    }

    fn metric(&self, name: &str) -> Option<u32> {
        let name = format!("{name}{{cluster=\"builds\"}}");
        metric(self.coordinator.http, &name).map(|value| value as u32)
    }

    /// Waits until all of the budget is in use.
    fn is_used(&self) {
        let jobs = self.budgets.last().map_or(0, |(_, jobs)| *jobs);
        eventually(&format!("all of {jobs} slots to be used"), || {
            (self.metric("leasehold_jobs_running")? == jobs).then_some(())
        });
    }

    /// The most jobs that ran at once; at no moment more than the budget of then.
    fn judge(&self, journals: &[PathBuf]) -> usize {
        let lines = journals.iter().flat_map(|journal| lines(journal));
        let mut evidence = Evidence::new(lines.filter_map(|line| job_line(&line)).collect());
        evidence.budgets.clone_from(&self.budgets);
        assert_eq!(evidence.contradictions, [""; 0]);
        for step in job_steps(&evidence.runs) {
            let budget = evidence.budget_at(step.at_ns);
            assert!(step.sum <= i64::from(budget), "{} jobs run, {budget} may", step.sum);
        }
        assert!(evidence.runs.iter().all(|run| run.done), "jobs without an end");
        peak(&evidence.runs, 0, u64::MAX)
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

/// What a line says of a job, if anything.
fn job_line(line: &Value) -> Option<Line> {
    let job = line["job"].as_str()?.to_owned();
    let event = match line["what"].as_str()? {
        "job_start" => Event::JobStart { job },
        "job_end" => Event::JobEnd { job },
        _ => return None,
    };
    let worker = line["worker"].as_str().expect("its worker").to_owned();
    Some(Line { at_ns: line["at"].as_u64().expect("a time"), wall_us: 0, worker, event })
}

/// How many jobs more a line means.
fn change(line: &Value) -> i64 {
    match line["what"].as_str() {
        Some("job_start") => 1,
        Some("job_end") => -1,
        _ => 0,
    }
}
