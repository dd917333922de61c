//! Which agents get a message in a turn, and what follows from each message.

use std::collections::BTreeMap;

use leasehold_types::message::CoordinatorMessage;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::TableGrant;
use leasehold_types::{Moment, WorkerKey};

use super::grant_composer::{Composed, GrantComposer, GrantContent};
use super::{Leader, Timer};

impl Leader {
    /// Sends every agent whose connection can take a message the changes for it.
    pub(super) fn flush(&mut self, now: Moment) {
        if mutation::on(Mutation::WaitForSlowest) && self.any_session_is_slow() {
            return;
        }
        let mut free = BTreeMap::new();
        while self.replica.budget().is_left()
            && let Some(key) = self.next_recipient()
        {
            self.replica.budget_mut().spend(1);
            let free = free
                .entry(key.cluster.clone())
                .or_insert_with(|| self.grant_rules().free_slots(&key.cluster));
            self.send_grant(&key, GrantContent::All(free.as_mut()), now);
        }
    }

    /// The worker whose message is composed next.
    fn next_recipient(&mut self) -> Option<WorkerKey> {
        let clusters = &self.clusters;
        let generation =
            |key: &WorkerKey| clusters.worker(key).map_or(0, |worker| worker.generation());
        // Free slots go to the newest generation first.
        self.outgoing.next(self.replica.budget().left(), generation)
    }

    /// Answers beats of agents whose turn has not come, so that no lease ends because others are
    /// sent long messages.
    pub(super) fn renew(&mut self, now: Moment) {
        for key in self.outgoing.renewals(self.replica.budget().left()) {
            self.replica.budget_mut().spend(1);
            self.send_grant(&key, GrantContent::Renewal, now);
        }
    }

    /// See the mutation.
    fn any_session_is_slow(&self) -> bool {
        let sessions = self.sessions.workers().filter_map(|key| self.observed(key)?.session());
        sessions.into_iter().any(|session| session.has_reported() && !session.is_writable())
    }

    fn send_grant(&mut self, key: &WorkerKey, content: GrantContent<'_>, now: Moment) {
        let Some(worker) = self.observed(key) else { return };
        let Some(session) = worker.session().filter(|session| session.has_reported()) else {
            return;
        };
        let (conn, is_writable) = (session.conn(), session.is_writable());
        if !is_writable {
            return self.sessions.hold_back(conn);
        }
        if !self.grant_rules().is_confirmed(worker) {
            self.renewal.delay_grants(key.clone());
            return;
        }
        let Some(terms) = self.grant_rules().terms_for(key) else { return };
        let Self { replica, ledger, clusters, pipelines, .. } = self;
        let composer = GrantComposer::new(replica, ledger, clusters, pipelines);
        let Composed { message, notices, due, is_blocked, has_more, ends_move } =
            composer.compose(key, content, terms, now);
        for notice in notices {
            self.replica.notice(notice);
        }
        for (at, stream) in due {
            self.timers.set(at, Timer::Claim(stream));
        }
        if is_blocked {
            self.outgoing.block(key.clone());
        }
        if has_more {
            self.outgoing.mark(key.clone());
        }
        if ends_move {
            self.plan_now(&key.cluster, now);
        }
        let Some((conn, grant)) = message else { return };
        if !(grant.streams.is_empty() && grant.tables.is_empty()) {
            // One message has room for so many: others may follow once this one is written.
            self.sessions.hold_back(conn);
        }
        let lines: usize = grant.tables.iter().map(TableGrant::lines).sum();
        let changes = grant.streams.len() + lines;
        self.replica.budget_mut().count(1 + changes);
        self.replica.budget_mut().spend(changes);
        let message = CoordinatorMessage::Grant(grant);
        self.replica.send(conn, message);
    }
}
