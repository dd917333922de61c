//! When workers are reported gone, for each order of watch events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_coordinator_core::view::Presence;
use leasehold_types::{ClusterName, Epoch, Moment, TimeBounds, WorkerKey};
use serde_json::{Value, json};

use super::exposure_annotation;
use super::facts::{PodFacts, PodName};
use super::node_end::NodeAnswer;
use super::patch::ObservedPod;
use super::store::*;

const UID: &str = "uid-1";
const NEXT: &str = "uid-2";
const TTL: Duration = Duration::from_secs(10);

/// A pod object as the API server sends it, with `patch` merged over.
fn pod(uid: &str, version: u64, patch: Value) -> PodFacts {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "ci", "name": "w-0", "uid": uid,
            "resourceVersion": version.to_string(),
            "labels": { "leasehold.dev/cluster": "builds" },
        },
        "spec": { "nodeName": "n1", "containers": [] },
        "status": {
            "phase": "Running",
            "containerStatuses": [container(json!({ "running": {} }), 0)],
        },
    });
    merge(&mut pod, patch);
    PodFacts::new(&serde_json::from_value(pod).expect("a pod")).expect("a whole pod")
}

fn container(state: Value, restarts: u32) -> Value {
    json!({
        "name": "c", "image": "i", "imageID": "i", "ready": true,
        "restartCount": restarts, "state": state,
    })
}

fn merge(onto: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) if onto.is_object() => {
            for (name, value) in fields {
                merge(&mut onto[name], value);
            }
        }
        other => *onto = other,
    }
}

fn ended(phase: &str) -> Value {
    let terminated = container(json!({ "terminated": { "exitCode": 0 } }), 0);
    json!({ "status": { "phase": phase, "containerStatuses": [terminated] } })
}

fn exposed(jobs: u32) -> (Value, BTreeMap<ClusterName, Entry>) {
    let exposure = Exposure { ttl: TTL, jobs_max: jobs, ..Exposure::default() };
    let entry = Entry { epoch: Epoch(6), exposure };
    let exposures = BTreeMap::from([(cluster("builds"), entry)]);
    let text = exposure_annotation::text(&exposures);
    (json!({ "metadata": { "annotations": { "leasehold.dev/exposure": text } } }), exposures)
}

fn cluster(name: &str) -> ClusterName {
    ClusterName::in_namespace("ci", name).expect("a name")
}

fn key(name: &str) -> WorkerKey {
    this().key_in(&cluster(name)).expect("a worker")
}

fn this() -> PodName {
    PodName { namespace: "ci".into(), name: "w-0".into() }
}

fn at(secs: u64) -> Moment {
    Moment(0) + Duration::from_secs(secs)
}

fn bounds() -> TimeBounds {
    TimeBounds::default()
}

fn core_view(led_since: u64, presence: Option<Presence>) -> CoreView {
    CoreView { term: Some((Epoch(7), at(led_since))), presence }
}

/// The tombstone of the one pod.
fn tombstone(store: &PodStore) -> Tombstone {
    let mut tombstones = store.tombstones();
    let tombstone = tombstones.next().expect("a tombstone").1.clone();
    assert!(tombstones.next().is_none(), "two tombstones");
    tombstone
}

fn action_for(store: &PodStore, core_view: CoreView, secs: u64) -> TombstoneAction {
    store.action_for(&this(), &tombstone(store), core_view, &bounds(), at(secs))
}

/// A store whose one pod was deleted by force at second 100, as the API server confirms.
fn deleted_by_force() -> PodStore {
    let mut store = PodStore::default();
    let (patch, _) = exposed(2);
    assert_eq!(store.apply(pod(UID, 1, patch.clone()), at(0)), []);
    assert_eq!(store.delete(pod(UID, 2, patch), at(100)), []);
    assert_eq!(tombstone(&store).api_check, ApiCheck::NotAsked);
    assert_eq!(store.api_check(&this(), UID, None, at(100)), []);
    store
}

/// The same, after its node has said that it has ended.
fn ended_by_its_node() -> PodStore {
    let mut store = deleted_by_force();
    store.node_answered(&this(), UID, NodeAnswer::Ended, at(100));
    store
}

#[test]
fn reports_a_finished_pod_gone_once_and_not_again_on_deletion() {
    for phase in ["Succeeded", "Failed"] {
        let mut store = PodStore::default();
        assert_eq!(store.apply(pod(UID, 1, json!({})), at(0)), []);
        let terminating = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert_eq!(store.apply(pod(UID, 2, terminating), at(1)), []);
        assert_eq!(store.apply(pod(UID, 3, ended(phase)), at(2)), [key("builds")]);
        assert_eq!(store.apply(pod(UID, 4, ended(phase)), at(3)), []);
        assert_eq!(store.delete(pod(UID, 5, ended(phase)), at(4)), []);
        assert_eq!(store.tombstones().count(), 0);
        assert!(store.find(&this()).is_none());
    }
}

#[test]
fn a_pod_is_not_a_worker_of_another_namespace() {
    let victim = ClusterName::in_namespace("victim", "prod").expect("a name");
    let exposures =
        BTreeMap::from([(victim, Entry { epoch: Epoch(6), exposure: Exposure::default() })]);
    let text = exposure_annotation::text(&exposures);
    let mut patch = ended("Failed");
    merge(&mut patch, json!({ "metadata": { "annotations": { "leasehold.dev/exposure": text } } }));
    let mut store = PodStore::default();
    assert_eq!(store.apply(pod(UID, 1, patch), at(0)), [key("builds")]);
    assert!(store.find(&this()).expect("a pod").exposures.is_empty());
    let listed = Listed { uid: UID.into(), version: 1, exposures };
    assert_eq!(
        PodStore::default().list(BTreeMap::from([(this(), listed)]), at(0)),
        BTreeMap::new()
    );
}

#[test]
fn a_pod_that_is_finished_in_its_deletion_event_is_gone() {
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    assert_eq!(store.delete(pod(UID, 2, ended("Succeeded")), at(1)), [key("builds")]);
    assert_eq!(store.tombstones().count(), 0);
}

#[test]
fn a_failed_pod_with_running_containers_is_not_gone() {
    // The collector of lost nodes' pods, and an eviction that has only begun.
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    let failed = json!({ "status": { "phase": "Failed", "reason": "NodeLost" } });
    assert_eq!(store.apply(pod(UID, 2, failed.clone()), at(1)), []);
    assert_eq!(store.apply(pod(UID, 3, ended("Failed")), at(2)), [key("builds")]);
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    assert_eq!(store.delete(pod(UID, 2, failed), at(1)), []);
    assert_eq!(tombstone(&store).keys, [key("builds")]);
}

#[test]
fn a_running_native_sidecar_keeps_a_pod_from_being_gone() {
    let mut store = PodStore::default();
    let running = json!({ "status": {
        "initContainerStatuses": [container(json!({ "running": {} }), 2)]
    } });
    let mut patch = ended("Failed");
    merge(&mut patch, running);
    let facts = pod(UID, 1, patch);
    assert_eq!((facts.over, facts.restarts), (false, 2));
    assert_eq!(store.apply(facts, at(0)), []);
}

#[test]
fn a_never_scheduled_pod_is_gone_when_deleted() {
    let pending = json!({
        "spec": { "nodeName": null },
        "status": { "phase": "Pending", "containerStatuses": null },
    });
    let mut store = PodStore::default();
    assert_eq!(store.apply(pod(UID, 1, pending.clone()), at(0)), []);
    assert_eq!(store.delete(pod(UID, 2, pending), at(1)), [key("builds")]);
}

#[test]
fn a_scheduled_pod_may_have_started_despite_its_status() {
    let pending = json!({ "status": { "phase": "Pending", "containerStatuses": null } });
    let mut store = PodStore::default();
    assert_eq!(store.apply(pod(UID, 1, pending.clone()), at(0)), []);
    assert_eq!(store.delete(pod(UID, 2, pending), at(1)), []);
    assert_eq!(tombstone(&store).uid, UID);
}

#[test]
fn a_lost_node_does_not_end_its_pods() {
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    let lost = json!({
        "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
        "status": { "phase": "Unknown" },
    });
    assert_eq!(store.apply(pod(UID, 2, lost), at(1)), []);
    assert!(store.find(&this()).is_some_and(|facts| facts.is_terminating()));
    assert_eq!(store.tombstones().count(), 0);
}

#[test]
fn a_pod_deleted_by_force_is_gone_when_its_agent_is_silent() {
    let store = ended_by_its_node();
    let connected = core_view(50, Some(Presence::Connected));
    assert_eq!(action_for(&store, connected, 100), TombstoneAction::Keep);
    assert_eq!(action_for(&store, connected, 10_000), TombstoneAction::Keep);
    for presence in [None, Some(Presence::Lost)] {
        assert_eq!(
            action_for(&store, core_view(50, presence), 100),
            TombstoneAction::ReportGone,
            "{presence:?}"
        );
    }
}

#[test]
fn a_force_deleted_pod_keeps_its_leases_until_they_expire() {
    let store = ended_by_its_node();
    // 10 s, 1 % and half a second after second 100.
    let unreported = core_view(50, Some(Presence::Unreported));
    assert_eq!(action_for(&store, unreported, 110), TombstoneAction::Keep);
    assert_eq!(action_for(&store, unreported, 111), TombstoneAction::ReportGone);
    // Its agent may have been connected until now. It is lost when its leases have ended.
    let silent = core_view(50, Some(Presence::Silent));
    assert_eq!(action_for(&store, silent, 10_000), TombstoneAction::Keep);
}

#[test]
fn a_pod_removed_from_a_node_counts_until_the_node_says_that_it_has_ended() {
    for presence in [Presence::Lost, Presence::Unreported] {
        let mut store = deleted_by_force();
        let lost = core_view(50, Some(presence));
        assert_eq!(action_for(&store, lost, 111), TombstoneAction::AskNode);
        store.node_answered(&this(), UID, NodeAnswer::MayRun, at(111));
        assert_eq!(action_for(&store, lost, 115), TombstoneAction::Keep);
        assert_eq!(action_for(&store, lost, 116), TombstoneAction::AskNode);
        store.node_answered(&this(), UID, NodeAnswer::Ended, at(10_000));
        assert_eq!(action_for(&store, lost, 10_000), TombstoneAction::ReportGone);
    }
}

#[test]
fn a_removed_pod_whose_agent_has_left_or_was_declared_gone_needs_no_word_of_its_node() {
    let store = deleted_by_force();
    assert_eq!(action_for(&store, core_view(50, None), 100), TombstoneAction::ReportGone);
}

#[test]
fn where_nodes_cannot_be_read_a_removed_pod_is_gone_when_its_leases_have_ended() {
    let mut store = deleted_by_force();
    store.node_answered(&this(), UID, NodeAnswer::NotReadable, at(111));
    let lost = core_view(50, Some(Presence::Lost));
    assert_eq!(action_for(&store, lost, 111), TombstoneAction::ReportGone);
}

#[test]
fn a_standby_keeps_a_removed_pod_that_may_run() {
    let mut store = deleted_by_force();
    let standby = CoreView { term: None, presence: None };
    assert_eq!(action_for(&store, standby, 399), TombstoneAction::Keep);
    assert_eq!(action_for(&store, standby, 400), TombstoneAction::AskNode);
    store.node_answered(&this(), UID, NodeAnswer::MayRun, at(400));
    assert_eq!(action_for(&store, standby, 404), TombstoneAction::Keep);
    store.node_answered(&this(), UID, NodeAnswer::Ended, at(405));
    assert_eq!(action_for(&store, standby, 405), TombstoneAction::Forget);
}

#[test]
fn a_pod_deleted_under_a_predecessor_is_gone_when_its_leases_expire() {
    let store = ended_by_its_node();
    // 10 s, 1 % and half a second after second 100.
    assert_eq!(
        action_for(&store, core_view(101, Some(Presence::Unreported)), 110),
        TombstoneAction::Keep
    );
    assert_eq!(
        action_for(&store, core_view(101, Some(Presence::Unreported)), 111),
        TombstoneAction::ReportGone
    );
}

#[test]
fn a_standby_reports_nothing_and_drops_old_tombstones() {
    let store = ended_by_its_node();
    let standby = CoreView { term: None, presence: None };
    assert_eq!(action_for(&store, standby, 399), TombstoneAction::Keep);
    assert_eq!(action_for(&store, standby, 400), TombstoneAction::Forget);
}

#[test]
fn reports_nothing_before_the_api_server_confirms_the_deletion() {
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    store.delete(pod(UID, 2, json!({})), at(1));
    assert_eq!(action_for(&store, core_view(0, None), 2), TombstoneAction::Keep);
}

#[test]
fn a_later_pod_of_the_name_is_admitted_after_the_earlier_is_reported_gone() {
    let mut store = ended_by_its_node();
    assert_eq!(store.apply(pod(NEXT, 3, json!({})), at(101)), []);
    assert_eq!(store.find(&this()).expect("the new one").uid, NEXT);
    assert!(store.settled(&this()).is_none(), "a tombstone blocks the later pod");
    let connected = core_view(0, Some(Presence::Connected));
    // 30 s of grace, which the node gives it once it has noticed.
    assert_eq!(action_for(&store, connected, 159), TombstoneAction::Keep);
    assert_eq!(action_for(&store, connected, 160), TombstoneAction::EndSessions);
    let lost = core_view(0, Some(Presence::Lost));
    assert_eq!(action_for(&store, lost, 171), TombstoneAction::ReportGone);
    store.remove_tombstone(&this(), UID);
    assert_eq!(store.settled(&this()).expect("the later pod is admitted").uid, NEXT);
}

#[test]
fn a_pod_deleted_by_force_beside_a_later_one_has_its_own_grace_period() {
    let mut store = PodStore::default();
    let patient = json!({ "spec": { "terminationGracePeriodSeconds": 3_600 } });
    store.apply(pod(UID, 1, patient.clone()), at(0));
    store.delete(pod(UID, 2, patient), at(100));
    store.api_check(&this(), UID, None, at(100));
    store.apply(pod(NEXT, 3, json!({})), at(101));
    let connected = core_view(0, Some(Presence::Connected));
    assert_eq!(action_for(&store, connected, 3_700), TombstoneAction::Keep);
    assert_eq!(action_for(&store, connected, 3_730), TombstoneAction::EndSessions);
}

#[test]
fn a_late_deletion_event_does_not_affect_a_later_pod() {
    let mut store = PodStore::default();
    store.apply(pod(NEXT, 5, json!({})), at(0));
    assert_eq!(store.delete(pod(UID, 4, ended("Succeeded")), at(1)), []);
    assert_eq!(store.delete(pod(UID, 4, json!({})), at(1)), []);
    assert_eq!(store.tombstones().count(), 0);
    assert_eq!(store.settled(&this()).expect("it is there").uid, NEXT);
}

#[test]
fn a_replacement_whose_deletion_was_missed_leaves_a_tombstone() {
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    assert_eq!(store.apply(pod(NEXT, 9, json!({})), at(1)), []);
    assert_eq!(tombstone(&store).uid, UID);
    assert!(store.settled(&this()).is_none());
}

#[test]
fn a_relist_adds_tombstones_for_missing_pods_of_its_scope() {
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    store.retain(|name| name.namespace == "other", &BTreeSet::new(), at(1));
    store.retain(|_| true, &BTreeSet::from([this()]), at(1));
    assert_eq!(store.tombstones().count(), 0);
    store.retain(|_| true, &BTreeSet::new(), at(2));
    assert_eq!((tombstone(&store).uid.as_str(), tombstone(&store).since), (UID, at(2)));
}

#[test]
fn a_pod_that_loses_its_label_is_a_worker_until_it_finishes() {
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    // A watch by label reports such a pod as deleted.
    assert_eq!(store.delete(pod(UID, 2, json!({})), at(1)), []);
    let bare = json!({ "metadata": { "labels": null } });
    assert_eq!(store.api_check(&this(), UID, Some(&pod(UID, 2, bare.clone())), at(1)), []);
    assert_eq!(
        action_for(&store, core_view(0, Some(Presence::Lost)), 10_000),
        TombstoneAction::Keep
    );
    let mut over = ended("Succeeded");
    merge(&mut over, bare);
    assert_eq!(store.api_check(&this(), UID, Some(&pod(UID, 3, over)), at(9)), [key("builds")]);
}

#[test]
fn a_label_that_comes_back_removes_the_tombstone_and_keeps_what_the_pod_was() {
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    store.delete(pod(UID, 2, json!({})), at(1));
    let label = |name: &str| json!({ "metadata": { "labels": { "leasehold.dev/cluster": name } } });
    assert_eq!(store.apply(pod(UID, 3, label("nightly")), at(2)), []);
    assert!(store.settled(&this()).is_some());
    let mut over = ended("Failed");
    merge(&mut over, label("nightly"));
    assert_eq!(store.apply(pod(UID, 4, over), at(3)), [key("builds"), key("nightly")]);
}

#[test]
fn lists_exposures_of_unfinished_pods_and_tombstones() {
    let (patch, exposures) = exposed(3);
    let listed = |uid: &str, version, exposures: &BTreeMap<_, _>| {
        let listed = Listed { uid: uid.into(), version, exposures: exposures.clone() };
        BTreeMap::from([(this(), listed)])
    };
    let held = BTreeMap::from([(key("builds"), exposures[&cluster("builds")].clone())]);
    // The watch has shown no pod yet.
    assert_eq!(PodStore::default().list(listed(UID, 1, &exposures), at(0)), held);
    // The pod has finished.
    let mut store = PodStore::default();
    let mut over = ended("Failed");
    merge(&mut over, patch.clone());
    store.apply(pod(UID, 1, over), at(0));
    assert_eq!(store.list(listed(UID, 1, &exposures), at(1)), BTreeMap::new());
    // It vanished, which the watch has not shown yet.
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, patch.clone()), at(0));
    assert_eq!(store.list(BTreeMap::new(), at(1)), held);
    // It vanished, and may still run.
    let mut store = ended_by_its_node();
    let jobs = |exposed: &BTreeMap<WorkerKey, Entry>| exposed[&key("builds")].exposure.jobs_max;
    assert_eq!(jobs(&store.list(BTreeMap::new(), at(101))), 2);
}

#[test]
fn a_list_with_a_later_pod_ends_tracking_of_the_earlier_one() {
    let (patch, exposures) = exposed(3);
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, patch.clone()), at(0));
    let later = Listed { uid: NEXT.into(), version: 9, exposures };
    let held = store.list(BTreeMap::from([(this(), later)]), at(1));
    assert_eq!(held.len(), 1);
    // The watch is behind the list: its events of the earlier pod are ignored.
    assert_eq!(store.apply(pod(UID, 5, ended("Succeeded")), at(2)), []);
    assert_eq!(store.delete(pod(UID, 6, ended("Succeeded")), at(3)), []);
    assert_eq!(store.tombstones().count(), 0);
    assert!(store.settled(&this()).is_none(), "not seen by the watch yet");
    assert_eq!(store.apply(pod(NEXT, 8, patch), at(4)), []);
    assert_eq!(store.settled(&this()).expect("seen").uid, NEXT);
}

#[test]
fn a_pod_known_only_from_a_list_gets_a_tombstone() {
    let (_, exposures) = exposed(3);
    let mut store = PodStore::default();
    let later = Listed { uid: NEXT.into(), version: 9, exposures };
    store.list(BTreeMap::from([(this(), later)]), at(1));
    assert!(!store.confirm_gone(&key("builds"), at(2)));
    assert_eq!(tombstone(&store).uid, NEXT);
    store.api_check(&this(), NEXT, None, at(3));
    assert_eq!(
        action_for(&store, core_view(0, Some(Presence::Unreported)), 20),
        TombstoneAction::ReportGone
    );
}

#[test]
fn a_worker_without_a_pod_gets_a_tombstone_until_the_api_server_answers() {
    let mut store = PodStore::default();
    assert!(!store.confirm_gone(&key("builds"), at(0)));
    assert!(!store.confirm_gone(&key("builds"), at(1)), "a second tombstone");
    // The pod exists: the watch was only behind.
    store.api_check(&this(), "", Some(&pod(UID, 3, json!({}))), at(2));
    assert_eq!(store.apply(pod(UID, 3, json!({})), at(3)), []);
    assert!(store.settled(&this()).is_some());
    assert!(!store.confirm_gone(&key("builds"), at(4)));
    store.apply(pod(UID, 4, ended("Failed")), at(5));
    assert!(store.confirm_gone(&key("builds"), at(6)), "the pod has finished");
}

#[test]
fn an_own_write_is_visible_before_the_watch_event() {
    let (_, exposures) = exposed(3);
    let mut store = PodStore::default();
    store.apply(pod(UID, 1, json!({})), at(0));
    let written = |uid: &str| ObservedPod {
        uid: uid.into(),
        version: 5,
        exposures: exposures.clone(),
        mark: Default::default(),
    };
    store.record_write(&this(), written(NEXT));
    assert!(store.find(&this()).expect("a pod").exposures.is_empty(), "written to another pod");
    store.record_write(&this(), written(UID));
    // The watch is behind: this is the pod as it was before.
    store.apply(pod(UID, 4, json!({})), at(1));
    store.retain(|_| true, &BTreeSet::new(), at(2));
    assert_eq!(tombstone(&store).exposures, exposures);
    // And here it is ahead: another client has written since.
    let mut store = PodStore::default();
    store.apply(pod(UID, 6, json!({})), at(0));
    store.record_write(&this(), written(UID));
    assert!(store.find(&this()).expect("a pod").exposures.is_empty());
}
