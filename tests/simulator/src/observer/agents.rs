//! What a message, a worker's request or a write changed at an agent (S5, S6, S10, S11, S12, L9).

use std::collections::BTreeSet;

use leasehold_agent_core::{Lease, Record};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use leasehold_types::{Epoch, GrantNumber, JobId, Moment, StreamKey, TermId, Token};

use crate::observer::Checks;
use crate::system::network::LinkId;

/// The state of an agent before a message came.
#[derive(Debug)]
pub(crate) struct BeforeMessage {
    /// The streams whose leases have ended by time, though the agent has not looked since.
    lapsed: BTreeSet<StreamKey>,
    epoch: Epoch,
    /// The identity of its term, if its leader has granted anything.
    term: Option<TermId>,
    run: u64,
    stale: Option<(&'static str, &'static str)>,
    /// The grant that comes in turn: its epoch, its number, and whether it is a snapshot.
    pub grant: Option<(Epoch, GrantNumber, bool)>,
}

impl Checks<'_> {
    /// Notes the state of an agent before a message reaches it.
    pub(crate) fn before_message(
        &mut self,
        pod: usize,
        link: LinkId,
        message: &CoordinatorMessage,
    ) -> BeforeMessage {
        let node = &self.view.pods[pod];
        node.disk.borrow_mut().fresh.clear();
        let disk = node.disk.borrow();
        let agent = node.agent.as_ref().expect("a message comes to a living agent");
        let epoch = disk.memory.epoch.unwrap_or_default();
        // One that no leader has granted anything holds nothing that a lower epoch could harm.
        let was_granted = disk.memory.renewed_until > Moment(0);
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
            CoordinatorMessage::Welcome(welcome) if welcome.epoch < epoch && was_granted => {
                stale = Some(("S6", "a welcome of a lower epoch"));
            }
            _ => {}
        }
        let memory = &disk.memory;
        let term = was_granted.then_some(memory.term);
        let now = self.view.local_of_pod(pod);
        let streams = memory.streams.iter();
        let lapsed = streams.filter(|(_, held)| !held.lives(memory.renewed_until, now));
        let lapsed = lapsed.map(|(stream, _)| stream.clone()).collect();
        BeforeMessage { lapsed, epoch, term, run: node.run, stale, grant }
    }

    /// S5, S6, S10: what a message changed at an agent.
    pub(crate) fn observe_message(
        &mut self,
        pod: usize,
        link: LinkId,
        message: &CoordinatorMessage,
        before: &BeforeMessage,
    ) {
        let node = &self.view.pods[pod];
        let fresh = std::mem::take(&mut node.disk.borrow_mut().fresh);
        let (epoch, term) = {
            let disk = node.disk.borrow();
            (disk.memory.epoch.unwrap_or_default(), disk.memory.term)
        };
        if let Some((property, what)) = before.stale {
            self.coverage.hit("stale message came");
            let by_time = |record: &Record| match record {
                Record::StreamEnded { stream, .. } => before.lapsed.contains(stream),
                _ => false,
            };
            let acted = fresh.iter().any(|record| record.is_of_lease() && !by_time(record));
            if acted && self.view.pods[pod].run == before.run {
                self.fail(property, || format!("p{pod} acted on {what}: {fresh:?}"));
            }
        }
        let went_back = epoch < before.epoch && before.term.is_some();
        if went_back && self.view.pods[pod].run == before.run {
            let from = before.epoch;
            self.fail("S6", || format!("p{pod} went back from epoch {from} to {epoch}"));
        }
        let obeyed =
            before.term.filter(|_| epoch == before.epoch && self.view.pods[pod].run == before.run);
        if obeyed.is_some_and(|obeyed| obeyed.differs_from(term)) {
            self.fail("S6", || format!("p{pod} obeys {term:?} of {epoch} after {obeyed:?}"));
        }
        if let CoordinatorMessage::Grant(grant) = message {
            self.observe_deposed(pod, grant.epoch, &fresh);
        }
        self.check_tokens(pod, &fresh);
        self.check_kept(pod, message);
        self.note_asked_for(pod, message);
        self.check_served(pod, link, before);
    }

    /// L9: an agent that has reported is served by the snapshot that follows.
    fn check_served(&mut self, pod: usize, link: LinkId, before: &BeforeMessage) {
        let node = &self.view.pods[pod];
        let Some(agent) = node.agent.as_ref().filter(|agent| agent.link == Some(link)) else {
            return;
        };
        let served = node.run != before.run || node.disk.borrow().failing;
        let lease = agent.holder.peek(node.clock.local(self.view.t));
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
                        && !self.view.store.is_lost(last.epoch)
                    {
                        self.fail("S5", || {
                            format!("p{pod} got {stream} under {token}; p{owner} had {last}")
                        });
                    }
                    let incarnation = self.view.pods[pod].incarnation;
                    let taken = (*token, pod, incarnation);
                    self.observer.stream_tokens.insert(stream.clone(), taken);
                }
                // A worker that was replaced may be served by a leader that has not heard of its
                // successor yet, while that one is served by the leader before.
                Record::Pool { .. } if self.view.pods[pod].is_replaced() => {}
                Record::Pool { token, .. } => {
                    let key = &self.view.pods[pod].key;
                    let last = self.observer.pool_tokens.get(key).copied();
                    let is_lost = |last: Token| self.view.store.is_lost(last.epoch);
                    if last.is_some_and(|last| *token < last && !is_lost(last)) {
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

    /// S11: an agent has stored what it sends.
    pub(crate) fn observe_sent(&mut self, pod: usize, message: &AgentMessage) {
        self.observe_hello(pod, message);
        if matches!(message, AgentMessage::Hello(_)) {
            self.note_back(pod);
        }
        let disk = self.view.pods[pod].disk.borrow();
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
            self.coverage.hit(if report.memory.aged {
                "report with memory"
            } else {
                "report without memory"
            });
            if !report.streams.is_empty() {
                self.coverage.hit("report claims streams");
            }
        }
        if let AgentMessage::Beat(beat) = message
            && beat.wants_snapshot
        {
            self.coverage.hit("gap seen: snapshot requested");
        }
        if let Some(wrong) = wrong {
            self.fail("S11", || format!("p{pod} {wrong}"));
        }
    }

    /// S11, S12: an agent has stored what it shows its worker.
    pub(crate) fn observe_lease(&mut self, pod: usize, lease: &Lease) {
        let disk = self.view.pods[pod].disk.borrow();
        let memory = &disk.memory;
        let unwritten = lease.streams.iter().find(|stream| {
            memory.streams.get(&stream.stream).is_none_or(|held| held.token != stream.token)
        });
        let mut wrong = unwritten.map(|stream| format!("shows {} {}", stream.stream, stream.token));
        let unwritten = lease.bindings.iter().find(|share| {
            let stream = share.key.stream();
            let held = memory.streams.get(&stream);
            held.is_none_or(|lease| lease.token != share.token || lease.load != Some(share.load))
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
        let in_effect = memory.count.map_or(size, |(_, in_effect)| in_effect);
        if lease.pool.size > in_effect {
            wrong = Some(format!(
                "shows size {}, wrote that {in_effect} is in effect",
                lease.pool.size
            ));
        }
        let (running, written) = (lease.pool.running, memory.running());
        if running > written {
            wrong = Some(format!("shows that {running} jobs run, wrote {written}"));
        }
        let draining = (memory.draining || memory.failing) && lease.pool.size > 0;
        drop(disk);
        if let Some(wrong) = wrong {
            self.fail("S11", || format!("p{pod} {wrong}"));
        }
        if draining {
            self.fail("S12", || format!("p{pod} drains and shows a pool: {:?}", lease.pool));
        }
        self.check_shares_of_drain(pod, lease);
    }

    /// S11, S12: a job that may start was stored, and none starts in a drain.
    pub(crate) fn observe_job_start(&mut self, pod: usize, job: &JobId, takes_none: bool) {
        let written = self.view.pods[pod].disk.borrow().memory.jobs.contains_key(job);
        if !written {
            self.fail("S11", || format!("p{pod} lets {job} start, unwritten"));
        }
        if takes_none {
            self.fail("S12", || format!("p{pod} drains or fails, and lets {job} start"));
        }
    }
}
