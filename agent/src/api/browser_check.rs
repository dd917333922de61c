//! Rejects requests from web pages. A page can make a browser on this machine send requests to
//! localhost, but they carry the page's origin, or, after DNS rebinding, a foreign host name.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::http::Answer;
use crate::worker::api::Denial;

/// Passes on requests of workers only.
pub(super) async fn check(request: Request, next: Next) -> Response {
    match objection(request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(why) => Answer(StatusCode::FORBIDDEN, Denial::invalid(why)).into_response(),
    }
}

fn objection(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if let Some(origin) = headers.get(header::ORIGIN) {
        return Some(format!("requests from web pages are refused (origin {origin:?})"));
    }
    let named = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?").to_owned());
    let host = uri.host().map(str::to_owned).or(named)?;
    if is_local(&host) {
        None
    } else {
        Some(format!("invalid host {host:?}: use localhost, 127.0.0.1 or [::1]"))
    }
}

/// Whether a `Host` header, or the host of a URI, names this machine.
fn is_local(host: &str) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_names_of_this_machine() {
        for host in ["localhost", "LOCALHOST:7411", "127.0.0.1", "127.0.0.1:1", "[::1]:7411"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "10.0.0.1", "[::2]:1", "0:1"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
