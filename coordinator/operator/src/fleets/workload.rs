//! The workload of a fleet: its facts and its state. [`super::template`] has its desired form; only
//! [`super::scale_in`] decides that it gets smaller.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, StatefulSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use leasehold_coordinator_core::desired::workers_for;
use leasehold_injection::names::INJECT;
use leasehold_kube_api::names::{
    CLUSTER_LABEL, FIELD_MANAGER, GENERATION_ANNOTATION, MANAGED_BY_LABEL, TEMPLATE_DIGEST,
};
use leasehold_manifest::manifest::{WorkerClusterSpec, WorkloadKind};
use leasehold_platform_kube::pods::PodFacts;

use super::action::ObjectRef;
use super::fleet::Fleet;
use super::replicas::{ReplicasAt, ReplicasManager};
use super::scaling::DesiredScale;

/// The number of a Deployment's newest ReplicaSet, on the Deployment.
const REVISION_ANNOTATION: &str = "deployment.kubernetes.io/revision";
/// The part of a workload's pods that may be away at once, unless its strategy says otherwise.
const UNAVAILABLE_PERCENT: u32 = 25;

/// The state of a fleet's workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkloadState {
    /// Deployment or StatefulSet.
    pub(crate) kind: WorkloadKind,
    /// Its name, in the fleet's namespace.
    pub(crate) name: String,
    /// The desired replicas, from maxJobs or from the load of a class.
    pub(crate) desired: u32,
    /// The replicas that its spec asks for: more than `desired` while a scale-in drains.
    pub(crate) replicas: u32,
    /// Pods of the newest template.
    pub(crate) updated: u32,
    /// Pods that are Ready.
    pub(crate) ready: u32,
    /// How far its rollout has come.
    pub(crate) rollout: Rollout,
    /// Why its controller cannot create pods, in the API server's words.
    pub(crate) pods_refused: Option<String>,
    /// Its problem: a reason in one word, and a sentence.
    pub(crate) problem: Option<(&'static str, String)>,
    /// The limit that applies to `desired`, in the same form.
    pub(crate) limited: Option<(&'static str, String)>,
    /// Surplus workers that are kept: the others have no room for their shares.
    pub(crate) kept: u32,
    /// The manager that its replicas are left to.
    pub(crate) replicas_manager: Option<String>,
}

/// How far a rollout has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rollout {
    /// Every pod that the controller updates by itself is of the newest template, and all are
    /// available.
    Complete,
    /// Pods are being replaced, added or removed.
    Progressing,
    /// It makes no progress, for this reason.
    Stuck(StuckReason),
}

/// Why a rollout makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StuckReason {
    /// A user has paused it before its end.
    Paused,
    /// The reason that its controller reports.
    Reported(String),
}

impl fmt::Display for StuckReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("its rollout is paused"),
            Self::Reported(why) => f.write_str(why),
        }
    }
}

/// How the coordinator treats a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadRole {
    /// It is created from the fleet's template.
    Created,
    /// It existed, and its replicas follow the fleet.
    Scaled,
    /// It existed, and is not changed.
    Observed,
}

/// Names the workload of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkloadTarget {
    pub(super) kind: WorkloadKind,
    pub(super) name: String,
    pub(super) role: WorkloadRole,
}

/// The facts of a Deployment or a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkloadFacts {
    pub(super) kind: WorkloadKind,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// The UID of what controls it.
    pub(super) controller: Option<String>,
    /// The fleet in its labels, for which it was created.
    pub(super) created_for: Option<String>,
    pub(super) is_deleted: bool,
    pub(super) generation: i64,
    pub(super) observed_generation: i64,
    pub(super) replicas: u32,
    /// Pods, but for those of a Deployment that are terminating.
    pub(super) pods: u32,
    pub(super) updated: u32,
    pub(super) ready: u32,
    pub(super) available: u32,
    /// Pods that keep an earlier template until a user acts: all of a StatefulSet with the strategy
    /// `OnDelete`, otherwise those below its partition.
    pub(super) held_back: u32,
    /// How many of its pods may be away at once, by its own strategy; at least 1.
    pub(super) unavailable_max: u32,
    /// Why its rollout makes no progress.
    pub(super) stuck: Option<StuckReason>,
    /// Why its controller cannot create pods, in the API server's words: of a Deployment only,
    /// since a StatefulSet's controller says it in events.
    pub(super) pods_refused: Option<String>,
    /// Another manager that sets its replicas.
    pub(super) replicas_manager: Option<ReplicasManager>,
    /// The ordinal of a StatefulSet's first pod.
    pub(super) first_ordinal: u32,
    /// The fleet that the pods of its template belong to.
    pub(super) pods_cluster: Option<String>,
    /// Whether they opt in to injection, which assigns pods without the label to the only cluster.
    pub(super) pods_opt_in: bool,
    /// For a created workload: the digest and the generation of its template.
    pub(super) digest: Option<String>,
    pub(super) template_generation: u64,
}

/// The replicas that a cluster asks for.
pub(super) fn replicas(spec: &WorkerClusterSpec) -> u32 {
    let (max_jobs, per_worker) = spec.jobs();
    workers_for(max_jobs, per_worker)
}

/// The workload of a fleet; `None` if its pods come from elsewhere.
pub(super) fn target(fleet: &Fleet) -> Option<WorkloadTarget> {
    if fleet.template().is_some() {
        let kind = fleet.workload().map(|workload| workload.kind).unwrap_or_default();
        return Some(WorkloadTarget {
            kind,
            name: fleet.name().into(),
            role: WorkloadRole::Created,
        });
    }
    let found = fleet.workload_ref()?;
    let role = if found.scale { WorkloadRole::Scaled } else { WorkloadRole::Observed };
    Some(WorkloadTarget { kind: found.kind, name: found.name.clone(), role })
}

impl WorkloadTarget {
    /// The object, as actions name it.
    pub(super) fn reference(&self, namespace: &str) -> ObjectRef {
        let (kind, name) = (format!("{:?}", self.kind), self.name.clone());
        ObjectRef::Object { kind, namespace: namespace.to_owned(), name }
    }
}

impl WorkloadFacts {
    /// The facts of a Deployment.
    pub(super) fn of_deployment(object: &Deployment) -> Option<Self> {
        let spec = &object.spec;
        let status = object.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let is = |condition: &DeploymentCondition, type_: &str, status: &str| {
            condition.type_.as_deref() == Some(type_) && condition.status.as_deref() == Some(status)
        };
        let stuck = conditions.iter().find(|condition| {
            is(condition, "Progressing", "False")
                && condition.reason.as_deref() == Some("ProgressDeadlineExceeded")
        });
        let stuck = stuck.map(|condition| {
            let message = condition.message.clone();
            StuckReason::Reported(
                message.unwrap_or_else(|| "its progress deadline has passed".into()),
            )
        });
        let refused = conditions.iter().find(|condition| is(condition, "ReplicaFailure", "True"));
        // The revision is written with the first ReplicaSet, which a pause prevents as well.
        let revision = object.annotations().get(REVISION_ANNOTATION);
        let is_behind = status.updated_replicas < status.replicas || revision.is_none();
        let is_paused = spec.paused == Some(true) && is_behind;
        Some(Self {
            kind: WorkloadKind::Deployment,
            observed_generation: status.observed_generation.unwrap_or(0),
            replicas: count(spec.replicas.or(Some(1))),
            pods: count(status.replicas),
            updated: count(status.updated_replicas),
            ready: count(status.ready_replicas),
            available: count(status.available_replicas),
            unavailable_max: unavailable_max(
                spec.strategy.as_ref().and_then(|strategy| {
                    strategy.rolling_update.as_ref()?.max_unavailable.as_ref()
                }),
                count(spec.replicas.or(Some(1))),
            ),
            stuck: stuck.or_else(|| is_paused.then_some(StuckReason::Paused)),
            pods_refused: refused.and_then(|condition| condition.message.clone()),
            ..Self::of(&object.metadata, &spec.template)
        })
    }

    /// The facts of a StatefulSet.
    pub(super) fn of_stateful_set(object: &StatefulSet) -> Option<Self> {
        let spec = &object.spec;
        let status = object.status.clone().unwrap_or_default();
        let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
        // The controller reports no updated pods once all are updated.
        let all_updated = status.current_revision == status.update_revision;
        let updated = if all_updated { Some(status.replicas) } else { status.updated_replicas };
        let strategy = spec.update_strategy.as_ref();
        let rolling_update = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let is_on_delete =
            strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete"));
        let partition = rolling_update.and_then(|update| update.partition);
        Some(Self {
            kind: WorkloadKind::StatefulSet,
            observed_generation: status.observed_generation.unwrap_or(0),
            replicas: count(spec.replicas.or(Some(1))),
            pods: count(Some(status.replicas)),
            updated: count(updated),
            ready: count(status.ready_replicas),
            available: count(status.available_replicas),
            held_back: if is_on_delete { u32::MAX } else { count(partition) },
            unavailable_max: unavailable_max(
                rolling_update.and_then(|update| update.max_unavailable.as_ref()),
                count(spec.replicas.or(Some(1))),
            ),
            first_ordinal: count(first),
            ..Self::of(&object.metadata, &spec.template)
        })
    }

    fn of(meta: &ObjectMeta, template: &PodTemplateSpec) -> Self {
        let empty = BTreeMap::new();
        let labels = meta.labels.as_ref().unwrap_or(&empty);
        let annotations = meta.annotations.as_ref().unwrap_or(&empty);
        let pods = template.metadata.clone().unwrap_or_default();
        let made = labels.get(MANAGED_BY_LABEL).is_some_and(|by| by == FIELD_MANAGER);
        let owners = meta.owner_references.iter().flatten();
        let generation = pods
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(GENERATION_ANNOTATION));
        let label = |name: &str| pods.labels.as_ref().and_then(|labels| labels.get(name));
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            controller: owners
                .into_iter()
                .find(|owner| owner.controller == Some(true))
                .map(|owner| owner.uid.clone()),
            created_for: labels.get(CLUSTER_LABEL).filter(|_| made).cloned(),
            is_deleted: meta.deletion_timestamp.is_some(),
            generation: meta.generation.unwrap_or(0),
            replicas_manager: ReplicasManager::of(meta),
            pods_cluster: label(CLUSTER_LABEL).cloned(),
            pods_opt_in: label(INJECT).is_some_and(|value| value == "true"),
            digest: annotations.get(TEMPLATE_DIGEST).cloned(),
            template_generation: generation.and_then(|text| text.parse().ok()).unwrap_or(0),
            ..Self::default()
        }
    }

    /// Whether the fleet may write it: the fleet created it, or a deleted fleet of the same name
    /// left it behind.
    pub(super) fn is_owned_by(&self, fleet: &Fleet) -> bool {
        match &self.controller {
            Some(controller) => Some(controller) == fleet.metadata().uid.as_ref(),
            None => self.created_for.as_ref() == fleet.metadata().name.as_ref(),
        }
    }

    /// Whether a pod belongs to it.
    pub(super) fn owns(&self, pod: &PodFacts) -> bool {
        let Some(owner) = &pod.owner else { return false };
        match self.kind {
            WorkloadKind::StatefulSet => owner.kind == "StatefulSet" && owner.uid == self.uid,
            // A Deployment's ReplicaSets are named by their template's hash.
            WorkloadKind::Deployment => {
                let suffix = owner.name.strip_prefix(&self.name);
                let hash = suffix.and_then(|suffix| suffix.strip_prefix('-'));
                owner.kind == "ReplicaSet" && hash.is_some() && hash == pod.template_hash.as_deref()
            }
        }
    }

    /// Its replicas and its generation.
    pub(super) fn replicas_at(&self) -> ReplicasAt {
        ReplicasAt { replicas: self.replicas.into(), generation: self.generation }
    }

    /// How far its rollout has come, as `kubectl rollout status` counts.
    pub(super) fn rollout(&self) -> Rollout {
        if let Some(why) = &self.stuck {
            return Rollout::Stuck(why.clone());
        }
        let seen = self.observed_generation >= self.generation;
        let full = self.updated >= self.updated_wanted() && self.pods == self.replicas;
        if seen && full && self.available >= self.replicas {
            Rollout::Complete
        } else {
            Rollout::Progressing
        }
    }

    /// Whether its controller has yet to replace pods of an earlier template, or to read its newest
    /// spec.
    pub(super) fn is_rolling_out(&self) -> bool {
        let is_unread = self.observed_generation < self.generation;
        is_unread || self.updated < self.pods.min(self.updated_wanted())
    }

    /// How many pods its controller brings to the newest template by itself.
    fn updated_wanted(&self) -> u32 {
        self.replicas.saturating_sub(self.held_back)
    }
}

/// The state of a fleet's workload, with the number of surplus workers that are kept.
pub(super) fn state(
    fleet: &Fleet,
    target: &WorkloadTarget,
    facts: Option<&WorkloadFacts>,
    refused: Option<&str>,
    scale: &DesiredScale,
    kept: u32,
) -> WorkloadState {
    let none = WorkloadFacts::default();
    let seen = facts.unwrap_or(&none);
    let problem = problem(fleet, target, facts)
        .or_else(|| refused.map(|why| ("WorkloadRefused", why.to_owned())));
    WorkloadState {
        kind: target.kind,
        name: target.name.clone(),
        desired: scale.replicas,
        replicas: seen.replicas,
        updated: seen.updated,
        ready: seen.ready,
        rollout: facts.map_or(Rollout::Progressing, WorkloadFacts::rollout),
        pods_refused: seen.pods_refused.clone(),
        problem,
        limited: scale.limited.clone(),
        kept,
        replicas_manager: None,
    }
}

/// The problem of a workload, as far as its facts show one.
pub(super) fn problem(
    fleet: &Fleet,
    target: &WorkloadTarget,
    facts: Option<&WorkloadFacts>,
) -> Option<(&'static str, String)> {
    let (kind, name) = (target.kind, &target.name);
    match (target.role, facts) {
        (WorkloadRole::Created, None) => None,
        (WorkloadRole::Created, Some(facts)) => (!facts.is_owned_by(fleet)).then(|| {
            let text = format!(
                "{kind:?} {name} exists and does not belong to this {}: it is not changed; rename \
                 or delete one of the two, or name it in workloadRef",
                fleet.kind()
            );
            ("WorkloadNotOwned", text)
        }),
        (WorkloadRole::Scaled | WorkloadRole::Observed, None) => Some((
            "WorkloadNotFound",
            format!(
                "{kind:?} {name} does not exist in this namespace: create it, or correct \
                 workloadRef"
            ),
        )),
        (WorkloadRole::Scaled | WorkloadRole::Observed, Some(facts)) => {
            let own = fleet.name();
            let are_its_workers = match &facts.pods_cluster {
                Some(cluster) => cluster == own,
                None => facts.pods_opt_in,
            };
            (!are_its_workers).then(|| {
                let text = format!(
                    "the pod template of {kind:?} {name} lacks the label {CLUSTER_LABEL}: {own}, \
                     so its pods are not workers of this {}: add the label",
                    fleet.noun()
                );
                ("PodLabelMissing", text)
            })
        }
    }
}

/// How many of `replicas` pods may be away at once: as many as the strategy says, a quarter unless
/// it does, rounded down as Kubernetes does; at least 1, so that nodes can be emptied.
pub(super) fn unavailable_max(given: Option<&IntOrString>, replicas: u32) -> u32 {
    let of_replicas = |percent: u32| u64::from(replicas) * u64::from(percent) / 100;
    let pods = match given {
        Some(IntOrString::Int(pods)) => u64::from(count(Some(*pods))),
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|percent| percent.parse().ok());
            of_replicas(percent.unwrap_or(UNAVAILABLE_PERCENT))
        }
        None => of_replicas(UNAVAILABLE_PERCENT),
    };
    u32::try_from(pods.max(1)).unwrap_or(u32::MAX)
}

fn count(number: Option<i32>) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
