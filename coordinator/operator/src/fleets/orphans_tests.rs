//! Which marks of pods of deleted fleets are removed, and when.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::fleets::fixtures::{cluster_object, name, pod};

const START: Moment = Moment(1_000_000_000_000);

/// The plan for one pod at this moment, in a word for each action and order.
fn words(words: &str, state: &mut ReconcilerState, now: Moment) -> Vec<&'static str> {
    let plan = plan(&[Orphan { pod: pod(words), silent_until: None }], state, now);
    let word = |action: &Action| match action.kind {
        ActionKind::SetBusyLabel(_, true) => "busy",
        ActionKind::SetBusyLabel(_, false) => "idle",
        ActionKind::RemoveMarks(_) => "remove",
        _ => panic!("{action:?}"),
    };
    let mut found: Vec<_> = plan.actions.iter().map(word).collect();
    found.extend(plan.orders.iter().map(|(kind, _)| match kind {
        OrderKind::Undrain => "undrain",
        _ => panic!("{kind:?}"),
    }));
    found
}

#[test]
fn marks_stay_while_jobs_run_and_go_with_the_last_one() {
    let mut state = ReconcilerState::default();
    let none: [&str; 0] = [];
    assert_eq!(words("a labelled jobs=1 eviction drains", &mut state, START), none);
    assert_eq!(words("a labelled jobs=1 scale-in cost", &mut state, START), none);
    assert_eq!(words("a labelled", &mut state, START), none);
    let later = START + Duration::from_secs(10);
    assert_eq!(words("a labelled", &mut state, later), ["idle"]);
    // No agent of it is known: nothing is waited for.
    let mut state = ReconcilerState::default();
    assert_eq!(words("b labelled absent scale-in cost", &mut state, START), ["idle", "remove"]);
    assert_eq!(words("b cost", &mut state, START), ["remove"]);
    assert_eq!(words("b began=x", &mut state, START), ["remove"]);
    assert_eq!(words("b going restart", &mut state, START), none);
    assert_eq!(words("b", &mut state, START), none);
}

#[test]
fn a_drain_is_taken_back_before_its_mark_is_removed() {
    let mut state = ReconcilerState::default();
    assert_eq!(words("a node drains", &mut state, START), ["undrain"]);
    assert_eq!(words("a node drains", &mut state, START), [""; 0]);
    assert_eq!(words("a node", &mut state, START), ["remove"]);
}

#[test]
fn a_silent_worker_is_waited_for_until_its_leases_have_ended() {
    let awaited = |words: &str, until| is_awaited(&pod(words).view.unwrap(), until, START);
    let second = Duration::from_secs(1);
    assert!(awaited("a", None));
    assert!(awaited("a lost", Some(START + second)));
    assert!(!awaited("a lost", Some(START)));
}

#[test]
fn is_due_when_a_silent_worker_has_no_leases_or_a_pod_counts_as_idle() {
    let second = Duration::from_secs(1);
    let due = |words: &str, silent_until: Option<Moment>| {
        let orphan = Orphan { pod: pod(words), silent_until };
        plan(&[orphan], &mut ReconcilerState::default(), START).due
    };
    assert_eq!(due("a labelled jobs=1 lost", Some(START + second)), Some(START + second));
    assert_eq!(due("a labelled jobs=1 lost", Some(START)), None);
    assert_eq!(due("a labelled absent node", Some(START + second)), Some(START + 10 * second));
    assert_eq!(due("a labelled jobs=1", None), None);
}

#[test]
fn only_marked_pods_of_fleets_that_surely_do_not_exist_are_orphans() {
    let found = |objects: &Objects, is_readable: bool| {
        let pods = [pod("a"), pod("b labelled"), pod("c node")].to_vec();
        let pods = BTreeMap::from([(name(), pods)]);
        let found = find(objects, pods, |_| is_readable);
        found.into_iter().map(|(key, _)| key.worker.to_string()).collect::<Vec<_>>()
    };
    let mut objects = Objects { is_whole: true, ..Objects::default() };
    assert_eq!(found(&objects, true), ["b", "c"]);
    assert_eq!(found(&objects, false), [""; 0]);
    assert_eq!(found(&Objects::default(), true), [""; 0]);
    let spec = json!({ "maxJobs": 1, "maxJobsPerWorker": 1 });
    let cluster = leasehold_platform_kube::desired::CachedObject {
        object: Arc::new(cluster_object(spec)),
        generation: 1,
        problems: Vec::new(),
    };
    objects.clusters.insert(name(), cluster);
    assert_eq!(found(&objects, true), [""; 0]);
}
