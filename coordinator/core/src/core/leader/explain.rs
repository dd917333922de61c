//! Explains why a worker holds its leases and why a stream is on its worker: the facts in the order
//! in which they decide.

mod cluster;
mod stream;

use leasehold_types::duration::format_short;
use leasehold_types::message::DrainPhase;
use leasehold_types::{ClusterName, Moment, StreamKey, Version, WorkerKey, counted};

use super::Query;
use super::pool_targets::pool_shares;
use crate::core::Core;
use crate::desired::RolloutOrder;
use crate::ledger::Account;
use crate::observed::Worker;
use crate::view::{Explanation, PlannedPool, Presence, RefusedAgentView, WhatIf, WorkerView};

impl Core {
    /// Why a worker holds its leases; none if the worker is not known.
    #[must_use]
    pub fn explain_worker(&self, key: &WorkerKey, now: Moment) -> Option<Explanation> {
        self.query()?.explain_worker(key, now)
    }

    /// Why a stream is on its worker; none if no manifest lists it, or this replica does not lead.
    #[must_use]
    pub fn explain_stream(&self, key: &StreamKey, now: Moment) -> Option<Explanation> {
        self.query()?.explain_stream(key, now)
    }
}

impl Query<'_> {
    fn explain_worker(&self, key: &WorkerKey, now: Moment) -> Option<Explanation> {
        let view = self.worker(key, now)?;
        let cluster = self.clusters.get(&key.cluster)?;
        let ledger = self.ledger;
        let committed = ledger.accounts().committed(&key.cluster);
        let spec = cluster.spec();
        let mut facts = vec![presence(&view)];
        facts.extend(meanwhile(&view).filter(|_| spec.class.is_none()));
        facts.extend(self.earlier_agent_fact(&view, now));
        facts.extend(version_fact(&view));
        facts.extend(view.failure.as_ref().map(|failure| format!("its agent says: {failure}")));
        facts.extend(view.refused_agent.as_ref().map(refused_fact));
        for (former, account) in ledger.accounts().former_of(key) {
            let slots = counted(account.committed(), "slot");
            let streams = counted(account.stream_count(), "stream");
            let former = &former.worker;
            facts.push(format!(
                "{former} had its name before: {slots} and {streams} may be in use there"
            ));
        }
        match &spec.class {
            Some(class) => facts.push(self.load_fact(&view, class)),
            None if spec.jobs_max == 0 && committed == 0 => {
                facts.push("its cluster runs no jobs: it has no maxJobs, or 0".into());
            }
            None => facts.extend(self.generation_fact(&view).into_iter().chain([
                format!(
                    "the plan wants a pool of {}, {} is granted, {} is in effect, {} may be in use",
                    view.wanted, view.granted, view.in_effect, view.committed
                ),
                format!(
                    "the cluster's budget is {}, at most {} a worker; {committed} may be in use",
                    counted(spec.jobs_max, "job"),
                    spec.jobs_per_worker_max
                ),
            ])),
        }
        if let Some((until, worker)) =
            ledger.unreported().hold_of(&key.cluster, self.replica.heard())
        {
            let left = until.since(now).as_secs_f64();
            facts.push(format!(
                "nothing grows in the cluster before {worker} reports, for at most {left:.1} s"
            ));
        }
        let account = ledger.account(key)?;
        if let Some(unaccounted) = account.unaccounted() {
            facts.push(format!(
                "slots that count as used, because its earlier agent may still use them: {}",
                unaccounted.slots
            ));
        }
        if account.entry().next().is_some() {
            facts.push("its stored entry is being updated; grants wait for that".into());
        }
        let summary = match (overdue_summary(&view), &spec.class) {
            (Some(summary), _) => summary,
            (None, Some(_)) => share_summary(&view),
            (None, None) => self.worker_summary(&view, committed),
        };
        match spec.class {
            Some(_) => facts.extend(self.share_facts(key)),
            None => facts.push(format!("it owns {}", counted(view.streams, "stream"))),
        }
        let former = ledger.accounts().former_of(key).filter_map(|(key, _)| self.worker(key, now));
        let later =
            [drain_step(&view), name_step(&view), self.generation_step(&view), update_step(&view)];
        let steps = std::iter::once(view).chain(former).map(|view| worker_step(&view));
        let next_step = steps.chain(later).find(|step| !step.is_empty());
        let next_step = next_step.unwrap_or_default();
        Some(Explanation { summary, facts, next_step })
    }

    /// That leases of an earlier agent may last which the present one cannot report, if they may. A
    /// worker that has nothing left leaves only after them.
    fn earlier_agent_fact(&self, view: &WorkerView, now: Moment) -> Option<String> {
        let unreported = self.ledger.unreported();
        let exposure = unreported.exposure(&view.key)?;
        let until = unreported.until(&view.key)?;
        if view.presence == Presence::Unreported {
            return None;
        }
        let end = if exposure.sets.is_timeless() {
            "until the worker is declared gone".to_owned()
        } else {
            format!("for at most {:.1} s more", until.since(now).as_secs_f64())
        };
        let leaves = match view.drain {
            DrainPhase::Leaving => ", and the worker leaves after that",
            _ => "",
        };
        Some(format!(
            "its agent has lost its journal: leases that an earlier agent was granted may last \
             {end}{leaves}"
        ))
    }

    /// The pools of all workers under a what-if plan, and why each worker gets no larger one.
    pub(super) fn planned_pools(&self, name: &ClusterName, what_if: &WhatIf) -> Vec<PlannedPool> {
        let shares = pool_shares(name, Some(what_if), self.facts());
        let Some(cluster) = self.clusters.get(name) else { return Vec::new() };
        let ledger = self.ledger;
        let (jobs_max, max) = what_if.budget(name, cluster.spec());
        let removed = |key: &WorkerKey| what_if.remove.contains(&key.worker);
        let lost = |key: &WorkerKey| self.observed(key).is_some_and(Worker::is_lost);
        let others = ledger
            .accounts()
            .of(name)
            .filter(|(key, _)| !removed(key) && !shares.contains_key(&key.worker));
        let elsewhere: u32 = others.map(|(_, account)| account.committed()).sum();
        let taken = match elsewhere {
            0 => format!("the budget of {jobs_max} is shared out"),
            slots => format!(
                "the budget of {jobs_max} is shared out, less {} that workers may be using that \
                 take no jobs now",
                counted(slots, "slot")
            ),
        };
        let order = what_if.rollout_order(name, cluster.spec());
        let generation = |worker| match order {
            RolloutOrder::Newest => Some(cluster.workers().get(worker)?.generation()),
            RolloutOrder::Fair => Some(0),
        };
        let newest = shares.keys().filter_map(generation).max().unwrap_or(0);
        let mut pools: Vec<_> = shares
            .iter()
            .map(|(worker, size)| {
                let key = WorkerKey { cluster: name.clone(), worker: worker.clone() };
                let committed = ledger.account(&key).map_or(0, Account::committed);
                // One that is only assumed is of the newest.
                let own = generation(worker).unwrap_or(newest);
                let reason = if *size >= max {
                    String::new()
                } else if self.replica.avoided().contains(&key) {
                    "its node is cordoned: the other workers come first".to_owned()
                } else if own >= newest {
                    taken.clone()
                } else {
                    format!(
                        "workers of newer generations come first, up to {newest}: it is of {own}"
                    )
                };
                let lost = lost(&key);
                PlannedPool { worker: worker.clone(), size: *size, committed, reason, lost }
            })
            .collect();
        let without =
            ledger.accounts().of(name).filter(|(key, _)| !shares.contains_key(&key.worker));
        pools.extend(without.map(|(key, account)| PlannedPool {
            worker: key.worker.clone(),
            size: 0,
            committed: account.committed(),
            reason: if removed(key) {
                "it leaves".to_owned()
            } else {
                self.why_no_jobs(key, account)
            },
            lost: lost(key),
        }));
        pools.sort_by(|one, two| one.worker.cmp(&two.worker));
        pools
    }

    /// Whether a worker has less than it could have because it is avoided.
    fn is_passed_over(&self, view: &WorkerView) -> bool {
        let Some(cluster) = self.clusters.get(&view.key.cluster) else { return false };
        let is_avoided = self.replica.avoided().contains(&view.key);
        is_avoided && view.wanted < cluster.spec().jobs_per_worker_max
    }

    fn generation_fact(&self, view: &WorkerView) -> Option<String> {
        let newest = self.clusters.newer_generation(&view.key)?;
        let own = view.generation;
        Some(format!("it is of generation {own}: it gets what generations up to {newest} leave"))
    }

    fn generation_step(&self, view: &WorkerView) -> String {
        let Some(newest) = self.clusters.newer_generation(&view.key) else { return String::new() };
        format!(
            "if {} is to have an equal share, start its agent with --generation {newest}, or drain \
             the workers of newer generations",
            view.key.worker
        )
    }

    /// Why a worker takes no jobs now.
    fn why_no_jobs(&self, key: &WorkerKey, account: &Account) -> String {
        let slots = counted(account.committed(), "slot");
        let count = if account.committed() == 1 { "counts" } else { "count" };
        let Some(worker) = self.observed(key) else {
            return format!(
                "it has not reported to this leader: {slots} {count} until it does or is \
                 declared gone"
            );
        };
        if worker.is_lost() {
            format!("it is lost: {slots} {count} until it reports or is declared gone")
        } else if !worker.has_reported() {
            format!("it has not reported yet: {slots} {count}")
        } else if worker.drain().drains() {
            format!("it drains: {slots} {count} until its jobs end")
        } else if worker.drain().failure().is_some() {
            format!("it fails: {slots} {count} until its jobs end")
        } else if !worker.is_connected() {
            format!("it is not connected: {slots} {count}, and it keeps them")
        } else {
            format!(
                "slots that count as used, because its earlier agent may still use them: {}",
                account.committed()
            )
        }
    }

    fn worker_summary(&self, view: &WorkerView, committed: u32) -> String {
        let key = &view.key;
        let is_silent = matches!(view.presence, Presence::Lost | Presence::Unreported);
        if key.worker.is_former() && !is_silent {
            return format!(
                "{key} has lost its name to another agent: it drains, and its slots count until \
                 its jobs end"
            );
        }
        if view.drains() && !is_silent {
            return format!("{key} drains: it takes no job and gives its streams back");
        }
        if view.failure.is_some() && !is_silent {
            return format!("{key} fails: it gets no job, and its streams go to other workers");
        }
        match view.presence {
            Presence::Unreported => {
                format!("{key} has not reported to this leader: it counts with all it may hold")
            }
            Presence::Lost if view.committed == 0 => format!(
                "{key} is silent: what it may hold counts until its leases have ended, or until it \
                 reports or is declared gone"
            ),
            Presence::Lost => {
                format!("{key} is silent: its slots count until it reports or is declared gone")
            }
            Presence::Silent => format!("{key} is not connected: it keeps what it has"),
            Presence::Connected if view.granted < view.wanted => format!(
                "{key} has {} of the {} planned for it: {committed} are in use by others until \
                 their jobs end",
                view.granted,
                counted(view.wanted, "slot")
            ),
            Presence::Connected if view.granted > view.wanted => {
                format!(
                    "{key} is shrinking from {} to {}",
                    counted(view.granted, "slot"),
                    view.wanted
                )
            }
            Presence::Connected => {
                let slots = counted(view.granted, "slot");
                if self.is_passed_over(view) {
                    return format!(
                        "{key} has {slots}: its node is cordoned, so the other workers come first"
                    );
                }
                if let Some(newest) = self.clusters.newer_generation(key) {
                    return format!(
                        "{key} has {slots}: workers of newer generations come first (up to \
                         {newest}, it is of {})",
                        view.generation
                    );
                }
                format!("{key} has its share: {slots} and {}", counted(view.streams, "stream"))
            }
        }
    }
}

/// The command that ends a drain; empty if no drain was ordered, or it can no longer be ended.
fn drain_step(view: &WorkerView) -> String {
    let WorkerKey { cluster, worker } = &view.key;
    if !view.drain_ordered || view.drain == DrainPhase::Leaving || worker.is_former() {
        return String::new();
    }
    format!("leasehold undrain {worker} --cluster {cluster}, if it is to work on")
}

/// What to do about a worker; empty where nothing is to be done.
fn worker_step(view: &WorkerView) -> String {
    let WorkerKey { cluster, worker } = &view.key;
    match view.presence {
        Presence::Connected if view.drain_overdue.is_some() => format!(
            "end the jobs of {worker} and have it let its streams go, or stop it and its agent: \
             jobs that still run are lost then"
        ),
        Presence::Connected if view.failure.is_some() => {
            format!("see what {worker} does: once it works again it gets jobs and streams")
        }
        Presence::Connected => String::new(),
        Presence::Silent => {
            format!(
                "see on its host whether the agent of {worker} runs: if it does, its log says why \
                 it cannot reach this leader; if not, start it again, with the same --state-dir"
            )
        }
        Presence::Lost | Presence::Unreported => format!(
            "start the agent of {worker} again, on its host and with the same --state-dir (if it \
             runs, its log says why it cannot reach this leader); or, if nothing of it runs any \
             more: leasehold gone {worker} --cluster {cluster}"
        ),
    }
}

/// That another agent wants a worker's name.
fn refused_fact(refused: &RefusedAgentView) -> String {
    let at = refused.peer.as_ref().map(|peer| format!(" at {peer}")).unwrap_or_default();
    let ago = refused.ago.as_secs_f64();
    format!("another agent wants its name, and is refused: the one{at}, {ago:.1} s ago")
}

/// What to do about another agent that wants a worker's name; empty if no other agent does.
fn name_step(view: &WorkerView) -> String {
    let worker = &view.key.worker;
    view.refused_agent.as_ref().map_or_else(String::new, |_| {
        format!("give the other agent's worker a name of its own: {worker} has an agent")
    })
}

/// What to do about an agent of an older build; empty where nothing is to be done.
fn update_step(view: &WorkerView) -> String {
    if !view.has_older_agent() {
        return String::new();
    }
    format!("update the agent of {} to version {}", view.key.worker, Version::own())
}

/// That an agent is of an older build, if it is.
fn version_fact(view: &WorkerView) -> Option<String> {
    let (worker, own) = (&view.key.worker, Version::own());
    view.has_older_agent().then(|| match view.agent_version {
        Some(version) => {
            format!(
                "the agent of {worker} has version {version}, older than this coordinator's {own}"
            )
        }
        None => {
            format!(
                "the agent of {worker} says no version: it is older than this coordinator's {own}"
            )
        }
    })
}

/// That a connected worker drains for longer than it may, if it does.
fn overdue_summary(view: &WorkerView) -> Option<String> {
    let deadline = view.drain_overdue.filter(|_| view.presence == Presence::Connected)?;
    let (key, deadline) = (&view.key, format_short(deadline));
    let jobs = match view.running {
        Some(running) => counted(running as usize, "job"),
        None => "an unknown number of jobs".to_owned(),
    };
    let streams = counted(view.streams, "stream");
    Some(format!(
        "{key} drains for longer than its deadline of {deadline}: {jobs} and {streams} are left"
    ))
}

fn share_summary(view: &WorkerView) -> String {
    let (key, load) = (&view.key, view.load);
    if view.drains() {
        return format!("{key} drains: it gives back what others have room for, {load} is left");
    }
    if view.is_failing() {
        return format!("{key} fails: it gets no share, and its shares go to other workers");
    }
    match view.presence {
        Presence::Unreported => {
            format!("{key} has not reported to this leader: what it serves is not known")
        }
        Presence::Lost => format!("{key} is silent: its pipelines are served by others"),
        Presence::Silent => format!("{key} is not connected: it keeps what it has"),
        Presence::Connected => {
            let shares = counted(view.streams, "share");
            format!("{key} may be serving {shares} of pipelines, with a load of {load} in all")
        }
    }
}

fn presence(view: &WorkerView) -> String {
    let key = &view.key;
    let silent = view.silent_for.map_or(0.0, |silent| silent.as_secs_f64());
    match view.presence {
        Presence::Connected => format!("{key} is connected, heard {silent:.1} s ago"),
        Presence::Silent => format!("{key} is not connected, heard {silent:.1} s ago"),
        Presence::Lost => {
            format!("{key} is lost: heard {silent:.1} s ago, longer than its leases last")
        }
        Presence::Unreported => format!("{key} has not reported to this leader"),
    }
}

/// What becomes of the jobs and streams of a worker whose agent is away; none if it is there.
fn meanwhile(view: &WorkerView) -> Option<String> {
    let fact = match view.presence {
        Presence::Connected => return None,
        Presence::Silent => "meanwhile its jobs go on, and its streams stay until its leases end",
        Presence::Lost | Presence::Unreported => {
            "meanwhile its jobs may go on, and so may what consumes its pinned streams: neither \
             goes to another worker. Streams that expire do"
        }
    };
    Some(fact.into())
}
