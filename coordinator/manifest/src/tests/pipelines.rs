//! Classes and pipelines over time, from files and from an API server: whose change is refused, and
//! what stays in force.

use std::fs;

use leasehold_coordinator_core::desired::{Cluster, Desired, Rebalance, Spread};
use serde_json::{Value, json};

use super::super::check::ObjectId;
use super::super::collection::Collection;
use super::super::{Catalog, Created, last_good};
use super::read_good;

/// What is in force: classes with their capacity and most workers, other clusters, and pipelines
/// with their load and graph.
fn shown(desired: &Desired) -> Vec<String> {
    let cluster = |(name, cluster): (_, &std::sync::Arc<Cluster>)| match &cluster.class {
        Some(class) => format!("{name}: {} x {}", class.capacity, class.workers_max),
        None => format!("{name}: jobs"),
    };
    let pipelines = desired.pipelines.iter().map(|(name, pipeline)| {
        let nodes: Vec<String> = pipeline
            .nodes
            .iter()
            .map(|(name, node)| {
                let next: Vec<&str> = node.next.iter().map(|next| next.as_str()).collect();
                format!("{name}@{} [{}]", node.class, next.join(" "))
            })
            .collect();
        format!("{name} {}: {}", pipeline.load, nodes.join(", "))
    });
    desired.clusters.iter().map(cluster).chain(pipelines).collect()
}

fn class(name: &str, capacity: u32, most: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerClass\nmetadata: {{name: {name}}}\n\
         spec: {{capacity: {capacity}, maxReplicas: {most}}}\n---\n"
    )
}

fn pipeline(name: &str, load: u32, nodes: &str) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: Pipeline\nmetadata: {{name: {name}}}\n\
         spec: {{documentsPerSecond: {load}, workers: {{{nodes}}}}}\n---\n"
    )
}

struct Folder {
    dir: tempfile::TempDir,
    catalog: Catalog,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::new(dir.path());
        Self { dir, catalog }
    }

    /// Writes all there is, reads it, and asserts what is in force and words of each problem.
    #[track_caller]
    fn check(&mut self, text: &[String], in_force: &[&str], problems: &[&str]) {
        fs::write(self.dir.path().join("all.yaml"), text.concat()).unwrap();
        let reading = self.catalog.read();
        let found: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown(&reading.desired.unwrap()), in_force, "problems: {found:#?}");
        assert_eq!(found.len(), problems.len(), "{found:#?}");
        for (found, words) in found.iter().zip(problems) {
            assert!(found.contains(words), "{found:?} has not {words:?}");
        }
    }

    /// Continues in a new process with the kept last good state.
    fn restart(&mut self) {
        let text = last_good::write(&self.catalog.last_good().unwrap()).unwrap();
        let (state, problems) = last_good::read(&String::from_utf8(text).unwrap()).unwrap();
        assert_eq!(problems, []);
        assert_eq!(Some(&state), self.catalog.last_good().as_ref());
        self.catalog = Catalog::new(self.dir.path());
        self.catalog.restore(state);
    }
}

#[test]
fn every_field_is_read_and_omitted_ones_have_the_documented_defaults() {
    let desired = read_good("pipelines");
    let named = |name: &str| {
        let cluster = (*desired.clusters[name]).clone();
        (cluster.class.clone().unwrap(), cluster)
    };
    let (blue, cluster) = named("blue");
    assert_eq!(
        (blue.capacity.to_string(), blue.workers_min, blue.workers_max),
        ("30".into(), 1, 3)
    );
    assert_eq!(
        (blue.utilization, blue.spread, blue.rebalance),
        (70, Spread::Fewest, Rebalance::Never)
    );
    assert_eq!(blue.handover_deadline.as_secs(), 30);
    assert_eq!((cluster.ttl.as_secs(), cluster.drain_deadline.as_secs()), (10, 7200));
    assert_eq!((cluster.jobs_max, cluster.jobs_per_worker_max, cluster.floor), (0, 1, 0));
    let (grey, cluster) = named("grey");
    let bounds = (grey.capacity.to_string(), grey.workers_min, grey.workers_max);
    assert_eq!(bounds, ("2.5".into(), 0, 10_000));
    let manner = (grey.utilization, grey.spread, grey.rebalance);
    assert_eq!(manner, (100, Spread::Even, Rebalance::WhenBlocked));
    assert_eq!(grey.handover_deadline.as_secs(), 1);
    assert_eq!((cluster.ttl.as_millis(), cluster.drain_deadline.as_secs()), (500, 90));
    assert_eq!(cluster.lost_after.map(|after| after.as_secs()), Some(5400));
    let wanted = [
        "blue: 30 x 3",
        "grey: 2.5 x 10000",
        "first 10: in@blue [left right], left@blue [out], out@grey [], right@grey [out]",
        "idle 0.5: only@blue []",
    ];
    assert_eq!(shown(&desired), wanted);
}

#[test]
fn a_class_stays_for_as_long_as_a_pipeline_in_force_names_it() {
    let mut folder = Folder::new();
    let first = pipeline("first", 10, "a: {class: blue}");
    let second = pipeline("second", 10, "a: {class: blue}");
    folder.check(
        &[class("blue", 30, 3), first.clone()],
        &["blue: 30 x 3", "first 10: a@blue []"],
        &[],
    );
    let gone = "spec.workers.a.class: class \"blue\" is no longer defined; it stays in force";
    folder.check(std::slice::from_ref(&first), &["blue: 30 x 3", "first 10: a@blue []"], &[gone]);
    // A new pipeline must not name the missing class.
    let texts = [first, second];
    let unknown = "class \"blue\" is not defined by any valid manifest here: define it";
    let in_force = ["blue: 30 x 3", "first 10: a@blue []"];
    folder.check(&texts, &in_force, &[gone, unknown]);
    folder.restart();
    folder.check(&texts, &in_force, &[gone, unknown]);
    let changed = pipeline("first", 20, "a: {class: blue}");
    folder.check(&[changed], &["blue: 30 x 3", "first 20: a@blue []"], &[gone]);
    folder.check(&[class("green", 1, 1)], &["green: 1 x 1"], &[]);
}

#[test]
fn a_change_that_makes_a_pipeline_unservable_is_refused_at_the_changed_object() {
    let mut folder = Folder::new();
    let first = |load| pipeline("first", load, "a: {class: blue}, b: {class: green, next: [a]}");
    let in_force = ["blue: 30 x 3", "green: 15 x 2", "first 10: a@blue [], b@green [a]"];
    folder.check(&[class("blue", 30, 3), class("green", 15, 2), first(10)], &in_force, &[]);
    // The pipeline's own change.
    let too_large = "spec.documentsPerSecond: can never be served: class green: 1 node of 31 \
                     documents per second needs 3 workers of capacity 15, and maxReplicas is 2";
    let texts = [class("blue", 30, 3), class("green", 15, 2), first(31)];
    folder.check(&texts, &in_force, &[too_large]);
    // A class's change, and nothing else is held up by it.
    let texts = [class("blue", 40, 3), class("green", 4, 2), first(10)];
    let in_force = ["blue: 40 x 3", "green: 15 x 2", "first 10: a@blue [], b@green [a]"];
    let words = "spec.capacity: can never serve pipeline \"first\", which is in force: class \
                 green: 1 node of 10";
    folder.check(&texts, &in_force, &[words]);
    folder.restart();
    folder.check(&texts, &in_force, &[words]);
    let texts = [class("blue", 40, 3), class("green", 9, 1), first(10)];
    folder.check(&texts, &in_force, &["all.yaml:9:34: spec.maxReplicas: can never serve"]);
    // Both changes at once are valid if they fit together.
    let texts = [class("blue", 40, 3), class("green", 4, 2), first(8)];
    let in_force = ["blue: 40 x 3", "green: 4 x 2", "first 8: a@blue [], b@green [a]"];
    folder.check(&texts, &in_force, &[]);
    // Both at once, and they do not fit: the class stays, and then the pipeline's change fits.
    let texts = [class("blue", 40, 3), class("green", 3, 2), first(7)];
    let in_force = ["blue: 40 x 3", "green: 4 x 2", "first 7: a@blue [], b@green [a]"];
    folder.check(&texts, &in_force, &["spec.capacity: can never serve pipeline \"first\""]);
    folder.check(
        &[class("blue", 40, 3), class("green", 3, 2)],
        &["blue: 40 x 3", "green: 3 x 2"],
        &[],
    );
}

#[test]
fn a_binding_name_stays_with_the_pipeline_that_is_in_force() {
    let mut folder = Folder::new();
    let blue = class("blue", 30, 3);
    let long = |node: &str| pipeline("a-b", 10, &format!("{node}: {{class: blue}}"));
    let short = |node: &str| pipeline("a", 10, &format!("{node}: {{class: blue}}"));
    let in_force = ["blue: 30 x 3", "a-b 10: c@blue []"];
    folder.check(&[blue.clone(), long("c")], &in_force, &[]);
    let words = "spec.workers.b-c: makes a binding called \"a-b-c\", and so does node \"c\" of \
                 pipeline \"a-b\": rename one of them";
    folder.check(&[blue.clone(), long("c"), short("b-c")], &in_force, &[words]);
    // One edit may move a name to another pipeline.
    let in_force = ["blue: 30 x 3", "a 10: b-c@blue []", "a-b 10: d@blue []"];
    folder.check(&[blue.clone(), long("d"), short("b-c")], &in_force, &[]);
    let words = "spec.workers.c: makes a binding called \"a-b-c\", and so does node \"b-c\" of";
    folder.check(&[blue, long("c"), short("b-c")], &in_force, &[words]);
}

#[test]
fn a_worker_cluster_keeps_its_name_against_a_class() {
    let mut folder = Folder::new();
    let cluster = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                   metadata: {name: blue}\nspec: {maxJobs: 8, maxJobsPerWorker: 3}\n---\n";
    let first = pipeline("first", 10, "a: {class: blue}");
    let texts = [class("blue", 30, 3), first, cluster.to_owned()];
    folder.check(&texts[..2], &["blue: 30 x 3", "first 10: a@blue []"], &[]);
    // The pipeline waits for its class.
    let in_force = ["blue: jobs", "first 10: a@blue []"];
    let problems = [
        "metadata.name: is the name of a WorkerCluster too, which keeps it",
        "spec.workers.a.class: \"blue\" is a WorkerCluster, whose workers run jobs",
    ];
    folder.check(&texts, &in_force, &problems);
    folder.restart();
    folder.check(&texts, &in_force, &problems);
    folder.check(&texts[..2], &["blue: 30 x 3", "first 10: a@blue []"], &[]);
}

struct Api(Collection);

impl Api {
    fn put(&mut self, kind: &str, name: &str, spec: Value) {
        let created = Created { seconds: 0, uid: format!("{kind} {name}") };
        self.0.put(&Self::id(kind, name), created, spec);
    }

    fn id(kind: &str, name: &str) -> ObjectId {
        let (namespace, name) = name.split_once('/').unwrap();
        Collection::id(kind, namespace, name).unwrap()
    }

    fn class(&mut self, name: &str, capacity: u32, most: u32) {
        self.put("WorkerClass", name, json!({ "capacity": capacity, "maxReplicas": most }));
    }

    fn pipeline(&mut self, name: &str, load: u32, class: &str) {
        let workers = json!({ "a": { "class": class } });
        self.put("Pipeline", name, json!({ "documentsPerSecond": load, "workers": workers }));
    }

    #[track_caller]
    fn check(&mut self, in_force: &[&str], problems: &[&str]) {
        let reading = self.0.read();
        let found: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown(&reading.desired.unwrap()), in_force, "problems: {found:#?}");
        assert_eq!(found.len(), problems.len(), "{found:#?}");
        for (found, words) in found.iter().zip(problems) {
            assert!(found.starts_with(words), "{found:?} does not start with {words:?}");
        }
    }
}

#[test]
fn a_pipeline_waits_for_its_class_and_stays_when_the_class_is_deleted() {
    let mut api = Api(Collection::default());
    api.pipeline("ci/first", 10, "blue");
    api.class("prod/blue", 1, 1);
    api.check(&["prod/blue: 1 x 1", "ci/first 10: a@ci/blue []"], &[]);
    api.class("ci/blue", 30, 3);
    let all = ["ci/blue: 30 x 3", "prod/blue: 1 x 1", "ci/first 10: a@ci/blue []"];
    api.check(&all, &[]);
    // A class on which it could never fit is refused,
    api.class("ci/blue", 3, 3);
    api.check(&all, &["WorkerClass ci/blue: spec.capacity: can never serve pipeline \"first\""]);
    // unless the class was deleted first: then the pipeline is refused.
    api.0.remove(&Api::id("WorkerClass", "ci/blue"));
    api.check(&["prod/blue: 1 x 1", "ci/first 10: a@ci/blue []"], &[]);
    api.class("ci/blue", 3, 3);
    let words = "Pipeline ci/first: spec.documentsPerSecond: can never be served: class ci/blue: \
                 1 node of 10 documents";
    api.check(&["ci/blue: 3 x 3", "prod/blue: 1 x 1"], &[words]);
}

#[test]
fn the_services_of_a_pipeline_begin_with_a_letter() {
    let mut api = Api(Collection::default());
    api.pipeline("ci/1st", 10, "blue");
    api.check(&[], &["Pipeline ci/1st: metadata.name: is \"1st\", but Services are called by it"]);
}
