//! Classes and pipelines through a real API server, which asks a coordinator about them before it
//! stores them: what is wrong is refused with words that people can act on, and a class that is in
//! use stays.

use serde_json::{Value, json};
use tests::kube::{Cluster, Namespace, Replicas, object};
use tests::process::eventually;

/// A namespace with a leader and a standby, of which the API server asks the standby about classes
/// and pipelines.
struct ValidatorFixture {
    namespace: Namespace,
    configuration: String,
    replicas: Replicas,
}

impl ValidatorFixture {
    /// None where there are no binaries, which is noted.
    fn open() -> Option<Self> {
        let namespace = Cluster::shared()?.namespace("validate");
        Replicas::define(&namespace.access);
        let configuration = format!("validator-{namespace}");
        let flags = ["--validator-configuration", &configuration];
        let mut replicas = Replicas::new(&namespace.access, &namespace, &flags);
        replicas.start();
        replicas.wait_ready();
        replicas.start();
        replicas.wait_ready();
        let fixture = Self { namespace, configuration, replicas };
        fixture.configure();
        Some(fixture)
    }

    /// As `deploy/base` has it, but for this namespace and at the standby's address.
    fn configure(&self) {
        let text = std::fs::read_to_string(tests::toolbox::root().join("deploy/base/webhook.yaml"));
        let text = text.expect("the manifests");
        let documents = text.split("---\n").map(serde_yaml::from_str::<Value>);
        let mut documents = documents.map(|document| document.expect("YAML"));
        let found = documents.find(|document| document["kind"] == "ValidatingWebhookConfiguration");
        let mut wanted = found.expect("the configuration");
        wanted["metadata"] = json!({ "name": self.configuration });
        let url = format!("https://{}/validate", self.replicas.running[1].webhook);
        let label = json!({ "kubernetes.io/metadata.name": &*self.namespace });
        for webhook in wanted["webhooks"].as_array_mut().expect("webhooks") {
            webhook["clientConfig"] = json!({ "url": url });
            webhook["namespaceSelector"] = json!({ "matchLabels": label });
        }
        self.namespace.access.apply(&wanted.to_string());
        // The leader writes whom to trust; the API server takes a moment to know its configuration.
        let circle = pipeline("circle", 1, json!({ "a": { "class": "none", "next": ["a"] } }));
        eventually("a webhook that is asked", || {
            let message = self.apply(&["--dry-run=server"], &circle).err()?;
            message.contains("is the node itself").then_some(())
        });
    }

    fn apply(&self, more: &[&str], object: &Value) -> Result<String, String> {
        let arguments = ["--namespace", &self.namespace, "apply", "--filename", "-"];
        let mut command = self.namespace.access.kubectl_command(&[&arguments[..], more].concat());
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
        let pipe = child.stdin.take().expect("a pipe");
        serde_json::to_writer(pipe, object).expect("kubectl reads");
        let output = child.wait_with_output().expect("it ends");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(message) } else { Err(message) }
    }

    /// Asserts that this is taken, and that nothing is to be said of it.
    fn take(&self, object: &Value) {
        assert_eq!(self.apply(&[], object), Ok(String::new()), "{object:#}");
    }

    /// Asserts that this is refused with these words.
    fn refuse(&self, object: &Value, words: &[&str]) {
        let message = self.apply(&[], object).expect_err("it is wrong");
        assert!(message.contains("validator.leasehold.dev"), "{message}");
        for words in words {
            assert!(message.contains(words), "no {words:?} in {message}");
        }
    }

    fn delete(&self, what: &str) -> Result<String, String> {
        self.namespace.try_kubectl(&["delete", what])
    }
}

impl Drop for ValidatorFixture {
    fn drop(&mut self) {
        let delete = ["delete", "validatingwebhookconfiguration", &self.configuration];
        let _ = self.namespace.try_kubectl(&[&delete[..], &["--ignore-not-found"]].concat());
    }
}

fn class(name: &str, capacity: u32, most: u32) -> Value {
    object("WorkerClass", name, json!({ "capacity": capacity, "maxReplicas": most }))
}

fn pipeline(name: &str, load: u32, workers: Value) -> Value {
    object("Pipeline", name, json!({ "documentsPerSecond": load, "workers": workers }))
}

/// A node on class blue.
fn blue(next: &[&str]) -> Value {
    json!({ "class": "blue", "next": next })
}

#[test]
fn invalid_objects_are_refused_at_admission() {
    let Some(fixture) = ValidatorFixture::open() else { return };
    fixture.take(&class("blue", 30, 3));
    let nodes = json!({ "in": blue(&["out"]), "out": blue(&[]) });
    fixture.take(&pipeline("first", 10, nodes));

    let cycle = json!({ "a": blue(&["b"]), "b": blue(&["c"]), "c": blue(&["a"]) });
    let cycle = pipeline("cycle", 1, cycle);
    fixture.refuse(&cycle, &["Pipeline cycle: spec.workers.c.next[0]", "a -> b -> c -> a"]);
    let dangling = pipeline("dangling", 1, json!({ "a": blue(&["b"]) }));
    fixture.refuse(&dangling, &["spec.workers.a.next[0]: is \"b\", which is not a node of this"]);
    let impossible = pipeline("impossible", 91, json!({ "a": blue(&[]) }));
    let words =
        ["1 node of 91 documents per second needs 4 workers of capacity 30, and maxReplicas \
                  is 3"];
    fixture.refuse(&impossible, &words);
    // What was raised a moment ago counts.
    fixture.take(&class("blue", 30, 4));
    fixture.take(&impossible);
    fixture.refuse(&class("blue", 30, 3), &["WorkerClass blue: spec.maxReplicas: can never serve"]);

    fixture.take(&pipeline("a-b", 1, json!({ "c": blue(&[]) })));
    let namesake = pipeline("a", 1, json!({ "b-c": blue(&[]) }));
    fixture.refuse(&namesake, &["makes a binding called \"a-b-c\"", "pipeline \"a-b\""]);
    let cluster = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
    fixture.take(&object("WorkerCluster", "builds", cluster));
    fixture.refuse(&class("builds", 1, 1), &["is the name of a WorkerCluster too"]);
    let jobs = pipeline("jobs", 1, json!({ "a": { "class": "builds" } }));
    fixture.refuse(&jobs, &["\"builds\" is a WorkerCluster"]);

    let early = pipeline("early", 1, json!({ "a": { "class": "later" } }));
    let message = fixture.apply(&[], &early).expect("it may wait");
    assert!(
        message.contains("Warning") && message.contains("WorkerClass \"later\" does not exist yet"),
        "{message}"
    );
}

#[test]
fn a_class_in_use_cannot_be_deleted_before_its_pipelines_or_namespace() {
    let Some(fixture) = ValidatorFixture::open() else { return };
    fixture.take(&class("blue", 30, 3));
    for name in ["first", "second"] {
        fixture.take(&pipeline(name, 10, json!({ "a": blue(&[]) })));
    }
    let message = fixture.delete("workerclass/blue").expect_err("it is in use");
    assert!(message.contains("2 pipelines name it (first, second)"), "{message}");
    fixture.delete("pipeline/first").expect("the webhook is not called");
    let message = fixture.delete("workerclass/blue").expect_err("it is in use");
    assert!(message.contains("1 pipeline names it (second)"), "{message}");
    fixture.delete("pipeline/second").expect("the webhook is not called");
    fixture.delete("workerclass/blue").expect("what went a moment ago counts");

    fixture.take(&class("green", 30, 3));
    fixture.take(&pipeline("third", 10, json!({ "a": { "class": "green" } })));
    let access = &fixture.namespace.access;
    access.kubectl(&["delete", "namespace", &fixture.namespace, "--timeout=60s"]);
}

#[test]
fn only_spec_changes_need_the_validating_webhook() {
    let Some(mut fixture) = ValidatorFixture::open() else { return };
    let mut pipeline = pipeline("first", 10, json!({ "a": { "class": "later" } }));
    fixture.apply(&[], &pipeline).expect("it may wait");
    fixture.replicas.running.iter_mut().for_each(|replica| replica.process.kill());
    let patch = r#"{"metadata":{"finalizers":["example.com/mine"],"labels":{"a":"b"}}}"#;
    let patched = |patch: &str| {
        let merge = ["patch", "pipeline/first", "--type=merge", "--patch", patch];
        fixture.namespace.try_kubectl(&merge)
    };
    patched(patch).expect("the webhook is not called for metadata");
    pipeline["spec"]["documentsPerSecond"] = json!(11);
    let message = fixture.apply(&[], &pipeline).expect_err("no server answers");
    assert!(message.contains("validator.leasehold.dev"), "{message}");
    fixture.namespace.kubectl(&["delete", "pipeline/first", "--wait=false"]);
    patched(r#"{"metadata":{"finalizers":[]}}"#)
        .expect("the webhook is not called for a deleted object");
    let message = fixture.namespace.try_kubectl(&["get", "pipeline/first"]);
    let message = message.expect_err("it is gone");
    assert!(message.contains("NotFound"), "{message}");
}
