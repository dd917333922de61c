//! Reports to users: at admission, in the status, and by events.

use serde_json::{Value, json};
use tests::process::{eventually, get};
use tests::prometheus::{Prometheus, Target};

use super::{InjectorFixture, agents, image, opted_in, pod, worker_cluster};

#[test]
fn impossible_injection_is_refused_and_risky_injection_gets_a_warning() {
    let Some(fixture) = InjectorFixture::set(&[]) else { return };
    let refusal = |pod: &Value| {
        let (stored, warning) = fixture.try_create(&[], pod);
        assert_eq!(stored, None, "{warning}");
        warning
    };
    let warning = refusal(&opted_in("early", json!({})));
    assert!(warning.contains("pod early") && warning.contains("no WorkerCluster"), "{warning}");

    fixture.apply(&worker_cluster("builds", json!({})));
    fixture.until_known("the cluster", &opted_in("probe", json!({})), |_| true);
    let warning = refusal(&opted_in("typo", json!({ "config.leasehold.dev/adaptor": "file" })));
    assert!(
        warning.contains("pod typo") && warning.contains("config.leasehold.dev/adapter"),
        "{warning}"
    );
    let warning = refusal(&opted_in("wrong", json!({ "config.leasehold.dev/cpu-limit": "much" })));
    assert!(
        warning.contains("config.leasehold.dev/cpu-limit") && warning.contains("much"),
        "{warning}"
    );

    // The cluster drains for 20 seconds at most.
    let mut short = opted_in("short", json!({}));
    short["spec"]["terminationGracePeriodSeconds"] = json!(5);
    let (_, warning) = fixture.create(&short);
    assert!(
        warning.contains("Warning") && warning.contains("terminationGracePeriodSeconds"),
        "{warning}"
    );

    let labels = json!({ "leasehold.dev/inject": "true", "leasehold.dev/cluster": "later" });
    let (stored, warning) = fixture.create(&pod("ahead", labels, json!({})));
    assert_eq!(agents(&stored).len(), 1);
    assert!(
        warning.contains("Warning") && warning.contains("WorkerClass later does not exist yet"),
        "{warning}"
    );

    fixture.apply(&worker_cluster("second", json!({})));
    let warning = eventually("the second cluster", || {
        let (stored, warning) =
            fixture.try_create(&["--dry-run=server"], &opted_in("whose", json!({})));
        stored.is_none().then_some(warning)
    });
    assert!(warning.contains("builds") && warning.contains("second"), "{warning}");
    assert!(warning.contains("leasehold.dev/cluster: NAME"), "{warning}");
}

#[test]
fn pod_annotations_override_the_cluster_and_the_cluster_overrides_the_installation() {
    let Some(fixture) = InjectorFixture::set(&["--agent-image", "mirror/agent:1"]) else { return };
    let agent = json!({
        "flags": { "drain-deadline": "5m" },
        "resources": { "limits": { "memory": "32Mi" }, "requests": { "cpu": 1 } },
    });
    fixture.apply(&worker_cluster("builds", agent));
    let probe = opted_in("probe", json!({}));
    fixture.until_known("the cluster", &probe, |_| true);
    let (stored, _) = fixture.create(&opted_in("plain", json!({})));
    assert_eq!(image(&stored), "mirror/agent:1");
    let resources = &agents(&stored)[0]["resources"];
    assert_eq!(resources["limits"], json!({ "memory": "32Mi" }));
    assert_eq!(resources["requests"], json!({ "memory": "32Mi", "cpu": "1" }));
    let value = |pod: &Value, name: &str| {
        let variables = agents(pod)[0]["env"].as_array().cloned().unwrap_or_default();
        let found = variables.into_iter().find(|variable| variable["name"] == name);
        found.map_or(Value::Null, |variable| variable["value"].clone())
    };
    assert_eq!(value(&stored, "LEASEHOLD_DRAIN_DEADLINE"), "5m");
    let service = format!("leasehold-coordinator.{}.svc:7400", fixture.namespace);
    assert_eq!(value(&stored, "LEASEHOLD_COORDINATOR"), service);

    let agent = json!({ "image": "cluster/agent:2", "adapter": "file" });
    fixture.apply(&worker_cluster("builds", agent));
    fixture.until_known("the cluster's image", &probe, |pod| image(pod) == "cluster/agent:2");
    let own = json!({
        "config.leasehold.dev/image": "pod/agent:3",
        "config.leasehold.dev/adapter": "api",
        "config.leasehold.dev/memory-limit": "128Mi",
    });
    let (stored, _) = fixture.create(&opted_in("own", own));
    assert_eq!(image(&stored), "pod/agent:3");
    assert_eq!(value(&stored, "LEASEHOLD_ADAPTER"), "api");
    assert_eq!(agents(&stored)[0]["resources"]["limits"]["memory"], "128Mi");

    let wrong = worker_cluster("wrong", json!({ "flags": { "coordinator": "x:1" } }));
    let warning = fixture.try_apply(&wrong).expect_err("no flag of a pod");
    assert!(warning.contains("a flag that cannot be set"), "{warning}");
    let explained = fixture.access.kubectl(&["explain", "wc.spec.agent"]);
    for field in ["image", "adapter", "flags", "resources", "native sidecar"] {
        assert!(explained.contains(field), "{explained}");
    }
}

#[test]
fn the_api_server_keeps_the_class_of_a_pod_and_takes_an_agent_that_is_probed_by_a_command() {
    let Some(fixture) = InjectorFixture::set(&[]) else { return };
    fixture.apply(&worker_cluster("builds", json!({})));
    fixture.until_known("the cluster", &opted_in("probe", json!({})), |_| true);
    let mut guaranteed = opted_in("guaranteed", json!({ "sidecar.istio.io/status": "{}" }));
    guaranteed["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "cpu": "1", "memory": "1Gi" } });
    let (stored, _) = fixture.create(&guaranteed);
    assert_eq!(stored["status"]["qosClass"], "Guaranteed", "{stored:#}");
    let command = json!(["/leasehold-agent", "probe"]);
    assert_eq!(agents(&stored)[0]["livenessProbe"]["exec"]["command"], command);
    let (stored, _) = fixture.create(&opted_in("plain", json!({})));
    assert_eq!(stored["status"]["qosClass"], "Burstable", "{stored:#}");
    assert_eq!(agents(&stored)[0]["livenessProbe"]["httpGet"]["port"], 7412);
}

#[test]
fn pods_with_no_agent_or_an_old_one_are_reported_and_not_changed() {
    let Some(mut fixture) = InjectorFixture::set(&["--agent-image", "mirror/agent:1"]) else {
        return;
    };
    let mut cluster = worker_cluster("builds", json!({}));
    cluster["spec"]["template"] = json!({
        "metadata": { "labels": { "leasehold.dev/inject": "true" } },
        "spec": pod("", json!({}), json!({}))["spec"],
    });
    // No webhook answers the API server.
    let delete = ["delete", "mutatingwebhookconfiguration", &fixture.configuration];
    fixture.access.kubectl(&delete);
    eventually("an API server without the webhook", || {
        let (stored, _) = fixture.try_create(&["--dry-run=server"], &opted_in("probe", json!({})));
        stored.map(drop)
    });
    let (skipped, _) = fixture.create(&opted_in("skipped", json!({})));
    assert_eq!(agents(&skipped).len(), 0);
    let url = format!("https://{}/inject", fixture.replicas.running[0].webhook);
    let wanted = super::configuration(&fixture.configuration, &fixture.namespace, &url);
    fixture.access.apply(&wanted.to_string());
    eventually("the caBundle", || fixture.bundle());

    // The workload that it makes is injected.
    fixture.apply(&cluster);
    let made = eventually("the workload's pods", || {
        let pods = fixture.all_pods();
        let made = |pod: &&Value| pod["metadata"]["ownerReferences"].is_array();
        let pods: Vec<Value> = pods.iter().filter(made).cloned().collect();
        (pods.len() == 2).then_some(pods)
    });
    for pod in &made {
        assert_eq!(image(pod), "mirror/agent:1", "{pod:#}");
    }

    let status = |path: &str| {
        let cluster = ward_cluster(&fixture);
        cluster.pointer(path).cloned().unwrap_or(Value::Null)
    };
    let agents_are = |injected: u32, missing: u32, outdated: u32| {
        let wanted = json!({ "injected": injected, "missing": missing, "outdated": outdated });
        eventually("the figures", || (status("/status/agents") == wanted).then_some(()));
    };
    agents_are(2, 1, 0);
    let target = Target { pod: "coordinator-0", address: fixture.replicas.running[0].http };
    let prometheus = Prometheus::start("the alert of pods without an agent", &[target]);
    let firing = || prometheus.as_ref().map(|one| one.firing("LeaseholdAgentsMissing"));
    eventually("the alert of the pod", || {
        firing().is_none_or(|alert| alert.is_some()).then_some(())
    });
    let condition = |type_: &str| {
        let all = status("/status/conditions");
        let all = all.as_array().cloned().unwrap_or_default();
        all.into_iter().find(|condition| condition["type"] == type_).unwrap_or(Value::Null)
    };
    let degraded = eventually("the condition", || {
        Some(condition("Degraded")).filter(|condition| condition["reason"] == "AgentMissing")
    });
    assert!(degraded["message"].as_str().expect("a text").contains("skipped"), "{degraded}");
    let event = eventually("the event", || {
        let list = fixture.kubectl(&["get", "events.v1.events.k8s.io", "--output=json"]);
        let list: Value = serde_json::from_str(&list).ok()?;
        let mut events = list["items"].as_array().cloned().unwrap_or_default().into_iter();
        events.find(|event| event["reason"] == "InjectionSkipped")
    });
    assert_eq!(event["regarding"]["name"], "skipped");
    assert!(event["note"].as_str().expect("a text").contains("delete the pod"), "{event:#}");

    fixture.kubectl(&["delete", "pod", "skipped", "--force", "--grace-period=0"]);
    agents_are(2, 0, 0);
    let is_over = || firing().is_none_or(|alert| alert.is_none()).then_some(());
    eventually("the end of the alert", is_over);
    assert_eq!(condition("InjectionWarnings"), Value::Null);
    let mut short = opted_in("short", json!({}));
    short["spec"]["terminationGracePeriodSeconds"] = json!(5);
    fixture.create(&short);
    let warned = eventually("the warning of a pod", || {
        Some(condition("InjectionWarnings")).filter(|condition| condition["status"] == "True")
    });
    let quoted = "short: spec.terminationGracePeriodSeconds is 5";
    assert!(warned["message"].as_str().expect("a text").contains(quoted), "{warned}");
    fixture.kubectl(&["delete", "pod", "short", "--force", "--grace-period=0"]);
    agents_are(2, 0, 0);
    eventually("no warning", || condition("InjectionWarnings").is_null().then_some(()));
    // Another image for agents that are made from now on.
    let flag = fixture.replicas.flags.iter_mut().find(|flag| *flag == "mirror/agent:1");
    *flag.expect("the flag") = "mirror/agent:2".to_owned();
    fixture.replicas.replace(0);
    fixture.replicas.wait_ready();
    let status = |path: &str| {
        let cluster = ward_cluster(&fixture);
        cluster.pointer(path).cloned().unwrap_or(Value::Null)
    };
    let outdated = eventually("outdated agents", || {
        (status("/status/agents/outdated") == 2).then(|| status("/status/conditions"))
    });
    assert!(outdated.to_string().contains("mirror/agent:2"), "{outdated}");
    let metrics = eventually("metrics", || get(fixture.replicas.running[0].http, "/metrics")).1;
    assert!(metrics.contains("leasehold_agents_outdated 2"), "{metrics}");
    let left: Vec<Value> =
        fixture.all_pods().iter().map(|pod| pod["metadata"]["uid"].clone()).collect();
    let before: Vec<Value> = made.iter().map(|pod| pod["metadata"]["uid"].clone()).collect();
    assert!(before.iter().all(|uid| left.contains(uid)), "no pod is replaced for its agent");
}

fn ward_cluster(fixture: &InjectorFixture) -> Value {
    fixture.get("workercluster", "builds").unwrap_or(Value::Null)
}
