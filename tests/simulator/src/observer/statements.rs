//! What agents have reported and received, and what follows: S16, that a snapshot ends an earlier
//! "revoked" (L6), that a drain asks for no share by itself (S21), that an agent that dials
//! again keeps its place in the wait (L9), and that no agent's claim ends a term that stands (L5).

use std::collections::{BTreeMap, BTreeSet};

use leasehold_agent_core::{Lease, ShareLease};
use leasehold_coordinator_core::event::Event;
use leasehold_types::message::{
    AgentMessage, CoordinatorMessage, Grant, Hello, StreamGrant, StreamState,
};
use leasehold_types::{AgentId, Epoch, Incarnation, Moment, StreamKey, Token, WorkerKey};

use crate::observer::Checks;

/// What agents have reported.
#[derive(Debug, Default)]
pub(crate) struct AgentStatements {
    /// The smallest size that each pod's agents have reported as in effect under a token.
    sizes: BTreeMap<(usize, Token), u32>,
    /// The stream leases that they have reported as ended.
    ended: BTreeMap<usize, BTreeSet<(StreamKey, Token)>>,
    /// The shares that leaders have asked each pod for.
    asked_for: BTreeMap<usize, BTreeSet<(StreamKey, Token)>>,
    /// Since when agents that remember no epoch wait for a confirmed leadership.
    waits: BTreeMap<(usize, WorkerKey), Wait>,
    /// When the last hello under each name came to each run of a replica.
    hellos: BTreeMap<(usize, u64, WorkerKey), Moment>,
}

/// One agent's wait at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    run: u64,
    epoch: Option<Epoch>,
    /// Manifests that it has taken in: one without its cluster makes a replica forget it.
    desired: u64,
    /// Where names are kept.
    agent: Option<AgentId>,
    incarnation: Incarnation,
    since: Moment,
}

impl AgentStatements {
    /// Forgets what was said of the tokens of a term.
    pub(super) fn forget_tokens_of(&mut self, epoch: Epoch) {
        self.sizes.retain(|(_, token), _| token.epoch != epoch);
        for ended in self.ended.values_mut() {
            ended.retain(|(_, token)| token.epoch != epoch);
        }
    }
}

impl Checks<'_> {
    /// Notes what an agent sends, and checks that its journal agrees.
    pub(crate) fn note_reported(&mut self, pod: usize, message: &AgentMessage) {
        let (pool, report) = match message {
            AgentMessage::Hello(_) => return,
            AgentMessage::Report(report) => (report.pool, Some(report)),
            AgentMessage::Beat(beat) => (beat.pool, None),
        };
        let said = &mut self.observer.statements;
        if let Some(pool) = pool {
            let least = said.sizes.entry((pod, pool.token)).or_insert(pool.size);
            *least = pool.size.min(*least);
        }
        let ended = said.ended.entry(pod).or_default();
        if let AgentMessage::Beat(beat) = message {
            ended.extend(
                beat.released.iter().map(|release| (release.stream.clone(), release.token)),
            );
        }
        if let Some(report) = report {
            let listed: BTreeSet<_> =
                report.streams.iter().map(|lease| (&lease.stream, lease.token)).collect();
            let disk = self.view.pods[pod].disk.borrow();
            let streams = disk.memory.streams.iter();
            let unsaid = streams.filter(|(key, held)| !listed.contains(&(*key, held.token)));
            ended.extend(unsaid.map(|(key, held)| (key.clone(), held.token)));
        }
        self.check_reported(pod);
    }

    /// S16: a lease that an agent reported as ended is never in effect again under the same token.
    pub(crate) fn check_reported(&mut self, pod: usize) {
        let node = &self.view.pods[pod];
        if node.dead || node.superseded {
            return;
        }
        let now = self.view.local_of_pod(pod);
        let disk = node.disk.borrow();
        let memory = &disk.memory;
        let said = &self.observer.statements;
        let size = node.size_in_effect(now);
        let pool = memory.pool.and_then(|(token, ..)| {
            let reported_size = *said.sizes.get(&(pod, token))?;
            (size > reported_size)
                .then(|| format!("pool {token} of {size}, reported as {reported_size}"))
        });
        let ended = said.ended.get(&pod);
        let stream = ended.and_then(|ended| {
            let mut streams =
                memory.streams.iter().filter(|(_, held)| held.lives(memory.renewed_until, now));
            streams.find(|(key, held)| ended.contains(&((*key).clone(), held.token)))
        });
        let stream = stream.map(|(key, held)| format!("{key} {}, reported as ended", held.token));
        drop(disk);
        if let Some(wrong) = pool.or(stream) {
            self.fail("S16", || format!("p{pod} or its successor continues with {wrong}"));
        }
    }

    /// A snapshot was applied: what it lists as held is no longer revoked, unless the worker
    /// drains or fails.
    pub(crate) fn check_kept(&mut self, pod: usize, message: &CoordinatorMessage) {
        let CoordinatorMessage::Grant(Grant { snapshot: true, epoch, number, streams, .. }) =
            message
        else {
            return;
        };
        let now = self.view.local_of_pod(pod);
        let Some(agent) = self.view.pods[pod].agent.as_ref() else { return };
        let lease = agent.holder.peek(now);
        let takes_nothing = lease.draining || agent.holder.is_failing();
        if agent.applied != (*epoch, *number) || takes_nothing {
            return;
        }
        let revoked: BTreeSet<_> = lease
            .streams
            .iter()
            .filter(|stream| stream.revoked.is_some())
            .map(|stream| &stream.stream)
            .collect();
        let mut held =
            streams.iter().filter(|stream| matches!(stream.state, StreamState::Held { .. }));
        if let Some(given) = held.find(|stream| revoked.contains(&stream.stream)) {
            let stream = given.stream.clone();
            self.fail("L6", || format!("p{pod} gives back {stream}, which its leader wants kept"));
        }
    }

    /// Notes which shares a leader asks a pod for, by name or by a snapshot without them.
    pub(crate) fn note_asked_for(&mut self, pod: usize, message: &CoordinatorMessage) {
        let CoordinatorMessage::Grant(Grant { snapshot, streams, .. }) = message else { return };
        let now = self.view.local_of_pod(pod);
        let Some(agent) = self.view.pods[pod].agent.as_ref() else { return };
        let is_kept = |key: &StreamKey, token: Token| {
            let is_it = |grant: &&StreamGrant| grant.stream == *key && grant.token == token;
            match streams.iter().find(is_it) {
                Some(listed) => matches!(listed.state, StreamState::Held { .. }),
                None => !snapshot,
            }
        };
        let held = agent.holder.peek(now).bindings.into_iter();
        let held = held.map(|share| (share.key.stream(), share.token));
        let asked = held.filter(|(key, token)| !is_kept(key, *token));
        self.observer.statements.asked_for.entry(pod).or_default().extend(asked);
    }

    /// S21: a drain asks for no share by itself before its deadline.
    pub(crate) fn check_shares_of_drain(&mut self, pod: usize, lease: &Lease) {
        let agent = self.view.pods[pod].agent.as_ref();
        let leaves = agent.is_none_or(|agent| agent.holder.outstanding().goodbye);
        if !lease.draining || leaves || self.observer.drains_overdue.contains(&pod) {
            return;
        }
        let asked = self.observer.statements.asked_for.get(&pod);
        let is_asked = |share: &ShareLease| {
            asked.is_some_and(|asked| asked.contains(&(share.key.stream(), share.token)))
        };
        let mut revoked = lease.bindings.iter().filter(|share| share.revoked.is_some());
        if let Some(share) = revoked.find(|share| !is_asked(share)) {
            let key = share.key.clone();
            self.fail("S21", || format!("p{pod} drains, and asks for {key}, unlike its leader"));
        }
    }

    /// A replica has forgotten a worker: the next one of its name starts again.
    pub(crate) fn forget_wait(&mut self, replica: usize, key: &WorkerKey) {
        self.observer.statements.waits.remove(&(replica, key.clone()));
    }

    /// L4: a worker is lost only if no message that it sent in time waits.
    pub(crate) fn check_lost(&mut self, replica: usize, key: &WorkerKey) {
        let node = &self.view.replicas[replica];
        let Some(at) = node.core.as_ref().and_then(|core| core.lost_from(key)) else { return };
        let links = &self.view.network.links;
        let speaks = |link: usize| {
            let pod = links.get(link).map(|line| &self.view.pods[line.pod]);
            let agent = pod.filter(|pod| pod.key == *key).and_then(|pod| pod.agent.as_ref());
            agent.is_some_and(|agent| agent.link == Some(link))
        };
        let waits = node.driver.unread().find_map(|(arrived, event)| match event {
            Event::Report(conn, _) | Event::Beat(conn, _) => {
                (*arrived < at && speaks(conn.0 as usize)).then_some(*arrived)
            }
            _ => None,
        });
        let unread = links.iter().enumerate().find_map(|(link, line)| {
            let arrived = node.clock.local(line.unread?);
            (line.replica == replica && arrived < at && speaks(link)).then_some(arrived)
        });
        if let Some(arrived) = waits.or(unread) {
            self.fail("L4", || {
                format!(
                    "c{replica} takes {key} for lost at {at:?}; its message of {arrived:?} waits"
                )
            });
        }
    }

    /// An agent said hello to a replica: where it waits for a confirmed leadership, it has waited
    /// since its first hello there.
    pub(crate) fn check_wait(&mut self, replica: usize, hello: &Hello) {
        let node = &self.view.replicas[replica];
        let (run, epoch, desired) = (node.run, node.leads(), node.desired_taken);
        let key = WorkerKey { cluster: hello.cluster.clone(), worker: hello.worker.clone() };
        let since = node.core.as_ref().and_then(|core| core.waits_since(&key, hello.incarnation));
        let Some(since) = since.filter(|_| hello.epoch_seen.is_none()) else {
            self.observer.statements.waits.remove(&(replica, key));
            return;
        };
        // Two agents of one name may have the same incarnation.
        let agent = hello.identity.filter(|_| self.view.keeps_names);
        let wait = Wait { run, epoch, desired, agent, incarnation: hello.incarnation, since };
        let before = self.observer.statements.waits.insert((replica, key.clone()), wait);
        let same = |old: &Wait| Wait { since, ..*old } == wait;
        if let Some(before) = before.filter(|old| same(old) && old.since < since) {
            self.fail("L9", || {
                format!(
                    "c{replica} lets {key} wait again, which has waited since {:?}",
                    before.since
                )
            });
        }
    }

    /// An agent's hello came to a replica at this moment of its clock.
    pub(crate) fn note_hello(&mut self, replica: usize, hello: &Hello, at: Moment) {
        let run = self.view.replicas[replica].run;
        let key = WorkerKey { cluster: hello.cluster.clone(), worker: hello.worker.clone() };
        self.observer.statements.hellos.insert((replica, run, key), at);
    }

    /// S2: a worker is given up only if no agent has said hello under its name for long enough,
    /// refused or not; where names are kept, the agent may be another one.
    pub(crate) fn check_given_up(&mut self, replica: usize, worker: &WorkerKey) {
        let run = self.view.replicas[replica].run;
        let said = self.observer.statements.hellos.get(&(replica, run, worker.clone())).copied();
        let (Some(said), Some(after)) = (said, self.view.profile.lost_after) else { return };
        let now = self.view.local_of_replica(replica);
        self.coverage.hit("checked: a worker that is given up was silent");
        if !self.view.keeps_names && now < said + after {
            self.fail("S2", || {
                format!("c{replica} gives up {worker}, whose agent dialled at {said:?}")
            });
        }
    }

    /// A replica gives its term up since an agent remembers a later one.
    pub(crate) fn check_step_down(&mut self, replica: usize, above: Option<Epoch>) {
        let store = &self.view.store;
        let term = self.view.replicas[replica].election.term();
        let stands =
            term.filter(|(epoch, _)| (*epoch, Some(replica)) == (store.epoch, store.owner));
        let repeated = stands.is_some_and(|(epoch, _)| self.is_told_repeated(replica, epoch));
        if let (Some((epoch, _)), Some(above), false) = (stands, above, repeated) {
            self.fail("L5", || {
                format!("c{replica} gives up {epoch}, which stands, at a word of {above}")
            });
        }
    }
}
