//! The honest agents: jobs begin and end on each, and now and then a connection is cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_types::JobId;
use tests::agents::{Agent, Counts, FleetRecord};
use tests::process::soon;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::test_bed::TestBed;

/// How long a job lasts, and the pause before the next one, in milliseconds.
const JOB_MS: std::ops::Range<u64> = 500..3_000;
/// Between two agents whose connections are cut.
const REDIALS_EVERY: Duration = Duration::from_secs(1);

/// What the agents did while the client attacked.
#[derive(Clone, Debug)]
pub(crate) struct LoadCounts {
    /// What they saw of their leases.
    pub(crate) leases: Counts,
    /// Leaders after the first one.
    pub(crate) leaders: u64,
    pub(crate) renewals: u64,
    /// The renewals of the agent that had the fewest.
    pub(crate) renewals_min: u64,
    pub(crate) jobs: u64,
    pub(crate) jobs_refused: u64,
    pub(crate) redials: u64,
    /// Agents without a connection at the end.
    pub(crate) unconnected: usize,
}

#[derive(Debug, Default)]
struct JobCounts {
    begun: AtomicU64,
    refused: AtomicU64,
    redials: AtomicU64,
}

/// The agents, with what makes them work.
pub(crate) struct Load {
    agents: Vec<Arc<Agent>>,
    tasks: JoinSet<()>,
    record: Arc<FleetRecord>,
    jobs: Arc<JobCounts>,
    epoch: AtomicU64,
    renewals: std::sync::Mutex<Vec<u64>>,
}

impl Load {
    /// Starts all agents, and waits until each has its leases.
    pub(crate) async fn start(test_bed: &TestBed) -> Self {
        let (count, streams) = (test_bed.agents.len(), test_bed.streams());
        let record = Arc::new(FleetRecord::new(count, streams));
        let start = |identity: &_| {
            let coordinators = Arc::clone(&test_bed.coordinators);
            Arc::new(Agent::start(Clone::clone(identity), coordinators, Arc::clone(&record)))
        };
        let agents: Vec<_> = test_bed.agents.iter().map(start).collect();
        soon("all agents and streams", || {
            (record.live_since(1) == count && record.owned() == streams).then_some(())
        })
        .await;
        let jobs = Arc::new(JobCounts::default());
        let mut tasks = JoinSet::new();
        for (number, agent) in agents.iter().enumerate() {
            tasks.spawn(work(number, Arc::clone(agent), Arc::clone(&jobs)));
        }
        tasks.spawn(cut(agents.clone(), Arc::clone(&jobs)));
        let (epoch, renewals) = (AtomicU64::default(), std::sync::Mutex::default());
        Self { agents, tasks, record, jobs, epoch, renewals }
    }

    /// What happened before is not counted.
    pub(crate) fn begin_record(&self) {
        self.record.take();
        self.epoch.store(self.record.epoch(), Ordering::Relaxed);
        *self.renewals.lock().expect("no panic in between") = self.record.renewals().collect();
        for count in [&self.jobs.begun, &self.jobs.refused, &self.jobs.redials] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// What happened since.
    pub(crate) fn end_record(&self) -> LoadCounts {
        let before = self.renewals.lock().expect("no panic in between");
        let renewals: Vec<_> =
            self.record.renewals().zip(before.iter()).map(|(now, before)| now - before).collect();
        LoadCounts {
            leases: self.record.take(),
            leaders: self.leader_changes(),
            renewals: renewals.iter().sum(),
            renewals_min: renewals.iter().copied().min().unwrap_or_default(),
            jobs: self.jobs.begun.load(Ordering::Relaxed),
            jobs_refused: self.jobs.refused.load(Ordering::Relaxed),
            redials: self.jobs.redials.load(Ordering::Relaxed),
            unconnected: self.agents.len() - self.record.live_since(1),
        }
    }

    /// Leaders that have welcomed an agent since the record began, but the one of then.
    pub(crate) fn leader_changes(&self) -> u64 {
        self.record.epoch() - self.epoch.load(Ordering::Relaxed)
    }

    /// Ends all agents.
    pub(crate) async fn end(mut self) {
        self.tasks.shutdown().await;
        for agent in self.agents {
            let agent = Arc::into_inner(agent).expect("nobody else has it now");
            agent.kill().await;
        }
    }
}

/// Begins and ends jobs of one worker, for ever.
async fn work(number: usize, agent: Arc<Agent>, counts: Arc<JobCounts>) {
    for job in 0_u64.. {
        sleep(Duration::from_millis(fastrand::u64(JOB_MS))).await;
        let id: JobId = format!("job-{number}-{job}").parse().expect("a job's id");
        if agent.begin_job(id.clone()).await {
            counts.begun.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(fastrand::u64(JOB_MS))).await;
            agent.end_job(id).await;
        } else {
            counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Cuts the connection of one agent after another.
async fn cut(agents: Vec<Arc<Agent>>, counts: Arc<JobCounts>) {
    for agent in agents.iter().cycle() {
        sleep(REDIALS_EVERY).await;
        agent.redial().await;
        counts.redials.fetch_add(1, Ordering::Relaxed);
    }
}
