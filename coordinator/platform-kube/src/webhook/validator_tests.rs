//! Validation messages for classes and pipelines, without a socket.

use leasehold_manifest::Created;
use serde_json::{Value, json};

use super::super::admission::Admission;
use super::super::review_log::ReviewLog;
use super::*;

fn class(capacity: u32, most: u32) -> Value {
    json!({ "capacity": capacity, "maxReplicas": most })
}

fn pipeline(load: u32, workers: Value) -> Value {
    json!({ "documentsPerSecond": load, "workers": workers })
}

/// In `ci`: a WorkerCluster, classes blue and green, and pipelines on them. In `dev`: class grey.
fn in_force() -> Arc<Desired> {
    let mut collection = Collection::default();
    let mut put = |kind: &str, namespace: &str, name: &str, spec: Value| {
        let id = Collection::id(kind, namespace, name).expect("a kind");
        let created = Created { seconds: 0, uid: format!("{kind} {namespace}/{name}") };
        collection.put(&id, created, spec).expect("a valid object");
    };
    put("WorkerCluster", "ci", "builds", json!({ "maxJobs": 8, "maxJobsPerWorker": 3 }));
    put("WorkerClass", "ci", "blue", class(30, 3));
    put("WorkerClass", "ci", "green", class(15, 2));
    put("WorkerClass", "dev", "grey", class(5, 5));
    let nodes = json!({ "a": { "class": "blue", "next": ["b"] }, "b": { "class": "green" } });
    put("Pipeline", "ci", "first", pipeline(10, nodes));
    for name in ["p1", "p2", "p3", "p4", "p5", "p6"] {
        put("Pipeline", "ci", name, pipeline(1, json!({ "only": { "class": "blue" } })));
    }
    put("Pipeline", "ci", "a", pipeline(1, json!({ "b-c": { "class": "green" } })));
    put("Pipeline", "ci", "waits", pipeline(100, json!({ "only": { "class": "later" } })));
    let reading = collection.read();
    assert_eq!(reading.problems, []);
    reading.desired.expect("all was read")
}

fn validator(served: &[&str]) -> Validator {
    let served = served.iter().map(|name| (*name).to_owned()).collect();
    Validator {
        served,
        share: NamespaceShare::default(),
        in_force: watch::channel(Some(in_force())).1,
    }
}

fn plural(kind: &str) -> &'static str {
    match kind {
        "Pipeline" => "pipelines",
        "WorkerClass" => "workerclasses",
        other => panic!("{other}"),
    }
}

/// A request of the API server.
fn asked(operation: &str, kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    let object = json!({ "metadata": { "name": name, "namespace": namespace }, "spec": spec });
    let (object, old) = match operation {
        "CREATE" => (object, Value::Null),
        "DELETE" => (Value::Null, object),
        _ => {
            let mut old = object.clone();
            old["spec"] = json!({});
            (object, old)
        }
    };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": operation,
            "kind": { "group": "leasehold.dev", "version": "v1alpha1", "kind": kind },
            "namespace": namespace, "name": name,
            "resource": {
                "group": "leasehold.dev", "version": "v1alpha1", "resource": plural(kind),
            },
            "object": object, "oldObject": old, "userInfo": { "username": "someone" },
        },
    })
}

/// The webhook's answer.
async fn answer(validator: &Validator, asked: &Value) -> Value {
    let admission = read(asked.to_string().as_bytes()).expect("a review");
    let decision = validator.decide(admission.validation()).await.expect("it was read");
    let answer: Value =
        serde_json::from_str(&admission.response(Decision::from(decision))).expect("JSON");
    assert_eq!(answer["response"]["uid"], "u-1");
    answer["response"].clone()
}

/// Asserts that the object is denied, with this start of the message.
async fn refused(asked: Value, code: u16, message: &str) {
    let answer = answer(&validator(&[]), &asked).await;
    assert_eq!(answer["allowed"], false, "{asked:#}");
    assert_eq!(answer["status"]["code"], code, "{answer:#}");
    let found = answer["status"]["message"].as_str().expect("a message");
    assert!(found.starts_with(message), "{found:?} does not begin with {message:?}");
}

/// Asserts that the object is allowed, with these warnings.
async fn allowed(validator: &Validator, asked: Value, warnings: &[&str]) {
    let answer = answer(validator, &asked).await;
    assert_eq!(answer["allowed"], true, "{answer:#}");
    let found: Vec<&str> =
        answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert_eq!(found.len(), warnings.len(), "{found:?}");
    for (found, words) in found.iter().zip(warnings) {
        assert!(found.contains(words), "{found:?} lacks {words:?}");
    }
}

#[tokio::test]
async fn denies_an_invalid_graph_and_names_the_field() {
    let node = |next: Value| json!({ "class": "blue", "next": next });
    for (workers, message) in [
        (
            json!({ "a": node(json!(["b"])), "b": node(json!(["c"])), "c": node(json!(["a"])) }),
            "Pipeline new: spec.workers.c.next[0]: closes a cycle, a -> b -> c -> a,",
        ),
        (
            json!({ "a": node(json!(["x"])), "b": node(json!([])) }),
            "Pipeline new: spec.workers.a.next[0]: is \"x\", which is not a node of this pipeline: \
             use one of \"a\", \"b\"",
        ),
        (
            json!({ "a": node(json!(["a"])) }),
            "Pipeline new: spec.workers.a.next[0]: is the node itself",
        ),
        (json!({}), "Pipeline new: spec.workers: names no node: add one"),
        (
            json!({ "a": { "class": "builds" } }),
            "Pipeline new: spec.workers.a.class: \"builds\" is a WorkerCluster, whose workers run \
             jobs: name a WorkerClass",
        ),
    ] {
        let spec = pipeline(10, workers);
        refused(asked("CREATE", "Pipeline", "ci", "new", &spec), 422, message).await;
        refused(asked("UPDATE", "Pipeline", "ci", "new", &spec), 422, message).await;
    }
    let only = |name: &str| pipeline(1, json!({ name: { "class": "blue" } }));
    let message = "Pipeline p1-only: spec.workers.";
    allowed(&validator(&[]), asked("CREATE", "Pipeline", "ci", "p1-only", &only("x")), &[]).await;
    let spec =
        pipeline(1, json!({ "x": { "class": "blue" }, "n".repeat(60): { "class": "blue" } }));
    refused(asked("CREATE", "Pipeline", "ci", "p1-only", &spec), 422, message).await;
    let message = "Pipeline \"a.b\": metadata.name is not a DNS label";
    refused(asked("CREATE", "Pipeline", "ci", "a.b", &only("x")), 422, message).await;
}

#[tokio::test]
async fn denies_a_load_above_the_largest_class_and_explains_the_calculation() {
    let spec = pipeline(31, json!({ "a": { "class": "green" } }));
    let message = "Pipeline new: spec.documentsPerSecond: can never be served: class ci/green: 1 \
                   node of 31 documents per second needs 3 workers of capacity 15, and maxReplicas \
                   is 2";
    refused(asked("CREATE", "Pipeline", "ci", "new", &spec), 422, message).await;
    let spec = pipeline(30, json!({ "a": { "class": "green" } }));
    allowed(&validator(&[]), asked("CREATE", "Pipeline", "ci", "new", &spec), &[]).await;

    let message = "WorkerClass green: spec.capacity: can never serve pipeline \"first\", which is \
                   in force: class ci/green: 1 node of 10 documents per second needs 3 workers";
    refused(asked("UPDATE", "WorkerClass", "ci", "green", &class(4, 2)), 422, message).await;
    let message = "WorkerClass green: spec.maxReplicas: can never serve pipeline \"first\"";
    refused(asked("UPDATE", "WorkerClass", "ci", "green", &class(9, 1)), 422, message).await;
    let fits = asked("UPDATE", "WorkerClass", "ci", "green", &class(5, 2));
    allowed(&validator(&[]), fits, &[]).await;
    // An object that is invalid already may lose a finalizer.
    let mut same = asked("UPDATE", "WorkerClass", "ci", "green", &class(4, 2));
    same["request"]["oldObject"]["spec"] = class(4, 2);
    allowed(&validator(&[]), same, &[]).await;
}

#[tokio::test]
async fn denies_a_name_that_is_taken() {
    let spec = pipeline(1, json!({ "y": { "class": "blue" } }));
    let dev = pipeline(1, json!({ "c": { "class": "grey" } }));
    let message = "WorkerClass builds: metadata.name: is the name of a WorkerCluster too";
    refused(asked("CREATE", "WorkerClass", "ci", "builds", &class(1, 1)), 422, message).await;
    allowed(&validator(&[]), asked("CREATE", "WorkerClass", "dev", "builds", &class(1, 1)), &[])
        .await;
    allowed(&validator(&[]), asked("CREATE", "Pipeline", "ci", "first-a", &spec), &[]).await;
    let spec = pipeline(1, json!({ "c": { "class": "blue" } }));
    let message = "Pipeline a-b: spec.workers.c: makes a binding called \"a-b-c\", and so does \
                   node \"b-c\" of pipeline \"a\": rename one of them";
    refused(asked("CREATE", "Pipeline", "ci", "a-b", &spec), 422, message).await;
    allowed(&validator(&[]), asked("CREATE", "Pipeline", "dev", "a-b", &dev), &[]).await;
}

#[tokio::test]
async fn warns_about_objects_that_do_not_exist_yet() {
    let spec = pipeline(1, json!({ "a": { "class": "grey" }, "b": { "class": "blue" } }));
    let warning =
        "spec.workers.a.class: WorkerClass \"grey\" does not exist yet: the pipeline waits";
    let new = || asked("CREATE", "Pipeline", "ci", "new", &spec);
    allowed(&validator(&[]), new(), &[warning]).await;
    // The class that a pipeline waits for is too small.
    let warning = "Pipeline ci/waits: spec.documentsPerSecond: can never be served: class ci/later";
    let later = asked("CREATE", "WorkerClass", "ci", "later", &class(1, 1));
    allowed(&validator(&[]), later, &[warning]).await;
    allowed(&validator(&["dev", "qa"]), new(), &["serves dev, qa and not namespace ci"]).await;
}

#[tokio::test]
async fn denies_the_deletion_of_a_class_in_use() {
    let delete = |name: &str| asked("DELETE", "WorkerClass", "ci", name, &class(1, 1));
    let message = "WorkerClass blue: 7 pipelines name it (first, p1, p2, p3, p4, …): delete them \
                   first, or let them name another class";
    refused(delete("blue"), 403, message).await;
    refused(delete("green"), 403, "WorkerClass green: 2 pipelines name it (a, first): ").await;
    allowed(&validator(&[]), delete("later"), &[]).await;
    let mut whole = delete("blue");
    let by = "system:serviceaccount:kube-system:namespace-controller";
    whole["request"]["userInfo"]["username"] = json!(by);
    allowed(&validator(&[]), whole, &[]).await;
}

#[tokio::test]
async fn waits_for_a_recent_change_and_answers_only_after_the_first_read() {
    let (sender, in_force_seen) = watch::channel(None);
    let validator =
        Validator { served: Vec::new(), share: NamespaceShare::default(), in_force: in_force_seen };
    let spec = pipeline(1, json!({ "a": { "class": "blue" } }));
    let new = asked("CREATE", "Pipeline", "ci", "new", &spec);
    let admission = read(new.to_string().as_bytes()).expect("a review");
    assert_eq!(validator.decide(admission.validation()).await, None);
    sender.send_replace(Some(Arc::default()));
    let decided = validator.decide(admission.validation());
    let seen = async { sender.send_replace(Some(in_force())) };
    let (decision, _) = tokio::join!(decided, seen);
    assert_eq!(decision, Some(ValidationDecision::allowed()));
}

fn read(body: &[u8]) -> Result<Admission, String> {
    Admission::read(body, None, Arc::new(ReviewLog::new(true)))
}
