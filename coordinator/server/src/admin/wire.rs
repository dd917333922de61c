//! Converts the core's views to messages of the admin service, and `PlanRequest` to the core's
//! type.

use std::time::Duration;

use leasehold_coordinator_core::view::{
    BindingPhase, BindingView, ClaimPhase, ClaimView, ClassChange, ClassView, ClusterView,
    Explanation, PipelinePhase, PipelineView, PipelinesPlan, PlanView, PlannedPipeline,
    PlannedPool, Presence, SetSummary, ShareMove, SharePlace, ShareView, StreamView, WhatIf,
    WorkerView,
};
use leasehold_driver::replicas::KnownReplica;
use leasehold_manifest::Problem;
use leasehold_proto::admin::v1 as proto;
use leasehold_proto::map;
use leasehold_types::limits::{JOBS_MAX, WORKERS_MAX};
use leasehold_types::message::{DrainPhase, OtherCell};
use leasehold_types::{Moment, WorkerKey, WorkerName, order};

use super::error::AdminError;
use crate::job_history::JobWait;

/// A count as the wire has it.
pub(super) fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(super) fn problem(problem: &Problem, now: Moment) -> proto::ManifestProblem {
    let left = problem.due.map_or(Duration::ZERO, |due| due.since(now));
    proto::ManifestProblem {
        due_seconds: u32::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX),
        file: problem.file.clone(),
        line: problem.line,
        column: problem.column,
        field: problem.field.clone(),
        message: problem.message.clone(),
    }
}

pub(super) fn replica(known: KnownReplica, leader: &str) -> proto::Replica {
    let KnownReplica { address, identity, version, http_address, warning } = known;
    proto::Replica { leads: address == leader, identity, address, version, warning, http_address }
}

pub(super) fn other_cell((worker, found): (WorkerKey, OtherCell)) -> proto::OtherCell {
    proto::OtherCell {
        cluster: worker.cluster.to_string(),
        worker: worker.worker.to_string(),
        coordinator: found.coordinator,
        cell: found.cell.to_string(),
    }
}

pub(super) fn cluster(view: ClusterView) -> proto::Cluster {
    proto::Cluster {
        name: view.name.to_string(),
        max_jobs: view.jobs_max,
        max_jobs_per_worker: view.jobs_per_worker_max,
        committed: view.committed,
        running: view.running,
        granted: view.granted,
        workers: count(view.workers),
        connected: count(view.connected),
        draining: count(view.draining),
        failing: count(view.failing),
        names_wanted: count(view.names_wanted),
        lost: count(view.lost),
        unreported: count(view.unreported),
        streams: count(view.streams),
        streams_owned: count(view.streams_owned),
        held: view.held.unwrap_or_default(),
        is_class: view.is_class,
    }
}

pub(super) fn set(view: SetSummary) -> proto::StreamSet {
    proto::StreamSet {
        name: view.name.to_string(),
        cluster: view.cluster.to_string(),
        streams: count(view.streams),
        streams_owned: count(view.owned),
    }
}

pub(super) fn worker(view: WorkerView) -> proto::Worker {
    let presence = match view.presence {
        Presence::Connected => proto::Presence::Connected,
        Presence::Silent => proto::Presence::Silent,
        Presence::Lost => proto::Presence::Lost,
        Presence::Unreported => proto::Presence::Unreported,
    };
    let drain = match view.drain {
        DrainPhase::Working => proto::DrainPhase::Working,
        DrainPhase::Draining => proto::DrainPhase::Draining,
        DrainPhase::Leaving => proto::DrainPhase::Leaving,
    };
    proto::Worker {
        cluster: view.key.cluster.to_string(),
        name: view.key.worker.to_string(),
        presence: presence.into(),
        drain: drain.into(),
        drain_ordered: view.drain_ordered,
        incarnation: view.incarnation.map(|order::Incarnation(number)| number),
        generation: view.generation,
        silent_for_ms: view
            .silent_for
            .map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        granted: view.granted,
        in_effect: view.in_effect,
        running: view.running,
        committed: view.committed,
        wanted: view.wanted,
        pool_token: view.pool_token.map(|token| token.to_string()).unwrap_or_default(),
        streams: count(view.streams),
        address: view.address.map_or_else(String::new, |address| address.to_string()),
        documents_per_second: view.load.as_f64(),
        failure: view.failure.map_or_else(String::new, |failure| failure.to_string()),
        agent_version: view.agent_version.map_or_else(String::new, |version| version.to_string()),
        refused_agent: view
            .refused_agent
            .map_or_else(String::new, |refused| peer(refused.peer.as_deref())),
    }
}

/// Where a person finds an agent.
pub(super) fn peer(peer: Option<&str>) -> String {
    peer.unwrap_or("unknown").to_owned()
}

pub(super) fn pipeline_phase(phase: PipelinePhase) -> proto::PipelinePhase {
    match phase {
        PipelinePhase::Pending => proto::PipelinePhase::Pending,
        PipelinePhase::Plotted => proto::PipelinePhase::Plotted,
        PipelinePhase::Ready => proto::PipelinePhase::Ready,
        PipelinePhase::Broken => proto::PipelinePhase::Broken,
    }
}

pub(super) fn binding_phase(phase: BindingPhase) -> proto::BindingPhase {
    match phase {
        BindingPhase::Pending => proto::BindingPhase::Pending,
        BindingPhase::Ready => proto::BindingPhase::Ready,
        BindingPhase::DeadEnd => proto::BindingPhase::DeadEnd,
        BindingPhase::Unset => proto::BindingPhase::Unset,
    }
}

pub(super) fn class(view: &ClassView) -> proto::Class {
    proto::Class {
        name: view.name.to_string(),
        capacity: view.capacity.as_f64(),
        request: view.request.as_f64(),
        placed: view.placed.as_f64(),
        workers: view.workers,
        workers_needed: view.workers_needed,
        workers_wanted: view.workers_wanted,
        workers_min: view.workers_min,
        workers_max: view.workers_max,
        pipelines_waiting: count(view.waiting),
    }
}

pub(super) fn pipeline(view: PipelineView) -> proto::Pipeline {
    proto::Pipeline {
        name: view.name.to_string(),
        documents_per_second: view.load.as_f64(),
        phase: pipeline_phase(view.phase).into(),
        reason: view.reason,
        bindings: view.bindings.into_iter().map(binding).collect(),
    }
}

fn binding(view: BindingView) -> proto::Binding {
    proto::Binding {
        node: view.node.to_string(),
        class: view.class.to_string(),
        next: view.next.iter().map(ToString::to_string).collect(),
        phase: binding_phase(view.phase).into(),
        shares: view.shares.into_iter().map(share).collect(),
    }
}

fn share(view: ShareView) -> proto::Share {
    proto::Share {
        index: view.index,
        worker: view.worker.to_string(),
        documents_per_second: view.load.as_f64(),
        token: view.token.map(|token| token.to_string()).unwrap_or_default(),
        applied: view.applied,
        address: view.address.map_or_else(String::new, |address| address.to_string()),
        draining: view.draining,
    }
}

pub(super) fn stream(view: StreamView) -> proto::Stream {
    proto::Stream {
        set: view.key.set.to_string(),
        name: view.key.stream.to_string(),
        cluster: view.cluster.to_string(),
        weight: view.weight,
        dedicated: view.dedicated,
        planned: view.planned.map(|worker| worker.to_string()).unwrap_or_default(),
        claims: view.claims.into_iter().map(claim).collect(),
        reason: view.unplaced.unwrap_or_default().to_owned(),
    }
}

fn claim(view: ClaimView) -> proto::Claim {
    let phase = match view.phase {
        ClaimPhase::Held => proto::ClaimPhase::Held,
        ClaimPhase::Revoking => proto::ClaimPhase::Revoking,
        ClaimPhase::Lapsing => proto::ClaimPhase::Lapsing,
    };
    proto::Claim {
        worker: view.worker.worker.to_string(),
        cluster: view.worker.cluster.to_string(),
        token: view.token.to_string(),
        phase: phase.into(),
        timeless: view.timeless,
    }
}

pub(super) fn explanation(explanation: Explanation) -> proto::Explanation {
    let Explanation { summary, facts, next_step } = explanation;
    proto::Explanation { summary, facts, next_step }
}

/// A plan; `wait` estimates how long a worker runs more jobs than its pool allows.
pub(super) fn plan(
    plan: PlanView,
    wait: impl Fn(&PlannedPool) -> Option<JobWait>,
) -> proto::PlanResponse {
    let name = |worker: Option<WorkerName>| worker.map(|name| name.to_string()).unwrap_or_default();
    proto::PlanResponse {
        pools: plan
            .pools
            .into_iter()
            .map(|pool| proto::PlannedPool {
                wait: wait(&pool).map(|wait| job_wait(wait, pool.lost)),
                worker: pool.worker.to_string(),
                size: pool.size,
                committed: pool.committed,
                reason: pool.reason,
                lost: pool.lost,
            })
            .collect(),
        moves: plan
            .moves
            .into_iter()
            .map(|planned| proto::PlannedMove {
                set: planned.set.to_string(),
                stream: planned.stream.to_string(),
                from: name(planned.from),
                to: name(planned.to),
            })
            .collect(),
        unplaced: plan
            .unplaced
            .into_iter()
            .map(|(key, reason)| proto::UnplacedStream {
                set: key.set.to_string(),
                stream: key.stream.to_string(),
                reason,
            })
            .collect(),
        ..proto::PlanResponse::default()
    }
}

/// An estimate; without times for a lost worker, whose jobs may never end by themselves.
fn job_wait(wait: JobWait, is_lost: bool) -> proto::JobWait {
    proto::JobWait {
        jobs: wait.jobs,
        half_seconds: wait.half_seconds.filter(|_| !is_lost),
        most_seconds: wait.most_seconds.filter(|_| !is_lost),
        past_jobs: count(wait.past_jobs),
    }
}

pub(super) fn pipelines_plan(
    plan: PipelinesPlan,
) -> (Vec<proto::PlannedPipeline>, Vec<proto::PlannedClass>) {
    let pipelines = plan.pipelines.into_iter().map(planned_pipeline).collect();
    (pipelines, plan.classes.into_iter().map(planned_class).collect())
}

fn planned_pipeline(planned: PlannedPipeline) -> proto::PlannedPipeline {
    let phase = |phase| pipeline_phase(phase).into();
    proto::PlannedPipeline {
        name: planned.name.to_string(),
        before: planned.before.map(phase),
        after: planned.after.map(phase),
        reason: planned.reason,
        moves: planned.moves.into_iter().map(share_move).collect(),
    }
}

fn share_move(planned: ShareMove) -> proto::PlannedShareMove {
    let place = |SharePlace { worker, load }: SharePlace| proto::PlannedShare {
        class: worker.cluster.to_string(),
        worker: worker.worker.to_string(),
        documents_per_second: load.as_f64(),
    };
    proto::PlannedShareMove {
        node: planned.node.to_string(),
        index: planned.index,
        from: planned.from.map(place),
        to: planned.to.map(place),
    }
}

fn planned_class(change: ClassChange) -> proto::PlannedClass {
    proto::PlannedClass {
        before: change.before.as_ref().map(class),
        after: change.after.as_ref().map(class),
    }
}

/// Reads the assumptions of a what-if plan.
pub(super) fn what_if(request: &proto::PlanRequest) -> Result<WhatIf, AdminError> {
    if let Some(jobs_max) = request.max_jobs
        && jobs_max > JOBS_MAX
    {
        return Err(AdminError::Invalid(format!(
            "max_jobs: {jobs_max} is too large: use at most {JOBS_MAX}"
        )));
    }
    Ok(WhatIf {
        add: workers("add_workers", &request.add_workers)?,
        remove: workers("remove_workers", &request.remove_workers)?,
        jobs_max: request.max_jobs,
        desired: None,
    })
}

fn workers(field: &'static str, names: &[String]) -> Result<Vec<WorkerName>, AdminError> {
    if names.len() > WORKERS_MAX {
        let len = names.len();
        return Err(AdminError::Invalid(format!(
            "{field}: {len} names are too many: use at most {WORKERS_MAX}"
        )));
    }
    let mut workers = Vec::with_capacity(names.len());
    for name in names {
        workers.push(map::worker_name(field, name)?);
    }
    let mut sorted = workers.clone();
    sorted.sort();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(AdminError::Invalid(format!("{field}: {:?} is listed twice", twice[0])));
    }
    Ok(workers)
}
