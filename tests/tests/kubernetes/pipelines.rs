//! Pipelines on a real control plane, with real agents: what people and routers see of them.

#[path = "pipelines/kept.rs"]
mod kept;
#[path = "pipelines/spread.rs"]
mod spread;
#[path = "pipelines/walkthrough.rs"]
mod walkthrough;

use serde_json::{Value, json};
use tests::kube::{FleetFixture, Record, Version, object, until};
use tests::process::soon;

/// The kinds that are recorded.
const KINDS: [(&str, &str, &str); 4] = [
    ("", "v1", "Service"),
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("leasehold.dev", "v1alpha1", "PipelineBinding"),
    ("leasehold.dev", "v1alpha1", "Pipeline"),
];

/// A class with this spec, whose workers are pods of a StatefulSet of its name, so that they are
/// called `blue-0` and so on.
fn class(fixture: &FleetFixture, name: &str, spec: Value) -> Value {
    let mut class = object("WorkerClass", name, spec);
    class["spec"]["port"] = json!(9000);
    class["spec"]["lease"] = json!({ "ttl": "3s" });
    class["spec"]["workload"] = json!({ "kind": "StatefulSet" });
    class["spec"]["template"] = fixture.template();
    class
}

/// A pipeline of nodes, each with its class and the nodes after it.
fn pipeline(name: &str, load: u32, nodes: &[(&str, &str, &[&str])]) -> Value {
    let node = |(node, class, next): &(&str, &str, &[&str])| {
        ((*node).to_owned(), json!({ "class": class, "next": next }))
    };
    let workers: Value = nodes.iter().map(node).collect();
    object("Pipeline", name, json!({ "documentsPerSecond": load, "workers": workers }))
}

/// Begins a record of the fixture's namespace.
async fn record(fixture: &FleetFixture) -> Record {
    let record = Record::begin(&fixture.access.client().await, &fixture.namespace, &KINDS);
    soon("watches of all kinds", || record.is_whole().then_some(())).await;
    record
}

/// Waits until pipelines are in this phase.
fn wait_for_phase(fixture: &FleetFixture, names: &[&str], phase: &str) {
    for name in names {
        fixture.wait_for(&format!("{name} {phase}"), "pl", name, |pipeline| {
            pipeline["status"]["phase"] == phase
        });
    }
}

/// The endpoints of a binding by the pods' names, each with its conditions that hold.
fn endpoints(fixture: &FleetFixture, binding: &str) -> Vec<String> {
    let label = format!("--selector=kubernetes.io/service-name={binding}");
    let list = fixture.kubectl(&["get", "endpointslices", &label, "--output=json"]);
    let list: Value = serde_json::from_str(&list).expect("a list");
    let slices = list["items"].as_array().into_iter().flatten();
    let mut all: Vec<_> = slices.flat_map(endpoints_of).collect();
    all.sort();
    all
}

/// The same of one slice.
fn endpoints_of(slice: &Value) -> Vec<String> {
    let endpoint = |endpoint: &Value| {
        let mut words = vec![endpoint["targetRef"]["name"].as_str().unwrap_or("nobody").to_owned()];
        for condition in ["ready", "serving", "terminating"] {
            if endpoint["conditions"][condition] == true {
                words.push(condition.to_owned());
            }
        }
        words.join(" ")
    };
    slice["endpoints"].as_array().into_iter().flatten().map(endpoint).collect()
}

/// The phases that an object's status had, in order, each once in a row.
fn phases(versions: &[Version], kind: &str, name: &str) -> Vec<String> {
    let of_object = versions.iter().filter(|version| version.kind == kind && version.name == name);
    let phase =
        |version: &Version| version.object.as_ref()?["status"]["phase"].as_str().map(str::to_owned);
    let mut phases: Vec<_> = of_object.filter_map(phase).collect();
    phases.dedup();
    phases
}

/// The resource versions of all that was made for a pipeline, and its own.
fn resource_versions(fixture: &FleetFixture, pipeline: &str) -> Vec<String> {
    let label = format!("--selector=leasehold.dev/pipeline={pipeline}");
    let kinds = "services,endpointslices,pipelinebindings";
    let what = "--output=jsonpath={range .items[*]}{.kind} {.metadata.name} \
                {.metadata.resourceVersion}{'\\n'}{end}";
    let made = fixture.kubectl(&["get", kinds, &label, what]);
    made.lines().map(str::to_owned).collect()
}

/// The load of each worker of a class, as the bindings report it, in thousandths.
fn loads(fixture: &FleetFixture, class: &str) -> std::collections::BTreeMap<String, u64> {
    let list = fixture.kubectl(&["get", "pipelinebindings", "--output=json"]);
    let list: Value = serde_json::from_str(&list).expect("a list");
    let mut loads = std::collections::BTreeMap::new();
    let bindings = list["items"].as_array().into_iter().flatten();
    for binding in bindings.filter(|binding| binding["spec"]["class"] == class) {
        for share in binding["status"]["workerList"].as_array().into_iter().flatten() {
            let name = share["name"].as_str().expect("a name").to_owned();
            let load: leasehold_types::Load = share["documentsPerSecond"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .expect("a load");
            *loads.entry(name).or_default() += load.milli();
        }
    }
    loads
}

/// Waits until no object is there that was made for a pipeline.
fn wait_for_end(fixture: &FleetFixture, pipeline: &str) {
    let made = || resource_versions(fixture, pipeline);
    until("the end of all that was made", made, Vec::is_empty);
}
