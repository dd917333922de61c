//! The walkthrough: blue takes 30, green 15, yellow 200; three pipelines of 10. Green's two workers
//! hold two of them, so that a third is asked for; and the yellow worker that serves two of them is
//! lost.

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::kube::{FleetFixture, Record, Version, Work, list, until};
use tests::process::eventually;

use super::{
    class, endpoints, endpoints_of, phases, pipeline, record, wait_for_end, wait_for_phase,
};

const NODES: [(&str, &str, &[&str]); 3] =
    [("in", "blue", &["mid"]), ("mid", "green", &["out"]), ("out", "yellow", &[])];
const PIPELINES: [&str; 3] = ["first", "second", "third"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_pipelines_share_workers_wait_for_one_and_heal_after_the_loss_of_another() {
    let Some(fixture) = FleetFixture::start("walkthrough", 2, 1, Work::Bindings).await else {
        return;
    };
    let record = record(&fixture).await;
    let classes = [
        ("blue", json!({ "capacity": 30, "minReplicas": 1, "maxReplicas": 5 })),
        ("green", json!({ "capacity": 15, "minReplicas": 2, "maxReplicas": 5 })),
        ("yellow", json!({ "capacity": 200, "minReplicas": 2, "maxReplicas": 5 })),
    ];
    fixture.apply(&list(classes.map(|(name, spec)| class(&fixture, name, spec))));
    // Workers are chosen among those that are connected, by name.
    for class in ["green", "yellow"] {
        fixture.wait_for("both workers", "wcl", class, |class| {
            class["status"]["workers"]["connected"] == 2
        });
    }
    // It is there for a while, so that yellow-0 has no room for the third.
    fixture.apply(&pipeline("large", 175, &[("out", "yellow", &[])]));
    wait_for_phase(&fixture, &["large"], "Ready");
    for name in ["first", "second"] {
        fixture.apply(&pipeline(name, 10, &NODES));
        wait_for_phase(&fixture, &[name], "Ready");
    }
    assert_eq!(endpoints(&fixture, "second-in"), ["blue-0 ready serving"]);
    assert_eq!(endpoints(&fixture, "second-mid"), ["green-1 ready serving"]);
    assert_eq!(endpoints(&fixture, "second-out"), ["yellow-0 ready serving"]);

    fixture.apply(&pipeline("third", 10, &NODES));
    wait_for_phase(&fixture, &["third"], "Ready");
    assert_eq!(endpoints(&fixture, "third-mid"), ["green-2 ready serving"]);
    assert_eq!(endpoints(&fixture, "third-out"), ["yellow-1 ready serving"]);
    let green = fixture.get("statefulset", "green").expect("green's workload");
    assert_eq!(green["spec"]["replicas"], 3, "30 of 15 by 3 is 66 %, by 2 it would be 100 %");
    fixture.kubectl(&["delete", "pl", "large", "--wait=false"]);
    wait_for_end(&fixture, "large");
    waited_for_green(&record.versions());

    let begin = record.newest();
    let lost = fixture.get("pod", "yellow-0").expect("the pod");
    let uid = lost["metadata"]["uid"].as_str().expect("a UID");
    let member = fixture.fleet.member(uid).expect("its agent");
    let (agent, _) = member.agent.as_ref().expect("an agent");
    agent.lock().expect("no panic").signal(Signal::KILL);
    for name in ["first", "second"] {
        eventually(&format!("{name}'s other worker"), || {
            let pipeline = fixture.get("pl", name)?;
            let is_ready = pipeline["status"]["phase"] == "Ready";
            let elsewhere =
                endpoints(&fixture, &format!("{name}-out")) == ["yellow-1 ready serving"];
            (is_ready && elsewhere).then_some(())
        });
    }
    healed(&fixture, &record, begin);
    assert_eq!(fixture.get("pl", "third").expect("it")["status"]["phase"], "Ready");
    told(&fixture);
}

/// What there is to see of the wait: each state, in order, and each before what rests on it.
fn waited_for_green(versions: &[Version]) {
    for name in PIPELINES {
        assert_eq!(phases(versions, "Pipeline", name), ["Pending", "Plotted", "Ready"], "{name}");
    }
    let waited =
        versions.iter().filter(|version| version.kind == "Pipeline" && version.name == "third");
    let waits: Vec<_> = waited
        .filter_map(|version| Some(version.object.as_ref()?["status"]["waitsFor"].clone()))
        .filter(|waits| !waits.is_null())
        .collect();
    assert!(waits.contains(&json!([{ "class": "green", "workers": 1 }])), "{waits:?}");
    for name in PIPELINES {
        let ready =
            first(versions, "Pipeline", name, |pipeline| pipeline["status"]["phase"] == "Ready");
        for (node, class, next) in NODES {
            let binding = format!("{name}-{node}");
            let serves = first(versions, "PipelineBinding", &binding, |binding| {
                binding["status"]["phase"] == "Ready"
            });
            let slice = first(versions, "EndpointSlice", &format!("{binding}-ipv4-0"), |slice| {
                endpoints_of(slice).iter().any(|endpoint| endpoint.ends_with("ready serving"))
            });
            let service = first(versions, "Service", &binding, |_| true);
            let order = [service, slice, serves, ready];
            assert!(order.is_sorted(), "{binding}: {order:?}");
            let newest = versions
                .iter()
                .rfind(|version| version.name == binding && version.kind == "PipelineBinding");
            let spec =
                &newest.and_then(|version| version.object.as_ref()).expect("the binding")["spec"];
            let next: Vec<_> = next.iter().map(|next| format!("{name}-{next}")).collect();
            assert_eq!(spec["class"], class);
            assert_eq!(spec.get("next").cloned().unwrap_or(json!([])), json!(next));
        }
    }
}

/// The revision of the first version of an object that is as wanted.
fn first(versions: &[Version], kind: &str, name: &str, wanted: impl Fn(&Value) -> bool) -> u64 {
    let mut found = versions.iter().filter(|version| version.kind == kind && version.name == name);
    let found = found.find(|version| version.object.as_ref().is_some_and(&wanted));
    found.unwrap_or_else(|| panic!("no such {kind} {name}")).revision
}

/// What there is to see of the loss: just those two break, one is healed after the other, and the
/// third is not touched.
fn healed(fixture: &FleetFixture, record: &Record, begin: u64) {
    let since: Vec<_> =
        record.versions().into_iter().filter(|version| version.revision > begin).collect();
    for name in ["first", "second"] {
        let seen = phases(&since, "Pipeline", name);
        assert_eq!(seen, ["Broken", "Plotted", "Ready"], "{name}");
    }
    let third: Vec<_> = since.iter().filter(|version| version.name.starts_with("third")).collect();
    assert!(third.is_empty(), "the third was touched: {third:#?}");
    // What the leader says itself: the one that comes second by name is plotted when the first is
    // ready, or when that takes too long.
    let leader = &fixture.replicas.running[fixture.replicas.leader()];
    let log = leader.process.log();
    let states: Vec<String> =
        log.lines().filter_map(|line| state(line, &fixture.namespace)).collect();
    let broke = states.iter().position(|state| state.contains("Broken")).expect("they broke");
    let after: Vec<&str> = states[broke..].iter().map(String::as_str).collect();
    assert!(after.iter().all(|state| !state.starts_with("third")), "{after:?}");
    let place = |wanted: &str| {
        let place = after.iter().position(|state| *state == wanted);
        place.unwrap_or_else(|| panic!("no {wanted:?} in {after:?}"))
    };
    assert!(place("first Broken") < place("first Plotted"));
    assert!(place("second Broken") < place("first Plotted"), "{after:?}");
    assert!(place("first Plotted") < place("second Plotted"), "{after:?}");
    assert_eq!(after.iter().filter(|state| state.ends_with("Plotted")).count(), 2, "{after:?}");
}

/// What a line of the leader's log says of a pipeline: its name, and the state that it is in now.
fn state(line: &str, namespace: &str) -> Option<String> {
    if !line.contains("leasehold::pipeline") {
        return None;
    }
    let (_, rest) = line.split_once(&format!("pipeline={namespace}/"))?;
    let name = rest.split_whitespace().next()?;
    let (_, to) = rest.split_once("to=\"")?;
    Some(format!("{name} {}", to.split('"').next()?))
}

fn told(fixture: &FleetFixture) {
    let what = "--output=jsonpath={range .items[*]}{.regarding.name} {.reason}{'\\n'}{end}";
    let events = || fixture.kubectl(&["get", "events.v1.events.k8s.io", what]);
    for name in ["first", "second"] {
        for reason in ["PipelinePending", "PipelinePlotted", "PipelineReady", "PipelineBroken"] {
            let line = format!("{name} {reason}");
            until(&line, events, |events| events.lines().any(|event| event == line));
        }
    }
    let events = events();
    assert!(!events.contains("third PipelineBroken"), "{events}");
}
