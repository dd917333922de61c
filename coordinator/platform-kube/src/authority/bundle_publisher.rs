//! Publishes the authorities that agents must trust: a ConfigMap in each namespace with workers.
//! The leader applies it after each change and at intervals, so that it restores a deleted or
//! changed ConfigMap. Applying an unchanged ConfigMap writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use leasehold_driver::trust::Bundle;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{FIELD_MANAGER, NAME};
use crate::api_call::{ApiError, CALL_TIMEOUT, call};

/// The ConfigMap's key.
const KEY: &str = "ca.crt";
/// The most namespaces that are written to at a time.
const WRITES_MAX: usize = 8;
/// The delay of a retry.
const RETRY: Duration = Duration::from_secs(5);

/// Publishes the bundle.
pub struct BundlePublisher {
    /// The client that writes.
    pub client: Client,
    /// The coordinator's own namespace.
    pub namespace: String,
    /// The namespaces that have workers.
    pub namespaces: watch::Receiver<BTreeSet<String>>,
    /// The authorities to trust.
    pub bundle: Bundle,
    /// Whether this replica leads.
    pub leads: watch::Receiver<bool>,
    /// The interval between two writes without a change.
    pub every: Duration,
}

impl BundlePublisher {
    /// Publishes until one of its sources ends.
    pub async fn run(mut self) {
        let mut warnings = BTreeMap::new();
        loop {
            let is_done = self.publish(&mut warnings).await;
            let pause = if is_done { self.every } else { self.every.min(RETRY) };
            let is_open = tokio::select! {
                changed = self.namespaces.changed() => changed.is_ok(),
                changed = self.bundle.changed() => changed.is_ok(),
                changed = self.leads.changed() => changed.is_ok(),
                () = sleep(pause) => true,
            };
            if !is_open {
                return;
            }
        }
    }

    /// Writes every ConfigMap if this replica leads. Returns whether no write failed.
    async fn publish(&mut self, warnings: &mut BTreeMap<String, ApiError>) -> bool {
        let is_leader = *self.leads.borrow_and_update();
        let bundle = self.bundle.borrow_and_update().clone();
        let mut namespaces = self.namespaces.borrow_and_update().clone();
        let Some(bundle) = bundle.filter(|_| is_leader) else {
            warnings.clear();
            return true;
        };
        namespaces.insert(self.namespace.clone());
        warnings.retain(|namespace, _| namespaces.contains(namespace));
        let mut written = futures_util::stream::iter(namespaces)
            .map(|namespace| {
                let (client, bundle) = (self.client.clone(), Arc::clone(&bundle));
                async move {
                    let outcome = write(client, &namespace, &bundle).await;
                    (namespace, outcome)
                }
            })
            .buffer_unordered(WRITES_MAX);
        let mut is_done = true;
        while let Some((namespace, outcome)) = written.next().await {
            match outcome {
                Ok(()) => {
                    if warnings.remove(&namespace).is_some() {
                        tracing::info!(namespace, "the ConfigMap {NAME} is written again");
                    }
                }
                Err(problem) => {
                    is_done = false;
                    if warnings.get(&namespace) != Some(&problem) {
                        tracing::warn!(namespace, %problem, "cannot write the ConfigMap {NAME}");
                        warnings.insert(namespace, problem);
                    }
                }
            }
        }
        is_done
    }
}

async fn write(client: Client, namespace: &str, bundle: &str) -> Result<(), ApiError> {
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let wanted = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": NAME,
            "labels": { "app.kubernetes.io/managed-by": FIELD_MANAGER },
        },
        "data": { KEY: bundle },
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let written = call(CALL_TIMEOUT, maps.patch(NAME, &params, &Patch::Apply(&wanted))).await;
    written.map(drop)
}
