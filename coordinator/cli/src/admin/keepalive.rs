//! Notices that a coordinator does not answer any more on a connection that is open.

use std::time::Duration;

use tonic::transport::Endpoint;

/// Between two looks whether a coordinator that says nothing still answers, and how long that may
/// take.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Ends a connection on which nothing comes any more, though it is open: of a coordinator that
/// hangs, or one whose host is gone. A watch would hear nothing on it for ever.
pub(super) fn kept_alive(endpoint: Endpoint) -> Endpoint {
    endpoint.http2_keep_alive_interval(KEEPALIVE).keep_alive_timeout(KEEPALIVE)
}
