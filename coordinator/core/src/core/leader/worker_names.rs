//! Decides which agent has a worker's name, where no platform does.
//!
//! Leases belong to the agent that holds them and not to its name. The name points to one agent,
//! its present one, and stays with it as long as anything may be held under it: slots, streams, or
//! a report that is still expected. Another agent under the same name, on another host or with
//! another state folder, is refused meanwhile. An agent keeps its identity across restarts with its
//! state folder, so such a restart is the same agent.
//!
//! A person can give the name to another agent (`--take-over`). Then all that the former agent may
//! hold stays counted, in an account under a name of its own ([`WorkerKey::former`]), and the
//! former agent is drained: it takes no new work, and its account ends when it leaves, is declared
//! gone or is given up. Invariant: the former agent's account is stored under its own name
//! before the entry of the name is replaced or removed.
//!
//! On Kubernetes names are not kept here: a pod's uid identifies it, and the platform admits only
//! the newest pod of a name.

use leasehold_types::message::Hello;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{AgentId, Moment, WorkerKey};

use super::agent_rules::identity_of_occupant;
use super::sliced_tasks::ClaimCheck;
use super::{Leader, Timer};
use crate::effect::Order;
use crate::exposure::Exposure;
use crate::observed::{Session, Worker};

impl Leader {
    /// Gives the name to another agent, which the rules for agents have admitted. What the present
    /// one may hold stays its own.
    pub(super) fn pass_name(&mut self, hello: &Hello, key: &WorkerKey, now: Moment) {
        if !self.agent_rules().is_of_another(hello, key) || mutation::on(Mutation::AccountOfName) {
            return;
        }
        let former = identity_of_occupant(key, self.facts());
        match former.filter(|_| self.agent_rules().may_keep_anything(key)) {
            Some(former) => self.displace(key, former, now),
            None => {
                self.disconnect(key);
                self.gone(key, now);
            }
        }
    }

    /// Moves all that is known of a name's agent to a name of the agent's own, and drains it.
    fn displace(&mut self, key: &WorkerKey, agent: AgentId, now: Moment) {
        let former = &key.former(agent);
        self.lose_worker(key, now);
        let connected = self.observed(key).is_some_and(Worker::is_connected);
        if !connected {
            // It dials again, and is known by its identity then.
            self.disconnect(key);
        }
        self.ledger.rename(key, former);
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else { return };
        if let Some(mut worker) = cluster.remove_worker(&key.worker) {
            worker.drain_mut().set_ordered();
            worker.streams_mut().drop_wants();
            let session = worker.session().map(Session::conn);
            cluster.insert_worker(former.worker.clone(), worker);
            if let Some(conn) = session {
                self.sessions.begin(conn, former.clone());
            }
        }
        self.outgoing.unblock(key);
        self.epoch_ahead.forget(key);
        self.pool_changed(key);
        self.pool_changed(former);
        self.outgoing.mark(key.clone());
        self.outgoing.mark_unanswered(former.clone());
        self.drain_changed(former);
        self.write_former(former, agent);
        self.check_claims_of(former, ClaimCheck::PlanAndExpiry);
        self.schedule_silence_check(former);
        self.schedule_give_up(former);
        self.timers.set(self.replica.heard(), Timer::Unreported(former.clone()));
        self.plan_now(&key.cluster, now);
    }

    /// Has all that a former agent may hold stored under its own name. It may hold more than was
    /// stored under the name: it has reported jobs, and its first entry was not written. The
    /// platform tells by its identity whether it is gone.
    fn write_former(&mut self, former: &WorkerKey, agent: AgentId) {
        let lists = self.replica.lists();
        let Some(mut account) = self.ledger.account_mut(former) else { return };
        let committed = account.committed();
        let entry = account.entry_mut();
        let stored = entry.begin_rename(|stored, next| lists.joined(&former.cluster, stored, next));
        let jobs_max = stored.jobs_max.max(committed);
        let exposure = Exposure { jobs_max, identity: Some(agent), ..stored };
        entry.begin_write(exposure.clone());
        let account_id = account.id();
        drop(account);
        self.order(Order::Register(vec![(former.clone(), account_id, exposure)]));
    }
}
