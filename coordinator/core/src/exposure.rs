//! Exposures: the most that a worker may hold, stored before it is granted more. An entry
//! names the version of a list of sets and not the sets, so that it stays small. Invariant: an
//! unknown or unreadable list or entry counts as everything.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::limits::{JOBS_PER_WORKER_MAX, TTL_MAX};
use leasehold_types::message::ReportedMemory;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{AgentId, ClusterName, Epoch, Incarnation, SetName};

/// How many lists of one cluster are remembered. An entry that names an older one counts as
/// [`SetScope::Any`].
const LISTS_MAX: usize = 16;

/// Identifies a [`SetList`] by its content, for every replica and release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetsVersion(pub u64);

/// The sets of which a worker may own streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetScope {
    /// It may own none.
    #[default]
    None,
    /// It may own streams of the sets of one list.
    Listed {
        /// The list.
        version: SetsVersion,
        /// Whether a lease that never ends by time may be among them.
        timeless: bool,
    },
    /// It may own streams of any set of its namespace, and its leases never end by time.
    Any,
}

/// The most that a worker may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// The newest agent that was granted anything. The report of an older agent that still lives
    /// does not cover the leases of this one.
    pub incarnation: Incarnation,
    /// The longest time that one of its leases may last.
    pub ttl: Duration,
    /// The largest pool.
    pub jobs_max: u32,
    /// The sets of which it may own streams.
    pub sets: SetScope,
    /// The identity of that newest agent; none if it gives none, or names are not kept.
    pub identity: Option<AgentId>,
    /// The identity of that agent, names kept or not, where nothing of an earlier one was
    /// outstanding when it was registered: its own report covers all that the worker may hold.
    pub fresh_agent: Option<AgentId>,
}

/// An exposure as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The term of the leader that wrote or adopted it; 0 where that cannot be read.
    pub epoch: Epoch,
    /// The most that the worker may hold.
    pub exposure: Exposure,
}

/// Numbers accounts within a term: a worker whose entry was removed and that returns has another
/// account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(pub u64);

/// Sets, and for each whether the leases of its streams never end by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetList(BTreeMap<SetName, bool>);

/// The lists that were in force, cluster by cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetLists(BTreeMap<ClusterName, VecDeque<(SetsVersion, Arc<SetList>)>>);

impl SetScope {
    /// Whether a lease that never ends by time may be among them.
    #[must_use]
    pub fn is_timeless(self) -> bool {
        match self {
            Self::None => false,
            Self::Listed { timeless, .. } => timeless,
            Self::Any => true,
        }
    }
}

impl Exposure {
    /// The exposure that stands for an unreadable entry. It has incarnation 0, so that any agent's
    /// report covers it. With two agents of one name the older one's report may then count as
    /// complete. So a platform whose entries others can corrupt admits only the agent of the newest
    /// pod of a name.
    #[must_use]
    pub fn anything() -> Self {
        if mutation::on(Mutation::UnreadableEntryIsNothing) {
            return Self::default();
        }
        Self {
            incarnation: Incarnation(0),
            ttl: TTL_MAX,
            jobs_max: JOBS_PER_WORKER_MAX,
            sets: SetScope::Any,
            identity: None,
            fresh_agent: None,
        }
    }

    /// Whether it allows nothing.
    pub(crate) fn is_nothing(&self) -> bool {
        self.jobs_max == 0 && self.sets == SetScope::None
    }

    /// Whether nothing of an earlier agent was outstanding when this one was registered. An agent
    /// that has lost its journal may by chance have the same incarnation, and not the identity.
    pub(crate) fn is_fresh_for(&self, incarnation: Incarnation, agent: Option<AgentId>) -> bool {
        self.incarnation == incarnation && self.fresh_agent.is_some() && self.fresh_agent == agent
    }

    /// Whether the report of an agent with this memory names all that the worker may hold.
    pub(crate) fn is_covered(
        &self,
        incarnation: Incarnation,
        agent: Option<AgentId>,
        memory: ReportedMemory,
    ) -> bool {
        let is_its_own = self.is_fresh_for(incarnation, agent);
        memory.knows_from == Incarnation(0)
            || (is_its_own && memory.knows_from <= incarnation)
            || self.left_as(agent, memory).is_some()
    }

    /// The incarnation under which this agent has said goodbye before, if it was this entry's: then
    /// nothing is left of all that the worker may hold.
    pub(crate) fn left_as(
        &self,
        agent: Option<AgentId>,
        memory: ReportedMemory,
    ) -> Option<Incarnation> {
        let left = memory.left?;
        (self.is_fresh_for(left, agent) || mutation::on(Mutation::AnyEntryLeft)).then_some(left)
    }

    /// The identity of the newest agent of both.
    fn newest_identity(&self, other: &Self) -> Option<AgentId> {
        if other.incarnation > self.incarnation {
            other.identity
        } else {
            self.identity.or(other.identity)
        }
    }
}

impl Entry {
    /// The entry that stands for an unreadable one: its writer is unknown.
    #[must_use]
    pub fn unreadable() -> Self {
        Self { epoch: Epoch(0), exposure: Exposure::anything() }
    }

    /// Whether it stands for an unreadable entry.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        self.epoch == Epoch(0)
    }

    /// An entry that allows what either allows, for entries of one worker that are kept apart. It
    /// counts as written by the earlier of both leaders.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        let (one, two) = (&self.exposure, &other.exposure);
        let sets = match (one.sets, two.sets) {
            (SetScope::None, sets) | (sets, SetScope::None) => sets,
            (one, two) if one == two => one,
            (SetScope::Listed { .. } | SetScope::Any, SetScope::Listed { .. } | SetScope::Any) => {
                SetScope::Any
            }
        };
        let exposure = Exposure {
            incarnation: one.incarnation.max(two.incarnation),
            ttl: one.ttl.max(two.ttl),
            jobs_max: one.jobs_max.max(two.jobs_max),
            sets,
            identity: one.newest_identity(two),
            // Each may be of an agent that the other does not know of.
            fresh_agent: None,
        };
        Self { epoch: self.epoch.min(other.epoch), exposure }
    }
}

impl FromIterator<(SetName, bool)> for SetList {
    fn from_iter<I: IntoIterator<Item = (SetName, bool)>>(sets: I) -> Self {
        Self(sets.into_iter().collect())
    }
}

impl SetList {
    /// Its version: FNV-1a over the names and flags, in the order of names.
    #[must_use]
    pub fn version(&self) -> SetsVersion {
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let sum = self.0.iter().fold(0xcbf2_9ce4_8422_2325, |sum, (name, timeless)| {
            let sum = name.as_str().bytes().fold(sum, step);
            // Names contain neither byte.
            step(sum, u8::from(*timeless))
        });
        SetsVersion(sum)
    }

    /// The sets of an exposure whose worker may own streams of this list.
    #[must_use]
    pub fn sets(&self) -> SetScope {
        if self.0.is_empty() {
            SetScope::None
        } else {
            let timeless = self.0.values().any(|timeless| *timeless);
            SetScope::Listed { version: self.version(), timeless }
        }
    }

    /// For a set of the list, whether the leases of its streams never end by time; none for other
    /// sets.
    #[must_use]
    pub fn get(&self, set: &SetName) -> Option<bool> {
        self.0.get(set).copied()
    }

    /// The sets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SetName, bool)> {
        self.0.iter().map(|(set, timeless)| (set, *timeless))
    }

    fn allows(&self, set: &SetName, timeless: bool) -> bool {
        self.get(set).is_some_and(|allowed| allowed || !timeless)
    }
}

impl SetLists {
    /// Remembers a list that is in force.
    pub(crate) fn note(&mut self, cluster: &ClusterName, list: &Arc<SetList>) {
        let version = list.version();
        let known = self.0.entry(cluster.clone()).or_default();
        known.retain(|(known, _)| *known != version);
        known.push_back((version, Arc::clone(list)));
        if known.len() > LISTS_MAX {
            known.pop_front();
        }
    }

    /// The list of this version, where it is known.
    pub(crate) fn get(&self, cluster: &ClusterName, version: SetsVersion) -> Option<&Arc<SetList>> {
        let known = self.0.get(cluster)?.iter();
        known.rev().find(|(known, _)| *known == version).map(|(_, list)| list)
    }

    /// Whether `sets` surely allow a lease on a stream of this set.
    pub(crate) fn allow(
        &self,
        cluster: &ClusterName,
        sets: SetScope,
        set: &SetName,
        timeless: bool,
    ) -> bool {
        match sets {
            SetScope::None => false,
            SetScope::Any => true,
            SetScope::Listed { version, .. } => {
                self.get(cluster, version).is_some_and(|list| list.allows(set, timeless))
            }
        }
    }

    /// Whether `have` surely allows all that `wanted` does.
    pub(crate) fn cover(&self, cluster: &ClusterName, have: SetScope, wanted: SetScope) -> bool {
        match (have, wanted) {
            (SetScope::Any, _) | (_, SetScope::None) => true,
            (SetScope::None, _) | (SetScope::Listed { .. }, SetScope::Any) => false,
            (SetScope::Listed { version: have, .. }, SetScope::Listed { version: wanted, .. }) => {
                let lists = self.get(cluster, have).zip(self.get(cluster, wanted));
                have == wanted
                    || lists.is_some_and(|(have, wanted)| {
                        wanted.iter().all(|(set, timeless)| have.allows(set, timeless))
                    })
            }
        }
    }

    /// Sets that allow what either allows.
    pub(crate) fn join(&self, cluster: &ClusterName, one: SetScope, other: SetScope) -> SetScope {
        if self.cover(cluster, one, other) {
            one
        } else if self.cover(cluster, other, one) {
            other
        } else {
            SetScope::Any
        }
    }

    /// Whether `have` surely allows all that `wanted` does.
    pub(crate) fn covers(&self, cluster: &ClusterName, have: &Exposure, wanted: &Exposure) -> bool {
        have.incarnation >= wanted.incarnation
            && have.ttl >= wanted.ttl
            && have.jobs_max >= wanted.jobs_max
            && have.identity == wanted.identity
            && (have.fresh_agent.is_none() || have.fresh_agent == wanted.fresh_agent)
            && self.cover(cluster, have.sets, wanted.sets)
    }

    /// An exposure that covers both.
    pub(crate) fn joined(
        &self,
        cluster: &ClusterName,
        one: &Exposure,
        other: &Exposure,
    ) -> Exposure {
        Exposure {
            incarnation: one.incarnation.max(other.incarnation),
            ttl: one.ttl.max(other.ttl),
            jobs_max: one.jobs_max.max(other.jobs_max),
            sets: self.join(cluster, one.sets, other.sets),
            identity: one.newest_identity(other),
            fresh_agent: one
                .fresh_agent
                .filter(|_| one.is_fresh_for(other.incarnation, other.fresh_agent)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(sets: &[(&str, bool)]) -> Arc<SetList> {
        let named = sets.iter().map(|(name, timeless)| (SetName::new(name).unwrap(), *timeless));
        Arc::new(named.collect())
    }

    #[test]
    fn a_version_names_one_list_and_an_unknown_one_covers_nothing() {
        let cluster = ClusterName::new("c").unwrap();
        let mut lists = SetLists::default();
        let (small, large) = (list(&[("a", false)]), list(&[("a", true), ("b", false)]));
        assert_ne!(small.version(), list(&[("a", true)]).version());
        assert_eq!(small.version(), list(&[("a", false)]).version());
        assert!(!lists.cover(&cluster, large.sets(), small.sets()), "unknown");
        lists.note(&cluster, &small);
        lists.note(&cluster, &large);
        assert!(lists.cover(&cluster, large.sets(), small.sets()));
        assert!(!lists.cover(&cluster, small.sets(), large.sets()));
        assert_eq!(lists.join(&cluster, small.sets(), large.sets()), large.sets());
        let other = list(&[("c", false)]);
        assert_eq!(lists.join(&cluster, small.sets(), other.sets()), SetScope::Any);
        let (a, b) = (SetName::new("a").unwrap(), SetName::new("b").unwrap());
        assert!(lists.allow(&cluster, large.sets(), &a, true));
        assert!(!lists.allow(&cluster, large.sets(), &b, true));
        assert!(!lists.allow(&cluster, small.sets(), &b, false));
        for number in 0..LISTS_MAX {
            lists.note(&cluster, &list(&[(&format!("s{number}"), false)]));
        }
        assert!(!lists.allow(&cluster, small.sets(), &a, false), "forgotten");
    }

    /// Exposures that differ from nothing in one field each, and some in several.
    fn exposures() -> Vec<Exposure> {
        let nothing = Exposure::default;
        let set = |set: fn(&mut Exposure)| {
            let mut exposure = nothing();
            set(&mut exposure);
            exposure
        };
        vec![
            nothing(),
            set(|exposure| exposure.incarnation = Incarnation(3)),
            set(|exposure| exposure.ttl = Duration::from_secs(9)),
            set(|exposure| exposure.jobs_max = 4),
            set(|exposure| exposure.sets = list(&[("a", false)]).sets()),
            set(|exposure| exposure.sets = list(&[("a", true), ("b", false)]).sets()),
            set(|exposure| exposure.sets = SetScope::Any),
            set(|exposure| exposure.identity = Some(AgentId(1))),
            set(|exposure| {
                (exposure.identity, exposure.incarnation) = (Some(AgentId(2)), Incarnation(5))
            }),
            set(|exposure| {
                (exposure.fresh_agent, exposure.incarnation) = (Some(AgentId(1)), Incarnation(3))
            }),
            set(|exposure| {
                (exposure.fresh_agent, exposure.incarnation) = (Some(AgentId(2)), Incarnation(3))
            }),
            Exposure::anything(),
        ]
    }

    #[test]
    fn what_is_joined_covers_both_and_promises_nothing_that_one_does_not() {
        let cluster = ClusterName::new("c").unwrap();
        let mut lists = SetLists::default();
        lists.note(&cluster, &list(&[("a", false)]));
        lists.note(&cluster, &list(&[("a", true), ("b", false)]));
        for one in exposures() {
            for two in exposures() {
                let entry = |epoch, exposure: &Exposure| Entry {
                    epoch: Epoch(epoch),
                    exposure: exposure.clone(),
                };
                let by_entry = entry(2, &one).join(&entry(3, &two));
                assert_eq!(by_entry.epoch, Epoch(2));
                assert_eq!(by_entry.exposure.fresh_agent, None);
                for both in [lists.joined(&cluster, &one, &two), by_entry.exposure] {
                    for part in [&one, &two] {
                        let case = format!("{one:?} and {two:?}: {both:?}");
                        assert!(both.incarnation >= part.incarnation, "{case}");
                        assert!(both.ttl >= part.ttl && both.jobs_max >= part.jobs_max, "{case}");
                        assert!(lists.cover(&cluster, both.sets, part.sets), "{case}");
                        assert!(both.sets.is_timeless() || !part.sets.is_timeless(), "{case}");
                        // The newest agent's identity; that of the other where it has none.
                        let newest = part.identity.is_some()
                            && part.incarnation == both.incarnation
                            && one.incarnation != two.incarnation;
                        assert!(!newest || both.identity == part.identity, "{case}");
                    }
                    let fresh =
                        one.fresh_agent == two.fresh_agent && one.incarnation == two.incarnation;
                    assert!(both.fresh_agent.is_none() || fresh, "{one:?} and {two:?}: {both:?}");
                }
                let both = lists.joined(&cluster, &one, &two);
                assert_eq!(
                    both.fresh_agent,
                    one.fresh_agent.filter(|_| {
                        one.fresh_agent == two.fresh_agent && one.incarnation == two.incarnation
                    })
                );
            }
        }
    }

    #[test]
    fn an_exposure_covers_another_where_no_field_allows_less() {
        let cluster = ClusterName::new("c").unwrap();
        let lists = SetLists::default();
        for one in exposures() {
            assert_eq!(one.is_nothing(), one.jobs_max == 0 && one.sets == SetScope::None);
            assert!(lists.covers(&cluster, &one, &one), "{one:?}");
            // A promise about an agent does not hold for another one.
            let other = Exposure { fresh_agent: Some(AgentId(9)), ..one.clone() };
            assert_eq!(lists.covers(&cluster, &one, &other), one.fresh_agent.is_none());
        }
        assert!(!Exposure { jobs_max: 1, ..Exposure::default() }.is_nothing());
        assert!(!Exposure { sets: SetScope::Any, ..Exposure::default() }.is_nothing());
    }
}
