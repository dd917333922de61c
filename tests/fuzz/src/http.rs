//! The coordinator's HTTP port: probes, metrics, the page, and the admin API as JSON. An input is
//! one request or several (see `request`).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::http::{HeaderValue, header};
use leasehold_http_api::Caller;

use crate::answer::ask;
use crate::fleet::FLEET;
use crate::request::requests;

/// Sends an input.
pub fn run(input: &[u8]) {
    let fleet = &*FLEET;
    for mut request in requests(input) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        request.extensions_mut().insert(Caller { address, keep_open: Arc::new(|| {}) });
        let local = HeaderValue::from_static("localhost");
        request.headers_mut().entry(header::HOST).or_insert(local);
        if let Some(answer) = fleet.runtime.block_on(ask(fleet.http.clone(), request)) {
            answer.check();
        }
    }
}
