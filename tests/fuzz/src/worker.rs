//! The protocol between a worker and its agent: the agent's port over HTTP and gRPC, and what the
//! adapters read. The first line of an input says what the rest is: `travis`, `http POINTER`,
//! `command` or `file`. All other inputs are requests to a new agent (see `request`).

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::LazyLock;

use leasehold_agent::config::{Config, Invocation};
use leasehold_agent::inputs;
use leasehold_types::{StreamName, WorkerName};
use serde_json::{Value, json};

use crate::answer::ask;
use crate::request::requests;

/// The agent's command line. Nothing listens at that coordinator.
const ARGUMENTS: &str =
    "leasehold-agent run --coordinator 127.0.0.1:1 --cluster ci/builds --worker builds-0";

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    match Invocation::try_parse_from(ARGUMENTS.split(' ')).expect("valid arguments") {
        Invocation::Run(config) => *config,
        other => unreachable!("{other:?}"),
    }
});

/// Reads an input as the agent does.
pub fn run(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (first, rest) = (&input[..end], input.get(end + 1..).unwrap_or_default());
    match (first, std::str::from_utf8(first), std::str::from_utf8(rest)) {
        (b"travis", ..) => says_why(inputs::travis_answer(rest)),
        (b"command", _, Ok(rest)) => says_why(inputs::command_output(rest)),
        (b"file", _, Ok(rest)) => file(rest),
        (_, Ok(first), _) if first.starts_with("http ") => {
            says_why(inputs::http_answer(rest, &first["http ".len()..]));
        }
        _ => port(input),
    }
}

fn says_why<T>(read: anyhow::Result<T>) {
    if let Err(why) = read {
        assert!(!format!("{why:#}").is_empty());
    }
}

/// Sends requests, one after the other, to an agent that has no lease.
fn port(input: &[u8]) {
    let requests = requests(input);
    if requests.is_empty() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let router = inputs::worker_api(&CONFIG);
        for request in requests {
            if let Some(answer) = ask(router.clone(), request).await {
                answer.check();
            }
        }
    });
}

/// The file that an agent shares with its worker. The lines of an input are names: what the agent
/// writes of them is YAML with these names, and the next agent finds its numbers in it.
fn file(text: &str) {
    black_box(inputs::config_file(text));
    let mut lines = text.lines();
    let Some(Ok(worker)) = lines.next().map(WorkerName::new) else { return };
    let streams: BTreeSet<StreamName> =
        lines.filter_map(|line| StreamName::new(line).ok()).collect();
    let (pool_size, version) = (3, 7);
    let written = inputs::config_file_of(worker.as_str(), streams.clone(), pool_size, version);
    assert_eq!(inputs::config_file(&written), (version, pool_size), "{written}");
    let read: Value = serde_yaml::from_str(&written).unwrap_or_else(|why| {
        panic!("the file is not YAML: {why}\n{written}");
    });
    let jobs: Vec<&str> = streams.iter().map(StreamName::as_str).collect();
    let workload = json!({"jobs": jobs, "poolSize": pool_size, "version": version});
    assert_eq!(read, json!({"workloads": {worker.as_str(): workload}, "version": version}));
}
