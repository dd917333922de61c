//! How many workers a fleet is to have. A class has more of them at once where its load asks for
//! more, and fewer only when every recommendation of a whole window was lower: the highest of them
//! holds. A new leader's window begins anew, with what is there.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use leasehold_coordinator_core::view::ClassView;
use leasehold_types::{Moment, WorkerName};

use crate::spec::manifest::WorkerClassSpec;

/// How many workers a fleet is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scale {
    /// So many replicas.
    pub(super) replicas: u32,
    /// The arithmetic, for people; none where it is nobody's news.
    pub(super) why: Option<String>,
    /// What keeps it from what was asked for: a reason in one word, and a sentence.
    pub(super) limited: Option<(&'static str, String)>,
    /// The only workers that may be taken away, in this order; none where any may be.
    pub(super) spare: Option<Vec<WorkerName>>,
}

impl Scale {
    /// So many replicas, and nothing more to say of it.
    pub(super) fn of(replicas: u32) -> Self {
        Self { replicas, ..Self::default() }
    }
}

/// The recommendations of the last while: those that are the highest from their time on.
#[derive(Debug, Default)]
pub(super) struct Window(VecDeque<(Moment, u32)>);

impl Window {
    /// The highest recommendation within `span`, this one included. What there is counts as
    /// recommended when the window begins.
    fn highest(&mut self, wanted: u32, current: u32, span: Duration, now: Moment) -> u32 {
        if self.0.is_empty() {
            self.0.push_back((now, current));
        }
        // One that is not above a later one never decides again, so that there are as many at most
        // as different numbers.
        while self.0.back().is_some_and(|(_, before)| *before <= wanted) {
            self.0.pop_back();
        }
        self.0.push_back((now, wanted));
        while self.0.len() > 1 && self.0.front().is_some_and(|(at, _)| now.since(*at) >= span) {
            self.0.pop_front();
        }
        self.0.front().map_or(wanted, |(_, highest)| *highest)
    }
}

/// Decides for a class whose workload has `current` replicas; none where there is no workload yet.
/// Nobody may be taken away before it is known who can be spared.
pub(super) fn decide(
    spec: &WorkerClassSpec,
    view: &ClassView,
    current: Option<u32>,
    window: &mut Window,
    now: Moment,
) -> Scale {
    let (least, most) = (spec.min_replicas.min(spec.max_replicas), spec.max_replicas);
    let (asked, mut why) = match spec.replicas {
        Some(replicas) => (replicas, format!("spec.replicas is {replicas}")),
        None => by_load(spec, view),
    };
    let mut limited = None;
    if asked > most {
        let _ = write!(why, "; maxReplicas is {most}");
        limited = Some(("TooManyReplicas", why.clone()));
    } else if asked < least {
        let _ = write!(why, "; minReplicas is {least}");
        // Little load is no reason to look at a class.
        limited = spec.replicas.map(|_| ("TooFewReplicas", why.clone()));
    }
    let replicas = match spec.replicas {
        Some(_) => {
            *window = Window::default();
            asked.clamp(least, most)
        }
        None => {
            let wanted = view.workers_wanted;
            let current = current.unwrap_or(wanted);
            let highest = window.highest(wanted, current, spec.scaling.stabilization.0, now);
            // The window holds back a scale-in, and makes no scale-out.
            wanted.max(highest.min(current)).clamp(least, most)
        }
    };
    Scale { replicas, why: Some(why), limited, spare: Some(Vec::new()) }
}

/// What the load of a class asks for, whatever the limits are, and how that comes.
fn by_load(spec: &WorkerClassSpec, view: &ClassView) -> (u32, String) {
    let ClassView { capacity, request, workers_needed, .. } = view;
    let target = spec.scaling.target_utilization;
    let room = u128::from(capacity.milli()) * u128::from(target);
    let by_target = (u128::from(request.milli()) * 100).div_ceil(room.max(1));
    let by_target = u32::try_from(by_target).unwrap_or(u32::MAX);
    let mut why =
        format!("request {request}, capacity {capacity}, target {target}%: {by_target} workers");
    if *workers_needed > by_target {
        let _ = write!(why, "; its pipelines fit into {workers_needed} at least");
    }
    (by_target.max(*workers_needed), why)
}

#[cfg(test)]
#[path = "scaling_tests.rs"]
mod tests;
