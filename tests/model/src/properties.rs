//! The properties of the protocol, checked in every state and at every step that may break one.

use std::collections::BTreeSet;

use leasehold_coordinator_core::effect::Freed;
use leasehold_types::{ShareKey, Token};

use crate::scope::NODES;
use crate::state::State;
use crate::step::Step;
use crate::violation::Violation;
use crate::world::World;

impl World {
    /// The first property of states that does not hold.
    pub(crate) fn check(&self, state: &State) -> Option<Violation> {
        self.check_jobs(state)
            .or_else(|| self.check_streams(state))
            .or_else(|| self.check_said(state))
    }

    /// S1 and S2: jobs against the budget, and against the leader's own view.
    fn check_jobs(&self, state: &State) -> Option<Violation> {
        let possible = |pod: usize| self.pod(state, pod).pod.jobs_possible(state.pod_now(pod));
        let sum: u32 = (0..NODES).map(possible).sum();
        let clusters = self.scope.desired.iter().flat_map(|desired| desired.clusters.values());
        let cap = clusters.map(|cluster| cluster.jobs_max).max().unwrap_or(0);
        if sum > cap {
            let detail = format!("{sum} jobs are possible, the budget is {cap}");
            return Some(Violation { property: "S1", detail });
        }
        let leader = self.true_leader(state)?;
        let facts = &self.core(state, leader)?.facts;
        let wrong = (0..NODES).find_map(|pod| {
            let (known, truth) = (facts.committed[pod].unwrap_or(0), possible(pod));
            (known < truth).then_some((pod, known, truth))
        });
        let (pod, known, truth) = wrong?;
        let detail = format!("c{leader} counts {known} slots of w{pod}, which may run {truth}");
        Some(Violation { property: "S2", detail })
    }

    /// S3, S13 and S14: who may use what, and how much that is.
    fn check_streams(&self, state: &State) -> Option<Violation> {
        let mut shares: Vec<(usize, u8, u64)> = Vec::new();
        for pod in 0..NODES {
            let now = state.pod_now(pod);
            for (stream, used) in &self.pod(state, pod).uses {
                if used.until.is_some_and(|until| until <= now) {
                    continue;
                }
                let other = (pod + 1..NODES).find(|other| self.uses(state, *other, *stream, None));
                if let Some(other) = other {
                    let name = &self.stream(*stream).stream;
                    let detail = format!("w{pod} and w{other} may both use {name}");
                    return Some(Violation { property: "S3", detail });
                }
                if self.stream(*stream).set.is_shares()
                    && !shares.contains(&(pod, *stream, used.load))
                {
                    shares.push((pod, *stream, used.load));
                }
            }
        }
        self.check_loads(&shares)
    }

    fn check_loads(&self, shares: &[(usize, u8, u64)]) -> Option<Violation> {
        let desired = &self.scope.desired;
        let clusters = desired.iter().flat_map(|desired| desired.clusters.values());
        let classes = clusters.filter_map(|cluster| cluster.class.as_ref());
        let capacity = classes.map(|class| class.capacity.milli()).max()?;
        for pod in 0..NODES {
            let sum: u64 = shares.iter().filter(|share| share.0 == pod).map(|share| share.2).sum();
            if sum > capacity {
                let detail = format!("w{pod} may take {sum} of {capacity} (thousandths)");
                return Some(Violation { property: "S13", detail });
            }
        }
        let pipelines: BTreeSet<_> =
            desired.iter().flat_map(|desired| desired.pipelines.keys()).collect();
        pipelines.into_iter().find_map(|name| {
            let versions = desired.iter().filter_map(|desired| desired.pipelines.get(name));
            let load = versions.map(|pipeline| pipeline.load.milli()).max().unwrap_or(0);
            // Each pipeline has one node.
            let share = |stream| ShareKey::of(self.stream(stream));
            let of_it = |stream| share(stream).is_some_and(|share| share.pipeline == *name);
            let sum: u64 = shares.iter().filter(|share| of_it(share.1)).map(|share| share.2).sum();
            (sum > load).then(|| {
                let detail = format!("shares of {sum} of {load} (thousandths) are in use");
                Violation { property: "S14", detail }
            })
        })
    }

    /// S16: what an agent has reported as not in effect stays so.
    fn check_said(&self, state: &State) -> Option<Violation> {
        for (pod, stream, token) in &state.seen.ended {
            if self.uses(state, usize::from(*pod), *stream, Some(*token)) {
                let name = &self.stream(*stream).stream;
                let detail = format!("a{pod} gave {name} {token} back, and may use it again");
                return Some(Violation { property: "S16", detail });
            }
        }
        for pod in 0..NODES {
            let said = state.seen.sizes[pod];
            let present = self.pod(state, pod).pod.pool_in_effect();
            if let (Some((token, most)), Some((held, size))) = (said, present)
                && token == held
                && size > most
            {
                let detail = format!("a{pod} said {most} of {token}, and may use {size} again");
                return Some(Violation { property: "S16", detail });
            }
        }
        None
    }

    /// Whether a pod may use a stream now, under this token or any.
    fn uses(&self, state: &State, pod: usize, stream: u8, token: Option<Token>) -> bool {
        let now = state.pod_now(pod);
        self.pod(state, pod).uses.iter().any(|(used, lease)| {
            *used == stream
                && lease.until.is_none_or(|until| now < until)
                && token.is_none_or(|token| token == lease.token)
        })
    }

    /// The replica that really leads, if its core knows: the newest epoch is its own.
    pub(crate) fn true_leader(&self, state: &State) -> Option<usize> {
        let owner = usize::from(state.store.owner?);
        let leads = self.core(state, owner)?.facts.leads?;
        (leads == state.store.epoch).then_some(owner)
    }
}

impl Step<'_> {
    /// S4 and S10: no pod may use what a leader takes for ended.
    pub(crate) fn check_freed(&mut self, replica: usize, stream: u8, token: Token, how: Freed) {
        let leads = self.world.true_leader(&self.state) == Some(replica);
        let user = (0..NODES).find(|pod| self.world.uses(&self.state, *pod, stream, Some(token)));
        let Some(pod) = user.filter(|_| leads) else { return };
        let property = match how {
            Freed::Expired => "S4",
            Freed::Released => "S10",
            Freed::Gone => "S2",
        };
        let name = &self.world.stream(stream).stream;
        let detail = format!("c{replica} frees {name} {token}, which w{pod} may use");
        self.violation.get_or_insert(Violation { property, detail });
    }

    /// S8: a leader grants no stream that a pod holds which still obeys a predecessor.
    pub(crate) fn check_unreported(&mut self, replica: usize, stream: u8) {
        if self.world.true_leader(&self.state) != Some(replica) {
            return;
        }
        let epoch = self.state.store.epoch;
        let unreported = (0..NODES).find(|pod| {
            let now = self.state.pod_now(*pod);
            let entry = self.world.pod(&self.state, *pod);
            let older = entry.pod.memory.epoch.is_some_and(|obeyed| obeyed < epoch);
            let mut uses = entry.uses.iter();
            let in_time = |until: Option<_>| until.is_some_and(|until| now < until);
            older && uses.any(|(used, lease)| *used == stream && in_time(lease.until))
        });
        if let Some(pod) = unreported {
            let name = &self.world.stream(stream).stream;
            let detail = format!(
                "c{replica} grants {name} under {epoch}; w{pod} holds it and has not reported"
            );
            self.violation.get_or_insert(Violation { property: "S8", detail });
        }
    }

    /// S5: tokens of a stream grow.
    pub(crate) fn note_taken(&mut self, pod: usize, stream: u8, token: Token) {
        let streams = &mut self.state.seen.streams;
        let Some(last) = streams.iter_mut().find(|taken| taken.0 == stream) else {
            streams.push((stream, token, pod as u8));
            return;
        };
        let before = *last;
        *last = (stream, token, pod as u8);
        if token < before.1 || (token == before.1 && usize::from(before.2) != pod) {
            let name = &self.world.stream(stream).stream;
            let detail =
                format!("a{pod} takes {name} under {token}; a{} had {}", before.2, before.1);
            self.violation.get_or_insert(Violation { property: "S5", detail });
        }
    }

    /// S5: tokens of a pool grow.
    pub(crate) fn note_pool(&mut self, pod: usize, token: Token) {
        let before = self.state.seen.pools[pod].replace(token);
        if let Some(before) = before.filter(|before| token < *before) {
            let detail = format!("a{pod} takes a pool under {token} after {before}");
            self.violation.get_or_insert(Violation { property: "S5", detail });
        }
    }

    /// What a message says is not in effect any more.
    pub(crate) fn note_said(&mut self, pod: usize, message: u32) {
        let up = self.world.ups.get(message);
        for (stream, token) in &up.released {
            let ended = &mut self.state.seen.ended;
            match ended.iter_mut().find(|end| (usize::from(end.0), end.1) == (pod, *stream)) {
                Some(known) => known.2 = known.2.max(*token),
                None => ended.push((pod as u8, *stream, *token)),
            }
        }
        if let Some((token, size)) = up.pool {
            let said = &mut self.state.seen.sizes[pod];
            let most = said.filter(|pool| pool.0 == token).map_or(size, |pool| pool.1.min(size));
            *said = Some((token, most));
        }
    }
}
