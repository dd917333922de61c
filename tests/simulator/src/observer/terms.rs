//! Leaders of different terms and agents of different incarnations: what the earlier one does
//! changes nothing for the later (S7, S9).
//!
//! Invariant: a leader is judged by the order in which its core decides, not by when its messages
//! are written.

use std::collections::BTreeMap;

use leasehold_agent_core::Record;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use leasehold_types::{AgentId, Epoch, Incarnation, Nonce, StreamKey, Token, WorkerKey};

use crate::observer::Checks;
use crate::system::network::LinkId;
use crate::system::pod::Pod;

/// What was granted and who was welcomed, over all terms.
#[derive(Debug, Default)]
pub(crate) struct TermHistory {
    /// The newest grant of each stream, by any leader.
    granted: BTreeMap<StreamKey, (Token, WorkerKey)>,
    /// The incarnation that said hello on each link.
    hellos: BTreeMap<LinkId, (Incarnation, Option<AgentId>)>,
    /// The beat that is next on each link, and the first one that came out of turn.
    beats: BTreeMap<LinkId, (Nonce, Option<Nonce>)>,
    /// The newest incarnation that each leader has welcomed.
    welcomed: BTreeMap<(Epoch, WorkerKey), Incarnation>,
}

impl TermHistory {
    /// A leader grants a stream.
    pub(crate) fn grant(&mut self, stream: &StreamKey, token: Token, worker: &WorkerKey) {
        let newest = self.granted.get(stream).is_none_or(|(newest, _)| *newest < token);
        if newest {
            self.granted.insert(stream.clone(), (token, worker.clone()));
        }
    }

    /// Terms were put back from a copy: their numbers come again, for other leaders.
    pub(crate) fn restore(&mut self) {
        self.granted.clear();
        self.welcomed.clear();
    }

    /// Whether a leader has welcomed a newer incarnation of a worker than this one.
    pub(crate) fn knows_newer(&self, epoch: Epoch, key: &WorkerKey, than: Incarnation) -> bool {
        self.welcomed.get(&(epoch, key.clone())).is_some_and(|newest| *newest > than)
    }

    /// A leader has forgotten a worker, and with it which agents of its name it has welcomed: the
    /// next one starts again.
    pub(crate) fn forget(&mut self, epoch: Epoch, key: &WorkerKey) {
        let is_forgotten = |of: &WorkerKey| {
            of == key || (of.cluster == key.cluster && of.worker.present() == key.worker)
        };
        self.welcomed.retain(|(of_epoch, of), _| *of_epoch != epoch || !is_forgotten(of));
    }

    /// What a later leader than that of the token has granted to another worker.
    fn later_grant(&self, stream: &StreamKey, token: Token, key: &WorkerKey) -> Option<Token> {
        let (newest, worker) = self.granted.get(stream)?;
        (newest.epoch > token.epoch && worker != key).then_some(*newest)
    }
}

impl Checks<'_> {
    /// Follows which incarnation speaks on which link.
    pub(crate) fn observe_hello(&mut self, pod: usize, message: &AgentMessage) {
        let link = self.view.pods[pod].agent.as_ref().and_then(|agent| agent.link);
        if let (AgentMessage::Hello(hello), Some(link)) = (message, link) {
            self.observer.term_history.hellos.insert(link, (hello.incarnation, hello.identity));
        }
    }

    /// Follows which beats reach a leader in their order.
    pub(crate) fn observe_arrival(&mut self, event: &Event) {
        let beats = &mut self.observer.term_history.beats;
        match event {
            Event::Report(conn, report) => {
                beats.entry(conn.0 as usize).or_insert((report.nonce.next(), None));
            }
            Event::Beat(conn, beat) => {
                if let Some((next, gap)) = beats.get_mut(&(conn.0 as usize)) {
                    if beat.nonce == *next {
                        *next = next.next();
                    } else if beat.nonce > *next {
                        gap.get_or_insert(beat.nonce);
                    }
                }
            }
            _ => {}
        }
    }

    /// S10: a leader answers no beat that came after one that was lost.
    fn check_gap(&mut self, link: LinkId, message: &CoordinatorMessage) {
        let CoordinatorMessage::Grant(grant) = message else { return };
        let gap = self.observer.term_history.beats.get(&link).and_then(|(_, gap)| *gap);
        if let Some(gap) = gap.filter(|gap| grant.nonce >= *gap) {
            let nonce = grant.nonce;
            self.fail("S10", || {
                format!("link {link}: beat {nonce} is answered, though one before {gap} was lost")
            });
        }
    }

    /// Follows whether a failover makes a pool smaller.
    fn note_slots_taken(&mut self, link: LinkId, message: &CoordinatorMessage) {
        let CoordinatorMessage::Grant(grant) = message else { return };
        let (pod, Some(pool)) = (self.view.network.links[link].pod, grant.pool) else { return };
        let had = self.observer.slots_before.get(&pod);
        if had.is_some_and(|had| pool.size < *had) {
            self.observer.slots_taken.entry(pod).or_insert(pool.size);
        }
    }

    /// S17: where names are kept, none is given to an agent of another identity while the one that
    /// has it holds anything that the same leader granted.
    fn check_name_kept(&mut self, pod: usize, epoch: Epoch) {
        if !self.view.keeps_names {
            return;
        }
        let key = &self.view.pods[pod].key;
        let identity = |node: &Pod| node.disk.borrow().identity;
        let holds = |(at, node): &(usize, &Pod)| {
            let disk = node.disk.borrow();
            let memory = &disk.memory;
            let now = self.view.local_of_pod(*at);
            let lasts = node.agent.is_some() && now < memory.renewed_until;
            let holds = !memory.streams.is_empty() || node.size_in_effect(now) > 0;
            lasts && memory.epoch == Some(epoch) && holds && !memory.left && !node.superseded
        };
        let node = &self.view.pods[pod];
        let mine = identity(node);
        let mut replicas = 0..self.view.replicas.len();
        let leader = replicas.find(|replica| self.view.replicas[*replica].leads() == Some(epoch));
        // Another agent has taken its name over: what it holds is known as its own.
        let is_former =
            |pod: usize| leader.is_some_and(|leader| self.view.is_former_at(leader, pod));
        let former = is_former(pod);
        if former {
            self.coverage.hit("checked: a former agent is welcomed");
        }
        if node.takes_name || former {
            return;
        }
        let others = self.view.pods.iter().enumerate().filter(|(_, node)| node.key == *key);
        let others = others.filter(|(_, node)| identity(node) != mine && !node.dead);
        // Only a person's word makes an agent a former one.
        let was_taken = self.view.pods.iter().any(|node| node.key == *key && node.took_name);
        let mut others = others.filter(|(other, _)| !(was_taken && is_former(*other)));
        if let Some((other, _)) = others.find(holds) {
            self.fail("S17", || format!("p{pod} is welcomed under the name of p{other}"));
        }
    }

    /// S9: once a leader has welcomed an incarnation, an older one gets nothing from it.
    pub(crate) fn observe_decision(&mut self, conn: ConnId, message: &CoordinatorMessage) {
        let link = conn.0 as usize;
        self.check_gap(link, message);
        self.check_repeated_welcome(link, message);
        self.note_slots_taken(link, message);
        let epoch = match message {
            CoordinatorMessage::Welcome(welcome) => welcome.epoch,
            CoordinatorMessage::Grant(grant) => grant.epoch,
            CoordinatorMessage::Refusal(_) => return,
        };
        if matches!(message, CoordinatorMessage::Welcome(_)) {
            self.check_name_kept(self.view.network.links[link].pod, epoch);
        }
        let terms = &mut self.observer.term_history;
        let Some((incarnation, agent)) = terms.hellos.get(&link).copied() else { return };
        let key = &self.view.pods[self.view.network.links[link].pod].key;
        // Incarnations of two agents of one name are not in an order.
        let agent = agent.filter(|_| self.view.keeps_names);
        let key = agent.map_or_else(|| key.clone(), |agent| key.former(agent));
        let newest = terms.welcomed.entry((epoch, key.clone())).or_insert(incarnation);
        if incarnation < *newest {
            let newest = *newest;
            self.fail("S9", || {
                format!("{key}: incarnation {incarnation} is served after {newest} was welcomed")
            });
            return;
        }
        if incarnation > *newest {
            *newest = incarnation;
            self.coverage.hit("checked: a newer incarnation wins");
        }
    }

    /// S7: what a deposed leader's message lets an agent use, no successor has granted.
    pub(crate) fn observe_deposed(&mut self, pod: usize, epoch: Epoch, fresh: &[Record]) {
        if epoch >= self.view.store.epoch || fresh.is_empty() || self.view.pods[pod].is_replaced() {
            return;
        }
        self.coverage.hit("checked: a deposed leader's message");
        let key = &self.view.pods[pod].key;
        let disk = self.view.pods[pod].disk.borrow();
        let now = self.view.pods[pod].clock.local(self.view.t);
        let later = |(stream, token)| {
            let later = self.observer.term_history.later_grant(stream, token, key)?;
            Some(format!("p{pod} gets {stream} {token}; a successor granted it as {later}"))
        };
        let taken = fresh.iter().filter_map(|record| match record {
            Record::Stream { stream, token, .. } => Some((stream, *token)),
            _ => None,
        });
        let renews = fresh.iter().any(|record| matches!(record, Record::Renewed { .. }));
        let renewed = disk.memory.streams.iter().filter(|(_, held)| {
            renews && !held.pinned && held.lapses.is_none() && now < disk.memory.renewed_until
        });
        let renewed = renewed.map(|(stream, held)| (stream, held.token));
        let found = taken.chain(renewed).find_map(later);
        drop(disk);
        if let Some(found) = found {
            self.fail("S7", || found);
        }
    }
}
