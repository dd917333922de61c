//! The admin API's queries as JSON over plain HTTP: its own messages, as the protos map them to
//! JSON; and the page that shows them. Each request becomes a call of the admin service, with the
//! same rights. Orders are not served here.
//!
//! A coordinator serves its own admin service so, and the command line any coordinator's, on this
//! host only.

mod call;
mod events;
mod guard;
mod openapi;
mod page;
mod refusal;
mod request;
mod routes;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::rejection::StringRejection;
use axum::extract::{DefaultBodyLimit, RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use leasehold_types::limits::CALL_BYTES_MAX;
use prost_reflect::DynamicMessage;
use serde_json::json;
use tonic::Status;

pub use self::call::AdminCalls;
use self::refusal::{refuse, unreadable_body, wrong_method};
use self::request::{from_json, from_query};
use self::routes::{ROUTES, Route, Verb};

/// What `/readyz` of a ready replica puts before the reason why its desired state is stale.
pub const READY_BUT: &str = "ok, but ";

/// The answer for any other path below `/api/`.
const PATHS: &str = "no such path: /api/v1/openapi.json names those of the API";

/// The admin API over HTTP.
#[derive(Clone, Debug)]
pub struct Api {
    /// Answers the calls.
    pub calls: AdminCalls,
    /// Who may use it.
    pub callers: Callers,
    /// Whether the page is served at `/`, too.
    pub page: Page,
}

/// Whose requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Everybody's.
    Any,
    /// Those from this host: callers show tokens, which plain HTTP carries in the open.
    Loopback,
}

/// What is served at `/`.
#[derive(Clone)]
pub enum Page {
    /// The page. It shows what its own server answers, and nothing else.
    Alone,
    /// The page. Where its server no longer answers, it goes on with another replica of it.
    WithReplicas(HttpPorts),
    /// Where else to find the page: requests need credentials that a browser does not send.
    Elsewhere,
}

/// Returns the ports on which the coordinator's replicas serve this API, all on the same host.
pub type HttpPorts = Arc<dyn Fn() -> Vec<u16> + Send + Sync>;

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "Alone",
            Self::WithReplicas(_) => "WithReplicas",
            Self::Elsewhere => "Elsewhere",
        })
    }
}

/// The connection that brings a request. The server adds it to the extensions of each request.
#[derive(Clone)]
pub struct Caller {
    /// The address of its other end.
    pub address: SocketAddr,
    /// Keeps the connection open while an answer goes on.
    pub keep_open: Arc<dyn Fn() + Send + Sync>,
}

impl Api {
    /// The paths of the API and of the page.
    pub fn router(self) -> Router {
        let mut router = Router::new().route(
            "/api/v1/openapi.json",
            get(async || Json(openapi::document()))
                .fallback(async || wrong_method(Verb::Get.allowed())),
        );
        for route in ROUTES {
            let path = format!("/api/v1/{}", route.path);
            let method = match route.verb {
                Verb::Get => get(async move |State(api): State<Self>, RawQuery(query), headers| {
                    api.answer(route, from_query(route, query.as_deref()), &headers).await
                }),
                Verb::Post => post(
                    async move |State(api): State<Self>,
                                headers,
                                body: Result<String, StringRejection>| {
                        match body {
                            Ok(body) => api.answer(route, from_json(route, &body), &headers).await,
                            Err(why) => unreadable_body(&why),
                        }
                    },
                ),
                Verb::Watch(resume) => get(
                    async move |State(api): State<Self>,
                                RawQuery(query),
                                Extension(caller): Extension<Caller>,
                                headers| {
                        let request = from_query(route, query.as_deref());
                        events::watch(&api.calls, route, request, resume, headers, caller).await
                    },
                ),
            };
            let method = method.fallback(async move || wrong_method(route.verb.allowed()));
            router = router.route(&path, method);
        }
        router = router.route("/api/{*path}", any(async || refuse(&Status::not_found(PATHS))));
        let (callers, page) = (self.callers, self.page.clone());
        let router = router.layer(DefaultBodyLimit::max(CALL_BYTES_MAX));
        let router = router.with_state(self).merge(page::router(&page));
        router.layer(axum::middleware::from_fn(move |request, next| {
            guard::admit(callers, page.clone(), request, next)
        }))
    }

    async fn answer(
        &self,
        route: Route,
        request: Result<DynamicMessage, String>,
        headers: &HeaderMap,
    ) -> Response {
        let request = match request {
            Ok(request) => request,
            Err(why) => return refuse(&Status::invalid_argument(why)),
        };
        match call::unary(&self.calls, route, &request, headers).await {
            Ok(message) => {
                let value = leasehold_proto::json::dynamic(&message);
                let value = match route.only {
                    Some(key) => json!({ key: value[key] }),
                    None => value,
                };
                ([(header::CACHE_CONTROL, "no-store")], Json(value)).into_response()
            }
            Err(status) => refuse(&status),
        }
    }
}
