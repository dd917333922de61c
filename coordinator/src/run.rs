//! Runs one replica: starts the platform, the driver and the ports, and stops them in an order in
//! which no grant goes out after leadership is released.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use leasehold_coordinator_core::desired::Desired;
use leasehold_driver::access::Access;
use leasehold_driver::driver::{self, Driver};
use leasehold_driver::metrics::Metrics;
use leasehold_driver::platform::Platform;
use leasehold_driver::replicas::{KnownReplica, Replicas};
use leasehold_driver::trust::Trust;
use leasehold_manifest::{Catalog, Reading};
use leasehold_platform_etcd as etcd;
use leasehold_platform_file as file;
use leasehold_server::admin::Admin;
use leasehold_server::cluster_history::ClusterHistories;
use leasehold_server::file_shares::FileShares;
use leasehold_server::grpc::{self, AdminCalls, GrpcPort, PeerTransport};
use leasehold_server::http::{self, HttpState};
use leasehold_server::https::{self, Https};
use leasehold_server::job_history::JobHistory;
use leasehold_server::other_cells::OtherCells;
use leasehold_server::tls::{Certificates, ClientCaFile, TlsFiles};
use leasehold_types::limits::NamespaceShare;
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::Resource;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::{EtcdSettings, PlatformSettings, Settings};
use crate::export::Exporters;
use crate::file_limit;

#[cfg(feature = "kubernetes")]
use crate::kubernetes;
pub use crate::sockets::Sockets;
use crate::telemetry::Telemetry;

/// How long open streams may take to end once every session was refused.
const STREAMS_END_TIMEOUT: Duration = Duration::from_millis(500);

/// The output of `check` for a folder without manifests.
const NOTHING_DEFINED: &str = "no object is defined (manifests are files *.yaml and *.yml)";
/// How long the last metrics may take to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The options of a replica, apart from its sockets and its platform.
#[derive(Default)]
pub struct Options {
    /// This replica's name.
    pub identity: String,
    /// Where agents and people reach it; where its gRPC socket listens, if this is empty.
    pub address: String,
    /// Where its HTTP port is reached; empty if nobody else is to know.
    pub http_address: String,
    /// How far clocks may drift apart.
    pub bounds: leasehold_types::TimeBounds,
    /// The most agents that may be connected.
    pub sessions_max: usize,
    /// The part of the limits that one namespace may use.
    pub namespace_share: NamespaceShare,
    /// The most files that this process may open, if there is a limit.
    pub files_max: Option<usize>,
    /// The certificates of the gRPC port; plain text without them.
    pub tls: Option<Certificates>,
    /// The authorities to trust when a call is forwarded to the leader. With TLS and without this
    /// a standby returns the leader's address instead.
    pub trust: Option<Trust>,
    /// The attributes of this process for collectors.
    pub resource: Option<Resource>,
    /// The exporter that pushes metrics, if any.
    pub metrics: Option<MetricExporter>,
    /// The port of the admission webhooks.
    pub webhook: Option<Https>,
}

/// Runs a replica until SIGTERM or SIGINT; a second signal ends the process at once.
///
/// # Errors
/// If the replica cannot start, or a part of it fails.
pub fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(run_settings(settings));
    // Blocking work that still runs (a resolver, a file) must not delay the exit.
    runtime.shutdown_background();
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn run_settings(settings: Settings) -> anyhow::Result<()> {
    let certificates = settings.tls.clone().map(TlsFiles::follow).transpose()?;
    let mut telemetry = Telemetry::start(settings.log_format)?;
    let sockets = Sockets::bind(settings.listen, settings.http_listen)?;
    let grpc = sockets.grpc_addr()?;
    let http = sockets.http_addr()?;
    let address = settings.advertise.clone().unwrap_or_else(|| grpc.to_string());
    tracing::info!(
        %grpc, %http, advertise = address, identity = settings.identity,
        version = env!("CARGO_PKG_VERSION"), "listening"
    );
    // Only Kubernetes changes the certificates and adds the webhooks.
    #[cfg_attr(not(feature = "kubernetes"), allow(unused_mut))]
    let mut options = Options {
        identity: settings.identity.clone(),
        address: address.clone(),
        http_address: String::new(),
        bounds: settings.bounds,
        sessions_max: settings.sessions_max,
        namespace_share: NamespaceShare::WHOLE,
        files_max: file_limit::raise(),
        tls: certificates,
        trust: None,
        resource: Some(telemetry.resource.clone()),
        metrics: telemetry.metrics.take(),
        webhook: None,
    };
    let platform = match settings.platform.clone() {
        PlatformSettings::Files { manifests, confirm_removals, state_dir, trusts_locks, cell } => {
            let access = access_without_kubernetes(settings.tls.as_ref());
            options.http_address = reached_at(http, &address);
            let platform = file::start(file::Settings {
                manifests,
                confirm_removals,
                state_dir,
                trusts_locks,
                cell,
                identity: settings.identity,
                address,
                http_address: options.http_address.clone(),
                takeover_after: settings.takeover_after,
                leadership: settings.leadership,
                bounds: settings.bounds,
            });
            Platform { access, ..platform.await? }
        }
        PlatformSettings::Etcd(parts) => {
            let access = access_without_kubernetes(settings.tls.as_ref());
            options.http_address = reached_at(http, &address);
            Platform { access, ..start_on_etcd(*parts, settings, address).await? }
        }
        #[cfg(feature = "kubernetes")]
        PlatformSettings::Kubernetes(kubernetes) => {
            options.namespace_share = kubernetes.namespace_share;
            let started = kubernetes::start(*kubernetes, settings, address, options.tls.take());
            let parts = started.await?;
            (options.tls, options.trust) = (parts.certificates, parts.trust);
            options.webhook = parts.webhook;
            parts.platform
        }
    };
    let stop = stop_signals()?;
    let outcome = serve(options, sockets, platform, stop).await;
    match &outcome {
        Ok(()) => tracing::info!("stopped"),
        Err(error) => tracing::error!("{error:#}"),
    }
    // Flushing blocks this thread for a moment; exporters send on the others.
    tokio::task::block_in_place(|| telemetry.shutdown());
    outcome
}

/// Starts the platform on etcd, for a replica at this address.
async fn start_on_etcd(
    parts: EtcdSettings,
    settings: Settings,
    address: String,
) -> anyhow::Result<Platform> {
    let EtcdSettings { connection, prefix, manifests, confirm_removals, state_dir, cell } = parts;
    if connection.tls.is_none() {
        tracing::warn!(
            "etcd is reached without TLS: who can change what passes between can lead in this \
             replica's place; use https in --etcd on a network that others reach"
        );
    }
    let started = etcd::start(etcd::Settings {
        connection,
        prefix,
        manifests,
        confirm_removals,
        state_dir,
        cell,
        identity: settings.identity,
        address,
        takeover_after: settings.takeover_after,
        leadership: settings.leadership,
        bounds: settings.bounds,
    });
    started.await
}

/// Where a socket is reached: an address that means all of this host's says less than the one that
/// this replica gives others.
fn reached_at(socket: SocketAddr, advertised: &str) -> String {
    match advertised.rsplit_once(':') {
        Some((host, _)) if socket.ip().is_unspecified() => format!("{host}:{}", socket.port()),
        _ => socket.to_string(),
    }
}

/// Who may do what without Kubernetes; the log says what clients have to prove.
fn access_without_kubernetes(tls: Option<&TlsFiles>) -> Access {
    match tls.map(|files| &files.clients) {
        Some(ClientCaFile::Required(_)) => {
            tracing::info!("the URI in a client's certificate decides what the client may do");
            Access::Certificates
        }
        Some(ClientCaFile::None | ClientCaFile::Optional(_)) | None => {
            tracing::warn!(
                "clients prove nothing: every client of the gRPC port can act as any worker and \
                 give orders; set --tls-client-ca to bind clients to the names in their \
                 certificates"
            );
            Access::Open
        }
    }
}

/// Serves over a platform until `stop`, then releases leadership and ends every session.
///
/// # Errors
/// If a part fails or ends too early.
pub async fn serve(
    options: Options,
    sockets: Sockets,
    platform: Platform,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let resource = options.resource.unwrap_or_else(|| Resource::builder_empty().build());
    let is_pushed = options.metrics.is_some();
    let exporters = Exporters::new(resource, options.metrics);
    let mut exposition = exporters.exposition();
    let metrics = Arc::new(Metrics::new(exporters.meter(), &mut exposition, is_pushed));
    let files = FileShares::of(options.files_max.unwrap_or(usize::MAX));
    let sessions_max = files.sessions(options.sessions_max);
    if sessions_max < options.sessions_max {
        tracing::warn!(
            files = options.files_max,
            agents = sessions_max,
            wanted = options.sessions_max,
            "the limit of open files allows fewer agents than --sessions-max: raise the hard limit \
             (LimitNOFILE= of systemd, ulimit -Hn), or lower --sessions-max"
        );
    }
    let (bounds, namespace_share) = (options.bounds, options.namespace_share);
    let settings = driver::Settings { bounds, sessions_max, namespace_share };
    if let Some(certificates) = &options.tls {
        let certificates = certificates.clone();
        metrics
            .show_certificate(move || certificates.borrow().expires_at.map(|time| time.as_secs()));
    }
    let (access, known) = (platform.access.clone(), platform.replicas.clone());
    let cell = platform.cell.clone();
    let (driver, sessions, handle) = Driver::new(&settings, platform, Arc::clone(&metrics));
    let (health, grpc) = (Arc::clone(&sessions.health), sockets.grpc_addr()?);
    let reach = match (&options.tls, options.trust) {
        (None, _) => PeerTransport::Plain,
        (Some(_), Some(trust)) => PeerTransport::Secured(trust),
        (Some(_), None) => PeerTransport::Not,
    };
    let address = if options.address.is_empty() { grpc.to_string() } else { options.address };
    let own = KnownReplica {
        http_address: options.http_address,
        ..KnownReplica::of_this_build(options.identity, address)
    };
    let replicas = Arc::new(Replicas::new(own, cell, known));
    tokio::spawn(Arc::clone(&replicas).note_http_ports());
    let (jobs, other_cells) = (Arc::<JobHistory>::default(), Arc::<OtherCells>::default());
    let histories = Arc::<ClusterHistories>::default();
    tokio::spawn(Arc::clone(&histories).sample(handle.clone()));
    let for_people = handle.for_people();
    let admin = Admin::new(
        for_people.clone(),
        access.clone(),
        sessions.namespace_share,
        Arc::clone(&replicas),
        Arc::clone(&jobs),
        Arc::clone(&other_cells),
        histories,
    );
    metrics.show_watches(admin.watches());
    let admin = AdminCalls::new(admin, for_people.clone(), Arc::clone(&sessions.term_guard), reach);
    let state = HttpState {
        health,
        handle: for_people,
        grpc,
        exposition: Arc::new(exposition),
        admin: admin.clone(),
        access,
        replicas: Arc::clone(&replicas),
    };
    let (socket, tls) = (sockets.grpc, options.tls);
    let port =
        GrpcPort { replicas, socket, files, tls, sessions, jobs, other_cells, admin, handle };

    // The driver stops before the ports, so that agents still get a refusal.
    let (stop_driver, driver_stops) = watch::channel(false);
    let (stop_ports, ports_stop) = watch::channel(false);
    let mut driver = driver.start(driver_stops)?;
    let mut grpc = tokio::spawn(grpc::serve(port, stopped(ports_stop.clone())));
    let stop_http = stopped(ports_stop.clone());
    let mut http = tokio::spawn(async move {
        http::serve(sockets.http, files, state, stop_http).await;
        Ok(())
    });
    let counted = Arc::clone(&metrics);
    let mut webhook = tokio::spawn(async move {
        match options.webhook {
            Some(webhook) => https::serve(webhook, files, counted, stopped(ports_stop)).await,
            None => stopped(ports_stop).await,
        }
        Ok(())
    });
    let outcome = tokio::select! {
        () = stop => {
            tracing::info!("stopping");
            let _ = stop_driver.send(true);
            (&mut driver).await.context("the driver has panicked").and_then(|ended| ended)
        }
        ended = &mut driver => {
            ended.context("the driver has panicked").and_then(|ended| ended)
        }
        ended = &mut grpc => early("gRPC port", ended),
        ended = &mut http => early("HTTP port", ended),
        ended = &mut webhook => early("webhook", ended),
    };
    let _ = stop_ports.send(true);
    let ports = async {
        for port in [&mut grpc, &mut http, &mut webhook] {
            if !port.is_finished() {
                let _ = port.await;
            }
        }
    };
    if timeout(STREAMS_END_TIMEOUT, ports).await.is_err() {
        tracing::debug!("some streams did not end in time and were aborted");
    }
    for part in [&grpc, &http, &webhook] {
        part.abort();
    }
    let flushed = tokio::task::spawn_blocking(move || exporters.shutdown());
    if timeout(FLUSH_TIMEOUT, flushed).await.is_err() {
        tracing::debug!("the last metrics were not sent in time");
    }
    outcome
}

/// Reads the manifests as [`run`] would. Prints their problems, or what they define; succeeds if
/// there is no problem.
#[must_use]
pub fn check(manifests: &Path) -> ExitCode {
    if manifests.is_file() {
        println!(
            "{} is a file: expected a folder of manifests, for example the one that it is in. \
             `leasehold plan -f FILE` checks one file beside the manifests in force",
            manifests.display()
        );
        return ExitCode::FAILURE;
    }
    if let Err(error) = std::fs::read_dir(manifests) {
        println!(
            "{}: the folder cannot be read ({error}): create it, or correct --manifests",
            manifests.display()
        );
        return ExitCode::FAILURE;
    }
    let Reading { desired, problems, ignored } = Catalog::new(manifests).read();
    for found in problems.iter().chain(&ignored) {
        println!("{found}");
    }
    if !problems.is_empty() {
        return ExitCode::FAILURE;
    }
    let counts = desired.as_deref().map(defined).unwrap_or_default();
    println!("{}: ok", if counts.is_empty() { NOTHING_DEFINED } else { &counts });
    ExitCode::SUCCESS
}

/// The number of objects of each kind.
fn defined(desired: &Desired) -> String {
    let classes = desired.clusters.values().filter(|cluster| cluster.class.is_some()).count();
    let streams: usize = desired.sets.values().map(|set| set.streams.len()).sum();
    let counts = [
        (desired.clusters.len() - classes, "WorkerCluster", "WorkerClusters"),
        (classes, "WorkerClass", "WorkerClasses"),
        (desired.sets.len(), "StreamSet", "StreamSets"),
        (streams, "stream", "streams"),
        (desired.pipelines.len(), "Pipeline", "Pipelines"),
    ];
    let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
    let counts = counts.map(|(count, one, many)| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    });
    counts.collect::<Vec<_>>().join(", ")
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // Fails only if the main task has ended.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn early(
    part: &str,
    ended: Result<anyhow::Result<()>, tokio::task::JoinError>,
) -> anyhow::Result<()> {
    let part = part.to_owned();
    match ended {
        Ok(Ok(())) => Err(anyhow::anyhow!("{part}: ended unexpectedly")),
        Ok(Err(error)) => Err(error.context(part)),
        Err(error) => Err(anyhow::Error::from(error).context(part)),
    }
}

/// Waits for the first SIGTERM or SIGINT; a second one then ends the process at once.
fn stop_signals() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(1);
        });
    })
}
