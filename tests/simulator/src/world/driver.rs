//! How a replica's driver runs: turns take time, each event is stamped when it arrives, and the
//! core's effects are carried out at the end of a turn.

use std::sync::Arc;

use leasehold_coordinator_core::effect::{Effect, Notice};
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::turn::{Turn, Watchdog};
use leasehold_types::mutation::Mutation;
use leasehold_types::{Epoch, Moment, mutation};

use crate::system::clock::{MS, Real};
use crate::system::driver::{Phase, Taking};
use crate::system::profile::TurnCosts;
use crate::world::queue::SimEvent;
use crate::world::{WAKE_GAP_MIN, World, labels as names};

impl World {
    /// An event reaches a replica's driver.
    pub(super) fn core_event(&mut self, replica: usize, event: Event) {
        if !self.replicas[replica].is_up() {
            return;
        }
        let now = self.view().local_of_replica(replica);
        let driver = &mut self.replicas[replica].driver;
        match event {
            Event::Hello(..)
            | Event::Report(..)
            | Event::Beat(..)
            | Event::Closed(_)
            | Event::Sent(_) => driver.sessions.push_back((now, event)),
            Event::Drain(_) | Event::Undrain(_) => driver.orders.push_back(event),
            Event::Wake => {}
            Event::Desired(_)
            | Event::Elected(_)
            | Event::NamespacesRead(_)
            | Event::Renewed(_)
            | Event::Deposed { .. }
            | Event::TermStands { .. }
            | Event::Registered(_)
            | Event::Unregistered(_)
            | Event::Removed(_)
            | Event::Avoid(_)
            | Event::Gone(_) => driver.platform.push_back(event),
        }
        self.wake_driver(replica);
    }

    /// Whether a replica's driver makes progress. The links of one that does
    /// not are ended by its watchdog.
    pub(super) fn progresses(&mut self, replica: usize) -> bool {
        let node = &self.replicas[replica];
        let idle = matches!(node.driver.phase, Phase::Idle);
        if idle || self.t < node.driver.moved_at + Watchdog::patience().as_nanos() as Real {
            return true;
        }
        self.coverage.hit("fault: driver hangs");
        let run = node.run;
        for link in 0..self.network.links.len() {
            let line = &self.network.links[link];
            if line.replica == replica && line.replica_run == run && line.replica_open {
                self.close_conn(link);
                self.core_event(replica, Event::Closed(ConnId(link as u64)));
            }
        }
        false
    }

    /// A driver that waits begins a turn, at once or a little later.
    fn wake_driver(&mut self, replica: usize) {
        let node = &mut self.replicas[replica];
        if !matches!(node.driver.phase, Phase::Idle) {
            return;
        }
        node.driver.phase = Phase::Due;
        // A driver that waited made progress: it wakes far more often than the watchdog's patience.
        node.driver.moved_at = self.t;
        let run = node.run;
        match self.rng.u8(0..8) {
            0 => {
                let pause = self.rng.u64(0..5 * MS);
                self.after(pause, SimEvent::Turn { replica, run });
            }
            _ => self.turn(replica),
        }
    }

    /// Runs a driver until it waits or something takes time.
    pub(super) fn turn(&mut self, replica: usize) {
        loop {
            let now = self.view().local_of_replica(replica);
            let (t, run) = (self.t, self.replicas[replica].run);
            let node = &mut self.replicas[replica];
            if node.core.is_none() {
                return;
            }
            let read = node.driver.read_by(node.clock, node.paused_until, t);
            node.driver.moved_at = t;
            let cost = match &mut node.driver.phase {
                Phase::Idle => return,
                Phase::Due => {
                    node.driver.began = t;
                    let turn = Turn::begin(now);
                    let taking = Taking { turn, read, platform: 0, orders: 0 };
                    node.driver.phase = Phase::Taking(taking);
                    self.pause_of_turn(replica)
                }
                Phase::Taking(taking) => {
                    let mut taking = *taking;
                    let next = node.driver.next(&mut taking, now);
                    node.driver.phase = Phase::Taking(taking);
                    match next {
                        Some((at, event)) => self.take_event(replica, event, at),
                        None => {
                            node.driver.phase = Phase::Settled;
                            let heard = node.driver.taken.heard(taking.read);
                            self.settle(replica, now, heard) + self.lose_and_retake_term(replica)
                        }
                    }
                }
                Phase::Settled => {
                    node.driver.end_turn(self.profile.ttl_real(), t);
                    self.carry_out(replica);
                    self.after_settle(replica);
                    let node = &mut self.replicas[replica];
                    let more = node.core.as_ref().is_some_and(|core| core.has_more());
                    if !node.driver.waits() && !more {
                        return;
                    }
                    node.driver.phase = Phase::Due;
                    if more {
                        self.coverage.hit("work went on in the next turn");
                        WAKE_GAP_MIN
                    } else {
                        0
                    }
                }
            };
            if cost > 0 {
                self.after(cost, SimEvent::Turn { replica, run });
                return;
            }
        }
    }

    /// How long this turn pauses before it takes the waiting events.
    fn pause_of_turn(&mut self, replica: usize) -> Real {
        let TurnCosts { long_every, long_max, .. } = self.profile.turns;
        let driver = &mut self.replicas[replica].driver;
        if long_every == 0 || self.t < driver.long_at {
            return 0;
        }
        self.coverage.hit("fault: long turn");
        let pause = self.rng.u64(long_max / 4..=long_max);
        driver.long_at = self.t + pause + self.rng.u64(long_every / 2..=long_every * 3 / 2);
        pause
    }

    /// The core takes an event. Returns how long that takes.
    fn take_event(&mut self, replica: usize, event: Event, at: Moment) -> Real {
        // The core gets no hello or report of a link that is closed by now; a goodbye still counts.
        if let Event::Hello(conn, ..) | Event::Report(conn, _) = &event
            && self.network.links.get(conn.0 as usize).is_some_and(|link| !link.replica_open)
        {
            self.coverage.hit("report of a closed link left out");
            return 0;
        }
        self.trace.say(self.t, || format!("        c{replica} <- {event:?}"));
        self.checks().note_core_event(replica, &event);
        if let Event::Hello(conn, hello, _) = &event {
            self.checks().note_known_term(replica, conn.0 as usize, hello);
        }
        if let Event::Elected(elected) = &event {
            self.checks().check_entries_read(replica, elected);
        }
        let node = &mut self.replicas[replica];
        let Some(core) = node.core.as_mut() else { return 0 };
        let gate = &mut node.driver.gate;
        match &event {
            Event::Elected(elected) => *gate = Some((elected.epoch, elected.until)),
            Event::Renewed(renewed) => {
                if let Some((_, until)) = gate.as_mut().filter(|(of, _)| *of == renewed.epoch) {
                    *until = renewed.until;
                }
            }
            Event::Deposed { .. } => *gate = None,
            _ => {}
        }
        let hello = match &event {
            Event::Hello(_, hello, _) => Some(hello.clone()),
            _ => None,
        };
        core.handle(event, at);
        let work = core.take_cost();
        self.note_effects(replica);
        if let Some(hello) = hello {
            self.checks().note_hello(replica, &hello, at);
            self.checks().check_wait(replica, &hello);
        }
        self.profile.turns.event + self.profile.turns.work * Real::from(work)
    }

    /// The core decides. Returns how long that takes.
    pub(super) fn settle(&mut self, replica: usize, now: Moment, heard: Moment) -> Real {
        let Some(core) = self.replicas[replica].core.as_mut() else { return 0 };
        core.settle(now, heard);
        let work = core.take_cost();
        self.note_effects(replica);
        let took = self.profile.turns.work * Real::from(work);
        if took > self.profile.ttl_real() / 4 {
            self.coverage.hit("fault: long settle");
        }
        took
    }

    /// Notices take effect at once; all other effects are carried out at the end of the turn.
    fn note_effects(&mut self, replica: usize) {
        self.note_desired(replica);
        while let Some(effect) = self.replicas[replica]
            .core
            .as_mut()
            .and_then(leasehold_coordinator_core::Core::poll_effect)
        {
            self.trace.say(self.t, || format!("        c{replica} -> {effect:?}"));
            match effect {
                Effect::Notice(notice) => {
                    self.coverage.hit(names::of_notice(&notice));
                    self.checks().observe_notice(replica, &notice);
                    match &notice {
                        Notice::EpochAhead { worker, seen } => self.claim_lost_term(worker, *seen),
                        Notice::GivenUp { worker, .. } => self.end_given_up(worker),
                        _ => {}
                    }
                }
                effect => {
                    self.checks().check_credits(replica, &effect);
                    self.replicas[replica].driver.effects.push(effect);
                }
            }
        }
    }

    /// Notes the desired state that the core has put in force.
    fn note_desired(&mut self, replica: usize) {
        let node = &mut self.replicas[replica];
        let Some(core) = node.core.as_ref() else { return };
        if !Arc::ptr_eq(&node.in_force, core.desired()) {
            node.in_force = Arc::clone(core.desired());
            node.desired_taken += 1;
            let caps = node.in_force.clusters.iter();
            node.jobs_max = caps.map(|(name, c)| (name.clone(), c.jobs_max)).collect();
        }
    }

    fn carry_out(&mut self, replica: usize) {
        for effect in std::mem::take(&mut self.replicas[replica].driver.effects) {
            self.core_effect(replica, effect);
        }
    }

    /// Whether a grant of this epoch may be written now.
    pub(super) fn gate_is_open(&self, replica: usize, epoch: Epoch) -> bool {
        let now = self.view().local_of_replica(replica);
        let over = |until| now >= until && !mutation::on(Mutation::GrantAfterTerm);
        let gate = self.replicas[replica].driver.gate;
        gate.is_some_and(|(of, until)| of == epoch && !over(until))
    }
}
