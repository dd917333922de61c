//! What pods may hold, written to them and read from them. Every write is bound to the UID and the
//! version of the pod that it rests on, so that nothing is written to a later pod of that name, nor
//! over what was written since.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt};
use leasehold_coordinator_core::event::{Event, Exposure};
use leasehold_types::{SetName, WorkerKey};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::exposure;
use super::super::names::{CLUSTER_LABEL, EXPOSED_LABEL, FIELD_MANAGER};
use super::super::resources::StreamSet;
use super::change::{Base, Change};
use super::facts::{PodName, version};
use super::roll::Listed;
use super::{PodFacts, Pods};
use crate::clock;

/// Pods that are written at once.
const WRITTEN_AT_ONCE_MAX: usize = 16;
/// How long a write may take.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// How often a write is tried on a pod that others write to.
const TRIES_MAX: usize = 3;
/// How long a list may take.
const LIST_WITHIN: Duration = Duration::from_secs(10);

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
            // A pod that lost its cluster's label still bears the other where it may hold
            // anything; and one that has both may lose either between the lists.
            for label in [CLUSTER_LABEL, EXPOSED_LABEL] {
                for (name, pod) in self.list(scope.as_deref(), label).await? {
                    let known = listed.get(&name).map_or(0, |known: &Listed| known.version);
                    if known <= pod.version {
                        listed.insert(name, pod);
                    }
                }
            }
        }
        let mut exposed = self.0.roll().list(listed, clock::now());
        self.0.has_changed();
        self.name_sets(&mut exposed).await?;
        Ok(exposed)
    }

    /// The pods of one namespace, or of all, that bear a label, as the API server has them now.
    async fn list(
        &self,
        namespace: Option<&str>,
        label: &str,
    ) -> anyhow::Result<Vec<(PodName, Listed)>> {
        // Without a resource version the API server asks its store: what was written before is
        // on the list.
        let params = ListParams::default().labels(label);
        let api = self.0.api(namespace);
        let whose = || match namespace {
            Some(namespace) => format!("pods of namespace {namespace} (--watch-namespace)"),
            None => "pods of all namespaces".to_owned(),
        };
        let pods = timeout(LIST_WITHIN, api.list_metadata(&params)).await.with_context(whose)?;
        let pods = pods.with_context(whose)?.items.into_iter().filter_map(|pod| {
            let Base { uid, version, exposures } = seen(&pod)?;
            let name = PodName { namespace: pod.namespace()?, name: pod.name_any() };
            Some((name, Listed { uid, version, exposures }))
        });
        Ok(pods.collect())
    }

    /// A worker that counts with the most may own streams of every set of its namespace.
    async fn name_sets(&self, exposed: &mut BTreeMap<WorkerKey, Exposure>) -> anyhow::Result<()> {
        let mut known: BTreeMap<String, Vec<SetName>> = BTreeMap::new();
        let most = exposure::most();
        for (key, exposure) in exposed.iter_mut().filter(|(_, it)| it.covers(&most)) {
            tracing::warn!(
                cluster = %key.cluster, worker = %key.worker,
                "it counts with the most that a worker may hold: the exposure annotation of its \
                 pod cannot be read, or says so"
            );
            let Some(namespace) = key.cluster.parts().0 else { continue };
            if !known.contains_key(namespace) {
                let client = self.0.settings.client.clone();
                let api: Api<StreamSet> = Api::namespaced(client, namespace);
                let all = ListParams::default();
                let sets = timeout(LIST_WITHIN, api.list_metadata(&all)).await??;
                let names = sets.items.into_iter();
                let names = names.map(|set| SetName::in_namespace(namespace, &set.name_any()));
                known.insert(namespace.to_owned(), names.filter_map(Result::ok).collect());
            }
            exposure.sets.extend(known[namespace].iter().map(|set| (set.clone(), true)));
        }
        Ok(())
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
            let Some(facts) = facts else { return };
            let Some(meant) = facts.exposures.get(&key.cluster).cloned() else { return };
            self.write(&facts, &Change::Conceal(key.cluster, meant)).await;
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
        self.write(&facts, &Change::Expose(key.cluster.clone(), exposure.clone())).await
    }

    /// Marks a pod as busy, or as idle; false where it has changed meanwhile.
    ///
    /// # Errors
    /// What the API server says against it.
    pub(crate) async fn mark_busy(&self, facts: &PodFacts, busy: bool) -> kube::Result<bool> {
        self.try_write(facts, if busy { &Change::Busy } else { &Change::Idle }).await
    }

    /// Writes a change; returns whether that is done.
    async fn write(&self, facts: &PodFacts, change: &Change) -> bool {
        let PodName { namespace, name } = &facts.pod;
        match timeout(WRITE_WITHIN, self.try_write(facts, change)).await {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => {
                tracing::warn!(%error, namespace, pod = name, "pod not written");
                false
            }
            Err(_) => {
                tracing::warn!(namespace, pod = name, "pod not written: no answer");
                false
            }
        }
    }

    /// Tries a change on the pod as it was seen, then on the pod as it is.
    async fn try_write(&self, facts: &PodFacts, change: &Change) -> kube::Result<bool> {
        let api: Api<Pod> = self.0.api(Some(&facts.pod.namespace));
        let name = &facts.pod.name;
        let (uid, exposures) = (facts.uid.clone(), facts.exposures.clone());
        let mut base = Base { uid, version: facts.version, exposures };
        let mut tries = 0;
        loop {
            let Some((metadata, exposures)) = change.over(&base) else { return Ok(false) };
            let error = match patch(&api, name, metadata).await {
                Ok(pod) => {
                    let version = version(pod.resource_version().as_deref());
                    self.0.roll().wrote(&facts.pod, Base { version, exposures, ..base });
                    return Ok(true);
                }
                Err(error) => error,
            };
            tries += 1;
            let conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
            if conflict && !change.holds_on() {
                return Ok(false);
            }
            if !conflict || tries == TRIES_MAX {
                return Err(error);
            }
            let found = api.get_metadata_opt(name).await?;
            match found.as_ref().and_then(seen).filter(|found| found.uid == facts.uid) {
                Some(found) => base = found,
                // It is there no more.
                None => return Ok(false),
            }
        }
    }
}

/// A pod's metadata, as far as a change rests on it.
fn seen(pod: &PartialObjectMeta<Pod>) -> Option<Base> {
    let version = version(pod.resource_version().as_deref());
    Some(Base { uid: pod.uid()?, version, exposures: exposure::read(pod) })
}

async fn patch(
    api: &Api<Pod>,
    name: &str,
    metadata: Value,
) -> kube::Result<PartialObjectMeta<Pod>> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    api.patch_metadata(name, &params, &Patch::Merge(json!({ "metadata": metadata }))).await
}
