//! A replica's part in the election, and its requests to the store, which may be late or lost.
//!
//! Invariant: leadership counts from when a request was sent; the register is read after the
//! epoch was taken.

use std::collections::VecDeque;

use leasehold_coordinator_core::event::{Elected, Event, Exposure, Renewed};
use leasehold_types::{Epoch, Moment, WorkerKey};

use super::clock::{MS, Real};
use super::network::Cut;
use super::queue::Happening;
use super::store::{Answer, Request};
use super::world::World;

/// A term that this replica has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// Its number.
    pub epoch: Epoch,
    /// Its end by this replica's clock.
    pub until: Moment,
    /// When the predecessor has surely stopped.
    pub predecessor_end: Moment,
    /// The core has been told.
    pub told: bool,
}

/// One life's view of the election.
#[derive(Debug, Default)]
pub(super) struct Election {
    /// The term that it has.
    pub term: Option<Term>,
    /// The version last seen, and when it was first seen.
    pub seen: Option<(u64, Moment)>,
    /// It takes over as soon as it has looked, since it knows that the leader is lost.
    pub eager: bool,
    /// Who was said to lead.
    pub leader: Option<usize>,
    /// When the take on its way was sent, and what it rests on.
    taking: Option<(Moment, Moment)>,
    /// An agent remembers this epoch.
    above: Epoch,
    /// Registrations to come, oldest first; the first is on its way.
    writes: VecDeque<(u64, Request)>,
    number: u64,
}

impl World {
    fn ask_store(&mut self, replica: usize, request: Request) {
        if self.network.cuts.contains(&Cut::Store(replica)) {
            return;
        }
        let run = self.replicas[replica].run;
        let delay = self.delay() / 2;
        self.after(delay, Happening::Store { replica, run, request });
    }

    /// A request reaches the store.
    pub(super) fn store_request(&mut self, replica: usize, run: u64, request: Request) {
        if self.network.cuts.contains(&Cut::Store(replica)) {
            return;
        }
        if let Request::Write(epoch, number, entries) = &request {
            let check = Request::Check(*epoch, *number, entries.clone());
            let pause = self.rng.u64(0..=2 * MS);
            self.after(pause, Happening::Store { replica, run, request: check });
        }
        if let Request::Take { .. } = &request {
            self.cover.hit("take tried");
        }
        let answer = self.store.serve(replica, request);
        if let Some(answer) = answer {
            let delay = self.delay() / 2;
            self.after(delay, Happening::Answer { replica, run, answer });
        }
    }

    /// The store's answer reaches a replica.
    pub(super) fn store_answer(&mut self, replica: usize, answer: Answer) {
        if self.network.cuts.contains(&Cut::Store(replica)) {
            return;
        }
        self.trace.say(self.t, || format!("        c{replica} <- {answer:?}"));
        let now = self.local_of_replica(replica);
        match answer {
            Answer::State(version, epoch, owner) => self.saw(replica, version, epoch, owner, now),
            Answer::Taken(won) => self.taken(replica, won),
            Answer::Listed(epoch, exposed) => {
                let Some(term) = self.replicas[replica].election.term.as_mut() else { return };
                if term.epoch != epoch || term.told || now >= term.until {
                    return;
                }
                term.told = true;
                let (until, predecessor_end) = (term.until, term.predecessor_end);
                let elected = Elected { epoch, until, predecessor_end, exposed };
                self.core_event(replica, Event::Elected(elected));
            }
            Answer::Renewed(epoch, sent, version) => self.renewed(replica, epoch, sent, version),
            Answer::Registered(epoch, number, ok, entries) => {
                let election = &mut self.replicas[replica].election;
                if election.term.is_none_or(|term| term.epoch != epoch) {
                    return;
                }
                if election.writes.front().is_none_or(|(first, _)| *first != number) {
                    return;
                }
                election.writes.pop_front();
                if !ok {
                    self.deposed(replica, None);
                    return;
                }
                self.send_write(replica);
                if !entries.is_empty() {
                    self.cover.hit("registered");
                    self.core_event(replica, Event::Registered(entries));
                }
            }
        }
    }

    fn saw(
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
        if election.term.is_some_and(|term| term.epoch < epoch) {
            self.deposed(replica, owner);
            return;
        }
        if election.term.is_none() && election.leader != owner && owner != Some(replica) {
            election.leader = owner;
            self.core_event(replica, Event::Deposed { leader: owner.map(address) });
        }
        let election = &self.replicas[replica].election;
        let Some((version, since)) = election.seen else { return };
        let silent = now.since(since) >= self.profile.takeover_after;
        let takes = silent || owner.is_none() || election.eager;
        if election.term.is_none() && takes {
            self.take_from(replica, version, since);
        }
    }

    /// Tries to lead, whoever leads now.
    pub(super) fn take(&mut self, replica: usize) {
        if let Some((version, since)) = self.replicas[replica].election.seen {
            self.take_from(replica, version, since);
        }
    }

    fn take_from(&mut self, replica: usize, version: u64, since: Moment) {
        let now = self.local_of_replica(replica);
        let patience = self.profile.leadership;
        let election = &mut self.replicas[replica].election;
        let patience = if election.eager { patience / 20 } else { patience };
        let asked_lately = election.taking.is_some_and(|(sent, _)| now.since(sent) < patience);
        if election.term.is_some() || asked_lately {
            return;
        }
        election.taking = Some((now, since));
        let above = election.above;
        self.ask_store(replica, Request::Take { version, above });
    }

    fn taken(&mut self, replica: usize, won: Option<(Epoch, u64)>) {
        let now = self.local_of_replica(replica);
        let (leadership, bounds) = (self.profile.leadership, self.profile.bounds);
        let election = &mut self.replicas[replica].election;
        let Some((sent, since)) = election.taking.take() else { return };
        let Some((epoch, version)) = won else { return };
        election.seen = Some((version, now));
        election.eager = false;
        election.leader = None;
        // Nothing has been renewed since `since`: what ran then ends within one more leadership.
        let predecessor_end = match epoch {
            Epoch(1) => now,
            _ => since + bounds.outlast(leadership),
        };
        let until = sent + leadership;
        election.term = Some(Term { epoch, until, predecessor_end, told: false });
        election.writes.clear();
        let run = self.replicas[replica].run;
        self.ask_store(replica, Request::List(epoch));
        self.after(self.renew_every(), Happening::Renew { replica, run });
    }

    fn renew_every(&self) -> Real {
        self.profile.leadership.as_nanos() as Real / 6
    }

    /// The periodic renewal.
    pub(super) fn renew_due(&mut self, replica: usize) {
        let Some(term) = self.replicas[replica].election.term else { return };
        let run = self.replicas[replica].run;
        if !term.told {
            self.ask_store(replica, Request::List(term.epoch));
        }
        self.renew(replica);
        self.after(self.renew_every(), Happening::Renew { replica, run });
    }

    /// Sends a renewal now.
    pub(super) fn renew(&mut self, replica: usize) {
        let now = self.local_of_replica(replica);
        if let Some(term) = self.replicas[replica].election.term {
            self.ask_store(replica, Request::Renew(term.epoch, now));
        }
    }

    fn renewed(&mut self, replica: usize, epoch: Epoch, sent_at: Moment, version: Option<u64>) {
        let now = self.local_of_replica(replica);
        let leadership = self.profile.leadership;
        let election = &mut self.replicas[replica].election;
        let Some(term) = election.term.as_mut().filter(|term| term.epoch == epoch) else { return };
        let Some(version) = version else {
            self.deposed(replica, None);
            return;
        };
        term.until = term.until.max(sent_at + leadership);
        let (until, told) = (term.until, term.told);
        election.seen = Some((version, now));
        if told {
            self.core_event(replica, Event::Renewed(Renewed { epoch, sent_at, until }));
        }
    }

    fn deposed(&mut self, replica: usize, leader: Option<usize>) {
        let election = &mut self.replicas[replica].election;
        election.term = None;
        election.leader = leader;
        election.writes.clear();
        let leader = leader.filter(|leader| *leader != replica).map(address);
        self.core_event(replica, Event::Deposed { leader });
    }

    /// The core gives leadership up.
    pub(super) fn step_down(&mut self, replica: usize, above: Option<Epoch>) {
        self.cover.hit("stepped down");
        let election = &mut self.replicas[replica].election;
        election.above = election.above.max(above.unwrap_or_default());
        election.writes.clear();
        if let Some(term) = election.term.take() {
            self.ask_store(replica, Request::Release(term.epoch));
        }
    }

    /// A look at the store, again and again.
    pub(super) fn poll_store(&mut self, replica: usize) {
        let run = self.replicas[replica].run;
        self.ask_store(replica, Request::Read);
        let every = self.renew_every();
        let jitter = self.rng.u64(every / 2..=every);
        self.after(jitter, Happening::Poll { replica, run });
    }

    /// The core wants exposures written down.
    pub(super) fn register(&mut self, replica: usize, entries: Vec<(WorkerKey, Exposure)>) {
        self.write_down(replica, |epoch, number| Request::Write(epoch, number, entries));
    }

    /// The core wants workers struck.
    pub(super) fn strike(&mut self, replica: usize, keys: Vec<WorkerKey>) {
        self.cover.hit("unregistered");
        self.write_down(replica, |epoch, number| Request::Strike(epoch, number, keys));
    }

    fn write_down(&mut self, replica: usize, request: impl FnOnce(Epoch, u64) -> Request) {
        let election = &mut self.replicas[replica].election;
        let Some(term) = election.term else { return };
        election.number += 1;
        let number = election.number;
        election.writes.push_back((number, request(term.epoch, number)));
        if election.writes.len() == 1 {
            self.send_write(replica);
        }
    }

    fn send_write(&mut self, replica: usize) {
        let run = self.replicas[replica].run;
        let Some((number, request)) = self.replicas[replica].election.writes.front().cloned()
        else {
            return;
        };
        self.ask_store(replica, request);
        let patience = self.profile.slow_max * 2 + 50 * MS;
        self.after(patience, Happening::Retry { replica, run, number });
    }

    /// A registration was not answered: once more.
    pub(super) fn retry_write(&mut self, replica: usize, number: u64) {
        let election = &self.replicas[replica].election;
        if election.writes.front().is_some_and(|(first, _)| *first == number) {
            self.send_write(replica);
        }
    }
}

/// A replica's address.
pub(super) fn address(replica: usize) -> String {
    format!("c{replica}:7400")
}
