//! What is watched, and how a failed watch is described.

use super::MapName;

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The objects of a kind, of one namespace or of all.
    Objects { kind: &'static str, namespace: Option<String> },
    /// One ConfigMap.
    Map(MapName),
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

/// The error with all its causes.
pub(super) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        inner = error.source();
    }
    text
}
