//! Says the last word on pods that vanished while they may have run, once their agents are silent;
//! and looks from time to time whether the core knows workers whose pods are there no more: a
//! hello that crossed the word of its end, a word that came before leadership.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::view::{Leadership, Presence};
use leasehold_driver::clock;
use leasehold_driver::port::Handle;
use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::facts::{PodFacts, PodName};
use super::roll::{Asked, Ghost, Heard, Verdict};

/// How often ghosts are looked at while there are some.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often the API server is asked again for a pod that lost its label.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long it may take to answer.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How long it is left alone after it has not answered.
const LEFT_ALONE: Duration = Duration::from_secs(1);
/// Questions to the API server at once.
const ASKED_AT_ONCE_MAX: usize = 8;
/// How often to look whether this replica leads: what vanishes in its term is gone sooner.
const TERM_EVERY: Duration = Duration::from_millis(500);
/// How often the core's workers are compared with the pods.
const SWEEP_EVERY: Duration = Duration::from_secs(15);

/// Sees ghosts off.
pub(super) struct Mourner {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    term: Option<(Epoch, Moment)>,
    swept_at: Option<Moment>,
    /// When the API server last did not answer.
    unanswered_at: Option<Moment>,
}

impl Mourner {
    pub(super) fn new(shared: Arc<Shared>, events: mpsc::Sender<Event>) -> Self {
        Self { shared, events, term: None, swept_at: None, unanswered_at: None }
    }

    /// Runs until nobody takes the events.
    pub(super) async fn run(mut self) {
        let mut changed = self.shared.changed.subscribe();
        let events = self.events.clone();
        loop {
            let tick = sleep(TERM_EVERY);
            let haunted = async {
                while !self.shared.is_haunted() && changed.changed().await.is_ok() {}
                sleep(self.patience()).await;
            };
            tokio::select! {
                () = events.closed() => return,
                () = tick => {}
                () = haunted => {}
            }
            if !self.look().await {
                return;
            }
        }
    }

    /// How long until the next look while there are ghosts: none where one has just come.
    fn patience(&self) -> Duration {
        if self.unanswered_at.is_some() {
            return LOOK_EVERY;
        }
        let now = clock::now();
        let is_new =
            |ghost: &Ghost| ghost.asked == Asked::Never && now.since(ghost.since) < LOOK_EVERY;
        match self.shared.roll().ghosts().any(|(_, ghost)| is_new(ghost)) {
            true => Duration::ZERO,
            false => LOOK_EVERY,
        }
    }

    /// One look at everything; false where nobody takes the events any more.
    async fn look(&mut self) -> bool {
        let handle = self.shared.settings.handle.borrow().clone();
        self.note_term(handle.as_ref()).await;
        let ghosts = self.ghosts();
        let mut told = self.ask_server(ghosts).await;
        for (name, ghost) in self.ghosts() {
            let heard = match &handle {
                Some(handle) => self.hear(handle, &ghost.keys).await,
                None => Heard { term: None, presence: None },
            };
            let verdict = {
                let roll = self.shared.roll();
                roll.verdict(&name, &ghost, heard, &self.shared.settings.bounds, clock::now())
            };
            match verdict {
                Verdict::Wait => {}
                Verdict::Gone => told &= self.tell(&name, &ghost.uid, ghost.keys).await,
                Verdict::Forget => self.shared.roll().lay(&name, &ghost.uid),
            }
        }
        if let Some(handle) = handle {
            told &= self.sweep(&handle).await;
        }
        told
    }

    fn ghosts(&self) -> Vec<(PodName, Ghost)> {
        self.shared.roll().ghosts().map(|(name, ghost)| (name.clone(), ghost.clone())).collect()
    }

    async fn note_term(&mut self, handle: Option<&Handle>) {
        let leadership = match handle {
            Some(handle) => handle.ask(|core, _| core.leadership()).await.ok(),
            None => None,
        };
        self.term = match (leadership, self.term) {
            (Some(Leadership::Leads(epoch)), Some((known, since))) if epoch == known => {
                Some((known, since))
            }
            (Some(Leadership::Leads(epoch)), _) => {
                self.swept_at = None;
                Some((epoch, clock::now()))
            }
            (Some(Leadership::StandsBy(_)) | None, _) => None,
        };
    }

    /// Asks the API server for those of which it has not said that they do not exist.
    async fn ask_server(&mut self, ghosts: Vec<(PodName, Ghost)>) -> bool {
        let now = clock::now();
        if self.unanswered_at.is_some_and(|at| now.since(at) < LEFT_ALONE) {
            return true;
        }
        self.unanswered_at = None;
        let due = ghosts.into_iter().filter(|(_, ghost)| match ghost.asked {
            Asked::Never => true,
            Asked::Exists(at) => now.since(at) >= ASK_AGAIN_AFTER,
            Asked::Deleted => false,
        });
        let shared = Arc::clone(&self.shared);
        let answers = stream::iter(due).map(|(name, ghost)| {
            let shared = Arc::clone(&shared);
            async move {
                let api: Api<Pod> = shared.api(Some(&name.namespace));
                let answer = timeout(ASK_WITHIN, api.get_opt(&name.name)).await;
                (name, ghost, answer)
            }
        });
        let mut answers = std::pin::pin!(answers.buffer_unordered(ASKED_AT_ONCE_MAX));
        let mut told = true;
        while let Some((name, ghost, answer)) = answers.next().await {
            let found = match answer {
                Ok(Ok(pod)) => pod.as_ref().and_then(PodFacts::new),
                Ok(Err(error)) => {
                    tracing::debug!(%error, pod = name.name, "a pod that vanished: no answer");
                    self.unanswered_at = Some(clock::now());
                    continue;
                }
                Err(_) => {
                    self.unanswered_at = Some(clock::now());
                    continue;
                }
            };
            let gone = self.shared.roll().asked(&name, &ghost.uid, found.as_ref(), clock::now());
            if !gone.is_empty() {
                let uid = found.map_or(ghost.uid, |facts| facts.uid);
                told &= self.tell(&name, &uid, gone).await;
            }
        }
        told
    }

    async fn hear(&self, handle: &Handle, keys: &[WorkerKey]) -> Heard {
        let keys = keys.to_vec();
        let heard = handle.ask(move |core, now| {
            let workers = keys.iter().filter_map(|key| core.worker(key, now));
            let presences: Vec<_> = workers.map(|worker| worker.presence).collect();
            let connected = presences.iter().find(|it| **it == Presence::Connected);
            let presence = connected.or(presences.first()).copied();
            match core.leadership() {
                Leadership::Leads(epoch) => (Some(epoch), presence),
                Leadership::StandsBy(_) => (None, presence),
            }
        });
        match heard.await {
            Ok((epoch, presence)) => {
                let term = self.term.filter(|(known, _)| Some(*known) == epoch);
                Heard { term, presence }
            }
            Err(_) => Heard { term: None, presence: None },
        }
    }

    /// Says that workers are gone; only then their ghost is laid, and a later pod is let in.
    async fn tell(&self, name: &PodName, uid: &str, keys: Vec<WorkerKey>) -> bool {
        let told = self.events.send(Event::Gone(keys)).await.is_ok();
        self.shared.roll().lay(name, uid);
        self.shared.has_changed();
        told
    }

    /// Compares the core's workers with the pods.
    async fn sweep(&mut self, handle: &Handle) -> bool {
        let now = clock::now();
        let due = self.swept_at.is_none_or(|at| now.since(at) >= SWEEP_EVERY);
        if self.term.is_none() || !due || !self.shared.is_synced() {
            return true;
        }
        self.swept_at = Some(now);
        let Ok(keys) = handle.ask(workers).await else { return true };
        let gone: Vec<_> = {
            let mut roll = self.shared.roll();
            keys.into_iter().filter(|key| roll.miss(key, now)).collect()
        };
        gone.is_empty() || self.events.send(Event::Gone(gone)).await.is_ok()
    }
}

fn workers(core: &Core, now: Moment) -> Vec<WorkerKey> {
    let clusters = core.clusters(now).into_iter().map(|cluster| cluster.name);
    let workers = clusters.filter_map(|cluster| core.workers(&cluster, now));
    workers.flatten().map(|worker| worker.key).collect()
}
