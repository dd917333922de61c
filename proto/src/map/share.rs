//! Shares of pipelines and the tables of their nodes, both ways.

use leasehold_types::limits::{NODES_MAX, WORKERS_MAX};
use leasehold_types::share::{
    Endpoint, NodeKey, Route, Share, TableChange, TableGrant, TableVersion, WorkerAddress,
};
use leasehold_types::{Load, NodeName, PipelineName};

use super::{Invalid, at_most, name, worker_name};
use crate::coordinator::v1 as wire;

impl TryFrom<wire::Share> for Share {
    type Error = Invalid;

    fn try_from(share: wire::Share) -> Result<Self, Invalid> {
        at_most("share.next", share.next.len(), NODES_MAX)?;
        at_most("share.next_nodes", share.next_nodes.len(), NODES_MAX)?;
        if !(share.next.is_empty() || share.next_nodes.is_empty()) {
            return Err(Invalid::new("share.next_nodes", "is set beside share.next"));
        }
        let told = share.next.into_iter().map(TryInto::try_into);
        let named = share.next_nodes.into_iter().map(|node| {
            let node = name("share.next_nodes", NodeName::new(&node))?;
            Ok(Route { node, endpoints: None })
        });
        Ok(Self {
            load: load("share.load_milli", share.load_milli)?,
            next: told.chain(named).collect::<Result<_, Invalid>>()?,
        })
    }
}

impl From<Share> for wire::Share {
    fn from(share: Share) -> Self {
        let (mut next, mut next_nodes) = (Vec::new(), Vec::new());
        for Route { node, endpoints } in share.next {
            let node = node.to_string();
            match endpoints {
                None => next_nodes.push(node),
                Some(endpoints) => {
                    let endpoints = endpoints.iter().cloned().map(Into::into).collect();
                    next.push(wire::Route { node, endpoints });
                }
            }
        }
        Self { load_milli: share.load.milli(), next, next_nodes }
    }
}

impl TryFrom<wire::Route> for Route {
    type Error = Invalid;

    fn try_from(route: wire::Route) -> Result<Self, Invalid> {
        Ok(Self {
            node: name("route.node", NodeName::new(&route.node))?,
            endpoints: Some(endpoints("route.endpoints", route.endpoints)?),
        })
    }
}

impl TryFrom<wire::TableGrant> for TableGrant {
    type Error = Invalid;

    fn try_from(table: wire::TableGrant) -> Result<Self, Invalid> {
        use wire::table_grant::Change;
        let node = NodeKey {
            pipeline: name("table.pipeline", PipelineName::new(&table.pipeline))?,
            node: name("table.node", NodeName::new(&table.node))?,
        };
        let change = match table.change.ok_or(Invalid::missing("table.change"))? {
            Change::Whole(whole) => TableChange::Whole {
                version: TableVersion(whole.version),
                endpoints: endpoints("table.whole.endpoints", whole.endpoints)?,
            },
            Change::Part(part) => {
                at_most("table.part.removed", part.removed.len(), WORKERS_MAX)?;
                let removed = part.removed.iter();
                let removed = removed.map(|worker| worker_name("table.part.removed", worker));
                TableChange::Part {
                    from: TableVersion(part.from),
                    version: TableVersion(part.version),
                    changed: endpoints("table.part.changed", part.changed)?,
                    removed: removed.collect::<Result<_, _>>()?,
                }
            }
            Change::End(wire::TableEnd {}) => TableChange::Ended,
        };
        Ok(Self { node, change })
    }
}

impl From<TableGrant> for wire::TableGrant {
    fn from(table: TableGrant) -> Self {
        use wire::table_grant::Change;
        let NodeKey { pipeline, node } = table.node;
        let change = match table.change {
            TableChange::Whole { version, endpoints } => Change::Whole(wire::WholeTable {
                version: version.0,
                endpoints: endpoints.iter().cloned().map(Into::into).collect(),
            }),
            TableChange::Part { from, version, changed, removed } => {
                Change::Part(wire::TablePart {
                    from: from.0,
                    version: version.0,
                    changed: changed.into_iter().map(Into::into).collect(),
                    removed: removed.iter().map(ToString::to_string).collect(),
                })
            }
            TableChange::Ended => Change::End(wire::TableEnd {}),
        };
        Self { pipeline: pipeline.to_string(), node: node.to_string(), change: Some(change) }
    }
}

/// At most one endpoint for each worker. A node may span fewer workers, but while its shares move,
/// those that give them back serve it too.
fn endpoints<T: FromIterator<Endpoint>>(
    field: &'static str,
    endpoints: Vec<wire::Endpoint>,
) -> Result<T, Invalid> {
    at_most(field, endpoints.len(), WORKERS_MAX)?;
    endpoints.into_iter().map(Endpoint::try_from).collect()
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

#[cfg(test)]
mod tests {
    use leasehold_types::limits::SHARES_PER_NODE_MAX;

    use super::*;

    fn endpoint(worker: &str) -> Endpoint {
        Endpoint {
            worker: worker.parse().expect("a name"),
            address: Some("10.0.0.2:80".parse().expect("an address")),
            load: "2.5".parse().expect("a load"),
            draining: true,
        }
    }

    fn node() -> NodeKey {
        NodeKey {
            pipeline: "media/first".parse().expect("a name"),
            node: "out".parse().expect("a name"),
        }
    }

    #[test]
    fn tables_arrive_as_they_were_sent() {
        let (from, version) = (TableVersion(3), TableVersion(7));
        for change in [
            TableChange::Whole { version, endpoints: [endpoint("w1"), endpoint("w2")].into() },
            TableChange::Whole { version, endpoints: [].into() },
            TableChange::Part {
                from,
                version,
                changed: vec![endpoint("w1")],
                removed: vec!["w2".parse().expect("a name")],
            },
            TableChange::Ended,
        ] {
            let sent = TableGrant { node: node(), change };
            let wire = wire::TableGrant::from(sent.clone());
            assert_eq!(TableGrant::try_from(wire), Ok(sent));
        }
    }

    #[test]
    fn routes_arrive_with_endpoints_or_as_names() {
        let route = |endpoints| Route { node: node().node, endpoints };
        for endpoints in [None, Some([].into()), Some([endpoint("w1")].into())] {
            let sent = Share { load: "2.5".parse().expect("a load"), next: vec![route(endpoints)] };
            let wire = wire::Share::from(sent.clone());
            assert_eq!(Share::try_from(wire), Ok(sent));
        }
    }

    /// Shares that move are of two workers for a while.
    #[test]
    fn a_table_may_have_more_workers_than_a_node_may_span() {
        let endpoints = vec![endpoint("w1"); SHARES_PER_NODE_MAX + 1].into();
        let change = TableChange::Whole { version: TableVersion(1), endpoints };
        let sent = TableGrant { node: node(), change };
        assert_eq!(TableGrant::try_from(wire::TableGrant::from(sent.clone())), Ok(sent));
    }

    #[test]
    fn a_bad_table_is_refused_with_its_field() {
        use wire::table_grant::Change;
        let good = wire::TableGrant::from(TableGrant { node: node(), change: TableChange::Ended });
        let worker = || wire::Endpoint::from(endpoint("w1"));
        let too_many = WORKERS_MAX + 1;
        let with = |change| wire::TableGrant { change, ..good.clone() };
        let part = |changed, removed| {
            with(Some(Change::Part(wire::TablePart { from: 1, version: 2, changed, removed })))
        };
        let whole = wire::WholeTable { version: 1, endpoints: vec![worker(); too_many] };
        for (bad, named) in [
            (wire::TableGrant { pipeline: "A b".into(), ..good.clone() }, "table.pipeline"),
            (wire::TableGrant { node: String::new(), ..good.clone() }, "table.node"),
            (with(None), "table.change"),
            (with(Some(Change::Whole(whole))), "table.whole.endpoints"),
            (part(vec![worker(); too_many], Vec::new()), "table.part.changed"),
            (part(Vec::new(), vec!["a/b".into()]), "table.part.removed"),
            (part(Vec::new(), vec!["w1".into(); too_many]), "table.part.removed"),
        ] {
            let error = TableGrant::try_from(bad).expect_err(named).to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_share_has_its_routes_in_one_form() {
        let both = wire::Share {
            load_milli: 1,
            next: vec![wire::Route { node: "out".into(), endpoints: Vec::new() }],
            next_nodes: vec!["err".into()],
        };
        let error = Share::try_from(both).expect_err("two forms").to_string();
        assert!(error.contains("share.next_nodes"), "{error}");
    }
}
