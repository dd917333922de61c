//! The way to a coordinator on Kubernetes: a port-forward to the leader's pod, its certificate
//! authority, and a token of a service account.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use leasehold_kube_api::names::pod_of_replica;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tower::service_fn;

use super::keepalive::kept_alive;
use crate::argument;
use crate::port_forward::{AGENT_PORT, port_forward};

/// The Lease of the election, and the Service of the replicas.
const COORDINATOR: &str = "leasehold-coordinator";
/// The ConfigMap of the authority that signs their certificates, and its key there.
const AUTHORITY: (&str, &str) = ("leasehold-ca", "ca.crt");
/// How long a token lasts: longer than anybody watches a screen.
const TOKEN_SECONDS: i64 = 8 * 3_600;
/// What the API server calls service accounts as users.
const ACCOUNT: &str = "system:serviceaccount:";

/// The flags of [`KubernetesArgs`].
pub(super) const FLAGS: [&str; 5] =
    ["kubeconfig", "context", "namespace", "service-account", "audience"];

/// Which cluster, and on whose behalf.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct KubernetesArgs {
    /// The kubeconfig [default: KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", value_parser = argument::context)]
    context: Option<String>,
    /// The namespace of the coordinators
    #[arg(long, value_name = "NAMESPACE", default_value = "leasehold-system")]
    #[arg(value_parser = argument::namespace)]
    namespace: String,
    /// Ask with the rights of this service account [default: you, if you are one]
    #[arg(
        long,
        env = "LEASEHOLD_SERVICE_ACCOUNT",
        value_name = "NAMESPACE/NAME",
        value_parser = namespace_and_name
    )]
    service_account: Option<(String, String)>,
    /// The audience of its token, as the coordinators' --audience
    #[arg(long, value_name = "NAME", default_value = "leasehold.dev")]
    #[arg(value_parser = argument::audience)]
    audience: String,
}

impl KubernetesArgs {
    /// Whether a service account is named, which only a cluster has.
    pub(super) fn has_service_account(&self) -> bool {
        self.service_account.is_some()
    }

    /// The configuration of the cluster, if there is one.
    ///
    /// # Errors
    /// If none is found, or it cannot be used.
    pub(super) async fn config(&self) -> anyhow::Result<Config> {
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match &self.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file);
                let read = read.with_context(|| format!("cannot read {}", file.display()))?;
                Ok(Config::from_custom_kubeconfig(read, &options).await?)
            }
            None if self.context.is_some() => Ok(Config::from_kubeconfig(&options).await?),
            // The error repeats its causes.
            None => Config::infer().await.map_err(|error| anyhow::anyhow!("{error}")),
        }
    }
}

/// The coordinators of one cluster.
#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
    namespace: String,
    tls: ClientTlsConfig,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The coordinators of the cluster, and a token for them unless `has_token`.
    ///
    /// # Errors
    /// Which right or object is missing, or that nobody's token can be had.
    pub(super) async fn open(
        config: Config,
        args: &KubernetesArgs,
        has_token: bool,
    ) -> anyhow::Result<(Self, Option<String>)> {
        let namespace = args.namespace.clone();
        let client = Client::try_from(config).context("cannot use the kubeconfig")?;
        let (name, key) = AUTHORITY;
        let authority = Api::<ConfigMap>::namespaced(client.clone(), &namespace).get(name).await;
        let authority = authority.with_context(|| {
            format!("cannot read the ConfigMap {name} in {namespace} (is Leasehold there?)")
        })?;
        let authority = authority.data.unwrap_or_default().remove(key);
        let authority = authority.with_context(|| format!("the ConfigMap {name} has no {key}"))?;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority))
            .domain_name(format!("{COORDINATOR}.{namespace}.svc"));
        let token = if has_token { None } else { Some(token(&client, args).await?) };
        Ok((Self { client, namespace, tls }, token))
    }

    /// Connects to the leader's pod within a time: the connection, and what it is called.
    ///
    /// # Errors
    /// Which right is missing, or that there is no leader.
    pub(super) async fn dial(&self, within: Duration) -> anyhow::Result<(Channel, String)> {
        let namespace = &self.namespace;
        let leases = Api::<Lease>::namespaced(self.client.clone(), namespace);
        let lease = leases.get(COORDINATOR).await;
        let lease =
            lease.with_context(|| format!("cannot read the Lease {COORDINATOR} in {namespace}"))?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let Some(pod) = pod_of_replica(&holder) else {
            bail!("no coordinator leads in {namespace}: see `leasehold check`");
        };
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let name = pod.to_owned();
        let forward = service_fn(move |_| {
            let (pods, name) = (pods.clone(), name.clone());
            async move {
                let stream = port_forward(&pods, &name, AGENT_PORT).await?;
                Ok::<_, kube::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("https://leasehold-coordinator:7400");
        let endpoint = kept_alive(endpoint.connect_timeout(within)).tls_config(self.tls.clone())?;
        let channel = endpoint.connect_with_connector(forward).await;
        let channel =
            channel.with_context(|| format!("cannot port-forward to pod {pod} in {namespace}"))?;
        Ok((channel, format!("pod {pod}")))
    }
}

fn namespace_and_name(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/');
    let parts = parts.filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let parts = parts.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
    parts.ok_or_else(|| "expected NAMESPACE/NAME, for example ci/looker".to_owned())
}

/// A token of the service account that the caller names, or is.
async fn token(client: &Client, args: &KubernetesArgs) -> anyhow::Result<String> {
    let (namespace, name) = match &args.service_account {
        Some(account) => account.clone(),
        None => {
            let user = user(client).await?;
            let account = user.strip_prefix(ACCOUNT).and_then(|account| account.split_once(':'));
            let Some((namespace, name)) = account else {
                bail!(
                    "coordinators take tokens of service accounts, and you are {user}: name one \
                     with --service-account NAMESPACE/NAME; to make one that may look at a \
                     namespace: kubectl create serviceaccount -n NAMESPACE looker && kubectl \
                     create rolebinding -n NAMESPACE looker --clusterrole=leasehold-viewer \
                     --serviceaccount=NAMESPACE:looker"
                );
            };
            (namespace.to_owned(), name.to_owned())
        }
    };
    let wanted = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![args.audience.clone()]),
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &namespace);
    let made = accounts.create_token_request(&name, &PostParams::default(), &wanted).await;
    let made = made.with_context(|| {
        format!(
            "cannot get a token of service account {namespace}/{name} (that needs `create \
             serviceaccounts/token`; or give one with --token-file)"
        )
    })?;
    let token = made.status.and_then(|status| status.token);
    token.context("the API server has made no token")
}

/// Who the API server takes the caller for.
async fn user(client: &Client) -> anyhow::Result<String> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.context("the API server does not say who you are")?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    Ok(user.username.unwrap_or_else(|| "unknown".to_owned()))
}

/// Whether the file names of a kubeconfig lead anywhere, for those who name none.
pub(super) fn may_be_configured() -> bool {
    let named = std::env::var_os("KUBECONFIG").is_some_and(|files| !files.is_empty());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let in_pod = Path::new("/var/run/secrets/kubernetes.io/serviceaccount/token").exists();
    named || in_pod || home.is_some_and(|home| home.join(".kube/config").exists())
}
