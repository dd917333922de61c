//! Checks the protocol's properties. [`Observer`] is what it remembers; [`Checks`] are its
//! methods, which read the system and change only what the observer remembers.
//!
//! Invariant: no core can notice that it is observed.

mod agents;
mod backups;
pub(crate) mod change;
mod convergence;
mod credits;
mod exposures;
mod goodbyes;
mod invariants;
mod pipelines;
mod shares;
mod statements;
mod terms;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::desired::Mode;
use leasehold_coordinator_core::effect::{Freed, Notice};
use leasehold_types::{Epoch, Incarnation, StreamKey, Token, WorkerKey};

pub(crate) use self::agents::BeforeMessage;
pub(crate) use self::invariants::Touched;
use crate::coverage::Coverage;
use crate::observer::backups::RepeatedTerms;
use crate::observer::credits::ReportCredits;
use crate::observer::exposures::SetListHistory;
use crate::observer::goodbyes::AnsweredGoodbyes;
use crate::observer::invariants::PreviousStep;
use crate::observer::pipelines::ReportedStates;
use crate::observer::shares::LoadBounds;
use crate::observer::statements::AgentStatements;
use crate::observer::terms::TermHistory;
use crate::system::View;

/// A property that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name in `docs/SIMULATOR.md`, or "panic".
    pub property: &'static str,
    /// What was seen.
    pub detail: String,
}

/// What the observer remembers.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// The first property that did not hold.
    pub failure: Option<Failure>,
    /// When the last grant, revoke or end of a lease was noticed.
    pub last_change: u64,
    /// Pods whose drain has reached its deadline.
    pub drains_overdue: BTreeSet<usize>,
    /// Streams granted or revoked since the one change of the liveness phase.
    pub streams_changed: BTreeSet<StreamKey>,
    /// Streams that agents gave up since then, as their time was over.
    pub streams_expired: BTreeSet<StreamKey>,
    /// Workers that were lost since then.
    pub lost: BTreeSet<WorkerKey>,
    /// The pool sizes before the failover of the liveness phase, if that is the one change.
    pub slots_before: BTreeMap<usize, u32>,
    /// Smaller sizes that were granted since then.
    pub slots_taken: BTreeMap<usize, u32>,
    /// How much of its shares each worker may use.
    pub load_bounds: LoadBounds,
    /// What agents have reported.
    pub statements: AgentStatements,
    /// The lists of sets that entries name.
    pub set_lists: SetListHistory,
    /// The welcomes that leaders have sent.
    pub credits: ReportCredits,
    /// The agents that have left, as they were told.
    pub goodbyes: AnsweredGoodbyes,
    /// The pod of which the leader's view is compared next.
    pub compared: usize,
    /// The states of pipelines that each replica has reported.
    pub reported_states: BTreeMap<usize, ReportedStates>,
    /// What the invariants knew after the step before.
    pub previous: PreviousStep,
    /// Terms whose number another one had.
    pub repeated_terms: RepeatedTerms,
    /// What was granted and who was welcomed, over all terms.
    pub term_history: TermHistory,
    stream_tokens: BTreeMap<StreamKey, (Token, usize, Incarnation)>,
    pool_tokens: BTreeMap<WorkerKey, Token>,
}

impl Observer {
    /// The newest token under which an agent took a stream.
    pub(crate) fn token_taken(&self, stream: &StreamKey) -> Option<Token> {
        self.stream_tokens.get(stream).map(|(token, ..)| *token)
    }
}

/// The observer at work: what it reads, what it remembers, and what it counts.
#[derive(Debug)]
pub(crate) struct Checks<'a> {
    /// The system now.
    pub view: View<'a>,
    /// What the observer remembers.
    pub observer: &'a mut Observer,
    /// Counts what was checked.
    pub coverage: &'a mut Coverage,
}

impl Checks<'_> {
    /// Notes the first failure.
    pub(crate) fn fail(&mut self, property: &'static str, detail: impl FnOnce() -> String) {
        if self.observer.failure.is_none() {
            let failure = Failure { property, detail: detail() };
            self.view
                .trace
                .say(self.view.t, || format!("VIOLATION {property}: {}", failure.detail));
            self.observer.failure = Some(failure);
        }
    }

    /// S4, S8, S9, S10: no pod may use what a leader frees.
    pub(crate) fn observe_notice(&mut self, replica: usize, notice: &Notice) {
        let leads = self.view.true_leader().filter(|(leader, _)| *leader == replica);
        self.observe_state(replica, notice);
        if let Notice::StreamGranted { worker, stream, token } = notice {
            self.observer.term_history.grant(stream, *token, worker);
        }
        self.check_repeated_grant(replica, notice);
        if let (Notice::Gone(worker), Some(epoch)) = (notice, self.view.replicas[replica].leads()) {
            self.observer.term_history.forget(epoch, worker);
            self.forget_wait(replica, worker);
        }
        match notice {
            Notice::StreamGranted { stream, .. } | Notice::StreamRevoked { stream, .. } => {
                self.observer.last_change = self.view.t;
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
            | Notice::Failing { .. }
            | Notice::Recovered(_)
            | Notice::Gone(_)
            | Notice::Pipeline { .. }
            | Notice::Binding { .. }
            | Notice::Endpoints { .. } => self.observer.last_change = self.view.t,
            Notice::Elected(_)
            | Notice::Deposed(_)
            | Notice::EpochAhead { .. }
            | Notice::EpochRepeated { .. }
            | Notice::NameRefused { .. }
            | Notice::ProtocolViolation { .. } => {}
        }
        if let Notice::GivenUp { worker, .. } = notice {
            self.check_given_up(replica, worker);
        }
        if let Notice::Lost(worker) = notice {
            self.observer.lost.insert(worker.clone());
            self.check_lost(replica, worker);
        }
        let Some((_, epoch)) = leads else { return };
        match notice {
            Notice::StreamFreed { worker, stream, token, how } => {
                let user = (0..self.view.pods.len()).find(|pod| {
                    let node = &self.view.pods[*pod];
                    node.key == *worker && !node.dead && self.view.may_use(*pod, stream, *token)
                });
                let of_older = self.is_of_older(epoch, worker, stream, *token);
                let property = match how {
                    Freed::Expired | Freed::Released if of_older => "S9",
                    Freed::Expired => "S4",
                    Freed::Released => "S10",
                    Freed::Gone => "S2",
                };
                if *how == Freed::Expired && self.is_pinned(replica, stream) {
                    let (stream, token) = (stream.clone(), *token);
                    self.fail("S2", || {
                        format!("c{replica} frees {stream} {token} by time, and its set is pinned")
                    });
                }
                if of_older {
                    self.coverage.hit("checked: an older incarnation's lease ended");
                }
                if let Some(pod) = user {
                    let (stream, token) = (stream.clone(), *token);
                    self.fail(property, || {
                        format!("c{replica} frees {stream} {token} ({how:?}), which p{pod} may use")
                    });
                }
            }
            Notice::StreamGranted { stream, .. } => self.check_unreported(replica, epoch, stream),
            _ => {}
        }
    }

    /// Whether a stream's set is pinned, as far as a replica knows.
    fn is_pinned(&self, replica: usize, stream: &StreamKey) -> bool {
        let core = self.view.replicas[replica].core.as_ref();
        let set = core.and_then(|core| core.desired().sets.get(&stream.set));
        let listed =
            set.is_some_and(|set| set.streams.iter().any(|listed| listed.name == stream.stream));
        listed && set.is_some_and(|set| set.mode == Mode::Pinned)
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
        taken.is_some_and(|(.., by)| self.observer.term_history.knows_newer(epoch, worker, *by))
    }

    /// S8: a leader grants no stream that a pod holds which still obeys a predecessor.
    fn check_unreported(&mut self, replica: usize, epoch: Epoch, stream: &StreamKey) {
        let holder = (0..self.view.pods.len()).find(|pod| {
            let node = &self.view.pods[*pod];
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
                let now = node.clock.local(self.view.t);
                !held.pinned && held.lives(memory.renewed_until, now)
            })
        });
        if let Some(pod) = holder {
            self.fail("S8", || {
                format!(
                    "c{replica} grants {stream} under {epoch}; p{pod} holds it and has not reported"
                )
            });
        }
    }
}
