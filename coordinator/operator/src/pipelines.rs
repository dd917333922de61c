//! The room that shows pipelines: while this replica leads, every binding has a Service, the
//! addresses of the workers that serve it, and a PipelineBinding; every Pipeline says how it
//! stands. All of it is a function of what the core says and of the pods as they are seen: a
//! change of either is shown at once, and what others change of it is undone.

mod agenda;
mod hand;
mod kinds;
mod made;
mod page;
mod pass;
mod places;
mod setbacks;
mod slices;
mod status;
mod tell;
mod wanted;
mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Resource;
use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::view::{Leadership, PipelineView};
use leasehold_driver::clock;
use leasehold_driver::history::Change;
use leasehold_driver::port::Stopped;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::{PodFacts, PodName};
use leasehold_types::{ClusterName, PipelineName};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::agenda::Agenda;
use self::hand::Hand;
use self::made::{Made, Watches};
use self::page::Page;
use self::pass::{Pass, Tools};
use self::places::Scene;
use self::tell::Tell;
use self::zones::Zones;
use crate::context::Context;

/// Pipelines that are looked at at a time.
const AT_ONCE: usize = 16;

/// Shows pipelines until the driver ends.
pub(crate) async fn run(context: Context) {
    // It ends with the driver, and with nothing else.
    let Ok(room) = Room::new(context) else { return };
    let _ = room.run().await;
}

struct Room {
    context: Context,
    changes: broadcast::Receiver<Change>,
    tools: Tools,
    zones: Zones,
    _watches: Watches,
    /// As last looked at, to find what is different.
    objects: Arc<Objects>,
    serves: BTreeMap<PodName, Serves>,
    /// The pods that a pipeline's endpoints rest on.
    rests_on: BTreeMap<PipelineName, BTreeSet<PodName>>,
    agenda: Agenda,
    pages: BTreeMap<PipelineName, Page>,
    passes: JoinSet<(PipelineName, Page)>,
}

/// A pod that endpoints rest on.
#[derive(Default)]
struct Serves {
    /// As last looked at.
    pod: Option<Arc<PodFacts>>,
    /// Whose endpoints.
    pipelines: BTreeSet<PipelineName>,
}

/// What the core says of a pipeline.
struct Look {
    name: PipelineName,
    view: Option<PipelineView>,
    /// This leader does not know yet what of it workers have: what was shown before stays.
    is_unrecovered: bool,
}

impl Room {
    fn new(context: Context) -> Result<Self, Stopped> {
        let changes = context.handle.watch()?;
        let (made, watches) = Made::watch(&context.client, &context.settings.watched);
        let hand = Hand::new(context.client.clone(), made.clone());
        let tell = Tell::new(context.events.clone());
        Ok(Self {
            changes,
            tools: Tools { hand, made, tell },
            zones: Zones::watch(context.client.clone()),
            _watches: watches,
            objects: Arc::default(),
            serves: BTreeMap::new(),
            rests_on: BTreeMap::new(),
            agenda: Agenda::default(),
            pages: BTreeMap::new(),
            passes: JoinSet::new(),
            context,
        })
    }

    async fn run(mut self) -> Result<(), Stopped> {
        let mut objects = self.context.objects.clone();
        let mut pods = self.context.pods.changed();
        let mut zones = self.zones.changed();
        let made = self.tools.made.clone();
        objects.mark_changed();
        pods.mark_changed();
        loop {
            let now = clock::now();
            let has_room = self.passes.len() < AT_ONCE && self.is_synced();
            let due = self.agenda.next().filter(|_| has_room);
            let wait = due.map_or_else(Default::default, |at| at.since(now));
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => self.note(&change),
                    Err(RecvError::Lagged(_)) => self.look_at_all(),
                    Err(RecvError::Closed) => return Err(Stopped),
                },
                Ok(()) = objects.changed() => {
                    let seen = Arc::clone(&objects.borrow_and_update());
                    self.see_objects(seen);
                }
                Ok(()) = pods.changed() => self.see_pods(),
                Ok(()) = zones.changed() => self.look_at_all(),
                () = made.changed() => {
                    let touched = made.touched();
                    touched.into_iter().for_each(|name| self.agenda.put(name, now));
                }
                Some(done) = self.passes.join_next() => {
                    if let Ok((name, page)) = done {
                        self.take_back(name, page);
                    }
                }
                () = sleep(wait), if due.is_some() => {}
            }
            self.note_what_waits();
            if self.is_synced() {
                self.start_passes().await?;
            }
        }
    }

    /// Whether all has been seen once: before that, what is missing may be there.
    fn is_synced(&self) -> bool {
        self.objects.is_whole && self.tools.made.is_synced() && self.context.pods.is_synced()
    }

    /// Starts to look at the pipelines that are due, as far as there is room.
    async fn start_passes(&mut self) -> Result<(), Stopped> {
        let room = AT_ONCE.saturating_sub(self.passes.len());
        let names = self.agenda.take(room, clock::now());
        if names.is_empty() {
            return Ok(());
        }
        let asked = names.clone();
        let looks = self.context.handle.ask(move |core, _| match core.leadership() {
            Leadership::StandsBy(_) => None,
            Leadership::Leads(_) => {
                Some(asked.into_iter().map(|name| look(core, name)).collect::<Vec<_>>())
            }
        });
        let Some(looks) = looks.await? else {
            names.iter().for_each(|name| self.agenda.done(name));
            self.forget();
            return Ok(());
        };
        // What led to these answers was told before them.
        self.note_what_waits();
        // Where that was a change of leaders, all was forgotten.
        for look in looks {
            match (self.agenda.is_busy(&look.name), look.is_unrecovered) {
                (false, _) => {}
                // It is told of when it is judged.
                (true, true) => self.agenda.done(&look.name),
                (true, false) => self.start(look),
            }
        }
        Ok(())
    }

    fn start(&mut self, look: Look) {
        let Look { name, view, .. } = look;
        let seen = self.objects.pipelines.get(&name);
        let object = seen.filter(|seen| seen.object.meta().deletion_timestamp.is_none()).cloned();
        let page = self.pages.remove(&name).unwrap_or_default();
        let mut steps = Vec::new();
        if let (Some(seen), Some(view)) = (&object, &view) {
            let shown = page.status(&seen.object).phase;
            steps = self.agenda.steps(&name, phase(&shown), view.phase);
        }
        let scene = Scene {
            namespace: name.parts().0.unwrap_or_default().to_owned(),
            objects: Arc::clone(&self.objects),
            pods: self.context.pods.clone(),
            zones: self.zones.clone(),
        };
        let tools = self.tools.clone();
        let pass = Pass { tools, scene, name, object, view, steps, page };
        self.passes.spawn(pass.run());
    }

    fn take_back(&mut self, name: PipelineName, mut page: Page) {
        self.agenda.done(&name);
        let now = clock::now();
        self.rest_on(&name, std::mem::take(&mut page.pods));
        if let Some(at) = page.setbacks.next() {
            self.agenda.put(name.clone(), at);
        }
        if std::mem::take(&mut page.wrote) {
            let at = page.pace(now);
            if at > now {
                self.agenda.rest(&name, at);
            }
        }
        if self.objects.pipelines.contains_key(&name) {
            self.pages.insert(name, page);
        }
    }

    fn note_what_waits(&mut self) {
        loop {
            match self.changes.try_recv() {
                Ok(change) => self.note(&change),
                Err(TryRecvError::Lagged(_)) => self.look_at_all(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn note(&mut self, change: &Change) {
        let Change::Notice(notice) = change else { return };
        let now = clock::now();
        match notice {
            Notice::Elected(_) => {
                self.forget();
                self.look_at_all();
            }
            Notice::Deposed(_) => self.forget(),
            Notice::Pipeline { pipeline, from, to, why } => {
                self.agenda.put(pipeline.clone(), now);
                let Some(to) = *to else { return self.agenda.end(pipeline) };
                if *from != Some(to) {
                    self.agenda.step(pipeline, (*from, to));
                }
                if let Some(seen) = self.context.objects.borrow().pipelines.get(pipeline) {
                    self.tools.tell.state(&seen.object, *from, to, why);
                }
            }
            Notice::Binding { pipeline, .. } | Notice::Endpoints { pipeline, .. } => {
                self.agenda.put(pipeline.clone(), now);
            }
            Notice::HoldEnded(_)
            | Notice::Joined(_)
            | Notice::Disconnected(_)
            | Notice::Lost(_)
            | Notice::GivenUp { .. }
            | Notice::DrainStarted(_)
            | Notice::Gone(_)
            | Notice::PoolGranted { .. }
            | Notice::StreamGranted { .. }
            | Notice::StreamRevoked { .. }
            | Notice::StreamFreed { .. }
            | Notice::EpochAhead { .. }
            | Notice::Offence { .. } => {}
        }
    }

    /// Another leader may have written since, or will: what is under way writes no more.
    fn forget(&mut self) {
        self.passes = JoinSet::new();
        self.agenda.clear();
        self.pages.clear();
        self.serves.clear();
        self.rests_on.clear();
    }

    fn look_at_all(&mut self) {
        let now = clock::now();
        let objects = self.objects.pipelines.keys().cloned();
        let names: Vec<_> = objects.chain(self.tools.made.homes()).collect();
        names.into_iter().for_each(|name| self.agenda.put(name, now));
    }

    fn look_at_class(&mut self, class: &ClusterName) {
        let now = clock::now();
        let of_class = |spec: &leasehold_manifest::manifest::PipelineSpec| {
            spec.workers.values().any(|node| node.class == class.parts().1)
        };
        for (name, seen) in &self.objects.pipelines {
            if name.parts().0 == class.parts().0 && of_class(&seen.object.spec) {
                self.agenda.put(name.clone(), now);
            }
        }
    }

    fn see_objects(&mut self, seen: Arc<Objects>) {
        let before = std::mem::replace(&mut self.objects, seen);
        if before.is_whole != self.objects.is_whole {
            return self.look_at_all();
        }
        let now = clock::now();
        let is_same = |name: &PipelineName| match (
            before.pipelines.get(name),
            self.objects.pipelines.get(name),
        ) {
            (Some(one), Some(other)) => {
                Arc::ptr_eq(&one.object, &other.object) && one.problems == other.problems
            }
            (one, other) => one.is_none() && other.is_none(),
        };
        let names = before.pipelines.keys().chain(self.objects.pipelines.keys());
        let changed: Vec<_> = names.filter(|name| !is_same(name)).cloned().collect();
        changed.into_iter().for_each(|name| self.agenda.put(name, now));
        let port = |objects: &Objects, class: &ClusterName| {
            objects.classes.get(class).and_then(|seen| seen.object.spec.port)
        };
        let classes = before.classes.keys().chain(self.objects.classes.keys());
        let others: BTreeSet<ClusterName> = classes
            .filter(|class| port(&before, class) != port(&self.objects, class))
            .cloned()
            .collect();
        others.iter().for_each(|class| self.look_at_class(class));
    }

    fn see_pods(&mut self) {
        let now = clock::now();
        for (name, serves) in &mut self.serves {
            let pod = self.context.pods.find(&name.namespace, &name.name);
            if !is_same(serves.pod.as_ref(), pod.as_ref()) {
                serves.pod = pod;
                serves.pipelines.iter().for_each(|it| self.agenda.put(it.clone(), now));
            }
        }
    }

    /// A pipeline's endpoints rest on these pods, which a pass has seen like this.
    fn rest_on(&mut self, name: &PipelineName, pods: BTreeMap<PodName, Option<Arc<PodFacts>>>) {
        let names: BTreeSet<_> = pods.keys().cloned().collect();
        let before = match names.is_empty() {
            true => self.rests_on.remove(name),
            false => self.rests_on.insert(name.clone(), names),
        };
        for pod in before.into_iter().flatten().filter(|pod| !pods.contains_key(pod)) {
            let Some(serves) = self.serves.get_mut(&pod) else { continue };
            serves.pipelines.remove(name);
            if serves.pipelines.is_empty() {
                self.serves.remove(&pod);
            }
        }
        for (pod, seen) in pods {
            let is = self.context.pods.find(&pod.namespace, &pod.name);
            if !is_same(seen.as_ref(), is.as_ref()) {
                self.agenda.put(name.clone(), clock::now());
            }
            let serves = self.serves.entry(pod).or_default();
            if serves.pipelines.is_empty() {
                serves.pod = is;
            }
            serves.pipelines.insert(name.clone());
        }
    }
}

fn is_same(one: Option<&Arc<PodFacts>>, other: Option<&Arc<PodFacts>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

fn look(core: &leasehold_coordinator_core::Core, name: PipelineName) -> Look {
    let view = core.pipeline(&name);
    let is_unrecovered = view.is_some() && !core.is_recovered(&name);
    Look { name, view, is_unrecovered }
}

fn phase(text: &str) -> Option<leasehold_coordinator_core::view::PipelinePhase> {
    use leasehold_coordinator_core::view::PipelinePhase::{Broken, Pending, Plotted, Ready};
    [Pending, Plotted, Ready, Broken].into_iter().find(|phase| phase.to_string() == text)
}
