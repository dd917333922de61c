//! The lease as a worker reads it, for JSON and gRPC alike.
//!
//! Invariant: counted from the moment of the request, no duration exceeds the remaining lease time.

use leasehold_agent_core::{Lease, NextNode, ShareLease};
use leasehold_proto::worker::v1 as wire;
use leasehold_types::share::Endpoint;
use leasehold_types::{Load, Moment, WorkerKey};
use serde::{Serialize, Serializer};

use crate::driver::{RunningJob, RunningJobs};

/// The whole lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeaseView {
    version: u64,
    pool: PoolView,
    streams: Vec<StreamView>,
    bindings: Vec<BindingView>,
    draining: bool,
    connected: bool,
    cluster: String,
    worker: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PoolView {
    size: u32,
    token: String,
    running: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_for_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct StreamView {
    set: String,
    stream: String,
    token: String,
    state: StateView,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_for_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    release_within_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum StateView {
    Held,
    Revoked,
}

impl StateView {
    /// The state of a lease.
    fn of(revoked: Option<Moment>) -> Self {
        if revoked.is_some() { Self::Revoked } else { Self::Held }
    }
}

impl LeaseView {
    /// The lease with its times counted from `asked`, which is not before the request: a worker
    /// that adds them to its own clock reading from before the request stops in time.
    pub(crate) fn new(lease: &Lease, asked: Moment, who: &WorkerKey) -> Self {
        let left = |until: Moment| {
            u64::try_from(until.since(asked).as_millis()).expect("64 bits of nanoseconds fit")
        };
        let streams = lease.streams.iter().map(|held| StreamView {
            set: held.stream.set.to_string(),
            stream: held.stream.stream.to_string(),
            token: held.token.to_string(),
            state: StateView::of(held.revoked),
            valid_for_ms: held.until.map(left),
            release_within_ms: held.revoked.map(left),
        });
        Self {
            version: lease.version,
            pool: PoolView {
                size: lease.pool.size,
                token: lease.pool.token.map(|token| token.to_string()).unwrap_or_default(),
                running: lease.pool.running,
                valid_for_ms: lease.pool.until.map(left),
            },
            streams: streams.collect(),
            bindings: lease.bindings.iter().map(|held| BindingView::new(held, left)).collect(),
            draining: lease.draining,
            connected: lease.connected,
            cluster: who.cluster.to_string(),
            worker: who.worker.to_string(),
        }
    }
}

/// The jobs that run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct JobsView {
    jobs: Vec<JobView>,
    unnamed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct JobView {
    id: String,
    token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    running_for_ms: Option<u64>,
}

impl JobsView {
    pub(crate) fn new(running: &RunningJobs) -> Self {
        let job = |job: &RunningJob| JobView {
            id: job.id.to_string(),
            token: job.token.map(|token| token.to_string()).unwrap_or_default(),
            running_for_ms: job.ran.map(|ran| u64::try_from(ran.as_millis()).unwrap_or(u64::MAX)),
        };
        Self { jobs: running.named.iter().map(job).collect(), unnamed: running.unnamed }
    }
}

impl From<JobsView> for wire::ListJobsResponse {
    fn from(view: JobsView) -> Self {
        let jobs = view.jobs.into_iter().map(|JobView { id, token, running_for_ms }| wire::Job {
            id,
            token,
            running_for_ms,
        });
        Self { jobs: jobs.collect(), unnamed: view.unnamed }
    }
}

impl From<LeaseView> for wire::Lease {
    fn from(view: LeaseView) -> Self {
        Self {
            version: view.version,
            pool: Some(wire::Pool {
                size: view.pool.size,
                token: view.pool.token,
                running: view.pool.running,
                valid_for_ms: view.pool.valid_for_ms,
            }),
            streams: view.streams.into_iter().map(Into::into).collect(),
            draining: view.draining,
            connected: view.connected,
            cluster: view.cluster,
            worker: view.worker,
            bindings: view.bindings.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<StateView> for wire::StreamLeaseState {
    fn from(view: StateView) -> Self {
        match view {
            StateView::Held => Self::Held,
            StateView::Revoked => Self::Revoked,
        }
    }
}

impl From<StreamView> for wire::StreamLease {
    fn from(view: StreamView) -> Self {
        Self {
            set: view.set,
            stream: view.stream,
            token: view.token,
            state: wire::StreamLeaseState::from(view.state).into(),
            valid_for_ms: view.valid_for_ms,
            release_within_ms: view.release_within_ms,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct BindingView {
    pipeline: String,
    node: String,
    index: u32,
    token: String,
    state: StateView,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_for_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    release_within_ms: Option<u64>,
    #[serde(serialize_with = "as_number")]
    documents_per_second: Load,
    next: Vec<NextView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct NextView {
    node: String,
    endpoints: Vec<EndpointView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct EndpointView {
    worker: String,
    /// Empty if unknown.
    address: String,
    #[serde(serialize_with = "as_number")]
    documents_per_second: Load,
    draining: bool,
}

impl BindingView {
    /// The binding; `left` returns the remaining milliseconds.
    fn new(held: &ShareLease, left: impl Fn(Moment) -> u64) -> Self {
        Self {
            pipeline: held.key.pipeline.to_string(),
            node: held.key.node.to_string(),
            index: held.key.index,
            token: held.token.to_string(),
            state: StateView::of(held.revoked),
            valid_for_ms: held.until.map(&left),
            release_within_ms: held.revoked.map(&left),
            documents_per_second: held.load,
            next: held.next.iter().map(Into::into).collect(),
        }
    }
}

impl From<&NextNode> for NextView {
    fn from(next: &NextNode) -> Self {
        let endpoints = next.endpoints.iter().map(Into::into).collect();
        Self { node: next.node.to_string(), endpoints }
    }
}

impl From<&Endpoint> for EndpointView {
    fn from(endpoint: &Endpoint) -> Self {
        Self {
            worker: endpoint.worker.to_string(),
            address: endpoint.address.as_ref().map(ToString::to_string).unwrap_or_default(),
            documents_per_second: endpoint.load,
            draining: endpoint.draining,
        }
    }
}

impl From<BindingView> for wire::Binding {
    fn from(view: BindingView) -> Self {
        Self {
            pipeline: view.pipeline,
            node: view.node,
            index: view.index,
            token: view.token,
            state: wire::StreamLeaseState::from(view.state).into(),
            valid_for_ms: view.valid_for_ms,
            release_within_ms: view.release_within_ms,
            documents_per_second: view.documents_per_second.as_f64(),
            next: view.next.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<NextView> for wire::Next {
    fn from(view: NextView) -> Self {
        let endpoints = view.endpoints.into_iter().map(Into::into).collect();
        Self { node: view.node, endpoints }
    }
}

impl From<EndpointView> for wire::Endpoint {
    fn from(view: EndpointView) -> Self {
        Self {
            worker: view.worker,
            address: view.address,
            documents_per_second: view.documents_per_second.as_f64(),
            draining: view.draining,
        }
    }
}

/// Serializes a load as a JSON number: `10`, `2.5`.
fn as_number<S: Serializer>(load: &Load, to: S) -> Result<S::Ok, S::Error> {
    match load.milli() % 1_000 {
        0 => to.serialize_u64(load.milli() / 1_000),
        _ => to.serialize_f64(load.as_f64()),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_agent_core::{PoolView, StreamLease};
    use leasehold_types::{Epoch, ShareKey, StreamKey, Token};

    use super::*;

    #[test]
    fn times_count_from_the_request_and_are_rounded_down() {
        let token = Token { epoch: Epoch(8), seq: 17 };
        let stream = StreamKey {
            set: "cars".parse().expect("a name"),
            stream: "cars:new".parse().expect("a name"),
        };
        let key = ShareKey {
            pipeline: "media/first".parse().expect("a name"),
            node: "in".parse().expect("a name"),
            index: 1,
        };
        let endpoint = |worker: &str, address: Option<&str>| Endpoint {
            worker: worker.parse().expect("a name"),
            address: address.map(|address| address.parse().expect("an address")),
            load: "10".parse().expect("a load"),
            draining: address.is_none(),
        };
        let endpoints = [endpoint("w2", Some("10.0.0.2:80")), endpoint("w3", None)].into();
        let ms = |ms: u64| Moment(ms * 1_000_000);
        let binding = ShareLease {
            key,
            token,
            until: Some(ms(9_000)),
            revoked: None,
            load: "2.5".parse().expect("a load"),
            next: vec![NextNode { node: "out".parse().expect("a name"), endpoints }],
        };
        let lease = Lease {
            version: 3,
            pool: PoolView { size: 2, token: Some(token), running: 1, until: Some(ms(9_000)) },
            streams: vec![StreamLease { stream, token, until: None, revoked: Some(ms(1_500)) }],
            bindings: vec![binding],
            draining: false,
            connected: true,
        };
        let who = WorkerKey {
            cluster: "ci".parse().expect("a name"),
            worker: "w1".parse().expect("a name"),
        };
        let view = LeaseView::new(&lease, Moment(ms(1_000).0 + 1), &who);
        let json = serde_json::to_string(&view).expect("plain fields");
        assert_eq!(
            json,
            r#"{"version":3,"pool":{"size":2,"token":"8.17","running":1,"valid_for_ms":7999},"#
                .to_owned()
                + r#""streams":[{"set":"cars","stream":"cars:new","token":"8.17","#
                + r#""state":"revoked","release_within_ms":499}],"#
                + r#""bindings":[{"pipeline":"media/first","node":"in","index":1,"token":"8.17","#
                + r#""state":"held","valid_for_ms":7999,"documents_per_second":2.5,"next":["#
                + r#"{"node":"out","endpoints":[{"worker":"w2","address":"10.0.0.2:80","#
                + r#""documents_per_second":10,"draining":false},{"worker":"w3","address":"","#
                + r#""documents_per_second":10,"draining":true}]}]}],"#
                + r#""draining":false,"connected":true,"cluster":"ci","worker":"w1"}"#
        );
    }
}
