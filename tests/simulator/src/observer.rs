//! Sees everything, and checks the safety properties of the protocol against the truth.
//!
//! Invariant: it changes nothing that a core could notice.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_agent_core::{Lease, Record};
use leasehold_coordinator_core::effect::{Freed, Notice};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use leasehold_types::{
    Epoch, GrantNumber, Incarnation, JobId, Moment, StreamKey, Token, WorkerKey,
};

use super::checks::Known;
use super::credits::Credits;
use super::entries::KnownLists;
use super::network::LinkId;
use super::said::Said;
use super::shares::Bounds;
use super::states::Told;
use super::terms::Terms;
use super::world::World;

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name in the protocol's page, or "panic".
    pub property: &'static str,
    /// What was seen.
    pub detail: String,
}

/// What the observer remembers.
#[derive(Debug, Default)]
pub(super) struct Observer {
    /// The first property that did not hold.
    pub failure: Option<Failure>,
    /// When the last grant, revoke or end of a lease was noticed.
    pub last_change: u64,
    /// Pods whose drain has reached its deadline.
    pub drains_overdue: BTreeSet<usize>,
    /// Streams granted or asked back since the one change of the liveness phase.
    pub streams_changed: BTreeSet<StreamKey>,
    /// Streams that agents gave up since then, as their time was over.
    pub streams_expired: BTreeSet<StreamKey>,
    /// How much of its shares each worker may use.
    pub bounds: Bounds,
    /// What agents have said.
    pub said: Said,
    /// The lists of sets that entries name.
    pub lists: KnownLists,
    /// Whom leaders have welcomed.
    pub credits: Credits,
    /// The pod of which the leader's view is compared next.
    pub compared: usize,
    /// What each replica has told of pipelines.
    pub told: BTreeMap<usize, Told>,
    /// What the checks of every moment know of the step before.
    pub known: Known,
    /// What was granted and who was welcomed, over all terms.
    pub terms: Terms,
    stream_tokens: BTreeMap<StreamKey, (Token, usize, Incarnation)>,
    pool_tokens: BTreeMap<WorkerKey, Token>,
}

/// How things stood before a message came.
#[derive(Debug)]
pub(super) struct Before {
    records: u64,
    epoch: Epoch,
    run: u64,
    stale: Option<(&'static str, &'static str)>,
    grant: Option<(Epoch, GrantNumber, bool)>,
}

impl Observer {
    /// The newest token under which an agent took a stream.
    pub(super) fn token_taken(&self, stream: &StreamKey) -> Option<Token> {
        self.stream_tokens.get(stream).map(|(token, ..)| *token)
    }
}

impl World {
    /// Notes the first failure.
    pub(super) fn fail(&mut self, property: &'static str, detail: impl FnOnce() -> String) {
        if self.observer.failure.is_none() {
            let failure = Failure { property, detail: detail() };
            self.trace.say(self.t, || format!("VIOLATION {property}: {}", failure.detail));
            self.observer.failure = Some(failure);
        }
    }

    /// The replica that really leads, if its core knows: the newest epoch is its own.
    pub(super) fn true_leader(&self) -> Option<(usize, Epoch)> {
        let owner = self.store.owner?;
        let epoch = self.replicas[owner].leads()?;
        (epoch == self.store.epoch).then_some((owner, epoch))
    }

    /// Whether a pod's worker or agent may use a stream under this token now.
    pub(super) fn may_use(&self, pod: usize, stream: &StreamKey, token: Token) -> bool {
        let node = &self.pods[pod];
        let now = node.clock.local(self.t);
        let worker = node
            .worker
            .streams
            .get(stream)
            .is_some_and(|used| used.token == token && node.worker.uses(used, now));
        let disk = node.disk.borrow();
        let agent = !node.superseded
            && disk.memory.streams.get(stream).is_some_and(|held| {
                held.token == token && held.lives(disk.memory.renewed_until, now)
            });
        worker || agent
    }

    /// S4, S8, S9, S10: what a leader frees nobody uses any more.
    pub(super) fn observe_notice(&mut self, replica: usize, notice: &Notice) {
        let leads = self.true_leader().filter(|(leader, _)| *leader == replica);
        self.observe_state(replica, notice);
        if let Notice::StreamGranted { worker, stream, token } = notice {
            self.observer.terms.grant(stream, *token, worker);
        }
        if let (Notice::Gone(worker), Some(epoch)) = (notice, self.replicas[replica].leads()) {
            self.observer.terms.forget(epoch, worker);
            self.forget_wait(replica, worker);
        }
        match notice {
            Notice::StreamGranted { stream, .. } | Notice::StreamRevoked { stream, .. } => {
                self.observer.last_change = self.t;
                self.observer.streams_changed.insert(stream.clone());
            }
            // What follows from these may still settle.
            Notice::PoolGranted { .. }
            | Notice::StreamFreed { .. }
            | Notice::HoldEnded(_)
            | Notice::Joined(_)
            | Notice::Disconnected(_)
            | Notice::Lost(_)
            | Notice::GivenUp { .. }
            | Notice::DrainStarted(_)
            | Notice::Gone(_)
            | Notice::Pipeline { .. }
            | Notice::Binding { .. }
            | Notice::Endpoints { .. } => self.observer.last_change = self.t,
            Notice::Elected(_)
            | Notice::Deposed(_)
            | Notice::EpochAhead { .. }
            | Notice::Offence { .. } => {}
        }
        if let Notice::Lost(worker) = notice {
            self.check_lost(replica, worker);
        }
        let Some((_, epoch)) = leads else { return };
        match notice {
            Notice::StreamFreed { worker, stream, token, how } => {
                let user = (0..self.pods.len()).find(|pod| {
                    let node = &self.pods[*pod];
                    node.key == *worker && !node.dead && self.may_use(*pod, stream, *token)
                });
                let of_older = self.is_of_older(epoch, worker, stream, *token);
                let property = match how {
                    Freed::Expired | Freed::Released if of_older => "S9",
                    Freed::Expired => "S4",
                    Freed::Released => "S10",
                    Freed::Gone => "S2",
                };
                if of_older {
                    self.cover.hit("checked: an older incarnation's lease ended");
                }
                if let Some(pod) = user {
                    let (stream, token) = (stream.clone(), *token);
                    self.fail(property, || {
                        format!("c{replica} frees {stream} {token} ({how:?}), which p{pod} may use")
                    });
                }
            }
            Notice::StreamGranted { stream, .. } => self.check_unheard(replica, epoch, stream),
            _ => {}
        }
    }

    /// Whether a lease was taken by an older incarnation than the leader talks to.
    fn is_of_older(
        &self,
        epoch: Epoch,
        worker: &WorkerKey,
        stream: &StreamKey,
        token: Token,
    ) -> bool {
        let taken = self.observer.stream_tokens.get(stream);
        let taken = taken.filter(|(taken, ..)| *taken == token);
        taken.is_some_and(|(.., by)| self.observer.terms.knows_newer(epoch, worker, *by))
    }

    /// S8: a leader grants no stream that somebody holds who still obeys a predecessor.
    fn check_unheard(&mut self, replica: usize, epoch: Epoch, stream: &StreamKey) {
        let holder = (0..self.pods.len()).find(|pod| {
            let node = &self.pods[*pod];
            if node.dead || node.superseded || node.is_replaced() || !node.worker.stoppable {
                return false;
            }
            let disk = node.disk.borrow();
            let memory = &disk.memory;
            let held = match memory.epoch {
                Some(obeyed) if obeyed < epoch => memory.streams.get(stream),
                _ => None,
            };
            held.is_some_and(|held| {
                let now = node.clock.local(self.t);
                !held.pinned && held.lives(memory.renewed_until, now)
            })
        });
        if let Some(pod) = holder {
            self.fail("S8", || {
                format!("c{replica} grants {stream} under {epoch}; p{pod} holds it unheard")
            });
        }
    }

    /// How things stand before a message reaches an agent.
    pub(super) fn before_message(
        &mut self,
        pod: usize,
        link: LinkId,
        message: &CoordinatorMessage,
    ) -> Before {
        let node = &self.pods[pod];
        node.disk.borrow_mut().fresh.clear();
        let disk = node.disk.borrow();
        let agent = node.agent.as_ref().expect("a message comes to a living agent");
        let epoch = disk.memory.epoch.unwrap_or_default();
        let mut stale = None;
        let mut grant = None;
        match message {
            CoordinatorMessage::Grant(message) => {
                let number = (message.epoch, message.number);
                if agent.link != Some(link) {
                    stale = Some(("S10", "a message of an old link"));
                } else if message.epoch < epoch {
                    stale = Some(("S6", "a grant of a lower epoch"));
                } else if number <= agent.applied {
                    stale = Some(("S6", "a grant of a number that was applied"));
                } else {
                    grant = Some((message.epoch, message.number, message.snapshot));
                }
            }
            CoordinatorMessage::Welcome(welcome) if welcome.epoch < epoch => {
                stale = Some(("S6", "a welcome of a lower epoch"));
            }
            _ => {}
        }
        Before { records: disk.lease_records, epoch, run: node.run, stale, grant }
    }

    /// S5, S6, S10: what a message changed at an agent.
    pub(super) fn observe_message(
        &mut self,
        pod: usize,
        link: LinkId,
        message: &CoordinatorMessage,
        before: &Before,
    ) {
        let node = &mut self.pods[pod];
        let fresh = std::mem::take(&mut node.disk.borrow_mut().fresh);
        let (records, epoch) = {
            let disk = node.disk.borrow();
            (disk.lease_records, disk.memory.epoch.unwrap_or_default())
        };
        if let (Some(agent), Some((of, number, snapshot))) = (node.agent.as_mut(), before.grant) {
            let next = agent.applied.0 == of && number == agent.applied.1.next();
            // A link that it has given up since shows that nothing of it was written.
            if (snapshot || next) && agent.link == Some(link) {
                agent.applied = (of, number);
            }
        }
        if let Some((property, what)) = before.stale {
            self.cover.hit("stale message came");
            if records > before.records && self.pods[pod].run == before.run {
                self.fail(property, || format!("p{pod} acted on {what}: {fresh:?}"));
            }
        }
        if epoch < before.epoch && self.pods[pod].run == before.run {
            let from = before.epoch;
            self.fail("S6", || format!("p{pod} went back from epoch {from} to {epoch}"));
        }
        if let CoordinatorMessage::Grant(grant) = message {
            self.observe_deposed(pod, grant.epoch, &fresh);
        }
        self.check_tokens(pod, &fresh);
        self.check_kept(pod, message);
        self.check_served(pod, link, before);
    }

    /// L9: an agent that has reported is served by the snapshot that follows.
    fn check_served(&mut self, pod: usize, link: LinkId, before: &Before) {
        let node = &self.pods[pod];
        let Some(agent) = node.agent.as_ref().filter(|agent| agent.link == Some(link)) else {
            return;
        };
        let served = node.run != before.run || node.disk.borrow().failing;
        let lease = agent.holder.peek(node.clock.local(self.t));
        if let Some((epoch, number, true)) = before.grant
            && !(served || lease.connected)
        {
            self.fail("L9", || format!("p{pod} passes over its snapshot {number} of {epoch}"));
        }
    }

    fn check_tokens(&mut self, pod: usize, fresh: &[Record]) {
        for record in fresh {
            match record {
                Record::Stream { stream, token, .. } => {
                    let last = self.observer.stream_tokens.get(stream).copied();
                    if let Some((last, owner, _)) = last
                        && (*token < last || (*token == last && owner != pod))
                    {
                        self.fail("S5", || {
                            format!("p{pod} got {stream} under {token}; p{owner} had {last}")
                        });
                    }
                    let incarnation = self.pods[pod].incarnation;
                    let taken = (*token, pod, incarnation);
                    self.observer.stream_tokens.insert(stream.clone(), taken);
                }
                // A worker that was replaced may be served by a leader that has not heard of its
                // successor yet, while that one is served by the leader before.
                Record::Pool { .. } if self.pods[pod].is_replaced() => {}
                Record::Pool { token, .. } => {
                    let key = &self.pods[pod].key;
                    let last = self.observer.pool_tokens.get(key).copied();
                    if last.is_some_and(|last| *token < last) {
                        let key = key.clone();
                        self.fail("S5", || format!("{key}: pool under {token} after {last:?}"));
                        return;
                    }
                    let key = key.clone();
                    self.observer.pool_tokens.insert(key, *token);
                }
                _ => {}
            }
        }
    }

    /// S11: what an agent sends it has written down.
    pub(super) fn observe_sent(&mut self, pod: usize, message: &AgentMessage) {
        self.observe_hello(pod, message);
        let disk = self.pods[pod].disk.borrow();
        let memory = &disk.memory;
        let wrong = match message {
            AgentMessage::Hello(_) => None,
            AgentMessage::Report(report) => (memory.epoch != Some(report.epoch))
                .then(|| format!("reports epoch {}, wrote {:?}", report.epoch, memory.epoch)),
            AgentMessage::Beat(beat) => beat
                .released
                .iter()
                .find(|release| {
                    memory
                        .streams
                        .get(&release.stream)
                        .is_some_and(|held| held.token == release.token)
                })
                .map(|release| format!("sends the release of {}, unwritten", release.stream)),
        };
        drop(disk);
        if let AgentMessage::Report(report) = message {
            self.cover.hit(match report.memory.aged {
                true => "report with memory",
                false => "report without memory",
            });
            if !report.streams.is_empty() {
                self.cover.hit("report claims streams");
            }
        }
        if let AgentMessage::Beat(beat) = message
            && beat.wants_snapshot
        {
            self.cover.hit("gap seen: snapshot wanted");
        }
        if let Some(wrong) = wrong {
            self.fail("S11", || format!("p{pod} {wrong}"));
        }
    }

    /// S11, S12: what a worker is told its agent has written down.
    pub(super) fn observe_lease(&mut self, pod: usize, lease: &Lease) {
        let disk = self.pods[pod].disk.borrow();
        let memory = &disk.memory;
        let unwritten = lease.streams.iter().find(|stream| {
            memory.streams.get(&stream.stream).is_none_or(|held| held.token != stream.token)
        });
        let mut wrong = unwritten.map(|stream| format!("shows {} {}", stream.stream, stream.token));
        let unwritten = lease.bindings.iter().find(|share| {
            let stream = share.key.stream();
            let held = memory.streams.get(&stream);
            held.is_none_or(|it| it.token != share.token || it.load != Some(share.load))
        });
        if let Some(share) = unwritten {
            wrong = Some(format!("shows {} {} of {}", share.key, share.token, share.load));
        }
        if lease.pool.token.is_some() && lease.pool.token != memory.pool.map(|pool| pool.0) {
            wrong = Some(format!("shows pool {:?}, wrote {:?}", lease.pool.token, memory.pool));
        }
        let size = memory.pool.map_or(0, |(_, size, _)| size);
        if lease.pool.size > size {
            wrong = Some(format!("shows size {}, wrote {size}", lease.pool.size));
        }
        let obeyed = memory.count.map_or(size, |(_, obeyed)| obeyed);
        if lease.pool.size > obeyed {
            wrong = Some(format!("shows size {}, wrote that {obeyed} is kept", lease.pool.size));
        }
        let draining = memory.draining && lease.pool.size > 0;
        drop(disk);
        if let Some(wrong) = wrong {
            self.fail("S11", || format!("p{pod} {wrong}"));
        }
        if draining {
            self.fail("S12", || format!("p{pod} drains and shows a pool: {:?}", lease.pool));
        }
    }

    /// S11, S12: a job that may start was written down, and none starts in a drain.
    pub(super) fn observe_begun(&mut self, pod: usize, job: &JobId, draining: bool) {
        let written = self.pods[pod].disk.borrow().memory.jobs.contains(job);
        if !written {
            self.fail("S11", || format!("p{pod} lets {job} start, unwritten"));
        }
        if draining {
            self.fail("S12", || format!("p{pod} drains and lets {job} start"));
        }
    }

    /// A worker's clock, for the liveness checks.
    pub(super) fn uses_now(&self, pod: usize, now: Moment) -> impl Iterator<Item = &StreamKey> {
        let worker = &self.pods[pod].worker;
        worker.streams.iter().filter(move |(_, used)| worker.uses(used, now)).map(|(key, _)| key)
    }
}
