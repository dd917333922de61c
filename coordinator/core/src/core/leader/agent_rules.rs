//! Which agent may connect, and which one has a worker's name. These rules read the ledger, the
//! workers and the sessions, and change nothing.

use leasehold_types::limits::WORKERS_MAX;
use leasehold_types::message::{Hello, RefusalReason};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{AgentId, CellId, ClusterName, Incarnation, Moment, WorkerKey};

use super::Leader;
use super::facts::Facts;
use super::hello::HelloRefusal;
use super::sessions::Sessions;
use super::unreadable::UnreadableNamespaces;
use crate::ledger::Account;
use crate::observed::Worker;

/// What the rules read.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentRules<'a> {
    facts: Facts<'a>,
    sessions: &'a Sessions,
    unreadable: &'a UnreadableNamespaces,
    cell: Option<CellId>,
}

impl Leader {
    /// The rules for agents now.
    pub(super) fn agent_rules(&self) -> AgentRules<'_> {
        let (sessions, unreadable) = (&self.sessions, &self.unreadable);
        AgentRules { facts: self.facts(), sessions, unreadable, cell: self.cell }
    }
}

impl AgentRules<'_> {
    /// Whether the agent is of this cell. What an agent of another one says about terms and leases
    /// says nothing about this one's.
    pub(super) fn check_cell(&self, hello: &Hello) -> Result<(), HelloRefusal> {
        let (Some(own), Some(other)) = (self.cell, hello.cell) else { return Ok(()) };
        if own == other || mutation::on(Mutation::OtherCellServed) {
            return Ok(());
        }
        let message = format!(
            "this coordinator is of cell {own}, and the agent belongs to cell {other}. Give all \
             replicas of a fleet one store (--state-dir, or the Lease of one namespace); if the \
             store of cell {other} is lost, see \"Two cells\" in docs/OPERATIONS.md; to move the \
             agent, let it leave that cell and start it with --cell {own}"
        );
        Err((RefusalReason::OtherCell, message))
    }

    /// Whether the agent may connect at all.
    pub(super) fn admit(
        &self,
        hello: &Hello,
        key: &WorkerKey,
        now: Moment,
    ) -> Result<(), HelloRefusal> {
        self.unreadable.check(&hello.cluster)?;
        let cluster =
            self.facts.clusters.get(&hello.cluster).filter(|cluster| cluster.is_defined());
        let Some(cluster) = cluster else {
            let message = self.facts.replica.desired().unknown_cluster(&hello.cluster);
            return Err((RefusalReason::UnknownCluster, message));
        };
        self.check_name(hello, key, now)?;
        if self.is_of_another(hello, key) && !mutation::on(Mutation::AccountOfName) {
            // What is known of the other agent's incarnations and links says nothing about this
            // one.
            return self.check_limit(&key.cluster);
        }
        let worker = cluster.workers().get(&key.worker);
        let account = self.facts.ledger.account(key);
        let registered = account.map(|account| account.entry().exposure().incarnation);
        let newest = worker.map(Worker::incarnation).max(registered);
        if let Some(newest) = newest.filter(|newest| {
            hello.incarnation < *newest && !mutation::on(Mutation::OlderIncarnationAdmitted)
        }) {
            let message = format!("incarnation {newest} of {key} is newer");
            return Err((RefusalReason::NewerIncarnation(newest), message));
        }
        let Some(worker) = worker else { return self.check_limit(&key.cluster) };
        let newest = worker.incarnation();
        let session = worker.session().filter(|_| hello.incarnation == newest);
        if session.is_some_and(|session| hello.link <= session.link()) {
            return Err((RefusalReason::NewerLink, "a newer connection exists".into()));
        }
        // An agent counts its links upwards, so a lower or repeated number is from another agent
        // with the same incarnation.
        let twin = session.is_none() && hello.incarnation == newest && hello.link <= worker.link();
        if twin {
            let message = format!("another agent of {key} has incarnation {newest}");
            return Err((RefusalReason::NewerIncarnation(newest), message));
        }
        Ok(())
    }

    /// Whether there may be one more worker of this cluster.
    fn check_limit(&self, cluster: &ClusterName) -> Result<(), HelloRefusal> {
        if self.facts.clusters.worker_count() >= WORKERS_MAX {
            let message = format!("the limit of {WORKERS_MAX} workers is reached");
            return Err((RefusalReason::Limit, message));
        }
        let most = self.facts.replica.config().workers_per_namespace_max;
        if let (Some(namespace), _) = cluster.parts()
            && self.facts.clusters.worker_count_in(namespace) >= most
        {
            let message = format!(
                "namespace {namespace} has {most} workers, the most that one namespace may have: \
                 end those that are not needed, or ask for a higher --namespace-share of the \
                 coordinators"
            );
            return Err((RefusalReason::Limit, message));
        }
        Ok(())
    }

    /// The key of the agent's account: its worker's, or that of a former agent if another one has
    /// taken its name over and it may still hold something.
    pub(super) fn account_key(&self, hello: &Hello) -> WorkerKey {
        let key = WorkerKey { cluster: hello.cluster.clone(), worker: hello.worker.clone() };
        let former = hello.identity.map(|agent| key.former(agent));
        former.filter(|former| self.facts.ledger.account(former).is_some()).unwrap_or(key)
    }

    /// Refuses an agent if another agent has its worker's name.
    fn check_name(&self, hello: &Hello, key: &WorkerKey, now: Moment) -> Result<(), HelloRefusal> {
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
            self.describe_occupant(key, now)
        );
        Err((RefusalReason::NameTaken, message))
    }

    /// Whether the agent that has the name has another identity.
    pub(super) fn is_of_another(&self, hello: &Hello, key: &WorkerKey) -> bool {
        let occupant = identity_of_occupant(key, self.facts);
        occupant.zip(hello.identity).is_some_and(|(had, identity)| had != identity)
    }

    /// The entries of a name's former agents are written: the name's own entry may be replaced.
    pub(super) fn are_former_written(&self, key: &WorkerKey) -> bool {
        let mut former = self.facts.ledger.accounts().former_of(key);
        former.all(|(_, account)| !account.entry().is_unwritten())
            || mutation::on(Mutation::EntryOfFormerLate)
    }

    /// Whether the agent that has the name may hold anything, or is about to report.
    fn is_name_in_use(&self, key: &WorkerKey) -> bool {
        let holds = self.facts.ledger.account(key).is_some_and(Account::holds_any);
        holds || self.facts.ledger.unreported().until(key).is_some() || self.is_alive(key)
    }

    /// Whether the agent that has the name may hold anything, of this leader or of an earlier one,
    /// and may be alive. One that has only said hello has nothing that could stay its own.
    pub(super) fn may_keep_anything(&self, key: &WorkerKey) -> bool {
        let account = self.facts.ledger.account(key);
        self.is_name_in_use(key)
            && account.is_some_and(|account| {
                account.holds_any() || !account.entry().exposure().is_nothing()
            })
    }

    /// Whether the agent that has the name may be alive: its leases last, or it may still dial a
    /// new leader. An agent that has not reported counts as alive while its report is expected, and
    /// while leases from a predecessor may last. After that its connection may be broken without a
    /// sign.
    fn is_alive(&self, key: &WorkerKey) -> bool {
        let session = self.facts.observed(key).and_then(Worker::session);
        let ledger = self.facts.ledger;
        let unreported =
            ledger.unreported().until(key).is_some_and(|until| self.facts.replica.heard() < until);
        let sessions = self.sessions;
        let awaited = |conn| sessions.awaits(conn) || sessions.adoption(conn).is_some();
        let greets = session.is_some_and(|session| {
            !session.has_reported() && (unreported || awaited(session.conn()))
        });
        let comes_back = ledger
            .unreported()
            .comes_back_until(key)
            .is_some_and(|until| self.facts.replica.heard() < until);
        greets || comes_back || self.facts.replica.heard() < ledger.free_at(key)
    }

    /// The agent that has the name, since when and where.
    fn describe_occupant(&self, key: &WorkerKey, now: Moment) -> String {
        let Some(worker) = self.facts.observed(key) else {
            let account = self.facts.ledger.account(key);
            let incarnation =
                account.map_or(Incarnation(0), |account| account.entry().exposure().incarnation);
            return format!("incarnation {incarnation}, not heard yet by this leader");
        };
        let incarnation = worker.incarnation();
        let at = worker.occupant().peer().map(|peer| format!(" at {peer}")).unwrap_or_default();
        let secs = now.since(worker.occupant().named_at().unwrap_or(now)).as_secs();
        let gone = match worker.session() {
            None => "; it is not connected",
            Some(_) => "",
        };
        format!("incarnation {incarnation}{at}, for {secs} s{gone}")
    }
}

/// The agent that has the name: the last one that said hello, or the newest one that was
/// granted anything, from the written exposure.
pub(super) fn identity_of_occupant(key: &WorkerKey, facts: Facts<'_>) -> Option<AgentId> {
    match facts.observed(key) {
        Some(worker) => worker.occupant().identity(),
        None => facts.ledger.account(key)?.entry().exposure().identity,
    }
}
