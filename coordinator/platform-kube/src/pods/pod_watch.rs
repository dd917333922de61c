//! The watch of pods. It reports that a pod is gone before it stores a later pod of that name.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::clock;
use leasehold_kube_api::names::CLUSTER_LABEL;
use tokio::sync::mpsc;

use super::facts::{PodFacts, PodName};
use super::{PodChange, Shared};
use crate::watch_cache::events as watch_events;

/// Watches one namespace, or all, until the receiver of the events is dropped.
pub(super) async fn watch_pods(
    shared: Arc<Shared>,
    namespace: Option<String>,
    events: mpsc::Sender<Event>,
) {
    let api: Api<Pod> = shared.api(namespace.as_deref());
    let config = watcher::Config::default().labels(CLUSTER_LABEL);
    let stops = events.closed();
    let mut watched = pin!(watch_events("Pod", api, config).take_until(stops));
    let mut seen = BTreeSet::new();
    while let Some(change) = watched.next().await {
        let change = match (change, &namespace) {
            (Ok(change), _) => change,
            (Err(failed), Some(namespace)) if failed.is_forbidden_list() => {
                shared.mark_namespace_forbidden(namespace);
                shared.send_changes([PodChange::Listed]);
                shared.has_changed();
                continue;
            }
            (Err(_), _) => continue,
        };
        let now = clock::now();
        let mut changes = Vec::new();
        let gone = match change {
            watcher::Event::Init => {
                seen.clear();
                continue;
            }
            watcher::Event::InitApply(pod) => {
                let Some(facts) = PodFacts::new(&pod) else { continue };
                seen.insert(facts.pod.clone());
                changes.push(PodChange::Pod(facts.pod.clone()));
                shared.store().apply(facts, now)
            }
            watcher::Event::InitDone => {
                let namespace = namespace.as_deref();
                let within =
                    |pod: &PodName| namespace.is_none_or(|watched| watched == pod.namespace);
                let gone = shared.store().retain(within, &std::mem::take(&mut seen), now);
                changes.extend(gone.into_iter().map(PodChange::Pod));
                changes.push(PodChange::Listed);
                shared.mark_scope_listed(namespace);
                Vec::new()
            }
            watcher::Event::Apply(pod) => {
                let Some(facts) = PodFacts::new(&pod) else { continue };
                changes.push(PodChange::Pod(facts.pod.clone()));
                shared.store().apply(facts, now)
            }
            watcher::Event::Delete(pod) => {
                let Some(facts) = PodFacts::new(&pod) else { continue };
                changes.push(PodChange::Pod(facts.pod.clone()));
                shared.store().delete(facts, now)
            }
        };
        if !gone.is_empty() && events.send(Event::Gone(gone)).await.is_err() {
            return;
        }
        shared.send_changes(changes);
        shared.has_changed();
    }
}
