//! The objects that requests name.

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_driver::access::Subject;
use leasehold_proto::map;
use leasehold_types::{Moment, ShareKey, StreamKey, WorkerKey};

use super::error::AdminError;

/// The object that a stream belongs to: its set or, for a share, its pipeline.
pub(super) fn subject_of(key: &StreamKey) -> Subject {
    match ShareKey::of(key) {
        Some(share) => Subject::Pipeline(share.pipeline),
        None => Subject::Set(key.set.clone()),
    }
}

/// The worker, if its agent is connected: it keeps orders about its drain, and a leader that is
/// followed by another one forgets those that it could not pass on.
pub(super) fn connected_worker(
    core: &Core,
    key: &WorkerKey,
    now: Moment,
) -> Result<WorkerView, AdminError> {
    let worker = core.worker(key, now).ok_or_else(|| AdminError::worker_not_found(key))?;
    if worker.presence == Presence::Connected {
        Ok(worker)
    } else {
        Err(AdminError::NotConnected(key.clone()))
    }
}

pub(super) fn worker_of(cluster: &str, worker: &str) -> Result<WorkerKey, AdminError> {
    Ok(map::worker_key(cluster, worker)?)
}
