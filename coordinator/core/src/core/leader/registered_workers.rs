//! How workers that a predecessor has registered are entered into the ledger of a term.

use std::collections::BTreeMap;

use leasehold_types::{Moment, WorkerKey};

use super::timers::{Timer, Timers};
use crate::core::replica::ReplicaState;
use crate::exposure::Entry;
use crate::ledger::Ledger;

/// Whether a predecessor has stored all that this entry allows under the agent's own name,
/// and ended before it wrote the entry of the name's next agent.
pub(in crate::core) fn is_passed_on(
    exposed: &BTreeMap<WorkerKey, Entry>,
    key: &WorkerKey,
    entry: &Entry,
) -> bool {
    let agent = entry.exposure.identity.filter(|_| !key.worker.is_former());
    agent.is_some_and(|agent| exposed.contains_key(&key.former(agent)))
}

/// Enters a registered worker into the ledger, and sets timers for the end of what it may hold.
pub(in crate::core) fn enter(
    ledger: &mut Ledger,
    timers: &mut Timers,
    replica: &ReplicaState,
    (key, entry): (&WorkerKey, &Entry),
    now: Moment,
) {
    // The shares of a pipeline are planned together, when all of them are known.
    let cluster =
        replica.desired().clusters.get(&key.cluster).filter(|cluster| cluster.class.is_none());
    let bounds = replica.config().bounds;
    let comes_back = cluster.map_or(Moment::NEVER, |cluster| now + bounds.outlast(cluster.ttl));
    for at in ledger.expose(key, entry, replica.lists(), comes_back) {
        timers.set(at, Timer::Unreported(key.clone()));
    }
}
