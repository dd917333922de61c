//! KEDA's calls, against a replica whose platform the test controls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Node, Pipeline, Rebalance, Spread,
};
use leasehold_coordinator_core::event::Event;
use leasehold_driver::freshness::Freshness;
use leasehold_proto::externalscaler::external_scaler_client::ExternalScalerClient;
use leasehold_proto::externalscaler::*;
use leasehold_types::{ClusterName, Load, Moment, NodeName, PipelineName};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::agent::connect;
use crate::http::get;
use crate::replica::{LONG, Replica, options, soon, until};

type Scaler = ExternalScalerClient<Channel>;

fn load(text: &str) -> Load {
    text.parse().expect("a load")
}

/// A class `blue` of capacity 15 at 70 %, in the namespace if given, with this number of pipelines
/// of load 10.
fn desired(namespace: Option<&str>, pipelines: usize) -> Arc<Desired> {
    let prefix = namespace.map(|name| format!("{name}/")).unwrap_or_default();
    let blue = ClusterName::new(&format!("{prefix}blue")).expect("a name");
    let class = Class {
        capacity: load("15"),
        workers_min: 0,
        workers_max: 10,
        utilization: 70,
        spread: Spread::Fewest,
        rebalance: Rebalance::Never,
        handover_deadline: LONG,
    };
    let cluster = Cluster {
        jobs_max: 0,
        jobs_per_worker_max: 1,
        drain_deadline: LONG,
        ttl: Duration::from_secs(60),
        class: Some(class),
        ..Cluster::example()
    };
    let node = Node { class: blue.clone(), next: BTreeSet::new() };
    let node = BTreeMap::from([(NodeName::new("first").expect("a name"), node)]);
    let pipeline = |number: usize| {
        let name = PipelineName::new(&format!("{prefix}p{number}")).expect("a name");
        (name, Arc::new(Pipeline { load: load("10"), nodes: node.clone() }))
    };
    Arc::new(Desired {
        clusters: BTreeMap::from([(blue, Arc::new(cluster))]),
        pipelines: (0..pipelines).map(pipeline).collect(),
        ..Desired::default()
    })
}

/// What KEDA sends for a ScaledObject with `class: blue`.
fn object(namespace: &str) -> ScaledObjectRef {
    let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    ScaledObjectRef {
        name: "blue-by-load".into(),
        namespace: namespace.into(),
        scaler_metadata: HashMap::from([
            entry("class", "blue"),
            entry("scalerAddress", "leasehold-coordinator.leasehold-system.svc:7400"),
        ]),
    }
}

fn metric(object: ScaledObjectRef, name: &str) -> GetMetricsRequest {
    GetMetricsRequest { scaled_object_ref: Some(object), metric_name: name.into() }
}

async fn leading(desired: Arc<Desired>) -> (Replica, Scaler) {
    let replica = Replica::start(options()).await;
    replica.send(Event::Desired(desired)).await;
    replica.elect(1, LONG).await;
    let mut scaler = Scaler::new(connect(replica.grpc).await);
    until_it_answers(&mut scaler).await;
    (replica, scaler)
}

/// Waits until the replica answers.
async fn until_it_answers(scaler: &mut Scaler) {
    until(async || {
        let answer = scaler.is_active(object("docs")).await;
        answer.map_err(|status| assert_eq!(status.code(), Code::Unavailable, "{status:?}")).ok()
    })
    .await;
}

/// Waits until the replica refuses to answer; its answers until then must be `right`.
async fn until_it_refuses(scaler: &mut Scaler, right: f64) -> Status {
    soon(async {
        loop {
            match value(scaler, "workerclass_request").await {
                Ok(value) => assert_eq!(value, right),
                Err(status) => return status,
            }
        }
    })
    .await
}

async fn value(scaler: &mut Scaler, name: &str) -> Result<f64, Status> {
    let values = scaler.get_metrics(metric(object("docs"), name)).await?.into_inner();
    assert_eq!(values.metric_values.len(), 1);
    assert_eq!(values.metric_values[0].metric_name, name);
    Ok(values.metric_values[0].metric_value_float)
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, named: &str) {
    let status = answer.expect_err(named);
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(named), "{named}: {}", status.message());
}

#[tokio::test]
async fn each_call_answers_with_the_demand_for_the_class() {
    // Kubernetes has namespaces, and files have none.
    for namespace in [Some("docs"), None] {
        let (replica, mut scaler) = leading(desired(namespace, 3)).await;
        let specs = scaler.get_metric_spec(object("docs")).await.expect("metrics").into_inner();
        let told: Vec<_> = specs
            .metric_specs
            .iter()
            .map(|spec| (spec.metric_name.as_str(), spec.target_size, spec.target_size_float))
            .collect();
        let want = [("workerclass_request", 11, 10.5), ("workerclass_workers_needed", 1, 1.0)];
        assert_eq!(told, want);
        // Two loads of 10 do not fit on a worker of 15, so the second metric is needed, too.
        for (name, right) in [("workerclass_request", 30.0), ("workerclass_workers_needed", 3.0)] {
            assert_eq!(value(&mut scaler, name).await.expect("a value"), right, "{name}");
        }
        let active = scaler.is_active(object("docs")).await.expect("an answer").into_inner();
        assert!(active.result);
        replica.send(Event::Desired(desired(namespace, 0))).await;
        until(async || {
            let active = scaler.is_active(object("docs")).await.expect("an answer").into_inner();
            (!active.result).then_some(())
        })
        .await;
        assert_eq!(value(&mut scaler, "workerclass_request").await.expect("a value"), 0.0);
    }
}

#[tokio::test]
async fn answers_have_the_fraction_and_the_rounded_up_number() {
    let mut wanted = Desired::clone(&desired(None, 0));
    let node = Node { class: ClusterName::new("blue").expect("a name"), next: BTreeSet::new() };
    let nodes = BTreeMap::from([(NodeName::new("first").expect("a name"), node)]);
    let pipeline = Pipeline { load: load("0.001"), nodes };
    wanted.pipelines.insert(PipelineName::new("p").expect("a name"), Arc::new(pipeline));
    let (_replica, mut scaler) = leading(Arc::new(wanted)).await;
    let request = metric(object(""), "workerclass_request");
    let values = scaler.get_metrics(request).await.expect("a value").into_inner();
    let value = &values.metric_values[0];
    assert_eq!((value.metric_value, value.metric_value_float), (1, 0.001));
}

#[tokio::test]
async fn an_invalid_request_names_its_wrong_field() {
    let (_replica, mut scaler) = leading(desired(Some("docs"), 1)).await;
    let with = |class: Option<&str>| {
        let mut object = object("docs");
        object.scaler_metadata.remove("class");
        if let Some(class) = class {
            object.scaler_metadata.insert("class".into(), class.into());
        }
        object
    };
    for (object, code, named) in [
        (with(None), Code::InvalidArgument, "scalerMetadata.class"),
        (with(Some("")), Code::InvalidArgument, "scalerMetadata.class"),
        (with(Some("Blue!")), Code::InvalidArgument, "Blue!"),
        (with(Some("docs/blue")), Code::InvalidArgument, "scalerMetadata.class"),
        (with(Some("red")), Code::NotFound, "docs/red"),
        (object("Not A Name"), Code::InvalidArgument, "namespace"),
        (object("others"), Code::NotFound, "others/blue"),
    ] {
        refused(scaler.is_active(object.clone()).await, code, named);
        refused(scaler.get_metric_spec(object.clone()).await, code, named);
        let request = metric(object.clone(), "workerclass_request");
        refused(scaler.get_metrics(request).await, code, named);
        let stream = scaler.stream_is_active(object.clone()).await;
        refused(first(stream).await, code, named);
        let stream = scaler.stream_metric_spec(object).await;
        refused(first(stream).await, code, named);
    }
    for unknown in ["", "s0-workerclass_request", "leasehold_leader"] {
        let request = metric(object("docs"), unknown);
        refused(scaler.get_metrics(request).await, Code::InvalidArgument, "workerclass_request");
    }
    let name = "workerclass_request".into();
    let nothing = GetMetricsRequest { metric_name: name, scaled_object_ref: None };
    refused(scaler.get_metrics(nothing).await, Code::InvalidArgument, "scalerMetadata.class");
}

/// The first message of a stream, or the error that refused or ended it.
async fn first<T>(stream: Result<Response<Streaming<T>>, Status>) -> Result<T, Status> {
    let message = soon(stream?.get_mut().message()).await?;
    Ok(message.expect("a message before the end"))
}

#[tokio::test]
async fn a_replica_with_a_stale_view_returns_an_error_and_never_zero() {
    let replica = Replica::start(options()).await;
    let mut scaler = Scaler::new(connect(replica.grpc).await);
    let ask = async |scaler: &mut Scaler| value(scaler, "workerclass_request").await;
    refused(ask(&mut scaler).await, Code::Unavailable, "not been read");
    replica.send(Event::Desired(desired(None, 2))).await;
    refused(ask(&mut scaler).await, Code::Unavailable, "");

    // A standby that knows no leader.
    replica.depose("127.0.0.1:1").await;
    until_it_answers(&mut scaler).await;
    assert_eq!(ask(&mut scaler).await.expect("a follower's answer"), 20.0);
    replica.send(Event::Deposed { leader: None }).await;
    let status = until_it_refuses(&mut scaler, 20.0).await;
    assert!(status.message().contains("no leader"), "{status:?}");
    replica.depose("127.0.0.1:1").await;
    until_it_answers(&mut scaler).await;

    // The platform has not confirmed the desired state for long; then it does again.
    replica.freshness.send_replace(Freshness::confirmed(Moment(0)).troubled("no answer".into()));
    let status = until_it_refuses(&mut scaler, 20.0).await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("no answer"), "{status:?}");
    replica.freshness.send_replace(Freshness::confirmed(Moment::NEVER));
    assert_eq!(ask(&mut scaler).await.expect("it is fresh again"), 20.0);
}

#[tokio::test]
async fn a_replica_with_an_expired_term_does_not_answer() {
    let replica = Replica::start(options()).await;
    replica.send(Event::Desired(desired(None, 2))).await;
    replica.elect(1, Duration::ZERO).await;
    let mut scaler = Scaler::new(connect(replica.grpc).await);
    refused(value(&mut scaler, "workerclass_request").await, Code::Unavailable, "");
}

#[tokio::test]
async fn streams_send_every_change_and_end_with_the_reason() {
    let (replica, mut scaler) = leading(desired(None, 0)).await;
    let active = scaler.stream_is_active(object("docs")).await.expect("a stream");
    let mut active = active.into_inner();
    let specs = scaler.stream_metric_spec(object("docs")).await.expect("a stream");
    let mut specs = specs.into_inner();
    let first = soon(active.message()).await.expect("no error").expect("at once");
    assert!(!first.result);
    let first = soon(specs.message()).await.expect("no error").expect("at once");
    assert_eq!(first.metric_specs[0].target_size_float, 10.5);

    // A change that is not part of the answer wakes no watcher.
    for pipelines in [1, 2] {
        replica.send(Event::Desired(desired(None, pipelines))).await;
    }
    assert!(soon(active.message()).await.expect("no error").expect("a change").result);
    replica.send(Event::Desired(desired(None, 0))).await;
    assert!(!soon(active.message()).await.expect("no error").expect("a change").result);

    replica.freshness.send_replace(Freshness::confirmed(Moment(0)));
    for end in [soon(active.message()).await.map(drop), soon(specs.message()).await.map(drop)] {
        refused(end, Code::Unavailable, "not been confirmed");
    }
    assert_eq!(soon(active.message()).await.expect("the end"), None);
}

#[tokio::test]
async fn the_gauge_is_exported_only_while_the_view_may_be_used() {
    let (replica, mut scaler) = leading(desired(Some("docs"), 3)).await;
    let line = |text: &str| {
        let found = text.lines().find(|line| line.starts_with("workerclass_request{"));
        found.map(str::to_owned)
    };
    let labels = r#"workerclass_request{workerclass_name="blue",workerclass_namespace="docs"}"#;
    let metrics = get(replica.http, "/metrics").await.1;
    assert_eq!(line(&metrics), Some(format!("{labels} 30")));
    let phases = metrics.lines().filter(|line| line.starts_with("leasehold_pipelines{"));
    assert!(
        phases.clone().any(|line| line == r#"leasehold_pipelines{phase="pending"} 3"#),
        "{metrics}"
    );
    assert_eq!(phases.count(), 4);
    replica.freshness.send_replace(Freshness::confirmed(Moment(0)));
    until_it_refuses(&mut scaler, 30.0).await;
    assert_eq!(line(&get(replica.http, "/metrics").await.1), None);
}
