//! The custom resource definitions as a real API server understands them: what it admits is what
//! the coordinator takes, and what it refuses is refused with words that say what to do.

#[path = "crds/pipelines.rs"]
mod pipelines;
#[path = "crds/rules.rs"]
mod rules;

use std::collections::BTreeSet;
use std::process::Command;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tests::kube::{Access, Cluster, Replicas, object};
use tests::process::eventually;
use tests::toolbox;

use self::pipelines::{class, wrong_classes, wrong_pipelines};

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("leasehold.dev", "v1alpha1", kind))
}

fn objects(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(kind))
}

/// What the API server would answer to a creation; nothing is created.
async fn admit(client: &Client, object: &Value) -> Result<DynamicObject, String> {
    let kind = object["kind"].as_str().expect("a kind");
    let typed = serde_json::from_value(object.clone()).expect("an object");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let answer = objects(client, "default", kind).create(&dry, &typed).await;
    answer.map_err(|error| error.to_string())
}

/// The shared cluster with the definitions in place.
fn defined() -> Option<&'static Access> {
    let access = Cluster::shared()?.access();
    Replicas::define(access);
    Some(access)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_accepts_the_crds_without_warnings() {
    let Some(access) = defined() else { return };
    let api: Api<CustomResourceDefinition> = Api::all(access.client().await);
    let plurals =
        ["workerclusters", "streamsets", "workerclasses", "pipelines", "pipelinebindings"];
    for plural in plurals {
        let definition = api.get(&format!("{plural}.leasehold.dev")).await.expect("it was applied");
        let conditions = definition.status.and_then(|status| status.conditions);
        for condition in conditions.expect("it was looked at") {
            let complains = condition.type_ == "NonStructuralSchema";
            assert!(!complains && condition.status == "True", "{condition:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_explains_lists_and_scales() {
    let Some(access) = defined() else { return };
    let namespace = Cluster::shared().expect("as before").namespace("kubectl");
    // What is defined is known to those who ask a moment later.
    let explain = || access.try_kubectl(&["explain", "wc.spec"]).ok();
    let explained = eventually("an explanation", explain);
    for words in ["the most jobs that run at once over all workers", "maxJobsPerWorker", "template"]
    {
        let joined = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains(words), "no {words:?} in\n{explained}");
    }
    let explained = access.kubectl(&["explain", "ss.spec.policy"]);
    assert!(explained.contains("Contiguous"), "{explained}");

    let spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
    let wc = object("WorkerCluster", "builds", spec).to_string();
    let ss = json!({ "cluster": "builds", "streams": [{ "name": "cars:new" }] });
    let ss = object("StreamSet", "cars", ss).to_string();
    for manifest in [&wc, &ss] {
        namespace.apply(manifest);
    }
    let table = namespace.kubectl(&["get", "wc"]);
    for column in ["MAX JOBS", "RUNNING", "WORKERS", "READY", "DRAINING", "AGE"] {
        assert!(table.contains(column), "no column {column} in\n{table}");
    }
    let table = namespace.kubectl(&["get", "ss", "-o", "wide"]);
    for cell in ["CLUSTER", "OWNED", "CONVERGED", "VERSION", "builds"] {
        assert!(table.contains(cell), "no {cell} in\n{table}");
    }
    let both = namespace.kubectl(&["get", "leasehold", "-o", "name"]);
    assert_eq!(both.lines().count(), 2, "{both}");

    namespace.kubectl(&["scale", "wc/builds", "--replicas=20"]);
    let path = "jsonpath={.spec.maxJobs}";
    let budget = namespace.kubectl(&["get", "wc", "builds", "-o", path]);
    assert_eq!(budget, "20");

    // What is in Git leaves the number to its scaler: applied again, it stays.
    let in_git = object("WorkerCluster", "scaled", json!({ "maxJobsPerWorker": 3 })).to_string();
    for number in ["0", "20"] {
        let applied = namespace.try_kubectl_with(&["apply", "--server-side"], &in_git);
        applied.expect("it is taken");
        assert_eq!(namespace.kubectl(&["get", "wc", "scaled", "-o", path]), number);
        namespace.kubectl(&["scale", "wc/scaled", "--replicas=20"]);
    }

    let typo = wc.replace("maxJobsPerWorker", "maxJobPerWorker");
    let refusal = namespace.try_apply(&typo).expect_err("a field that does not exist");
    assert!(refusal.contains("maxJobPerWorker"), "{refusal}");
}

fn cluster(more: Value) -> Value {
    let mut spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
    merge(&mut spec, more);
    object("WorkerCluster", "builds", spec)
}

fn set(more: Value) -> Value {
    let mut spec = json!({ "cluster": "builds", "streams": [{ "name": "a" }] });
    merge(&mut spec, more);
    object("StreamSet", "cars", spec)
}

/// Fields of `more` take the place of those in `spec`; null removes.
fn merge(spec: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("not a mapping") };
    let spec = spec.as_object_mut().expect("a mapping");
    for (field, value) in more {
        match value {
            Value::Null => spec.remove(&field),
            value => spec.insert(field, value),
        };
    }
}

fn named(name: &str, mut object: Value) -> Value {
    object["metadata"]["name"] = json!(name);
    object
}

/// What is wrong, and words of the refusal.
fn wrong_clusters() -> Vec<(Value, &'static str)> {
    let template = json!({ "spec": { "containers": [{ "name": "w", "image": "w" }] } });
    let reference = json!({ "kind": "Deployment", "name": "w" });
    let stateful = json!({ "kind": "StatefulSet" });
    let made = |workload: Value| cluster(json!({ "template": template, "workload": workload }));
    vec![
        (cluster(json!({ "maxJobsPerWorker": null })), "gives maxJobs without maxJobsPerWorker"),
        (cluster(json!({ "maxJobs": -1 })), "greater than or equal to 0"),
        (cluster(json!({ "maxJobs": 10_000_001 })), "less than or equal to 10000000"),
        (cluster(json!({ "maxJobs": "8" })), "must be of type integer"),
        (cluster(json!({ "maxJobsPerWorker": 0 })), "greater than or equal to 1"),
        (cluster(json!({ "maxJobsPerWorker": 10_001 })), "less than or equal to 10000"),
        (
            cluster(json!({ "lease": { "floor": 4 } })),
            "spec.lease.floor: Invalid value: must be at most maxJobsPerWorker: lower it",
        ),
        (cluster(json!({ "lease": { "ttl": "100ms" } })), "must be from 200ms to 10m"),
        (cluster(json!({ "lost": { "after": "0s" } })), "must be above 0"),
        (cluster(json!({ "lease": { "ttl": "11m" } })), "must be from 200ms to 10m"),
        (cluster(json!({ "lease": { "ttl": "10" } })), "must be a duration such as 500ms"),
        (cluster(json!({ "lease": { "ttl": 10 } })), "must be of type string"),
        (cluster(json!({ "drain": { "deadline": "0" } })), "give workers time"),
        (cluster(json!({ "drain": { "deadline": "9999h" } })), "must be at most 366 days"),
        (
            cluster(json!({ "template": template, "workloadRef": reference })),
            "gives both template and workloadRef: keep one",
        ),
        (cluster(json!({ "workload": {} })), "template is missing: add one"),
        (cluster(json!({ "template": "nginx" })), "must be of type object"),
        (made(json!({ "kind": "DaemonSet" })), r#"supported values: "Deployment", "StatefulSet""#),
        (made(json!({ "maxSurge": 0, "maxUnavailable": "0%" })), "no rollout could begin"),
        (made(json!({ "maxSurge": "101%" })), "must be a number of pods, or a percentage"),
        (made(json!({ "serviceName": "w" })), "are for kind StatefulSet only: remove them"),
        (
            made(json!({ "kind": "StatefulSet", "maxSurge": 1 })),
            "are for kind Deployment only: remove them",
        ),
        (
            made(json!({ "kind": "StatefulSet", "serviceName": "W" })),
            "must be lower-case letters, digits",
        ),
        (named(&"a".repeat(64), cluster(json!({}))), "must be at most 63 characters"),
        (named(&"a".repeat(53), made(stateful.clone())), "must be at most 52 characters"),
        (named("a.b", made(stateful)), "without '.'"),
        (cluster(json!({ "workloadRef": { "kind": "Deployment" } })), "name: Required value"),
        (
            cluster(json!({ "workloadRef": { "kind": "Deployment", "name": "W" } })),
            "must be lower-case letters, digits",
        ),
    ]
}

/// What is wrong, and words of the refusal.
fn wrong_sets() -> Vec<(Value, &'static str)> {
    let many: Vec<Value> = (0..2_001).map(|n| json!({ "name": format!("s{n}") })).collect();
    let stream = |stream: Value| set(json!({ "streams": [stream] }));
    let from = |source: Value| set(json!({ "streamsFrom": [source] }));
    let key = json!({ "name": "list", "key": "streams.txt" });
    let keys = vec![json!({ "configMapKeyRef": key }); 101];
    vec![
        (set(json!({ "cluster": null })), "spec.cluster: Required value"),
        (set(json!({ "cluster": "ci/builds" })), "is in the set's own namespace"),
        (set(json!({ "streams": null })), "add streams or streamsFrom"),
        (set(json!({ "streams": [] })), "add streams or streamsFrom"),
        (set(json!({ "streams": [{ "name": "a" }, { "name": "a" }] })), "Duplicate value"),
        (set(json!({ "streams": many })), "must have at most 2000 items"),
        (set(json!({ "streamsFrom": keys })), "must have at most 100 items"),
        (stream(json!({ "name": " a" })), "without white space at its ends"),
        (stream(json!({ "name": "a\nb" })), "must be printable text"),
        (stream(json!({ "name": "ü".repeat(127) })), "must be at most 253 bytes"),
        (stream(json!({ "name": "a", "weight": 0 })), "greater than or equal to 1"),
        (stream(json!({ "weight": 1 })), "name: Required value"),
        (from(json!({ "file": "streams.txt" })), "put the streams into a ConfigMap"),
        (from(json!({})), "give configMapKeyRef"),
        (from(json!({ "file": "a", "configMapKeyRef": key })), "put the streams into a ConfigMap"),
        (from(json!({ "configMapKeyRef": { "name": "list" } })), "key: Required value"),
        (
            from(json!({ "configMapKeyRef": { "name": "list", "key": "a/b" } })),
            "must be letters, digits, '-', '_' and '.'",
        ),
        (set(json!({ "policy": "Random" })), r#"supported values: "Sticky", "Contiguous""#),
        (set(json!({ "mode": "Forever" })), r#"supported values: "Expiring", "Pinned""#),
        (set(json!({ "refresh": "Always" })), r#"supported values: "None", "Restart""#),
        (set(json!({ "moves": { "perRound": 0 } })), "greater than or equal to 1"),
        (set(json!({ "handover": { "deadline": "soon" } })), "must be a duration such as 500ms"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_objects_are_refused_with_a_message_that_says_what_to_do() {
    let Some(access) = defined() else { return };
    let client = access.client().await;
    let mut surprises = Vec::new();
    let all = [wrong_clusters(), wrong_sets(), wrong_classes(), wrong_pipelines()];
    for (object, words) in all.into_iter().flatten() {
        let shown: String = object["spec"].to_string().chars().take(100).collect();
        match admit(&client, &object).await {
            Ok(_) => surprises.push(format!("admitted: {shown}")),
            Err(refusal) if refusal.contains(words) => {}
            Err(refusal) => surprises.push(format!("{shown}: no {words:?} in: {refusal}")),
        }
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn omitted_fields_get_their_defaults() {
    let Some(access) = defined() else { return };
    let client = access.client().await;
    let spec = |object: &DynamicObject| object.data["spec"].clone();
    let whole = admit(&client, &cluster(json!({}))).await.expect("the smallest cluster");
    let mut wanted = json!({
        "maxJobs": 8,
        "maxJobsPerWorker": 3,
        "drain": { "deadline": "2h" },
        "lease": { "ttl": "10s", "floor": 0 },
    });
    assert_eq!(spec(&whole), wanted);
    let none = admit(&client, &cluster(json!({ "maxJobs": null }))).await.expect("0 jobs");
    assert_eq!(spec(&none)["maxJobs"], 0);
    let template = json!({ "spec": { "containers": [{ "name": "w", "anything": [1, true] }] } });
    let made = cluster(json!({ "template": template, "workload": {}, "drain": {} }));
    wanted["template"] = template;
    wanted["workload"] = json!({ "kind": "Deployment" });
    assert_eq!(spec(&admit(&client, &made).await.expect("a template")), wanted);

    let whole = admit(&client, &set(json!({ "moves": { "perRound": 5 } }))).await;
    let wanted = json!({
        "cluster": "builds",
        "streams": [{ "name": "a", "weight": 1, "dedicated": false }],
        "policy": "Sticky",
        "mode": "Expiring",
        "handover": { "deadline": "30s" },
        "moves": { "perRound": 5, "cooldown": "30s", "settle": "200ms" },
        "refresh": "None",
    });
    assert_eq!(spec(&whole.expect("a small set")), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_managers_share_the_streams_of_a_set_and_their_order_is_kept() {
    let Some(access) = defined() else { return };
    let namespace = Cluster::shared().expect("as before").namespace("apply");
    let sets = objects(&access.client().await, &namespace, "StreamSet");
    let apply = async |manager: &str, streams: &[&str]| {
        let entries: Vec<Value> = streams.iter().map(|name| json!({ "name": name })).collect();
        let set = set(json!({ "streams": entries }));
        let set = sets.patch("cars", &PatchParams::apply(manager), &Patch::Apply(&set)).await;
        let set = set.expect("appliers do not conflict");
        let streams = set.data["spec"]["streams"].as_array().expect("streams").clone();
        streams.iter().map(|s| s["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(apply("one", &["z", "a"]).await, ["z", "a"]);
    assert_eq!(apply("two", &["m"]).await, ["z", "a", "m"]);
    assert_eq!(apply("one", &["a", "b"]).await, ["a", "m", "b"].map(str::to_owned).to_vec());
    assert_eq!(apply("two", &["b"]).await, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_admitted_stream_list_fits_into_one_object() {
    let Some(access) = defined() else { return };
    let namespace = Cluster::shared().expect("as before").namespace("large");
    let sets = objects(&access.client().await, &namespace, "StreamSet");
    let name = |n: u32| json!({ "name": format!("{n:0>253}"), "weight": 1_000, "dedicated": true });
    let streams: Vec<Value> = (0..2_000).map(name).collect();
    let set = set(json!({ "streams": streams }));
    let applied = sets.patch("cars", &PatchParams::apply("one"), &Patch::Apply(&set)).await;
    assert_eq!(applied.expect("it fits").name_any(), "cars");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_immutable_fields_are_refused() {
    let Some(access) = defined() else { return };
    let namespace = Cluster::shared().expect("as before").namespace("fixed");
    let clusters = objects(&access.client().await, &namespace, "WorkerCluster");
    let change = async |workload: Value| {
        let template = json!({ "spec": { "containers": [{ "name": "w", "image": "w" }] } });
        let object = cluster(json!({ "template": template, "workload": workload }));
        let forced = PatchParams::apply("one").force();
        let answer = clusters.patch("builds", &forced, &Patch::Apply(&object)).await;
        answer.map(|_| ()).map_err(|error| error.to_string())
    };
    let first = json!({ "kind": "StatefulSet", "serviceName": "a" });
    change(first.clone()).await.expect("a valid cluster");
    let refusal = change(json!({ "kind": "Deployment" })).await.expect_err("another kind");
    assert!(refusal.contains("workload.kind cannot be changed"), "{refusal}");
    let refusal = change(json!({ "kind": "StatefulSet", "serviceName": "b" })).await;
    let refusal = refusal.expect_err("another service");
    assert!(refusal.contains("serviceName of a StatefulSet cannot be changed"), "{refusal}");
    change(first).await.expect("no change");
}

/// Texts that are durations, nearly durations, or nothing of the kind.
fn durations() -> Vec<String> {
    let mut texts: BTreeSet<String> =
        ["0", "00", "", "1", " 1s", "1s ", "1 s", "-1s", "+1s", "1.5h", "1d", "1us", "1Ms", "10S"]
            .map(str::to_owned)
            .into();
    for unit in ["ms", "s", "m", "h"] {
        for digits in 1..=12 {
            texts.insert(format!("{}{unit}", "9".repeat(digits)));
            texts.insert(format!("{:0digits$}{unit}", 1));
        }
    }
    let more = ["8784h", "8785h", "527040m", "527041m", "31622400s", "31622401s", "31622400000ms"];
    texts.extend(more.map(str::to_owned));
    texts
        .extend(["31622400001ms", "8783h60m", "8783h61m", "0s", "0h0m", "1h1h"].map(str::to_owned));
    for a in ["1", "1m", "1ms", "s", "2h"] {
        for b in ["1", "1s", "ms", "3m", "0"] {
            texts.insert(format!("{a}{b}"));
        }
    }
    texts.insert("1s".repeat(16));
    texts.insert("1s".repeat(17));
    texts.into_iter().collect()
}

fn stream_names() -> Vec<String> {
    let mut names: Vec<String> =
        ["a b", "", "ü", "a\u{301}", "cars:new", "\u{1F600}", "-", "#"].map(str::to_owned).into();
    let blanks = "\t\n\r\u{b}\u{c} \u{85}\u{a0}\u{1680}\u{2000}\u{200a}\u{2028}\u{2029}\u{202f}\
                  \u{205f}\u{3000}\u{0}\u{7f}\u{9f}\u{200b}\u{feff}\u{180e}\u{ad}";
    for blank in blanks.chars() {
        names.extend([format!("{blank}a"), format!("a{blank}"), format!("a{blank}b")]);
        names.push(blank.to_string());
    }
    names.extend(["a".repeat(253), "a".repeat(254), "ü".repeat(126), "ü".repeat(127)]);
    names
}

/// Objects that are right or wrong, and whether that is so, the API server and `check` shall agree.
fn doubtful() -> Vec<Value> {
    let template = json!({ "spec": { "containers": [{ "name": "w", "image": "w" }] } });
    let mut objects = Vec::new();
    for text in durations() {
        objects.push(set(json!({ "moves": { "cooldown": text } })));
    }
    for ttl in ["199ms", "200ms", "10m", "10m1ms", "600s", "601s"] {
        objects.push(cluster(json!({ "lease": { "ttl": ttl } })));
    }
    for deadline in ["0", "0s", "0h0m", "1ms"] {
        objects.push(cluster(json!({ "drain": { "deadline": deadline } })));
    }
    for name in stream_names() {
        objects.push(set(json!({ "streams": [{ "name": name }] })));
    }
    for weight in [0, 1, 1_000_000, 1_000_001] {
        objects.push(set(json!({ "streams": [{ "name": "a", "weight": weight }] })));
    }
    for (per_worker, floor) in [(1, 0), (1, 1), (1, 2), (0, 0), (10_000, 10_000), (10_001, 0)] {
        let lease = json!({ "floor": floor });
        objects.push(cluster(json!({ "maxJobsPerWorker": per_worker, "lease": lease })));
    }
    let amounts = [
        json!(0),
        json!(1),
        json!(-1),
        json!(100_000),
        json!(100_001),
        json!("0%"),
        json!("5%"),
        json!("05%"),
        json!("100%"),
        json!("101%"),
        json!("1"),
        json!("%"),
        json!("-1%"),
        json!(""),
    ];
    for amount in &amounts {
        let workload = json!({ "maxSurge": amount });
        objects.push(cluster(json!({ "template": template, "workload": workload })));
        let workload = json!({ "maxSurge": amount, "maxUnavailable": 0 });
        objects.push(cluster(json!({ "template": template, "workload": workload })));
    }
    for name in ["a", "a.b", "a-b", "-a", "a-", "A", "a_b", "a..b", "", "a/b", ".a"] {
        objects.push(set(json!({ "cluster": name })));
        objects.push(named(name, cluster(json!({}))));
        let reference = json!({ "kind": "StatefulSet", "name": name });
        objects.push(cluster(json!({ "workloadRef": reference })));
    }
    objects.extend(wrong_clusters().into_iter().chain(wrong_sets()).map(|(object, _)| object));
    objects.extend(pipelines::doubtful());
    objects
}

/// What only Kubernetes limits, or only the standalone platform has.
fn is_of_one_side(object: &Value) -> bool {
    let spec = &object["spec"];
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let stateful = spec["workload"]["kind"] == "StatefulSet";
    let service = spec["workload"]["serviceName"].is_string();
    let many = spec["streams"].as_array().is_some_and(|streams| streams.len() > 2_000);
    let sources = spec["streamsFrom"].is_array();
    name.len() > 63
        || (stateful && (name.len() > 52 || name.contains('.') || service))
        || many
        || sources
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_and_the_coordinator_accept_the_same_objects() {
    let Some(access) = defined() else { return };
    let client = access.client().await;
    let folder = tempfile::tempdir().expect("a folder");
    let objects: Vec<Value> = doubtful().into_iter().filter(|o| !is_of_one_side(o)).collect();
    for (index, object) in objects.iter().enumerate() {
        let mut object = object.clone();
        // Each file stands for itself: names are made different, and every set has its cluster.
        if ["cars", "builds", "blue", "first"]
            .iter()
            .any(|name| object["metadata"]["name"] == *name)
        {
            object["metadata"]["name"] = json!(format!("n{index}"));
        }
        let mut text = object.to_string();
        if object["kind"] == "StreamSet" {
            let own = format!("own{index}");
            let known = object["spec"]["cluster"] == "builds";
            if known {
                object["spec"]["cluster"] = json!(own);
            }
            let of_set = named(&own, cluster(json!({})));
            text = if known { format!("{object}\n---\n{of_set}\n") } else { text };
        }
        std::fs::write(folder.path().join(format!("{index}.yaml")), text).expect("a file");
    }
    // The class of all pipelines, for whatever load.
    let whole = class(json!({ "capacity": 1_000_000_000, "maxReplicas": 10_000 }));
    std::fs::write(folder.path().join("class.yaml"), whole.to_string()).expect("a file");
    let mut check = Command::new(toolbox::binary("leasehold-coordinator"));
    let output = check.arg("check").arg("--manifests").arg(folder.path()).output();
    let output = String::from_utf8(output.expect("it runs").stdout).expect("UTF-8");
    // A missing cluster does not make the object itself invalid, nor does a field that only
    // Kubernetes uses.
    let of_others = ["is not defined by any valid manifest", "has no effect"];
    let about_itself = |line: &&str| !of_others.iter().any(|words| line.contains(words));
    let refused: BTreeSet<usize> = output
        .lines()
        .filter(about_itself)
        .filter_map(|line| line.split_once(".yaml")?.0.parse().ok())
        .collect();
    let mut surprises = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        let admitted = admit(&client, object).await;
        if admitted.is_ok() == refused.contains(&index) {
            surprises.push(format!("{}: admission says {admitted:?}", object["spec"]));
        }
    }
    assert!(refused.len() > 50 && refused.len() < objects.len(), "{} refused", refused.len());
    assert!(surprises.is_empty(), "{} differ:\n{}", surprises.len(), surprises.join("\n"));
}
