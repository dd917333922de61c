//! What programs answer over HTTP: JSON, an agent's lease, and the samples of their metrics.

use std::net::SocketAddr;

use serde_json::Value;

use crate::process::get;

/// The JSON at `path`, or `None` if there is no such answer.
#[must_use]
pub fn json(address: SocketAddr, path: &str) -> Option<Value> {
    serde_json::from_str(&get(address, path)?.1).ok()
}

/// What an agent shows its worker.
#[must_use]
pub fn lease(api: SocketAddr) -> Option<Value> {
    json(api, "/v1/lease")
}

/// Whether a program's metrics have this line.
#[must_use]
pub fn shows(address: SocketAddr, line: &str) -> Option<()> {
    let (_, metrics) = get(address, "/metrics")?;
    metrics.lines().any(|sample| sample == line).then_some(())
}

/// The value of a program's metric, or the sum over its labels.
#[must_use]
pub fn metric(address: SocketAddr, name: &str) -> Option<f64> {
    value(&get(address, "/metrics")?.1, name)
}

/// The value of a metric in the text of `/metrics`, or the sum over its labels.
#[must_use]
pub fn value(metrics: &str, name: &str) -> Option<f64> {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let is_named = rest.starts_with(' ') || rest.starts_with('{');
        is_named.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
    };
    metrics.lines().filter_map(of).reduce(|sum, value| sum + value)
}
