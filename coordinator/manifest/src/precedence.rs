//! Which object came first, where two want the same name or the last place of a limit. On
//! Kubernetes it is the one that was created first: all replicas see the same time and UID, also
//! after a restart.

/// When an object was created.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Created {
    /// `metadata.creationTimestamp`, in seconds since 1970.
    pub seconds: i64,
    /// `metadata.uid`, for objects of the same second.
    pub uid: String,
}
