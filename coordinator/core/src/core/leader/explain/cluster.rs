//! Explains why a cluster runs what it runs.

use leasehold_types::{ClusterName, Moment, counted};

use super::worker_step;
use crate::core::Core;
use crate::core::leader::Query;
use crate::view::{ClusterView, Explanation, Presence, WorkerView};

/// The most workers that one fact names.
const NAMED_MAX: usize = 5;

impl Core {
    /// Why a cluster runs what it runs; none if no manifest defines it, or this replica does not
    /// lead.
    #[must_use]
    pub fn explain_cluster(&self, name: &ClusterName, now: Moment) -> Option<Explanation> {
        self.query()?.explain_cluster(name, now)
    }
}

impl Query<'_> {
    fn explain_cluster(&self, name: &ClusterName, now: Moment) -> Option<Explanation> {
        let spec = self.replica.desired().clusters.get(name)?;
        let view = self.cluster_view(name, spec, now);
        let accounts = self.ledger.accounts().of(name);
        let workers: Vec<_> =
            accounts.map(|(key, account)| self.worker_view(key, account, now)).collect();
        let mut facts = Vec::new();
        if !view.is_class {
            facts.push(format!(
                "its budget is {}, at most {} a worker; {} granted, and {} may be in use",
                counted(view.jobs_max, "job"),
                view.jobs_per_worker_max,
                counted(view.granted, "slot"),
                view.committed
            ));
        }
        let (known, connected) = (view.workers, view.connected);
        facts.push(format!("{connected} of {} connected", counted(known, "worker")));
        facts.extend(named("lost", "", &workers, |worker| worker.presence == Presence::Lost));
        facts.extend(named("not connected", "", &workers, |worker| {
            worker.presence == Presence::Silent
        }));
        let unreported = "a predecessor knew them, and they have not reported to this leader";
        facts.extend(named("unreported", unreported, &workers, |worker| {
            worker.presence == Presence::Unreported
        }));
        facts.extend(named("draining", "", &workers, WorkerView::drains));
        facts.extend(named("draining beyond the deadline", "", &workers, |worker| {
            worker.drain_overdue.is_some()
        }));
        facts.extend(named("failing", "", &workers, WorkerView::is_failing));
        facts.extend(named("whose name another agent wants", "", &workers, |worker| {
            worker.refused_agent.is_some()
        }));
        facts.extend(named("with an older agent", "", &workers, WorkerView::has_older_agent));
        if view.streams > 0 {
            let streams = counted(view.streams, "stream");
            facts.push(format!("{} of {streams} owned", view.streams_owned));
        }
        let next_step = match known {
            0 => format!("start a worker: leasehold-agent run --cluster {name} …"),
            _ => workers.iter().map(worker_step).find(|step| !step.is_empty()).unwrap_or_default(),
        };
        Some(Explanation { summary: summary(&view), facts, next_step })
    }
}

fn summary(view: &ClusterView) -> String {
    let ClusterView { name, running, committed, jobs_max, connected, .. } = view;
    if let Some(held) = &view.held {
        return format!("{name} is on hold: it {held}");
    }
    if view.workers == 0 {
        return format!("{name} has no worker");
    }
    if view.is_class {
        let (owned, shares) = (view.streams_owned, counted(view.streams, "share"));
        let workers = counted(*connected, "worker");
        return format!("{name} has {workers} for {shares} of pipelines; owned: {owned}");
    }
    let workers = counted(*connected, "worker");
    if view.runs_no_job() {
        return format!("{name} runs no jobs, its budget is 0; it has {workers}");
    }
    match (running >= jobs_max, committed >= jobs_max) {
        (true, _) if *running == 1 => format!("{name} has used its budget up: 1 job runs"),
        (true, _) => format!("{name} has used its budget up: {running} jobs run"),
        (false, true) => format!(
            "{name} runs {running} of at most {jobs_max} jobs on {workers}: all slots are granted \
             or may be in use"
        ),
        (false, false) => format!("{name} runs {running} of at most {jobs_max} jobs on {workers}"),
    }
}

/// A fact that names workers in some state, and the slots that they may be using; none without any.
fn named(
    state: &str,
    why: &str,
    workers: &[WorkerView],
    has: impl Fn(&WorkerView) -> bool,
) -> Option<String> {
    let found: Vec<_> = workers.iter().filter(|worker| has(worker)).collect();
    let slots: u32 = found.iter().map(|worker| worker.committed).sum();
    let slots = counted(slots, "slot");
    let names: Vec<_> =
        found.iter().take(NAMED_MAX).map(|worker| worker.key.worker.as_str()).collect();
    let more = match found.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    let names = names.join(", ");
    (!found.is_empty()).then(|| format!("{state}{why}: {names}{more}; {slots} may be in use there"))
}
