//! What pods may hold, written to them and read from them. Every write is bound to a UID, so that
//! nothing is written to a later pod of that name.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use leasehold_coordinator_core::event::{Event, Exposure};
use leasehold_types::WorkerKey;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::exposure;
use super::super::names::{
    BUSY_LABEL, CLUSTER_LABEL, DO_NOT_DISRUPT_ANNOTATION, EXPOSURE_ANNOTATION, FIELD_MANAGER,
    SAFE_TO_EVICT_ANNOTATION, TRUE,
};
use super::facts::{PodName, version};
use super::roll::{Listed, Writing};
use super::{PodFacts, Pods};
use crate::clock;

/// Pods that are written at once.
const WRITTEN_AT_ONCE_MAX: usize = 16;
/// How long a write may take.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// How long a list may take.
const LIST_WITHIN: Duration = Duration::from_secs(10);
/// What autoscalers of nodes heed beside the label: cluster-autoscaler and Karpenter.
const KEEP_ANNOTATIONS: [(&str, &str); 2] =
    [(SAFE_TO_EVICT_ANNOTATION, "false"), (DO_NOT_DISRUPT_ANNOTATION, TRUE)];

impl Pods {
    /// Every worker that may hold anything: of pods that are there as the API server has them now
    /// and are not over, and of pods that vanished while they may have run. A leader calls it
    /// after it has taken its epoch.
    ///
    /// # Errors
    /// Where the API server does not answer: try again.
    pub(crate) async fn list_exposed(&self) -> anyhow::Result<BTreeMap<WorkerKey, Exposure>> {
        let mut listed = BTreeMap::new();
        for scope in self.0.scopes() {
            let api = self.0.api(scope.as_deref());
            // Without a resource version the API server asks its store: what was written before
            // is on the list.
            let params = ListParams::default().labels(CLUSTER_LABEL);
            let pods = timeout(LIST_WITHIN, api.list_metadata(&params)).await??;
            for pod in pods.items {
                let (Some(namespace), Some(uid)) = (pod.namespace(), pod.uid()) else { continue };
                let exposures = exposure::read(pod.annotations());
                let version = version(pod.resource_version().as_deref());
                let name = PodName { namespace, name: pod.name_any() };
                listed.insert(name, Listed { uid, version, exposures });
            }
        }
        let exposed = self.0.roll().list(listed, clock::now());
        self.0.has_changed();
        Ok(exposed)
    }

    /// Writes down what these workers may hold; one answer an entry: whether that is done. It is
    /// done, too, where no pod is left to write to: the worker is then said to be gone first.
    /// It is not where the pod vanished and may still run.
    pub(crate) async fn expose(&self, entries: &[(WorkerKey, Exposure)]) -> Vec<bool> {
        // Owned entries: futures over borrowed ones are not `Send` for every lifetime.
        let owned = entries.iter().cloned().enumerate();
        let writes = owned.map(|(index, (key, exposure))| async move {
            (index, self.expose_one(&key, &exposure).await)
        });
        let mut written = vec![false; entries.len()];
        let mut writes = std::pin::pin!(stream::iter(writes).buffer_unordered(WRITTEN_AT_ONCE_MAX));
        while let Some((index, done)) = writes.next().await {
            written[index] = done;
        }
        written
    }

    /// Strikes what is written down for these workers. What fails stays written: it is more than
    /// they hold, which is safe.
    pub(crate) async fn conceal(&self, keys: &[WorkerKey]) {
        let writes = keys.iter().cloned().map(|key| async move {
            let Some(name) = PodName::of(&key) else { return };
            let facts = self.0.roll().find(&name).cloned();
            let Some(facts) = facts.filter(|facts| facts.exposures.contains_key(&key.cluster))
            else {
                return;
            };
            let mut exposures = facts.exposures.clone();
            exposures.remove(&key.cluster);
            let text = exposure::text(&exposures);
            let mut metadata = match exposures.is_empty() {
                true => busy_metadata(false),
                false => json!({}),
            };
            metadata["annotations"][EXPOSURE_ANNOTATION] = json!(text);
            let concealed = Writing::Concealed(key.cluster.clone());
            if let Some(version) = self.write(&facts, metadata).await {
                self.0.roll().wrote(&facts.pod, &facts.uid, version, &concealed);
            }
        });
        stream::iter(writes).buffer_unordered(WRITTEN_AT_ONCE_MAX).collect::<()>().await;
    }

    async fn expose_one(&self, key: &WorkerKey, exposure: &Exposure) -> bool {
        let Some(name) = PodName::of(key) else { return false };
        let (facts, haunted) = {
            let roll = self.0.roll();
            (roll.find(&name).cloned(), roll.is_haunted(&name))
        };
        let Some(facts) = facts.filter(|facts| !facts.over) else {
            // Gone before this worker was said to be: then it is said again, before it could be
            // granted anything.
            let gone = || self.0.events.send(Event::Gone(vec![key.clone()]));
            return !haunted && gone().await.is_ok();
        };
        let mut exposures = facts.exposures.clone();
        exposures.insert(key.cluster.clone(), exposure.clone());
        let mut metadata = match exposure.jobs_max > 0 {
            true => busy_metadata(true),
            false => json!({}),
        };
        metadata["annotations"][EXPOSURE_ANNOTATION] = json!(exposure::text(&exposures));
        let Some(version) = self.write(&facts, metadata).await else { return false };
        let exposed = Writing::Exposed(key.cluster.clone(), exposure.clone());
        self.0.roll().wrote(&facts.pod, &facts.uid, version, &exposed);
        true
    }

    /// Marks a pod as busy, or as idle; returns whether that is done.
    pub(crate) async fn mark_busy(&self, facts: &PodFacts, busy: bool) -> bool {
        self.write(facts, busy_metadata(busy)).await.is_some()
    }

    /// Patches a pod's metadata; gives the version that it has by that.
    async fn write(&self, facts: &PodFacts, mut metadata: Value) -> Option<u64> {
        // The API server refuses a patch that would change the UID: it is another pod then.
        metadata["uid"] = json!(facts.uid);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let api: Api<Pod> = self.0.api(Some(&facts.pod.namespace));
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        let write = api.patch_metadata(&facts.pod.name, &params, &patch);
        let PodName { namespace, name } = &facts.pod;
        match timeout(WRITE_WITHIN, write).await {
            Ok(Ok(pod)) => Some(version(pod.resource_version().as_deref())),
            Ok(Err(error)) => {
                tracing::warn!(%error, namespace, pod = name, "pod not written");
                None
            }
            Err(_) => {
                tracing::warn!(namespace, pod = name, "pod not written: no answer");
                None
            }
        }
    }
}

fn busy_metadata(busy: bool) -> Value {
    let label = busy.then_some(TRUE);
    let annotations: serde_json::Map<_, _> = KEEP_ANNOTATIONS
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(busy.then_some(*value))))
        .collect();
    json!({ "labels": { BUSY_LABEL: label }, "annotations": annotations })
}
