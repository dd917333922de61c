//! What `drain` was told.

use std::ffi::OsString;
use std::time::Duration;

use axum::http::Uri;

use super::args::DrainArgs;

/// One call on the worker's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// Where the agent is.
    pub agent: AgentUrl,
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

/// Where an agent's worker API is: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentUrl {
    authority: String,
    host: String,
    port: u16,
}

impl AgentUrl {
    /// `HOST:PORT` as it was written.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What to connect to.
    #[must_use]
    pub fn target(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}

impl std::str::FromStr for AgentUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no agent's address: write http://127.0.0.1:7411");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/");
        let authority = uri.authority().filter(|_| plain && uri.query().is_none());
        let authority = authority.ok_or_else(wrong)?;
        let host = authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        Ok(Self {
            authority: authority.as_str().into(),
            host: bare.unwrap_or(host).into(),
            port: authority.port_u16().unwrap_or(80),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_address_is_taken_apart() {
        for (text, target) in [
            ("http://127.0.0.1:7411", ("127.0.0.1", 7411)),
            ("http://localhost:1/", ("localhost", 1)),
            ("http://[::1]:7411", ("::1", 7411)),
            ("http://localhost", ("localhost", 80)),
        ] {
            assert_eq!(text.parse::<AgentUrl>().expect(text).target(), target);
        }
        for text in ["", "127.0.0.1:7411", "https://a:1", "http://a:1/v1", "http://a:1?x", "/v1"] {
            text.parse::<AgentUrl>().expect_err(text);
        }
    }
}
