//! The Kubernetes platform: desired state from custom resources, leadership from a Lease, workers
//! known from their pods, agents authenticated by their service-account tokens. It makes no
//! decision about leases: it reports desired and observed state to the core, and publishes its
//! decisions.

mod access;
pub mod api_call;
pub mod authority;
mod candidate;
pub mod desired;
mod leader_connection;
mod leader_failure_detector;
mod leadership;
mod lease_error;
mod lease_lock;
pub mod pods;
mod term_stores;
pub mod watch_cache;
pub mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{Client, Config};
use leasehold_coordinator_core::event::Event;
use leasehold_driver::access::Access;
use leasehold_driver::platform::{COMMANDS_MAX, EVENTS_MAX, Platform, ServingCertificates};
use leasehold_driver::port::Handle;
use leasehold_driver::replicas::KnownReplica;
use leasehold_driver::trust::{Bundle, Trust};
pub use leasehold_injection::sidecar::{AgentUser, pull_secrets};
use leasehold_injection::{Resources, Sidecar};
use leasehold_kube_api::names;
use leasehold_platform::campaign::{self, CampaignContext, StoreErrors};
use leasehold_types::TimeBounds;
use leasehold_types::limits::NamespaceShare;
use tokio::sync::{mpsc, oneshot, watch};

use self::access::AccessReviewer;
use self::authority::{Authority, BundlePublisher, CaInjector};
use self::candidate::{CandidateSettings, LeaseCandidate};
use self::desired::{DesiredWatch, Objects};
use self::leadership::watch_leadership;
use self::lease_lock::LeaseLock;
use self::pods::{Pods, PodsSettings};
use crate::webhook::{CallerKeyWriter, Clusters, Evictions, Injector, Validator};

/// How long the API server may send nothing while a call waits for it. A watch ends sooner.
const READ_TIMEOUT: Duration = Duration::from_secs(55);
/// How often the published bundle is checked without a change.
const PUBLISH_EVERY: Duration = Duration::from_secs(60);

/// How a replica runs on Kubernetes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the coordinator's own objects: the election's Lease, the certificates.
    pub namespace: String,
    /// The namespaces that are served; empty for all.
    pub watched: Vec<String>,
    /// The part of the limits that one namespace may use.
    pub namespace_share: NamespaceShare,
    /// The Service that agents dial, in `namespace`.
    pub service: String,
    /// The audience that tokens must be made for.
    pub audience: String,
    /// This replica's name. Each start adds a random suffix.
    pub identity: String,
    /// Where agents and people reach this replica: HOST:PORT.
    pub address: String,
    /// How long a leader may send no heartbeat and no renewal before a standby takes over.
    pub takeover_after: Duration,
    /// How long leadership lasts after a renewal was sent.
    pub leadership: Duration,
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
    /// The files of the serving certificate and its key; `None` if the replica signs its own.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The sidecar settings of opted-in pods.
    pub injection: InjectionSettings,
}

/// The sidecar settings of opted-in pods, and the webhook's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectionSettings {
    /// The agent's image.
    pub image: String,
    /// Where agents dial: HOST:PORT.
    pub coordinator: String,
    /// The user and group of agents.
    pub user: AgentUser,
    /// The Secrets that the agent's image is pulled with.
    pub pull_secrets: Vec<String>,
    /// Address for HTTPS.
    pub listen: SocketAddr,
    /// The MutatingWebhookConfiguration.
    pub configuration: String,
    /// The ValidatingWebhookConfiguration.
    pub validator: String,
}

/// A platform that runs, and what comes with it.
pub struct Started {
    /// The platform.
    pub platform: Platform,
    /// The serving certificates, if the replica signs its own.
    pub certificates: Option<ServingCertificates>,
    /// The authorities that have signed them, and the certificates of clients.
    pub bundle: Option<Bundle>,
    /// The authorities to trust on connections to other replicas.
    pub trust: Option<Trust>,
    /// The sidecar settings of opted-in pods.
    pub injector: Injector,
    /// Validates classes and pipelines before they are stored.
    pub validator: Validator,
    /// Answers evictions of pods.
    pub evictions: Evictions,
    /// The input of the operator.
    pub observed: Observed,
}

/// What this replica sees of Kubernetes, for the operator.
#[derive(Clone)]
pub struct Observed {
    /// The client of the API server.
    pub client: Client,
    /// The driver's handle, once it runs.
    pub handle: watch::Receiver<Option<Handle>>,
    /// Takes facts for the core.
    pub facts: mpsc::Sender<Event>,
    /// The custom resources as last seen.
    pub objects: watch::Receiver<Arc<Objects>>,
    /// The pods that are workers.
    pub pods: Pods,
    /// The sidecar settings of opted-in pods.
    pub injector: Injector,
    /// How this replica runs.
    pub settings: Arc<Settings>,
    /// This process's name, by which its Events are known.
    pub holder: String,
}

/// A client of the API server with connections of its own.
async fn connect() -> anyhow::Result<Client> {
    // The errors name their causes themselves.
    let mut config = Config::infer().await.map_err(|error| {
        anyhow::anyhow!(
            "no configuration of a cluster: run in a pod with a service account, or set \
             KUBECONFIG: {error}"
        )
    })?;
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    let client = Client::try_from(config);
    client.map_err(|error| anyhow::anyhow!("cannot use the configuration of the cluster: {error}"))
}

/// Starts the platform on the current runtime.
///
/// # Errors
/// If it finds no configuration of a cluster. Later errors are logged and retried.
pub async fn start(settings: Settings) -> anyhow::Result<Started> {
    let client = connect().await?;
    let (event_sender, events) = mpsc::channel(EVENTS_MAX);
    let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
    let (driver_sender, driver_receiver) = oneshot::channel::<Handle>();
    let (handle_sender, handle) = watch::channel(None);
    let pods = Pods::start(
        PodsSettings {
            client: client.clone(),
            watched: settings.watched.clone(),
            bounds: settings.bounds,
            handle: handle.clone(),
        },
        event_sender.clone(),
    );
    let share = settings.namespace_share;
    let DesiredWatch { problems, ready, freshness, objects, in_force } =
        desired::start(client.clone(), &settings.watched, share, event_sender.clone());
    let access_reviewer = AccessReviewer::new(
        // Strangers cause these calls: they have connections of their own.
        connect().await?,
        settings.audience.clone(),
        settings.server_name(),
        pods.clone(),
        objects.clone(),
        handle.clone(),
    );
    let authority = settings.certificate.is_none().then(|| {
        let own =
            authority::Settings::new(&settings.namespace, &settings.service, &settings.address);
        Authority::start(client.clone(), own)
    });
    let trust = match (&authority, &settings.certificate) {
        (Some(authority), _) => Some(authority.trust.clone()),
        (None, Some((certificate, key))) => {
            Some(Trust::beside(certificate.clone(), key.clone(), settings.server_name()))
        }
        (None, None) => None,
    };
    let certificates = authority.as_ref().map(|authority| authority.certificates.clone());
    let bundle = authority.as_ref().map(|authority| authority.bundle.clone());
    // A random suffix distinguishes this start from earlier ones.
    let holder = format!("{}_{:012x}", settings.identity, fastrand::u64(..1 << 48));
    let (namespace, address) = (&settings.namespace, settings.address.clone());
    let lock =
        LeaseLock::new(client.clone(), namespace, holder.clone(), address, settings.leadership);
    let cell = lock.cell();
    let (known, replicas) = watch::channel(Arc::default());
    let candidate = CandidateSettings {
        own: KnownReplica::of_this_build(settings.identity.clone(), settings.address.clone()),
        known: Arc::new(known),
        takeover_after: settings.takeover_after,
        leadership: settings.leadership,
        bounds: settings.bounds,
        trust: trust.clone(),
    };
    let progress = Arc::default();
    let driver = Arc::clone(&progress);
    let candidate = LeaseCandidate::new(candidate, lock, pods.clone());
    let injector = Injector {
        installation: settings.installation(),
        served: settings.watched.clone(),
        clusters: clusters(objects.clone()),
    };
    let validator = Validator { served: settings.watched.clone(), share, in_force };
    let (key_writer, key) = CallerKeyWriter::new(client.clone(), &settings.injection.validator);
    let evictions = Evictions { pods: pods.clone(), key, callers_are_proven: false };
    let is_ready = when_ready(ready, authority.clone());
    let errors = StoreErrors::new(false, "the API server answers again");
    let facts = event_sender.clone();
    let context = CampaignContext::new(event_sender, command_receiver, driver, is_ready, errors);
    tokio::spawn(campaign::run(candidate, context));
    let settings = Arc::new(settings);
    let observed = Observed {
        client: client.clone(),
        handle,
        facts,
        objects: objects.clone(),
        pods,
        injector: injector.clone(),
        settings: Arc::clone(&settings),
        holder,
    };
    tokio::spawn(async move {
        // Without a driver the process is about to end.
        let Ok(handle) = driver_receiver.await else { return };
        handle_sender.send_replace(Some(handle.clone()));
        if let Some(authority) = authority {
            // Who has the certificates made elsewhere gives no right to webhook configurations.
            tokio::spawn(key_writer.run(watch_leadership(handle.clone())));
            let namespaces = namespaces(objects);
            let InjectionSettings { configuration, validator, .. } = &settings.injection;
            let injecting = ca_injector(&client, configuration, &authority, &handle);
            tokio::spawn(injecting.run::<MutatingWebhookConfiguration>());
            let validating = ca_injector(&client, validator, &authority, &handle);
            tokio::spawn(validating.run::<ValidatingWebhookConfiguration>());
            tokio::spawn(
                bundle_publisher(&client, &settings, authority, namespaces, &handle).run(),
            );
        }
        // The sender must live as long as the driver: tasks wait on the receiver.
        handle_sender.closed().await;
    });
    let access = Access::Asked(access_reviewer.start());
    let platform = Platform {
        events,
        commands,
        problems,
        freshness,
        cell,
        replicas,
        access,
        progress,
        handle_sender: Some(driver_sender),
    };
    Ok(Started { platform, certificates, bundle, trust, injector, validator, evictions, observed })
}

impl Settings {
    /// The name that agents and replicas verify in the server's certificate.
    fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// The agent as this installation makes it.
    fn installation(&self) -> Sidecar {
        Sidecar {
            image: self.injection.image.clone(),
            coordinator: self.injection.coordinator.clone(),
            server_name: self.server_name(),
            audience: self.audience.clone(),
            authority: names::CA_CONFIG_MAP.to_owned(),
            cluster: None,
            drain_deadline: None,
            flags: BTreeMap::new(),
            resources: Resources::standard(),
            user: self.injection.user,
            pull_secrets: self.injection.pull_secrets.clone(),
        }
    }
}

/// Resolves when a replica may lead: it has a desired state and a certificate.
fn when_ready(
    desired: oneshot::Receiver<()>,
    authority: Option<Authority>,
) -> oneshot::Receiver<()> {
    let (ready, is_ready) = oneshot::channel();
    tokio::spawn(async move {
        if desired.await.is_err() {
            return;
        }
        if let Some(mut authority) = authority {
            authority.ready().await;
        }
        // The receiver is gone when the process is about to end.
        let _ = ready.send(());
    });
    is_ready
}

fn ca_injector(
    client: &Client,
    configuration: &str,
    authority: &Authority,
    handle: &Handle,
) -> CaInjector {
    CaInjector {
        client: client.clone(),
        configuration: configuration.to_owned(),
        bundle: authority.bundle.clone(),
        leads: watch_leadership(handle.clone()),
        every: PUBLISH_EVERY,
    }
}

fn bundle_publisher(
    client: &Client,
    settings: &Settings,
    authority: Authority,
    namespaces: watch::Receiver<BTreeSet<String>>,
    handle: &Handle,
) -> BundlePublisher {
    BundlePublisher {
        client: client.clone(),
        namespace: settings.namespace.clone(),
        namespaces,
        bundle: authority.bundle,
        leads: watch_leadership(handle.clone()),
        every: PUBLISH_EVERY,
    }
}

/// The namespaces that have a WorkerCluster, as they change.
fn namespaces(objects: watch::Receiver<Arc<Objects>>) -> watch::Receiver<BTreeSet<String>> {
    derived(objects, Objects::namespaces)
}

/// The WorkerClusters and WorkerClasses as injection needs them, as they change; `None` before all
/// were read.
fn clusters(objects: watch::Receiver<Arc<Objects>>) -> watch::Receiver<Option<Arc<Clusters>>> {
    derived(objects, |objects| {
        let mut clusters = Clusters::default();
        for (name, current) in &objects.classes {
            if objects.is_class(name) {
                let (namespace, own) = name.parts();
                let cluster = (&current.object.spec.0).into();
                clusters.insert(namespace.unwrap_or_default(), own, cluster);
            }
        }
        for (name, current) in &objects.clusters {
            if !objects.is_class(name) {
                let (namespace, own) = name.parts();
                let cluster = (&current.object.spec.0).into();
                clusters.insert(namespace.unwrap_or_default(), own, cluster);
            }
        }
        objects.is_whole.then(|| Arc::new(clusters))
    })
}

/// A value computed from the objects, as it changes.
fn derived<T: Clone + Default + PartialEq + Send + Sync + 'static>(
    mut objects: watch::Receiver<Arc<Objects>>,
    look: fn(&Objects) -> T,
) -> watch::Receiver<T> {
    let (sender, receiver) = watch::channel(T::default());
    tokio::spawn(async move {
        loop {
            let current = look(&objects.borrow_and_update());
            sender.send_if_modified(|last| {
                let is_new = *last != current;
                *last = current;
                is_new
            });
            tokio::select! {
                changed = objects.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    receiver
}
