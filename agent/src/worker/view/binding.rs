//! The lease of a pipeline's share as a worker reads it.

use leasehold_agent_core::BindingLease;
use leasehold_proto::worker::v1 as wire;
use leasehold_types::share::{Endpoint, Route};
use leasehold_types::{Load, Moment};
use serde::{Serialize, Serializer};

use super::StateView;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct BindingView {
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
    /// Empty where nobody says.
    address: String,
    #[serde(serialize_with = "as_number")]
    documents_per_second: Load,
    draining: bool,
}

impl BindingView {
    /// The binding with its times as `left` counts them.
    pub(super) fn new(held: &BindingLease, left: impl Fn(Moment) -> u64) -> Self {
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

impl From<&Route> for NextView {
    fn from(route: &Route) -> Self {
        let endpoints = route.endpoints.iter().map(Into::into).collect();
        Self { node: route.node.to_string(), endpoints }
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

/// A load as people write it: `10`, `2.5`.
fn as_number<S: Serializer>(load: &Load, to: S) -> Result<S::Ok, S::Error> {
    match load.milli() % 1_000 {
        0 => to.serialize_u64(load.milli() / 1_000),
        _ => to.serialize_f64(load.as_f64()),
    }
}
