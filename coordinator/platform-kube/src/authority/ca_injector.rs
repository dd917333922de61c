//! Injects the bundle of authorities into the `caBundle` of webhook configurations: the leader
//! writes it whenever either changes. It writes no other field, creates no configuration, and skips
//! a configuration that cert-manager manages.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::{Patch, PatchParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use leasehold_driver::trust::Bundle;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::FIELD_MANAGER;
use crate::api_call::{CALL_TIMEOUT, call};
use crate::watch_cache::{WatchCache, named};

/// The delay of a retry.
const RETRY: Duration = Duration::from_secs(5);
/// cert-manager writes the bundle of configurations with this annotation.
const CERT_MANAGER: &str = "cert-manager.io/inject-ca-from";

/// Injects the bundle into one configuration.
pub struct CaInjector {
    /// The client that writes.
    pub client: Client,
    /// The configuration's name.
    pub configuration: String,
    /// The authorities to trust.
    pub bundle: Bundle,
    /// Whether this replica leads.
    pub leads: watch::Receiver<bool>,
    /// How often the bundle is checked without a change.
    pub every: Duration,
}

/// A kind of configuration of webhooks.
pub trait Configuration:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + PartialEq
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Each webhook's name and client configuration.
    fn webhooks(&self) -> impl Iterator<Item = (&str, &WebhookClientConfig)>;
}

impl Configuration for MutatingWebhookConfiguration {
    fn webhooks(&self) -> impl Iterator<Item = (&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks.map(|webhook| (webhook.name.as_str(), &webhook.client_config))
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn webhooks(&self) -> impl Iterator<Item = (&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks.map(|webhook| (webhook.name.as_str(), &webhook.client_config))
    }
}

impl CaInjector {
    /// Writes until one of its sources ends.
    pub async fn run<K: Configuration>(mut self) {
        let api: Api<K> = Api::all(self.client.clone());
        let name = "webhook configuration";
        let config = named(&self.configuration);
        let cache =
            WatchCache::start(name, vec![api.clone()], &config, |found: &K| Some(found.clone()));
        let mut changed = cache.changed();
        let mut last_warning = LastWarning::default();
        loop {
            let pause = match self.write(&api, cache.only().as_deref()).await {
                Ok(()) => self.every,
                Err(problem) => {
                    last_warning.log(problem);
                    self.every.min(RETRY)
                }
            };
            let is_open = tokio::select! {
                changed = self.bundle.changed() => changed.is_ok(),
                changed = self.leads.changed() => changed.is_ok(),
                changed = changed.changed() => {
                    last_warning.forget();
                    changed.is_ok()
                }
                () = sleep(pause) => true,
            };
            if !is_open {
                return;
            }
        }
    }

    /// Writes the bundle if this replica leads and the configuration has another one.
    async fn write<K: Configuration>(
        &mut self,
        api: &Api<K>,
        seen: Option<&K>,
    ) -> Result<(), String> {
        let is_leader = *self.leads.borrow_and_update();
        let bundle = self.bundle.borrow_and_update().clone();
        let (Some(bundle), Some(seen), true) = (bundle, seen, is_leader) else { return Ok(()) };
        let stale = stale(seen, &bundle);
        if stale.is_empty() {
            return Ok(());
        }
        // The patch merges by webhook name. The API server rejects it if the webhook no longer
        // exists, since the entry would be incomplete.
        let encoded = ByteString(bundle.as_bytes().to_vec());
        let webhook = |name| json!({ "name": name, "clientConfig": { "caBundle": encoded } });
        let webhooks: Vec<_> = stale.into_iter().map(webhook).collect();
        let patch = Patch::Strategic(json!({ "webhooks": webhooks }));
        let field_manager = Some(FIELD_MANAGER.to_owned());
        let params = PatchParams { field_manager, ..PatchParams::default() };
        let written =
            call(CALL_TIMEOUT, api.patch_metadata(&self.configuration, &params, &patch)).await;
        let name = &self.configuration;
        written.map_err(|error| format!("cannot write the caBundle of {name}: {error}"))?;
        tracing::info!(configuration = self.configuration, "caBundle written");
        Ok(())
    }
}

/// The webhooks with another bundle or none.
fn stale<'a, K: Configuration>(seen: &'a K, bundle: &Arc<str>) -> Vec<&'a str> {
    if seen.annotations().contains_key(CERT_MANAGER) {
        return Vec::new();
    }
    let has = |given: &ByteString| given.0 == bundle.as_bytes();
    seen.webhooks()
        .filter(|(_, asks)| !asks.ca_bundle.as_ref().is_some_and(has))
        .map(|(name, _)| name)
        .collect()
}

/// The last warning; it is logged once until something changes.
#[derive(Default)]
struct LastWarning(Option<String>);

impl LastWarning {
    fn log(&mut self, problem: String) {
        if self.0.as_ref() != Some(&problem) {
            tracing::warn!(problem, "the API server may not trust the webhook");
            self.0 = Some(problem);
        }
    }

    fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(annotation: &str) -> MutatingWebhookConfiguration {
        let webhook = |name: &str, bundle: serde_json::Value| {
            json!({
                "name": name,
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": { "caBundle": bundle },
            })
        };
        let old = json!(ByteString(b"old".to_vec()));
        let new = json!(ByteString(b"new".to_vec()));
        let none = serde_json::Value::Null;
        serde_json::from_value(json!({
            "metadata": { "name": "it", "annotations": { annotation: "a/b" } },
            "webhooks": [webhook("a", none), webhook("b", old), webhook("c", new)],
        }))
        .expect("a configuration")
    }

    #[test]
    fn replaces_other_bundles_except_those_of_cert_manager() {
        let bundle: Arc<str> = "new".into();
        assert_eq!(stale(&configuration("x.dev/y"), &bundle), ["a", "b"]);
        assert_eq!(stale(&configuration(CERT_MANAGER), &bundle), [""; 0]);
    }
}
