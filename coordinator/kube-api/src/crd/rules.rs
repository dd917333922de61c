//! The rules that a schema cannot express (CEL), each with a message that says what to do. They
//! refuse what [`leasehold_manifest`] refuses in a single object, and what Kubernetes could not
//! carry out. `testdata/rules/cases.yaml` has cases for each rule.

use leasehold_injection::FLAGS;
use leasehold_injection::flags::FlagKind;
use leasehold_types::limits;
use serde_json::{Value, json};

use crate::names::{CLUSTER_NAME_BYTES_MAX, STATEFUL_NAME_BYTES_MAX};

/// Streams that one object lists. With the longest names and the managed fields they fill about
/// the size limit of etcd for one object; longer lists are in ConfigMaps.
const STREAMS_INLINE_MAX: usize = 2_000;
/// ConfigMap keys that one set takes streams from.
const SOURCES_MAX: usize = 100;
/// Bytes of a flag's value.
const FLAG_BYTES_MAX: usize = 4_096;
const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// A DNS label that begins with a letter.
const SERVICE_NAME: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
const DNS_WANTED: &str =
    "must be lower-case letters, digits, '-' and '.', starting and ending with a letter or digit";
/// The longest duration, in hours: durations of CEL have no unit for days.
const HOURS_MAX: u64 = leasehold_types::duration::MANIFEST.max().as_secs() / 3600;

/// The rules of WorkerClusters.
pub(super) fn worker_cluster(schema: &mut Value) {
    let per_worker = "(has(self.maxJobsPerWorker) ? self.maxJobsPerWorker : 1)";
    let rules = json!([
        blaming(
            ".lease.floor",
            rule(
                &format!("self.lease.floor <= {per_worker}"),
                "must be at most maxJobsPerWorker: lower it, or raise that",
            ),
        ),
        rule(
            "self.maxJobs == 0 || has(self.maxJobsPerWorker)",
            "gives maxJobs without maxJobsPerWorker: add it, or leave both out where workers only \
             own streams",
        ),
        rule(
            "has(self.maxJobsPerWorker) || \
             (!has(self.template) && !(has(self.workloadRef) && self.workloadRef.scale))",
            "makes or scales workers, but does not say how many: add maxJobsPerWorker, and maxJobs \
             unless an autoscaler sets it (5 jobs, 1 per worker, make five workers)",
        ),
    ]);
    add(schema, "spec", rules);
    let again = "make another WorkerCluster, and delete this one when its jobs have ended";
    workers(schema, again);
}

/// The rules of WorkerClasses.
pub(super) fn worker_class(schema: &mut Value) {
    let above_zero = rule(
        "type(self) == int ? self > 0 : !self.matches(r'^0+([.]0+)?$')",
        "must be above 0, so that a worker can take load",
    );
    add(schema, "spec.capacity", json!([above_zero]));
    let replicas = json!([
        blaming(
            ".minReplicas",
            rule("self.minReplicas <= self.maxReplicas", "must be at most maxReplicas: lower it"),
        ),
        blaming(
            ".replicas",
            rule(
                "!has(self.replicas) || \
                 (self.replicas >= self.minReplicas && self.replicas <= self.maxReplicas)",
                "must be from minReplicas to maxReplicas",
            ),
        ),
    ]);
    add(schema, "spec", replicas);
    let again = "make another WorkerClass, let the pipelines name it, and delete this one";
    workers(schema, again);
    for path in ["spec.handover.deadline", "spec.scaling.stabilization"] {
        span(schema, path, None);
    }
}

/// The rules of Pipelines. The validating webhook checks the graph: its messages can name nodes.
pub(super) fn pipeline(schema: &mut Value) {
    let name = format!(
        "self.metadata.name.size() <= {} && self.metadata.name.matches(r'{SERVICE_NAME}')",
        limits::LABEL_BYTES_MAX
    );
    let message = format!(
        "metadata.name must be at most {} lower-case letters, digits and '-', starting with a \
         letter and ending with a letter or digit, since Services are called by it",
        limits::LABEL_BYTES_MAX
    );
    add(schema, "", json!([rule(&name, &message)]));
    let class = format!("self.matches(r'{DNS_SUBDOMAIN}')");
    let message = format!("{DNS_WANTED}; the WorkerClass is in the pipeline's own namespace");
    add(schema, "spec.workers{}.class", json!([rule(&class, &message)]));
    let next = at(schema, "spec.workers{}.next");
    next["x-kubernetes-list-type"] = json!("set");
    next["items"]["minLength"] = json!(1);
    next["items"]["maxLength"] = json!(limits::LABEL_BYTES_MAX);
}

/// The rules on workloads, drains and leases; `again` says what to do instead of changing an
/// immutable field.
fn workers(schema: &mut Value, again: &str) {
    add(schema, "", name_rules());
    add(schema, "spec", workload_rules(again));
    add(schema, "spec.workload", workload_kinds(again));
    agent(schema);
    let service = format!("self.matches(r'{DNS_LABEL}')");
    add(schema, "spec.workload.serviceName", json!([rule(&service, DNS_WANTED)]));
    let named = format!("self.matches(r'{DNS_SUBDOMAIN}')");
    add(schema, "spec.workloadRef.name", json!([rule(&named, DNS_WANTED)]));
    span(
        schema,
        "spec.drain.deadline",
        Some(("duration(self) > duration('0s')", "must be above 0: give workers time to end jobs")),
    );
    let ttl = "duration(self) >= duration('200ms') && duration(self) <= duration('10m')";
    span(schema, "spec.lease.ttl", Some((ttl, "must be from 200ms to 10m")));
    let after = "duration(self) > duration('0s')";
    let message = "must be above 0: give the longest time that a job may run unseen";
    span(schema, "spec.lost.after", Some((after, message)));
}

fn name_rules() -> Value {
    json!([
        rule(
            &format!("self.metadata.name.size() <= {CLUSTER_NAME_BYTES_MAX}"),
            &format!(
                "metadata.name must be at most {CLUSTER_NAME_BYTES_MAX} characters, since it is \
                 the value of a label: choose a shorter one"
            ),
        ),
        rule(
            &format!(
                "!has(self.spec.workload) || self.spec.workload.kind != 'StatefulSet' || \
                 (self.metadata.name.size() <= {STATEFUL_NAME_BYTES_MAX} && \
                 !self.metadata.name.contains('.'))"
            ),
            &format!(
                "metadata.name must be at most {STATEFUL_NAME_BYTES_MAX} characters without '.' \
                 for a StatefulSet, whose pods' names are made from it: choose another"
            ),
        ),
    ])
}

/// The rules of StreamSets.
pub(super) fn stream_set(schema: &mut Value) {
    let given = "(has(self.streams) && self.streams.size() > 0) || \
                 (has(self.streamsFrom) && self.streamsFrom.size() > 0)";
    let message = "names no stream: add streams or streamsFrom";
    add(schema, "spec", json!([rule(given, message)]));
    let cluster = format!("self.matches(r'{DNS_SUBDOMAIN}')");
    let message = format!("{DNS_WANTED}; the WorkerCluster is in the set's own namespace");
    add(schema, "spec.cluster", json!([rule(&cluster, &message)]));

    let streams = at(schema, "spec.streams");
    streams["maxItems"] = json!(STREAMS_INLINE_MAX);
    streams["x-kubernetes-list-type"] = json!("map");
    streams["x-kubernetes-list-map-keys"] = json!(["name"]);
    let bytes = format!("bytes(self).size() <= {}", limits::STREAM_NAME_BYTES_MAX);
    let message = format!("must be at most {} bytes", limits::STREAM_NAME_BYTES_MAX);
    add(schema, "spec.streams[].name", json!([rule(&bytes, &message)]));

    let sources = at(schema, "spec.streamsFrom");
    sources["maxItems"] = json!(SOURCES_MAX);
    sources["x-kubernetes-list-type"] = json!("atomic");
    let source = json!([
        rule("has(self.file) || has(self.configMapKeyRef)", "give configMapKeyRef"),
        rule(
            "!has(self.file)",
            "file is read in standalone mode only: put the streams into a ConfigMap, and give \
             configMapKeyRef",
        ),
    ]);
    add(schema, "spec.streamsFrom[]", source);
    let key = "spec.streamsFrom[].configMapKeyRef";
    let named = format!("self.matches(r'{DNS_SUBDOMAIN}')");
    add(schema, &format!("{key}.name"), json!([rule(&named, DNS_WANTED)]));
    let message = "must be letters, digits, '-', '_' and '.'";
    let keys = rule("self.matches(r'^[-._a-zA-Z0-9]+$')", message);
    add(schema, &format!("{key}.key"), json!([keys]));

    for path in ["spec.handover.deadline", "spec.moves.cooldown", "spec.moves.settle"] {
        span(schema, path, None);
    }
}

fn workload_rules(again: &str) -> Value {
    let kind = |of: &str| format!("(has({of}.workload) ? {of}.workload.kind : 'Deployment')");
    let (new, old) = (kind("self"), kind("oldSelf"));
    json!([
        rule(
            "!has(self.template) || !has(self.workloadRef)",
            "gives both template and workloadRef: keep one",
        ),
        rule(
            "!has(self.workload) || has(self.template)",
            "workload says how to make a workload, but template is missing: add one",
        ),
        rule(
            &format!("!has(self.template) || !has(oldSelf.template) || {new} == {old}"),
            &format!("workload.kind cannot be changed, since its pods would stay: {again}"),
        ),
    ])
}

/// Refuses settings that no agent accepts, before a pod requests them.
fn agent(schema: &mut Value) {
    let names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    let listed = format!("self.all(flag, flag in ['{}'])", names.join("', '"));
    let message = format!("a flag that cannot be set; there are: {}", names.join(", "));
    let once = "!has(self.adapter) || !has(self.flags) || !('adapter' in self.flags)";
    let flags = at(schema, "spec.agent.flags");
    flags["additionalProperties"]["minLength"] = json!(1);
    flags["additionalProperties"]["maxLength"] = json!(FLAG_BYTES_MAX);
    add(schema, "spec.agent.flags", json!([rule(&listed, &message)]));
    add(schema, "spec.agent", json!([rule(once, "adapter is given twice: keep agent.adapter")]));
    let adapters = FLAGS.iter().find_map(|flag| match flag.kind {
        FlagKind::OneOf(words) if flag.name == "adapter" => Some(words),
        _ => None,
    });
    at(schema, "spec.agent.adapter")["enum"] = json!(adapters.unwrap_or_default());
}

fn workload_kinds(again: &str) -> Value {
    let kept = |field: &str| {
        format!(
            "has(self.{field}) == has(oldSelf.{field}) && \
             (!has(self.{field}) || self.{field} == oldSelf.{field})"
        )
    };
    let fixed = |field: &str| {
        let message = format!("{field} of a StatefulSet cannot be changed: {again}");
        rule(&kept(field), &message)
    };
    json!([
        rule(
            "self.kind == 'Deployment' || (!has(self.maxSurge) && !has(self.maxUnavailable))",
            "maxSurge and maxUnavailable are for kind Deployment only: remove them",
        ),
        rule(
            "self.kind == 'StatefulSet' || \
             (!has(self.serviceName) && !has(self.podManagementPolicy))",
            "serviceName and podManagementPolicy are for kind StatefulSet only: remove them",
        ),
        rule(
            "!has(self.maxSurge) || !has(self.maxUnavailable) || \
             !(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
            "maxSurge and maxUnavailable are both 0, so that no rollout could begin: raise one",
        ),
        fixed("serviceName"),
        fixed("podManagementPolicy"),
    ])
}

/// Bounds a duration, which already has the rule on its syntax. The API server evaluates every
/// rule, so each of them passes for a text that is not a duration.
fn span(schema: &mut Value, path: &str, more: Option<(&str, &str)>) {
    let syntax = at(schema, path)["x-kubernetes-validations"][0]["rule"].clone();
    let syntax = syntax.as_str().expect("a duration has a rule on its syntax").to_owned();
    let unless_wrong = |condition: &str| format!("!{syntax} || ({condition})");
    let longest = format!("duration(self) <= duration('{HOURS_MAX}h')");
    let message = format!("must be at most {} days ({HOURS_MAX}h)", HOURS_MAX / 24);
    let mut rules = vec![rule(&unless_wrong(&longest), &message)];
    rules.extend(more.map(|(condition, message)| rule(&unless_wrong(condition), message)));
    add(schema, path, Value::Array(rules));
}

fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

fn blaming(path: &str, mut rule: Value) -> Value {
    rule["fieldPath"] = json!(path);
    rule
}

fn add(schema: &mut Value, path: &str, rules: Value) {
    let Value::Array(rules) = rules else { return };
    let there = &mut at(schema, path)["x-kubernetes-validations"];
    match there {
        Value::Array(there) => there.extend(rules),
        _ => *there = Value::Array(rules),
    }
}

/// The schema of a field, as in `spec.streams[].name`, or in `spec.workers{}.class` for the values
/// of a mapping.
fn at<'a>(schema: &'a mut Value, path: &str) -> &'a mut Value {
    let mut found = schema;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let (name, below) = match (step.strip_suffix("[]"), step.strip_suffix("{}")) {
            (Some(name), _) => (name, Some("items")),
            (None, Some(name)) => (name, Some("additionalProperties")),
            (None, None) => (step, None),
        };
        found = &mut found["properties"][name];
        if let Some(below) = below {
            found = &mut found[below];
        }
        assert!(found["type"].is_string() || found["x-kubernetes-int-or-string"] == true, "{path}");
    }
    found
}
