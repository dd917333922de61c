//! What a watch of the desired state follows.

use super::ConfigMapName;

/// The objects that one watch follows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The objects of a kind, of one namespace or of all.
    Objects { kind: &'static str, namespace: Option<String> },
    /// One ConfigMap.
    Map(ConfigMapName),
}

impl Source {
    /// Its namespace, if it is of one.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Objects { namespace, .. } => namespace.as_deref(),
            Self::Map((namespace, _)) => Some(namespace),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Objects { kind, namespace: None } => write!(f, "{kind} of all namespaces"),
            Self::Objects { kind, namespace: Some(name) } => write!(f, "{kind} of {name}"),
            Self::Map((namespace, name)) => write!(f, "ConfigMap {namespace}/{name}"),
        }
    }
}
