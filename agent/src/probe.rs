//! `leasehold-agent probe`: asks an agent for its health over the loopback interface, and says by
//! its exit code what the agent answered. It is made for exec probes: a kubelet's HTTP probes go to
//! the pod's address, where the proxy of a service mesh takes them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use hyper::Method;

use crate::config::HealthProbe;
use crate::http_client::{ANSWER_BYTES_MAX, Call};
use crate::runtime;

/// How long the agent may take to answer. It is less than the time-out of an injected probe, so
/// that the reason is printed before the kubelet ends this process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// Runs the command and returns the exit code of this process.
#[must_use]
pub fn main(probe: &HealthProbe) -> ExitCode {
    match runtime::block_on(ask(probe)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn ask(probe: &HealthProbe) -> anyhow::Result<()> {
    let call = Call {
        method: Method::GET,
        url: &probe.url,
        authorization: None,
        json: None,
        timeout: Some(ANSWER_TIMEOUT),
        answer_bytes_max: ANSWER_BYTES_MAX,
    };
    let answer = call.send().await.with_context(|| probe.url.to_string())?;
    if answer.status == 200 { Ok(()) } else { bail!("{} answered {}", probe.url, answer.summary()) }
}
