//! Options of the adapter `travis`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold_types::duration;

use super::first_given;
use super::secret::Secret;
use crate::http_client::Url;

/// Where the Travis worker's remote controller listens, unless the options say otherwise.
const URL: &str = "http://127.0.0.1:8080";
/// The user and the password in an injected pod: its port is on localhost, so they keep nobody out
/// who is in the pod, and are no secret.
const AUTH: &str = "leasehold:leasehold";
/// How often the worker is asked while nothing is to change.
const INTERVAL: Duration = Duration::from_secs(1);

/// The adapter `travis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TravisAdapter {
    /// The remote controller.
    pub url: Url,
    /// The user and the password.
    pub auth: TravisAuth,
    /// How often the worker is asked while nothing is to change.
    pub interval: Duration,
}

/// Where the user and the password come from, as `USER:PASSWORD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TravisAuth {
    /// From an option.
    Given(Secret),
    /// From a file, read for every request.
    File(PathBuf),
}

/// Options of the adapter `travis`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter travis")]
pub(super) struct TravisArgs {
    /// The Travis worker's remote controller, which is TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR in its
    /// environment [default: http://127.0.0.1:8080]
    #[arg(long, env = "LEASEHOLD_TRAVIS_URL", value_name = "URL")]
    travis_url: Option<Url>,
    /// Its user and password, as in TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH; better in the
    /// environment than on a command line, which others can see [default: leasehold:leasehold]
    #[arg(long, env = "LEASEHOLD_TRAVIS_AUTH", value_name = "USER:PASSWORD")]
    #[arg(hide_env_values = true)]
    travis_auth: Option<Secret>,
    /// A file with them, read anew for every request
    #[arg(long, env = "LEASEHOLD_TRAVIS_AUTH_FILE", value_name = "FILE")]
    #[arg(conflicts_with = "travis_auth")]
    travis_auth_file: Option<PathBuf>,
    /// How often the worker is asked while nothing is to change; five times as often while
    /// something is [default: 1s]
    #[arg(long, env = "LEASEHOLD_TRAVIS_INTERVAL", value_name = "DURATION")]
    #[arg(value_parser = duration::parse)]
    travis_interval: Option<Duration>,
}

impl TravisArgs {
    /// An option that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--travis-url", self.travis_url.is_some()),
            ("--travis-auth", self.travis_auth.is_some()),
            ("--travis-auth-file", self.travis_auth_file.is_some()),
            ("--travis-interval", self.travis_interval.is_some()),
        ])
    }

    /// The adapter, where its options make sense together.
    pub(super) fn check(self) -> Result<TravisAdapter, String> {
        let Self { travis_url, travis_auth, travis_auth_file, travis_interval } = self;
        let url = travis_url.unwrap_or_else(|| URL.parse().expect("it is a URL"));
        if !url.is_bare() {
            return Err(format!("--travis-url {url}: write http://HOST:PORT, without a path"));
        }
        let auth = match (travis_auth, travis_auth_file) {
            (_, Some(path)) => TravisAuth::File(path),
            (Some(auth), None) => TravisAuth::Given(auth),
            (None, None) => TravisAuth::Given(Secret::from(AUTH)),
        };
        let interval = interval("--travis-interval", travis_interval)?;
        Ok(TravisAdapter { url, auth, interval })
    }
}

/// How often a worker is asked; `option` is the name of what was given.
pub(super) fn interval(option: &str, given: Option<Duration>) -> Result<Duration, String> {
    let interval = given.unwrap_or(INTERVAL);
    match interval.is_zero() {
        true => Err(format!("{option} is zero: the worker would be asked without a pause")),
        false => Ok(interval),
    }
}
