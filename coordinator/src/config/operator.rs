//! The command line of a replica on Kubernetes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold_kube_api::names;
use leasehold_platform_kube::{AgentUser, InjectionSettings, pull_secrets};
use leasehold_server::tls::webhook_clients::WebhookClients;
use leasehold_types::flag::number;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::{WorkerName, is_host_and_port, parse_listen, why_undialable};

use super::{
    DefaultTimes, NAME_BYTES_MAX, PlatformSettings, ReplicaArgs, Settings, UsageError, refuse,
    share_a_port,
};

/// The defaults of --takeover-after and --leadership: a lost connection is noticed sooner than on
/// files, and the API server may be unavailable for longer.
const TAKEOVER: Duration = Duration::from_secs(1);
const LEADERSHIP: Duration = Duration::from_secs(300);
/// The port of the Service.
const SERVICE_PORT: u16 = 7400;

/// The flags of `operator`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "In a pod the flags come from deploy/. Outside, with a kubeconfig:\n  \
    leasehold-coordinator operator --namespace leasehold-system --watch-namespace ci")]
pub struct OperatorArgs {
    /// The namespace of the election's Lease and of the certificates.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_NAMESPACE")]
    #[arg(default_value = "leasehold-system")]
    pub namespace: String,
    /// A namespace to serve; repeatable, or separated by commas [default: all namespaces].
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_WATCH_NAMESPACE", value_delimiter = ',')]
    pub watch_namespace: Vec<String>,
    /// The part of each limit that the objects of one namespace may use, in percent [default: 25,
    /// or 100 with a single --watch-namespace].
    #[arg(long, value_name = "PERCENT", env = "LEASEHOLD_NAMESPACE_SHARE")]
    #[arg(value_parser = number::<u32>(1..=100, "a percentage", 25))]
    pub namespace_share: Option<u32>,
    /// The Service that agents dial, in --namespace; certificates are issued for its name.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_SERVICE")]
    #[arg(default_value = "leasehold-coordinator")]
    pub service: String,
    /// The audience that the tokens of agents and people must have.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_AUDIENCE")]
    #[arg(default_value = "leasehold.dev")]
    pub audience: String,
    /// The image of injected agents [default: the one of this program's release].
    #[arg(long, value_name = "IMAGE", env = "LEASEHOLD_AGENT_IMAGE")]
    pub agent_image: Option<String>,
    /// The user and group of injected agents: UID:GID, or `none` to leave both to the pod, the
    /// namespace or the image, as OpenShift wants it.
    #[arg(long, value_name = "UID:GID", env = "LEASEHOLD_AGENT_USER")]
    #[arg(default_value = "65532:65532")]
    pub agent_user: AgentUser,
    /// The Secrets, separated by commas, that injected agents' image is pulled with: they must be
    /// in the workers' namespaces [default: those of the pod].
    #[arg(long, value_name = "NAMES", env = "LEASEHOLD_AGENT_PULL_SECRETS")]
    pub agent_pull_secrets: Option<String>,
    /// The address that injected agents dial [default: SERVICE.NAMESPACE.svc:7400].
    #[arg(long, value_name = "HOST:PORT", env = "LEASEHOLD_AGENT_COORDINATOR")]
    pub agent_coordinator: Option<String>,
    /// Address for the admission webhooks (HTTPS): /inject for pods, /validate for classes and
    /// pipelines, /evict for evictions.
    #[arg(long, value_name = "IP:PORT", env = "LEASEHOLD_WEBHOOK_LISTEN")]
    #[arg(default_value = "127.0.0.1:7403", value_parser = parse_listen::<SocketAddr>)]
    pub webhook_listen: SocketAddr,
    /// Authorities (PEM) that sign the client certificate of API servers: the webhooks answer
    /// nobody else [default: they answer all, and ask for no certificate].
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_WEBHOOK_CLIENT_CA")]
    pub webhook_client_ca: Option<PathBuf>,
    /// The common name, or a DNS name, of that certificate [default: any].
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_WEBHOOK_CLIENT_NAME")]
    #[arg(requires = "webhook_client_ca")]
    pub webhook_client_name: Option<String>,
    /// The MutatingWebhookConfiguration whose caBundle the leader keeps current.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_WEBHOOK_CONFIGURATION")]
    #[arg(default_value = "leasehold-injector")]
    pub webhook_configuration: String,
    /// The ValidatingWebhookConfiguration whose caBundle the leader keeps current. The leader also
    /// adds a secret to the path of the webhook evictions.leasehold.dev.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_VALIDATOR_CONFIGURATION")]
    #[arg(default_value = "leasehold-validator")]
    pub validator_configuration: String,
    /// The flags of every replica.
    #[command(flatten)]
    pub replica: ReplicaArgs,
}

/// The settings that only a replica on Kubernetes has.
#[derive(Clone, Debug)]
pub struct KubernetesSettings {
    /// The namespace of the coordinator's own objects.
    pub namespace: String,
    /// The namespaces that are served; all if it is empty.
    pub watched: Vec<String>,
    /// The part of the limits that one namespace may use.
    pub namespace_share: NamespaceShare,
    /// The Service that agents dial.
    pub service: String,
    /// The audience of tokens.
    pub audience: String,
    /// What is injected into pods, and the webhook's address.
    pub injection: InjectionSettings,
    /// Who may call the webhooks; all if it is `None`.
    pub webhook_clients: Option<WebhookClients>,
}

impl OperatorArgs {
    /// The flags, checked against each other.
    ///
    /// # Errors
    /// [`UsageError`] if two of them conflict, or one is out of its range.
    pub fn settings(self) -> Result<Settings, UsageError> {
        let injection = self.injection()?;
        let namespace_share = self.namespace_share();
        let webhook_clients = self.webhook_clients()?;
        let Self { namespace, watch_namespace: watched, service, audience, replica, .. } = self;
        let named = [&namespace, &service].into_iter().chain(&watched);
        for name in named {
            if WorkerName::present_name(name).is_err() || name.contains('.') {
                return refuse(format!(
                    "invalid namespace or Service name {name:?}: use a DNS label in --namespace, \
                     --watch-namespace and --service"
                ));
            }
        }
        if audience.is_empty() {
            return refuse("--audience must not be empty");
        }
        let times = DefaultTimes { takeover_after: TAKEOVER, leadership: LEADERSHIP };
        let kubernetes = KubernetesSettings {
            namespace,
            watched,
            namespace_share,
            service,
            audience,
            injection,
            webhook_clients,
        };
        replica.settings(PlatformSettings::Kubernetes(Box::new(kubernetes)), &times)
    }

    fn namespace_share(&self) -> NamespaceShare {
        let of_percent = self.namespace_share.and_then(NamespaceShare::of_percent);
        of_percent.unwrap_or_else(|| match self.watch_namespace.len() {
            1 => NamespaceShare::WHOLE,
            _ => NamespaceShare::default(),
        })
    }

    fn webhook_clients(&self) -> Result<Option<WebhookClients>, UsageError> {
        let Some(authorities) = self.webhook_client_ca.clone() else { return Ok(None) };
        let name = self.webhook_client_name.clone();
        if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return refuse(
                "--webhook-client-name must not be empty: leave it out to accept every \
                 certificate that --webhook-client-ca has signed",
            );
        }
        Ok(Some(WebhookClients { authorities, name }))
    }

    fn injection(&self) -> Result<InjectionSettings, UsageError> {
        let Self { namespace, service, webhook_listen: listen, .. } = self;
        let image = self.agent_image.clone().unwrap_or_else(|| names::AGENT_IMAGE.clone());
        let is_word = |c: char| !c.is_control() && !c.is_whitespace();
        if image.is_empty() || image.len() > NAME_BYTES_MAX || !image.chars().all(is_word) {
            return refuse(format!(
                "invalid --agent-image {image:?}: expected an image name, for example \
                 registry/agent:1.0"
            ));
        }
        let of_service = || format!("{service}.{namespace}.svc:{SERVICE_PORT}");
        let coordinator = self.agent_coordinator.clone().unwrap_or_else(of_service);
        if !is_host_and_port(&coordinator) {
            return refuse(format!(
                "invalid --agent-coordinator {coordinator:?}: expected HOST:PORT, for example \
                 leasehold-coordinator.leasehold-system.svc:7400"
            ));
        }
        if let Some(why) = why_undialable(&coordinator) {
            return refuse(format!(
                "injected agents cannot dial --agent-coordinator {coordinator}: {why}; give the \
                 Service's HOST:PORT, for example leasehold-coordinator.leasehold-system.svc:7400"
            ));
        }
        let (configuration, validator) =
            (&self.webhook_configuration, &self.validator_configuration);
        for (flag, name) in
            [("--webhook-configuration", configuration), ("--validator-configuration", validator)]
        {
            if WorkerName::present_name(name).is_err() {
                return refuse(format!("invalid {flag} {name:?}: use a DNS subdomain"));
            }
        }
        let others =
            [("--listen", self.replica.listen), ("--http-listen", self.replica.http_listen)];
        for (flag, other) in others {
            if share_a_port(*listen, other) {
                return refuse(format!(
                    "--webhook-listen {listen} and {flag} {other} are the same address: change one \
                     of them"
                ));
            }
        }
        let pull_secrets = match self.agent_pull_secrets.as_deref() {
            None | Some("") => Vec::new(),
            Some(names) => pull_secrets(names)
                .map_err(|why| UsageError(format!("--agent-pull-secrets: {why}")))?,
        };
        Ok(InjectionSettings {
            image,
            coordinator,
            user: self.agent_user,
            pull_secrets,
            listen: *listen,
            configuration: configuration.clone(),
            validator: validator.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::{Cli, Command};
    use super::*;

    fn settings(flags: &[&str]) -> Result<InjectionSettings, String> {
        let words = ["leasehold-coordinator", "operator"].iter().chain(flags);
        let cli = Cli::read(words.map(OsString::from));
        let Command::Operator(arguments) = cli.map_err(|error| error.to_string())?.command else {
            panic!("another command");
        };
        match arguments.settings().map_err(|usage| usage.to_string())?.platform {
            PlatformSettings::Kubernetes(kubernetes) => Ok(kubernetes.injection),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn injected_agents_have_the_coordinators_version_and_dial_its_service_by_default() {
        let named = settings(&["--namespace", "ours", "--service", "lh"]).expect("valid");
        assert_eq!(named.image, *names::AGENT_IMAGE);
        assert_eq!(named.coordinator, "lh.ours.svc:7400");
        let given = ["--agent-image", "mirror/agent:7", "--agent-coordinator", "10.0.0.1:1"];
        let given = settings(&given).expect("valid");
        assert_eq!((&*given.image, &*given.coordinator), ("mirror/agent:7", "10.0.0.1:1"));
        assert_eq!((given.user, given.pull_secrets.len()), (AgentUser::STANDARD, 0));
        let image = "mirror/agent@sha256:0123456789abcdef";
        let given = ["--agent-image", image, "--agent-user", "none", "--agent-pull-secrets", "a,b"];
        let given = settings(&given).expect("valid");
        assert_eq!((&*given.image, given.user), (image, AgentUser::Unset));
        assert_eq!(given.pull_secrets, ["a", "b"]);
    }

    #[test]
    fn invalid_flags_are_refused_with_an_error_that_names_them() {
        for (flags, named) in [
            (&["--agent-image", ""][..], "--agent-image"),
            (&["--agent-image", "a b"], "--agent-image"),
            (&["--agent-user", "0:0"], "--agent-user"),
            (&["--agent-user", "me"], "--agent-user"),
            (&["--agent-pull-secrets", "a,,b"], "--agent-pull-secrets"),
            (&["--agent-coordinator", "nowhere"], "--agent-coordinator"),
            (&["--agent-coordinator", "0.0.0.0:7400"], "cannot dial --agent-coordinator"),
            (&["--webhook-listen", "127.0.0.1:7400"], "--listen"),
            (&["--webhook-listen", "0.0.0.0:7401"], "--http-listen"),
            (&["--webhook-configuration", "A b"], "--webhook-configuration"),
            (&["--validator-configuration", ""], "--validator-configuration"),
            (&["--namespace", "a.b"], "--namespace"),
            (&["--namespace-share", "-1"], "expected a percentage: a whole number from 1 to 100"),
            (&["--audience", ""], "--audience"),
            (&["--webhook-client-name", "api"], "--webhook-client-ca"),
            (
                &["--webhook-client-ca", "ca.pem", "--webhook-client-name", ""],
                "--webhook-client-name must not be empty",
            ),
        ] {
            let error = settings(flags).expect_err(&format!("{flags:?} was taken"));
            assert!(error.contains(named), "{flags:?}: {error}");
        }
    }
}
