//! Keeps web pages of others, and callers elsewhere whose tokens would travel in the open, from the
//! API. A browser sends a page's origin, and the host that it believes to talk to: a page that has
//! its own name resolve to this machine is known by that name.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use tonic::Status;

use super::refusal::refuse;
use crate::connections::Peer;

/// Passes a request on, or refuses it.
pub(super) async fn admit(only_loopback: bool, request: Request, next: Next) -> Response {
    let peer = Peer::of(request.extensions()).map(Peer::address);
    let is_near = peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    let uri_host = request.uri().authority().map(Authority::as_str);
    let refusal = match host(request.headers(), uri_host) {
        _ if only_loopback && !is_near => Some(
            "this port is plain HTTP, and takes tokens from this host only: use the gRPC port, or \
             kubectl port-forward"
                .to_owned(),
        ),
        Ok(host) => foreign_origin(request.headers(), host),
        Err(why) => Some(why),
    };
    match refusal {
        Some(why) => refuse(&Status::permission_denied(why)),
        None => next.run(request).await,
    }
}

/// The host that the caller believes to talk to: an address, or this machine by its common name.
fn host<'a>(headers: &'a HeaderMap, uri: Option<&'a str>) -> Result<&'a str, String> {
    let given = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(uri);
    let given = given.ok_or("the header Host is missing")?;
    let authority: Authority =
        given.parse().map_err(|_| format!("invalid Host {given:?}: expected HOST or HOST:PORT"))?;
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_address = name.parse::<IpAddr>().is_ok();
    if is_address || name.eq_ignore_ascii_case("localhost") {
        return Ok(given);
    }
    Err(format!("invalid Host {given:?}: use this replica's address, or localhost"))
}

/// Why a page of this origin gets no answer.
fn foreign_origin(headers: &HeaderMap, host: &str) -> Option<String> {
    let origin = headers.get(header::ORIGIN)?.to_str().unwrap_or_default();
    let own =
        ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host));
    (!own).then(|| format!("invalid Origin {origin:?}: pages of other sites are refused"))
}

#[cfg(test)]
mod tests {
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
        let own = headers(&[(header::ORIGIN, "http://127.0.0.1:7401")]);
        assert_eq!(foreign_origin(&own, "127.0.0.1:7401"), None);
        assert_eq!(foreign_origin(&HeaderMap::new(), "127.0.0.1:7401"), None);
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8080"] {
            let page = headers(&[(header::ORIGIN, origin)]);
            assert!(foreign_origin(&page, "127.0.0.1:7401").is_some(), "{origin}");
        }
    }
}
