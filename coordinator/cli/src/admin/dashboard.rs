//! `leasehold dashboard`: the page that shows the fleet, for a browser on this host, with the
//! caller's rights.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use leasehold_http_api::{Api, Caller, Callers, Page};
use leasehold_types::port_in_use;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use super::connection::{AdminChannel, ConnectionArgs, Coordinator};
use super::find;
use super::output::print;
use super::run;
use crate::argument;

/// Where the page is served unless told otherwise.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7480);
/// How long a coordinator may take until it begins to answer; then another one is tried.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two attempts to reach a coordinator.
const REDIAL_INTERVAL: Duration = Duration::from_millis(250);
/// The parameter of the address by which a browser shows the key for the first time.
const KEY_PARAMETER: &str = "key";
/// The parameter by which the page's address names the only cluster to show.
const CLUSTER_PARAMETER: &str = "cluster";

/// Options of `dashboard`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Serves a page on this host that shows the fleet as it changes, and explains and plans. It gives no
orders. Only a browser that has opened the address that is printed is answered: the page shows what
you may see. Ends with Ctrl-C.

Without Kubernetes every coordinator serves the page itself, at / of its --http-listen.

Examples:
  leasehold dashboard
  leasehold dashboard --listen 127.0.0.1:8080 --context production
  leasehold dashboard --cluster team-a/builds")]
pub(crate) struct Args {
    /// Where to serve the page: an address of this host that no other can reach
    #[arg(long, value_name = "IP:PORT", default_value_t = LISTEN)]
    #[arg(value_parser = argument::loopback)]
    listen: SocketAddr,
    /// Show only this cluster; needs no right to read others
    #[arg(long, value_name = "NAME", value_parser = argument::cluster)]
    cluster: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Serves the page until Ctrl-C.
///
/// # Errors
/// If the port cannot be had, or no coordinator answers at first.
pub(crate) fn dashboard(args: &Args) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        // Says at once what is wrong with the way to the coordinators, or with the caller's rights.
        let query = if let Some(cluster) = &args.cluster {
            find::check_cluster(&mut coordinator, cluster).await?;
            // A name that a cluster has needs no encoding.
            format!("&{CLUSTER_PARAMETER}={cluster}")
        } else {
            coordinator.status().await?;
            String::new()
        };
        let listen = args.listen;
        let socket = TcpListener::bind(listen).await.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow!(port_in_use("--listen", listen, "dashboard")),
            _ => anyhow!("cannot listen on --listen {listen}: {error}"),
        })?;
        let address = socket.local_addr().context("the port has no address")?;
        let key = Key::new(address.port())?;
        print(&format!(
            "The fleet: http://{address}/?{KEY_PARAMETER}={}{query}\n(from {}; Ctrl-C ends it)\n",
            key.text,
            coordinator.address()
        ))?;
        serve(socket, key, coordinator).await?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn serve(socket: TcpListener, key: Key, mut coordinator: Coordinator) -> anyhow::Result<()> {
    coordinator.silence();
    let calls = Calls {
        channel: Arc::new(Mutex::new(coordinator.channel())),
        failed: Arc::new(Notify::new()),
    };
    let follows = calls.clone().follow(coordinator);
    let api = Api {
        calls: BoxCloneSyncService::new(calls),
        callers: Callers::Loopback,
        page: Page::Alone,
    };
    let router = api.router().layer(from_fn_with_state(Arc::new(key), admit));
    let served = axum::serve(socket, router.into_make_service_with_connect_info::<SocketAddr>());
    tokio::select! {
        served = served => served.context("cannot serve the page"),
        () = follows => Ok(()),
    }
}

/// What a browser must show: others on this host may reach the port, too.
#[derive(Debug)]
struct Key {
    text: String,
    /// The port is part of the cookie's name: browsers send cookies to all ports of a host.
    port: u16,
}

impl Key {
    fn new(port: u16) -> anyhow::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).context("the system has no random numbers")?;
        let text = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { text, port })
    }

    fn cookie(&self) -> String {
        format!("leasehold-{}={}", self.port, self.text)
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter();
        let mut cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
        let cookie = self.cookie();
        cookies.any(|cookies| cookies.split("; ").any(|one| one == cookie))
    }

    /// The page's address without the key, if the key is in this one.
    fn address_without(&self, uri: &Uri) -> Option<String> {
        let rest = uri.query()?.strip_prefix(KEY_PARAMETER)?.strip_prefix('=')?;
        match rest.split_once('&') {
            None => (rest == self.text).then(|| "/".to_owned()),
            Some((key, rest)) => (key == self.text).then(|| format!("/?{rest}")),
        }
    }
}

/// Lets browsers in that show the key: in the address first, which then gives them a cookie.
async fn admit(
    State(key): State<Arc<Key>>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.uri().path() == "/"
        && let Some(page) = key.address_without(request.uri())
    {
        let cookie = format!("{}; Path=/; HttpOnly; SameSite=Strict", key.cookie());
        let headers = [(header::SET_COOKIE, cookie), (header::LOCATION, page)];
        return (StatusCode::SEE_OTHER, headers).into_response();
    }
    if !key.is_in(request.headers()) {
        let why = "open the address that leasehold dashboard has printed: it ends with a key\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    request.extensions_mut().insert(Caller { address, keep_open: Arc::new(|| ()) });
    next.run(request).await
}

/// Calls of the admin service, over the connection that works at present.
#[derive(Clone, Debug)]
struct Calls {
    channel: Arc<Mutex<AdminChannel>>,
    /// Told of each call that failed for want of a connection.
    failed: Arc<Notify>,
}

impl Calls {
    /// Connects anew whenever a call has failed.
    async fn follow(self, mut coordinator: Coordinator) {
        loop {
            self.failed.notified().await;
            coordinator.redial().await;
            *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = coordinator.channel();
            sleep(REDIAL_INTERVAL).await;
        }
    }
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let failed = Arc::clone(&self.failed);
        Box::pin(async move {
            let why = match timeout(ANSWER_TIMEOUT, channel.oneshot(request)).await {
                Ok(Ok(response)) => return Ok(response.map(Body::new)),
                Ok(Err(error)) => format!("the connection to the coordinator has ended: {error}"),
                Err(_) => "the coordinator does not answer".to_owned(),
            };
            failed.notify_one();
            Ok(Status::unavailable(format!("{why}; another one is tried")).into_http())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_shows_the_key_is_let_in() {
        let key = Key { text: "abc".into(), port: 7480 };
        let with = |cookie: &'static str| {
            HeaderMap::from_iter([(header::COOKIE, cookie.parse().expect("a value"))])
        };
        assert!(key.is_in(&with("leasehold-7480=abc")));
        assert!(key.is_in(&with("other=1; leasehold-7480=abc")));
        for wrong in ["leasehold-7480=abcd", "leasehold-7481=abc", "x=leasehold-7480=abc", ""] {
            assert!(!key.is_in(&with(wrong)), "{wrong}");
        }
        assert!(!key.is_in(&HeaderMap::new()));
        let page = |address| key.address_without(&Uri::from_static(address));
        assert_eq!(page("/?key=abc").as_deref(), Some("/"));
        assert_eq!(page("/?key=abc&cluster=a/b").as_deref(), Some("/?cluster=a/b"));
        for wrong in ["/", "/?key=", "/?key=abcd", "/?other=abc", "/?key=abcd&cluster=a"] {
            assert_eq!(page(wrong), None, "{wrong}");
        }
        let new = || Key::new(7480).expect("a key").text;
        assert_ne!(new(), new());
    }
}
