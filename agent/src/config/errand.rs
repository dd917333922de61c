//! What the command `drain` is told.

use std::ffi::OsString;
use std::time::Duration;

use super::args::DrainArgs;
use crate::http_client::Url;

/// One call on the worker's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// Where the agent is.
    pub agent: Url,
    /// Whether to wait for the end of the drain.
    pub wait: bool,
    /// How long to try and to wait.
    pub timeout: Option<Duration>,
    /// What to run afterwards; empty where nothing is.
    pub command: Vec<OsString>,
}

impl From<DrainArgs> for Errand {
    fn from(args: DrainArgs) -> Self {
        let DrainArgs { addr, wait, timeout, then: _, command } = args;
        Self { agent: addr, wait, timeout, command }
    }
}

/// Reads the address of an agent's worker API: `http://HOST:PORT`.
pub(super) fn agent_url(text: &str) -> Result<Url, String> {
    let url = text.parse().ok().filter(Url::is_bare);
    url.ok_or_else(|| {
        format!(
            "invalid address {text:?}: expected http://HOST:PORT, for example http://127.0.0.1:7411"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_address_has_neither_path_nor_query() {
        for text in ["http://127.0.0.1:7411", "http://localhost:1/", "http://[::1]:7411"] {
            let authority = text.trim_start_matches("http://").trim_end_matches('/');
            assert_eq!(agent_url(text).expect(text).authority(), authority);
        }
        for text in ["", "127.0.0.1:7411", "https://a:1", "http://a:1/v1", "http://a:1?x", "/v1"] {
            agent_url(text).expect_err(text);
        }
    }
}
