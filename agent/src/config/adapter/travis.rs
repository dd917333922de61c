//! Options of the adapter `travis`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use leasehold_types::flag::{DurationRange, duration};

use super::first_given;
use crate::http_client::Url;

/// The default address of the Travis worker's remote controller.
const URL: &str = "http://127.0.0.1:8080";
/// The default user and password in an injected pod. They need not be secret: the port is on
/// localhost, where only the containers of the pod can reach it.
const AUTH: &str = "leasehold:leasehold";
/// How often the worker is polled while nothing changes.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// The adapter `travis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TravisAdapter {
    /// The remote controller.
    pub url: Url,
    /// The user and the password.
    pub auth: TravisAuth,
    /// How often the worker is polled while nothing changes.
    pub interval: Duration,
}

/// The source of `USER:PASSWORD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TravisAuth {
    /// From an option.
    Given(Secret),
    /// From a file, read for every request.
    File(PathBuf),
}

/// A text that must not appear in logs, errors or debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text: send it, never log it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a secret)")
    }
}

/// Options of the adapter `travis`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter travis")]
pub(super) struct TravisArgs {
    /// The Travis worker's remote controller: TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR in the worker's
    /// environment [default: http://127.0.0.1:8080]
    #[arg(long, env = "LEASEHOLD_TRAVIS_URL", value_name = "URL")]
    travis_url: Option<Url>,
    /// Its user and password, as in TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH. Set it in the
    /// environment: other users can see a command line [default: leasehold:leasehold]
    #[arg(long, env = "LEASEHOLD_TRAVIS_AUTH", value_name = "USER:PASSWORD")]
    #[arg(hide_env_values = true)]
    travis_auth: Option<Secret>,
    /// A file with the user and password, read again for every request
    #[arg(long, env = "LEASEHOLD_TRAVIS_AUTH_FILE", value_name = "FILE")]
    #[arg(conflicts_with = "travis_auth")]
    travis_auth_file: Option<PathBuf>,
    /// How often the worker is polled; five times as often during a change [default: 1s]
    #[arg(long, env = "LEASEHOLD_TRAVIS_INTERVAL", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::OF_REQUESTS))]
    travis_interval: Option<Duration>,
}

impl TravisArgs {
    /// The first option of this adapter that is set.
    pub(super) fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--travis-url", self.travis_url.is_some()),
            ("--travis-auth", self.travis_auth.is_some()),
            ("--travis-auth-file", self.travis_auth_file.is_some()),
            ("--travis-interval", self.travis_interval.is_some()),
        ])
    }

    /// Validates the options.
    pub(super) fn check(self) -> Result<TravisAdapter, String> {
        let Self { travis_url, travis_auth, travis_auth_file, travis_interval } = self;
        let url = travis_url.unwrap_or_else(|| URL.parse().expect("it is a URL"));
        if !url.is_bare() {
            return Err(format!(
                "invalid --travis-url {url}: expected http://HOST:PORT without a path"
            ));
        }
        let auth = match (travis_auth, travis_auth_file) {
            (_, Some(path)) => TravisAuth::File(path),
            (Some(auth), None) => TravisAuth::Given(auth),
            (None, None) => TravisAuth::Given(Secret::from(AUTH)),
        };
        let interval = travis_interval.unwrap_or(INTERVAL);
        Ok(TravisAdapter { url, auth, interval })
    }
}
