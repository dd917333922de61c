//! The hello of an agent: whether it is accepted, and what it replaces.
//!
//! Invariant: nothing that a hello says is adopted. Leases are adopted from the report.

use std::sync::Arc;

use leasehold_types::message::{Hello, RefusalReason};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{Moment, WorkerKey};

use super::Leader;
use crate::effect::Notice;
use crate::event::ConnId;

/// Why a hello is refused, for the agent's code and for a person.
pub(super) type HelloRefusal = (RefusalReason, String);

impl Leader {
    pub(in crate::core) fn hello(
        &mut self,
        conn: ConnId,
        hello: Hello,
        peer: Option<Arc<str>>,
        now: Moment,
    ) {
        let agent = hello.identity;
        let identity = agent.filter(|_| self.replica.config().keeps_names);
        let cluster = self.clusters.shared_name(hello.cluster);
        let hello = Hello { identity, cluster, ..hello };
        let key = self.agent_rules().account_key(&hello);
        if !self.agent_rules().is_of_another(&hello, &key)
            && !mutation::on(Mutation::RefusedIsSilent)
        {
            self.record_present(&key, now);
        }
        let accepted = self.accept_hello(conn, &hello, &key, peer.clone(), now);
        if let Err((reason, message)) = accepted {
            if reason == RefusalReason::NameTaken
                && let Some(worker) = self.worker_mut(&key)
                && worker.occupant_mut().set_refused(identity, peer.clone(), now)
            {
                self.replica.notice(Notice::NameRefused { worker: key.clone(), peer });
            }
            // A second hello on a connection ends the session that the first one began there.
            self.closed(conn);
            self.replica.refuse(conn, reason, message);
        } else if let Some(worker) = self.worker_mut(&key) {
            worker.occupant_mut().set_agent(agent);
        }
    }

    /// Replaces the agent's older connection by this one, which waits for its welcome.
    fn accept_hello(
        &mut self,
        conn: ConnId,
        hello: &Hello,
        key: &WorkerKey,
        peer: Option<Arc<str>>,
        now: Moment,
    ) -> Result<(), HelloRefusal> {
        self.end_account_now(key, now);
        check_protocol(hello)?;
        self.agent_rules().check_cell(hello)?;
        let epoch = self.ledger.epoch();
        let is_repeated =
            hello.epoch_seen == Some(epoch) && self.term.differs_from(hello.term_seen);
        // Checked before anything that may refuse this agent: any agent can show that another
        // leader has had this term's number.
        if is_repeated && !mutation::on(Mutation::EpochRepeated) {
            let stepped_down_at = self.replica.stepped_down_at_mut();
            let (refusal, notice) =
                self.epoch_ahead.refuse_repeated(key, epoch, self.term, stepped_down_at, now);
            if let Some(notice) = notice {
                self.replica.notice(notice);
            }
            return Err(refusal);
        }
        self.agent_rules().admit(hello, key, now)?;
        if let Some(seen) = hello.epoch_seen.filter(|seen| *seen > epoch) {
            let refusal = self.epoch_ahead.refuse(key, seen, epoch, now);
            if refusal.0 == RefusalReason::EpochAhead {
                self.ask_term(now);
            }
            return Err(refusal);
        }
        self.goodbyes.end(conn);
        self.pass_name(hello, key, now);
        self.epoch_ahead.forget(key);
        self.replace_session(conn, hello, key, now);
        if let Some(worker) = self.worker_mut(key) {
            worker.occupant_mut().set_name(hello.identity, peer, now);
            if key.worker.is_former() {
                worker.drain_mut().set_ordered();
            }
        }
        self.await_welcome(conn, key);
        self.ledger.await_report(key, now);
        if mutation::on(Mutation::AdoptAtHello) {
            self.ledger.adopt_at_hello(key, now);
        }
        Ok(())
    }

    fn replace_session(&mut self, conn: ConnId, hello: &Hello, key: &WorkerKey, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else { return };
        let worker = cluster.worker_or_new(&key.worker, hello.incarnation);
        let (replaced, moved) = worker.begin_session(conn, hello, now);
        self.sessions.begin(conn, key.clone());
        self.pool_changed(key);
        if moved {
            self.pipelines.worker_changed(key, &self.ledger);
        }
        let Some(replaced) = replaced else { return };
        self.forget_conn(replaced.conn);
        let incarnation = hello.incarnation;
        let (reason, message) = if replaced.is_older {
            let message = format!("incarnation {incarnation} of {key} is newer");
            (RefusalReason::NewerIncarnation(incarnation), message)
        } else {
            (RefusalReason::NewerLink, "a newer connection exists".into())
        };
        self.replica.refuse(replaced.conn, reason, message);
    }
}

fn check_protocol(hello: &Hello) -> Result<(), HelloRefusal> {
    let (own, theirs) = (ProtocolRange::OWN, hello.protocol);
    if own.newest_common(theirs).is_some() {
        return Ok(());
    }
    let message = format!(
        "the agent speaks protocol {theirs}, this coordinator {own}: bring both to releases that \
         share one"
    );
    Err((RefusalReason::Protocol, message))
}
