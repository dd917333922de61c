//! Who is gone and when, by what a watch shows in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_coordinator_core::exposure::{Entry, Exposure};
use leasehold_coordinator_core::view::Presence;
use leasehold_types::{ClusterName, Epoch, Moment, TimeBounds, WorkerKey};
use serde_json::{Value, json};

use super::change::Base;
use super::facts::{PodFacts, PodName};
use super::roll::*;
use crate::exposure;

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
    let text = exposure::text(&exposures);
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

fn heard(led_since: u64, presence: Option<Presence>) -> Heard {
    Heard { term: Some((Epoch(7), at(led_since))), presence }
}

/// The ghost of the one pod.
fn ghost(roll: &Roll) -> Ghost {
    let mut ghosts = roll.ghosts();
    let ghost = ghosts.next().expect("a ghost").1.clone();
    assert!(ghosts.next().is_none(), "two ghosts");
    ghost
}

fn verdict(roll: &Roll, heard: Heard, secs: u64) -> Verdict {
    roll.verdict(&this(), &ghost(roll), heard, &bounds(), at(secs))
}

/// A roll whose one pod was deleted by force at second 100, as the API server confirms.
fn deleted_by_force() -> Roll {
    let mut roll = Roll::default();
    let (patch, _) = exposed(2);
    assert_eq!(roll.apply(pod(UID, 1, patch.clone()), at(0)), []);
    assert_eq!(roll.delete(pod(UID, 2, patch), at(100)), []);
    assert_eq!(ghost(&roll).asked, Asked::Never);
    assert_eq!(roll.asked(&this(), UID, None, at(100)), []);
    roll
}

#[test]
fn a_pod_that_ends_is_gone_once_and_its_deletion_says_nothing_more() {
    for phase in ["Succeeded", "Failed"] {
        let mut roll = Roll::default();
        assert_eq!(roll.apply(pod(UID, 1, json!({})), at(0)), []);
        let terminating = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert_eq!(roll.apply(pod(UID, 2, terminating), at(1)), []);
        assert_eq!(roll.apply(pod(UID, 3, ended(phase)), at(2)), [key("builds")]);
        assert_eq!(roll.apply(pod(UID, 4, ended(phase)), at(3)), []);
        assert_eq!(roll.delete(pod(UID, 5, ended(phase)), at(4)), []);
        assert_eq!(roll.ghosts().count(), 0);
        assert!(roll.find(&this()).is_none());
    }
}

#[test]
fn a_pod_speaks_for_no_worker_of_another_namespace() {
    let victim = ClusterName::in_namespace("victim", "prod").expect("a name");
    let exposures =
        BTreeMap::from([(victim, Entry { epoch: Epoch(6), exposure: Exposure::default() })]);
    let text = exposure::text(&exposures);
    let mut patch = ended("Failed");
    merge(&mut patch, json!({ "metadata": { "annotations": { "leasehold.dev/exposure": text } } }));
    let mut roll = Roll::default();
    assert_eq!(roll.apply(pod(UID, 1, patch), at(0)), [key("builds")]);
    assert!(roll.find(&this()).expect("a pod").exposures.is_empty());
    let listed = Listed { uid: UID.into(), version: 1, exposures };
    assert_eq!(Roll::default().list(BTreeMap::from([(this(), listed)]), at(0)), BTreeMap::new());
}

#[test]
fn a_pod_whose_end_comes_with_its_deletion_is_gone() {
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    assert_eq!(roll.delete(pod(UID, 2, ended("Succeeded")), at(1)), [key("builds")]);
    assert_eq!(roll.ghosts().count(), 0);
}

#[test]
fn a_pod_that_is_called_failed_while_its_containers_run_is_not_gone() {
    // The collector of lost nodes' pods, and an eviction that has only begun.
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    let failed = json!({ "status": { "phase": "Failed", "reason": "NodeLost" } });
    assert_eq!(roll.apply(pod(UID, 2, failed.clone()), at(1)), []);
    assert_eq!(roll.apply(pod(UID, 3, ended("Failed")), at(2)), [key("builds")]);
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    assert_eq!(roll.delete(pod(UID, 2, failed), at(1)), []);
    assert_eq!(ghost(&roll).keys, [key("builds")]);
}

#[test]
fn a_native_sidecar_that_runs_counts_like_any_container() {
    let mut roll = Roll::default();
    let running = json!({ "status": {
        "initContainerStatuses": [container(json!({ "running": {} }), 2)]
    } });
    let mut patch = ended("Failed");
    merge(&mut patch, running);
    let facts = pod(UID, 1, patch);
    assert_eq!((facts.over, facts.restarts), (false, 2));
    assert_eq!(roll.apply(facts, at(0)), []);
}

#[test]
fn a_pod_that_was_never_placed_is_gone_when_it_is_deleted() {
    let pending = json!({
        "spec": { "nodeName": null },
        "status": { "phase": "Pending", "containerStatuses": null },
    });
    let mut roll = Roll::default();
    assert_eq!(roll.apply(pod(UID, 1, pending.clone()), at(0)), []);
    assert_eq!(roll.delete(pod(UID, 2, pending), at(1)), [key("builds")]);
}

#[test]
fn a_pod_that_was_placed_may_have_started_whatever_its_status_says() {
    let pending = json!({ "status": { "phase": "Pending", "containerStatuses": null } });
    let mut roll = Roll::default();
    assert_eq!(roll.apply(pod(UID, 1, pending.clone()), at(0)), []);
    assert_eq!(roll.delete(pod(UID, 2, pending), at(1)), []);
    assert_eq!(ghost(&roll).uid, UID);
}

#[test]
fn a_node_that_is_lost_ends_nothing() {
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    let lost = json!({
        "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
        "status": { "phase": "Unknown" },
    });
    assert_eq!(roll.apply(pod(UID, 2, lost), at(1)), []);
    assert!(roll.find(&this()).is_some_and(|facts| facts.is_terminating()));
    assert_eq!(roll.ghosts().count(), 0);
}

#[test]
fn a_pod_deleted_by_force_is_gone_when_its_agent_is_silent() {
    let roll = deleted_by_force();
    let connected = heard(50, Some(Presence::Connected));
    assert_eq!(verdict(&roll, connected, 100), Verdict::Wait);
    assert_eq!(verdict(&roll, connected, 10_000), Verdict::Wait);
    for presence in [None, Some(Presence::Lost)] {
        assert_eq!(verdict(&roll, heard(50, presence), 100), Verdict::Gone, "{presence:?}");
    }
}

#[test]
fn a_pod_deleted_by_force_that_may_be_cut_off_has_its_leases_to_their_end() {
    let roll = deleted_by_force();
    for presence in [Presence::Silent, Presence::Unreported] {
        let heard = heard(50, Some(presence));
        // 10 s, 1 % and half a second after second 100.
        assert_eq!(verdict(&roll, heard, 110), Verdict::Wait, "{presence:?}");
        assert_eq!(verdict(&roll, heard, 111), Verdict::Gone, "{presence:?}");
    }
}

#[test]
fn a_pod_deleted_under_a_predecessor_is_gone_when_its_leases_are_over() {
    let roll = deleted_by_force();
    // 10 s, 1 % and half a second after second 100.
    assert_eq!(verdict(&roll, heard(101, Some(Presence::Unreported)), 110), Verdict::Wait);
    assert_eq!(verdict(&roll, heard(101, Some(Presence::Unreported)), 111), Verdict::Gone);
}

#[test]
fn a_replica_that_stands_by_says_nothing_and_forgets_in_the_end() {
    let roll = deleted_by_force();
    let nobody = Heard { term: None, presence: None };
    assert_eq!(verdict(&roll, nobody, 399), Verdict::Wait);
    assert_eq!(verdict(&roll, nobody, 400), Verdict::Forget);
}

#[test]
fn nothing_is_said_before_the_api_server_was_asked() {
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    roll.delete(pod(UID, 2, json!({})), at(1));
    assert_eq!(verdict(&roll, heard(0, None), 2), Verdict::Wait);
}

#[test]
fn a_later_pod_of_the_name_is_let_in_after_the_last_word_on_the_earlier() {
    let mut roll = deleted_by_force();
    assert_eq!(roll.apply(pod(NEXT, 3, json!({})), at(101)), []);
    assert_eq!(roll.find(&this()).expect("the new one").uid, NEXT);
    assert!(roll.settled(&this()).is_none(), "let in beside a ghost");
    let connected = heard(0, Some(Presence::Connected));
    // 30 s of grace, which the node gives it once it has noticed.
    assert_eq!(verdict(&roll, connected, 159), Verdict::Wait);
    assert_eq!(verdict(&roll, connected, 160), Verdict::Gone);
    roll.lay(&this(), UID);
    assert_eq!(roll.settled(&this()).expect("let in").uid, NEXT);
}

#[test]
fn a_pod_deleted_by_force_beside_a_later_one_has_its_own_grace_period() {
    let mut roll = Roll::default();
    let patient = json!({ "spec": { "terminationGracePeriodSeconds": 3_600 } });
    roll.apply(pod(UID, 1, patient.clone()), at(0));
    roll.delete(pod(UID, 2, patient), at(100));
    roll.asked(&this(), UID, None, at(100));
    roll.apply(pod(NEXT, 3, json!({})), at(101));
    let connected = heard(0, Some(Presence::Connected));
    assert_eq!(verdict(&roll, connected, 3_700), Verdict::Wait);
    assert_eq!(verdict(&roll, connected, 3_730), Verdict::Gone);
}

#[test]
fn a_late_deletion_of_an_earlier_pod_says_nothing_of_the_later_one() {
    let mut roll = Roll::default();
    roll.apply(pod(NEXT, 5, json!({})), at(0));
    assert_eq!(roll.delete(pod(UID, 4, ended("Succeeded")), at(1)), []);
    assert_eq!(roll.delete(pod(UID, 4, json!({})), at(1)), []);
    assert_eq!(roll.ghosts().count(), 0);
    assert_eq!(roll.settled(&this()).expect("it is there").uid, NEXT);
}

#[test]
fn a_replacement_whose_deletion_was_missed_leaves_a_ghost() {
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    assert_eq!(roll.apply(pod(NEXT, 9, json!({})), at(1)), []);
    assert_eq!(ghost(&roll).uid, UID);
    assert!(roll.settled(&this()).is_none());
}

#[test]
fn a_watch_that_starts_anew_buries_what_it_does_not_show_in_its_own_scope() {
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    roll.retain(|name| name.namespace == "other", &BTreeSet::new(), at(1));
    roll.retain(|_| true, &BTreeSet::from([this()]), at(1));
    assert_eq!(roll.ghosts().count(), 0);
    roll.retain(|_| true, &BTreeSet::new(), at(2));
    assert_eq!((ghost(&roll).uid.as_str(), ghost(&roll).since), (UID, at(2)));
}

#[test]
fn a_pod_that_loses_its_label_is_a_worker_until_it_is_over() {
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    // A watch by label says of such a pod that it was deleted.
    assert_eq!(roll.delete(pod(UID, 2, json!({})), at(1)), []);
    let bare = json!({ "metadata": { "labels": null } });
    assert_eq!(roll.asked(&this(), UID, Some(&pod(UID, 2, bare.clone())), at(1)), []);
    assert_eq!(verdict(&roll, heard(0, Some(Presence::Lost)), 10_000), Verdict::Wait);
    let mut over = ended("Succeeded");
    merge(&mut over, bare);
    assert_eq!(roll.asked(&this(), UID, Some(&pod(UID, 3, over)), at(9)), [key("builds")]);
}

#[test]
fn a_label_that_comes_back_ends_the_haunting_and_keeps_what_the_pod_was() {
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    roll.delete(pod(UID, 2, json!({})), at(1));
    let label = |name: &str| json!({ "metadata": { "labels": { "leasehold.dev/cluster": name } } });
    assert_eq!(roll.apply(pod(UID, 3, label("nightly")), at(2)), []);
    assert!(roll.settled(&this()).is_some());
    let mut over = ended("Failed");
    merge(&mut over, label("nightly"));
    assert_eq!(roll.apply(pod(UID, 4, over), at(3)), [key("builds"), key("nightly")]);
}

#[test]
fn a_list_shows_what_may_be_held_by_pods_and_ghosts_but_not_by_those_that_are_over() {
    let (patch, exposures) = exposed(3);
    let listed = |uid: &str, version, exposures: &BTreeMap<_, _>| {
        let listed = Listed { uid: uid.into(), version, exposures: exposures.clone() };
        BTreeMap::from([(this(), listed)])
    };
    let held = BTreeMap::from([(key("builds"), exposures[&cluster("builds")].clone())]);
    // Nobody has been seen by the watch yet.
    assert_eq!(Roll::default().list(listed(UID, 1, &exposures), at(0)), held);
    // It is known to be over.
    let mut roll = Roll::default();
    let mut over = ended("Failed");
    merge(&mut over, patch.clone());
    roll.apply(pod(UID, 1, over), at(0));
    assert_eq!(roll.list(listed(UID, 1, &exposures), at(1)), BTreeMap::new());
    // It vanished, which the watch has not shown yet.
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, patch.clone()), at(0));
    assert_eq!(roll.list(BTreeMap::new(), at(1)), held);
    // It vanished, and may still run.
    let mut roll = deleted_by_force();
    let jobs = |exposed: &BTreeMap<WorkerKey, Entry>| exposed[&key("builds")].exposure.jobs_max;
    assert_eq!(jobs(&roll.list(BTreeMap::new(), at(101))), 2);
}

#[test]
fn a_list_that_shows_a_later_pod_ends_all_talk_of_the_earlier() {
    let (patch, exposures) = exposed(3);
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, patch.clone()), at(0));
    let later = Listed { uid: NEXT.into(), version: 9, exposures };
    let held = roll.list(BTreeMap::from([(this(), later)]), at(1));
    assert_eq!(held.len(), 1);
    // The watch is behind: what it says of the earlier pod is old news.
    assert_eq!(roll.apply(pod(UID, 5, ended("Succeeded")), at(2)), []);
    assert_eq!(roll.delete(pod(UID, 6, ended("Succeeded")), at(3)), []);
    assert_eq!(roll.ghosts().count(), 0);
    assert!(roll.settled(&this()).is_none(), "not seen by the watch yet");
    assert_eq!(roll.apply(pod(NEXT, 8, patch), at(4)), []);
    assert_eq!(roll.settled(&this()).expect("seen").uid, NEXT);
}

#[test]
fn a_pod_that_only_a_list_has_shown_and_that_is_no_more_is_missed() {
    let (_, exposures) = exposed(3);
    let mut roll = Roll::default();
    let later = Listed { uid: NEXT.into(), version: 9, exposures };
    roll.list(BTreeMap::from([(this(), later)]), at(1));
    assert!(!roll.miss(&key("builds"), at(2)));
    assert_eq!(ghost(&roll).uid, NEXT);
    roll.asked(&this(), NEXT, None, at(3));
    assert_eq!(verdict(&roll, heard(0, Some(Presence::Unreported)), 20), Verdict::Gone);
}

#[test]
fn a_worker_that_the_core_knows_and_no_pod_is_haunts_until_it_is_asked_for() {
    let mut roll = Roll::default();
    assert!(!roll.miss(&key("builds"), at(0)));
    assert!(!roll.miss(&key("builds"), at(1)), "a second ghost");
    // It exists after all, the watch is only behind.
    roll.asked(&this(), "", Some(&pod(UID, 3, json!({}))), at(2));
    assert_eq!(roll.apply(pod(UID, 3, json!({})), at(3)), []);
    assert!(roll.settled(&this()).is_some());
    assert!(!roll.miss(&key("builds"), at(4)));
    roll.apply(pod(UID, 4, ended("Failed")), at(5));
    assert!(roll.miss(&key("builds"), at(6)), "over, and known to the core again");
}

#[test]
fn what_was_just_written_is_known_before_the_watch_shows_it() {
    let (_, exposures) = exposed(3);
    let mut roll = Roll::default();
    roll.apply(pod(UID, 1, json!({})), at(0));
    let written = |uid: &str| Base { uid: uid.into(), version: 5, exposures: exposures.clone() };
    roll.wrote(&this(), written(NEXT));
    assert!(roll.find(&this()).expect("a pod").exposures.is_empty(), "written to another pod");
    roll.wrote(&this(), written(UID));
    // The watch is behind: this is the pod as it was before.
    roll.apply(pod(UID, 4, json!({})), at(1));
    roll.retain(|_| true, &BTreeSet::new(), at(2));
    assert_eq!(ghost(&roll).exposures, exposures);
    // And here it is ahead: somebody has written since.
    let mut roll = Roll::default();
    roll.apply(pod(UID, 6, json!({})), at(0));
    roll.wrote(&this(), written(UID));
    assert!(roll.find(&this()).expect("a pod").exposures.is_empty());
}
