//! The workload of a WorkerCluster: what it should be, and how it stands.

use crate::spec::manifest::WorkloadKind;

/// How a cluster's workload stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkloadState {
    /// Deployment or StatefulSet.
    pub(crate) kind: WorkloadKind,
    /// Its name, in the cluster's namespace.
    pub(crate) name: String,
    /// The replicas that maxJobs asks for.
    pub(crate) desired: u32,
    /// The replicas that its spec asks for: more than `desired` while a scale-in drains.
    pub(crate) replicas: u32,
    /// Pods of the newest template.
    pub(crate) updated: u32,
    /// Pods that are Ready.
    pub(crate) ready: u32,
    /// How far its rollout has come.
    pub(crate) rollout: Rollout,
    /// What keeps it from being as it should: a reason in one word, and a sentence for people.
    pub(crate) problem: Option<(&'static str, String)>,
}

/// How far a rollout has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rollout {
    /// Every pod is of the newest template, and available.
    Complete,
    /// Pods are being replaced, added or removed.
    Progressing,
    /// It makes no progress, for this reason.
    Stuck(String),
}
