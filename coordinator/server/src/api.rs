//! The admin API's queries as JSON over plain HTTP: its own messages, as the protos map them to
//! JSON. Each request becomes a call of the admin service, with the same rights, and on a standby
//! it is passed on to the leader. Orders are not served here.

mod call;
mod events;
mod guard;
mod openapi;
mod refusal;
mod request;
mod routes;

use axum::extract::rejection::StringRejection;
use axum::extract::{DefaultBodyLimit, RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use leasehold_driver::access::Access;
use prost_reflect::DynamicMessage;
use serde_json::json;
use tonic::Status;

use self::refusal::{refuse, unreadable_body, wrong_method};
use self::request::{from_json, from_query};
use self::routes::{ROUTES, Route, Verb};
use crate::connections::Peer;
use crate::grpc::AdminCalls;
use crate::grpc::intake::CALL_BYTES_MAX;

/// The first lines of the page at `/`.
const PAGE_START: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
<title>Leasehold coordinator</title><h1>Leasehold coordinator</h1>\
<p>On a terminal: <code>leasehold status</code>. As JSON:<ul>";
/// The last ones.
const PAGE_END: &str = "</ul><p>Probes: <a href=\"/livez\">/livez</a>, \
<a href=\"/readyz\">/readyz</a>. Metrics: <a href=\"/metrics\">/metrics</a>.</html>";

/// The answer for any other path below `/api/`.
const PATHS: &str = "no such path: GET / names those of the API";

/// The state of the API.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    calls: AdminCalls,
    /// Callers show tokens, which plain HTTP carries in the open.
    only_loopback: bool,
}

impl Api {
    pub(crate) fn new(calls: AdminCalls, access: &Access) -> Self {
        Self { calls, only_loopback: matches!(access, Access::Asked(_)) }
    }

    /// The paths of the API, and the page that names them.
    pub(crate) fn router(self) -> Router {
        let mut router = Router::new().route("/", get(page)).route(
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
                Verb::Watch => get(
                    async move |State(api): State<Self>,
                                RawQuery(query),
                                Extension(peer): Extension<Peer>,
                                headers| {
                        let request = from_query(route, query.as_deref());
                        events::watch(&api.calls, route, request, headers, peer).await
                    },
                ),
            };
            let method = method.fallback(async move || wrong_method(route.verb.allowed()));
            router = router.route(&path, method);
        }
        router = router.route("/api/{*path}", any(async || refuse(&Status::not_found(PATHS))));
        let only_loopback = self.only_loopback;
        let router = router.layer(DefaultBodyLimit::max(CALL_BYTES_MAX));
        router.with_state(self).layer(axum::middleware::from_fn(move |request, next| {
            guard::admit(only_loopback, request, next)
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

async fn page() -> Html<String> {
    let routes = ROUTES.iter().map(|route| {
        let Route { path, what, .. } = route;
        format!("<li><a href=\"/api/v1/{path}\">/api/v1/{path}</a>: {what}")
    });
    let routes: String = routes.collect();
    let description = "<li><a href=\"/api/v1/openapi.json\">/api/v1/openapi.json</a>: what each \
                       takes and answers (OpenAPI)";
    Html(format!("{PAGE_START}{routes}{description}{PAGE_END}"))
}
