//! Claims: stream leases that may be in force. A stream is granted only while it has no claim.

use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{HeldStream, StreamState};
use leasehold_types::{GrantNumber, Incarnation, Load, Moment, StreamKey, Token, WorkerKey};

use super::{Account, EndedLease, Ledger, faults};

/// A stream lease that may be in force. There may be a million of them: a claim shares the key of
/// its worker with the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) worker: Arc<WorkerKey>,
    /// The agent that holds it.
    pub(crate) incarnation: Incarnation,
    pub(crate) token: Token,
    /// It is never freed by time.
    pub(crate) timeless: bool,
    /// A share's load, as long as the token lasts; none for an ordinary stream.
    pub(crate) load: Option<Load>,
    /// The grant that named it; 0 where its agent has reported it.
    pub(crate) sent_in: GrantNumber,
    /// The newest report that lists it.
    pub(crate) listed_in: ReportNumber,
    pub(crate) phase: Phase,
}

/// Numbers the reports of a term, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportNumber(pub(super) u64);

impl ReportNumber {
    /// Stands for no report.
    const NONE: Self = Self(0);
}

/// The phase of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is owned; renewals cover it.
    Held,
    /// It was revoked; renewals cover it until the deadline.
    Revoking { deadline: Moment },
    /// It was revoked; nothing renews it.
    Lapsing { free_at: Moment },
    /// An earlier incarnation has it; nothing renews it, and it cannot be revoked.
    Orphaned { free_at: Moment },
}

/// The start of a report's adoption, with the facts of the account before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdoptionStart {
    pub(crate) report: ReportNumber,
    /// The worker had no account before.
    pub(crate) new: bool,
    /// When every lease of it that ends by time would have ended.
    pub(crate) old_end: Moment,
}

/// Decides what happens to claims that a report does not list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AbsentClaims {
    pub(crate) report: ReportNumber,
    /// The agent that reports.
    pub(crate) incarnation: Incarnation,
    /// The agent's journal covers everything from this agent on.
    pub(crate) knows_from: Incarnation,
    /// Nothing is left of this earlier one.
    pub(crate) left: Option<Incarnation>,
    /// Earlier agents' leases may last until then.
    pub(crate) orphans_end: Moment,
}

impl Ledger {
    /// The streams that a worker has a claim on, in order: all, or those after this one.
    pub(crate) fn streams_of<'a>(
        &'a self,
        key: &'a WorkerKey,
        after: Option<&'a StreamKey>,
    ) -> impl Iterator<Item = &'a StreamKey> {
        let claims = &self.claims;
        let slots = self.account(key).map_or(&[][..], |account| account.streams.as_slice());
        let first =
            after.map_or(0, |after| slots.partition_point(|slot| claims.stream(*slot) <= after));
        slots[first..].iter().map(move |slot| claims.stream(*slot))
    }

    /// The claims on a stream.
    pub(crate) fn claims(&self, stream: &StreamKey) -> &[Claim] {
        self.claims.get(stream)
    }

    /// The claim that the worker's present agent has on a stream.
    pub(crate) fn claim(&self, stream: &StreamKey, key: &WorkerKey) -> Option<&Claim> {
        self.claims(stream).iter().find(|claim| *claim.worker == *key && !claim.is_orphaned())
    }

    /// The claim that the worker's present agent has on a stream goes on in this phase.
    pub(crate) fn set_phase(&mut self, stream: &StreamKey, key: &WorkerKey, phase: Phase) {
        let mut claims = self.claims.get_mut(stream).iter_mut();
        let claim = claims.find(|claim| *claim.worker == *key && !claim.is_orphaned());
        if let Some(claim) = claim {
            claim.phase = phase;
        }
    }

    /// Whether no worker can hold the stream.
    pub(crate) fn is_free(&self, stream: &StreamKey, now: Moment) -> bool {
        let unclaimed = self.claims(stream).is_empty() || faults::grants_before_release();
        unclaimed && self.unreported().is_heard_of(stream, now)
    }

    /// Grants a free stream to the account's agent; a share, with its load.
    pub(crate) fn grant_stream(
        &mut self,
        stream: &StreamKey,
        key: &WorkerKey,
        incarnation: Incarnation,
        timeless: bool,
        load: Option<Load>,
    ) -> Token {
        let token = self.next_token();
        let sent_in =
            self.accounts.get(key).map_or(GrantNumber(0), |account| account.number.next());
        let (worker, phase) = (self.accounts.shared_key(key), Phase::Held);
        let listed_in = ReportNumber::NONE;
        let claim = Claim { worker, incarnation, token, timeless, load, sent_in, listed_in, phase };
        self.add_claim(stream, claim);
        token
    }

    /// Begins to adopt an agent's report. Until all of it is adopted, no lease of its worker is
    /// freed by time.
    pub(crate) fn begin_adoption(
        &mut self,
        key: &WorkerKey,
        incarnation: Incarnation,
        ttl: Duration,
        now: Moment,
    ) -> AdoptionStart {
        let (new, old_end) = (self.account(key).is_none(), self.free_at(key));
        let mut account = self.open(key, now);
        if new || faults::counts_known_agent_as_fresh() {
            account.fresh_since = Some(incarnation);
        }
        account.adopting = true;
        account.heard = account.heard.max(now);
        // Until the first grant its silence is measured against the lease that it would get.
        account.ttl = account.ttl.max(ttl);
        drop(account);
        self.reports.0 += 1;
        AdoptionStart { report: self.reports, new, old_end }
    }

    /// Ends a worker's claims on a stream that its journal covers and its report does not list.
    /// Claims of earlier agents can no longer be asked for.
    pub(crate) fn end_absent(
        &mut self,
        key: &WorkerKey,
        stream: &StreamKey,
        absent: &AbsentClaims,
    ) -> Vec<EndedLease> {
        let incarnation = absent.incarnation;
        let own = |claim: &Claim| {
            claim.incarnation == incarnation
                || claim.incarnation >= absent.knows_from
                || Some(claim.incarnation) == absent.left
                || faults::new_incarnation_frees()
        };
        let is_absent = |claim: &Claim| claim.listed_in != absent.report;
        for claim in self.claims.get_mut(stream) {
            let earlier = *claim.worker == *key && claim.incarnation != incarnation;
            if earlier && !own(claim) && is_absent(claim) {
                let free_at = claim.free_at().unwrap_or(Moment::NEVER);
                claim.phase = Phase::Orphaned { free_at: free_at.min(absent.orphans_end) };
            }
        }
        self.remove_claims(stream, key, |claim| own(claim) && is_absent(claim))
    }

    /// Adopts the streams that an agent reports; returns how many further claims the report lists.
    /// A share without a load counts with all of `capacity`.
    ///
    /// A reported lease of this term without a claim was already freed, and so was an earlier one
    /// of an agent that has reported in this term: the report is older than the end of the lease.
    /// Another worker may have owned the stream since, under a higher token, so it is revoked.
    pub(crate) fn adopt_streams(
        &mut self,
        key: &WorkerKey,
        incarnation: Incarnation,
        report: ReportNumber,
        held: &[HeldStream],
        stops_worker: bool,
        capacity: Load,
    ) -> usize {
        let stops_worker = stops_worker || faults::frees_leases_of_unstoppable_workers();
        let (epoch, free_at) = (self.epoch, self.free_at(key));
        let is_known =
            self.account(key).is_some_and(|account| account.incarnation == Some(incarnation));
        let worker = self.accounts.shared_key(key);
        let mut account = self.accounts.get_mut(key);
        let mut listed = 0;
        // A stream that a predecessor revoked still counts as held; the snapshot that follows
        // lists it so.
        for HeldStream { stream, token, pinned, load, revoked: _ } in held {
            let timeless = *pinned || !stops_worker;
            let is_share = stream.set.is_shares();
            // Nothing says how much of the worker's capacity a share without a load takes.
            let load = is_share.then(|| {
                if faults::adopts_without_load() { Load::ZERO } else { load.unwrap_or(capacity) }
            });
            let slot = self.claims.change_or_add(stream, |claims| {
                let known =
                    claims.iter_mut().find(|claim| *claim.worker == *key && claim.token == *token);
                let Some(claim) = known else {
                    let ended = token.epoch == epoch || is_known;
                    let phase = if ended && !faults::holds_ended_lease_of_late_report() {
                        Phase::Lapsing { free_at }
                    } else {
                        Phase::Held
                    };
                    let (worker, token) = (Arc::clone(&worker), *token);
                    let (sent_in, listed_in) = (GrantNumber(0), report);
                    listed += 1;
                    return Some(Claim {
                        worker,
                        incarnation,
                        token,
                        timeless,
                        load,
                        sent_in,
                        listed_in,
                        phase,
                    });
                };
                claim.incarnation = incarnation;
                claim.timeless |= timeless;
                if let Some(account) = account.as_mut() {
                    account.claims_timeless(&stream.set, timeless);
                }
                claim.sent_in = GrantNumber(0);
                if claim.is_orphaned() {
                    claim.phase = Phase::Held;
                }
                listed += usize::from(claim.listed_in != report);
                claim.listed_in = report;
                None
            });
            if let Some((slot, account)) = slot.zip(account.as_mut()) {
                account.enter_stream(slot, |other| self.claims.stream(other).cmp(stream));
                account.claims(&stream.set, timeless, load);
            }
        }
        listed
    }

    /// From now on no claim on a stream ends by time; returns the workers for whose claims this is
    /// new.
    pub(crate) fn make_timeless(&mut self, stream: &StreamKey) -> Vec<Arc<WorkerKey>> {
        if self.claims(stream).iter().all(|claim| claim.timeless) {
            return Vec::new();
        }
        let claims = self.claims.get_mut(stream).iter_mut().filter(|claim| !claim.timeless);
        let changed = claims.map(|claim| {
            claim.timeless = true;
            Arc::clone(&claim.worker)
        });
        let changed: Vec<_> = changed.collect();
        for key in &changed {
            if let Some(mut account) = self.accounts.get_mut(key) {
                account.claims_timeless(&stream.set, true);
            }
        }
        changed
    }

    /// The agent has given a stream back. Only the lease with this token ends.
    pub(crate) fn release(
        &mut self,
        key: &WorkerKey,
        stream: &StreamKey,
        token: Token,
    ) -> Vec<EndedLease> {
        let any = faults::any_release_frees();
        self.remove_claims(stream, key, |claim| claim.token == token || any)
    }

    /// Ends a worker's claims that only grants after `applied` name. Its agent leaves: it applies
    /// nothing more that was sent on this link.
    pub(crate) fn release_unapplied(
        &mut self,
        key: &WorkerKey,
        applied: GrantNumber,
    ) -> Vec<EndedLease> {
        let all = faults::goodbye_frees_applied();
        let account = self.accounts.get(key);
        if !account.is_some_and(|account| account.streams_sent_in > applied || all) {
            return Vec::new();
        }
        let streams: Vec<_> = self.streams_of(key, None).cloned().collect();
        let ended = streams.iter().flat_map(|stream| {
            self.remove_claims(stream, key, |claim| claim.sent_in > applied || all)
        });
        ended.collect()
    }

    /// Ends the worker's claims on a stream whose time is surely over. Keeps claims that end later,
    /// and those for which leadership must be confirmed first.
    pub(crate) fn free_by_time(&mut self, stream: &StreamKey, now: Moment) -> Vec<EndedLease> {
        let claims = self.claims(stream).iter();
        let over = claims.filter(|claim| {
            let free_at = self.claim_free_at(claim);
            free_at.is_some_and(|at| at <= now && self.confirmed_since(at))
        });
        let over: Vec<_> = over.map(|claim| (Arc::clone(&claim.worker), claim.token)).collect();
        let ended = over.into_iter().flat_map(|(worker, token)| {
            self.remove_claims(stream, &worker, |claim| claim.token == token)
        });
        ended.collect()
    }

    /// The claims that a worker's present agent has, in order. A snapshot lists lapsing claims
    /// again, so their end moves: an agent that missed the first message about it counts the lease
    /// from the beat that the snapshot echoes.
    pub(crate) fn claims_for_snapshot(&mut self, key: &WorkerKey) -> Vec<(StreamKey, Claim)> {
        let latest = self.free_at(key);
        let Some(account) = self.accounts.get(key) else { return Vec::new() };
        let claims = account.streams.iter().filter_map(|slot| {
            let (stream, claims) = self.claims.slot_mut(*slot);
            let mut mine = None;
            for claim in claims.iter_mut().filter(|claim| *claim.worker == *key) {
                if let Phase::Lapsing { free_at } = &mut claim.phase
                    && !faults::keeps_end_of_lapse()
                {
                    *free_at = latest.max(*free_at);
                }
                if mine.is_none() && !claim.is_orphaned() {
                    mine = Some((stream.clone(), claim.clone()));
                }
            }
            mine
        });
        claims.collect()
    }

    /// When every lease of a worker on a stream has surely ended if its agent stays silent;
    /// [`Moment::NEVER`] for leases that never end by time, and none where it can have no lease.
    pub(crate) fn outstanding_until(&self, key: &WorkerKey, stream: &StreamKey) -> Option<Moment> {
        let claims = self.claims(stream).iter().filter(|claim| *claim.worker == *key);
        let ends = claims.map(|claim| self.claim_free_at(claim).unwrap_or(Moment::NEVER));
        ends.max().max(self.unreported().stream_until(key, stream))
    }

    /// When a claim's time is surely over; none for a claim that never ends by time, and while a
    /// report of its agent is being adopted.
    pub(crate) fn claim_free_at(&self, claim: &Claim) -> Option<Moment> {
        let free_at = claim.free_at().unwrap_or_else(|| self.free_at(&claim.worker));
        let timeless = claim.timeless && !faults::frees_timeless();
        let account = self.accounts.get(&claim.worker);
        let adopting = account.is_some_and(|account| account.adopting);
        (!timeless && !adopting).then_some(free_at)
    }

    /// When every lease of a worker that ends by time has surely ended, if its agent stays silent.
    pub(crate) fn free_at(&self, key: &WorkerKey) -> Moment {
        let Some(account) = self.accounts.get(key) else { return Moment::EARLIEST };
        if faults::frees_without_margin() {
            account.heard + account.ttl / 2
        } else {
            account.heard + self.bounds.outlast(account.ttl)
        }
    }

    /// Ends all of a worker's claims on a stream, because the worker is gone.
    pub(crate) fn end_all(&mut self, stream: &StreamKey, key: &WorkerKey) -> Vec<EndedLease> {
        self.remove_claims(stream, key, |_| true)
    }

    pub(super) fn remove_claims(
        &mut self,
        stream: &StreamKey,
        key: &WorkerKey,
        which: impl Fn(&Claim) -> bool,
    ) -> Vec<EndedLease> {
        // A predecessor may grant a worker's streams to others until its own term ends, once it
        // learns that the worker is gone.
        let outlives = |account: &Account| account.heard >= self.predecessor_end;
        let only_here = self.accounts.get(key).is_some_and(outlives);
        let gone = |claim: &Claim| *claim.worker == *key && which(claim);
        let removed = self.claims.remove(stream, gone);
        if removed.is_empty() {
            return Vec::new();
        }
        let only_owner = only_here || removed.iter().any(|claim| claim.token.epoch == self.epoch);
        if self.claims(stream).is_empty()
            && (only_owner || faults::counts_stream_as_known_before_end())
        {
            self.unreported.record_known(stream);
        }
        let ended = removed.len();
        let left = self.claims(stream).iter().any(|claim| *claim.worker == *key);
        let unloaded: Load = removed.iter().filter_map(|claim| claim.load).sum();
        if let Some(mut account) = self.accounts.get_mut(key) {
            account.load -= unloaded;
            account.claims_less(&stream.set, ended);
            if !left {
                account.remove_stream(|other| self.claims.stream(other).cmp(stream));
            }
        }
        let ended = removed.into_iter().map(|claim| EndedLease {
            stream: stream.clone(),
            worker: Arc::unwrap_or_clone(claim.worker),
            token: claim.token,
        });
        ended.collect()
    }

    fn add_claim(&mut self, stream: &StreamKey, claim: Claim) {
        let (worker, timeless, load) = (Arc::clone(&claim.worker), claim.timeless, claim.load);
        let slot = self.claims.add(stream, claim);
        if let Some(mut account) = self.accounts.get_mut(&worker) {
            account.enter_stream(slot, |other| self.claims.stream(other).cmp(stream));
            account.claims(&stream.set, timeless, load);
        }
    }
}

impl Claim {
    /// The state that a message gives it; none for a claim that the present agent does not have.
    pub(crate) fn state(&self, now: Moment) -> Option<StreamState> {
        match self.phase {
            Phase::Held => Some(StreamState::Held { pinned: self.timeless }),
            Phase::Revoking { deadline } => {
                Some(StreamState::Revoked { deadline: deadline.since(now), renewed: true })
            }
            Phase::Lapsing { .. } => {
                Some(StreamState::Revoked { deadline: Duration::ZERO, renewed: false })
            }
            Phase::Orphaned { .. } => None,
        }
    }

    pub(crate) fn is_orphaned(&self) -> bool {
        matches!(self.phase, Phase::Orphaned { .. })
    }

    fn free_at(&self) -> Option<Moment> {
        match self.phase {
            Phase::Held | Phase::Revoking { .. } => None,
            Phase::Lapsing { free_at } | Phase::Orphaned { free_at } => Some(free_at),
        }
    }
}
