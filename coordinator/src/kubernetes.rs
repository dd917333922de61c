//! A replica on Kubernetes: its platform, the webhooks, and the operator beside them.

use std::process::ExitCode;

use leasehold_driver::platform::Platform;
use leasehold_driver::trust::Trust;
use leasehold_kube_api::crd;
use leasehold_platform_kube::webhook::{self, Evictions};
use leasehold_platform_kube::{self as platform, Started};
use leasehold_server::https::Https;
use leasehold_server::tls::{self, Certificates, webhook_clients};

use crate::config::{KubernetesSettings, Settings};
use crate::sockets::bind;

/// The parts of a replica on Kubernetes.
pub(crate) struct KubernetesParts {
    pub(crate) platform: Platform,
    /// The certificates of the ports.
    pub(crate) certificates: Option<Certificates>,
    /// The authorities to trust when this replica dials another one.
    pub(crate) trust: Option<Trust>,
    pub(crate) webhook: Option<Https>,
}

/// Starts the platform and the operator on the present runtime. `certificates` are those of the
/// files in `settings`; without them the replica issues its own.
///
/// # Errors
/// If the webhook's address cannot be bound, or no Kubernetes configuration is found.
pub(crate) async fn start(
    kubernetes: KubernetesSettings,
    settings: Settings,
    address: String,
    certificates: Option<Certificates>,
) -> anyhow::Result<KubernetesParts> {
    let KubernetesSettings {
        namespace,
        watched,
        namespace_share,
        service,
        audience,
        injection,
        webhook_clients: clients,
    } = kubernetes;
    let socket = bind("--webhook-listen", injection.listen)?;
    tracing::info!(webhook = %socket.local_addr()?, "listening");
    let started = platform::start(platform::Settings {
        namespace,
        watched,
        namespace_share,
        service,
        audience,
        identity: settings.identity,
        address,
        takeover_after: settings.takeover_after,
        leadership: settings.leadership,
        bounds: settings.bounds,
        certificate: settings.tls.map(|files| (files.cert, files.key)),
        injection,
    });
    let Started {
        platform,
        certificates: made,
        bundle,
        trust,
        injector,
        validator,
        evictions,
        observed,
    } = started.await?;
    tokio::spawn(leasehold_operator::run(observed));
    let certificates = certificates
        .or_else(|| made.zip(bundle).map(|(made, bundle)| tls::from_platform(made, bundle)));
    let evictions = Evictions { callers_are_proven: clients.is_some(), ..evictions };
    let served = match (certificates.clone(), clients) {
        (Some(certificates), Some(clients)) => {
            Some(webhook_clients::require(certificates, clients)?)
        }
        (certificates, _) => certificates,
    };
    let webhook = served.map(|certificates| Https {
        socket,
        certificates,
        router: Box::new(|metrics| webhook::router(injector, validator, evictions, metrics)),
    });
    Ok(KubernetesParts { platform, certificates, trust, webhook })
}

/// Prints the custom resource definitions that the platform reads.
///
/// # Errors
/// If they cannot be written as YAML.
pub fn crds() -> anyhow::Result<ExitCode> {
    print!("{}", crd::yaml()?);
    Ok(ExitCode::SUCCESS)
}
