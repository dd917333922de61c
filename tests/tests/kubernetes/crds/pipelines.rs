//! Classes and pipelines by themselves: what their definitions refuse, and what they fill in.

use serde_json::{Map, Value, json};
use tests::kube::Cluster;
use tests::process::eventually;

use super::{admit, defined, merge, named, object};

pub(super) fn class(more: Value) -> Value {
    let mut spec = json!({ "capacity": 30, "maxReplicas": 3 });
    merge(&mut spec, more);
    object("WorkerClass", "blue", spec)
}

pub(super) fn pipeline(more: Value) -> Value {
    let mut spec = json!({ "documentsPerSecond": 10, "workers": { "a": { "class": "blue" } } });
    merge(&mut spec, more);
    object("Pipeline", "first", spec)
}

/// What is wrong, and words of the refusal.
pub(super) fn wrong_classes() -> Vec<(Value, &'static str)> {
    let template = json!({ "spec": { "containers": [{ "name": "w", "image": "w" }] } });
    let reference = json!({ "kind": "Deployment", "name": "w" });
    let scaling = |percent: u32| class(json!({ "scaling": { "targetUtilization": percent } }));
    vec![
        (class(json!({ "capacity": null })), "spec.capacity: Required value"),
        (class(json!({ "capacity": 0 })), "must be above 0, so that a worker can take load"),
        (class(json!({ "capacity": "00.0" })), "must be above 0, so that a worker can take load"),
        (class(json!({ "capacity": -1 })), "greater than or equal to 0"),
        (class(json!({ "capacity": 1_000_000_001 })), "less than or equal to 1000000000"),
        (class(json!({ "capacity": "1e3" })), "must be documents per second: a whole number"),
        (class(json!({ "maxReplicas": null })), "spec.maxReplicas: Required value"),
        (class(json!({ "maxReplicas": 10_001 })), "less than or equal to 10000"),
        (
            class(json!({ "minReplicas": 4 })),
            "spec.minReplicas: Invalid value: must be at most maxReplicas: lower it",
        ),
        (
            class(json!({ "replicas": 4 })),
            "spec.replicas: Invalid value: must be from minReplicas to maxReplicas",
        ),
        (class(json!({ "replicas": 0 })), "must be from minReplicas to maxReplicas"),
        (scaling(0), "greater than or equal to 1"),
        (scaling(101), "less than or equal to 100"),
        (class(json!({ "port": 0 })), "greater than or equal to 1"),
        (class(json!({ "port": 65_536 })), "less than or equal to 65535"),
        (class(json!({ "spread": "Wide" })), r#"supported values: "Fewest", "Even""#),
        (class(json!({ "rebalance": "Always" })), r#"supported values: "Never", "WhenBlocked""#),
        (class(json!({ "lease": { "ttl": "100ms" } })), "must be from 200ms to 10m"),
        (class(json!({ "drain": { "deadline": "0" } })), "give workers time"),
        (class(json!({ "handover": { "deadline": "soon" } })), "must be a duration such as"),
        (
            class(json!({ "template": template, "workloadRef": reference })),
            "gives both template and workloadRef: keep one",
        ),
        (class(json!({ "workload": {} })), "template is missing: add one"),
        (named(&"a".repeat(64), class(json!({}))), "must be at most 63 characters"),
    ]
}

/// What is wrong, and words of the refusal.
pub(super) fn wrong_pipelines() -> Vec<(Value, &'static str)> {
    let node =
        |node: Value| pipeline(json!({ "workers": { "a": node, "b": { "class": "blue" } } }));
    let many: Map<String, Value> =
        (0..101).map(|n| (format!("n{n}"), json!({ "class": "blue" }))).collect();
    vec![
        (pipeline(json!({ "documentsPerSecond": null })), "documentsPerSecond: Required value"),
        (pipeline(json!({ "documentsPerSecond": -1 })), "greater than or equal to 0"),
        (pipeline(json!({ "documentsPerSecond": "10/s" })), "must be documents per second"),
        (pipeline(json!({ "workers": null })), "spec.workers: Required value"),
        (pipeline(json!({ "workers": {} })), "at least 1"),
        (pipeline(json!({ "workers": many })), "at most 100"),
        (node(json!({ "next": ["b"] })), "class: Required value"),
        (node(json!({ "class": "ci/blue" })), "is in the pipeline's own namespace"),
        (node(json!({ "class": "blue", "next": ["b", "b"] })), "Duplicate value"),
        (named("1st", pipeline(json!({}))), "starting with a letter"),
        (named("a.b", pipeline(json!({}))), "since Services are called by it"),
    ]
}

/// Right or wrong, and whether that is so, the API server and `check` shall agree.
pub(super) fn doubtful() -> Vec<Value> {
    let mut objects = Vec::new();
    let rates = [
        json!(0),
        json!(1),
        json!(-1),
        json!(2.5),
        json!(1_000_000_000),
        json!(1_000_000_001),
        json!("0"),
        json!("0.000"),
        json!("0.001"),
        json!("2.5"),
        json!("02.50"),
        json!("1000000000"),
        json!("1000000001"),
        json!("1000000000.001"),
        json!("2."),
        json!(".5"),
        json!("1.0001"),
        json!("+1"),
        json!("1e3"),
        json!(" 1"),
        json!(""),
    ];
    for rate in rates {
        objects.push(class(json!({ "capacity": rate })));
        objects.push(pipeline(json!({ "documentsPerSecond": rate })));
    }
    for (least, most, replicas) in
        [(0, 1, 0), (0, 1, 2), (1, 1, 0), (2, 1, 1), (3, 3, 3), (10_000, 10_000, 10_000), (0, 0, 0)]
    {
        let bounds = json!({ "minReplicas": least, "maxReplicas": most, "replicas": replicas });
        objects.push(class(bounds));
    }
    objects.extend(wrong_classes().into_iter().map(|(object, _)| object));
    let of_files = |object: &Value| object["metadata"]["name"] == "first";
    objects.extend(wrong_pipelines().into_iter().map(|(object, _)| object).filter(of_files));
    objects
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn omitted_fields_of_a_class_get_their_defaults() {
    let Some(access) = defined() else { return };
    let client = access.client().await;
    let whole = admit(&client, &class(json!({}))).await.expect("the smallest class");
    let wanted = json!({
        "capacity": 30,
        "minReplicas": 1,
        "maxReplicas": 3,
        "scaling": { "targetUtilization": 70, "stabilization": "5m" },
        "spread": "Fewest",
        "rebalance": "Never",
        "drain": { "deadline": "2h" },
        "handover": { "deadline": "30s" },
        "lease": { "ttl": "10s" },
    });
    assert_eq!(whole.data["spec"], wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_shows_classes_and_pipelines_and_scales_a_class() {
    let Some(access) = defined() else { return };
    let namespace = Cluster::shared().expect("as before").namespace("kubectl-pipelines");
    let explained = eventually("an explanation", || {
        access.try_kubectl(&["explain", "pl.spec.workers.next"]).ok()
    });
    assert!(explained.contains("The nodes that its documents go to"), "{explained}");
    let of_code = json!({
        "pipeline": "first", "node": "a", "class": "blue", "documentsPerSecond": 10,
    });
    let binding = object("PipelineBinding", "first-a", of_code);
    for manifest in [class(json!({ "capacity": "2.5" })), pipeline(json!({})), binding] {
        namespace.apply(&manifest);
    }
    for (kind, cells) in [
        ("wcl", &["CAPACITY", "REQUEST", "UTILIZATION %", "MIN", "MAX", "WAITING", "2.5"][..]),
        ("pl", &["DOCUMENTS/S", "PHASE", "READY", "BINDINGS", "AGE", "10"]),
        ("plb", &["PIPELINE", "NODE", "CLASS", "PHASE", "WORKERS", "blue"]),
    ] {
        let table = namespace.kubectl(&["get", kind]);
        for cell in cells {
            assert!(table.contains(cell), "no {cell} in\n{table}");
        }
    }
    namespace.kubectl(&["scale", "wcl/blue", "--replicas=2"]);
    assert_eq!(namespace.kubectl(&["get", "wcl", "blue", "-o", "jsonpath={.spec.replicas}"]), "2");
    let refusal = namespace.try_kubectl(&["scale", "wcl/blue", "--replicas=9"]);
    let refusal = refusal.expect_err("more than it may have");
    assert!(refusal.contains("must be from minReplicas to maxReplicas"), "{refusal}");
}
