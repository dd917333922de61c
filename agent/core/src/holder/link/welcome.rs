//! Which leader's welcome the agent obeys, and what it records before it reports to it.

use leasehold_types::message::Welcome;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{GrantNumber, Moment, TermId};

use super::{Holder, Stage};
use crate::effect::{Notice, Target};
use crate::journal::{Journal, Record};

impl<J: Journal> Holder<J> {
    pub(super) fn welcome(&mut self, welcome: Welcome, now: Moment) {
        let Welcome { epoch, term, cell, answers_goodbye, protocol, terms } = welcome;
        if !ProtocolRange::OWN.contains(protocol) {
            self.protocol_violation("a welcome to a protocol that the agent does not speak", now);
            return;
        }
        if let (Some(own), Some(other)) = (self.cell, cell)
            && own != other
            && !mutation::on(Mutation::OtherCellObeyed)
        {
            self.notice(Notice::OtherCell { own, other });
            self.redial(Target::Next, now);
            return;
        }
        // An agent that no leader has granted anything, as after a boot of its host, names no
        // epoch: a leader whose store was put back from a copy would never learn that its number
        // is lower.
        let lower = self.epoch.is_some_and(|known| epoch < known);
        if lower && self.was_granted() {
            self.notice(Notice::Unlinked(
                "the coordinator's epoch is lower than one that this agent has seen".into(),
            ));
            self.redial(Target::Next, now);
            return;
        }
        let is_known = self.epoch == Some(epoch);
        if is_known && self.was_granted() && self.term.differs_from(term) {
            self.notice(Notice::ProtocolViolation(
                "a leader has the epoch of another one: its store was put back from a copy",
            ));
            self.redial(Target::Next, now);
            return;
        }
        let answers_another = self.link.reported_to.is_some_and(|(newest, newest_term)| {
            epoch < newest || (epoch == newest && newest_term.differs_from(term))
        });
        if answers_another && !mutation::on(Mutation::LowerTermTold) {
            self.begin_again(now);
            return;
        }
        let cell = self.cell.or(cell);
        // A leader of an earlier release names none.
        let is_new = !is_known || (self.term != term && term != TermId(0));
        if is_new || self.cell != cell {
            let unwritten = mutation::on(Mutation::EpochUnwritten);
            if !unwritten && self.write(&Record::Epoch { epoch, term, cell }).is_err() {
                self.redial(Target::Next, now);
                return;
            }
            self.cell = cell;
        }
        if is_new {
            (self.epoch, self.term) = (Some(epoch), term);
            self.link.applied = GrantNumber(0);
        }
        self.terms = Some(terms);
        self.link.welcomed = true;
        self.link.named = None;
        self.link.stage = Stage::Reported;
        self.link.goodbye.is_answered = answers_goodbye;
        self.link.reported_to = Some((epoch, term));
        self.notice(Notice::Welcomed(epoch));
        self.report(terms, now);
    }

    /// Continues as after a restart with the same journal, before it reports to a term below
    /// another one that has its report, and has granted it nothing yet. The lower leader may have
    /// been deposed without knowing it. Its term may have been confirmed since this agent's first
    /// hello, and it would grant slots at once, which the other leader counts as free. For a new
    /// incarnation it has its term confirmed anew.
    fn begin_again(&mut self, now: Moment) {
        let incarnation = self.config.incarnation.next();
        let begun = Record::Begun { incarnation, begun: self.begun, first: self.first };
        if self.write(&begun).is_ok() {
            self.config.incarnation = incarnation;
            self.link.reported_to = None;
        }
        self.redial(Target::Next, now);
    }
}
