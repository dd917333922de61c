//! One look at one fleet: from what is seen of it to what is to be done, decided and
//! nothing done yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_types::{ClusterName, Moment, WorkerKey};
use serde_json::{Value, json};

use super::action::{Action, What};
use super::drains::Stage;
use super::fleet::Fleet;
use super::memory::Memory;
use super::restart::{self, Shares};
use super::scale_in::{self, Decision};
use super::scaling::Scale;
use super::standing::{Mark, Standing};
use super::workload::{self, Role, Wanted, WorkloadFacts, WorkloadState};
use super::{nodes, template};
use crate::events::Reason;

/// What one look has to go by.
pub(super) struct Look<'a> {
    pub(super) fleet: &'a Fleet,
    /// What it is called everywhere else.
    pub(super) name: &'a ClusterName,
    /// Its pods, all of them.
    pub(super) team: Vec<Standing>,
    pub(super) workload: Option<Arc<WorkloadFacts>>,
    /// How many workers it is to have.
    pub(super) scale: Scale,
    /// Who owns what of the sets that want restarts.
    pub(super) shares: Option<&'a Shares>,
    /// Nodes that take nothing new.
    pub(super) cordoned: &'a BTreeSet<String>,
    pub(super) now: Moment,
}

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Workers whose drain is to be ordered.
    pub(super) orders: Vec<WorkerKey>,
    /// What is to be done to objects, the most urgent first.
    pub(super) actions: Vec<Action>,
    /// Drains of which something is to be told.
    pub(super) stages: Vec<(Standing, Stage)>,
    /// A scale-in that begins, for people.
    pub(super) scales_in: Option<String>,
    /// How the workload stands.
    pub(super) state: Option<WorkloadState>,
    /// What a rollout or a scale-in is blocked by.
    pub(super) blocked: Option<String>,
    /// Why the workload cannot even be sent to the API server.
    pub(super) refused: Option<String>,
}

/// Decides what is to be done for a fleet.
pub(super) fn turn(look: Look<'_>, memory: &mut Memory) -> Turn {
    let Look { fleet, name, mut team, workload, scale, shares, cordoned, now } = look;
    let mut turn = Turn::default();
    // What it has made ends with it.
    let acts = !fleet.is_deleted();
    let wanted = workload::wanted(fleet).filter(|_| acts);
    let facts = workload.as_deref();
    let is_own = |it: &Standing| facts.is_some_and(|facts| facts.owns(&it.pod));
    team.sort_by_key(|it| !is_own(it));
    let crew = team.iter().take_while(|it| is_own(it)).count();
    let decision = wanted.as_ref().map_or_else(Decision::default, |wanted| {
        scale_in(fleet, wanted, facts, &scale, &team[..crew], &mut turn)
    });
    for it in &team {
        if let Some(busy) = memory.idle.look(it, now) {
            turn.actions.push(Action::of_pod(&it.pod, What::Busy(it.pod.clone(), busy)));
        }
        if let Some(stage) = memory.drains.look(it, fleet.drain_deadline(), now) {
            turn.stages.push((it.clone(), stage));
        }
        if it.needs_order() {
            turn.orders.extend(it.view.as_ref().map(|view| view.key.clone()));
        }
    }
    for (index, it) in team.iter().enumerate().filter(|_| acts) {
        if let Some(what) = fate(index, it, &decision, cordoned) {
            turn.actions.push(Action::of_pod(&it.pod, what));
        }
    }
    if let (Some(shares), Some(facts)) = (shares, facts) {
        refresh(name, shares, facts, &team[..crew], &mut turn, memory);
    }
    if let Some(wanted) = &wanted {
        let replicas = decision.replicas;
        match apply(fleet, wanted, facts, replicas, memory, now) {
            Ok(action) => turn.actions.extend(action.map(|it| explained(it, &scale))),
            Err(why) => turn.refused = Some(why),
        }
        let refused = turn.refused.as_deref().or(memory.refusal(name));
        turn.scales_in = begins(&decision, &team, wanted, facts, &scale);
        let kept = decision.kept;
        turn.state = Some(workload::state(fleet, wanted, facts, refused, &scale, kept));
    }
    turn
}

/// What scale-in wants of a workload that the coordinator may scale.
fn scale_in(
    fleet: &Fleet,
    wanted: &Wanted,
    facts: Option<&WorkloadFacts>,
    scale: &Scale,
    crew: &[Standing],
    turn: &mut Turn,
) -> Decision {
    let desired = scale.replicas;
    let is_ours = workload::problem(fleet, wanted, facts).is_none();
    if wanted.role == Role::Watched || !is_ours {
        return Decision::default();
    }
    let Some(facts) = facts.filter(|facts| !facts.is_deleted) else {
        return Decision { replicas: Some(desired), ..Decision::default() };
    };
    let decision = scale_in::decide(facts, scale, crew);
    let WorkloadFacts { kind, name, replicas, stuck, .. } = facts;
    let holds = |_: &&String| *replicas > desired && (stuck.is_some() || !facts.is_mixed());
    turn.blocked = match (decision.waits.as_ref().filter(holds), stuck) {
        (None, stuck) => stuck.as_ref().map(|why| format!("{kind:?} {name}: {why}")),
        (Some(waits), stuck) => {
            let why = stuck.as_ref().map_or_else(String::new, |why| format!("; {why}"));
            Some(format!(
                "{kind:?} {name} is to have {desired} replicas and has {replicas}: {waits}{why}"
            ))
        }
    };
    decision
}

/// What is to be done for workers that cannot reload.
fn refresh(
    name: &ClusterName,
    shares: &Shares,
    facts: &WorkloadFacts,
    crew: &[Standing],
    turn: &mut Turn,
    memory: &mut Memory,
) {
    if facts.is_mixed() {
        return;
    }
    let round = memory.restarts.entry(name.clone()).or_default();
    let decided = restart::refresh(shares, facts.replicas, crew, round);
    for (index, streams) in decided.note {
        let pod = &crew[index].pod;
        turn.actions.push(Action::of_pod(pod, What::Began(pod.clone(), streams)));
    }
    if let Some(index) = decided.restart {
        let pod = &crew[index].pod;
        turn.actions.push(Action::of_pod(pod, What::Mark(pod.clone(), Mark::Restart)));
    }
    turn.blocked = turn.blocked.take().or(decided.waits);
}

/// What people are told where the first pods are marked for a scale-in.
fn begins(
    decision: &Decision,
    team: &[Standing],
    wanted: &Wanted,
    facts: Option<&WorkloadFacts>,
    scale: &Scale,
) -> Option<String> {
    let is_first = team.iter().all(|it| it.mark != Some(Mark::ScaleIn) || !it.pod.is_active());
    let replicas = facts?.replicas;
    let count = decision.mark.len();
    (is_first && count > 0).then(|| {
        let (kind, name) = (wanted.kind, &wanted.name);
        let why = because(scale);
        format!("{kind:?} {name} has {replicas} replicas, {count} too many: they drain first{why}")
    })
}

/// What becomes of one pod, if anything.
fn fate(
    index: usize,
    it: &Standing,
    decision: &Decision,
    cordoned: &BTreeSet<String>,
) -> Option<What> {
    let pod = || it.pod.clone();
    if decision.mark.contains(&index) {
        return Some(What::Mark(pod(), Mark::ScaleIn));
    }
    if decision.cost.contains(&index) {
        return Some(What::Cost(pod(), scale_in::COST));
    }
    if decision.victims.contains(&index) {
        return None;
    }
    if nodes::has_to_leave(it, cordoned) {
        return Some(What::Mark(pod(), Mark::Node));
    }
    if restart::is_asked_for(it) {
        return Some(What::Mark(pod(), Mark::Restart));
    }
    let goes = it.is_drained() && it.pod.is_active() && it.is_replaced();
    goes.then(|| What::Replace(pod()))
}

/// The server-side apply of the workload, where one is due.
fn apply(
    fleet: &Fleet,
    wanted: &Wanted,
    facts: Option<&WorkloadFacts>,
    replicas: Option<u32>,
    memory: &mut Memory,
    now: Moment,
) -> Result<Option<Action>, String> {
    let Some(mut replicas) = replicas else { return Ok(None) };
    if facts.is_some_and(|facts| facts.is_deleted) {
        return Ok(None);
    }
    let current = facts.map_or(0, |facts| facts.replicas);
    let mut body = match wanted.role {
        Role::Watched => return Ok(None),
        Role::Scaled if facts.is_none() || replicas == current => return Ok(None),
        Role::Scaled => scaled(fleet, wanted, replicas),
        Role::Made => {
            let body = template::body(fleet, facts, replicas)?;
            // A new template and fewer replicas at once: nobody could say which pods go.
            match facts {
                Some(it) if replicas < current && is_new_template(&body, it) => {
                    replicas = current;
                    template::body(fleet, facts, replicas)?
                }
                Some(_) | None => body,
            }
        }
    };
    let generation = facts.map(|facts| facts.generation);
    let action = Action::apply(body.clone());
    if !memory.applied.is_due(&action.target, &body, generation, now) {
        return Ok(None);
    }
    if let Some(facts) = facts {
        // Only to what was looked at: what looks like no change from long ago may be fewer pods.
        body["metadata"]["resourceVersion"] = facts.resource_version.as_str().into();
    }
    let action = Action::apply(body);
    Ok(Some(match replicas == current {
        true => action,
        false => action.telling(resized(wanted, current, replicas)),
    }))
}

/// That a workload is of another size now, for people.
fn resized(wanted: &Wanted, before: u32, after: u32) -> (Reason, String) {
    let reason = if after < before { Reason::ScaleInCompleted } else { Reason::ScaledOut };
    let (kind, name) = (wanted.kind, &wanted.name);
    (reason, format!("{kind:?} {name} had {before} replicas and has {after} now"))
}

/// The same, and what people are told of it says how that comes.
fn explained(action: Action, scale: &Scale) -> Action {
    match action.news.clone() {
        Some((reason, note)) => action.telling((reason, note + &because(scale))),
        None => action,
    }
}

/// How a number of workers comes, as the end of a sentence.
fn because(scale: &Scale) -> String {
    scale.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
}

fn is_new_template(body: &Value, facts: &WorkloadFacts) -> bool {
    let digest = &body["metadata"]["annotations"][leasehold_kube_api::names::TEMPLATE_DIGEST];
    digest.as_str() != facts.digest.as_deref()
}

/// An adopted workload's replicas, and nothing else of it.
fn scaled(fleet: &Fleet, wanted: &Wanted, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": format!("{:?}", wanted.kind),
        "metadata": { "name": wanted.name, "namespace": fleet.namespace() },
        "spec": { "replicas": replicas },
    })
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
