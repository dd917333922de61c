//! The caches of the objects that fleets create or adopt.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::stream::{SelectAll, select_all};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::watcher;
use leasehold_kube_api::names::{FIELD_MANAGER, MANAGED_BY_LABEL, disruption_budget};
use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::watch_cache::{ObjectKey, WatchCache};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use super::Context;
use super::action::ObjectRef;
use super::evictions::BudgetFacts;
use super::fleet::Fleet;
use super::workload::{self, WorkloadFacts};

/// The Deployments and StatefulSets, and the PodDisruptionBudgets of earlier versions.
pub(super) struct WorkloadCaches {
    deployments: WatchCache<WorkloadFacts>,
    stateful_sets: WatchCache<WorkloadFacts>,
    budgets: WatchCache<BudgetFacts>,
}

impl WorkloadCaches {
    /// Starts the watches.
    pub(super) fn start(context: &Context) -> Self {
        let all = watcher::Config::default();
        let own = watcher::Config::default().labels(&format!("{MANAGED_BY_LABEL}={FIELD_MANAGER}"));
        let deployments = context.apis::<Deployment>();
        let stateful_sets = context.apis::<StatefulSet>();
        let budgets = context.apis::<PodDisruptionBudget>();
        let caches = Self {
            deployments: WatchCache::start(
                "deployments",
                deployments,
                &all,
                WorkloadFacts::of_deployment,
            ),
            stateful_sets: WatchCache::start(
                "statefulsets",
                stateful_sets,
                &all,
                WorkloadFacts::of_stateful_set,
            ),
            budgets: WatchCache::start("poddisruptionbudgets", budgets, &own, BudgetFacts::new),
        };
        caches.deployments.collect_changed();
        caches.stateful_sets.collect_changed();
        caches.budgets.collect_changed();
        caches
    }

    /// Notifies of each change of a cache, and of others.
    pub(super) fn changes(&self, others: watch::Receiver<u64>) -> SelectAll<WatchStream<u64>> {
        let own =
            [self.deployments.changed(), self.stateful_sets.changed(), self.budgets.changed()];
        select_all(own.into_iter().chain([others]).map(WatchStream::new))
    }

    /// The objects that have changed since the last call.
    pub(super) fn take_changed(&self) -> Vec<(ObjectKey, ObjectRef)> {
        let changed = [
            ("Deployment", self.deployments.take_changed()),
            ("StatefulSet", self.stateful_sets.take_changed()),
            ("PodDisruptionBudget", self.budgets.take_changed()),
        ];
        let reference = |kind: &str, key: &ObjectKey| ObjectRef::Object {
            kind: kind.to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        };
        let of_kind = |(kind, keys): (&'static str, BTreeSet<ObjectKey>)| {
            keys.into_iter().map(move |key| {
                let reference = reference(kind, &key);
                (key, reference)
            })
        };
        changed.into_iter().flat_map(of_kind).collect()
    }

    /// Whether every object was listed once, but for those of namespaces that may not be listed.
    pub(super) fn are_complete(&self) -> bool {
        self.deployments.is_complete()
            && self.stateful_sets.is_complete()
            && self.budgets.is_complete()
    }

    /// Whether the API server forbids to list the objects of a namespace, or of all.
    pub(super) fn are_forbidden_in(&self, namespace: Option<&str>) -> bool {
        self.deployments.forbidden_in(namespace).is_some()
            || self.stateful_sets.forbidden_in(namespace).is_some()
            || self.budgets.forbidden_in(namespace).is_some()
    }

    /// The workload of a fleet, as it was last seen.
    pub(super) fn workload(&self, fleet: &Fleet) -> Option<Arc<WorkloadFacts>> {
        let target = workload::target(fleet)?;
        let key = ObjectKey::new(fleet.namespace(), target.name);
        match target.kind {
            WorkloadKind::Deployment => self.deployments.get(&key),
            WorkloadKind::StatefulSet => self.stateful_sets.get(&key),
        }
    }

    /// The PodDisruptionBudget by which an earlier version protected a fleet's busy pods.
    pub(super) fn budget(&self, fleet: &Fleet) -> Option<Arc<BudgetFacts>> {
        self.budgets.get(&ObjectKey::new(fleet.namespace(), disruption_budget(fleet.name())))
    }
}
