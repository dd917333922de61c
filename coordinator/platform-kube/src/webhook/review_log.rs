//! The log lines about reviews. Who proves nothing may send any review, and as many as it likes.

use std::net::IpAddr;

use leasehold_driver::log_limit::PeerLogLimit;

/// The most lines a minute about the reviews of one address, and of all of them, where it is not
/// known who the API servers are.
const LINES_MAX: usize = 60;
const LINES_TOTAL_MAX: usize = 240;

/// Which lines about reviews are written.
#[derive(Debug)]
pub(super) struct ReviewLog(Option<PeerLogLimit>);

impl ReviewLog {
    /// All lines, if only API servers can send reviews; else few about each address.
    pub(super) fn new(callers_are_proven: bool) -> Self {
        let limit = (!callers_are_proven).then(|| PeerLogLimit::new(LINES_MAX, LINES_TOTAL_MAX));
        Self(limit)
    }

    /// Whether to write a line about a review from this address now; else it is for debugging.
    pub(super) fn allows(&self, peer: Option<IpAddr>) -> bool {
        self.0.as_ref().is_none_or(|limit| limit.allows(peer))
    }
}

/// Writes a line about a review with this level, or for debugging if there were many.
macro_rules! log_review {
    ($admission:expr, $level:ident, $($line:tt)+) => {
        if $admission.log.allows($admission.peer) {
            tracing::$level!($($line)+);
        } else {
            tracing::debug!($($line)+);
        }
    };
}
pub(super) use log_review;
