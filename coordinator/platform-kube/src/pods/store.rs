//! The store of pods, pure: watch events go in, and workers that are gone come out. A pod that
//! vanished while it may have run leaves a tombstone until its workers are reported gone, and no
//! later pod of its name is admitted before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::exposure::Entry as ExposureEntry;
use leasehold_coordinator_core::view::Presence;
use leasehold_types::{ClusterName, Epoch, Moment, TimeBounds, WorkerKey};

use super::facts::{PodFacts, PodName};
use super::node_end::{ASK_AGAIN_AFTER, NodeAnswer, REPLACED_WITHIN};
use super::patch::ObservedPod;

/// The most former workers of one pod that are remembered: who may patch a pod can make it another
/// worker again and again. Those that are not remembered are confirmed one by one when the core
/// finds that they have no pod.
const FORMER_MAX: usize = 32;
/// How long a standby keeps a tombstone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);

/// The pods and tombstones.
#[derive(Debug, Default)]
pub(super) struct PodStore {
    pods: BTreeMap<PodName, Entry>,
    tombstones: BTreeMap<PodName, Vec<Tombstone>>,
    /// Pods that a list has shown and the watch has not shown yet.
    listed: BTreeMap<PodName, Listed>,
}

#[derive(Debug)]
struct Entry {
    facts: Arc<PodFacts>,
    /// The workers that the pod was before a change of its label.
    former: BTreeSet<WorkerKey>,
}

/// A pod that vanished while it may have run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tombstone {
    /// Its UID; empty if no pod of this name was ever seen.
    pub(super) uid: String,
    /// The workers of the pod.
    pub(super) keys: Vec<WorkerKey>,
    /// The most that they may hold.
    pub(super) exposures: BTreeMap<ClusterName, ExposureEntry>,
    /// When it vanished.
    pub(super) since: Moment,
    /// Its grace period; zero if unknown.
    pub(super) grace: Duration,
    /// The node that it ran on; `None` if it was on none, or if that is unknown.
    pub(super) node: Option<String>,
    /// What that node has said of the pod's end, and when; `None` before it was asked.
    pub(super) node_answer: Option<(NodeAnswer, Moment)>,
    /// The last answer of the API server about the pod.
    pub(super) api_check: ApiCheck,
}

/// What the API server answered about a tombstone's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiCheck {
    /// The API server was not asked yet.
    NotAsked,
    /// The pod exists; it only lost its label.
    Exists(Moment),
    /// It does not exist.
    Deleted,
}

/// A pod in a list of metadata.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) uid: String,
    pub(super) version: u64,
    pub(super) exposures: BTreeMap<ClusterName, ExposureEntry>,
}

/// What the core knows about a tombstone's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoreView {
    /// The term that this replica leads, and when that was first seen.
    pub(super) term: Option<(Epoch, Moment)>,
    /// The presence of its agent, if the core knows the worker; the most of several.
    pub(super) presence: Option<Presence>,
}

/// What to do with a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TombstoneAction {
    /// Keep it: the pod may still run.
    Keep,
    /// End the connections of its agents: a later pod has its name, and waits.
    EndSessions,
    /// Its leases have ended. Ask its node whether its containers have ended, too.
    AskNode,
    /// Report its workers as gone.
    ReportGone,
    /// Drop it: another replica leads and has reported the workers.
    Forget,
}

impl PodStore {
    /// Stores a pod from the watch; returns the workers that are gone now.
    pub(super) fn apply(&mut self, facts: PodFacts, now: Moment) -> Vec<WorkerKey> {
        let name = facts.pod.clone();
        if let Some(listed) = self.listed.get(&name) {
            if listed.uid != facts.uid && facts.version < listed.version {
                return Vec::new();
            }
            self.listed.remove(&name);
        }
        let newer = |entry: &Entry| entry.facts.version > facts.version;
        if self.pods.get(&name).is_some_and(|entry| entry.facts.uid == facts.uid && newer(entry)) {
            // The event is older than this replica's own write; a later event follows.
            return Vec::new();
        }
        let mut former = self.restore(&name, &facts.uid);
        let mut was_over = false;
        match self.pods.remove(&name) {
            Some(entry) if entry.facts.uid == facts.uid => {
                was_over = entry.facts.over;
                former.extend(entry.former);
                let room = FORMER_MAX.saturating_sub(former.len());
                former.extend(entry.facts.workers().into_iter().take(room));
            }
            Some(entry) => self.add_tombstone(entry, now),
            None => {}
        }
        let entry = Entry { facts: Arc::new(facts), former };
        let gone = if entry.facts.over && !was_over { entry.keys() } else { Vec::new() };
        self.pods.insert(name, entry);
        gone
    }

    /// Stores the last state of a deleted pod; returns the workers that are gone now.
    pub(super) fn delete(&mut self, last: PodFacts, now: Moment) -> Vec<WorkerKey> {
        let known = self.pods.get(&last.pod).is_some_and(|entry| entry.facts.uid == last.uid);
        let listed = self.listed.get(&last.pod).is_some_and(|listed| listed.uid == last.uid);
        if !known && !listed {
            return Vec::new();
        }
        let name = last.pod.clone();
        let mut gone = self.apply(last, now);
        let Some(entry) = self.pods.remove(&name) else { return gone };
        if entry.facts.over {
            return gone;
        }
        if entry.facts.node.is_none() {
            // It was never scheduled to a node, so none of its containers ever ran.
            gone.extend(entry.keys());
            return gone;
        }
        self.add_tombstone(entry, now);
        gone
    }

    /// Completes a list of the watch with the pods `seen`: other pods in `within` have vanished,
    /// and are returned.
    pub(super) fn retain(
        &mut self,
        within: impl Fn(&PodName) -> bool,
        seen: &BTreeSet<PodName>,
        now: Moment,
    ) -> Vec<PodName> {
        let lost = |(name, _): &(&PodName, &Entry)| within(name) && !seen.contains(*name);
        let lost: Vec<_> = self.pods.iter().filter(lost).map(|(name, _)| name.clone()).collect();
        for name in &lost {
            match self.pods.remove(name) {
                Some(entry) if !entry.facts.over => self.add_tombstone(entry, now),
                Some(_) | None => {}
            }
        }
        lost
    }

    /// Stores a list, which may be newer than the watch. Returns the exposures of listed pods that
    /// are not known to have finished, of pods that the list no longer has, and of pods with a
    /// tombstone.
    pub(super) fn list(
        &mut self,
        listed: BTreeMap<PodName, Listed>,
        now: Moment,
    ) -> BTreeMap<WorkerKey, ExposureEntry> {
        let mut exposed = BTreeMap::new();
        for (name, entry) in &self.pods {
            if !entry.facts.over && !listed.contains_key(name) {
                join(&mut exposed, name, &entry.facts.exposures);
            }
        }
        for (name, pod) in listed {
            let known = self.pods.get(&name).is_some_and(|entry| entry.facts.uid == pod.uid);
            if known {
                let over = self.pods.get(&name).is_some_and(|entry| entry.facts.over);
                if !over {
                    join(&mut exposed, &name, &pod.exposures);
                }
                continue;
            }
            if self.pods.get(&name).is_some_and(|entry| entry.facts.version > pod.version) {
                // The watch is ahead of the list: it has shown a later pod of this name.
                continue;
            }
            self.restore(&name, &pod.uid);
            let earlier = self.pods.remove(&name);
            if pod.exposures.is_empty() {
                earlier.into_iter().for_each(|entry| self.add_tombstone(entry, now));
            } else {
                // A predecessor reported earlier pods of this name as gone before it admitted this
                // one: their tombstones must not report it again.
                self.tombstones.remove(&name);
            }
            join(&mut exposed, &name, &pod.exposures);
            self.listed.insert(name, pod);
        }
        for (name, tombstone) in self.tombstones() {
            join(&mut exposed, name, &tombstone.exposures);
        }
        exposed
    }

    /// The core knows a worker that has no pod in the store. Returns whether it has certainly
    /// ended; otherwise adds a tombstone.
    pub(super) fn confirm_gone(&mut self, key: &WorkerKey, now: Moment) -> bool {
        let Some(name) = PodName::of(key) else { return false };
        if let Some(entry) = self.pods.get(&name) {
            return entry.facts.over;
        }
        if self.has_tombstone(&name) {
            return false;
        }
        let (uid, exposures) = match self.listed.remove(&name) {
            Some(listed) => (listed.uid, listed.exposures),
            None => (String::new(), BTreeMap::new()),
        };
        let written = exposures.keys().filter_map(|cluster| name.key_in(cluster));
        let keys = written.chain([key.clone()]).collect::<BTreeSet<_>>().into_iter().collect();
        let grace = Duration::ZERO;
        let tombstone = Tombstone {
            uid,
            keys,
            exposures,
            since: now,
            grace,
            node: None,
            node_answer: None,
            api_check: ApiCheck::NotAsked,
        };
        self.tombstones.insert(name, vec![tombstone]);
        false
    }

    /// The pod of this name.
    pub(super) fn find(&self, name: &PodName) -> Option<&Arc<PodFacts>> {
        self.pods.get(name).map(|entry| &entry.facts)
    }

    /// The pod of this name, if no earlier one has a tombstone.
    pub(super) fn settled(&self, name: &PodName) -> Option<&Arc<PodFacts>> {
        let has_tombstone = self.tombstones.contains_key(name);
        self.find(name).filter(|_| !has_tombstone)
    }

    /// Whether an earlier pod of this name may still run.
    pub(super) fn has_tombstone(&self, name: &PodName) -> bool {
        self.tombstones.contains_key(name)
    }

    /// Every pod.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<PodFacts>> {
        self.pods.values().map(|entry| &entry.facts)
    }

    /// Every tombstone.
    pub(super) fn tombstones(&self) -> impl Iterator<Item = (&PodName, &Tombstone)> {
        self.tombstones.iter().flat_map(|(name, tombstones)| {
            tombstones.iter().map(move |tombstone| (name, tombstone))
        })
    }

    /// Stores the API server's answer for the tombstone with this UID: the pod of its name, or
    /// `None`. Returns the workers that are gone now.
    pub(super) fn api_check(
        &mut self,
        name: &PodName,
        uid: &str,
        found: Option<&PodFacts>,
        now: Moment,
    ) -> Vec<WorkerKey> {
        let mut tombstones = self.tombstones.get_mut(name).into_iter().flatten();
        let Some(tombstone) = tombstones.find(|tombstone| tombstone.uid == uid) else {
            return Vec::new();
        };
        match found {
            Some(facts) if tombstone.uid.is_empty() || tombstone.uid == facts.uid => {
                tombstone.uid.clone_from(&facts.uid);
                tombstone.grace = facts.grace;
                tombstone.node.clone_from(&facts.node);
                tombstone.api_check = ApiCheck::Exists(now);
                if facts.over { tombstone.keys.clone() } else { Vec::new() }
            }
            Some(_) | None => {
                if matches!(tombstone.api_check, ApiCheck::Exists(_)) {
                    tombstone.since = now;
                }
                tombstone.api_check = ApiCheck::Deleted;
                Vec::new()
            }
        }
    }

    /// Removes a tombstone.
    pub(super) fn remove_tombstone(&mut self, name: &PodName, uid: &str) {
        if let Some(tombstones) = self.tombstones.get_mut(name) {
            tombstones.retain(|tombstone| tombstone.uid != uid);
            if tombstones.is_empty() {
                self.tombstones.remove(name);
            }
        }
    }

    /// The action for a tombstone, given the core's view of its agent.
    pub(super) fn action_for(
        &self,
        name: &PodName,
        tombstone: &Tombstone,
        core_view: CoreView,
        bounds: &TimeBounds,
        now: Moment,
    ) -> TombstoneAction {
        if tombstone.api_check != ApiCheck::Deleted {
            return TombstoneAction::Keep;
        }
        let age = now.since(tombstone.since);
        let Some((_, leads_since)) = core_view.term else {
            return if age >= FORGOTTEN_AFTER {
                tombstone.once_ended(TombstoneAction::Forget, now)
            } else {
                TombstoneAction::Keep
            };
        };
        let ttl =
            tombstone.exposures.values().map(|entry| entry.exposure.ttl).max().unwrap_or_default();
        let outlasted = age >= bounds.outlast(ttl);
        match core_view.presence {
            Some(Presence::Connected) => {
                let later = self.find(name);
                let waits = later.map(|later| REPLACED_WITHIN + tombstone.grace.max(later.grace));
                if waits.is_some_and(|waits| age >= waits) {
                    TombstoneAction::EndSessions
                } else {
                    TombstoneAction::Keep
                }
            }
            // The agent may be partitioned from the coordinator, and use its leases until they
            // expire: it is lost then. Its worker may run the jobs that it has accepted for longer.
            Some(Presence::Unreported) if outlasted => {
                tombstone.once_ended(TombstoneAction::ReportGone, now)
            }
            Some(Presence::Lost) if outlasted || tombstone.since >= leads_since => {
                tombstone.once_ended(TombstoneAction::ReportGone, now)
            }
            // It holds nothing in this term, but a predecessor may have granted it leases.
            None if outlasted || tombstone.since >= leads_since => TombstoneAction::ReportGone,
            Some(_) | None => TombstoneAction::Keep,
        }
    }

    /// Stores what the node of the tombstone with this UID has answered.
    pub(super) fn node_answered(
        &mut self,
        name: &PodName,
        uid: &str,
        answer: NodeAnswer,
        now: Moment,
    ) {
        let mut tombstones = self.tombstones.get_mut(name).into_iter().flatten();
        if let Some(tombstone) = tombstones.find(|tombstone| tombstone.uid == uid) {
            tombstone.node_answer = Some((answer, now));
        }
    }

    /// Stores the result of this replica's own write, before the watch shows it.
    pub(super) fn record_write(&mut self, name: &PodName, now: ObservedPod) {
        let Some(entry) = self.pods.get_mut(name) else { return };
        if entry.facts.uid != now.uid || entry.facts.version >= now.version {
            // It is another pod, or the watch has shown a newer version.
            return;
        }
        let facts = Arc::make_mut(&mut entry.facts);
        facts.version = now.version;
        facts.exposures = now.exposures;
        facts.mark = now.mark;
    }

    /// Removes the tombstone of a pod that exists; returns its workers.
    fn restore(&mut self, name: &PodName, uid: &str) -> BTreeSet<WorkerKey> {
        let tombstones = self.tombstones.get(name).into_iter().flatten();
        let same = tombstones.filter(|tombstone| tombstone.uid == uid);
        let keys = same.flat_map(|tombstone| tombstone.keys.iter().cloned()).collect();
        self.remove_tombstone(name, uid);
        keys
    }

    fn add_tombstone(&mut self, entry: Entry, now: Moment) {
        if entry.facts.over {
            return;
        }
        let tombstone = Tombstone {
            uid: entry.facts.uid.clone(),
            keys: entry.keys(),
            exposures: entry.facts.exposures.clone(),
            since: now,
            grace: entry.facts.grace,
            node: entry.facts.node.clone(),
            node_answer: None,
            api_check: ApiCheck::NotAsked,
        };
        if tombstone.keys.is_empty() {
            return;
        }
        self.tombstones.entry(entry.facts.pod.clone()).or_default().push(tombstone);
    }
}

impl Tombstone {
    /// The action that needs the pod's containers to have ended: it, or what finds that out.
    fn once_ended(&self, action: TombstoneAction, now: Moment) -> TombstoneAction {
        match self.node_answer {
            // Nothing was ever started, or nobody can say where.
            None if self.node.is_none() => action,
            None => TombstoneAction::AskNode,
            Some((NodeAnswer::Ended | NodeAnswer::NotReadable, _)) => action,
            Some((NodeAnswer::MayRun, at)) if now.since(at) >= ASK_AGAIN_AFTER => {
                TombstoneAction::AskNode
            }
            Some((NodeAnswer::MayRun, _)) => TombstoneAction::Keep,
        }
    }
}

impl Entry {
    fn keys(&self) -> Vec<WorkerKey> {
        let mut keys = self.former.clone();
        keys.extend(self.facts.workers());
        keys.into_iter().collect()
    }
}

fn join(
    exposed: &mut BTreeMap<WorkerKey, ExposureEntry>,
    name: &PodName,
    exposures: &BTreeMap<ClusterName, ExposureEntry>,
) {
    for (cluster, exposure) in exposures {
        let Some(key) = name.key_in(cluster) else { continue };
        let joined = exposed.get(&key).map(|have| have.join(exposure));
        exposed.insert(key, joined.unwrap_or_else(|| exposure.clone()));
    }
}
