//! What the agent does about a coordinator's refusal.

use leasehold_types::Moment;
use leasehold_types::message::{Refusal, RefusalReason};

use super::{Holder, Stage};
use crate::effect::{Effect, Notice, Target};
use crate::journal::Journal;

impl<J: Journal> Holder<J> {
    pub(super) fn refused(&mut self, refusal: Refusal, now: Moment) {
        let Refusal { reason, message } = refusal;
        if reason != RefusalReason::Left {
            self.notice(Notice::Refused(reason.clone(), message));
        }
        match reason {
            RefusalReason::Left => self.goodbye_answered(now),
            RefusalReason::NotLeader(Some(leader)) => self.redial(Target::Leader(leader), now),
            RefusalReason::NewerIncarnation(_) if self.link.welcomed => self.superseded(),
            RefusalReason::NewerIncarnation(newer) => {
                // If the record cannot be written, the coordinator refuses the next hello, too.
                if self.restart_journal(newer, now).is_ok() {
                    self.notice(Notice::IncarnationRaised(self.config.incarnation));
                }
                self.redial(Target::Next, now);
            }
            RefusalReason::Limit => self.redial(self.target_after_end(now), now),
            RefusalReason::NotLeader(None)
            | RefusalReason::UnknownCluster
            | RefusalReason::NewerLink
            | RefusalReason::Protocol
            | RefusalReason::Invalid
            | RefusalReason::Unauthorized
            | RefusalReason::GoAway
            | RefusalReason::EpochAhead
            | RefusalReason::NameTaken
            | RefusalReason::OtherCell => self.redial(Target::Next, now),
        }
    }

    /// Stops permanently: a newer agent has taken over the worker.
    fn superseded(&mut self) {
        self.stop_link();
        self.link.stage = Stage::Superseded;
        self.pool = None;
        self.streams.clear();
        self.changed();
        self.effects.push_back(Effect::Superseded);
    }
}
