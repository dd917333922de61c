//! Injection and its messages, without a socket.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold_injection::{AgentUser, apply};
use serde_json::json;

use super::super::admission::Admission;
use super::super::review_log::ReviewLog;
use super::*;

fn injector(served: &[&str]) -> Injector {
    let installation = Sidecar {
        image: "agent:1".into(),
        coordinator: "coordinator.own.svc:7400".into(),
        server_name: "coordinator.own.svc".into(),
        audience: "leasehold.dev".into(),
        authority: "leasehold-ca".into(),
        cluster: None,
        drain_deadline: None,
        flags: BTreeMap::from([("log-format".to_owned(), "json".to_owned())]),
        resources: Resources::standard(),
        user: AgentUser::STANDARD,
        pull_secrets: Vec::new(),
    };
    let served = served.iter().map(|name| (*name).to_owned()).collect();
    Injector { installation, served, clusters: watch::channel(None).1 }
}

/// One WorkerCluster in `one`, seven in `many`, a WorkerCluster and a WorkerClass in `both`, and
/// one WorkerClass in `green`.
fn clusters() -> Clusters {
    let agent = json!({
        "image": "agent:2", "adapter": "file", "flags": { "file-path": "/it.yml" },
        "resources": { "limits": { "memory": "8Mi" } },
    });
    let agent = serde_json::from_value(agent).expect("settings");
    let mut clusters = Clusters::default();
    let deadline = Duration::from_secs(60);
    clusters.insert("one", "builds", Cluster { agent, drain_deadline: deadline, port: None });
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        clusters.insert("many", name, Cluster::default());
    }
    let class = json!({
        "capacity": 15, "maxReplicas": 5, "port": 8080, "drain": { "deadline": "5m" },
        "agent": { "image": "agent:3" },
    });
    let class: WorkerClassSpec = serde_json::from_value(class).expect("a spec");
    clusters.insert("both", "builds", Cluster::default());
    clusters.insert("both", "green", (&class).into());
    clusters.insert("green", "green", (&class).into());
    clusters
}

fn pod(labels: Value) -> Value {
    json!({
        "metadata": { "generateName": "worker-", "labels": labels },
        "spec": { "containers": [{ "name": "w", "image": "w:1" }] },
    })
}

fn opted_in() -> Value {
    pod(json!({ names::INJECT: "true" }))
}

/// The webhook's answer.
fn answer(injector: &Injector, namespace: &str, pod: &Value, change: impl Fn(&mut Value)) -> Value {
    let mut asked = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "CREATE", "namespace": namespace, "dryRun": true,
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "object": pod, "options": { "kind": "CreateOptions" }, "userInfo": {},
        },
    });
    change(&mut asked);
    let admission = read(asked.to_string().as_bytes()).expect("a review");
    let decision = admission.inject(injector, &clusters());
    let answer: Value = serde_json::from_str(&admission.pod_response(decision)).expect("JSON");
    assert_eq!(
        (&answer["kind"], &answer["response"]["uid"]),
        (&json!("AdmissionReview"), &json!("u-1"))
    );
    answer["response"].clone()
}

fn edits(injector: &Injector, namespace: &str, pod: &Value) -> Vec<Edit> {
    match injector.decide(&clusters(), namespace, pod) {
        InjectionDecision::Injected { edits, .. } => edits,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cluster_overrides_settings_of_the_installation() {
    let injector = injector(&[]);
    let clusters = clusters();
    let sidecar = injector.sidecar(clusters.get("one", "builds"));
    assert_eq!(sidecar.image, "agent:2");
    let flags: Vec<_> = sidecar.flags.iter().map(|(name, value)| (&**name, &**value)).collect();
    let wanted = [("adapter", "file"), ("file-path", "/it.yml"), ("log-format", "json")];
    assert_eq!(flags, wanted);
    // The default request is above the limit.
    assert_eq!(
        sidecar.resources.memory_limit.map(|limit| limit.to_string()).as_deref(),
        Some("8Mi")
    );
    assert_eq!(sidecar.resources.memory_request, None);
    assert_eq!(sidecar.resources.cpu_request, Resources::standard().cpu_request);
    assert_eq!(injector.image(&clusters, "one", None), "agent:2");
    assert_eq!(injector.image(&clusters, "many", None), "agent:1");
}

#[test]
fn injects_a_pod_once_over_repeated_reviews() {
    let injector = injector(&[]);
    let mut pod = opted_in();
    let first = edits(&injector, "one", &pod);
    assert!(!first.is_empty());
    apply(&first, &mut pod);
    assert_eq!(pod["metadata"]["labels"][names::CLUSTER], "builds");
    assert_eq!(edits(&injector, "one", &pod), []);
    let answered = answer(&injector, "one", &pod, |_| {});
    assert_eq!((&answered["allowed"], &answered["patch"]), (&json!(true), &Value::Null));
}

#[test]
fn answers_with_a_base64_patch_or_names_the_problem() {
    let injector = injector(&[]);
    let answered = answer(&injector, "one", &opted_in(), |_| {});
    assert_eq!(answered["patchType"], "JSONPatch");
    let patch = STANDARD.decode(answered["patch"].as_str().expect("a text")).expect("base64");
    let patch: Value = serde_json::from_slice(&patch).expect("JSON");
    assert!(patch[0]["op"].is_string() && patch[0]["path"].is_string(), "{patch:#}");

    let refused = |namespace: &str, pod: &Value| {
        let answered = answer(&injector, namespace, pod, |_| {});
        assert_eq!(answered["allowed"], false, "{answered:#}");
        answered["status"]["message"].as_str().expect("a text").to_owned()
    };
    let none = refused("none", &opted_in());
    assert!(none.contains("pod worker-*") && none.contains("no WorkerCluster"), "{none}");
    let several = refused("many", &opted_in());
    assert!(several.contains("leasehold.dev/cluster: NAME"), "{several}");
    assert!(several.contains("a, b, c, d, e, …"), "{several}");
    let mut odd = opted_in();
    odd["metadata"]["annotations"] = json!({ "config.leasehold.dev/adaptor": "\nfile" });
    let odd = refused("one", &odd);
    assert!(odd.contains("config.leasehold.dev/adapter"), "{odd}");
}

#[test]
fn an_invalid_setting_of_a_cluster_names_the_cluster() {
    let mut wrong = clusters();
    let agent = json!({ "flags": { "file-paht": "/it.yml" } });
    let agent = serde_json::from_value(agent).expect("settings");
    wrong.insert("one", "builds", Cluster { agent, ..Cluster::default() });
    let InjectionDecision::Denied(why) = injector(&[]).decide(&wrong, "one", &opted_in()) else {
        panic!("it is let in");
    };
    let place = "its cluster's or class's spec.agent.flags.file-";
    assert_eq!(why, format!("{place}paht is unknown; did you mean {place}path?"));
}

#[test]
fn leaves_unexpected_requests_unchanged() {
    let injector = injector(&[]);
    let is_unchanged = |pod: &Value, change: fn(&mut Value)| {
        let answered = answer(&injector, "one", pod, change);
        answered["allowed"] == true && answered["patch"].is_null()
    };
    assert!(is_unchanged(&pod(json!({})), |_| {}));
    assert!(is_unchanged(&pod(json!({ names::INJECT: "false" })), |_| {}));
    assert!(is_unchanged(&opted_in(), |asked| asked["request"]["operation"] = json!("UPDATE")));
    assert!(is_unchanged(&opted_in(), |asked| asked["request"]["subResource"] = json!("status")));
    assert!(is_unchanged(&opted_in(), |asked| {
        asked["request"]["resource"]["resource"] = json!("nodes");
    }));
    for garbage in ["", "{}", r#"{"apiVersion":"v1","kind":"Pod"}"#] {
        assert!(read(garbage.as_bytes()).is_err(), "{garbage}");
    }
}

#[test]
fn warnings_fit_into_a_header_and_name_missing_objects() {
    let injector = injector(&["one"]);
    let warnings = |namespace: &str, name: &str| {
        let labels = json!({ names::INJECT: "true", names::CLUSTER: name });
        let answered = answer(&injector, namespace, &pod(labels), |_| {});
        assert_eq!(answered["allowed"], true, "{answered:#}");
        let all = answered["warnings"].as_array().cloned().unwrap_or_default();
        all.iter().map(|warning| warning.as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    let later = warnings("one", "later").join("|");
    assert!(
        later.contains("WorkerClass later does not exist yet") && later.contains("builds"),
        "{later}"
    );
    let foreign = warnings("many", &"x".repeat(60)).join("|");
    assert!(foreign.contains("serves one and not namespace many"), "{foreign}");
    let long = warnings(&"n".repeat(300), "x");
    assert!(long.iter().all(|text| text.len() < 256), "{long:?}");
    // A pod whose grace period ends before its cluster's deadline.
    let short = warnings("one", "builds").join("|");
    assert!(short.contains("terminationGracePeriodSeconds"), "{short}");
}

/// The variables of a pod's agent, as `NAME=VALUE`, or as `NAME=FIELD` where they refer to one.
fn variables(pod: &Value) -> Vec<String> {
    let env = pod["spec"]["initContainers"][0]["env"].as_array().expect("a list");
    let text = |entry: &Value| {
        let value =
            entry["value"].as_str().or(entry["valueFrom"]["fieldRef"]["fieldPath"].as_str());
        format!("{}={}", entry["name"].as_str().expect("a name"), value.expect("a value"))
    };
    env.iter().map(text).collect()
}

#[test]
fn a_worker_of_a_class_gets_its_address_and_port() {
    let injector = injector(&[]);
    let mut pod = opted_in();
    apply(&edits(&injector, "green", &pod), &mut pod);
    assert_eq!(pod["metadata"]["labels"][names::CLUSTER], "green");
    assert_eq!(pod["spec"]["initContainers"][0]["image"], "agent:3");
    let has = |pod: &Value, variable: &str| variables(pod).iter().any(|set| set == variable);
    assert!(has(&pod, "LEASEHOLD_CLUSTER=$(POD_NAMESPACE)/green"), "{pod:#}");
    assert!(has(&pod, "LEASEHOLD_WORKER_ADDRESS=status.podIP"), "{pod:#}");
    assert!(has(&pod, "LEASEHOLD_WORKER_PORT=8080"), "{pod:#}");
    assert_eq!(edits(&injector, "green", &pod), []);
    let mut other = opted_in();
    other["metadata"]["annotations"] = json!({ "config.leasehold.dev/worker-port": "9000" });
    apply(&edits(&injector, "green", &other), &mut other);
    assert!(has(&other, "LEASEHOLD_WORKER_PORT=9000"), "{other:#}");
    let deadline = injector.sidecar(clusters().get("green", "green")).drain_deadline;
    assert_eq!(deadline, Some(Duration::from_secs(300)));
}

#[test]
fn a_pod_without_the_label_gets_the_only_cluster_or_class() {
    let injector = injector(&[]);
    let InjectionDecision::Denied(why) = injector.decide(&clusters(), "both", &opted_in()) else {
        panic!("it is let in");
    };
    assert!(why.contains("NAME with one of builds, green"), "{why}");
    let labelled = pod(json!({ names::INJECT: "true", names::CLUSTER: "green" }));
    assert!(!edits(&injector, "both", &labelled).is_empty());
}

fn read(body: &[u8]) -> Result<Admission, String> {
    Admission::read(body, None, Arc::new(ReviewLog::new(true)))
}
