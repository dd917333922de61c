//! Reads and writes the exposures on pods. Each write carries the UID and resourceVersion of the
//! pod that it was computed from, so that it cannot hit a later pod of that name or overwrite a
//! later change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt};
use leasehold_coordinator_core::campaign::{self, EntryOutcome, Listing, Namespaces};
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::exposure::{Entry, SetScope};
use leasehold_driver::clock;
use leasehold_kube_api::names::{CLUSTER_LABEL, DRAIN_ANNOTATION, EXPOSED_LABEL, FIELD_MANAGER};
use leasehold_types::{Epoch, WorkerKey};
use serde_json::{Value, json};

use super::busy_mark::BusyMark;
use super::exposure_annotation::{self, ENTRIES_MAX};
use super::facts::{PodName, version};
use super::patch::{ObservedPod, PatchDecision, PodPatch};
use super::store::Listed;
use super::{PodChange, PodFacts, Pods};
use crate::api_call::{ApiError, CALL_TIMEOUT, call, call_together};

/// The timeout of a call that a webhook makes: two of them fit into the API server's timeout.
const WEBHOOK_CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The most attempts of one write after conflicts.
const TRIES_MAX: usize = 3;
/// The most pods of one page of a list: their annotations may have 256 KiB each.
const PAGE_PODS: u32 = 250;
/// The timeout of one page. A list has none, so that many pods make an election longer and do not
/// prevent it.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most workers that one warning names.
const NAMED_MAX: usize = 5;

impl Pods {
    /// Every worker of these namespaces that may hold anything: workers of the pods that the API
    /// server lists and that have not finished, and of pods that vanished while they may have run.
    /// A leader calls it after it has taken its epoch. A namespace that the API server forbids to
    /// list is left out: only its own workers wait for the right.
    ///
    /// # Errors
    /// If the API server does not answer. The caller retries.
    pub async fn list_exposed(&self, namespaces: &Namespaces) -> anyhow::Result<Listing> {
        let mut listed = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        let is_wanted = |namespace: Option<&str>| match namespaces {
            Namespaces::All => true,
            Namespaces::Only(names) => namespace.is_some_and(|namespace| names.contains(namespace)),
        };
        for scope in self.0.scopes().into_iter().filter(|scope| is_wanted(scope.as_deref())) {
            // A pod that lost its cluster label still has the exposed label if it may hold
            // anything. A pod with both may lose either one between the lists.
            for label in [CLUSTER_LABEL, EXPOSED_LABEL] {
                let pods = match (self.list(scope.as_deref(), label).await, &scope) {
                    (Ok(pods), _) => pods,
                    (Err(error), Some(namespace))
                        if error.downcast_ref().is_some_and(ApiError::is_forbidden) =>
                    {
                        unreadable.insert(namespace.clone());
                        break;
                    }
                    (Err(error), _) => return Err(error),
                };
                for (name, pod) in pods {
                    let known = listed.get(&name).map_or(0, |known: &Listed| known.version);
                    if known <= pod.version {
                        listed.insert(name, pod);
                    }
                }
            }
        }
        let mut exposed = self.0.store().list(listed, clock::now());
        exposed.retain(|key, _| {
            let namespace = key.cluster.parts().0;
            is_wanted(namespace) && !namespace.is_some_and(|name| unreadable.contains(name))
        });
        self.0.send_changes([PodChange::Listed]);
        self.0.has_changed();
        warn_of_unlimited(&exposed);
        Ok(Listing { exposed, unreadable })
    }

    /// The pods with a label in one namespace, or in all, by a consistent read.
    async fn list(
        &self,
        namespace: Option<&str>,
        label: &str,
    ) -> anyhow::Result<Vec<(PodName, Listed)>> {
        // Without a resource version the API server reads from etcd, so the list has every earlier
        // write. Later pages are of the revision of the first one.
        let mut params = ListParams::default().labels(label).limit(PAGE_PODS);
        let api = self.0.api(namespace);
        let whose = || match namespace {
            Some(namespace) => format!("pods of namespace {namespace} (--watch-namespace)"),
            None => "pods of all namespaces".to_owned(),
        };
        let mut listed = Vec::new();
        loop {
            let page = call(PAGE_TIMEOUT, api.list_metadata(&params)).await.with_context(whose)?;
            listed.extend(page.items.iter().filter_map(|pod| {
                let ObservedPod { uid, version, exposures, .. } = observed(pod)?;
                let name = PodName { namespace: pod.namespace()?, name: pod.name_any() };
                Some((name, Listed { uid, version, exposures }))
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(listed),
            }
        }
    }

    /// Changes a worker's entry as a leader of this term. If the pod no longer exists, the write
    /// succeeds after the worker is reported gone; it fails if the pod vanished and may still run.
    /// A remove that fails leaves more in the entry than the worker holds.
    pub async fn write_entry(&self, epoch: Epoch, attempt: campaign::EntryAttempt) -> EntryOutcome {
        let key = attempt.change.key().clone();
        let Some(name) = PodName::of(&key) else { return EntryOutcome::Failed };
        let (facts, has_tombstone) = {
            let store = self.0.store();
            (store.find(&name).cloned(), store.has_tombstone(&name))
        };
        let facts = facts.filter(|facts| !facts.over);
        match (facts, &attempt.change) {
            (Some(facts), _) => {
                self.write(&facts, &PodPatch::Entry(key.cluster, epoch, attempt)).await
            }
            (None, campaign::EntryChange::Unregister(_)) => EntryOutcome::Done,
            (None, campaign::EntryChange::Register(..)) if has_tombstone => EntryOutcome::Failed,
            (None, campaign::EntryChange::Register(..)) => {
                // The pod was gone before the worker appeared: report it again before it could be
                // granted anything.
                match self.0.events.send(Event::Gone(vec![key])).await {
                    Ok(()) => EntryOutcome::Done,
                    Err(_) => EntryOutcome::Failed,
                }
            }
        }
    }

    /// Marks a pod as busy or idle; returns false if the pod has changed meanwhile.
    ///
    /// # Errors
    /// If the API server rejects the write or does not answer.
    pub async fn mark_busy(&self, facts: &PodFacts, busy: bool) -> Result<bool, ApiError> {
        let change = if busy { &PodPatch::Busy } else { &PodPatch::Idle };
        let written = call_together(CALL_TIMEOUT, self.try_write(facts, change)).await?;
        Ok(written == EntryOutcome::Done)
    }

    /// Reads a pod; `None` if it no longer exists.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub(crate) async fn read(&self, seen: &PodFacts) -> Result<Option<PodFacts>, ApiError> {
        let api = self.0.api(Some(&seen.pod.namespace));
        let pod = call(WEBHOOK_CALL_TIMEOUT, api.get_opt(&seen.pod.name)).await?;
        Ok(pod.as_ref().and_then(PodFacts::new).filter(|pod| pod.uid == seen.uid))
    }

    /// Writes why a pod is to be drained, unless the pod has changed.
    ///
    /// # Errors
    /// If the API server rejects the write or does not answer.
    pub(crate) async fn mark_for_drain(&self, pod: &PodFacts, why: &str) -> Result<(), ApiError> {
        let api = self.0.api(Some(&pod.pod.namespace));
        let metadata = json!({
            "uid": pod.uid,
            "resourceVersion": pod.version.to_string(),
            "annotations": { DRAIN_ANNOTATION: why },
        });
        call(WEBHOOK_CALL_TIMEOUT, patch(&api, &pod.pod.name, metadata)).await.map(drop)
    }

    async fn write(&self, facts: &PodFacts, change: &PodPatch) -> EntryOutcome {
        match call_together(CALL_TIMEOUT, self.try_write(facts, change)).await {
            Ok(written) => written,
            Err(error) => self.failed(&facts.pod, &format!("cannot write a pod: {error}")),
        }
    }

    /// Warns of a write that fails. It is tried again soon, so not of each try.
    fn failed(&self, pod: &PodName, why: &str) -> EntryOutcome {
        let PodName { namespace, name } = pod;
        if self.0.failed_writes.allows(pod.clone()) {
            tracing::warn!(namespace, pod = name, "{why}");
        } else {
            tracing::debug!(namespace, pod = name, "{why}");
        }
        EntryOutcome::Failed
    }

    /// Tries a change on the observed version of the pod, then on newer ones. It decides each time
    /// again whether to write: a successor may have written the entry.
    async fn try_write(
        &self,
        facts: &PodFacts,
        change: &PodPatch,
    ) -> Result<EntryOutcome, ApiError> {
        let api: Api<Pod> = self.0.api(Some(&facts.pod.namespace));
        let name = &facts.pod.name;
        let (uid, exposures) = (facts.uid.clone(), facts.exposures.clone());
        let mut base = ObservedPod { uid, version: facts.version, exposures, mark: facts.mark };
        let mut tries = 0;
        loop {
            let (metadata, exposures, mark) = match change.decide(&base) {
                PatchDecision::Patch(metadata, exposures, mark) => (metadata, exposures, mark),
                PatchDecision::Nothing => return Ok(EntryOutcome::Done),
                PatchDecision::Superseded => return Ok(EntryOutcome::Superseded),
                PatchDecision::Unreadable(version) => return Ok(EntryOutcome::Unreadable(version)),
                PatchDecision::Full => {
                    let why = format!(
                        "the pod may hold leases of {ENTRIES_MAX} clusters: it is granted none of \
                         another one before some of them end"
                    );
                    return Ok(self.failed(&facts.pod, &why));
                }
            };
            let error = match patch(&api, name, metadata).await {
                Ok(pod) => {
                    let version = version(pod.resource_version().as_deref());
                    self.0
                        .store()
                        .record_write(&facts.pod, ObservedPod { version, exposures, mark, ..base });
                    return Ok(EntryOutcome::Done);
                }
                Err(error) => ApiError::from(error),
            };
            tries += 1;
            if error.is_conflict() && !change.is_retried() {
                return Ok(EntryOutcome::Failed);
            }
            if !error.is_conflict() || tries == TRIES_MAX {
                return Err(error);
            }
            let found = api.get_metadata_opt(name).await?;
            match found.as_ref().and_then(observed).filter(|found| found.uid == facts.uid) {
                Some(found) => base = found,
                // It no longer exists.
                None => return Ok(EntryOutcome::Failed),
            }
        }
    }
}

/// The metadata of a pod that a change depends on.
fn observed(pod: &PartialObjectMeta<Pod>) -> Option<ObservedPod> {
    let version = version(pod.resource_version().as_deref());
    let (exposures, mark) = (exposure_annotation::read(pod), BusyMark::read(pod));
    Some(ObservedPod { uid: pod.uid()?, version, exposures, mark })
}

/// One warning for all workers, since there may be many.
fn warn_of_unlimited(exposed: &BTreeMap<WorkerKey, Entry>) {
    let unlimited = exposed.iter().filter(|(_, entry)| entry.exposure.sets == SetScope::Any);
    let mut workers = unlimited.map(|(key, _)| key.to_string());
    let named: Vec<_> = workers.by_ref().take(NAMED_MAX).collect();
    if named.is_empty() {
        return;
    }
    let more = match workers.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    tracing::warn!(
        "the exposure annotations of pods are unreadable or unlimited, so these workers count as \
         if they may hold anything: {}{more}",
        named.join(", ")
    );
}

async fn patch(
    api: &Api<Pod>,
    name: &str,
    metadata: Value,
) -> kube::Result<PartialObjectMeta<Pod>> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    api.patch_metadata(name, &params, &Patch::Merge(json!({ "metadata": metadata }))).await
}
