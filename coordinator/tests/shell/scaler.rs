//! KEDA's calls, against a replica whose platform says what the test wants.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Node, Pipeline, Rebalance, Spread,
};
use leasehold_coordinator_core::event::Event;
use leasehold_driver::platform::Freshness;
use leasehold_proto::externalscaler::external_scaler_client::ExternalScalerClient;
use leasehold_proto::externalscaler::*;
use leasehold_types::{ClusterName, Load, Moment, NodeName, PipelineName};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::agent::connect;
use crate::http::get;
use crate::replica::{LONG, Replica, options, soon};

type Scaler = ExternalScalerClient<Channel>;

fn load(text: &str) -> Load {
    text.parse().expect("a load")
}

/// A class `blue` of capacity 15 at 70 %, in the namespace where one is given, and so many
/// pipelines of 10 on it.
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
        floor: 0,
        lost_after: None,
        class: Some(class),
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
    replica.tell(Event::Desired(desired)).await;
    replica.elect(1, LONG).await;
    let mut scaler = Scaler::new(connect(replica.grpc).await);
    until_it_answers(&mut scaler).await;
    (replica, scaler)
}

/// Waits while the replica says that it cannot know.
async fn until_it_answers(scaler: &mut Scaler) {
    soon(async {
        while let Err(status) = scaler.is_active(object("docs")).await {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        }
    })
    .await;
}

/// Waits until it says that it cannot know; what it answers until then is right.
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
async fn each_call_answers_what_the_class_is_asked_for() {
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
        // Two of 10 share no worker of 15: without the second metric three would wait for two.
        for (name, right) in [("workerclass_request", 30.0), ("workerclass_workers_needed", 3.0)] {
            assert_eq!(value(&mut scaler, name).await.expect("a value"), right, "{name}");
        }
        let active = scaler.is_active(object("docs")).await.expect("an answer").into_inner();
        assert!(active.result);
        replica.tell(Event::Desired(desired(namespace, 0))).await;
        soon(async {
            while scaler.is_active(object("docs")).await.expect("an answer").into_inner().result {}
        })
        .await;
        assert_eq!(value(&mut scaler, "workerclass_request").await.expect("a value"), 0.0);
    }
}

#[tokio::test]
async fn fractions_are_told_and_rounded_up() {
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
async fn what_is_wrong_with_a_question_is_named() {
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

/// What a stream says first, whether it was refused or ends.
async fn first<T>(stream: Result<Response<Streaming<T>>, Status>) -> Result<T, Status> {
    let message = soon(stream?.get_mut().message()).await?;
    Ok(message.expect("a message before the end"))
}

#[tokio::test]
async fn a_replica_that_cannot_know_says_so_and_never_zero() {
    let replica = Replica::start(options()).await;
    let mut scaler = Scaler::new(connect(replica.grpc).await);
    let ask = async |scaler: &mut Scaler| value(scaler, "workerclass_request").await;
    refused(ask(&mut scaler).await, Code::Unavailable, "not been read");
    replica.tell(Event::Desired(desired(None, 2))).await;
    refused(ask(&mut scaler).await, Code::Unavailable, "");

    // It stands by, and then knows nobody who leads.
    replica.depose("127.0.0.1:1").await;
    until_it_answers(&mut scaler).await;
    assert_eq!(ask(&mut scaler).await.expect("a follower's answer"), 20.0);
    replica.tell(Event::Deposed { leader: None }).await;
    let status = until_it_refuses(&mut scaler, 20.0).await;
    assert!(status.message().contains("no leader"), "{status:?}");
    replica.depose("127.0.0.1:1").await;
    until_it_answers(&mut scaler).await;

    // Its platform has not confirmed anything for long; then it does again.
    replica.freshness.send_replace(Freshness::confirmed(Moment(0)).troubled("no answer".into()));
    let status = until_it_refuses(&mut scaler, 20.0).await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("no answer"), "{status:?}");
    replica.freshness.send_replace(Freshness::confirmed(Moment::NEVER));
    assert_eq!(ask(&mut scaler).await.expect("it is fresh again"), 20.0);
}

#[tokio::test]
async fn a_term_that_is_over_is_no_leadership() {
    let replica = Replica::start(options()).await;
    replica.tell(Event::Desired(desired(None, 2))).await;
    replica.elect(1, Duration::ZERO).await;
    let mut scaler = Scaler::new(connect(replica.grpc).await);
    refused(value(&mut scaler, "workerclass_request").await, Code::Unavailable, "");
}

#[tokio::test]
async fn streams_tell_every_change_and_end_with_the_reason() {
    let (replica, mut scaler) = leading(desired(None, 0)).await;
    let active = scaler.stream_is_active(object("docs")).await.expect("a stream");
    let mut active = active.into_inner();
    let specs = scaler.stream_metric_spec(object("docs")).await.expect("a stream");
    let mut specs = specs.into_inner();
    let first = soon(active.message()).await.expect("no error").expect("at once");
    assert!(!first.result);
    let first = soon(specs.message()).await.expect("no error").expect("at once");
    assert_eq!(first.metric_specs[0].target_size_float, 10.5);

    // A change of what is not reported wakes no watcher.
    for pipelines in [1, 2] {
        replica.tell(Event::Desired(desired(None, pipelines))).await;
    }
    assert!(soon(active.message()).await.expect("no error").expect("a change").result);
    replica.tell(Event::Desired(desired(None, 0))).await;
    assert!(!soon(active.message()).await.expect("no error").expect("a change").result);

    replica.freshness.send_replace(Freshness::confirmed(Moment(0)));
    for end in [soon(active.message()).await.map(drop), soon(specs.message()).await.map(drop)] {
        refused(end, Code::Unavailable, "not been confirmed");
    }
    assert_eq!(soon(active.message()).await.expect("the end"), None);
}

#[tokio::test]
async fn the_gauge_is_there_while_it_is_known_and_absent_otherwise() {
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
        phases.clone().any(|it| it == r#"leasehold_pipelines{phase="pending"} 3"#),
        "{metrics}"
    );
    assert_eq!(phases.count(), 4);
    replica.freshness.send_replace(Freshness::confirmed(Moment(0)));
    until_it_refuses(&mut scaler, 30.0).await;
    assert_eq!(line(&get(replica.http, "/metrics").await.1), None);
}
