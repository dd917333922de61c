//! Plans under other circumstances. The driver only copies the input, slice by slice, so that it
//! serves others in between. The plan is made on a thread of its own, and in bounded time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::core::{PipelinesWhatIf, WhatIfPlan};
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::view::{PipelinesPlan, WhatIf};
use leasehold_driver::clock;
use leasehold_manifest::proposal::{Scope, propose};
use leasehold_proto::admin::v1 as proto;
use leasehold_proto::admin::v1::PlanResponse;
use leasehold_types::{ClusterName, Moment, WorkerKey, WorkerName, nearest};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::caller_limits::{Allowed, PlanPermit};
use super::error::AdminError;
use super::{Admin, manifest_changes, wire};

/// How often edited manifests are planned anew, because those in force changed meanwhile.
const PLANS_OF_CHANGING_MANIFESTS_MAX: usize = 3;
/// How long one may take.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams, or workers and shares, that the driver copies in one turn, which stays short so.
const COPIED_PER_TURN: usize = 2_048;
/// Units of work between two looks at the clock.
const PLACED_PER_LOOK: usize = 4_096;

impl Admin {
    /// The plan of each cluster that these manifests would change, and what is wrong with them.
    pub(super) async fn plan_files(
        &self,
        call: &Allowed,
        files: BTreeMap<String, String>,
        scope: Scope,
    ) -> Result<proto::PlanManifestsResponse, Status> {
        let permit = Arc::new(self.plans.begin(&call.caller)?);
        let files = Arc::new(files);
        let mut in_force = self.desired_in_force().await?;
        for _ in 1..PLANS_OF_CHANGING_MANIFESTS_MAX {
            let answer = self.plan_files_beside(&permit, &in_force, &files, scope).await;
            let now = self.desired_in_force().await?;
            // Otherwise the clusters of one answer may have been planned beside different
            // manifests, or one of them has gone meanwhile.
            if Arc::ptr_eq(&in_force, &now) {
                return answer;
            }
            in_force = now;
        }
        self.plan_files_beside(&permit, &in_force, &files, scope).await
    }

    async fn desired_in_force(&self) -> Result<Arc<Desired>, Status> {
        let in_force = self.ask("PlanManifests", |core, _| Ok(Arc::clone(core.desired()))).await?;
        Ok(in_force.into_inner())
    }

    async fn plan_files_beside(
        &self,
        permit: &Arc<PlanPermit>,
        in_force: &Arc<Desired>,
        files: &Arc<BTreeMap<String, String>>,
        scope: Scope,
    ) -> Result<proto::PlanManifestsResponse, Status> {
        let (in_force, files) = (Arc::clone(in_force), Arc::clone(files));
        // Large manifests take a while. The thread ends by itself, even if the caller goes away.
        let reading = Arc::clone(permit);
        let read = tokio::task::spawn_blocking(move || {
            let _permit = reading;
            let reading = propose(&in_force, &files, scope);
            let desired = reading.desired.unwrap_or_else(|| Arc::clone(&in_force));
            let changes = manifest_changes::of(&in_force, &desired);
            (reading.problems, desired, changes)
        });
        let (problems, desired, changes) = read.await.map_err(|_| AdminError::Stopped)?;
        let mut clusters = Vec::new();
        for cluster in changes.clusters {
            let what_if = WhatIf { desired: Some(Arc::clone(&desired)), ..WhatIf::default() };
            let plan = Some(self.make_plan(permit, cluster.clone(), what_if).await?);
            clusters.push(proto::ClusterPlan { cluster: cluster.to_string(), plan });
        }
        let now = clock::now();
        let problems = problems.iter().map(|problem| wire::problem(problem, now)).collect();
        let mut answer = proto::PlanManifestsResponse {
            problems,
            changes: changes.objects,
            clusters,
            ..proto::PlanManifestsResponse::default()
        };
        if changes.pipelines {
            let plan = self.plan_pipelines(permit, desired, None).await?;
            (answer.pipelines, answer.classes) = wire::pipelines_plan(plan);
        }
        Ok(answer)
    }

    /// The plan of a cluster, or of the pipelines of a worker class, under other circumstances.
    pub(super) async fn plan_of(
        &self,
        call: &Allowed,
        cluster: ClusterName,
        what_if: WhatIf,
    ) -> Result<PlanResponse, Status> {
        let permit = &Arc::new(self.plans.begin(&call.caller)?);
        let desired = self.desired_in_force().await?;
        let is_class = desired.clusters.get(&cluster).is_some_and(|spec| spec.class.is_some());
        if !is_class {
            return self.make_plan(permit, cluster, what_if).await;
        }
        if what_if.jobs_max.is_some() {
            let why = format!("max_jobs: {cluster} is a worker class, which has no budget");
            return Err(AdminError::Invalid(why).into());
        }
        let plan = self.plan_pipelines(permit, desired, Some((cluster, what_if))).await?;
        let (pipelines, classes) = wire::pipelines_plan(plan);
        Ok(PlanResponse { is_class, pipelines, classes, ..PlanResponse::default() })
    }

    /// The plan of all pipelines where these manifests are in force, and the class has other
    /// workers.
    async fn plan_pipelines(
        &self,
        permit: &Arc<PlanPermit>,
        desired: Arc<Desired>,
        workers: Option<(ClusterName, WhatIf)>,
    ) -> Result<PipelinesPlan, Status> {
        let begin = move |core: &Core, now| {
            let plan = PipelinesWhatIf::begin(core, desired).ok_or(AdminError::OtherTerm)?;
            let Some((class, what_if)) = workers else { return Ok(plan) };
            check_workers(core, &class, &what_if, now)?;
            let keys = |workers: Vec<WorkerName>| {
                let key = |worker| WorkerKey { cluster: class.clone(), worker };
                workers.into_iter().map(key).collect()
            };
            Ok(plan.with_workers(keys(what_if.add), keys(what_if.remove)))
        };
        let finish = |mut plan: PipelinesWhatIf, deadline| {
            within(deadline, || plan.place(clock::now()))?;
            Some(plan.into_view())
        };
        let gather = PipelinesWhatIf::gather;
        self.make(permit, "the plan of pipelines", begin, gather, finish).await
    }

    /// The plan of a cluster under other circumstances.
    async fn make_plan(
        &self,
        permit: &Arc<PlanPermit>,
        cluster: ClusterName,
        what_if: WhatIf,
    ) -> Result<PlanResponse, Status> {
        let jobs = Arc::clone(&self.jobs);
        let planned = cluster.clone();
        let begin = move |core: &Core, now| {
            let plan = WhatIfPlan::begin(core, &planned, &what_if, now);
            let plan = plan.ok_or_else(|| AdminError::cluster_not_found(core, &planned))?;
            check_workers(core, &planned, &what_if, now)?;
            Ok(plan)
        };
        let finish = move |mut plan: WhatIfPlan, deadline| {
            within(deadline, || plan.place(PLACED_PER_LOOK))?;
            let (past, now) = (jobs.past(cluster), clock::now());
            Some(wire::plan(plan.into_view(), |pool| past.wait(&pool.worker, pool.size, now)))
        };
        self.make(permit, "the plan", begin, WhatIfPlan::gather, finish).await
    }

    /// Begins a plan, copies all of its input with `gather`, and finishes it on a thread of its own
    /// by a deadline. `finish` returns none where that has passed.
    async fn make<P: Send + 'static, V: Send + 'static>(
        &self,
        permit: &Arc<PlanPermit>,
        what: &'static str,
        begin: impl FnOnce(&Core, Moment) -> Result<P, AdminError> + Send + 'static,
        gather: fn(&mut P, &Core, usize) -> Option<bool>,
        finish: impl FnOnce(P, Instant) -> Option<V> + Send + 'static,
    ) -> Result<V, Status> {
        let deadline = Instant::now() + PLAN_TIMEOUT;
        let late = || AdminError::Late(what, PLAN_TIMEOUT);
        let gathered = timeout_at(deadline, self.gather(begin, gather)).await;
        let plan = gathered.map_err(|_| late())??;
        // The thread ends by itself, even if the caller goes away.
        let making = Arc::clone(permit);
        let made = tokio::task::spawn_blocking(move || {
            let _permit = making;
            finish(plan, deadline)
        });
        Ok(made.await.map_err(|_| AdminError::Stopped)?.ok_or_else(late)?)
    }

    /// Copies all of a plan's input.
    async fn gather<P: Send + 'static>(
        &self,
        begin: impl FnOnce(&Core, Moment) -> Result<P, AdminError> + Send + 'static,
        gather: fn(&mut P, &Core, usize) -> Option<bool>,
    ) -> Result<P, Status> {
        let mut plan = self.ask("Plan", begin).await?.into_inner();
        loop {
            let slice = self.ask("Plan", move |core, _| {
                let is_whole = gather(&mut plan, core, COPIED_PER_TURN);
                is_whole.map(|is_whole| (plan, is_whole)).ok_or(AdminError::OtherTerm)
            });
            let (gathered, is_whole) = slice.await?.into_inner();
            if is_whole {
                return Ok(gathered);
            }
            plan = gathered;
        }
    }
}

/// Fails if a worker is to be added that is there, or one removed that is not.
fn check_workers(
    core: &Core,
    cluster: &ClusterName,
    what_if: &WhatIf,
    now: Moment,
) -> Result<(), AdminError> {
    let is_known = |worker: &WorkerName| {
        let key = WorkerKey { cluster: cluster.clone(), worker: worker.clone() };
        core.worker(&key, now).is_some()
    };
    if let Some(worker) = what_if.add.iter().find(|worker| is_known(worker)) {
        return Err(AdminError::Invalid(format!(
            "add_workers: cluster {cluster} has a worker {worker} already: name one that it does \
             not have"
        )));
    }
    let Some(worker) = what_if.remove.iter().find(|worker| !is_known(worker)) else {
        return Ok(());
    };
    let workers = core.workers(cluster, now).unwrap_or_default();
    let known = workers.iter().map(|view| view.key.worker.as_str());
    let meant = match nearest(worker.as_str(), known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("`leasehold workers {cluster}` lists them"),
    };
    Err(AdminError::NotFound(format!(
        "remove_workers: cluster {cluster} has no worker {worker}; {meant}"
    )))
}

/// Repeats `work` until it is done; none if the deadline passes before.
fn within(deadline: Instant, mut work: impl FnMut() -> bool) -> Option<()> {
    while !work() {
        if Instant::now() >= deadline {
            return None;
        }
    }
    Some(())
}
