//! Why a stream is on its worker, or on none.

use leasehold_types::{Moment, StreamKey};

use super::{presence, worker_step};
use crate::core::leader::Query;
use crate::core::leader::views::{reason, stream_view};
use crate::view::{ClaimPhase, Explanation, StreamView};

impl Query<'_> {
    pub(super) fn explain_stream(&self, key: &StreamKey, now: Moment) -> Option<Explanation> {
        let set = self.replica.sets().get(&key.set)?;
        let at = set.position(&key.stream)?;
        let planned = set.slot(at);
        let on = planned.planned_on(&set.spec().cluster, self.ledger).map(|on| &on.name);
        let view = stream_view(key.clone(), set, at, on, self.ledger.claims(key));
        let mut facts = Vec::new();
        match (&view.planned, planned.unplaced()) {
            (Some(worker), _) => facts.push(format!("the plan wants it on {worker}")),
            (None, Some(why)) => facts.push(format!("no worker may have it: {}", reason(why))),
            (None, None) => facts.push("it is not planned yet".into()),
        }
        for claim in &view.claims {
            let ends =
                if claim.timeless { "never ends by time" } else { "ends by time unless renewed" };
            let (worker, token) = (&claim.worker, claim.token);
            let phase = phase(claim.phase);
            facts.push(format!("{worker} may hold it under token {token}: {phase}; {ends}"));
            if let Some(worker) = self.worker(&claim.worker, now) {
                facts.push(presence(&worker));
            }
        }
        let (all, heard) = (self.ledger.unreported(), self.replica.heard());
        if let Some((worker, unreported)) = all.of_set(&key.set, heard) {
            let timeless = unreported.exposure.sets.is_timeless();
            let ends = if timeless {
                "until it reports or is declared gone".into()
            } else {
                format!("for at most {:.1} s more", unreported.until.since(now).as_secs_f64())
            };
            facts.push(format!("{worker} may still hold it: it has not reported, {ends}"));
        }
        if let Some((until, worker)) = all.hold_of(&view.cluster, heard) {
            let left = until.since(now).as_secs_f64();
            facts.push(format!(
                "nothing moves in the cluster before {worker} reports, for at most {left:.1} s"
            ));
        }
        let summary = stream_summary(&view, planned.unplaced().map(reason));
        Some(Explanation { summary, facts, next_step: self.stream_step(&view, now) })
    }

    /// What to do so that a stream gets to where the plan wants it.
    fn stream_step(&self, view: &StreamView, now: Moment) -> String {
        let holders = view.claims.iter().filter_map(|claim| self.worker(&claim.worker, now));
        let steps = holders.map(|holder| worker_step(&holder));
        match (steps.into_iter().find(|step| !step.is_empty()), &view.planned) {
            (Some(step), _) => step,
            (None, None) => {
                format!("see what its workers have: leasehold workers {}", view.cluster)
            }
            (None, Some(_)) => String::new(),
        }
    }
}

fn stream_summary(view: &StreamView, unplaced: Option<&'static str>) -> String {
    let key = &view.key;
    let owner = view.claims.iter().find(|claim| {
        claim.phase == ClaimPhase::Held && Some(&claim.worker.worker) == view.planned.as_ref()
    });
    match (owner, &view.planned, unplaced, view.claims.as_slice()) {
        (Some(owner), ..) => format!("{key} is on {}, as planned", owner.worker.worker),
        (None, Some(to), _, [from, ..]) => {
            format!("{key} goes to {to} once {} has released it", from.worker.worker)
        }
        (None, Some(to), _, []) => format!("{key} waits for {to} to take it"),
        (None, None, Some(why), _) => format!("{key} has no worker: {why}"),
        (None, None, None, _) => format!("{key} is not planned yet"),
    }
}

fn phase(phase: ClaimPhase) -> &'static str {
    match phase {
        ClaimPhase::Held => "owned",
        ClaimPhase::Revoking => "revoked",
        ClaimPhase::Lapsing => "revoked, and no longer renewed",
    }
}
