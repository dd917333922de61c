//! Answers evictions. A pod that runs jobs is not evicted now: the answer is 429, so that clients
//! retry, as they do for a PodDisruptionBudget. A budget of our own would be a second one beside
//! the user's, and the API server evicts no pod under two. Since an eviction is a wish that the pod
//! goes, it starts the drain of the worker: its pod can be evicted when its last job has ended.
//!
//! A dry run gets the same answer and starts nothing. So does a review that may not be of the API
//! server: one without the key that only it knows (see [`super::caller_key`]), unless the port
//! takes nobody else.

use leasehold_driver::metrics::EvictionResult;
use leasehold_kube_api::names::DRAIN_FOR_EVICTION;

use super::admission::{Decision, Denial, EvictionRequest};
use super::caller_key::CallerKey;
use crate::pods::{Phase, PodFacts, Pods};

/// Answers evictions of pods.
#[derive(Clone, Debug)]
pub struct Evictions {
    /// The pods that are workers.
    pub pods: Pods,
    /// The key of the API server.
    pub key: CallerKey,
    /// Only API servers reach the port: they prove themselves by a client certificate.
    pub callers_are_proven: bool,
}

/// The decision on an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EvictionDecision {
    /// The API server evicts the pod, if no budget prevents it.
    Allowed,
    /// The pod stays for now.
    Refused(Denial),
}

impl Evictions {
    /// The decision on an eviction, of a caller with this key; `None` before the pods of the
    /// namespace were read.
    pub(super) async fn decide(
        &self,
        request: Option<EvictionRequest<'_>>,
        key: Option<&str>,
    ) -> Option<EvictionDecision> {
        let Some(request) = request else { return Some(EvictionDecision::Allowed) };
        let Some(seen) = self.pods.find(request.namespace, request.pod) else {
            let is_listed = self.pods.is_listed(request.namespace);
            return is_listed.then_some(EvictionDecision::Allowed);
        };
        // The label is written before the pod is granted its first job. This replica's watch may
        // not have shown it yet.
        let pod = match self.pods.read(&seen).await {
            Ok(Some(pod)) => pod,
            Ok(None) => return Some(EvictionDecision::Allowed),
            Err(problem) => {
                let (namespace, pod) = (request.namespace, request.pod);
                let message = "cannot read a pod: deciding as last seen";
                tracing::warn!(%problem, namespace, pod, message);
                PodFacts::clone(&seen)
            }
        };
        if !runs_jobs(&pod) {
            return Some(EvictionDecision::Allowed);
        }
        let is_proven = self.callers_are_proven || key.is_some_and(|key| self.key.is(key));
        let drains = pod.drain.is_some()
            || !request.is_dry_run && is_proven && self.start_drain(request, &pod).await;
        Some(EvictionDecision::refused(&pod, drains))
    }

    /// Whether the drain has started. If not, the client's next attempt starts it.
    async fn start_drain(&self, request: EvictionRequest<'_>, pod: &PodFacts) -> bool {
        let EvictionRequest { namespace, pod: name, by, .. } = request;
        match self.pods.mark_for_drain(pod, DRAIN_FOR_EVICTION).await {
            Ok(()) => {
                tracing::info!(namespace, pod = name, by, "an eviction starts a drain");
                true
            }
            Err(problem) => {
                let message = "cannot mark a pod for a drain";
                tracing::warn!(%problem, namespace, pod = name, by, message);
                false
            }
        }
    }
}

impl EvictionDecision {
    fn refused(pod: &PodFacts, drains: bool) -> Self {
        let name = &pod.pod.name;
        let what = if drains {
            "its worker takes no new jobs; try again until they have ended, as kubectl \
                 drain does by itself"
        } else {
            "try again when they have ended"
        };
        let message = format!("pod {name} runs jobs: {what}");
        Self::Refused(Denial { code: 429, reason: "TooManyRequests", message })
    }

    /// How it is counted.
    pub(super) fn kind(&self) -> EvictionResult {
        match self {
            Self::Allowed => EvictionResult::Allowed,
            Self::Refused(_) => EvictionResult::Refused,
        }
    }
}

impl From<EvictionDecision> for Decision {
    fn from(decision: EvictionDecision) -> Self {
        match decision {
            EvictionDecision::Allowed => Self::default(),
            EvictionDecision::Refused(denial) => Self { denial: Some(denial), ..Self::default() },
        }
    }
}

/// Whether an eviction could end a job. A pod that has not started or is over runs none, and one
/// that terminates already cannot be kept.
fn runs_jobs(pod: &PodFacts) -> bool {
    pod.busy && pod.is_active() && pod.phase != Phase::Pending
}
