//! Counts the agents of pods, when pods or the settings of agents have changed: which pods asked
//! for one and have none, and which have an outdated one. It changes no pod: a pod without an agent
//! was created by a user's decision, and an old agent is replaced with its pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use leasehold_coordinator_core::effect::Notice;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::history::{FleetChange, RecordedChange};
use leasehold_driver::port::Stopped;
use leasehold_injection::names::INJECT;
use leasehold_kube_api::names::{CLUSTER_LABEL, TRUE};
use leasehold_platform_kube::pods::PodFacts;
use leasehold_platform_kube::watch_cache::WatchCache;
use leasehold_platform_kube::webhook::{Clusters, Injector};
use leasehold_types::ClusterName;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};

use super::Context;
use super::events::pod_reference;
use super::fleet::Fleet;
use crate::events::{EventReason, NewEvent};

/// The shortest time between two counts.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The most pods without an agent that are remembered as reported.
const REPORTED_MAX: usize = 10_000;
/// The most pods that a cluster's counts name.
const NAMED_MAX: usize = 5;
/// The most different warnings that they quote: a condition's message is short.
const WARNINGS_NAMED_MAX: usize = 3;

/// The agents of each cluster's pods.
pub(crate) type InjectionByCluster = Arc<BTreeMap<ClusterName, InjectionCounts>>;

/// The agents of the pods that asked for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InjectionCounts {
    /// Pods that asked for an agent and have one.
    pub(crate) injected: u32,
    /// Those that have none.
    pub(crate) missing: u32,
    /// Pods with another agent than a new pod gets.
    pub(crate) outdated: u32,
    /// Pods whose agent was injected with a warning.
    pub(crate) warned: u32,
    /// The first different warnings, each with a pod that has it.
    pub(crate) warnings: Vec<(String, String)>,
    /// The first of those that have none.
    pub(crate) missing_pods: Vec<String>,
    /// The first outdated ones, each with its image and the one that a new pod gets.
    pub(crate) outdated_pods: Vec<(String, String, String)>,
}

impl InjectionCounts {
    fn count_warnings(&mut self, pod: &PodFacts) {
        self.warned += u32::from(!pod.warnings.is_empty());
        for warning in &pod.warnings {
            let is_new = self.warnings.iter().all(|(_, named)| named != warning);
            if is_new && self.warnings.len() < WARNINGS_NAMED_MAX {
                self.warnings.push((pod.pod.name.clone(), warning.clone()));
            }
        }
    }
}

/// The state of a pod's injection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InjectionState {
    /// Its agent is the one that it would get now.
    Current,
    /// It has no agent.
    Missing,
    /// It would get this image now.
    Outdated(String),
}

/// Counts and reports until the driver ends.
pub(super) async fn run(
    context: Context,
    agents: watch::Sender<InjectionByCluster>,
) -> Result<(), Stopped> {
    // Pods with the label of a cluster are known already.
    let unlabelled = format!("{INJECT}={TRUE},!{CLUSTER_LABEL}");
    let unlabelled = watcher::Config::default().labels(&unlabelled);
    let unlabelled = WatchCache::start(
        "pods without a cluster",
        context.apis::<Pod>(),
        &unlabelled,
        PodFacts::new,
    );
    let mut reported = BTreeSet::new();
    let mut changes = context.handle.watch()?;
    let (mut pods_changed, mut unlabelled_changed) = (context.pods.changed(), unlabelled.changed());
    let mut clusters_changed = context.injector.clusters.clone();
    loop {
        let next_at = Instant::now() + COUNT_INTERVAL;
        count(&context, &unlabelled, &agents, &mut reported).await?;
        tokio::select! {
            Ok(()) = pods_changed.changed() => {}
            Ok(()) = unlabelled_changed.changed() => {}
            Ok(()) = clusters_changed.changed() => {}
            changed = leadership_changed(&mut changes) => changed?,
        }
        sleep_until(next_at).await;
        pods_changed.mark_unchanged();
        unlabelled_changed.mark_unchanged();
        clusters_changed.mark_unchanged();
    }
}

/// Waits until this replica begins or ceases to lead.
async fn leadership_changed(
    changes: &mut broadcast::Receiver<Arc<RecordedChange>>,
) -> Result<(), Stopped> {
    loop {
        match changes.recv().await.as_ref().map(|recorded| &recorded.change) {
            Ok(FleetChange::Notice(Notice::Elected(_) | Notice::Deposed(_)))
            | Err(RecvError::Lagged(_)) => return Ok(()),
            Ok(
                FleetChange::Notice(_) | FleetChange::Ordered(_) | FleetChange::Manifests { .. },
            ) => {}
            Err(RecvError::Closed) => return Err(Stopped),
        }
    }
}

/// Counts the agents, and reports the pods that have none.
async fn count(
    context: &Context,
    unlabelled: &WatchCache<PodFacts>,
    agents: &watch::Sender<InjectionByCluster>,
    reported: &mut BTreeSet<String>,
) -> Result<(), Stopped> {
    let leads = |core: &leasehold_coordinator_core::Core, _| {
        matches!(core.leadership(), Leadership::Leader(_))
    };
    let leads = context.handle.ask(leads).await?;
    let is_synced = unlabelled.is_complete() && context.pods.is_synced();
    let (true, true, Some(clusters)) = (leads, is_synced, context.injector.clusters()) else {
        reported.clear();
        context.handle.metrics.set_agents(0, 0);
        return Ok(());
    };
    let mut pods = context.pods.all();
    pods.extend(unlabelled.all().into_iter().map(|(_, pod)| pod));
    pods.retain(|pod| pod.opted_in && pod.is_active());
    let (missing, outdated, found) = count_agents(&pods, &context.injector, &clusters);
    context.handle.metrics.set_agents(missing.len(), outdated);
    let is_new = |before: &mut InjectionByCluster| {
        let is_new = **before != found;
        if is_new {
            *before = Arc::new(found);
        }
        is_new
    };
    agents.send_if_modified(is_new);
    let uids: BTreeSet<&str> = missing.iter().map(|(pod, _)| pod.uid.as_str()).collect();
    reported.retain(|uid: &String| uids.contains(uid.as_str()));
    for (pod, cluster) in missing {
        if reported.len() < REPORTED_MAX && reported.insert(pod.uid.clone()) {
            report_missing(context, pod, cluster.as_ref());
        }
    }
    Ok(())
}

type Missing<'a> = Vec<(&'a PodFacts, Option<ClusterName>)>;

/// The pods that have no agent, how many have an old one, and the same by cluster.
fn count_agents<'a>(
    pods: &'a [Arc<PodFacts>],
    injector: &Injector,
    clusters: &Clusters,
) -> (Missing<'a>, usize, BTreeMap<ClusterName, InjectionCounts>) {
    let mut all: BTreeMap<ClusterName, InjectionCounts> = BTreeMap::new();
    let (mut missing, mut outdated) = (Vec::new(), 0);
    for pod in pods {
        let cluster = cluster(pod, clusters);
        let mut unassigned = InjectionCounts::default();
        let counts = match &cluster {
            Some(cluster) => all.entry(cluster.clone()).or_default(),
            None => &mut unassigned,
        };
        counts.count_warnings(pod);
        let name = || pod.pod.name.clone();
        match injection_state(pod, cluster.as_ref(), injector, clusters) {
            InjectionState::Current => counts.injected += 1,
            InjectionState::Missing => {
                counts.missing += 1;
                if counts.missing_pods.len() < NAMED_MAX {
                    counts.missing_pods.push(name());
                }
                missing.push((pod.as_ref(), cluster));
            }
            InjectionState::Outdated(wanted) => {
                counts.injected += 1;
                counts.outdated += 1;
                outdated += 1;
                if counts.outdated_pods.len() < NAMED_MAX {
                    let has = pod.agent_image.clone().unwrap_or_default();
                    counts.outdated_pods.push((name(), has, wanted));
                }
            }
        }
    }
    (missing, outdated, all)
}

/// The cluster that a pod belongs to, or would.
fn cluster(pod: &PodFacts, clusters: &Clusters) -> Option<ClusterName> {
    let namespace = &pod.pod.namespace;
    let only = || ClusterName::in_namespace(namespace, clusters.only(namespace)?).ok();
    pod.cluster.clone().or_else(only)
}

fn injection_state(
    pod: &PodFacts,
    cluster: Option<&ClusterName>,
    injector: &Injector,
    clusters: &Clusters,
) -> InjectionState {
    let Some(image) = &pod.agent_image else { return InjectionState::Missing };
    let namespace = &pod.pod.namespace;
    let cluster = cluster.map(|name| name.parts().1);
    let wanted = match &pod.agent_image_wanted {
        Some(wanted) => wanted.clone(),
        None => injector.image(clusters, namespace, cluster),
    };
    if *image == wanted { InjectionState::Current } else { InjectionState::Outdated(wanted) }
}

fn report_missing(context: &Context, pod: &PodFacts, cluster: Option<&ClusterName>) {
    let configuration = &context.settings.injection.configuration;
    let note = format!(
        "pod {} asks for an agent ({INJECT}: \"{TRUE}\") and has none, so its worker gets no \
         leases: it was created while the webhook {configuration} was missing or did not match \
         it. Check the webhook, then delete the pod: its controller creates another",
        pod.pod.name
    );
    let objects = context.objects.borrow();
    let fleet = cluster.and_then(|name| Fleet::find(&objects, name));
    let related = fleet.map(|fleet| fleet.reference());
    let regarding = pod_reference(pod);
    context.events.record(NewEvent {
        regarding,
        related,
        reason: EventReason::InjectionSkipped,
        note,
    });
}

#[cfg(test)]
mod tests {
    use leasehold_injection::names::STATUS;
    use leasehold_injection::{AgentUser, Resources, Sidecar};
    use serde_json::{Value, json};

    use super::*;
    use leasehold_platform_kube::webhook::Cluster;

    fn injector() -> Injector {
        let installation = Sidecar {
            image: "agent:2".into(),
            coordinator: "c:7400".into(),
            server_name: "c".into(),
            audience: "a".into(),
            authority: "ca".into(),
            cluster: None,
            drain_deadline: None,
            flags: BTreeMap::new(),
            resources: Resources::default(),
            user: AgentUser::STANDARD,
            pull_secrets: Vec::new(),
        };
        Injector { installation, served: Vec::new(), clusters: watch::channel(None).1 }
    }

    /// A pod that asked for an agent, and has this one.
    fn pod(name: &str, cluster: Option<&str>, image: Option<&str>, wanted: Value) -> Arc<PodFacts> {
        let mut labels = json!({ INJECT: "true" });
        if let Some(cluster) = cluster {
            labels[CLUSTER_LABEL] = json!(cluster);
        }
        let agent = image.map(|image| json!({ "name": "leasehold-agent", "image": image }));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": name, "labels": labels,
                "annotations": wanted,
            },
            "spec": { "containers": [], "initContainers": agent.into_iter().collect::<Vec<_>>() },
        }))
        .expect("a pod");
        Arc::new(PodFacts::new(&pod).expect("facts"))
    }

    #[test]
    fn pods_are_counted_for_their_cluster_or_the_only_one() {
        let none = || json!({ STATUS: "{}" });
        let own = json!({ STATUS: "{}", "config.leasehold.dev/image": "own:7" });
        let pods = [
            pod("a", Some("ci"), Some("agent:2"), none()),
            pod("b", Some("ci"), Some("agent:1"), none()),
            pod("c", Some("ci"), Some("own:7"), own),
            pod("d", Some("ci"), None, none()),
            pod("e", None, None, none()),
            pod("by hand", Some("ci"), Some("agent:1"), json!({})),
        ];
        let mut clusters = Clusters::default();
        clusters.insert("ns", "ci", Cluster::default());
        let (missing, outdated, found) = count_agents(&pods, &injector(), &clusters);
        let names: Vec<_> = missing.iter().map(|(pod, _)| pod.pod.name.as_str()).collect();
        assert_eq!((names, outdated), (vec!["d", "e"], 1));
        let name = ClusterName::in_namespace("ns", "ci").expect("a name");
        let old = ("b".to_owned(), "agent:1".to_owned(), "agent:2".to_owned());
        let wanted = InjectionCounts {
            injected: 4,
            missing: 2,
            outdated: 1,
            warned: 0,
            warnings: Vec::new(),
            missing_pods: vec!["d".into(), "e".into()],
            outdated_pods: vec![old],
        };
        assert_eq!(found, BTreeMap::from([(name, wanted)]));

        // With two clusters, a pod without the label belongs to neither.
        clusters.insert("ns", "other", Cluster::default());
        let (missing, _, found) = count_agents(&pods, &injector(), &clusters);
        assert_eq!((missing.len(), missing[1].1.as_ref()), (2, None));
        assert_eq!(found.values().map(|counts| counts.missing).sum::<u32>(), 1);
    }

    #[test]
    fn warnings_of_injections_are_counted_by_pod_and_quoted_once() {
        let annotation = |warnings: Value| {
            let status = json!({
                "version": 1, "image": "agent:2", "digest": "", "container": "worker",
                "hook": "added", "warnings": warnings,
            });
            json!({ STATUS: status.to_string() })
        };
        let warned = |name: &str, warnings: &[&str]| {
            pod(name, Some("ci"), Some("agent:2"), annotation(json!(warnings)))
        };
        let pods = [
            warned("a", &["grace"]),
            warned("b", &["grace", "dns", "ports"]),
            warned("c", &[]),
            warned("d", &["a fourth"]),
        ];
        let (_, _, found) = count_agents(&pods, &injector(), &Clusters::default());
        let counts = found.values().next().expect("counts");
        let quoted = [("a", "grace"), ("b", "dns"), ("b", "ports")];
        let quoted = quoted.map(|(pod, warning)| (pod.to_owned(), warning.to_owned()));
        assert_eq!((counts.warned, &counts.warnings[..]), (3, &quoted[..]));
    }
}
