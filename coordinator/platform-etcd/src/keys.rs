//! The keys of one cell, all below one prefix: `election/term` and `election/heartbeat`,
//! `exposures/CLUSTER/WORKER`, and `manifests/PATH`.

use std::fmt;

use leasehold_types::{ClusterName, WorkerKey, WorkerName};

/// Bytes of a prefix.
pub const PREFIX_BYTES_MAX: usize = 256;

/// The keys below one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Ends with a slash.
    prefix: String,
}

/// The keys from `first` up to `end`, without that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) first: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Keys {
    /// The keys below a prefix, to which a missing slash is added.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{}/", prefix.trim_end_matches('/')) }
    }

    /// Both keys of the election.
    pub(crate) fn election(&self) -> KeyRange {
        self.below("election/")
    }

    /// The present term: written when it is taken and when it is released.
    pub(crate) fn term(&self) -> Vec<u8> {
        self.key("election/term")
    }

    /// What the leader writes with each renewal.
    pub(crate) fn heartbeat(&self) -> Vec<u8> {
        self.key("election/heartbeat")
    }

    /// The entries of all workers.
    pub(crate) fn exposures(&self) -> KeyRange {
        self.below("exposures/")
    }

    /// The entry of a worker.
    pub(crate) fn exposure(&self, worker: &WorkerKey) -> Vec<u8> {
        self.key(&format!("exposures/{worker}"))
    }

    /// The worker of an entry; `None` for a key that no coordinator wrote.
    pub(crate) fn worker(&self, key: &[u8]) -> Option<WorkerKey> {
        // No name of a worker has a slash; that of a cluster may have one.
        let (cluster, worker) = self.rest(key, "exposures/")?.rsplit_once('/')?;
        let (cluster, worker) = (ClusterName::new(cluster).ok()?, WorkerName::new(worker).ok()?);
        Some(WorkerKey { cluster, worker })
    }

    /// All manifests, and the lists of streams beside them.
    pub(crate) fn manifests(&self) -> KeyRange {
        self.below("manifests/")
    }

    /// The path of the manifest at a key; `None` if the key is not a manifest's.
    pub(crate) fn manifest<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.rest(key, "manifests/").filter(|path| !path.is_empty())
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    fn below(&self, folder: &str) -> KeyRange {
        let first = self.key(folder);
        // The end of the range is the prefix with its last byte, a slash, increased by one.
        let mut end = first.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        KeyRange { first, end }
    }

    fn rest<'a>(&self, key: &'a [u8], folder: &str) -> Option<&'a str> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.strip_prefix(folder)
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for prefix in ["/leasehold", "/leasehold/", "a/b"] {
            let keys = Keys::new(prefix);
            for (cluster, worker) in [("builds", "w-0"), ("ci/builds", "w-0.example")] {
                let cluster = ClusterName::new(cluster).unwrap();
                let key = WorkerKey { cluster, worker: WorkerName::new(worker).unwrap() };
                let written = keys.exposure(&key);
                assert_eq!(keys.worker(&written), Some(key));
                let KeyRange { first, end } = keys.exposures();
                assert!(first <= written && written < end);
                assert!(!(keys.manifests().first <= written && written < keys.manifests().end));
            }
            let manifest = [keys.manifests().first.as_slice(), b"ci/cars.yaml"].concat();
            assert_eq!(keys.manifest(&manifest), Some("ci/cars.yaml"));
            assert_eq!(keys.manifest(&keys.manifests().first), None);
            assert_eq!(keys.worker(&manifest), None);
            assert_eq!(keys.worker(b"/other/exposures/builds/w-0"), None);
        }
    }
}
