//! The key by which a replica knows that the API server sends an eviction: a secret at the end of
//! the webhook's path. The API server shows webhooks no certificate, and every pod can reach their
//! port; without a key, any pod could have any worker drained. Only those who may read the webhook
//! configuration know the key. The leader adds one where the configuration has none, and every
//! replica reads it from there.

use std::fmt::Write as _;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use leasehold_kube_api::names::{EVICTIONS_WEBHOOK, FIELD_MANAGER};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::api_call::{CALL_TIMEOUT, call};
use crate::watch_cache::{WatchCache, named};

/// The path before the key.
const PREFIX: &str = "/evict";
/// The bytes of a key, which is written in hexadecimal.
const KEY_BYTES: usize = 16;
/// The delay of a retry.
const RETRY: Duration = Duration::from_secs(30);

/// The digest of the present key, if there is one; cheap to clone. Digests are compared, so that
/// the time of a comparison says nothing about the key.
#[derive(Clone, Debug)]
pub struct CallerKey(watch::Receiver<Option<Vec<u8>>>);

/// Reads the key, and writes one while this replica leads.
pub struct CallerKeyWriter {
    client: Client,
    /// The ValidatingWebhookConfiguration's name.
    configuration: String,
    key: watch::Sender<Option<Vec<u8>>>,
}

/// Where the API server sends evictions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Location {
    /// To this path of a Service.
    Path(String),
    /// To this URL.
    Url(String),
}

impl CallerKey {
    /// Whether this is the present key.
    pub(super) fn is(&self, given: &str) -> bool {
        self.0.borrow().as_deref() == Some(&digest_of(given))
    }
}

impl CallerKeyWriter {
    /// The writer of the key in a ValidatingWebhookConfiguration, and the key as it becomes known.
    #[must_use]
    pub fn new(client: Client, configuration: &str) -> (Self, CallerKey) {
        let (key, known) = watch::channel(None);
        let configuration = configuration.to_owned();
        (Self { client, configuration, key }, CallerKey(known))
    }

    /// Runs until it is no longer known whether this replica leads.
    pub(crate) async fn run(self, mut leads: watch::Receiver<bool>) {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let config = named(&self.configuration);
        let apis = vec![api.clone()];
        let cache = WatchCache::start("webhook configuration", apis, &config, Location::of);
        let mut changed = cache.changed();
        loop {
            let location = cache.only();
            let key = location.as_ref().and_then(|location| location.key());
            self.key.send_replace(key.map(digest_of));
            let is_missing = key.is_none() && *leads.borrow_and_update();
            if let Some(location) = location.filter(|_| is_missing)
                && let Err(problem) = self.write(&api, &location).await
            {
                tracing::warn!(
                    problem,
                    configuration = self.configuration,
                    "cannot write the webhook's key: evictions of busy pods start no drain"
                );
            }
            let is_open = tokio::select! {
                changed = leads.changed() => changed.is_ok(),
                changed = changed.changed() => changed.is_ok(),
                () = sleep(RETRY) => true,
            };
            if !is_open {
                return;
            }
        }
    }

    async fn write(
        &self,
        api: &Api<ValidatingWebhookConfiguration>,
        location: &Location,
    ) -> Result<(), String> {
        let Some(client_config) = location.with_key(&new_key()?) else { return Ok(()) };
        // The patch merges by webhook name.
        let webhook = json!({ "name": EVICTIONS_WEBHOOK, "clientConfig": client_config });
        let patch = Patch::Strategic(json!({ "webhooks": [webhook] }));
        let field_manager = Some(FIELD_MANAGER.to_owned());
        let params = PatchParams { field_manager, ..PatchParams::default() };
        let write = api.patch_metadata(&self.configuration, &params, &patch);
        call(CALL_TIMEOUT, write).await.map_err(|error| error.to_string())?;
        tracing::info!(configuration = self.configuration, "key of the webhook written");
        Ok(())
    }
}

impl Location {
    fn of(configuration: &ValidatingWebhookConfiguration) -> Option<Self> {
        let mut webhooks = configuration.webhooks.iter().flatten();
        let asks = &webhooks.find(|webhook| webhook.name == EVICTIONS_WEBHOOK)?.client_config;
        match (&asks.service, &asks.url) {
            (Some(service), _) => Some(Self::Path(service.path.clone().unwrap_or_default())),
            (None, Some(url)) => Some(Self::Url(url.clone())),
            (None, None) => None,
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Path(text) | Self::Url(text) => text,
        }
    }

    /// The key at its end.
    fn key(&self) -> Option<&str> {
        let (before, key) = self.text().rsplit_once('/')?;
        let is_key = key.len() == 2 * KEY_BYTES && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_key && before.ends_with(PREFIX)).then_some(key)
    }

    /// The change that adds a key. A path that somebody else made is left alone.
    fn with_key(&self, key: &str) -> Option<Value> {
        let base = self.text().trim_end_matches('/');
        match self {
            Self::Path(_) if ["", PREFIX].contains(&base) => {
                Some(json!({ "service": { "path": format!("{PREFIX}/{key}") } }))
            }
            Self::Url(_) if base.ends_with(PREFIX) => {
                Some(json!({ "url": format!("{base}/{key}") }))
            }
            Self::Path(_) | Self::Url(_) => None,
        }
    }
}

fn digest_of(key: &str) -> Vec<u8> {
    digest(&SHA256, key.as_bytes()).as_ref().to_vec()
}

fn new_key() -> Result<String, String> {
    let mut bytes = [0; KEY_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| "the system has no random numbers".to_owned())?;
    let mut key = String::with_capacity(2 * KEY_BYTES);
    for byte in bytes {
        let _ = write!(key, "{byte:02x}");
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn adds_a_key_to_its_own_path_only_and_finds_it_there() {
        for (location, wanted) in [
            (Location::Path(String::new()), Some(json!("/evict/KEY"))),
            (Location::Path("/evict".into()), Some(json!("/evict/KEY"))),
            (Location::Path("/evict/old".into()), None),
            (Location::Path("/theirs".into()), None),
            (Location::Url("https://h:1/evict".into()), Some(json!("https://h:1/evict/KEY"))),
            (Location::Url("https://h:1".into()), None),
        ] {
            assert_eq!(location.key(), None, "{location:?}");
            let change = location.with_key(KEY);
            let wanted = wanted.map(|text| text.as_str().unwrap_or_default().replace("KEY", KEY));
            let text = |change: &Value| {
                let text = change["url"].as_str().or(change["service"]["path"].as_str());
                text.map(str::to_owned)
            };
            assert_eq!(change.as_ref().and_then(text), wanted, "{location:?}");
            if let Some(wanted) = wanted {
                assert_eq!(Location::Url(wanted).key(), Some(KEY));
            }
        }
    }

    #[test]
    fn knows_no_key_before_it_has_read_one() {
        let (key, known) = watch::channel(None);
        let known = CallerKey(known);
        assert!(!known.is("") && !known.is(KEY));
        key.send_replace(Some(digest_of(KEY)));
        assert!(known.is(KEY) && !known.is(&new_key().unwrap()));
    }
}
