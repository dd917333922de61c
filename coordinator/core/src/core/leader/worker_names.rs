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
//! gone or is given up. Invariant: the former agent's account is written down under its own name
//! before the entry of the name is replaced or removed.
//!
//! On Kubernetes names are not kept here: a pod's uid identifies it, and the platform admits only
//! the newest pod of a name.

use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{DrainOrder, Hello, RefusalReason};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{AgentId, Incarnation, Moment, WorkerKey};

use super::facts::Facts;
use super::hello::HelloRefusal;
use super::sliced_tasks::ClaimCheck;
use super::{Leader, Timer};
use crate::effect::{Notice, Order};
use crate::ledger::Account;
use crate::observed::{RefusedAgent, Worker};

/// For how long views tell of a refused agent. One that still wants the name dials again at least
/// every second.
const REFUSED_SHOWN_FOR: Duration = Duration::from_secs(10);

impl Leader {
    /// The key of the agent's account: its worker's, or that of a former agent if another one has
    /// taken its name over and it may still hold something.
    pub(super) fn occupant(&self, hello: &Hello) -> WorkerKey {
        let key = WorkerKey { cluster: hello.cluster.clone(), worker: hello.worker.clone() };
        let former = hello.identity.map(|agent| key.former(agent));
        former.filter(|former| self.ledger.account(former).is_some()).unwrap_or(key)
    }

    /// Refuses an agent if another agent has its worker's name.
    pub(super) fn check_name(
        &self,
        hello: &Hello,
        key: &WorkerKey,
        now: Moment,
    ) -> Result<(), HelloRefusal> {
        let takes = hello.take_over || mutation::on(Mutation::TwinTakesName);
        if !self.is_of_another(hello, key) || takes || !self.is_name_in_use(key) {
            return Ok(());
        }
        let message = format!(
            "another agent has the name {key}, and may run jobs or hold streams: {}. Give this \
             worker a name of its own; or start this agent with the other one's --state-dir; or, \
             once all that the other one started has ended, run `leasehold-agent leave` with its \
             --state-dir or declare it gone; or start this one once with --take-over, which drains \
             the other one",
            self.holder_of_name(key, now)
        );
        Err((RefusalReason::NameTaken, message))
    }

    /// Gives the name to another agent, which [`Self::check_name`] has admitted. What the present
    /// one may hold stays its own.
    pub(super) fn pass_name(&mut self, hello: &Hello, key: &WorkerKey, now: Moment) {
        if !self.is_of_another(hello, key) || mutation::on(Mutation::AccountOfName) {
            return;
        }
        let former = identity_of_holder(key, self.facts()).map(|agent| key.former(agent));
        match former.filter(|_| self.is_name_in_use(key) && self.may_hold_anything(key)) {
            Some(former) => self.displace(key, &former, now),
            None => {
                self.disconnect(key);
                self.gone(key, now);
            }
        }
    }

    /// An agent has the name from now on.
    pub(super) fn note_name(
        &mut self,
        key: &WorkerKey,
        identity: Option<AgentId>,
        peer: Option<Arc<str>>,
        now: Moment,
    ) {
        let Some(worker) = self.worker_mut(key) else { return };
        if worker.identity != identity || worker.named_at == Moment(0) {
            worker.named_at = now;
        }
        let has_name = |refused: &RefusedAgent| refused.identity == identity;
        if worker.refused.as_ref().is_some_and(has_name) {
            worker.refused = None;
        }
        worker.identity = identity;
        worker.peer = peer;
        if key.worker.is_former() {
            worker.drain_order = Some(DrainOrder::Drain);
        }
    }

    /// Notes that another agent was refused, and says so once for as long as it keeps dialing.
    pub(super) fn note_refused(
        &mut self,
        key: &WorkerKey,
        identity: Option<AgentId>,
        peer: Option<Arc<str>>,
        now: Moment,
    ) {
        let Some(worker) = self.worker_mut(key) else { return };
        let before = worker.refused.take();
        let is_same = |before: RefusedAgent| before.identity == identity && before.is_shown(now);
        let is_known = before.is_some_and(is_same);
        worker.refused = Some(RefusedAgent { identity, peer: peer.clone(), at: now });
        if !is_known {
            self.replica.notice(Notice::NameRefused { worker: key.clone(), peer });
        }
    }

    /// Whether the agent that has the name has another identity.
    pub(super) fn is_of_another(&self, hello: &Hello, key: &WorkerKey) -> bool {
        let holder = identity_of_holder(key, self.facts());
        holder.zip(hello.identity).is_some_and(|(had, identity)| had != identity)
    }

    /// The entries of a name's former agents are written: the name's own entry may be replaced.
    pub(super) fn are_former_written(&self, key: &WorkerKey) -> bool {
        let mut former = self.ledger.former_accounts(key);
        former.all(|(_, account)| !account.unwritten) || mutation::on(Mutation::EntryOfFormerLate)
    }

    /// Whether the agent that has the name may hold anything, or is about to report.
    fn is_name_in_use(&self, key: &WorkerKey) -> bool {
        let holds = self.ledger.account(key).is_some_and(Account::holds_any);
        holds || self.ledger.unheard_until(key).is_some() || self.is_alive(key)
    }

    /// Whether the agent that has the name may hold anything, of this leader or of an earlier one.
    /// One that has only said hello has nothing that could stay its own.
    fn may_hold_anything(&self, key: &WorkerKey) -> bool {
        let account = self.ledger.account(key);
        account.is_some_and(|account| account.holds_any() || !account.exposure.is_nothing())
    }

    /// Whether the agent that has the name may be alive: its leases last, or it may still dial a
    /// new leader. An agent that has not reported counts as alive while its report is expected, and
    /// while leases from a predecessor may last. After that its connection may be broken without a
    /// sign.
    fn is_alive(&self, key: &WorkerKey) -> bool {
        let session = self.observed(key).and_then(|worker| worker.session.as_ref());
        let ledger = &self.ledger;
        let unheard = ledger.unheard_until(key).is_some_and(|until| self.replica.heard < until);
        let sessions = &self.sessions;
        let awaited = |conn| sessions.awaits(conn) || sessions.adoption(conn).is_some();
        let greets =
            session.is_some_and(|session| !session.reported && (unheard || awaited(session.conn)));
        let comes_back =
            ledger.comes_back_until(key).is_some_and(|until| self.replica.heard < until);
        greets || comes_back || self.replica.heard < ledger.free_at(key)
    }

    /// Moves all that is known of a name's agent to a name of the agent's own, and drains it.
    fn displace(&mut self, key: &WorkerKey, former: &WorkerKey, now: Moment) {
        self.lose_worker(key, now);
        let connected = self.observed(key).is_some_and(Worker::is_connected);
        if !connected {
            // It dials again, and is known by its identity then.
            self.disconnect(key);
        }
        self.ledger.rename(key, former);
        let Some(cluster) = self.clusters.get_mut(&key.cluster) else { return };
        if let Some(mut worker) = cluster.remove_worker(&key.worker) {
            worker.drain_order = Some(DrainOrder::Drain);
            let session = worker.session.as_ref().map(|session| session.conn);
            worker.wants.clear();
            worker.blocked.clear();
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
        self.write_former(former);
        self.check_claims_of(former, ClaimCheck::PlanAndExpiry);
        self.schedule_silence_check(former);
        self.schedule_give_up(former);
        self.timers.set(self.replica.heard, Timer::Unheard(former.clone()));
        self.plan_now(&key.cluster, now);
    }

    /// Has all that a former agent may hold written down under its own name.
    fn write_former(&mut self, former: &WorkerKey) {
        let lists = &self.replica.lists;
        let Some(mut account) = self.ledger.account_mut(former) else { return };
        let exposure = match account.registering.take() {
            Some(registering) => lists.joined(&former.cluster, &account.exposure, &registering),
            None => account.exposure.clone(),
        };
        (account.adopted, account.unwritten) = (false, true);
        account.registering = Some(exposure.clone());
        let life = account.life;
        drop(account);
        self.order(Order::Register(vec![(former.clone(), life, exposure)]));
    }

    /// The agent that has the name, since when and where.
    fn holder_of_name(&self, key: &WorkerKey, now: Moment) -> String {
        let Some(worker) = self.observed(key) else {
            let account = self.ledger.account(key);
            let incarnation = account.map_or(Incarnation(0), |it| it.exposure.incarnation);
            return format!("incarnation {incarnation}, not heard yet by this leader");
        };
        let Worker { incarnation, peer, named_at, session, .. } = worker;
        let at = peer.as_ref().map(|peer| format!(" at {peer}")).unwrap_or_default();
        let secs = now.since(*named_at).as_secs();
        let gone = match session {
            None => "; it is not connected",
            Some(_) => "",
        };
        format!("incarnation {incarnation}{at}, for {secs} s{gone}")
    }
}

/// The agent that has the name: the last one that said hello, or the newest one that was
/// granted anything, from the written exposure.
pub(super) fn identity_of_holder(key: &WorkerKey, facts: Facts<'_>) -> Option<AgentId> {
    match facts.observed(key) {
        Some(worker) => worker.identity,
        None => facts.ledger.account(key)?.exposure.identity,
    }
}

impl RefusedAgent {
    pub(super) fn is_shown(&self, now: Moment) -> bool {
        now.since(self.at) < REFUSED_SHOWN_FOR
    }
}
