//! Shares of pipelines, both ways.

use leasehold_types::limits::{NODES_MAX, SHARES_PER_NODE_MAX};
use leasehold_types::share::{Endpoint, Route, Share, WorkerAddress};
use leasehold_types::{Load, NodeName};

use super::{Invalid, at_most, name, worker_name};
use crate::coordinator::v1 as wire;

impl TryFrom<wire::Share> for Share {
    type Error = Invalid;

    fn try_from(share: wire::Share) -> Result<Self, Invalid> {
        at_most("share.next", share.next.len(), NODES_MAX)?;
        let next = share.next.into_iter().map(TryInto::try_into);
        Ok(Self {
            load: load("share.load_milli", share.load_milli)?,
            next: next.collect::<Result<_, _>>()?,
        })
    }
}

impl From<Share> for wire::Share {
    fn from(share: Share) -> Self {
        let next = share.next.into_iter().map(Into::into).collect();
        Self { load_milli: share.load.milli(), next }
    }
}

impl TryFrom<wire::Route> for Route {
    type Error = Invalid;

    fn try_from(route: wire::Route) -> Result<Self, Invalid> {
        at_most("route.endpoints", route.endpoints.len(), SHARES_PER_NODE_MAX)?;
        let endpoints = route.endpoints.into_iter().map(TryInto::try_into);
        Ok(Self {
            node: name("route.node", NodeName::new(&route.node))?,
            endpoints: endpoints.collect::<Result<_, _>>()?,
        })
    }
}

impl From<Route> for wire::Route {
    fn from(route: Route) -> Self {
        let endpoints = route.endpoints.into_iter().map(Into::into).collect();
        Self { node: route.node.to_string(), endpoints }
    }
}

impl TryFrom<wire::Endpoint> for Endpoint {
    type Error = Invalid;

    fn try_from(endpoint: wire::Endpoint) -> Result<Self, Invalid> {
        Ok(Self {
            worker: worker_name("endpoint.worker", &endpoint.worker)?,
            address: address("endpoint.address", &endpoint.address)?,
            load: load("endpoint.load_milli", endpoint.load_milli)?,
            draining: endpoint.draining,
        })
    }
}

impl From<Endpoint> for wire::Endpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            worker: endpoint.worker.to_string(),
            address: endpoint.address.map_or_else(String::new, |address| address.to_string()),
            load_milli: endpoint.load.milli(),
            draining: endpoint.draining,
        }
    }
}

/// An address; `None` if the text is empty.
pub(super) fn address(field: &'static str, text: &str) -> Result<Option<WorkerAddress>, Invalid> {
    let address = (!text.is_empty()).then(|| WorkerAddress::new(text));
    address.transpose().map_err(|error| Invalid::new(field, error))
}

pub(super) fn load(field: &'static str, milli: u64) -> Result<Load, Invalid> {
    Load::from_milli(milli).map_err(|error| Invalid::new(field, error))
}
