//! The additions for the adapter `travis` beside the sidecar: the worker's remote controller,
//! switched on where the agent expects it, and a worker that starts with no processor.

use serde_json::Value;

use crate::annotations::PodSettings;
use crate::container::variable_of;
use crate::draft::{Draft, below, list_at, named};
use crate::edit::{EditOperation, Place, Step};
use crate::refusal::Refusal;
use crate::status::Status;

const ADDR: &str = "TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR";
const AUTH: &str = "TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH";
const POOL_SIZE: &str = "TRAVIS_WORKER_POOL_SIZE";

/// Where the agent expects the remote controller.
const ADDR_DEFAULT: &str = "127.0.0.1:8080";
/// The port is on localhost, so everything in the pod can reach it: this is not a secret.
const AUTH_DEFAULT: &str = "leasehold:leasehold";

fn is_chosen(config: &PodSettings) -> bool {
    config.flags.get("adapter").is_some_and(|adapter| adapter == "travis")
}

/// The variables that the worker needs.
pub(crate) fn worker_variables(config: &PodSettings) -> Vec<Value> {
    if !is_chosen(config) {
        return Vec::new();
    }
    let flag = |name: &str, default| config.flags.get(name).map_or(default, String::as_str);
    let addr = flag("travis-url", ADDR_DEFAULT);
    let addr = addr.strip_prefix("http://").unwrap_or(addr).trim_end_matches('/');
    let auth = flag("travis-auth", AUTH_DEFAULT).replace('$', "$$");
    vec![variable_of(ADDR, addr), variable_of(AUTH, &auth), variable_of(POOL_SIZE, "0")]
}

/// The agent's variables that follow from the worker's own: its address and its password,
/// a secret's too.
pub(crate) fn agent_variables(config: &PodSettings, own: &[Value]) -> Vec<Value> {
    if !is_chosen(config) {
        return Vec::new();
    }
    let given = |flag: &str| config.flags.contains_key(flag);
    let mut all = Vec::new();
    let addr = named(own, ADDR).and_then(|at| own[at].get("value")?.as_str());
    if let Some((host, port)) = addr.and_then(|addr| addr.rsplit_once(':'))
        && !given("travis-url")
    {
        let host = match host {
            "" | "0.0.0.0" => "127.0.0.1",
            "[::]" => "[::1]",
            host => host,
        };
        all.push(variable_of("LEASEHOLD_TRAVIS_URL", &format!("http://{host}:{port}")));
    }
    if let Some(at) = named(own, AUTH)
        && !given("travis-auth")
        && !given("travis-auth-file")
    {
        let mut auth = own[at].clone();
        auth["name"] = "LEASEHOLD_TRAVIS_AUTH".into();
        all.push(auth);
    }
    all
}

/// Sets the pool size of a worker to 0 at its start: jobs that it starts by itself
/// runs before it has a lease.
pub(crate) fn start_with_none(
    draft: &mut Draft,
    status: &mut Status,
    config: &PodSettings,
    env: &[Step],
    warnings: &mut Vec<String>,
) -> Result<(), Refusal> {
    let own = list_at(draft.pod(), env)?;
    let Some(index) = named(own, POOL_SIZE).filter(|_| is_chosen(config)) else { return Ok(()) };
    let path = below(env, index);
    match own[index].get("value") {
        Some(Value::String(size)) if size == "0" => {}
        Some(Value::String(size)) => {
            status.replaced.push((POOL_SIZE.into(), size.clone()));
            status.digest.add(&Value::from(POOL_SIZE));
            draft.change(below(&path, "value"), EditOperation::Replace("0".into()));
        }
        _ => warnings.push(format!(
            "{}: {POOL_SIZE} comes from elsewhere: it has to be 0, or the worker starts jobs \
             before it has a lease",
            Place(&path)
        )),
    }
    Ok(())
}
