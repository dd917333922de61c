//! The alerts on coordinators and fleets, each raised in a real Prometheus by what it is about.
//! Those on agents are in `agent_alerts.rs`; that of pods without an agent is beside the webhook.

use leasehold_proto::coordinator::v1::open_session_request::Message;
use leasehold_proto::coordinator::v1::{DrainPhase, OpenSessionRequest, Report};
use rustix::process::Signal;
use tests::answers::metric;
use tests::process::{Coordinator, Replica, eventually, free_address, get, put_manifest};
use tests::prometheus::{Prometheus, Target};
use tests::session::join;

use super::dashboards::MANIFESTS;

/// A cluster whose new leader waits long for an agent that does not report.
const HELD: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2, lease: {ttl: 10m}}
";
/// A second pipeline of the fleet.
const MORE: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: more}
spec:
  documentsPerSecond: 5
  workers: {fetch: {class: extract}}
";
/// Changes of leader that raise no alert yet.
const CHANGES_ALLOWED: usize = 3;

/// Waits until these alerts fire, and prints each with its value.
fn fire(prometheus: &Prometheus, names: &[&str]) {
    for name in names {
        let alert = eventually(name, || prometheus.firing(name));
        println!("{name} = {}: {}", alert["value"], alert["annotations"]["summary"]);
    }
}

/// Waits until none of these alerts fires.
fn end(prometheus: &Prometheus, names: &[&str]) {
    for name in names {
        eventually(&format!("the end of {name}"), || {
            prometheus.firing(name).is_none().then_some(())
        });
    }
}

#[test]
fn a_fleet_without_workers_and_without_manifests_raises_its_alerts() {
    let coordinator = Coordinator::start(&[("fleet.yaml", MANIFESTS)]);
    let standby = [free_address(), free_address()];
    let targets = [
        Target { pod: "coordinator-0", address: coordinator.http },
        Target { pod: "coordinator-1", address: standby[1] },
    ];
    let what = "the alerts of a fleet without workers";
    let Some(prometheus) = Prometheus::start(what, &targets) else { return };
    let without =
        ["LeaseholdIsNotRedundant", "LeaseholdStreamsHaveNoOwner", "LeaseholdPipelinesPending"];
    fire(&prometheus, &without);

    let _standby = Replica::start_at(coordinator.folder(), "standby", standby, &[]);
    let _builds = coordinator.agent("builds", "w-0", &[]);
    let extract = coordinator.agent("extract", "e-0", &[]);
    end(&prometheus, &without);

    // An agent that hangs acknowledges no share.
    extract.process.signal(Signal::STOP);
    put_manifest(coordinator.folder(), "more.yaml", MORE);
    fire(&prometheus, &["LeaseholdPipelinesBroken"]);
    extract.process.signal(Signal::CONT);
    end(&prometheus, &["LeaseholdPipelinesBroken"]);

    let manifests = coordinator.folder().join("manifests");
    let away = coordinator.folder().join("away");
    std::fs::rename(&manifests, &away).expect("the manifests are moved away");
    let stale = ["LeaseholdScalerIsStale", "LeaseholdDesiredStateStale"];
    fire(&prometheus, &stale);
    std::fs::rename(&away, &manifests).expect("the manifests are back");
    end(&prometheus, &stale);
}

#[test]
fn leaders_that_change_often_and_a_cluster_that_is_held_raise_their_alerts() {
    let mut coordinator = Coordinator::start(&[("builds.yaml", HELD)]);
    let targets = [Target { pod: "coordinator-0", address: coordinator.http }];
    let what = "the alerts of changes of leader";
    let Some(prometheus) = Prometheus::start(what, &targets) else { return };
    let mut agent = coordinator.agent("builds", "w-0", &[]);
    let api = agent.api;
    eventually("a pool", || get(api, "/v1/lease")?.1.contains("\"size\":2").then_some(()));
    let alerts = ["LeaseholdClusterIsHeld", "LeaseholdChangesLeaderOften"];
    for alert in alerts {
        assert_eq!(prometheus.firing(alert), None);
    }

    // Prometheus compares epochs at steps: one must have seen the first.
    let first = "count_over_time((leasehold_epoch > 0)[30m:15s]) >= 1";
    eventually(first, || prometheus.number(first));
    agent.process.kill();
    coordinator.process.kill();
    let addresses = [coordinator.grpc, coordinator.http];
    let mut leaders = Vec::new();
    for changes in 1..=CHANGES_ALLOWED + 1 {
        // The one before ends.
        leaders.clear();
        leaders.push(Replica::start_at(coordinator.folder(), "again", addresses, &[]));
        // From one step to the next one change is seen at most.
        let seen = format!("changes((leasehold_epoch > 0)[30m:15s]) >= {changes}");
        eventually(&seen, || prometheus.number(&seen));
        fire(&prometheus, &["LeaseholdClusterIsHeld"]);
    }
    fire(&prometheus, &["LeaseholdChangesLeaderOften"]);
}

#[test]
fn an_agent_that_breaks_the_protocol_raises_its_alert() {
    let coordinator = Coordinator::start(&[("builds.yaml", HELD)]);
    let targets = [Target { pod: "coordinator-0", address: coordinator.http }];
    let what = "the alert of an agent that breaks the protocol";
    let Some(prometheus) = Prometheus::start(what, &targets) else { return };
    eventually("the counter", || {
        (prometheus.number("leasehold_protocol_violations_total")? == 0.0).then_some(())
    });
    let epoch = metric(coordinator.http, "leasehold_epoch").expect("a leader") as u64;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // The session lasts as long as it is kept.
    let _session = runtime.block_on(async {
        let session = join(coordinator.grpc, "builds", "w-0", "0.1.0").await;
        // A session has one report.
        let drain = DrainPhase::Working.into();
        let report = Report { epoch, nonce: 2, running: Some(0), drain, ..Report::default() };
        let report = OpenSessionRequest { message: Some(Message::Report(report)) };
        session.send(report).await.expect("the session is open");
        session
    });
    fire(&prometheus, &["LeaseholdAgentBrokeTheRules"]);
}
