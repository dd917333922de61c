//! A connection to the coordinator: any replica answers what only reads, and orders go to the
//! leader. A change of leader in between is waited for. Where no coordinator is named and none
//! listens on this host, the kubeconfig's cluster is asked.

mod no_leader;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::{GetStatusRequest, GetStatusResponse};
use leasehold_proto::{HTTP_PORT_MESSAGE, NOT_LEADING_MESSAGE};
use leasehold_types::pem::PemContent;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Response, Status};

use super::keepalive::kept_alive;
use super::kubernetes::{self, Cluster, KubernetesArgs};
use crate::argument;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Where a coordinator listens on this host, unless it is told otherwise.
const ON_THIS_HOST: &str = "127.0.0.1:7400";
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a change of leader is waited for.
const FAILOVER_MAX: Duration = Duration::from_secs(20);
/// How long connections may break that have brought no answer yet: it may be a replica that is
/// ending, or something else that is no coordinator.
const BROKEN_MAX: Duration = Duration::from_secs(2);
/// The interval between two attempts meanwhile.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// The most bytes of an answer: a page of the longest names.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Which coordinator to ask, and how to prove who asks.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionArgs {
    flags: ConnectionFlags,
    /// The command line names a cluster.
    names_cluster: bool,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
struct ConnectionFlags {
    /// Where coordinators are, separated by commas; any replica will do [default: 127.0.0.1:7400
    /// if one listens there, or else the cluster of the kubeconfig]
    #[arg(
        long,
        env = "LEASEHOLD_COORDINATOR",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        value_parser = argument::host_and_port
    )]
    coordinator: Vec<String>,
    /// The authority that signed the coordinators' certificate; without it, no TLS is used
    #[arg(long, env = "LEASEHOLD_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Your certificate, where coordinators ask for one
    #[arg(
        long,
        env = "LEASEHOLD_TLS_CERT",
        value_name = "FILE",
        requires_all = ["tls_ca", "tls_key"]
    )]
    tls_cert: Option<PathBuf>,
    /// The key of your certificate
    #[arg(long, env = "LEASEHOLD_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The name in the coordinators' certificate [default: the host of --coordinator]
    #[arg(long, env = "LEASEHOLD_TLS_SERVER_NAME", value_name = "NAME", requires = "tls_ca")]
    #[arg(value_parser = argument::server_name)]
    tls_server_name: Option<String>,
    /// A file with your token, for a coordinator on Kubernetes
    #[arg(long, env = "LEASEHOLD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
}

impl clap::Args for ConnectionArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        ConnectionFlags::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ConnectionFlags::augment_args_for_update(command)
    }
}

impl FromArgMatches for ConnectionArgs {
    /// A flag of the command line comes before a variable: one that names a cluster means the
    /// coordinators there, whatever `LEASEHOLD_COORDINATOR` says.
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = ConnectionFlags::from_arg_matches(matches)?;
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let cluster = kubernetes::FLAGS.into_iter().find(|flag| is_given(&flag.replace('-', "_")));
        match cluster {
            Some(flag) if is_given("coordinator") => {
                let message = format!(
                    "--coordinator names coordinators, and --{flag} a cluster whose coordinators \
                     to ask: leave one of them out\n"
                );
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
            }
            Some(_) => flags.coordinator.clear(),
            None => {}
        }
        Ok(Self { flags, names_cluster: cluster.is_some() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ConnectionArgs {
    /// How to reach the coordinators without a cluster; none if a cluster is to be asked.
    async fn way(&self) -> anyhow::Result<Option<Way>> {
        let flags = &self.flags;
        let tls = match &flags.tls_ca {
            None => None,
            Some(authority) => Some(client_tls(authority, flags)?),
        };
        if !flags.coordinator.is_empty() {
            return Ok(Some(Way::Addresses(flags.coordinator.clone(), tls)));
        }
        let is_asked = self.names_cluster || flags.kubernetes.has_service_account();
        let listens = async || tokio::net::TcpStream::connect(ON_THIS_HOST).await.is_ok();
        if is_asked || (kubernetes::may_be_configured() && !listens().await) {
            return Ok(None);
        }
        Ok(Some(Way::Addresses(vec![ON_THIS_HOST.to_owned()], tls)))
    }
}

/// Carries calls of the admin API, each with the caller's token.
pub(crate) type AdminChannel = InterceptedService<Channel, Token>;
/// A client of the admin API.
pub(crate) type Client = AdminServiceClient<AdminChannel>;

/// Shows the caller's token with every call.
#[derive(Clone, Debug)]
pub(crate) struct Token(Option<MetadataValue<Ascii>>);

impl Token {
    /// The token of this text; none if it is no token.
    fn of(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        format!("Bearer {text}").parse().ok().map(|token| Self(Some(token)))
    }
}

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// How replicas are reached.
#[derive(Clone, Debug)]
enum Way {
    /// At these addresses; over TLS, if there is an authority to trust.
    Addresses(Vec<String>, Option<ClientTlsConfig>),
    /// Through the API server of a cluster, which leads to the leader.
    Kubernetes(Cluster),
}

/// A connection to one replica, which follows the fleet to another one when it must.
#[derive(Debug)]
pub(crate) struct Coordinator {
    way: Way,
    token: Token,
    channel: AdminChannel,
    /// The replica that is asked.
    address: String,
    /// An answer has come: this is a coordinator.
    has_answered: bool,
    /// Nothing is written to stderr while it waits.
    is_silent: bool,
}

impl Coordinator {
    /// Connects to the first replica that answers.
    ///
    /// # Errors
    /// If none does, a file cannot be read, or an address is invalid.
    pub(crate) async fn connect(args: &ConnectionArgs) -> anyhow::Result<Self> {
        let mut token = match &args.flags.token_file {
            None => Token(None),
            Some(file) => {
                let text = String::from_utf8(read("--token-file", file)?).ok();
                let token = text.and_then(|text| Token::of(text.trim()));
                token.with_context(|| {
                    format!("--token-file {}: expected one line with a token", file.display())
                })?
            }
        };
        let way = match args.way().await? {
            Some(way) => way,
            None => {
                let kubernetes = &args.flags.kubernetes;
                let config = kubernetes.config().await.context("no cluster is configured")?;
                let has_token = token.0.is_some();
                let (cluster, made) = Cluster::open(config, kubernetes, has_token).await?;
                if let Some(made) = made {
                    token = Token::of(&made).context("the API server has made no usable token")?;
                }
                Way::Kubernetes(cluster)
            }
        };
        let (channel, address) = dial(&way, &token).await?;
        Ok(Self { way, token, channel, address, has_answered: false, is_silent: false })
    }

    /// Writes nothing to stderr, where a screen is drawn.
    pub(crate) fn silence(&mut self) {
        self.is_silent = true;
    }

    /// The replica that is asked, as HOST:PORT, or its pod.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The addresses that were given; none on Kubernetes.
    pub(crate) fn addresses(&self) -> &[String] {
        match &self.way {
            Way::Addresses(addresses, _) => addresses,
            Way::Kubernetes(_) => &[],
        }
    }

    /// The connection to the replica that is asked.
    pub(crate) fn channel(&self) -> AdminChannel {
        self.channel.clone()
    }

    /// A client of the replica that is asked.
    pub(crate) fn client(&self) -> Client {
        AdminServiceClient::new(self.channel()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Asks any replica.
    ///
    /// # Errors
    /// What the coordinator answers, or that none can be reached for `FAILOVER_MAX`.
    pub(crate) async fn ask<T>(
        &mut self,
        call: impl AsyncFn(Client) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        let (mut has_said, mut asked) = (false, 0);
        loop {
            asked += 1;
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, call(self.client())).await;
            let status = match answer {
                Ok(Ok(answer)) => {
                    self.has_answered = true;
                    return Ok(answer.into_inner());
                }
                Ok(Err(status)) => status,
                Err(_) => bail!(
                    "the coordinator at {} has not answered for {}: try again, or name another one \
                     with --coordinator",
                    self.address,
                    leasehold_types::duration::format_short(ANSWER_TIMEOUT)
                ),
            };
            let patience = self.patience(&status);
            // One that hangs is noticed late: the others are asked, however long that took.
            let others = patience > Duration::ZERO && asked < self.addresses().len();
            let is_over = begun.elapsed() >= patience && !others;
            match (is_over, patience == FAILOVER_MAX) {
                (true, true) => return Err(self.no_leader(&status).await),
                (true, false) => return Err(self.explained(&status)),
                (false, true) if !has_said => {
                    has_said = true;
                    self.say_wait(&status).await;
                }
                (false, _) => {}
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
            self.redial().await;
        }
    }

    /// Gives an order to the leader.
    ///
    /// # Errors
    /// What the leader answers, or that none is known for `FAILOVER_MAX`.
    pub(crate) async fn order<T>(
        &mut self,
        call: impl AsyncFn(Client) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        if let Way::Addresses(_, tls) = &self.way {
            let tls = tls.clone();
            let status = self.status().await?;
            if !status.leads && !status.leader_address.is_empty() {
                let leader = Way::Addresses(vec![status.leader_address], tls);
                // Where only the standby is reached from here, it passes the order on.
                if let Ok(dialled) = dial(&leader, &self.token).await {
                    (self.channel, self.address) = dialled;
                }
            }
        }
        self.ask(call).await
    }

    /// The status of the replica that is asked.
    ///
    /// # Errors
    /// As with [`Self::ask`].
    pub(crate) async fn status(&mut self) -> anyhow::Result<GetStatusResponse> {
        self.ask(async |mut client| client.get_status(GetStatusRequest {}).await).await
    }

    /// What another replica says of itself.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub(crate) async fn status_of(&self, address: &str) -> anyhow::Result<GetStatusResponse> {
        let tls = match &self.way {
            Way::Addresses(_, tls) => tls.as_ref(),
            Way::Kubernetes(_) => bail!("not reachable from here"),
        };
        let endpoint = endpoint(address, tls)?;
        let channel = endpoint.connect().await.map_err(|_| anyhow::anyhow!("not reachable"))?;
        let mut client = AdminServiceClient::with_interceptor(channel, self.token.clone());
        let status = tokio::time::timeout(CONNECT_TIMEOUT, client.get_status(GetStatusRequest {}));
        let status = status.await.context("no answer")?;
        status.map(Response::into_inner).map_err(|status| self.explained(&status))
    }

    /// Connects anew, to another replica if one can be reached, and keeps the connection where none
    /// can be.
    pub(crate) async fn redial(&mut self) {
        if let Way::Addresses(addresses, _) = &mut self.way
            && let Some(last) = addresses.iter().position(|address| *address == self.address)
        {
            addresses.rotate_left(last + 1);
        }
        if let Ok(dialled) = dial(&self.way, &self.token).await {
            (self.channel, self.address) = dialled;
        }
    }

    /// How long a call is repeated that ended so, here or at another replica.
    fn patience(&self, status: &Status) -> Duration {
        let message = status.message();
        match status.code() {
            Code::Unavailable if message.starts_with(HTTP_PORT_MESSAGE) => Duration::ZERO,
            Code::FailedPrecondition if message.starts_with(NOT_LEADING_MESSAGE) => FAILOVER_MAX,
            _ if status.source().is_some() && !self.has_answered => BROKEN_MAX,
            Code::Unavailable => FAILOVER_MAX,
            _ if status.source().is_some() => FAILOVER_MAX,
            _ => Duration::ZERO,
        }
    }

    /// What to tell people of a status.
    pub(crate) fn explained(&self, status: &Status) -> anyhow::Error {
        let message = status.message();
        let (address, shown) = (&self.address, self.token.0.is_some());
        match status.code() {
            Code::Unimplemented if message.contains("WorkerService") => {
                anyhow::anyhow!("{address} is an agent's worker API: name a coordinator's --listen")
            }
            Code::Unimplemented => anyhow::anyhow!(
                "the coordinator at {address} is of an earlier version, which cannot answer this \
                 ({message}); `leasehold version` shows both versions"
            ),
            Code::Unauthenticated if !shown => anyhow::anyhow!(
                "{message}; show who you are: with --token-file, or with --tls-cert and --tls-key"
            ),
            _ if status.source().is_some() && matches!(self.way, Way::Addresses(_, None)) => {
                anyhow::anyhow!(
                    "the connection to {address} ended before an answer ({message}); if it uses \
                     TLS, name its authority with --tls-ca; if it is a coordinator's \
                     --http-listen, use its --listen"
                )
            }
            _ if status.source().is_some() => {
                anyhow::anyhow!("the connection to {address} ended before an answer: {message}")
            }
            _ => anyhow::anyhow!("{message}"),
        }
    }
}

/// Connects to the first replica that answers.
async fn dial(way: &Way, token: &Token) -> anyhow::Result<(AdminChannel, String)> {
    let (addresses, tls) = match way {
        Way::Addresses(addresses, tls) => (addresses, tls.as_ref()),
        Way::Kubernetes(cluster) => {
            let (channel, pod) = cluster.dial(CONNECT_TIMEOUT).await?;
            return Ok((AdminChannel::new(channel, token.clone()), pod));
        }
    };
    let (mut why, mut without_tls) = (Vec::new(), None);
    for address in addresses {
        match endpoint(address, tls)?.connect().await {
            Ok(channel) => {
                return Ok((AdminChannel::new(channel, token.clone()), address.clone()));
            }
            Err(error) => {
                let cause = cause(&error);
                // rustls says so of an answer that is not TLS.
                if cause.contains("InvalidContentType") {
                    without_tls.get_or_insert(address);
                }
                why.push(format!("{address}: {cause}"));
            }
        }
    }
    if let Some(address) = without_tls {
        bail!(
            "the port {address} does not use TLS: leave --tls-ca out, or start the coordinator \
             there with --tls-cert and --tls-key ({})",
            why.join("; ")
        );
    }
    bail!(
        "no coordinator answers at {}: start one, or name it with --coordinator ({})",
        addresses.join(" or "),
        why.join("; ")
    )
}

fn endpoint(address: &str, tls: Option<&ClientTlsConfig>) -> anyhow::Result<Endpoint> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
    let endpoint = endpoint.ok().filter(|endpoint| endpoint.uri().port().is_some());
    let endpoint = endpoint.with_context(|| format!("invalid address {address:?}"))?;
    let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    let endpoint = kept_alive(endpoint);
    match tls {
        None => Ok(endpoint),
        Some(tls) => endpoint.tls_config(tls.clone()).context("cannot use these TLS files"),
    }
}

/// The last cause of an error: the others only say that a connection failed.
fn cause(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

fn client_tls(authority: &Path, args: &ConnectionFlags) -> anyhow::Result<ClientTlsConfig> {
    let authority = read_pem("--tls-ca", authority, PemContent::Certificate)?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let cert = read_pem("--tls-cert", cert, PemContent::Certificate)?;
        let key = read_pem("--tls-key", key, PemContent::Key)?;
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = &args.tls_server_name {
        tls = tls.domain_name(name);
    }
    Ok(tls)
}

fn read_pem(flag: &str, file: &Path, content: PemContent) -> anyhow::Result<Vec<u8>> {
    let text = read(flag, file)?;
    let named = format!("{flag} {}", file.display());
    content.check(&named, &text).map_err(anyhow::Error::msg)?;
    Ok(text)
}

fn read(flag: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {flag} {}", file.display()))
}
