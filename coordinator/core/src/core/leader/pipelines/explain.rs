//! Explains why a pipeline is in its state: the facts in the order in which they decide.

use std::collections::BTreeSet;

use leasehold_types::{ClusterName, Load, Moment, PipelineName, WorkerKey};

use super::state::PipelineState;
use crate::core::Core;
use crate::core::leader::Query;
use crate::desired::Class;
use crate::observed::Worker;
use crate::view::{BindingView, Explanation, PipelineView, WorkerView};

/// The most workers or pipelines that one fact names.
const NAMED_MAX: usize = 5;

impl Core {
    /// Why a pipeline is in its state; none if no manifest defines it, or this replica does not
    /// lead.
    #[must_use]
    pub fn explain_pipeline(&self, name: &PipelineName, now: Moment) -> Option<Explanation> {
        self.query()?.explain_pipeline(name, now)
    }
}

impl Query<'_> {
    fn explain_pipeline(&self, name: &PipelineName, now: Moment) -> Option<Explanation> {
        let view = self.pipeline(name)?;
        let mut facts = Vec::new();
        let spec = self.replica.desired().pipelines.get(name)?;
        let classes: BTreeSet<_> = spec.nodes.values().map(|node| &node.class).collect();
        for class in &classes {
            let hold = self.ledger.unreported().hold_of(class, self.replica.heard());
            if let Some((until, worker)) = hold {
                let left = until.since(now).as_secs_f64();
                facts.push(format!(
                    "nothing is planned in class {class} before {worker} reports, for at most \
                     {left:.1} s"
                ));
            }
        }
        for (class, _) in &view.waits {
            let nodes = spec.nodes.values().filter(|node| node.class == *class).count();
            facts.push(self.room_fact(class, nodes, spec.load));
        }
        facts.extend(view.bindings.iter().map(binding_fact));
        facts.extend(self.away_facts(name));
        facts.extend(self.stuck_facts(name));
        let unaddressed = self.unaddressed(&view);
        facts.extend(unaddressed.iter().take(NAMED_MAX).map(|worker| {
            format!(
                "{worker} names no address (--worker-address): those who send it documents cannot \
                 reach it"
            )
        }));
        let state = if view.reason.is_empty() {
            format!("{name} is {}", view.phase)
        } else {
            format!("{name} is {}: {}", view.phase, view.reason)
        };
        let short = view.waits.iter().map(|(class, more)| match more {
            0 => format!("let class {class} have more workers"),
            1 => format!("add a worker to class {class}"),
            more => format!("add {more} workers to class {class}"),
        });
        let short: Vec<_> = short.collect();
        let next_step = match (short.is_empty(), unaddressed.first()) {
            (true, None) => String::new(),
            (true, Some(worker)) => {
                let worker = &worker.worker;
                format!("start the agent of {worker} with --worker-address HOST:PORT")
            }
            (false, _) => format!("{}, or lower documentsPerSecond", short.join(" and ")),
        };
        Some(Explanation { summary: state, facts, next_step })
    }

    /// The workers that have shares of it in force, and the load of each share.
    fn share_owners(&self, name: &PipelineName) -> Vec<(WorkerKey, Load)> {
        let state = self.pipelines.all.get(name).filter(|state| state.in_force);
        state.into_iter().flat_map(PipelineState::share_owners).collect()
    }

    /// Workers with shares of it whose agents are not connected.
    fn away_facts(&self, name: &PipelineName) -> Vec<String> {
        let is_away = |key: &WorkerKey| !self.observed(key).is_some_and(Worker::is_connected);
        let owners = self.share_owners(name).into_iter().map(|(worker, _)| worker);
        let away: BTreeSet<_> = owners.filter(is_away).collect();
        let facts = away.iter().map(|worker| {
            format!(
                "{worker} is not connected: others get its shares once its leases have ended or it \
                 is declared gone"
            )
        });
        facts.take(NAMED_MAX).collect()
    }

    /// The workers with shares of it that give nobody their address.
    fn unaddressed(&self, view: &PipelineView) -> Vec<WorkerKey> {
        let owners = view.bindings.iter().flat_map(|binding| {
            binding.shares.iter().map(|share| WorkerKey {
                cluster: binding.class.clone(),
                worker: share.worker.clone(),
            })
        });
        let has_none = |key: &WorkerKey| {
            self.observed(key).is_some_and(|worker| {
                worker.is_connected() && worker.has_reported() && worker.address().is_none()
            })
        };
        let owners: BTreeSet<_> = owners.filter(has_none).collect();
        owners.into_iter().collect()
    }

    /// Draining workers whose shares fit on no other worker.
    fn stuck_facts(&self, name: &PipelineName) -> Vec<String> {
        let owners = self.share_owners(name).into_iter();
        let stuck = owners.filter(|(worker, _)| self.pipelines.draining.contains(worker));
        let facts = stuck.map(|(worker, load)| {
            let class = &worker.cluster;
            format!("{worker} drains, and no other worker of class {class} has room for {load}")
        });
        facts.take(NAMED_MAX).collect()
    }

    /// The load that the nodes of a class need, and the room that is left there.
    fn room_fact(&self, name: &ClusterName, nodes: usize, load: Load) -> String {
        let Some(class) = self.replica.class(name) else {
            return format!("no manifest defines class {name}");
        };
        let class_capacity = self.pipelines.class_capacity([name].into_iter(), self.facts());
        let free = &class_capacity.free[0];
        let mut left: Vec<_> = (0..free.len() as u32).map(|at| (free.room(at), at)).collect();
        left.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let shown = left.iter().take(NAMED_MAX).map(|(room, at)| {
            format!("{} has room for {room}", class_capacity.workers[0][*at as usize])
        });
        let shown: Vec<_> = shown.collect();
        let most = match left.len() {
            0 => "it has no worker now".into(),
            1 => format!("its worker {}", shown.join(", ")),
            workers => format!("of its {workers} workers {}", shown.join(", ")),
        };
        let asked = match nodes {
            1 => format!("one of its nodes asks for {load}"),
            nodes => format!("{nodes} of its nodes ask for {load} each"),
        };
        format!("class {name}: {asked}, a worker takes {}; {most}", class.capacity)
    }

    /// The load that a worker of a class may have, its planned load and its capacity.
    pub(in crate::core::leader) fn load_fact(&self, view: &WorkerView, class: &Class) -> String {
        let planned = self.pipelines.shares.load_of(&view.key);
        let (load, capacity) = (view.load, class.capacity);
        format!("it can take {capacity}; the plan wants {planned} on it, and it may have {load}")
    }

    /// The planned shares of a worker.
    pub(in crate::core::leader) fn share_facts(&self, key: &WorkerKey) -> Vec<String> {
        let Some(worker_shares) = self.pipelines.shares.of(key) else {
            return vec!["the plan wants nothing on it".into()];
        };
        let shares = worker_shares.keys().iter().take(NAMED_MAX).map(|share| {
            let load = self.pipelines.planned_share(share).map_or(Load::ZERO, |share| share.load);
            format!("{load} of {}/{}", share.pipeline, share.node)
        });
        let shares: Vec<_> = shares.collect();
        let more = worker_shares.keys().len() - shares.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let mut facts = vec![format!("it is to serve {}{more}", shares.join(", "))];
        if self.observed(key).is_some_and(|worker| worker.address().is_none()) {
            facts.push(
                "its agent names no address (--worker-address): the workers before it in a \
                 pipeline cannot reach it"
                    .into(),
            );
        }
        facts
    }
}

fn binding_fact(binding: &BindingView) -> String {
    let shares = binding.shares.iter().take(NAMED_MAX).map(|share| {
        let how = match (share.draining, share.applied) {
            (true, _) => ", on its way out",
            (false, false) => ", not confirmed yet",
            (false, true) => "",
        };
        format!("{} on {}{how}", share.load, share.worker)
    });
    let shares: Vec<_> = shares.collect();
    let more = binding.shares.len() - shares.len();
    let (node, class, phase) = (&binding.node, &binding.class, binding.phase);
    match (shares.is_empty(), more) {
        (true, _) => format!("node {node} of class {class} is {phase}"),
        (false, 0) => format!("node {node} of class {class} is {phase}: {}", shares.join("; ")),
        (false, more) => format!(
            "node {node} of class {class} is {phase}: {}; and {more} more",
            shares.join("; ")
        ),
    }
}
