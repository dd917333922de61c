//! Shares: a node of a pipeline is served by one worker or by several, and what each of them takes
//! is a share. It is leased like a stream, as one of the set of its namespace's shares, and no two
//! workers ever hold the same share, whatever their classes.

use std::fmt;
use std::sync::Arc;

use crate::{Load, NodeName, PipelineName, StreamKey, StreamName, WorkerName};

/// Names a node of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeKey {
    /// The pipeline.
    pub pipeline: PipelineName,
    /// The node.
    pub node: NodeName,
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pipeline, self.node)
    }
}

/// Names a share. The class that serves it is not part of the name: a node that goes to another
/// class is the same work, and its shares are the same leases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareKey {
    /// The pipeline.
    pub pipeline: PipelineName,
    /// The node.
    pub node: NodeName,
    /// Which of the node's shares it is, from 0.
    pub index: u32,
}

impl ShareKey {
    /// What is leased: `PIPELINE/NODE/INDEX` in the set of the shares of its namespace.
    #[must_use]
    pub fn stream(&self) -> StreamKey {
        let Self { pipeline, node, index } = self;
        let text = format!("{}/{node}/{index}", pipeline.parts().1);
        let stream = StreamName::new(&text).expect("two labels and a number are printable");
        StreamKey { set: pipeline.shares(), stream }
    }

    /// The share that is leased as this stream; none if the stream is not a share.
    #[must_use]
    pub fn of(stream: &StreamKey) -> Option<Self> {
        stream.set.is_shares().then_some(())?;
        let mut parts = stream.stream.as_str().split('/');
        let (pipeline, node, index) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let pipeline = match stream.set.namespace() {
            Some(namespace) => PipelineName::in_namespace(namespace, pipeline),
            None => PipelineName::new(pipeline),
        };
        let known: u32 = index.parse().ok()?;
        // Written in one way only.
        (known.to_string() == index).then_some(())?;
        Some(Self { pipeline: pipeline.ok()?, node: NodeName::new(node).ok()?, index: known })
    }
}

impl fmt::Display for ShareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.pipeline, self.node, self.index)
    }
}

/// What the holder of a share gets beside its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The load that is its own. It lasts as long as the token does.
    pub load: Load,
    /// Where documents go from here, by node; empty at the end of the pipeline. It changes while
    /// the token stays.
    pub next: Vec<Route>,
}

/// Where documents go next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The node.
    pub node: NodeName,
    /// The workers that serve it, by name; empty if none does at present. `None` where the node's
    /// table has them, as it does from [`PROTOCOL_OF_NODE_TABLES`] on.
    ///
    /// [`PROTOCOL_OF_NODE_TABLES`]: crate::limits::PROTOCOL_OF_NODE_TABLES
    pub endpoints: Option<Arc<[Endpoint]>>,
}

/// The table of a node, or a change of it. A table has the workers that serve the node. On a link
/// it is sent once, whatever number of shares lead to the node, and then its changes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableGrant {
    /// The node.
    pub node: NodeKey,
    /// What becomes of its table.
    pub change: TableChange,
}

impl TableGrant {
    /// How many endpoints and workers it names, at least 1.
    #[must_use]
    pub fn lines(&self) -> usize {
        let named = match &self.change {
            TableChange::Whole { endpoints, .. } => endpoints.len(),
            TableChange::Part { changed, removed, .. } => changed.len() + removed.len(),
            TableChange::Ended => 0,
        };
        named.max(1)
    }
}

/// What becomes of a node's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// This is the table from now on.
    Whole {
        /// Its version.
        version: TableVersion,
        /// The workers that serve the node, by name.
        endpoints: Arc<[Endpoint]>,
    },
    /// Some of its endpoints change.
    Part {
        /// The version that was sent last.
        from: TableVersion,
        /// The version that it has with these changes.
        version: TableVersion,
        /// The endpoints that are new, or have another address, load or state; by name.
        changed: Vec<Endpoint>,
        /// The workers that do not serve the node any longer.
        removed: Vec<WorkerName>,
    },
    /// No share of the worker leads to the node any longer.
    Ended,
}

/// Which state of a node's table this is. A leader gives no number twice; numbers of two leaders do
/// not compare. The first one is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableVersion(pub u64);

impl fmt::Display for TableVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A worker that serves a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The worker.
    pub worker: WorkerName,
    /// Its address, if its agent sent one.
    pub address: Option<WorkerAddress>,
    /// Its share of the load.
    pub load: Load,
    /// It drains: it takes documents only if no other worker does.
    pub draining: bool,
}

/// Where a worker is reached: `HOST` or `HOST:PORT`, as its agent says it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerAddress(std::sync::Arc<str>);

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid address {0:?}: expected HOST or HOST:PORT")]
pub struct InvalidAddress(String);

impl WorkerAddress {
    /// Takes `text` as it is. An IPv6 address with a port is written `[ADDRESS]:PORT`.
    ///
    /// # Errors
    /// [`InvalidAddress`] where the text is not one.
    pub fn new(text: &str) -> Result<Self, InvalidAddress> {
        let wrong = || InvalidAddress(text.chars().take(64).collect());
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]%".contains(&b);
        if text.is_empty()
            || text.len() > crate::limits::ADDRESS_BYTES_MAX
            || !text.bytes().all(allowed)
        {
            return Err(wrong());
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') && !host.starts_with('[') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let is_port = |port: &str| {
            port.bytes().all(|b| b.is_ascii_digit())
                && port.parse::<u16>().is_ok_and(|number| number > 0)
        };
        if !host.is_empty() && port.is_none_or(is_port) {
            Ok(Self(text.into()))
        } else {
            Err(wrong())
        }
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for WorkerAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SetName;
    use crate::limits::ADDRESS_BYTES_MAX;

    #[test]
    fn a_share_is_found_again_by_what_is_leased() {
        for pipeline in ["first", "media/first"] {
            let pipeline = PipelineName::new(pipeline).expect("a name");
            let node = NodeName::new("in").expect("a name");
            let key = ShareKey { pipeline, node, index: 3 };
            let stream = key.stream();
            assert_eq!(stream.stream.as_str(), "first/in/3");
            assert_eq!(ShareKey::of(&stream), Some(key));
        }
    }

    #[test]
    fn what_is_no_share_is_none() {
        let of = |set: &str, stream: &str| {
            let set = SetName::new(set).expect("a name");
            ShareKey::of(&StreamKey { set, stream: StreamName::new(stream).expect("a name") })
        };
        assert_eq!(of("cars", "first/in/3"), None);
        for bad in ["first", "first/in", "first/in/x", "first/in/03", "first/in/3/4", "A/in/3"] {
            assert_eq!(of("shares:", bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_are_hosts_with_a_port_or_without() {
        for good in ["10.0.0.1", "10.0.0.1:80", "w-0.svc:8080", "::1", "[::1]:80", "fe80::1%eth0"] {
            assert_eq!(WorkerAddress::new(good).expect("an address").as_str(), good);
        }
        for bad in ["", ":80", "a:0", "a:b", "a:65536", "a b", "http://a", "a/b", "a\n"] {
            assert!(WorkerAddress::new(bad).is_err(), "{bad:?}");
        }
        let longest = |host: usize| format!("{}:65535", "a".repeat(host));
        assert_eq!(longest(255).len(), ADDRESS_BYTES_MAX);
        assert!(WorkerAddress::new(&longest(255)).is_ok());
        assert!(WorkerAddress::new(&longest(256)).is_err());
    }
}
