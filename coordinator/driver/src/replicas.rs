//! The replicas of the coordinator that this one knows of. Only what people are shown depends on
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::cell::{Cell, KnownCell};

/// The most HTTP ports that are kept.
const HTTP_PORTS_MAX: usize = 64;

/// A replica, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KnownReplica {
    /// Where agents and people reach it: HOST:PORT.
    pub address: String,
    /// Its name.
    pub identity: String,
    /// Its build's version; empty if unknown.
    pub version: String,
    /// Where its HTTP port is reached: HOST:PORT; empty if unknown.
    #[serde(default)]
    pub http_address: String,
    /// What is wrong with it beside this replica, and what to do; empty if nothing is.
    #[serde(skip)]
    pub warning: String,
}

impl KnownReplica {
    /// A replica of this build.
    #[must_use]
    pub fn of_this_build(identity: String, address: String) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { address, identity, version, ..Self::default() }
    }
}

/// The replicas that a platform knows of, this one possibly among them.
pub type KnownReplicas = watch::Receiver<Arc<Vec<KnownReplica>>>;

/// The replicas that this one knows of: itself, those of its platform, and its followers.
#[derive(Debug)]
pub struct Replicas {
    own: KnownReplica,
    cell: KnownCell,
    known: KnownReplicas,
    followers: Mutex<Followers>,
    /// The HTTP ports of all replicas that were ever known: pages of a replica that has ended go
    /// on with the others.
    http_ports: Mutex<BTreeSet<u16>>,
}

#[derive(Debug, Default)]
struct Followers {
    next: u64,
    present: BTreeMap<u64, KnownReplica>,
}

/// Counts a follower as present until it is dropped.
#[derive(Debug)]
pub struct Follower {
    number: u64,
    replicas: Arc<Replicas>,
}

impl Replicas {
    /// The replicas around `own`.
    #[must_use]
    pub fn new(own: KnownReplica, cell: KnownCell, known: KnownReplicas) -> Self {
        Self { own, cell, known, followers: Mutex::default(), http_ports: Mutex::default() }
    }

    /// Their cell, once it is known.
    #[must_use]
    pub fn cell(&self) -> Option<Arc<Cell>> {
        self.cell.borrow().clone()
    }

    /// This replica.
    #[must_use]
    pub fn own(&self) -> &KnownReplica {
        &self.own
    }

    /// All of them, by address, each once.
    #[must_use]
    pub fn all(&self) -> Vec<KnownReplica> {
        let mut all = BTreeMap::new();
        let followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = Arc::clone(&self.known.borrow());
        let others = known.iter().chain(followers.present.values());
        // A replica that says nothing of itself cannot be told from the others.
        for replica in others.filter(|one| !one.address.is_empty()).chain([&self.own]) {
            all.insert(replica.address.clone(), replica.clone());
        }
        all.into_values().collect()
    }

    /// The HTTP ports of the replicas, and of those that have ended since [`Self::note_http_ports`]
    /// began to look.
    #[must_use]
    pub fn http_ports(&self) -> Vec<u16> {
        self.http_ports.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Notes the HTTP ports of the platform's replicas until the platform has ended.
    pub async fn note_http_ports(self: Arc<Self>) {
        let mut known = self.known.clone();
        loop {
            let replicas = Arc::clone(&known.borrow_and_update());
            self.note(&replicas);
            if known.changed().await.is_err() {
                return;
            }
        }
    }

    fn note(&self, replicas: &[KnownReplica]) {
        let ports = replicas.iter().filter_map(|replica| {
            replica.http_address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok())
        });
        let mut noted = self.http_ports.lock().unwrap_or_else(PoisonError::into_inner);
        let free = HTTP_PORTS_MAX.saturating_sub(noted.len());
        noted.extend(ports.take(free));
    }

    /// A replica follows this one.
    #[must_use]
    pub fn follow(self: &Arc<Self>, replica: KnownReplica) -> Follower {
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let number = followers.next;
        followers.next += 1;
        followers.present.insert(number, replica);
        Follower { number, replicas: Arc::clone(self) }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let followers = &self.replicas.followers;
        followers.lock().unwrap_or_else(PoisonError::into_inner).present.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_replicas_are_named_once_and_followers_until_they_leave() {
        let replica = |name: &str, address: &str| KnownReplica {
            identity: name.into(),
            address: address.into(),
            ..KnownReplica::default()
        };
        let known = watch::channel(Arc::new(vec![replica("b", "host:2"), replica("a", "host:1")]));
        let replicas =
            Arc::new(Replicas::new(replica("b", "host:2"), watch::channel(None).1, known.1));
        let names = || replicas.all().into_iter().map(|one| one.identity).collect::<Vec<_>>();
        assert_eq!(names(), ["a", "b"]);
        let follower = replicas.follow(replica("c", "host:3"));
        let again = replicas.follow(replica("c", "host:3"));
        let _earlier_release = replicas.follow(replica("d", ""));
        assert_eq!(names(), ["a", "b", "c"]);
        drop(follower);
        assert_eq!(names(), ["a", "b", "c"]);
        drop(again);
        assert_eq!(names(), ["a", "b"]);
    }
}
