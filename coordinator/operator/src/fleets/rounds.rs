//! The operator's rounds: look at every fleet, decide, do it, tell of it. Between two rounds is a
//! quarter of a second, and a round does so much at most; what is left is found again in the next.

mod classes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use leasehold_coordinator_core::view::{ClassView, Leadership, WorkerView};
use leasehold_driver::clock;
use leasehold_driver::port::{Stopped, WorkerOrder};
use leasehold_kube_api::names::{FIELD_MANAGER, MANAGED_BY_LABEL, disruption_budget};
use leasehold_manifest::manifest::{RefreshSpec, WorkloadKind};
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::{ClusterName, Moment, SetName, WorkerKey, WorkerName};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::action::{Action, Done, What};
use super::fleet::Fleet;
use super::memory::Memory;
use super::restart::Shares;
use super::scaling::{self, Demand, Scale};
use super::seen::Seen;
use super::standing::Standing;
use super::tell::Tell;
use super::turn::{Look, Turn, turn};
use super::workload::{self, WorkloadFacts};
use super::{Context, Workloads, disruption, nodes};

/// Between the starts of two rounds.
const EVERY: Duration = Duration::from_millis(250);
/// Between two looks at all streams of sets that want restarts, or at all classes and
/// their pipelines.
const LONG_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Calls that one round makes.
const ACTIONS_MAX: usize = 256;
/// Calls that are under way at once.
const AT_ONCE_MAX: usize = 16;

/// The rounds, and what they go by.
pub(super) struct Rounds {
    context: Context,
    deployments: Seen<WorkloadFacts>,
    stateful_sets: Seen<WorkloadFacts>,
    /// Generations of PodDisruptionBudgets.
    budgets: Seen<i64>,
    /// Cordoned nodes. Where nodes may not be read, none is known to be, and nobody waits for it.
    nodes: Seen<()>,
    /// Who owns what of the sets that want restarts, and when that was looked at.
    shares: BTreeMap<ClusterName, Shares>,
    shares_at: Moment,
    /// What the core says of each class, and when that was looked at.
    classes: BTreeMap<ClusterName, ClassView>,
    classes_at: Moment,
    memory: Memory,
    tell: Tell,
    states: watch::Sender<Workloads>,
}

type Workers = BTreeMap<ClusterName, BTreeMap<WorkerName, WorkerView>>;

/// A fleet that is looked at, and its workload.
struct Case {
    name: ClusterName,
    fleet: Fleet,
    /// Its pods, all of them.
    team: Vec<Standing>,
    workload: Option<Arc<WorkloadFacts>>,
    scale: Scale,
}

impl Rounds {
    /// Starts to watch what is needed.
    pub(super) fn new(context: Context, states: watch::Sender<Workloads>) -> Self {
        let all = watcher::Config::default();
        let made =
            watcher::Config::default().labels(&format!("{MANAGED_BY_LABEL}={FIELD_MANAGER}"));
        let generation = |budget: &PodDisruptionBudget| budget.metadata.generation;
        let nodes = vec![Api::<Node>::all(context.client.clone())];
        Self {
            deployments: Seen::start(
                apis::<Deployment>(&context),
                &all,
                WorkloadFacts::of_deployment,
            ),
            stateful_sets: Seen::start(
                apis::<StatefulSet>(&context),
                &all,
                WorkloadFacts::of_stateful_set,
            ),
            budgets: Seen::start(apis::<PodDisruptionBudget>(&context), &made, generation),
            nodes: Seen::start(nodes, &all, nodes::cordoned),
            shares: BTreeMap::new(),
            shares_at: Moment(0),
            classes: BTreeMap::new(),
            classes_at: Moment(0),
            memory: Memory::default(),
            tell: Tell::new(context.events.clone()),
            states,
            context,
        }
    }

    /// Goes round until the driver ends.
    pub(super) async fn run(mut self) -> Result<(), Stopped> {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let objects = Arc::clone(&self.context.objects.borrow());
            let names = Fleet::all(&objects).map(|(name, _)| name.clone()).collect();
            let Some(workers) = self.workers(names).await? else {
                self.memory = Memory::default();
                self.classes.clear();
                self.classes_at = Moment(0);
                continue;
            };
            if !self.is_synced() {
                continue;
            }
            self.look_at_shares(&objects).await?;
            let cordoned = self.nodes.names();
            self.look_at_classes(&objects).await?;
            let mut turns = Vec::new();
            for case in self.cases(&objects, workers).await? {
                turns.push(self.turn(case, &cordoned));
            }
            self.publish(&turns);
            self.carry_out(turns).await?;
        }
    }

    /// What the core knows of the workers of these fleets; none where this replica does not lead.
    async fn workers(&self, names: Vec<ClusterName>) -> Result<Option<Workers>, Stopped> {
        let asked = self.context.handle.ask(move |core, now| match core.leadership() {
            Leadership::StandsBy(_) => None,
            Leadership::Leads(_) => Some(
                names
                    .into_iter()
                    .filter_map(|name| Some((core.workers(&name, now)?, name)))
                    .collect::<Vec<_>>(),
            ),
        });
        Ok(asked.await?.map(|found| {
            let by_name = |views: Vec<WorkerView>| {
                views.into_iter().map(|view| (view.key.worker.clone(), view)).collect()
            };
            found.into_iter().map(|(views, name)| (name, by_name(views))).collect()
        }))
    }

    /// What there is to look at. A fleet that the core does not know is invalid, or not known yet.
    async fn cases(
        &mut self,
        objects: &Objects,
        mut workers: Workers,
    ) -> Result<Vec<Case>, Stopped> {
        self.memory.windows.retain(|name, _| workers.contains_key(name));
        let mut pods = self.pods();
        let mut cases = Vec::new();
        for (name, fleet) in Fleet::all(objects) {
            let Some(mut workers) = workers.remove(name) else { continue };
            let mut team = pods.remove(name).unwrap_or_default();
            for it in &mut team {
                let worker = WorkerName::new(&it.pod.pod.name).ok();
                it.view = worker.and_then(|worker| workers.remove(&worker));
            }
            let workload = self.workload(&fleet);
            let current = workload.as_ref().map(|facts| facts.replicas);
            let scale = match (&fleet, self.classes.get(name)) {
                (Fleet::Cluster(cluster), _) => Scale::of(workload::replicas(&cluster.spec)),
                (Fleet::Class(class), Some(view)) => {
                    let demand = Demand::of(view.clone(), &team);
                    let window = self.memory.windows.entry(name.clone()).or_default();
                    scaling::decide(&class.spec, &demand, current, window, clock::now())
                }
                (Fleet::Class(_), None) => continue,
            };
            cases.push(Case { name: name.clone(), fleet, team, workload, scale });
        }
        self.spare(&mut cases).await?;
        Ok(cases)
    }

    /// The workload of a fleet, as it was last seen.
    fn workload(&self, fleet: &Fleet) -> Option<Arc<WorkloadFacts>> {
        let wanted = workload::wanted(fleet)?;
        match wanted.kind {
            WorkloadKind::Deployment => self.deployments.find(fleet.namespace(), &wanted.name),
            WorkloadKind::StatefulSet => self.stateful_sets.find(fleet.namespace(), &wanted.name),
        }
    }

    /// Looks at the streams of sets that want restarts, at most every [`LONG_LOOK_EVERY`].
    async fn look_at_shares(&mut self, objects: &Objects) -> Result<(), Stopped> {
        let now = clock::now();
        if now.since(self.shares_at) < LONG_LOOK_EVERY {
            // A pod is judged by a new look only.
            self.shares.clear();
            return Ok(());
        }
        self.shares_at = now;
        let mut wanted: BTreeMap<ClusterName, Vec<SetName>> = BTreeMap::new();
        for (name, seen) in &objects.sets {
            let set = &seen.object;
            let namespace = set.namespace().unwrap_or_default();
            let cluster = ClusterName::in_namespace(&namespace, &set.spec.cluster);
            if let (RefreshSpec::Restart, Ok(cluster)) = (set.spec.refresh, cluster) {
                wanted.entry(cluster).or_default().push(name.clone());
            }
        }
        if wanted.is_empty() {
            self.shares.clear();
            return Ok(());
        }
        let look = self.context.handle.ask(move |core, _| {
            let of = |(cluster, sets): (_, Vec<_>)| (cluster, Shares::of(core, &sets));
            wanted.into_iter().map(of).collect()
        });
        self.shares = look.await?;
        Ok(())
    }

    fn is_synced(&self) -> bool {
        self.context.pods.is_synced()
            && self.deployments.is_synced()
            && self.stateful_sets.is_synced()
            && self.budgets.is_synced()
    }

    /// Every pod by its fleet; what is kept in mind of others is forgotten.
    fn pods(&mut self) -> BTreeMap<ClusterName, Vec<Standing>> {
        let mut pods: BTreeMap<ClusterName, Vec<Standing>> = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for pod in self.context.pods.all() {
            let Some(cluster) = pod.cluster.clone() else { continue };
            let it = Standing::new(pod, &self.memory.marks, None);
            seen.extend([Memory::seen(&it)]);
            pods.entry(cluster).or_default().push(it);
        }
        let now = clock::now();
        self.memory.tidy(&seen);
        self.memory.applied.tidy(now);
        self.memory.setbacks.tidy(now);
        pods
    }

    fn turn(&mut self, case: Case, cordoned: &BTreeSet<String>) -> (ClusterName, Fleet, Turn) {
        let Case { name, fleet, team, workload, scale } = case;
        let now = clock::now();
        let shares = self.shares.get(&name);
        let (of, called) = (&fleet, &name);
        let look = Look { fleet: of, name: called, team, workload, scale, shares, cordoned, now };
        let mut turn = turn(look, &mut self.memory);
        if !fleet.is_deleted() {
            let body = disruption::body(&fleet);
            let budget = disruption_budget(fleet.name());
            let generation = self.budgets.find(fleet.namespace(), &budget).map(|it| *it);
            let action = Action::apply(body.clone());
            if self.memory.applied.is_due(&action.target, &body, generation, now) {
                turn.actions.push(action);
            }
        }
        (name, fleet, turn)
    }

    fn publish(&self, turns: &[(ClusterName, Fleet, Turn)]) {
        let states = turns
            .iter()
            .filter_map(|(name, _, turn)| turn.state.clone().map(|state| (name.clone(), state)));
        let states: BTreeMap<_, _> = states.collect();
        self.states.send_if_modified(|before| {
            let is_new = **before != states;
            if is_new {
                *before = Arc::new(states);
            }
            is_new
        });
    }

    async fn carry_out(&mut self, turns: Vec<(ClusterName, Fleet, Turn)>) -> Result<(), Stopped> {
        let now = clock::now();
        let mut orders = Vec::new();
        let mut work = Vec::new();
        for (name, fleet, turn) in turns {
            orders.extend(turn.orders);
            for (it, stage) in turn.stages {
                self.tell.stage(&fleet, &it.pod, stage);
            }
            if let Some(note) = &turn.scales_in {
                self.tell.scales_in(&fleet, note);
            }
            self.tell.blocked(&mut self.memory, &name, &fleet, turn.blocked);
            if let Some(why) = turn.refused {
                self.refused(&name, &fleet, why);
            }
            let allowed = turn.actions.into_iter();
            let allowed = allowed.filter(|it| self.memory.setbacks.allows(&it.target, now));
            work.extend(allowed.map(|action| (name.clone(), fleet.clone(), action)));
        }
        order_drains(&self.context, orders).await?;
        work.sort_by_key(|(_, _, action)| action.rank());
        work.truncate(ACTIONS_MAX);
        let (client, pods) = (self.context.client.clone(), self.context.pods.clone());
        let calls = work.into_iter().map(|(name, fleet, action)| {
            let (client, pods) = (&client, &pods);
            async move {
                let done = action.carry_out(client, pods).await;
                (name, fleet, action, done)
            }
        });
        let mut calls = std::pin::pin!(stream::iter(calls).buffer_unordered(AT_ONCE_MAX));
        while let Some((name, fleet, action, done)) = calls.next().await {
            self.note(&name, &fleet, action, done);
        }
        Ok(())
    }

    /// Keeps in mind how an action went, and tells of it.
    fn note(&mut self, name: &ClusterName, fleet: &Fleet, action: Action, done: Done) {
        let now = clock::now();
        let is_workload = action.is_workload();
        match done {
            Done::Outdated => {}
            Done::Failed(why, is_refused) => {
                if self.memory.setbacks.note(&action.target, &why, now) {
                    tracing::warn!(object = %action.target, why, "not done; it is tried again");
                }
                if is_refused && is_workload {
                    self.refused(name, fleet, why);
                }
            }
            Done::Yes(generation) => {
                self.memory.setbacks.clear(&action.target);
                if is_workload {
                    self.memory.refusals.remove(name);
                }
                self.tell.done(fleet, &action);
                match action.what {
                    What::Mark(pod, mark) => {
                        self.memory.marks.insert(pod.uid.clone(), mark);
                    }
                    What::Apply(body) => {
                        self.memory.applied.note(action.target, body, generation, now);
                    }
                    What::Began(..) | What::Cost(..) | What::Busy(..) | What::Replace(_) => {}
                }
            }
        }
    }

    fn refused(&mut self, name: &ClusterName, fleet: &Fleet, why: String) {
        if self.memory.refusal(name) != Some(&why) {
            self.tell.refused(fleet, &why);
            self.memory.refusals.insert(name.clone(), why);
        }
    }
}

/// Has workers drain that are marked, or whose pods end, as soon as they are heard: before they are
/// granted anything where that is possible.
pub(super) async fn mind_joins(context: Context) -> Result<(), Stopped> {
    use leasehold_coordinator_core::effect::Notice;
    use tokio::sync::broadcast::error::RecvError;

    use leasehold_driver::history::Change;

    let mut changes = context.handle.watch()?;
    loop {
        let key = match changes.recv().await {
            Ok(Change::Notice(Notice::Joined(key))) => key,
            // What was missed is found in the next round.
            Ok(_) | Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return Err(Stopped),
        };
        let goes = |pod: &Arc<PodFacts>| {
            let is_marked = pod.drain.is_some() && pod.is_active();
            (is_marked || pod.is_terminating()) && pod.cluster.as_ref() == Some(&key.cluster)
        };
        let namespace = key.cluster.parts().0.unwrap_or_default().to_owned();
        let pod = context.pods.find(&namespace, key.worker.as_str());
        if pod.as_ref().is_some_and(goes) {
            order_drains(&context, vec![key]).await?;
        }
    }
}

async fn order_drains(context: &Context, orders: Vec<WorkerKey>) -> Result<(), Stopped> {
    if orders.is_empty() {
        return Ok(());
    }
    for key in &orders {
        tracing::info!(cluster = %key.cluster, worker = %key.worker, "drain ordered");
    }
    let orders = orders.into_iter().map(WorkerOrder::Drain).collect();
    context.handle.order(move |_, _| (orders, ())).await
}

/// The API of a kind, in each namespace that is watched.
pub(super) fn apis<K>(context: &Context) -> Vec<Api<K>>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + DeserializeOwned,
{
    let client: &Client = &context.client;
    match context.settings.watched.is_empty() {
        true => vec![Api::all(client.clone())],
        false => {
            let namespaces = context.settings.watched.iter();
            namespaces.map(|namespace| Api::namespaced(client.clone(), namespace)).collect()
        }
    }
}
