//! Terms whose number another one had, since a store was put back from a copy (S6, S19).
//!
//! Invariant: a leader is judged by what agents have told it, since nobody else knows of the other
//! term.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::effect::Notice;
use leasehold_types::message::{CoordinatorMessage, Hello};
use leasehold_types::{Epoch, TermId};

use crate::observer::Checks;
use crate::system::network::LinkId;

/// What is known of terms by their identities.
#[derive(Debug, Default)]
pub(crate) struct RepeatedTerms {
    /// The identity of the newest term of each number that each replica has taken.
    terms: BTreeMap<(usize, Epoch), TermId>,
    /// The terms, by identity, of which an agent has told their leader that it obeyed another one
    /// of the number.
    told: BTreeSet<u64>,
    /// The term that the agent knows which said hello on each link.
    known: BTreeMap<LinkId, (Epoch, TermId)>,
}

impl Checks<'_> {
    /// A replica has taken a term. What was said of the tokens of another term of its number says
    /// nothing of its own.
    pub(crate) fn note_term(&mut self, replica: usize, epoch: Epoch, term: TermId) {
        let terms = &mut self.observer.repeated_terms.terms;
        let mut of_number = terms.iter().filter(|((_, number), _)| *number == epoch);
        let repeated = of_number.any(|(_, other)| *other != term);
        terms.insert((replica, epoch), term);
        if repeated {
            self.observer.statements.forget_tokens_of(epoch);
        }
    }

    /// Terms were put back from a copy. What is told of them by their numbers alone says nothing of
    /// the terms that follow, and tokens grow again only from the number on that was lost last.
    pub(crate) fn terms_restored(&mut self) {
        self.observer.term_history.restore();
    }

    /// A leader's core takes the hello of an agent.
    pub(crate) fn note_known_term(&mut self, replica: usize, link: LinkId, hello: &Hello) {
        let Some(seen) = hello.epoch_seen else { return };
        let repeated = &mut self.observer.repeated_terms;
        repeated.known.insert(link, (seen, hello.term_seen));
        let leads = self.view.replicas[replica].leads() == Some(seen);
        let term = repeated.terms.get(&(replica, seen)).filter(|_| leads);
        if let Some(term) = term.filter(|term| term.differs_from(hello.term_seen)) {
            repeated.told.insert(term.0);
            self.coverage.hit("checked: a leader learns that its number is repeated");
        }
    }

    /// S6: an agent is not welcomed to another term of the number that it has obeyed.
    pub(crate) fn check_repeated_welcome(&mut self, link: LinkId, message: &CoordinatorMessage) {
        let CoordinatorMessage::Welcome(welcome) = message else { return };
        let known = self.observer.repeated_terms.known.get(&link).copied();
        let Some((epoch, term)) = known.filter(|(epoch, _)| *epoch == welcome.epoch) else {
            return;
        };
        if term.differs_from(welcome.term) {
            let pod = self.view.network.links[link].pod;
            self.fail("S6", || {
                format!("p{pod} has obeyed another term of {epoch}, and is welcomed")
            });
        }
    }

    /// Whether an agent has told a replica that another term had the number of its own.
    pub(crate) fn is_told_repeated(&self, replica: usize, epoch: Epoch) -> bool {
        let repeated = &self.observer.repeated_terms;
        let term = repeated.terms.get(&(replica, epoch));
        term.is_some_and(|term| repeated.told.contains(&term.0))
    }

    /// S19: a leader that knows that its number is repeated gives out no token.
    pub(crate) fn check_repeated_grant(&mut self, replica: usize, notice: &Notice) {
        let (Notice::StreamGranted { token, .. } | Notice::PoolGranted { token, .. }) = notice
        else {
            return;
        };
        if self.is_told_repeated(replica, token.epoch) {
            let token = *token;
            self.fail("S19", || {
                format!("c{replica} grants {token}, and another term had its number")
            });
        }
    }
}
