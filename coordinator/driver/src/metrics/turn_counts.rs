//! Counts what one turn of the driver grants, frees and sends. Its sum goes to the counters at
//! once: each series is looked up once a turn, and not once for each worker.

use leasehold_coordinator_core::effect::{Effect, Freed, Notice};
use leasehold_types::message::CoordinatorMessage;

/// The counts of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCounts {
    pub(super) pools_granted: u64,
    pub(super) streams_granted: u64,
    pub(super) revoked: u64,
    pub(super) released: u64,
    pub(super) expired: u64,
    pub(super) gone: u64,
    pub(super) welcomes: u64,
    pub(super) refusals: u64,
    pub(super) grants: u64,
}

impl TurnCounts {
    /// Counts the effects of a turn.
    pub fn of<'a>(effects: impl Iterator<Item = &'a Effect>) -> Self {
        let mut counts = Self::default();
        for effect in effects {
            match effect {
                Effect::Notice(notice) => counts.add_notice(notice),
                Effect::Send { message, .. } => counts.add_message(message),
                Effect::Close(_) | Effect::Order { .. } => {}
            }
        }
        counts
    }

    /// Counts a notice, if it is about a lease.
    fn add_notice(&mut self, notice: &Notice) {
        let count = match notice {
            Notice::PoolGranted { .. } => &mut self.pools_granted,
            Notice::StreamGranted { .. } => &mut self.streams_granted,
            Notice::StreamRevoked { .. } => &mut self.revoked,
            Notice::StreamFreed { how: Freed::Released, .. } => &mut self.released,
            Notice::StreamFreed { how: Freed::Expired, .. } => &mut self.expired,
            Notice::StreamFreed { how: Freed::Gone, .. } => &mut self.gone,
            _ => return,
        };
        *count += 1;
    }

    /// Counts a message to an agent.
    fn add_message(&mut self, message: &CoordinatorMessage) {
        let count = match message {
            CoordinatorMessage::Welcome(_) => &mut self.welcomes,
            CoordinatorMessage::Refusal(_) => &mut self.refusals,
            CoordinatorMessage::Grant(_) => &mut self.grants,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, Epoch, SetName, StreamKey, StreamName, Token};
    use leasehold_types::{WorkerKey, WorkerName};

    use super::*;

    #[test]
    fn the_leases_of_a_turn_are_counted_by_kind() {
        let cluster = ClusterName::new("c").expect("a name");
        let worker = WorkerKey { cluster, worker: WorkerName::new("w").expect("a name") };
        let set = SetName::new("s").expect("a name");
        let stream = StreamKey { set, stream: StreamName::first() };
        let token = Token { epoch: Epoch(1), seq: 1 };
        let pool = Notice::PoolGranted { worker: worker.clone(), before: 0, size: 1, token };
        let granted =
            Notice::StreamGranted { worker: worker.clone(), stream: stream.clone(), token };
        let revoked =
            Notice::StreamRevoked { worker: worker.clone(), stream: stream.clone(), token };
        let freed = |how| {
            let (worker, stream) = (worker.clone(), stream.clone());
            Notice::StreamFreed { worker, stream, token, how }
        };
        let mut effects = Vec::new();
        for (times, notice) in [
            (3, &pool),
            (4, &granted),
            (5, &revoked),
            (6, &freed(Freed::Released)),
            (7, &freed(Freed::Expired)),
            (8, &freed(Freed::Gone)),
            (9, &Notice::Joined(worker.clone())),
        ] {
            effects.extend((0..times).map(|_| Effect::Notice(notice.clone())));
        }
        let expected = TurnCounts {
            pools_granted: 3,
            streams_granted: 4,
            revoked: 5,
            released: 6,
            expired: 7,
            gone: 8,
            ..TurnCounts::default()
        };
        assert_eq!(TurnCounts::of(effects.iter()), expected);
    }
}
