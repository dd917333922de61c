//! What a watch of the desired state follows.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_manifest::collection::ConfigMapName;

/// ConfigMaps, and the keys of each, that sets name.
pub(super) type NamedMaps = BTreeMap<ConfigMapName, BTreeSet<String>>;

/// The objects that one watch follows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The objects of a kind, of one namespace or of all.
    Objects { kind: &'static str, namespace: Option<String> },
    /// The ConfigMaps with lists of streams, of one namespace or of all.
    StreamLists { namespace: Option<String> },
}

impl Source {
    /// Its namespace, if it is of one.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Objects { namespace, .. } | Self::StreamLists { namespace } => {
                namespace.as_deref()
            }
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Objects { kind, namespace: None } => write!(f, "{kind} of all namespaces"),
            Self::Objects { kind, namespace: Some(name) } => write!(f, "{kind} of {name}"),
            Self::StreamLists { namespace: None } => f.write_str("ConfigMaps of all namespaces"),
            Self::StreamLists { namespace: Some(name) } => write!(f, "ConfigMaps of {name}"),
        }
    }
}
