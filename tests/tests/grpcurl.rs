//! The real grpcurl against the real binaries: every service is found by reflection, every
//! message can be described, and the admin API answers in the JSON that people will read.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tests::process::{Coordinator, HANG, eventually, get};
use tests::toolbox::{self, Tool};

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 8, maxJobsPerWorker: 3}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  streams: [{name: 'cars:new'}, {name: 'cars:updated'}, {name: 'cars:sold', weight: 2}]
";

const ADMIN: &str = "leasehold.admin.v1.AdminService";
const SCALER: &str = "externalscaler.ExternalScaler";

/// Only what asking v1alpha for its services needs, so that no other way is left to find them.
const V1ALPHA: &str = r#"syntax = "proto3";
package grpc.reflection.v1alpha;
service ServerReflection {
  rpc ServerReflectionInfo(stream ServerReflectionRequest)
      returns (stream ServerReflectionResponse);
}
message ServerReflectionRequest { string list_services = 7; }
message ServerReflectionResponse { ListServiceResponse list_services_response = 6; }
message ListServiceResponse { repeated ServiceResponse service = 1; }
message ServiceResponse { string name = 1; }
"#;

/// grpcurl and the address that it calls.
struct Grpcurl<'a> {
    path: &'a Path,
    address: SocketAddr,
}

impl Grpcurl<'_> {
    fn command(&self, options: &[&str], rest: &[&str]) -> Command {
        let mut command = Command::new(self.path);
        // A hang ends; a machine that stands still for a while fails nothing.
        let hang = HANG.as_secs().to_string();
        command.args(["-plaintext", "-emit-defaults", "-connect-timeout", &hang]);
        command.args(["-max-time", &hang]).args(options);
        command.arg(self.address.to_string()).args(rest).stdin(Stdio::null());
        command
    }

    fn run(&self, options: &[&str], rest: &[&str]) -> Result<String, String> {
        let output = self.command(options, rest).output().expect("grpcurl starts");
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).expect("UTF-8"))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// The names of all services.
    fn list(&self) -> Vec<String> {
        let text = self.run(&[], &["list"]).expect("list");
        text.lines().map(str::to_owned).collect()
    }

    fn describe(&self, symbol: &str) -> String {
        self.run(&[], &["describe", symbol]).unwrap_or_else(|why| panic!("{symbol}: {why}"))
    }

    fn try_call(&self, method: &str, request: &Value) -> Result<Value, String> {
        let text = self.run(&["-d", &request.to_string()], &[method])?;
        Ok(serde_json::from_str(&text).expect("one JSON object"))
    }

    fn call(&self, method: &str, request: &Value) -> Value {
        self.try_call(method, request).unwrap_or_else(|why| panic!("{method}: {why}"))
    }

    fn admin(&self, method: &str, request: &Value) -> Value {
        self.call(&format!("{ADMIN}/{method}"), request)
    }

    /// The answer to an admin call that is refused.
    fn refused(&self, method: &str, request: &Value) -> String {
        match self.try_call(&format!("{ADMIN}/{method}"), request) {
            Ok(answer) => panic!("{method} {request} was not refused: {answer}"),
            Err(why) => why,
        }
    }
}

/// Every message that the methods of a described service take or give.
fn messages(description: &str) -> Vec<String> {
    let is_name = |word: &&str| word.starts_with('.') && word.len() > 1;
    description.split_whitespace().filter(is_name).map(|word| word[1..].to_owned()).collect()
}

fn describes_everything(grpcurl: &Grpcurl<'_>) {
    for service in grpcurl.list() {
        let description = grpcurl.describe(&service);
        assert!(description.contains("is a service"), "{service}: {description}");
        let messages = messages(&description);
        assert!(!messages.is_empty(), "{service}: {description}");
        for message in messages {
            assert!(grpcurl.describe(&message).contains("is a message"), "{message}");
        }
    }
}

fn coordinator_that_leads(path: &Path) -> Coordinator {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let grpcurl = Grpcurl { path, address: coordinator.grpc };
    eventually("a leader", || {
        let status = grpcurl.try_call(&format!("{ADMIN}/GetStatus"), &json!({})).ok()?;
        (status["leads"] == json!(true)).then_some(())
    });
    coordinator
}

#[test]
fn reflection_lists_and_describes_services() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let grpcurl = Grpcurl { path: &path, address: coordinator.grpc };
    let want = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        ADMIN,
        SCALER,
        "leasehold.coordinator.v1.LeaderService",
        "leasehold.coordinator.v1.SessionService",
    ];
    let listed = grpcurl.list();
    for service in want {
        assert!(listed.iter().any(|name| name == service), "no {service} in {listed:?}");
    }
    // Not what only replicas and workers call.
    let known = |name: &String| want.contains(&&**name) || name.starts_with("grpc.reflection.");
    assert!(listed.iter().all(known), "{listed:?}");
    describes_everything(&grpcurl);
    let all = "GetStatus ListClusters GetCluster ListWorkers GetWorker ListStreams GetStream \
               ExplainWorker ExplainStream WatchChanges DrainWorker DeclareWorkerGone Plan \
               ListClasses ListPipelines GetPipeline ExplainPipeline PlanManifests";
    let description = grpcurl.describe(ADMIN);
    for method in all.split(' ') {
        assert!(description.contains(&format!("rpc {method} (")), "{method}: {description}");
    }
}

#[test]
fn reflection_v1alpha_lists_services() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let grpcurl = Grpcurl { path: &path, address: coordinator.grpc };
    std::fs::write(coordinator.folder().join("v1alpha.proto"), V1ALPHA).expect("a file");
    let folder = coordinator.folder().to_str().expect("UTF-8");
    let options =
        ["-import-path", folder, "-proto", "v1alpha.proto", "-d", r#"{"listServices": "*"}"#];
    let method = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    let answer = grpcurl.run(&options, &[method]).expect("v1alpha answers");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let services = answer["listServicesResponse"]["service"].as_array().expect("a list");
    assert!(services.iter().any(|service| service["name"] == json!(ADMIN)), "{answer}");
}

#[test]
fn the_admin_api_answers_status_and_explain_queries() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let grpcurl = Grpcurl { path: &path, address: coordinator.grpc };
    let _agent = coordinator.agent("builds", "worker-0", &[]);
    let worker = json!({"cluster": "builds", "worker": "worker-0"});
    let stream = json!({"set": "cars", "stream": "cars:new"});
    eventually("the worker's leases", || {
        let answer = grpcurl.try_call(&format!("{ADMIN}/GetWorker"), &worker).ok()?;
        let worker = &answer["worker"];
        (worker["streams"] == json!(3) && worker["inEffect"] == json!(3)).then_some(())
    });

    let health = grpcurl.call("grpc.health.v1.Health/Check", &json!({}));
    assert_eq!(health["status"], json!("SERVING"));

    let status = grpcurl.admin("GetStatus", &json!({}));
    assert_eq!(status["problems"], json!([]), "{status}");
    assert_eq!(status["sessions"], json!(1), "{status}");
    assert_ne!(status["epoch"], json!("0"), "{status}");

    let clusters = grpcurl.admin("ListClusters", &json!({}));
    let cluster = grpcurl.admin("GetCluster", &json!({"name": "builds"}));
    assert_eq!(clusters["clusters"], json!([cluster["cluster"]]));
    assert_eq!(cluster["cluster"]["maxJobs"], json!(8), "{cluster}");
    assert_eq!(cluster["cluster"]["streamsOwned"], json!(3), "{cluster}");
    assert_eq!(cluster["cluster"]["connected"], json!(1), "{cluster}");

    let workers = grpcurl.admin("ListWorkers", &json!({"cluster": "builds"}));
    assert_eq!(workers["workers"].as_array().map(Vec::len), Some(1), "{workers}");
    assert_eq!(workers["workers"][0]["presence"], json!("PRESENCE_CONNECTED"), "{workers}");

    let streams = grpcurl.admin("ListStreams", &json!({"set": "cars", "pageSize": 2}));
    assert_eq!(streams["streams"].as_array().map(Vec::len), Some(2), "{streams}");
    let next = streams["nextPageToken"].as_str().expect("a token").to_owned();
    let rest = grpcurl.admin("ListStreams", &json!({"set": "cars", "pageToken": next}));
    assert_eq!(rest["streams"][0]["name"], json!("cars:sold"), "{rest}");

    let found = grpcurl.admin("GetStream", &stream);
    assert_eq!(found["stream"]["claims"][0]["worker"], json!("worker-0"), "{found}");
    assert_eq!(found["stream"]["claims"][0]["phase"], json!("CLAIM_PHASE_HELD"), "{found}");

    for (method, request) in [("ExplainWorker", &worker), ("ExplainStream", &stream)] {
        let why = grpcurl.admin(method, request);
        let summary = why["explanation"]["summary"].as_str().expect("a summary");
        assert!(!summary.is_empty(), "{why}");
    }

    let plan = json!({"cluster": "builds", "addWorkers": ["worker-1"], "maxJobs": 4});
    let plan = grpcurl.admin("Plan", &plan);
    let sizes = |pool: &Value| (pool["worker"].clone(), pool["size"].clone());
    let pools: Vec<_> = plan["pools"].as_array().expect("pools").iter().map(sizes).collect();
    assert_eq!(pools, [(json!("worker-0"), json!(2)), (json!("worker-1"), json!(2))], "{plan}");
    assert_eq!(grpcurl.admin("GetCluster", &json!({"name": "builds"}))["cluster"]["workers"], 1);
}

#[test]
fn invalid_admin_calls_are_refused_with_a_reason() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let grpcurl = Grpcurl { path: &path, address: coordinator.grpc };
    let _agent = coordinator.agent("builds", "worker-0", &[]);
    let worker = json!({"cluster": "builds", "worker": "worker-0"});
    eventually("the worker", || grpcurl.try_call(&format!("{ADMIN}/GetWorker"), &worker).ok());

    let unsure = grpcurl.refused("DeclareWorkerGone", &worker);
    assert!(unsure.contains("InvalidArgument") && unsure.contains("incarnation"), "{unsure}");
    let declared = json!({"cluster": "builds", "worker": "worker-0", "incarnation": "1"});
    let lives = grpcurl.refused("DeclareWorkerGone", &declared);
    assert!(lives.contains("FailedPrecondition"), "{lives}");
    let unknown = json!({"cluster": "builds", "worker": "worker-9"});
    assert!(grpcurl.refused("GetWorker", &unknown).contains("NotFound"));
    assert!(grpcurl.refused("GetCluster", &json!({"name": "none"})).contains("NotFound"));
    let stream = json!({"set": "cars", "stream": "cars:none"});
    assert!(grpcurl.refused("GetStream", &stream).contains("NotFound"));
    let invalid = grpcurl.refused("GetCluster", &json!({"name": "Not A Name"}));
    assert!(invalid.contains("InvalidArgument") && invalid.contains("Not A Name"), "{invalid}");
}

#[test]
fn a_watch_shows_the_changes_of_a_drain() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let grpcurl = Grpcurl { path: &path, address: coordinator.grpc };
    let method = format!("{ADMIN}/WatchChanges");
    let mut watch = grpcurl
        .command(&["-d", "{}"], &[&method])
        .stdout(Stdio::piped())
        .spawn()
        .expect("grpcurl starts");
    let lines = BufReader::new(watch.stdout.take().expect("its output")).lines();
    let (send, changes) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok).filter(|line| line.contains("\"kind\"")) {
            if send.send(line).is_err() {
                return;
            }
        }
    });

    // No message says when the watch is open: workers join until it shows one.
    let mut agents = Vec::new();
    let joined = eventually("a change", || {
        let name = format!("worker-{}", agents.len());
        agents.push(coordinator.agent("builds", &name, &[]));
        changes.recv_timeout(Duration::from_secs(1)).ok()
    });
    assert!(joined.contains("CHANGE_KIND_"), "{joined}");
    let worker = json!({"cluster": "builds", "worker": "worker-0"});
    eventually("the drain", || grpcurl.try_call(&format!("{ADMIN}/DrainWorker"), &worker).ok());
    for kind in ["CHANGE_KIND_ORDERED", "CHANGE_KIND_DRAIN_STARTED"] {
        let seen = changes.iter().any(|line| line.contains(kind));
        assert!(seen, "the watch ended before {kind}");
    }
    let (_, metrics) = get(coordinator.http, "/metrics").expect("metrics");
    let counted = "leasehold_orders_total{by=\"person\",order=\"drain\"} ";
    assert!(metrics.lines().any(|line| line.starts_with(counted)), "{metrics}");
    let log = coordinator.process.log();
    assert!(log.contains("drain ordered") && log.contains("by=a client at 127.0.0.1"), "{log}");
    watch.kill().expect("grpcurl is killed");
    watch.wait().expect("grpcurl ends");
}

#[test]
fn reflection_lists_the_services_of_an_agent() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let agent = coordinator.agent("builds", "worker-0", &[]);
    let grpcurl = Grpcurl { path: &path, address: agent.api };
    let method = "leasehold.worker.v1.WorkerService/GetLease";
    let lease = eventually("a pool", || {
        let answer = grpcurl.try_call(method, &json!({})).ok()?;
        (answer["lease"]["pool"]["size"] == json!(3)).then(|| answer["lease"].clone())
    });
    assert_eq!(lease["worker"], json!("worker-0"), "{lease}");
    assert_eq!(lease["cluster"], json!("builds"), "{lease}");
    assert!(grpcurl.list().contains(&"leasehold.worker.v1.WorkerService".to_owned()));
    describes_everything(&grpcurl);
}

/// A class that one worker of 15 documents per second serves, and pipelines of 10 on it, the second
/// of which waits.
const PIPELINES: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 15, maxReplicas: 10}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: one}
spec: {documentsPerSecond: 10, workers: {first: {class: green}}}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: two}
spec: {documentsPerSecond: 10, workers: {first: {class: green}}}
";

#[test]
fn the_admin_api_shows_and_explains_classes_and_pipelines() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let wanted = coordinator.folder().join("manifests/pipelines.yaml");
    std::fs::write(wanted, PIPELINES).expect("a manifest");
    let grpcurl = Grpcurl { path: &path, address: coordinator.grpc };
    let reached = ["--worker-address", "127.0.0.1:9000"];
    let _agent = coordinator.agent("green", "worker-0", &reached);
    let get = |name: &str| {
        let found = grpcurl.try_call(&format!("{ADMIN}/GetPipeline"), &json!({"name": name}));
        found.ok().map(|answer| answer["pipeline"].clone())
    };
    let pipeline = eventually("a pipeline that is served", || {
        get("one").filter(|pipeline| pipeline["phase"] == json!("PIPELINE_PHASE_READY"))
    });
    assert_eq!(pipeline["documentsPerSecond"], json!(10), "{pipeline}");
    let binding = &pipeline["bindings"][0];
    assert_eq!(binding["phase"], json!("BINDING_PHASE_READY"), "{pipeline}");
    let share = &binding["shares"][0];
    assert_eq!(share["worker"], json!("worker-0"), "{pipeline}");
    assert_eq!(share["documentsPerSecond"], json!(10), "{pipeline}");
    assert_eq!(share["address"], json!("127.0.0.1:9000"), "{pipeline}");
    assert_eq!(share["applied"], json!(true), "{pipeline}");

    let waits = get("two").expect("the other pipeline");
    assert_eq!(waits["phase"], json!("PIPELINE_PHASE_PENDING"), "{waits}");
    assert!(waits["reason"].as_str().is_some_and(|why| why.contains("green")), "{waits}");
    let why = grpcurl.admin("ExplainPipeline", &json!({"name": "two"}));
    let summary = why["explanation"]["summary"].as_str().expect("a summary");
    assert!(summary.contains("green"), "{why}");

    let classes = grpcurl.admin("ListClasses", &json!({}));
    let class = &classes["classes"][0];
    assert_eq!(classes["classes"].as_array().map(Vec::len), Some(1), "{classes}");
    for (field, value) in [
        ("name", json!("green")),
        ("capacity", json!(15)),
        ("request", json!(20)),
        ("placed", json!(10)),
        ("workers", json!(1)),
        ("workersNeeded", json!(2)),
        ("workersWanted", json!(2)),
        ("workersMin", json!(1)),
        ("workersMax", json!(10)),
        ("pipelinesWaiting", json!(1)),
    ] {
        assert_eq!(class[field], value, "{field}: {classes}");
    }
    let workers = grpcurl.admin("ListWorkers", &json!({"cluster": "green"}));
    let worker = &workers["workers"][0];
    assert_eq!(worker["address"], json!("127.0.0.1:9000"), "{workers}");
    assert_eq!(worker["documentsPerSecond"], json!(10), "{workers}");

    let page = grpcurl.admin("ListPipelines", &json!({"pageSize": 1}));
    assert_eq!(page["pipelines"].as_array().map(Vec::len), Some(1), "{page}");
    assert_eq!(page["pipelines"][0]["name"], json!("one"), "{page}");
    let next = page["nextPageToken"].as_str().expect("a token");
    let rest = grpcurl.admin("ListPipelines", &json!({"pageToken": next}));
    assert_eq!(rest["pipelines"].as_array().map(Vec::len), Some(1), "{rest}");
    assert_eq!(rest["pipelines"][0]["name"], json!("two"), "{rest}");
    assert_eq!(rest["nextPageToken"], json!(""), "{rest}");

    for method in ["GetPipeline", "ExplainPipeline"] {
        let nothing = grpcurl.refused(method, &json!({"name": "none"}));
        assert!(nothing.contains("NotFound") && nothing.contains("none"), "{nothing}");
        let invalid = grpcurl.refused(method, &json!({"name": "Not A Name"}));
        assert!(invalid.contains("InvalidArgument") && invalid.contains("Not A Name"), "{invalid}");
    }
    let invalid = grpcurl.refused("ListPipelines", &json!({"pageToken": "zz"}));
    assert!(invalid.contains("InvalidArgument") && invalid.contains("page_token"), "{invalid}");
    let standby = coordinator.standby();
    let grpcurl = Grpcurl { path: &path, address: standby.grpc };
    eventually("a standby that asks the leader", || {
        let asked = grpcurl.try_call(&format!("{ADMIN}/ListClasses"), &json!({})).ok()?;
        (asked["classes"] == classes["classes"]).then_some(())
    });
}

#[test]
fn the_external_scaler_answers_calls() {
    let Some(path) = toolbox::tool(Tool::Grpcurl) else { return };
    let coordinator = coordinator_that_leads(&path);
    let wanted = coordinator.folder().join("manifests/pipelines.yaml");
    std::fs::write(wanted, PIPELINES).expect("a manifest");
    let grpcurl = Grpcurl { path: &path, address: coordinator.grpc };
    let object = json!({"namespace": "default", "scalerMetadata": {"class": "green"}});
    let specs = eventually("the class", || {
        grpcurl.try_call(&format!("{SCALER}/GetMetricSpec"), &object).ok()
    });
    let spec = json!(
        [
            {"metricName": "workerclass_request", "targetSize": "11", "targetSizeFloat": 10.5},
            {"metricName": "workerclass_workers_needed", "targetSize": "1", "targetSizeFloat": 1},
        ]
    );
    assert_eq!(specs["metricSpecs"], spec);
    let method = format!("{SCALER}/GetMetrics");
    let request = json!({"scaledObjectRef": object, "metricName": "workerclass_request"});
    let value = json!(
        [{"metricName": "workerclass_request", "metricValue": "20", "metricValueFloat": 20}]
    );
    assert_eq!(grpcurl.call(&method, &request)["metricValues"], value);
    let nothing = grpcurl.try_call(&method, &json!({"metricName": "workerclass_request"}));
    let nothing = nothing.expect_err("a question without a class");
    assert!(nothing.contains("InvalidArgument") && nothing.contains("class"), "{nothing}");
}
