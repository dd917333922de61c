//! The custom resource definitions: those of the derive ([`crate::resources`]), with a schema from
//! the types that specs are read into, rules, and printer columns. So the API server admits what
//! the coordinator accepts. `deploy/crds` holds them as text; a test fails if one is stale.

mod rules;
mod schema;

use kube::CustomResourceExt;
use leasehold_manifest::manifest::{
    PipelineBindingSpec, PipelineSpec, StreamSetSpec, WorkerClassSpec, WorkerClusterSpec,
};
use serde_json::{Value, json};

use super::resources::{Pipeline, PipelineBinding, StreamSet, WorkerClass, WorkerCluster};
use super::status::{
    PipelineBindingStatus, PipelineStatus, StreamSetStatus, WorkerClassStatus, WorkerClusterStatus,
};

/// The definitions as YAML documents, each with the file that holds it in a comment.
///
/// # Errors
/// If a definition cannot be written as YAML.
pub fn yaml() -> anyhow::Result<String> {
    let mut text = String::new();
    for definition in all() {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        text.push_str("---\n");
        text.push_str(&format!("# deploy/crds/{name}.yaml: written by `make generate`\n"));
        text.push_str(&serde_yaml::to_string(&definition)?);
    }
    Ok(text)
}

fn all() -> [Value; 5] {
    [worker_clusters(), stream_sets(), worker_classes(), pipelines(), pipeline_bindings()]
}

fn worker_clusters() -> Value {
    let mut schema = schema::of::<WorkerClusterSpec, WorkerClusterStatus>(
        "Workers that share one budget of jobs. The coordinator grants each a pool size, \
         so that all together never run more than maxJobs.",
    );
    rules::worker_cluster(&mut schema);
    let columns = json!([
        number("Max Jobs", ".spec.maxJobs", "The budget: the most jobs that may run at once"),
        number("Running", ".status.jobs.running", "Jobs that run"),
        number(
            "Capacity",
            ".status.jobs.capacity",
            "Jobs that the connected workers could run, at most maxJobs"
        ),
        number("Desired", ".status.workers.desired", "Workers wanted"),
        number("Workers", ".status.workers.total", "Existing workers"),
        number("Ready", ".status.workers.ready", "Connected workers that do not drain"),
        number(
            "Draining",
            ".status.workers.draining",
            "Workers that finish their jobs and take no new ones"
        ),
        condition("Healthy", "Ready"),
        age(),
        wide(number("Granted", ".status.jobs.granted", "The sum of all pool sizes")),
        wide(number("Committed", ".status.jobs.committed", "The most jobs that may be running")),
        wide(number("Lost", ".status.workers.lost", "Workers that are silent")),
        wide(text("Workload", ".status.workload.kind", "The workload that makes its workers")),
        wide(number("Old Agents", ".status.agents.outdated", "Pods with an outdated agent")),
    ]);
    definition::<WorkerCluster>(schema, columns)
}

fn stream_sets() -> Value {
    let mut schema = schema::of::<StreamSetSpec, StreamSetStatus>(
        "Streams that are each owned by at most one worker of a WorkerCluster at any moment.",
    );
    rules::stream_set(&mut schema);
    let columns = json!([
        text("Cluster", ".spec.cluster", "The WorkerCluster whose workers own the streams"),
        number("Streams", ".status.streams.total", "Streams of the set"),
        number("Owned", ".status.streams.owned", "Streams that a worker owns"),
        number("Moving", ".status.streams.moving", "Streams that move to another worker"),
        number("Workers", ".status.workers.total", "Workers that take part"),
        condition("Converged", "Converged"),
        age(),
        wide(number("Current", ".status.workers.current", "Workers with the newest version")),
        wide(number("Version", ".status.planVersion", "The newest assignment")),
        wide(number("Unplaced", ".status.streams.unplaced", "Streams without a worker")),
        wide(text("Policy", ".spec.policy", "How streams are assigned to workers")),
        wide(text("Mode", ".spec.mode", "What happens to a stream when its lease expires")),
    ]);
    definition::<StreamSet>(schema, columns)
}

fn worker_classes() -> Value {
    let mut schema = schema::of::<WorkerClassSpec, WorkerClassStatus>(
        "Workers of one kind and capacity, which run the nodes of pipelines. No worker is ever \
         given more load than its capacity.",
    );
    rules::worker_class(&mut schema);
    let columns = json!([
        text("Capacity", ".spec.capacity", "Documents per second that one worker can process"),
        text(
            "Request",
            ".status.load.request",
            "Documents per second that its workers must process"
        ),
        number(
            "Utilization %",
            ".status.load.utilization",
            "The request, in percent of what its workers can process together",
        ),
        number("Replicas", ".status.replicas", "Existing workers"),
        number("Min", ".spec.minReplicas", "The fewest workers that it is scaled to"),
        number("Max", ".spec.maxReplicas", "The most workers that it is scaled to"),
        number("Ready", ".status.workers.ready", "Connected workers that do not drain"),
        number("Waiting", ".status.pipelinesWaiting", "Pipelines that wait for its workers"),
        condition("Healthy", "Ready"),
        age(),
        wide(text("Placed", ".status.load.placed", "The part of the request that has workers")),
        wide(number("Draining", ".status.workers.draining", "Workers that give up their load")),
        wide(number("Lost", ".status.workers.lost", "Workers that are silent")),
        wide(text("Workload", ".status.workload.kind", "The workload that makes its workers")),
    ]);
    definition::<WorkerClass>(schema, columns)
}

fn pipelines() -> Value {
    let mut schema = schema::of::<PipelineSpec, PipelineStatus>(
        "A directed acyclic graph of nodes, each of which processes every document. The \
         coordinator chooses the workers of each node by their capacity.",
    );
    rules::pipeline(&mut schema);
    let columns = json!([
        text(
            "Documents/s",
            ".spec.documentsPerSecond",
            "The load: documents per second that each node processes",
        ),
        text("Phase", ".status.phase", "Pending, Plotted, Ready or Broken"),
        number("Ready", ".status.bindings.ready", "Nodes that are served by all their workers"),
        number("Bindings", ".status.bindings.total", "Nodes"),
        age(),
        wide(text(
            "Reason",
            ".status.conditions[?(@.type==\"Ready\")].reason",
            "The reason of the condition Ready",
        )),
    ]);
    definition::<Pipeline>(schema, columns)
}

fn pipeline_bindings() -> Value {
    let schema = schema::of::<PipelineBindingSpec, PipelineBindingStatus>(
        "A node of a pipeline as it runs. The coordinator creates it, and a Service of the same \
         name; changes by others are reverted.",
    );
    let columns = json!([
        text("Pipeline", ".spec.pipeline", "The pipeline"),
        text("Node", ".spec.node", "The node"),
        text("Class", ".spec.class", "The WorkerClass of its workers"),
        text("Phase", ".status.phase", "Pending, Ready, DeadEnd or Unset"),
        number("Workers", ".status.workers", "Workers that serve it or are chosen to"),
        age(),
        wide(text("Documents/s", ".spec.documentsPerSecond", "The load")),
    ]);
    definition::<PipelineBinding>(schema, columns)
}

/// The derive's definition, with what it does not have. Written as JSON, since the typed schema
/// holds every bound as a float.
fn definition<K: CustomResourceExt>(schema: Value, columns: Value) -> Value {
    let mut definition = serde_json::to_value(K::crd()).expect("a definition is JSON");
    definition["metadata"]["labels"] = json!({ "app.kubernetes.io/name": "leasehold" });
    // With a definition all objects of its kind go, and the workloads that they own.
    definition["metadata"]["annotations"] = json!({
        "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
        "helm.sh/resource-policy": "keep",
        "kustomize.toolkit.fluxcd.io/prune": "disabled",
    });
    let names = &mut definition["spec"]["names"];
    names["listKind"] = json!(format!("{}List", names["kind"].as_str().expect("a kind")));
    let version = &mut definition["spec"]["versions"][0];
    version["schema"] = json!({ "openAPIV3Schema": schema });
    version["additionalPrinterColumns"] = columns;
    definition
}

fn column(name: &str, kind: &str, path: &str, description: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path, "description": description })
}

fn number(name: &str, path: &str, description: &str) -> Value {
    column(name, "integer", path, description)
}

fn text(name: &str, path: &str, description: &str) -> Value {
    column(name, "string", path, description)
}

fn condition(name: &str, condition: &str) -> Value {
    let path = format!(".status.conditions[?(@.type==\"{condition}\")].status");
    text(name, &path, &format!("The condition {condition}"))
}

fn age() -> Value {
    column("Age", "date", ".metadata.creationTimestamp", "Time since the object was created")
}

/// Shows a column with `-o wide` only.
fn wide(mut column: Value) -> Value {
    column["priority"] = json!(1);
    column
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::names::GROUP;

    #[test]
    fn committed_definitions_are_up_to_date() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = yaml().unwrap();
        let mut files = 0;
        for document in text.split("---\n").filter(|document| !document.is_empty()) {
            let file = document.split([' ', ':']).nth(1).unwrap();
            let committed = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            assert!(committed == document, "{file} is stale: run `make generate`");
            files += 1;
        }
        let names = std::fs::read_dir(root.join("deploy/crds")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let of_group = names.filter(|name| name.ends_with(&format!(".{GROUP}.yaml")));
        assert_eq!(of_group.count(), files, "deploy/crds has a file without a kind");
    }

    #[test]
    fn every_field_of_a_spec_is_described() {
        fn look(path: &str, schema: &Value, undescribed: &mut Vec<String>) {
            for (name, below) in schema["properties"].as_object().into_iter().flatten() {
                let path = format!("{path}.{name}");
                if below["description"].as_str().is_none_or(str::is_empty) {
                    undescribed.push(path.clone());
                }
                look(&path, below, undescribed);
                look(&format!("{path}[]"), &below["items"], undescribed);
                look(&format!("{path}{{}}"), &below["additionalProperties"], undescribed);
            }
        }
        let mut undescribed = Vec::new();
        for definition in all() {
            let version = &definition["spec"]["versions"][0];
            look("", &version["schema"]["openAPIV3Schema"], &mut undescribed);
        }
        undescribed.retain(|path| path != ".metadata");
        assert!(undescribed.is_empty(), "without a description: {undescribed:?}");
    }

    #[test]
    fn defaults_equal_those_of_manifest_files() {
        let definition = worker_clusters();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &schema["properties"]["spec"]["properties"];
        assert_eq!(spec["drain"]["default"], json!({ "deadline": "2h" }));
        assert_eq!(spec["drain"]["properties"]["deadline"]["default"], json!("2h"));
        assert_eq!(spec["lease"]["default"], json!({ "ttl": "10s", "floor": 0 }));
        assert_eq!(spec["workload"].get("default"), None);
        assert_eq!(spec["workload"]["properties"]["kind"]["default"], json!("Deployment"));

        let definition = worker_classes();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &schema["properties"]["spec"]["properties"];
        let scaling = json!({ "targetUtilization": 70, "stabilization": "5m" });
        assert_eq!(spec["scaling"]["default"], scaling);
        assert_eq!(spec["minReplicas"]["default"], json!(1));
        assert_eq!(spec["spread"]["default"], json!("Fewest"));
        assert_eq!(spec["rebalance"]["default"], json!("Never"));
    }
}
