//! The election: how a replica stands by and leads, and the stores that its campaign asks, which
//! may be late, lose requests, or be unreadable.
//!
//! Invariant: leadership counts from when a request was sent.

use std::collections::BTreeSet;

use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryOutcome, EntryWrite, Lead, LeadSettings, Listing, RenewalOutcome,
    StoreRequest, TermEnd, TermTaken,
};
use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::{Event, KnownLeader};
use leasehold_types::{Epoch, Moment, TermId, WorkerKey};

use crate::system::clock::{MS, Real};
use crate::system::network::{Cut, SlowStore};
use crate::system::profile::one_in;
use crate::system::store::{Answer, Commit, LeadAnswer, Request, Shape};
use crate::world::World;
use crate::world::queue::SimEvent;
use crate::world::replica::address;

/// The number of attempts to change an object that others write to.
const TRIES_MAX: u32 = 3;

/// One change of an object in this many conflicts with another writer's.
const CONFLICT_ONE_IN: u32 = 6;

/// One list in this many finds an unreadable entry, and one entry in this many becomes unreadable
/// after it was written.
const CORRUPT_ONE_IN: u32 = 12;

/// One write to a log in this many fails.
const FAILED_ONE_IN: u32 = 30;

impl World {
    /// Whether a replica and the store are cut off from each other; some cuts spare entries.
    fn is_cut_off(&self, replica: usize, about_entries: bool) -> bool {
        let cuts = &self.network.cuts;
        let terms = !about_entries && cuts.contains(&Cut::Terms(replica));
        terms || cuts.contains(&Cut::Store(replica))
    }

    pub(super) fn ask_store(&mut self, replica: usize, request: Request) {
        if self.is_cut_off(replica, request.is_about_entries()) {
            return;
        }
        let run = self.replicas[replica].run;
        let mut delay = self.delay() / 2;
        if let Request::Lead(_, _, _, StoreRequest::Write(_)) = &request
            && self.network.full.is_none()
            && self.rng.u8(0..8) == 0
        {
            self.coverage.hit("fault: entries written late");
            delay += self.rng.u64(0..self.profile.ttl_real());
        }
        if let Some((slow, what, until)) = self.network.slow_store
            && slow == replica
            && self.t < until
        {
            let ttl = self.profile.ttl_real();
            let writes = matches!(&request, Request::Lead(_, _, _, StoreRequest::Write(_)));
            delay += match what {
                SlowStore::Writes | SlowStore::All if writes => self.rng.u64(0..ttl * 2),
                SlowStore::All => self.rng.u64(ttl / 2..ttl * 2),
                SlowStore::AllElse if !writes => self.rng.u64(0..ttl),
                SlowStore::Writes | SlowStore::AllElse => 0,
            };
        }
        self.after(delay, SimEvent::Store { replica, run, request });
    }

    /// A request reaches the store.
    pub(super) fn store_request(&mut self, replica: usize, run: u64, request: Request) {
        if self.is_cut_off(replica, request.is_about_entries()) {
            return;
        }
        let answer = match request {
            Request::Read => {
                Some(Answer::State(self.store.version, self.store.epoch, self.store.owner))
            }
            Request::Take { version, above } => {
                self.coverage.hit("take tried");
                Some(Answer::Taken(self.store.take(replica, version, above)))
            }
            Request::Release(epoch) => {
                self.store.release(replica, epoch);
                None
            }
            Request::Lead(epoch, number, sent_at, request) => self
                .serve(replica, run, (epoch, number), sent_at, request)
                .map(|answer| Answer::Lead(epoch, number, answer)),
            Request::Commit(commit) => self
                .commit_object(replica, run, &commit)
                .map(|answer| Answer::Lead(commit.epoch, commit.number, answer)),
        };
        if let Some(answer) = answer {
            let delay = self.delay() / 2;
            self.after(delay, SimEvent::Answer { replica, run, answer });
        }
    }

    fn serve(
        &mut self,
        replica: usize,
        run: u64,
        (epoch, number): (Epoch, u64),
        sent_at: Moment,
        request: StoreRequest,
    ) -> Option<LeadAnswer> {
        match request {
            StoreRequest::Renew => {
                let standing = self.store.renew(replica, epoch);
                Some(LeadAnswer::Renewed(standing, self.store.version, sent_at))
            }
            // The store of the simulator has no namespaces.
            StoreRequest::List(_) => {
                let corrupts = !self.store.register.is_empty() && self.quiet_since.is_none();
                if corrupts && one_in(&mut self.rng, CORRUPT_ONE_IN) {
                    let at = self.rng.usize(0..self.store.register.len());
                    if let Some(key) = self.store.register.keys().nth(at).cloned() {
                        self.corrupt_entry(&key);
                    }
                }
                let exposed = self.store.list(epoch, self.t);
                Some(LeadAnswer::Listed(Listing { exposed, unreadable: BTreeSet::new() }))
            }
            StoreRequest::Write(attempts) if self.store.shape == Shape::Logs => {
                // Writes to a file keep their order: a write that was given up never happens.
                let node = &self.replicas[replica];
                if node.run != run || !node.election.asked.contains_key(&number) {
                    return None;
                }
                let fails = self.quiet_since.is_none() && one_in(&mut self.rng, FAILED_ONE_IN);
                // What comes before the failure may be on disk.
                let all = attempts.len();
                let whole = if fails { self.rng.usize(0..=all) } else { all };
                self.store.append(epoch, &attempts[..whole]);
                self.store.note_written(epoch, &attempts[..whole], self.t);
                let written = if fails { EntryOutcome::Failed } else { EntryOutcome::Done };
                let outcomes = attempts.into_iter().map(|attempt| (attempt.change, written));
                Some(LeadAnswer::Wrote(outcomes.collect()))
            }
            StoreRequest::Write(mut attempts) => {
                let attempt = attempts.pop()?;
                let node = &self.replicas[replica];
                if node.run != run || !node.election.asked.contains_key(&number) {
                    // The process that read it no longer writes.
                    return None;
                }
                self.change_object(replica, run, (epoch, number), attempt, 0)
            }
        }
    }

    /// Makes an entry unreadable, where others than leaders can write to it.
    pub(super) fn corrupt_entry(&mut self, key: &WorkerKey) {
        if self.store.shape == Shape::Objects && self.store.corrupt(key) {
            self.coverage.hit("fault: entry made unreadable");
        }
    }

    /// Reads an object, and schedules the write of its new content.
    fn change_object(
        &mut self,
        replica: usize,
        run: u64,
        (epoch, number): (Epoch, u64),
        attempt: EntryAttempt,
        conflicts: u32,
    ) -> Option<LeadAnswer> {
        let (version, write) = self.store.look(epoch, &attempt);
        let outcome = |written| Some(LeadAnswer::Wrote(vec![(attempt.change.clone(), written)]));
        let entry = match write {
            EntryWrite::Put(entry) => entry,
            EntryWrite::Nothing => return outcome(EntryOutcome::Done),
            EntryWrite::Superseded => {
                self.coverage.hit("entry of a successor left alone");
                return outcome(EntryOutcome::Superseded);
            }
            EntryWrite::Unreadable => {
                self.coverage.hit("unreadable entry: renewal requested");
                return outcome(EntryOutcome::Unreadable(version));
            }
        };
        // An agent that waits for the store does not wait for another agent.
        let disturbed = self.network.full.is_none();
        if disturbed && one_in(&mut self.rng, CONFLICT_ONE_IN) {
            self.store.touch(attempt.change.key());
        }
        let commit = Commit { epoch, number, attempt, entry, version, conflicts };
        let mut delay = self.delay();
        if disturbed && self.rng.u8(0..8) == 0 {
            delay += self.rng.u64(0..self.profile.ttl_real() * 2);
        }
        self.after(
            delay,
            SimEvent::Store { replica, run, request: Request::Commit(Box::new(commit)) },
        );
        None
    }

    fn commit_object(&mut self, replica: usize, run: u64, commit: &Commit) -> Option<LeadAnswer> {
        let outcome =
            |written| Some(LeadAnswer::Wrote(vec![(commit.attempt.change.clone(), written)]));
        let before = self.store.written_by(commit.attempt.change.key());
        let node = &self.replicas[replica];
        // The process that would try again has given up or died.
        let given_up = node.run != run || !node.election.asked.contains_key(&commit.number);
        if self.store.commit(commit) {
            if given_up {
                self.checks().note_late_write(commit.attempt.change.key());
            }
            self.checks().check_replaced(commit, before);
            self.store.note_written(commit.epoch, [&commit.attempt], self.t);
            let corrupts = self.network.full.is_none() && self.quiet_since.is_none();
            if corrupts && one_in(&mut self.rng, CORRUPT_ONE_IN) {
                self.corrupt_entry(commit.attempt.change.key());
            }
            return outcome(EntryOutcome::Done);
        }
        self.coverage.hit("entry written by others meanwhile");
        if given_up {
            return None;
        }
        if commit.conflicts + 1 == TRIES_MAX {
            return outcome(EntryOutcome::Failed);
        }
        let (asked, conflicts) = ((commit.epoch, commit.number), commit.conflicts + 1);
        self.change_object(replica, run, asked, commit.attempt.clone(), conflicts)
    }

    /// The store's answer reaches a replica.
    pub(super) fn store_answer(&mut self, replica: usize, answer: Answer) {
        if self.is_cut_off(replica, answer.is_about_entries()) {
            return;
        }
        self.trace.say(self.t, || format!("        c{replica} <- {answer:?}"));
        let now = self.view().local_of_replica(replica);
        match answer {
            Answer::State(version, epoch, owner) => {
                self.term_read(replica, version, epoch, owner, now);
            }
            Answer::Taken(won) => self.taken(replica, won),
            Answer::Lead(epoch, number, answer) => {
                let election = &mut self.replicas[replica].election;
                let asked = election.asked.remove(&number).is_some();
                if asked && election.term().is_some_and(|(term, _)| term == epoch) {
                    self.lead_answer(replica, answer);
                }
            }
        }
    }

    fn lead_answer(&mut self, replica: usize, answer: LeadAnswer) {
        let now = self.view().local_of_replica(replica);
        let election = &mut self.replicas[replica].election;
        let Some(lead) = election.lead.as_mut() else { return };
        match answer {
            LeadAnswer::Renewed(standing, version, sent_at) => {
                if standing == RenewalOutcome::Leads {
                    election.seen = Some((version, now));
                }
                lead.renewed(standing, sent_at, now);
            }
            LeadAnswer::Listed(listing) => lead.listed(Some(listing), now),
            LeadAnswer::Wrote(outcomes) => lead.wrote(outcomes, now),
        }
        self.drive_lead(replica);
    }

    /// Carries out a leader's requests to its stores, and gives the core its events.
    fn drive_lead(&mut self, replica: usize) {
        let run = self.replicas[replica].run;
        loop {
            let now = self.view().local_of_replica(replica);
            let election = &mut self.replicas[replica].election;
            let Some(lead) = election.lead.as_mut() else { return };
            if let Some(request) = lead.poll_request() {
                let epoch = lead.epoch();
                election.number += 1;
                let number = election.number;
                election.asked.insert(number, request.clone());
                self.ask_store(replica, Request::Lead(epoch, number, now, request));
                let patience = self.profile.slow_max * 2 + self.profile.ttl_real() + 50 * MS;
                self.after(patience, SimEvent::Retry { replica, run, number });
            } else if let Some(event) = lead.poll_event() {
                if let Event::Registered(said) = &event {
                    self.coverage.hit("registered");
                    self.checks().check_registered(replica, said);
                }
                self.core_event(replica, event);
            } else {
                break;
            }
        }
        let lead = self.replicas[replica].election.lead.as_ref();
        match lead.and_then(Lead::over) {
            Some(TermEnd::Deposed | TermEnd::Expired) => self.deposed(replica, None),
            Some(TermEnd::GivenUp { above }) => {
                self.checks().check_step_down(replica, above);
                self.step_down(replica, above);
            }
            None => {}
        }
    }

    fn term_read(
        &mut self,
        replica: usize,
        version: u64,
        epoch: Epoch,
        owner: Option<usize>,
        now: Moment,
    ) {
        let election = &mut self.replicas[replica].election;
        if election.seen.is_none_or(|(seen, _)| version > seen) {
            election.seen = Some((version, now));
        }
        if election.term().is_some_and(|(term, _)| term < epoch) {
            self.deposed(replica, owner.map(|owner| (owner, epoch)));
            return;
        }
        let leads = election.lead.is_some();
        if !leads && election.leader != owner && owner != Some(replica) {
            election.leader = owner;
            let leader = owner.map(|owner| known_leader(owner, epoch));
            self.core_event(replica, Event::Deposed { leader });
        }
        let election = &self.replicas[replica].election;
        let Some((version, since)) = election.seen else { return };
        let silent = now.since(since) >= self.profile.takeover_after;
        let takes = silent || owner.is_none() || election.eager;
        if election.lead.is_none() && takes {
            self.take_from(replica, version, since);
        }
    }

    /// Tries to lead, whether or not another replica leads.
    pub(super) fn take(&mut self, replica: usize) {
        if let Some((version, since)) = self.replicas[replica].election.seen {
            self.take_from(replica, version, since);
        }
    }

    fn take_from(&mut self, replica: usize, version: u64, since: Moment) {
        let now = self.view().local_of_replica(replica);
        let patience = self.profile.leadership;
        let election = &mut self.replicas[replica].election;
        let patience = if election.eager { patience / 20 } else { patience };
        let asked_lately = election.taking.is_some_and(|(sent, _)| now.since(sent) < patience);
        if election.lead.is_some() || asked_lately {
            return;
        }
        election.taking = Some((now, since));
        let above = election.above;
        self.ask_store(replica, Request::Take { version, above });
    }

    pub(super) fn taken(&mut self, replica: usize, won: Option<(Epoch, TermId, u64)>) {
        let now = self.view().local_of_replica(replica);
        let (leadership, bounds) = (self.profile.leadership, self.profile.bounds);
        let cell = self.cell();
        let renew_every = leadership / 6;
        let election = &mut self.replicas[replica].election;
        let Some((sent_at, since)) = election.taking.take() else { return };
        let Some((epoch, term, version)) = won else { return };
        election.seen = Some((version, now));
        election.eager = false;
        election.leader = None;
        // Nothing has been renewed since `since`: an earlier term ends within one more leadership.
        let predecessor_end = match epoch {
            Epoch(1) => now,
            _ => since + bounds.outlast(leadership),
        };
        let (batch_max, batches_max) = match self.store.shape {
            Shape::Logs => (64, 1),
            Shape::Objects => (1, 4),
        };
        let settings = LeadSettings { leadership, renew_every, batch_max, batches_max };
        let taken = TermTaken { epoch, term, cell, sent_at, predecessor_end };
        election.asked.clear();
        election.lead = Some(Lead::new(settings, taken, now));
        self.checks().note_term(replica, epoch, term);
        let run = self.replicas[replica].run;
        self.after(self.renew_every(), SimEvent::Renew { replica, run });
        self.drive_lead(replica);
    }

    fn renew_every(&self) -> Real {
        self.profile.leadership.as_nanos() as Real / 6
    }

    /// A leader's renewal is due.
    pub(super) fn renew_due(&mut self, replica: usize) {
        let now = self.view().local_of_replica(replica);
        // A driver that hangs must not go on leading.
        let progresses = self.progresses(replica);
        let Some(lead) = self.replicas[replica].election.lead.as_mut() else { return };
        lead.tick(progresses, now);
        let run = self.replicas[replica].run;
        self.after(self.renew_every(), SimEvent::Renew { replica, run });
        self.drive_lead(replica);
    }

    /// The core orders something from its platform.
    pub(super) fn order(&mut self, replica: usize, epoch: Epoch, order: Order) {
        self.coverage.hit(match order {
            Order::Register(_) => "registration requested",
            Order::Unregister(_) => "unregistered",
            Order::Confirm => "confirmation requested",
            Order::AskTerm { .. } => "term asked for",
            Order::StepDown { .. } => "stepped down",
        });
        self.delay_entry(replica, &order);
        self.edit_meanwhile(&order);
        let now = self.view().local_of_replica(replica);
        let node = &mut self.replicas[replica];
        if matches!(order, Order::StepDown { .. }) {
            node.driver.gate.take_if(|(of, _)| *of == epoch);
        }
        let Some(lead) = node.election.lead.as_mut() else {
            return node.election.stay_above(order.above());
        };
        if lead.epoch() != epoch {
            self.coverage.hit("order of another term");
        }
        lead.order(epoch, order, now);
        self.drive_lead(replica);
    }

    fn deposed(&mut self, replica: usize, leader: Option<(usize, Epoch)>) {
        let election = &mut self.replicas[replica].election;
        election.lead = None;
        election.leader = leader.map(|(leader, _)| leader);
        election.asked.clear();
        let leader = leader.filter(|(leader, _)| *leader != replica);
        let leader = leader.map(|(leader, epoch)| known_leader(leader, epoch));
        self.core_event(replica, Event::Deposed { leader });
    }

    /// The core gives leadership up.
    fn step_down(&mut self, replica: usize, above: Option<Epoch>) {
        let election = &mut self.replicas[replica].election;
        election.stay_above(above);
        election.asked.clear();
        if let Some(lead) = election.lead.take() {
            self.ask_store(replica, Request::Release(lead.epoch()));
        }
    }

    /// Reads the store, and schedules the next read.
    pub(super) fn poll_store(&mut self, replica: usize) {
        // A driver that hangs keeps no agent waiting, whether its replica leads or stands by.
        self.progresses(replica);
        let run = self.replicas[replica].run;
        self.ask_store(replica, Request::Read);
        let every = self.renew_every();
        let jitter = self.rng.u64(every / 2..=every);
        self.after(jitter, SimEvent::Poll { replica, run });
    }

    /// A leader's request was not answered in time.
    pub(super) fn no_answer(&mut self, replica: usize, number: u64) {
        let now = self.view().local_of_replica(replica);
        let election = &mut self.replicas[replica].election;
        let Some(request) = election.asked.remove(&number) else { return };
        let Some(lead) = election.lead.as_mut() else { return };
        match request {
            StoreRequest::Renew => lead.renewed(RenewalOutcome::Unknown, now, now),
            StoreRequest::List(_) => lead.listed(None, now),
            StoreRequest::Write(attempts) => {
                let failed =
                    attempts.into_iter().map(|attempt| (attempt.change, EntryOutcome::Failed));
                lead.wrote(failed.collect(), now);
            }
        }
        self.drive_lead(replica);
    }
}

fn known_leader(replica: usize, epoch: Epoch) -> KnownLeader {
    KnownLeader { address: address(replica), epoch: Some(epoch) }
}
