//! Names and ids that come from outside: parsed once, cheap to clone, never empty, never with a
//! control character in them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::agent_id::AgentId;
use crate::limits;

/// Why a text is not a name of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {shown:?} {why}")]
pub struct InvalidName {
    kind: &'static str,
    shown: String,
    why: &'static str,
}

impl InvalidName {
    fn of(kind: &'static str, text: &str, why: &'static str) -> Self {
        Self { kind, shown: text.chars().take(64).collect(), why }
    }
}

macro_rules! namespaced {
    ($name:ident) => {
        impl $name {
            /// The name of an object in a namespace.
            ///
            /// # Errors
            /// [`InvalidName`] where one of the two is invalid.
            pub fn in_namespace(namespace: &str, name: &str) -> Result<Self, InvalidName> {
                Self::new(&format!("{namespace}/{name}"))
            }

            /// The namespace, where there is one, and the name within it.
            #[must_use]
            pub fn parts(&self) -> (Option<&str>, &str) {
                match self.0.split_once('/') {
                    Some((namespace, name)) => (Some(namespace), name),
                    None => (None, &self.0),
                }
            }
        }
    };
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:ident) => {
        $(#[$doc])*
        #[derive(Clone, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes `text` as it is.
            ///
            /// # Errors
            /// [`InvalidName`] says what the text has that the name may not.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                match $rule(text) {
                    Ok(()) => Ok(Self(text.into())),
                    Err(why) => Err(InvalidName::of($kind, text, why)),
                }
            }

            /// The name's text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        // Clones share their text: they are equal, which shows without reading it.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                if Arc::ptr_eq(&self.0, &other.0) {
                    return Ordering::Equal;
                }
                self.0.cmp(&other.0)
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().into()
            }
        }
    };
}

name! {
    /// A `WorkerCluster`'s name: a DNS subdomain, on Kubernetes with its namespace, as in
    /// `media/transcoders`.
    ClusterName, "cluster name", namespaced
}
name! {
    /// A worker's name, unique within its cluster: a DNS subdomain, as a pod's is. What an earlier
    /// agent of a name left behind has a name of its own: the worker's name, `@` and the agent's
    /// identity (see [`WorkerName::former`]).
    WorkerName, "worker name", worker_name
}
name! {
    /// A `StreamSet`'s name: a DNS subdomain, on Kubernetes with its namespace. The shares of
    /// pipelines are leased like streams, as one set per namespace: `shares:` and the namespace.
    SetName, "stream set name", set_name
}
name! {
    /// A `Pipeline`'s name: a DNS label, on Kubernetes with its namespace, as in `media/first`.
    PipelineName, "pipeline name", pipeline_name
}
name! {
    /// A node's name, unique within its pipeline: a DNS label.
    NodeName, "node name", dns_label
}
name! {
    /// A stream's name, unique within its set: printable text, as in `cars:updated`.
    StreamName, "stream name", stream_name
}
name! {
    /// A job's id, chosen by the worker: printable text.
    JobId, "job id", job_id
}
name! {
    /// The id of one start of a worker's process, chosen by the worker: printable text.
    StartId, "start id", job_id
}

namespaced!(ClusterName);
namespaced!(SetName);
namespaced!(PipelineName);

/// Comes before the identity in the name of an earlier agent.
const FORMER: char = '@';

/// What the name of a set of shares begins with.
const SHARES_PREFIX: &str = "shares:";

impl SetName {
    /// Whether it holds the shares of pipelines.
    #[must_use]
    pub fn is_shares(&self) -> bool {
        self.0.starts_with(SHARES_PREFIX)
    }

    /// The namespace that its streams belong to, if names have one.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        match self.0.strip_prefix(SHARES_PREFIX) {
            Some(namespace) => Some(namespace).filter(|namespace| !namespace.is_empty()),
            None => self.parts().0,
        }
    }
}

impl ClusterName {
    /// The set of the shares that its workers may hold, where it is a class: those of all
    /// pipelines in its namespace, since a node may have been another class's before.
    #[must_use]
    pub fn shares(&self) -> SetName {
        let namespace = self.parts().0.unwrap_or_default();
        SetName(format!("{SHARES_PREFIX}{namespace}").into())
    }
}

impl PipelineName {
    /// The set of its shares, which is that of all pipelines in its namespace.
    #[must_use]
    pub fn shares(&self) -> SetName {
        let namespace = self.parts().0.unwrap_or_default();
        SetName(format!("{SHARES_PREFIX}{namespace}").into())
    }
}

impl WorkerName {
    /// The name that no other comes before: where a range over a cluster's workers starts.
    #[must_use]
    pub fn first() -> Self {
        Self("0".into())
    }

    /// Takes the name of a worker that has an agent, which is a DNS subdomain.
    ///
    /// # Errors
    /// [`InvalidName`] says what the text has that the name may not.
    pub fn present_name(text: &str) -> Result<Self, InvalidName> {
        dns_subdomain(text).map_err(|why| InvalidName::of("worker name", text, why))?;
        Ok(Self(text.into()))
    }

    /// Under this name the leases of an agent are listed whose own name another agent has taken.
    #[must_use]
    pub fn former(&self, agent: AgentId) -> Self {
        Self(format!("{}{FORMER}{agent}", self.present()).into())
    }

    /// The names of a worker's former agents start here.
    fn former_first(&self) -> Self {
        Self(format!("{}{FORMER}", self.0).into())
    }

    /// The name that the worker's agent has or had: all but the former agent's identity.
    #[must_use]
    pub fn present(&self) -> Self {
        match self.0.split_once(FORMER) {
            Some((name, _)) => Self(name.into()),
            None => self.clone(),
        }
    }

    /// Whether it stands for an earlier agent of a name.
    #[must_use]
    pub fn is_former(&self) -> bool {
        self.0.contains(FORMER)
    }
}

impl StreamName {
    /// Comes before every name: where a range over a set's streams starts.
    #[must_use]
    pub fn first() -> Self {
        Self(" ".into())
    }
}

impl WorkerKey {
    /// See [`WorkerName::former`].
    #[must_use]
    pub fn former(&self, agent: AgentId) -> Self {
        Self { cluster: self.cluster.clone(), worker: self.worker.former(agent) }
    }

    /// Where a range over the former agents of a worker starts.
    #[must_use]
    pub fn former_first(&self) -> Self {
        Self { cluster: self.cluster.clone(), worker: self.worker.former_first() }
    }

    /// See [`WorkerName::present`].
    #[must_use]
    pub fn present(&self) -> Self {
        Self { cluster: self.cluster.clone(), worker: self.worker.present() }
    }
}

/// A worker of a cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerKey {
    /// The cluster that it belongs to.
    pub cluster: ClusterName,
    /// Its name there.
    pub worker: WorkerName,
}

impl fmt::Display for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.worker)
    }
}

/// A stream of a set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StreamKey {
    /// The set that lists it.
    pub set: SetName,
    /// Its name there.
    pub stream: StreamName,
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.set, self.stream)
    }
}

/// A DNS subdomain, or one before the identity of an earlier agent.
fn worker_name(text: &str) -> Result<(), &'static str> {
    let Some((name, agent)) = text.split_once(FORMER) else { return dns_subdomain(text) };
    dns_subdomain(name)?;
    agent.parse::<AgentId>().map(|_| ()).map_err(
        |_| "has no agent's identity after the '@': 32 hexadecimal digits, as in ListWorkers",
    )
}

fn dns_subdomain(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.len() > limits::NAME_BYTES_MAX {
        return Err("is longer than 253 bytes");
    }
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |part: &str| {
        let bytes = part.as_bytes();
        let ends = bytes.first().zip(bytes.last());
        ends.is_some_and(|(a, z)| edge(*a) && edge(*z))
            && bytes.iter().all(|b| edge(*b) || *b == b'-')
    };
    if text.split('.').all(label) {
        Ok(())
    } else {
        Err("is not a DNS subdomain: use only lower-case letters, digits, '-' and '.', \
    starting and ending with a letter or digit")
    }
}

/// A DNS subdomain, or one after a namespace and a slash.
fn namespaced(text: &str) -> Result<(), &'static str> {
    let Some((namespace, name)) = text.split_once('/') else { return dns_subdomain(text) };
    is_namespace(namespace)?;
    dns_subdomain(name)
}

fn is_namespace(text: &str) -> Result<(), &'static str> {
    if text.len() > limits::NAMESPACE_BYTES_MAX
        || text.contains('.')
        || dns_subdomain(text).is_err()
    {
        return Err("has no DNS label for its namespace, as in NAMESPACE/NAME");
    }
    Ok(())
}

/// A name in a namespace or not, or that of a set of shares.
fn set_name(text: &str) -> Result<(), &'static str> {
    match text.strip_prefix(SHARES_PREFIX) {
        Some("") => Ok(()),
        Some(namespace) => is_namespace(namespace),
        None => namespaced(text),
    }
}

/// A DNS label, or one after a namespace and a slash.
fn pipeline_name(text: &str) -> Result<(), &'static str> {
    namespaced(text)?;
    dns_label(text.split_once('/').map_or(text, |(_, name)| name))
}

fn dns_label(text: &str) -> Result<(), &'static str> {
    let short = text.len() <= limits::LABEL_BYTES_MAX && !text.contains('.');
    if short && dns_subdomain(text).is_ok() {
        Ok(())
    } else {
        Err("is not a DNS label: use at most 63 lower-case letters, digits and '-', starting \
                  and ending with a letter or digit")
    }
}

fn stream_name(text: &str) -> Result<(), &'static str> {
    printable(text, limits::STREAM_NAME_BYTES_MAX, "is longer than 253 bytes")
}

fn job_id(text: &str) -> Result<(), &'static str> {
    printable(text, limits::JOB_ID_BYTES_MAX, "is longer than 256 bytes")
}

fn printable(text: &str, bytes_max: usize, too_long: &'static str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.len() > bytes_max {
        return Err(too_long);
    }
    if text.chars().any(char::is_control) {
        return Err("holds a control character (a line break, a tab or the like)");
    }
    if text.trim().len() != text.len() {
        return Err("starts or ends with white space");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pods_are_taken_and_others_refused() {
        let long = "a".repeat(254);
        for good in ["w", "swarm-worker-0", "a.b-c.d0", "0"] {
            assert!(WorkerName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a..b", ".", "a\n", "ä", long.as_str(), "a@b"] {
            assert!(WorkerName::new(bad).is_err(), "{bad}");
            assert!(WorkerName::present_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cluster_may_be_in_a_namespace() {
        let name = ClusterName::in_namespace("ci", "builds.x").expect("a name");
        assert_eq!(name.as_str(), "ci/builds.x");
        assert_eq!(name.parts(), (Some("ci"), "builds.x"));
        assert_eq!(ClusterName::new("builds").expect("a name").parts(), (None, "builds"));
        let long = format!("{}/b", "a".repeat(64));
        for bad in ["/b", "a/", "a/b/c", "a.b/c", "A/b", long.as_str()] {
            assert!(ClusterName::new(bad).is_err(), "{bad}");
            assert!(SetName::new(bad).is_err(), "{bad}");
        }
        assert!(WorkerName::new("a/b").is_err());
    }

    #[test]
    fn the_shares_of_a_namespace_are_a_set_of_their_own() {
        let blue = ClusterName::in_namespace("media", "blue").expect("a name");
        let first = PipelineName::in_namespace("media", "first").expect("a name");
        assert_eq!(blue.shares(), first.shares());
        for (pipeline, set, namespace) in
            [("media/first", "shares:media", Some("media")), ("first", "shares:", None)]
        {
            let shares = PipelineName::new(pipeline).expect("a name").shares();
            assert_eq!(shares.as_str(), set);
            assert_eq!(SetName::new(set).expect("a name"), shares);
            assert!(shares.is_shares());
            assert_eq!(shares.namespace(), namespace);
        }
        let cars = SetName::new("media/cars").expect("a name");
        assert!(!cars.is_shares());
        assert_eq!(cars.namespace(), Some("media"));
        for bad in ["shares:a:b", "shares:a.b", "shares:a/c", "share:", "other:a"] {
            assert!(SetName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pipelines_and_nodes_have_labels_for_names() {
        assert!(PipelineName::new("media/first").is_ok());
        let long = "a".repeat(64);
        for bad in ["a.b", "media/a.b", "", "a/", long.as_str()] {
            assert!(PipelineName::new(bad).is_err(), "{bad}");
        }
        assert!(NodeName::new("blue-1").is_ok());
        assert!(NodeName::new("a/b").is_err());
    }

    #[test]
    fn a_job_id_may_be_any_printable_text() {
        for good in ["1", "build 7/linux", "ü"] {
            assert!(JobId::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(257);
        for bad in ["", "a\nb", "a\0", " a", "a ", "\u{7f}", long.as_str()] {
            assert!(JobId::new(bad).is_err(), "{bad:?}");
        }
        let error = JobId::new("a\nb").expect_err("a line break");
        assert_eq!(
            error.to_string(),
            r#"job id "a\nb" holds a control character (a line break, a tab or the like)"#
        );
    }
}
