//! The views that people see of the core: plain copies, each with its reason.

use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{DrainPhase, WorkerFailure};
use leasehold_types::share::WorkerAddress;
use leasehold_types::{
    AgentId, ClusterName, Epoch, Incarnation, Load, NodeName, PipelineName, SetName, StreamKey,
    StreamName, Token, Version, WorkerKey, WorkerName,
};

use crate::desired::{Cluster, Desired, RolloutOrder};
use crate::event::KnownLeader;

/// A cluster in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// Its name.
    pub name: ClusterName,
    /// The budget.
    pub jobs_max: u32,
    /// The most that one worker takes.
    pub jobs_per_worker_max: u32,
    /// Upper bound of the slots that workers are using.
    pub committed: u32,
    /// Jobs that run, as reported.
    pub running: u32,
    /// Slots granted to workers that take jobs.
    pub granted: u32,
    /// Workers known, by phase.
    pub workers: usize,
    /// Of these, connected.
    pub connected: usize,
    /// Of these, draining.
    pub draining: usize,
    /// Of these, connected, but their workers fail.
    pub failing: usize,
    /// Of these, those whose name another agent wants too, which is refused.
    pub names_wanted: usize,
    /// Of these, silent for longer than their leases.
    pub lost: usize,
    /// Workers of a predecessor's time that have not reported to this leader.
    pub unreported: usize,
    /// Streams of the sets that run on it.
    pub streams: usize,
    /// Of these, owned.
    pub streams_owned: usize,
    /// Why it plans nothing at present; none if it plans.
    pub held: Option<String>,
    /// It is a worker class, which has no budget.
    pub is_class: bool,
}

impl ClusterView {
    /// Whether its workers only own streams.
    pub(crate) fn runs_no_job(&self) -> bool {
        !self.is_class && self.jobs_max == 0 && self.committed == 0 && self.running == 0
    }
}

/// A stream set in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetView {
    /// Its name.
    pub name: SetName,
    /// The cluster that it runs on.
    pub cluster: ClusterName,
    /// Its streams.
    pub streams: usize,
    /// Of these, with an owner.
    pub owned: usize,
    /// Of these, not owned by the planned worker.
    pub moving: usize,
    /// Of these, without a planned worker: a rule keeps them from every worker.
    pub unplaced: usize,
    /// Workers that own streams of the set, or are to own some.
    pub workers: usize,
    /// Of these, those whose agents have acknowledged exactly the planned streams.
    pub workers_current: usize,
    /// A digest of the plan, which differs if the planned owners differ.
    pub digest: u64,
    /// Whether its cluster is on hold, so that nothing is planned there at present.
    pub held: bool,
}

/// A stream set in the figures that need no look at its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSummary {
    /// Its name.
    pub name: SetName,
    /// The cluster that it runs on.
    pub cluster: ClusterName,
    /// Its streams.
    pub streams: usize,
    /// Of these, owned.
    pub owned: usize,
}

/// A worker as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Its cluster and name.
    pub key: WorkerKey,
    /// Connected, silent, lost or unreported.
    pub presence: Presence,
    /// Working, draining or leaving.
    pub drain: DrainPhase,
    /// Why it takes nothing, if it does not drain but fails its check.
    pub failure: Option<WorkerFailure>,
    /// Whether a drain was ordered through the admin API.
    pub drain_ordered: bool,
    /// The cluster's deadline of drains, if it has drained for longer.
    pub drain_overdue: Option<Duration>,
    /// The identity of its agent, where names are kept.
    pub agent: Option<AgentId>,
    /// Its agent's incarnation; none where it has not reported to this leader.
    pub incarnation: Option<Incarnation>,
    /// Its rollout generation.
    pub generation: u64,
    /// Time since its last report or beat.
    pub silent_for: Option<Duration>,
    /// The pool size last granted.
    pub granted: u32,
    /// The pool size in effect, as reported.
    pub in_effect: u32,
    /// Jobs that run, as reported; none if unknown.
    pub running: Option<u32>,
    /// Upper bound of the slots that it is using.
    pub committed: u32,
    /// The pool size that the plan wants for it.
    pub wanted: u32,
    /// The pool lease's token.
    pub pool_token: Option<Token>,
    /// Streams that it owns; shares of pipelines count.
    pub streams: usize,
    /// The load that its shares of pipelines add up to.
    pub load: Load,
    /// Its address, as its agent says.
    pub address: Option<WorkerAddress>,
    /// The version of its agent's build; none if its agent has not said it to this leader.
    pub agent_version: Option<Version>,
    /// Another agent that wants its name, and is refused.
    pub refused_agent: Option<RefusedAgentView>,
}

/// An agent that was refused lately because another one has its worker's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedAgentView {
    /// Where a person finds it; none if it is not known.
    pub peer: Option<Arc<str>>,
    /// Time since it last said hello.
    pub ago: Duration,
}

impl WorkerView {
    /// Whether it drains, or is to drain. One that only fails its check does not.
    #[must_use]
    pub fn drains(&self) -> bool {
        self.drain_ordered || (self.drain != DrainPhase::Working && self.failure.is_none())
    }

    /// Whether its agent is connected, and says that the worker fails.
    pub(crate) fn is_failing(&self) -> bool {
        self.presence == Presence::Connected && self.failure.is_some()
    }

    /// Whether its agent is connected and of an older build than this one. One that says no version
    /// is older than the first build that did.
    pub(crate) fn has_older_agent(&self) -> bool {
        self.presence == Presence::Connected && self.agent_version < Some(Version::own())
    }
}

/// Whether a worker is connected, silent, lost or unreported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its agent is connected and has reported.
    Connected,
    /// It is not connected or silent, for less than its leases last.
    Silent,
    /// It has been silent for longer.
    Lost,
    /// It was known to a predecessor and has not reported to this leader.
    Unreported,
}

/// A stream as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamView {
    /// The cluster that its set runs on.
    pub cluster: ClusterName,
    /// The set and the stream.
    pub key: StreamKey,
    /// Its weight.
    pub weight: u32,
    /// Whether it wants a worker of its own.
    pub dedicated: bool,
    /// Its planned worker.
    pub planned: Option<WorkerName>,
    /// The rule that keeps it from every worker, if one does.
    pub unplaced: Option<&'static str>,
    /// Every worker that may hold a lease on it; more than one only after conflicting reports.
    pub claims: Vec<ClaimView>,
}

/// A stream lease that may be in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimView {
    /// Who holds it.
    pub worker: WorkerKey,
    /// Its token.
    pub token: Token,
    /// Owned, revoked, or no longer renewed.
    pub phase: ClaimPhase,
    /// Never freed by time.
    pub timeless: bool,
}

/// The phase of a stream lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPhase {
    /// It is owned.
    Held,
    /// It was revoked; renewals still cover it.
    Revoking,
    /// It was revoked, and ends with its time.
    Lapsing,
}

/// A worker class in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassView {
    /// Its name.
    pub name: ClusterName,
    /// The load that one worker can take.
    pub capacity: Load,
    /// The load that it must process, that of Pending pipelines included. Every replica knows it.
    pub request: Load,
    /// Of this, the load that workers are chosen for. Only a leader knows this and the fields
    /// below.
    pub placed: Load,
    /// Workers that can take shares now.
    pub workers: u32,
    /// The fewest workers that the planner packs all its pipelines into.
    pub workers_needed: u32,
    /// The number of workers by target utilisation and packing, within the class's bounds.
    pub workers_wanted: u32,
    /// The least workers.
    pub workers_min: u32,
    /// The most workers.
    pub workers_max: u32,
    /// Pipelines that wait for workers of this class.
    pub waiting: usize,
    /// The most additional workers that one of these needs.
    pub short: u32,
}

/// A pipeline as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineView {
    /// Its name.
    pub name: PipelineName,
    /// The load that its workers serve, or, where it is not in force, that of its manifest.
    pub load: Load,
    /// Its state.
    pub phase: PipelinePhase,
    /// Why it is in that state, or what it waits for (which class, and how many workers more);
    /// empty where it is Ready and nothing waits.
    pub reason: String,
    /// The class that it waits for, and how many workers of it more, where it does.
    pub waits: Vec<(ClusterName, u32)>,
    /// One for each node, by name.
    pub bindings: Vec<BindingView>,
}

/// The state of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PipelinePhase {
    /// It waits for workers; its bindings are Unset.
    Pending,
    /// Its workers are chosen; some binding is not Ready.
    Plotted,
    /// All its bindings are Ready.
    Ready,
    /// A worker of it was lost, and others are not chosen yet.
    Broken,
}

/// A node of a pipeline, and the workers that serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingView {
    /// The node.
    pub node: NodeName,
    /// Its class.
    pub class: ClusterName,
    /// The nodes that documents go to.
    pub next: Vec<NodeName>,
    /// Its state.
    pub phase: BindingPhase,
    /// The shares, by index. A share whose worker is another from now on is listed with the old
    /// worker for as long as that may hold it.
    pub shares: Vec<ShareView>,
}

/// The state of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BindingPhase {
    /// Its workers are chosen, and do not all serve it yet.
    Pending,
    /// All its workers serve it.
    Ready,
    /// A worker of it was lost.
    DeadEnd,
    /// No workers are chosen for it.
    Unset,
}

/// What one worker takes of a node's load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareView {
    /// Which of the node's shares it is.
    pub index: u32,
    /// The worker.
    pub worker: WorkerName,
    /// Its load.
    pub load: Load,
    /// The token of its lease; none where it has none yet.
    pub token: Option<Token>,
    /// The worker's agent has acknowledged it, so documents may be sent to the worker.
    pub applied: bool,
    /// The worker's address, as its agent says.
    pub address: Option<WorkerAddress>,
    /// The worker drains, or has been asked for the share: it gets documents only if no other
    /// worker serves the node.
    pub draining: bool,
}

/// An explanation: the facts in the order in which they decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The answer in one sentence.
    pub summary: String,
    /// The facts that it rests on.
    pub facts: Vec<String>,
    /// What to do, with the command to type where there is one; empty where nothing is to be done.
    pub next_step: String,
}

/// A replica's leadership as its core sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It leads this term.
    Leader(Epoch),
    /// It stands by; the leader, where it is known.
    Standby(Option<KnownLeader>),
}

/// Workers to add and remove, another budget and another desired state, for a plan that is not
/// applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// Workers that join, of the newest generation.
    pub add: Vec<WorkerName>,
    /// Workers that leave.
    pub remove: Vec<WorkerName>,
    /// Another `maxJobs`.
    pub jobs_max: Option<u32>,
    /// Another desired state than the one that is in force.
    pub desired: Option<Arc<Desired>>,
}

impl WhatIf {
    /// The budget of a cluster, and the most that one worker takes, where `spec` is in force.
    pub(crate) fn budget(&self, name: &ClusterName, spec: &Cluster) -> (u32, u32) {
        let (jobs_max, per_worker_max) = match &self.desired {
            None => (spec.jobs_max, spec.jobs_per_worker_max),
            Some(desired) => match desired.clusters.get(name) {
                Some(spec) => (spec.jobs_max, spec.jobs_per_worker_max),
                None => (0, spec.jobs_per_worker_max),
            },
        };
        (self.jobs_max.unwrap_or(jobs_max), per_worker_max)
    }

    /// Which workers of a cluster get slots first, where `spec` is in force.
    pub(crate) fn rollout_order(&self, name: &ClusterName, spec: &Cluster) -> RolloutOrder {
        let planned = self.desired.as_ref().and_then(|desired| desired.clusters.get(name));
        planned.map_or(spec.rollout_order, |planned| planned.rollout_order)
    }
}

/// The plan under a [`WhatIf`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanView {
    /// The pools, by worker.
    pub pools: Vec<PlannedPool>,
    /// Streams that would change their worker: the stream, from, to (none if a rule keeps it from
    /// every worker, or the cluster would not have it any more).
    pub moves: Vec<PlannedMove>,
    /// Streams without a worker, with the reason.
    pub unplaced: Vec<(StreamKey, String)>,
}

/// A worker's pool under a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPool {
    /// The worker.
    pub worker: WorkerName,
    /// Its pool size.
    pub size: u32,
    /// Upper bound of the slots that it is using now.
    pub committed: u32,
    /// Why it gets no larger one; empty if it gets the most per worker.
    pub reason: String,
    /// It is lost: its jobs may never end by themselves.
    pub lost: bool,
}

/// All pipelines and classes that would be others under another desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelinesPlan {
    /// The pipelines, by name.
    pub pipelines: Vec<PlannedPipeline>,
    /// The classes, by name.
    pub classes: Vec<ClassChange>,
}

/// A pipeline that would be another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPipeline {
    /// Its name.
    pub name: PipelineName,
    /// Its state: Ready if workers are chosen for it, or Pending or Broken. None where it is new.
    pub before: Option<PipelinePhase>,
    /// The state that it would reach, in the same terms. None where it goes.
    pub after: Option<PipelinePhase>,
    /// Why it would not be Ready, or why its former spec would stay in force; empty otherwise.
    pub reason: String,
    /// The shares that would be others, by node and index.
    pub moves: Vec<ShareMove>,
}

/// A share that would have another worker or load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMove {
    /// Its node.
    pub node: NodeName,
    /// Its index.
    pub index: u32,
    /// Where it is planned now, if it is.
    pub from: Option<SharePlace>,
    /// Where it would be planned, if it would.
    pub to: Option<SharePlace>,
}

/// Where a share is planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharePlace {
    /// The worker.
    pub worker: WorkerKey,
    /// The load.
    pub load: Load,
}

/// A class that would be another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassChange {
    /// As it is; none where it is new.
    pub before: Option<ClassView>,
    /// As it would be; none where it goes.
    pub after: Option<ClassView>,
}

/// A stream that would change its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMove {
    /// The set.
    pub set: SetName,
    /// The stream.
    pub stream: StreamName,
    /// From this worker, if it had one.
    pub from: Option<WorkerName>,
    /// To this worker, if one may have it.
    pub to: Option<WorkerName>,
}

impl std::fmt::Display for PipelinePhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pending => "Pending",
            Self::Plotted => "Plotted",
            Self::Ready => "Ready",
            Self::Broken => "Broken",
        })
    }
}

impl std::fmt::Display for BindingPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pending => "Pending",
            Self::Ready => "Ready",
            Self::DeadEnd => "DeadEnd",
            Self::Unset => "Unset",
        })
    }
}
