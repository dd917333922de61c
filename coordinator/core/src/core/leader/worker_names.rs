//! Decides which agent has a worker's name, where no platform does. The name stays with its agent
//! while that agent may be alive. A second agent under the same name, on another host or with
//! another state folder, has to wait. An agent keeps its identity across restarts with its state
//! folder, so such a restart does not wait.
//!
//! On Kubernetes names are not kept here: a pod's uid identifies it, and the platform admits only
//! the newest pod of a name.

use std::sync::Arc;

use leasehold_types::message::{Hello, RefusalReason};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{AgentId, Incarnation, Moment, WorkerKey};

use super::Leader;
use super::sessions::HelloRefusal;
use crate::observed::Worker;

impl Leader {
    /// Refuses an agent if another living agent has its worker's name.
    pub(super) fn check_name(
        &self,
        hello: &Hello,
        key: &WorkerKey,
        now: Moment,
    ) -> Result<(), HelloRefusal> {
        let other = self.is_of_another(hello, key) && !hello.take_over;
        if !other || !self.is_alive(key) || mutation::on(Mutation::TwinTakesName) {
            return Ok(());
        }
        let message = format!(
            "another agent, which is alive, has the name {key}: {}. Give this worker a name of its \
             own; or start this agent with the other one's --state-dir; or stop the other one and \
             wait until its leases are over; or start this one once with --take-over, which stops \
             the other one",
            self.holder_of_name(key, now)
        );
        Err((RefusalReason::NameTaken, message))
    }

    /// Makes an agent that takes over a name start its journal again: the journal may claim to be
    /// complete, but does not list the earlier agent's leases.
    pub(super) fn check_memory(&self, hello: &Hello, key: &WorkerKey) -> Result<(), HelloRefusal> {
        let knows_too_much = hello.knows_from < hello.incarnation;
        if !self.is_of_another(hello, key) || !knows_too_much {
            return Ok(());
        }
        let message = format!("another agent has had the name {key} since");
        Err((RefusalReason::NewerIncarnation(hello.incarnation), message))
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
        worker.identity = identity;
        worker.peer = peer;
    }

    /// Whether the last agent with this name had another identity.
    pub(super) fn is_of_another(&self, hello: &Hello, key: &WorkerKey) -> bool {
        let had = match self.observed(key) {
            Some(worker) => worker.identity,
            None => self.registered_name(key).and_then(|(_, identity)| identity),
        };
        had.zip(hello.identity).is_some_and(|(had, identity)| had != identity)
    }

    /// The newest agent that was granted anything under the name, from the written exposure.
    fn registered_name(&self, key: &WorkerKey) -> Option<(Incarnation, Option<AgentId>)> {
        let exposure = &self.ledger.account(key)?.exposure;
        Some((exposure.incarnation, exposure.identity))
    }

    /// Whether the agent that has the name may be alive: its leases last, or it may still dial a
    /// new leader. An agent that has not reported counts as alive while its report is expected, and
    /// while leases from a predecessor may last. After that its connection may be broken without a
    /// sign.
    fn is_alive(&self, key: &WorkerKey) -> bool {
        let session = self.observed(key).and_then(|worker| worker.session.as_ref());
        let ledger = &self.ledger;
        let unheard = ledger.unheard_until(key).is_some_and(|until| self.replica.heard < until);
        let awaited = |conn| self.admission.awaits(conn) || self.adoptions.contains_key(&conn);
        let greets =
            session.is_some_and(|session| !session.reported && (unheard || awaited(session.conn)));
        let comes_back =
            ledger.comes_back_until(key).is_some_and(|until| self.replica.heard < until);
        greets || comes_back || self.replica.heard < ledger.free_at(key)
    }

    /// The agent that has the name, since when and where.
    fn holder_of_name(&self, key: &WorkerKey, now: Moment) -> String {
        let Some(worker) = self.observed(key) else {
            let incarnation = self.registered_name(key).map_or(Incarnation(0), |(it, _)| it);
            return format!("incarnation {incarnation}, not heard yet by this leader");
        };
        let Worker { incarnation, peer, named_at, session, .. } = worker;
        let at = peer.as_ref().map(|peer| format!(" at {peer}")).unwrap_or_default();
        let secs = now.since(*named_at).as_secs();
        let gone = match session {
            None => {
                let left = self.ledger.free_at(key).since(now).as_secs_f64();
                format!("; it is not connected, and its leases last {left:.0} s more at the most")
            }
            Some(_) => String::new(),
        };
        format!("incarnation {incarnation}{at}, for {secs} s{gone}")
    }
}
