//! Keeps web pages of others, and callers elsewhere whose tokens would travel in the open, from the
//! API. A browser sends a page's origin, and the host that it believes to talk to: a page that has
//! its own name resolve to this machine is known by that name. The page of another replica, whose
//! own server may be gone, is answered.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use tonic::Status;

use super::refusal::refuse;
use super::{Caller, Callers, Page};

/// Passes a request on, or refuses it.
pub(super) async fn admit(
    callers: Callers,
    page: Page,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = request.extensions().get::<Caller>().map(|caller| caller.address);
    let is_near = caller.is_some_and(|address| address.ip().to_canonical().is_loopback());
    if callers == Callers::Loopback && !is_near {
        return refuse(&Status::permission_denied(
            "this port is plain HTTP, and takes tokens from this host only: use the gRPC port, \
             leasehold dashboard, or kubectl port-forward",
        ));
    }
    let uri_host = request.uri().authority().map(Authority::as_str);
    let host = match host(request.headers(), uri_host) {
        Ok(host) => host,
        Err(why) => return refuse(&Status::permission_denied(why)),
    };
    let origin = match origin(request.headers(), &host, &page) {
        Ok(Origin::Own) => None,
        Ok(Origin::Replica(origin)) => Some(origin),
        Err(why) => return refuse(&Status::permission_denied(why)),
    };
    request.extensions_mut().insert(Host(host));
    let mut response = next.run(request).await;
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    }
    response
}

/// The host that the caller believes to talk to, in the extensions of each admitted request.
#[derive(Clone, Debug)]
pub(super) struct Host(pub(super) Authority);

/// Whose page sends a request.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    /// This server's, or none.
    Own,
    /// That of another replica, of this origin.
    Replica(HeaderValue),
}

/// The host that the caller believes to talk to: an address, or this machine by its common name.
fn host(headers: &HeaderMap, uri: Option<&str>) -> Result<Authority, String> {
    let given = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(uri);
    let given = given.ok_or("the header Host is missing")?;
    let authority: Authority =
        given.parse().map_err(|_| format!("invalid Host {given:?}: expected HOST or HOST:PORT"))?;
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_address = name.parse::<IpAddr>().is_ok();
    if is_address || name.eq_ignore_ascii_case("localhost") {
        return Ok(authority);
    }
    Err(format!("invalid Host {given:?}: use this replica's address, or localhost"))
}

/// Whose page sends the request, or why it gets no answer.
fn origin(headers: &HeaderMap, host: &Authority, page: &Page) -> Result<Origin, String> {
    let Some(given) = headers.get(header::ORIGIN) else { return Ok(Origin::Own) };
    let text = given.to_str().unwrap_or_default();
    let from = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    if from == Some(host.as_str()) {
        return Ok(Origin::Own);
    }
    let from = from.and_then(|from| from.parse::<Authority>().ok());
    let from = from.filter(|from| from.host().eq_ignore_ascii_case(host.host()));
    match (page, from.and_then(|from| from.port_u16())) {
        (Page::WithReplicas(ports), Some(port)) if ports().contains(&port) => {
            Ok(Origin::Replica(given.clone()))
        }
        _ => Err(format!("invalid Origin {text:?}: pages of other sites are refused")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().cloned();
        pairs.map(|(name, value)| (name, value.parse().expect("a value"))).collect()
    }

    #[test]
    fn only_addresses_and_localhost_are_hosts() {
        for name in ["127.0.0.1:7401", "10.0.0.5", "[::1]:7401", "localhost:7401", "LOCALHOST"] {
            assert!(host(&headers(&[(header::HOST, name)]), None).is_ok(), "{name}");
        }
        for name in ["evil.example:7401", "localhost.evil.example", "a b", ""] {
            assert!(host(&headers(&[(header::HOST, name)]), None).is_err(), "{name}");
        }
        assert!(host(&HeaderMap::new(), None).is_err());
        assert!(host(&HeaderMap::new(), Some("127.0.0.1:7401")).is_ok());
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let host = Authority::from_static("127.0.0.1:7401");
        let with_replicas = Page::WithReplicas(Arc::new(|| vec![7411]));
        for page in [&Page::Alone, &with_replicas] {
            let own = headers(&[(header::ORIGIN, "http://127.0.0.1:7401")]);
            assert_eq!(origin(&own, &host, page), Ok(Origin::Own));
            assert_eq!(origin(&HeaderMap::new(), &host, page), Ok(Origin::Own));
            for other in
                ["http://evil.example", "null", "http://127.0.0.1:8080", "http://10.0.0.5:7411"]
            {
                let headers = headers(&[(header::ORIGIN, other)]);
                assert!(origin(&headers, &host, page).is_err(), "{other}");
            }
        }
        let replica = headers(&[(header::ORIGIN, "http://127.0.0.1:7411")]);
        let expected = HeaderValue::from_static("http://127.0.0.1:7411");
        assert_eq!(origin(&replica, &host, &with_replicas), Ok(Origin::Replica(expected)));
        assert!(origin(&replica, &host, &Page::Alone).is_err());
    }
}
