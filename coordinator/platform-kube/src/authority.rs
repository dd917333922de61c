//! The coordinator's own certificate authority. Its keys are in one Secret: the first replica
//! creates it, and every replica watches it. Each replica signs its own serving certificate and
//! does not share that key. A replica restores a deleted Secret from memory. An invalid Secret is
//! ignored: the keys that were read before stay in force. The API server's clock decides when keys
//! rotate, so a replica with a wrong clock rotates nothing.

mod bundle_publisher;
mod ca_injector;
mod certificate;
mod keyring;
#[cfg(test)]
mod keyring_tests;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use leasehold_driver::clock::time_of_day;
use leasehold_driver::platform::{ServingCertificate, ServingCertificates};
use leasehold_driver::trust::{Bundle, Trust};
use leasehold_kube_api::names::FIELD_MANAGER;
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub use self::bundle_publisher::BundlePublisher;
pub use self::ca_injector::{CaInjector, Configuration};
use self::certificate::{Names, Signer, after};
use self::keyring::Keyring;
use crate::api_call::{CALL_TIMEOUT, call};
use crate::watch_cache::{events, named};

/// The name of the Secret, and of the ConfigMaps.
const NAME: &str = "leasehold-ca";
/// The Secret's type.
const SECRET_TYPE: &str = "kubernetes.io/tls";
/// The delay of the first retry.
const RETRY: Duration = Duration::from_secs(1);
/// How long a replica that never read the keys waits for other replicas to restore the Secret.
const CREATE_AFTER: Duration = Duration::from_secs(3);
/// The most different warnings that are logged until the Secret is valid again.
const WARNINGS_MAX: usize = 16;
/// The most rotation steps in one write of the Secret.
const ROTATION_STEPS_MAX: usize = 4;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The settings of the authority.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Secret's namespace.
    pub namespace: String,
    /// The name by which replicas and agents know the server.
    pub server_name: String,
    names: Names,
    /// How long the certificate of the authority is valid.
    pub lifetime: Duration,
    /// How long a serving certificate is valid.
    pub serving_lifetime: Duration,
    /// How far `notBefore` is set back, for clients whose clocks are late.
    pub backdate: Duration,
    /// How often to check whether a rotation step is due.
    pub look_every: Duration,
}

impl Settings {
    /// Settings for the Service `service` in `namespace`, and a replica at `address` (HOST:PORT).
    #[must_use]
    pub fn new(namespace: &str, service: &str, address: &str) -> Self {
        let server_name = format!("{service}.{namespace}.svc");
        let mut hosts = vec![
            server_name.clone(),
            format!("{server_name}.cluster.local"),
            format!("{service}.{namespace}"),
            service.to_owned(),
            "localhost".to_owned(),
        ];
        let mut addresses = Vec::new();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(ip) => addresses.push(ip),
            Err(_) if !hosts.iter().any(|known| known == host) => hosts.push(host.to_owned()),
            Err(_) => {}
        }
        Self {
            namespace: namespace.to_owned(),
            server_name,
            names: Names { hosts, addresses },
            lifetime: 365 * DAY,
            serving_lifetime: DAY,
            backdate: Duration::from_secs(300),
            look_every: Duration::from_secs(30),
        }
    }
}

/// The running authority.
#[derive(Clone, Debug)]
pub struct Authority {
    /// The serving certificate; `None` until the Secret was read for the first time.
    pub certificates: ServingCertificates,
    /// The authorities to trust on connections to other replicas.
    pub trust: Trust,
    /// The authorities that clients must trust.
    pub bundle: Bundle,
}

impl Authority {
    /// Runs the authority on the current runtime until every receiver is dropped. Errors are logged
    /// and retried.
    #[must_use]
    pub fn start(client: Client, settings: Settings) -> Self {
        let (serving, certificates) = watch::channel(None);
        let (bundles, bundle) = watch::channel(None);
        let trust = Trust::in_bundle(bundle.clone(), settings.server_name.clone())
            .showing(certificates.clone());
        let controller = AuthorityController {
            secrets: Api::namespaced(client, &settings.namespace),
            settings,
            secret: SecretState::Unknown,
            keyring: None,
            served: None,
            serving,
            bundles,
            warnings: BTreeSet::new(),
        };
        tokio::spawn(controller.run());
        Self { certificates, trust, bundle }
    }

    /// Waits until a serving certificate exists: no replica should lead before.
    pub async fn ready(&mut self) {
        if self.certificates.wait_for(|serving| serving.is_some()).await.is_err() {
            // The controller has ended with the runtime.
            std::future::pending::<()>().await;
        }
    }
}

/// The Secret as last observed.
enum SecretState {
    /// The Secret was not read yet.
    Unknown,
    /// The Secret has not existed since `since`; `was_there` says whether it existed before.
    Absent { since: Instant, was_there: bool },
    /// Its keys cannot be parsed.
    Invalid(Secret),
    /// It has valid keys.
    Valid(Secret),
}

/// The certificate that is served.
struct Served {
    signer: CertificateDer<'static>,
    renewed_at: UnixTime,
}

/// Reconciles the Secret, the serving certificate and the bundle.
struct AuthorityController {
    secrets: Api<Secret>,
    settings: Settings,
    secret: SecretState,
    /// The last valid keys.
    keyring: Option<Keyring>,
    served: Option<Served>,
    serving: watch::Sender<Option<Arc<ServingCertificate>>>,
    bundles: watch::Sender<Option<Arc<str>>>,
    /// Warnings since the Secret was last valid. Each is logged once.
    warnings: BTreeSet<String>,
}

impl AuthorityController {
    async fn run(mut self) {
        let mut watched = pin!(
            events("Secret", self.secrets.clone(), named(NAME))
                .filter_map(|event| std::future::ready(event.ok()))
        );
        let mut is_listed = false;
        let mut delays = self.backoff();
        loop {
            let pause = match self.reconcile().await {
                Ok(()) => {
                    delays = self.backoff();
                    self.settings.look_every
                }
                Err(problem) => {
                    self.warn_once(&problem);
                    delays.next().unwrap_or(self.settings.look_every)
                }
            };
            tokio::select! {
                () = self.unused() => return,
                event = watched.next() => match event {
                    Some(event) => self.observe(event, &mut is_listed),
                    None => return,
                },
                () = sleep(pause) => {}
            }
        }
    }

    fn backoff(&self) -> ExponentialBackoff {
        let longest = self.settings.look_every;
        let builder = ExponentialBuilder::new().with_min_delay(RETRY.min(longest));
        builder.with_max_delay(longest).without_max_times().build()
    }

    async fn unused(&self) {
        tokio::join!(self.serving.closed(), self.bundles.closed());
    }

    fn observe(&mut self, event: Event<Secret>, is_listed: &mut bool) {
        match event {
            Event::Init => *is_listed = false,
            Event::InitApply(secret) => {
                *is_listed = true;
                self.observe_secret(secret);
            }
            Event::InitDone if !*is_listed => self.observe_deleted(),
            Event::InitDone => {}
            Event::Apply(secret) => self.observe_secret(secret),
            Event::Delete(secret) => match &self.secret {
                // The deleted Secret is an earlier one: its successor was observed already.
                SecretState::Valid(known) | SecretState::Invalid(known)
                    if known.uid() != secret.uid() => {}
                _ => self.observe_deleted(),
            },
        }
    }

    fn observe_deleted(&mut self) {
        let was_there = match &self.secret {
            SecretState::Absent { .. } => return,
            SecretState::Unknown => false,
            SecretState::Valid(_) | SecretState::Invalid(_) => true,
        };
        if was_there {
            tracing::warn!("the Secret {NAME} was deleted: it will be created again");
        }
        self.secret = SecretState::Absent { since: Instant::now(), was_there };
    }

    /// Stores the Secret, unless a newer version was observed.
    fn observe_secret(&mut self, secret: Secret) {
        if let SecretState::Valid(known) | SecretState::Invalid(known) = &self.secret
            && known.uid() == secret.uid()
            && version(known).zip(version(&secret)).is_some_and(|(known, new)| known >= new)
        {
            return;
        }
        let empty = Default::default();
        match Keyring::read(secret.data.as_ref().unwrap_or(&empty)) {
            Ok(keyring) => {
                self.clear_warnings();
                let bundle: Arc<str> = keyring.bundle().into();
                self.bundles.send_if_modified(|known| {
                    let is_new = known.as_ref() != Some(&bundle);
                    *known = Some(bundle);
                    is_new
                });
                self.keyring = Some(keyring);
                self.secret = SecretState::Valid(secret);
            }
            Err(problem) => {
                self.secret = SecretState::Invalid(secret);
                self.warn_once(&invalid_secret(&problem, self.keyring.is_some()));
            }
        }
    }

    /// Creates or rotates the Secret if due, and signs a serving certificate if due.
    async fn reconcile(&mut self) -> Result<(), String> {
        let reconciled = match &self.secret {
            SecretState::Unknown | SecretState::Invalid(_) => Ok(()),
            SecretState::Absent { since, was_there } => {
                let is_for_others = *was_there && self.keyring.is_none();
                if is_for_others && since.elapsed() < CREATE_AFTER {
                    Err("the Secret is missing: waiting for a replica that has the keys to restore \
                         it"
                        .to_owned())
                } else {
                    self.create().await
                }
            }
            SecretState::Valid(secret) => {
                let secret = secret.clone();
                self.rotate(secret).await
            }
        };
        self.serve()?;
        reconciled
    }

    async fn create(&mut self) -> Result<(), String> {
        let now = self.server_time().await?;
        let kept = self.keyring.clone().filter(|keyring| keyring.is_valid(now));
        let keyring = match kept {
            Some(keyring) => keyring,
            None => Keyring::new(self.make(now).map_err(|error| error.to_string())?),
        };
        let mut secret = Secret {
            metadata: ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() },
            type_: Some(SECRET_TYPE.into()),
            ..Secret::default()
        };
        keyring.write(secret.data.get_or_insert_default());
        match call(CALL_TIMEOUT, self.secrets.create(&self.params(), &secret)).await {
            Ok(created) => {
                tracing::info!("the Secret {NAME} was created");
                self.observe_secret(created);
                Ok(())
            }
            Err(error) if error.is_conflict() => self.read().await,
            Err(error) => Err(format!("cannot create the Secret: {error}")),
        }
    }

    /// Takes the rotation steps that are due by this host's clock and by the API server's.
    async fn rotate(&mut self, mut secret: Secret) -> Result<(), String> {
        let Some(mut keyring) = self.keyring.clone() else { return Ok(()) };
        if keyring.next_step(time_of_day()).is_none() {
            return Ok(());
        }
        let now = self.server_time().await?;
        if keyring.next_step(now).is_none() {
            return Err(
                "this host's clock is ahead of the API server's clock, so no rotation is due yet: \
                 correct the clock"
                    .into(),
            );
        }
        for _ in 0..ROTATION_STEPS_MAX {
            let Some(step) = keyring.next_step(now) else { break };
            let made = || self.make(now);
            keyring = keyring.after(step, now, made).map_err(|error| error.to_string())?;
            tracing::info!(?step, "certificate authority rotation step");
        }
        keyring.write(secret.data.get_or_insert_default());
        // The write carries the resourceVersion: only the first of two writers succeeds.
        match call(CALL_TIMEOUT, self.secrets.replace(NAME, &self.params(), &secret)).await {
            Ok(written) => {
                self.observe_secret(written);
                Ok(())
            }
            Err(error) if error.is_conflict() || error.is_not_found() => self.read().await,
            Err(error) => Err(format!("cannot update the Secret: {error}")),
        }
    }

    async fn read(&mut self) -> Result<(), String> {
        match call(CALL_TIMEOUT, self.secrets.get_opt(NAME)).await {
            Ok(Some(secret)) => self.observe_secret(secret),
            Ok(None) => self.observe_deleted(),
            Err(error) => return Err(format!("cannot read the Secret: {error}")),
        }
        Ok(())
    }

    /// The API server's time of day, from an object that is not stored.
    async fn server_time(&self) -> Result<UnixTime, String> {
        let metadata =
            ObjectMeta { generate_name: Some(format!("{NAME}-")), ..ObjectMeta::default() };
        let probe = Secret { metadata, ..Secret::default() };
        let params = PostParams { dry_run: true, ..self.params() };
        let made = call(CALL_TIMEOUT, self.secrets.create(&params, &probe)).await;
        let made = made.map_err(|error| format!("cannot read the API server's time: {error}"))?;
        let time = made.metadata.creation_timestamp.map(|time| time.0.as_second());
        let seconds = time.and_then(|seconds| u64::try_from(seconds).ok());
        let seconds = seconds.ok_or("the API server's answer has no creationTimestamp")?;
        Ok(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }

    fn make(&self, now: UnixTime) -> anyhow::Result<Signer> {
        let backdate = self.settings.backdate.as_secs();
        let from = now.as_secs().saturating_sub(backdate);
        let from = UnixTime::since_unix_epoch(Duration::from_secs(from));
        Signer::generate(from, self.settings.lifetime.as_secs().saturating_add(backdate))
    }

    /// Signs a serving certificate if due: at two thirds of the last one's lifetime, or at once
    /// after a change of the signer.
    fn serve(&mut self) -> Result<(), String> {
        let Some(keyring) = &self.keyring else { return Ok(()) };
        let signing = &keyring.signing;
        let now = time_of_day();
        let is_good =
            |served: &Served| served.signer == signing.certificate.der && now < served.renewed_at;
        if self.served.as_ref().is_some_and(is_good) {
            return Ok(());
        }
        let seconds = self.settings.serving_lifetime.as_secs();
        let to = after(now.max(signing.certificate.from), seconds).min(signing.certificate.to);
        let signed = signing
            .sign(&self.settings.names, to)
            .map_err(|error| format!("cannot sign a certificate: {error:#}"))?;
        let certificate = ServingCertificate { chain: vec![signed.certificate], key: signed.key };
        let expires_at = to.as_secs();
        tracing::info!(expires_at, "new certificate in force for new connections");
        self.serving.send_replace(Some(Arc::new(certificate)));
        let signer = signing.certificate.der.clone();
        self.served =
            Some(Served { signer, renewed_at: after(now, seconds.saturating_mul(2) / 3) });
        Ok(())
    }

    fn params(&self) -> PostParams {
        PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() }
    }

    fn warn_once(&mut self, problem: &str) {
        let is_new = !self.warnings.contains(problem);
        if is_new && self.warnings.len() < WARNINGS_MAX {
            let namespace = &self.settings.namespace;
            tracing::warn!(problem, namespace, "problem with the Secret {NAME}");
            self.warnings.insert(problem.to_owned());
        }
    }

    fn clear_warnings(&mut self) {
        if !std::mem::take(&mut self.warnings).is_empty() {
            tracing::info!("the Secret {NAME} is valid again");
        }
    }
}

/// The problem of an invalid Secret, and how to fix it.
fn invalid_secret(problem: &str, is_in_force: bool) -> String {
    if is_in_force {
        format!(
            "{problem}; the keys that were read before stay in force: delete the Secret, and the \
         coordinator restores it"
        )
    } else {
        format!(
            "{problem}; without keys the coordinator serves nothing: delete the Secret, and the \
         coordinator creates a new authority, which agents trust once they have read the new \
         ConfigMap {NAME}"
        )
    }
}

/// A number that grows with every write.
fn version(secret: &Secret) -> Option<u64> {
    secret.metadata.resource_version.as_ref().and_then(|version| version.parse().ok())
}
