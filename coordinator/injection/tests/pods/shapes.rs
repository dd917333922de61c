//! Pods of many shapes: what they get, and that they come back as they were.

use leasehold_injection::injected;
use serde_json::{Value, json};

use super::shared::{check, pods, refusal, settings, sidecar, variable};

#[test]
fn injects_every_pod_shape_and_restores_it() {
    for (name, pod) in pods() {
        let (out, _) = check(&pod, &settings());
        let sidecar = sidecar(&out);
        assert_eq!(sidecar["name"], "leasehold-agent", "{name}");
        assert_eq!(sidecar["restartPolicy"], "Always", "{name}");
        let hook = &sidecar["lifecycle"]["preStop"]["exec"]["command"];
        // A drain would also begin at a restart of the sidecar alone.
        assert_eq!(hook, &json!(["/leasehold-agent", "pre-stop"]), "{name}");
        let volumes = out["spec"]["volumes"].as_array().expect("volumes");
        let last: Vec<_> =
            volumes[volumes.len() - 3..].iter().map(|volume| &volume["name"]).collect();
        assert_eq!(last, ["leasehold-state", "leasehold-identity", "leasehold-bin"], "{name}");
        let found = injected(&out).expect("it is injected");
        assert_eq!(found.image, "leasehold/agent:1");
        assert!(found.digest.is_some());
        assert_eq!(injected(&pod), None);
    }
}

#[test]
fn a_minimal_pod_gets_exactly_the_expected_parts() {
    let pod = json!({ "spec": { "containers": [{ "name": "worker", "image": "w" }] } });
    let (out, _) = check(&pod, &settings());
    let mut agent = sidecar(&out).clone();
    let names: Vec<_> = agent["env"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|variable| variable["name"].clone())
        .collect();
    assert_eq!(
        json!(names),
        json!([
            "POD_NAMESPACE",
            "LEASEHOLD_COORDINATOR",
            "LEASEHOLD_CLUSTER",
            "LEASEHOLD_WORKER",
            "LEASEHOLD_WORKER_ADDRESS",
            "LEASEHOLD_GENERATION",
            "LEASEHOLD_STATE_DIR",
            "LEASEHOLD_SIDECAR",
            "LEASEHOLD_SHARE_DIR",
            "LEASEHOLD_TOKEN_FILE",
            "LEASEHOLD_TLS_CA",
            "LEASEHOLD_TLS_SERVER_NAME",
            "LEASEHOLD_HEALTH_LISTEN"
        ])
    );
    assert_eq!(variable(&agent, "LEASEHOLD_CLUSTER")["value"], "$(POD_NAMESPACE)/builds");
    let address = &variable(&agent, "LEASEHOLD_WORKER_ADDRESS")["valueFrom"]["fieldRef"];
    assert_eq!(address, &json!({ "fieldPath": "status.podIP" }));
    agent["env"].take();
    assert_eq!(
        agent,
        json!({
            "name": "leasehold-agent",
            "image": "leasehold/agent:1",
            "restartPolicy": "Always",
            "args": ["run"],
            "lifecycle": {
                "preStop": { "exec": { "command": ["/leasehold-agent", "pre-stop"] } }
            },
            "env": null,
            "startupProbe": {
                "httpGet": { "path": "/livez", "port": 7412 },
                "periodSeconds": 1,
                "failureThreshold": 120,
                "terminationGracePeriodSeconds": 30
            },
            "livenessProbe": {
                "httpGet": { "path": "/livez", "port": 7412 },
                "periodSeconds": 10,
                "timeoutSeconds": 5,
                "failureThreshold": 3,
                "terminationGracePeriodSeconds": 30
            },
            "resources": {
                "requests": { "cpu": "10m", "memory": "16Mi" },
                "limits": { "memory": "64Mi" }
            },
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "seccompProfile": { "type": "RuntimeDefault" }
            },
            "volumeMounts": [
                { "name": "leasehold-state", "mountPath": "/var/lib/leasehold" },
                {
                    "name": "leasehold-identity",
                    "mountPath": "/var/run/secrets/leasehold.dev",
                    "readOnly": true
                },
                { "name": "leasehold-bin", "mountPath": "/leasehold" }
            ]
        })
    );
    let namespace = json!({ "fieldRef": { "fieldPath": "metadata.namespace" } });
    assert_eq!(
        out["spec"]["containers"],
        json!([{
            "name": "worker",
            "image": "w",
            "env": [
                { "name": "LEASEHOLD_ADDR", "value": "http://127.0.0.1:7411" },
                { "name": "LEASEHOLD_NAMESPACE", "valueFrom": namespace },
                { "name": "LEASEHOLD_CLUSTER", "value": "$(LEASEHOLD_NAMESPACE)/builds" },
                {
                    "name": "LEASEHOLD_WORKER",
                    "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } }
                }
            ],
            "lifecycle": {
                "preStop": { "exec": {
                    "command": ["/leasehold/leasehold-agent", "drain", "--wait"]
                } }
            },
            "volumeMounts": [
                { "name": "leasehold-bin", "mountPath": "/leasehold", "readOnly": true }
            ]
        }])
    );
    assert_eq!(out["metadata"]["labels"], json!({ "leasehold.dev/cluster": "builds" }));
}

#[test]
fn an_own_exec_hook_runs_after_the_drain_and_other_hooks_stay() {
    let hooked = |hook: Value| {
        json!({ "metadata": {}, "spec": { "containers": [
            { "name": "worker", "lifecycle": { "preStop": hook } }
        ] } })
    };
    let (out, warnings) =
        check(&hooked(json!({ "exec": { "command": ["sh", "-c", "bye"] } })), &settings());
    assert_eq!(
        out["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"],
        json!(["/leasehold/leasehold-agent", "drain", "--wait", "--then", "--", "sh", "-c", "bye"])
    );
    assert!(!warnings.iter().any(|warning| warning.contains("preStop")), "{warnings:?}");
    for other in [
        json!({ "httpGet": { "path": "/stop", "port": 80 } }),
        json!({ "sleep": { "seconds": 5 } }),
    ] {
        let (out, warnings) = check(&hooked(other.clone()), &settings());
        assert_eq!(out["spec"]["containers"][0]["lifecycle"]["preStop"], other);
        let told = "spec.containers[0].lifecycle.preStop is of the kind";
        assert!(warnings.iter().any(|warning| warning.starts_with(told)), "{warnings:?}");
    }
    let empty = refusal(&hooked(json!({ "exec": {} })), &settings());
    assert!(empty.starts_with("spec.containers[0].lifecycle.preStop.exec.command"), "{empty}");
}

#[test]
fn a_worker_that_a_probe_restarts_is_not_waited_for_as_long_as_a_drain() {
    let grace = "terminationGracePeriodSeconds";
    let probe = |seconds: Value| json!({ "exec": { "command": ["true"] }, grace: seconds });
    let injected = |of_pod: Value, probes: Value| {
        let mut worker = json!({ "name": "worker", "readinessProbe": { "periodSeconds": 5 } });
        for (name, probe) in probes.as_object().expect("probes") {
            worker[name] = probe.clone();
        }
        let pod = json!({ "spec": { grace: of_pod, "containers": [worker] } });
        check(&pod, &settings()).0["spec"]["containers"][0].clone()
    };
    let plain = || json!({ "exec": { "command": ["true"] } });
    let both = injected(json!(8000), json!({ "livenessProbe": plain(), "startupProbe": plain() }));
    for name in ["livenessProbe", "startupProbe"] {
        assert_eq!(both[name], probe(json!(30)), "{name}");
    }
    assert_eq!(both["readinessProbe"], json!({ "periodSeconds": 5 }), "it restarts nothing");
    let own = injected(json!(8000), json!({ "livenessProbe": probe(json!(3600)) }));
    assert_eq!(own["livenessProbe"], probe(json!(3600)), "the user's own time stays");
    let short = injected(json!(5), json!({ "livenessProbe": plain() }));
    assert_eq!(short["livenessProbe"], probe(json!(5)), "no longer than the pod may take");
}

#[test]
fn an_agent_that_a_probe_restarts_is_not_waited_for_as_long_as_a_drain() {
    let grace = "terminationGracePeriodSeconds";
    for (of_pod, wanted) in [(8000, json!(30)), (5, json!(5)), (0, json!(null))] {
        let pod = json!({ "spec": { grace: of_pod, "containers": [{ "name": "worker" }] } });
        let (out, _) = check(&pod, &settings());
        for name in ["livenessProbe", "startupProbe"] {
            assert_eq!(sidecar(&out)[name][grace], wanted, "{name} of a pod with {of_pod}");
        }
    }
}

#[test]
fn the_agents_volumes_keep_no_node() {
    let annotation = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
    let injected = |own: Option<&str>| {
        let annotations = own.map_or(json!({}), |own| json!({ annotation: own }));
        let pod = json!({
            "metadata": { "annotations": annotations },
            "spec": { "containers": [{ "name": "worker" }] }
        });
        check(&pod, &settings()).0["metadata"]["annotations"][annotation].clone()
    };
    for (own, expected) in [
        (None, "leasehold-state,leasehold-bin"),
        (Some("data"), "data,leasehold-state,leasehold-bin"),
        (Some("leasehold-bin, data"), "leasehold-bin, data,leasehold-state"),
    ] {
        assert_eq!(injected(own), expected, "{own:?}");
    }
    let null = json!({
        "metadata": { "annotations": { annotation: null } },
        "spec": { "containers": [{ "name": "worker" }] }
    });
    assert!(refusal(&null, &settings()).contains("safe-to-evict-local-volumes"));
}

#[test]
fn annotations_override_the_settings() {
    let mut with = settings();
    with.flags.insert("adapter".into(), "file".into());
    with.flags.insert("drain-deadline".into(), "5m".into());
    let pod = json!({
        "metadata": { "annotations": {
            "config.leasehold.dev/image": "mine:2",
            "config.leasehold.dev/drain-deadline": "20s",
            "config.leasehold.dev/file-path": "/leasehold/$HOME.yml",
            "config.leasehold.dev/listen": "0.0.0.0:7500",
            "config.leasehold.dev/health-listen": "[::]:7501",
            "config.leasehold.dev/memory-limit": "128Mi",
            "config.leasehold.dev/cpu-limit": "1",
            "config.leasehold.dev/ephemeral-storage-request": "64Mi",
            "config.leasehold.dev/ephemeral-storage-limit": "256Mi"
        } },
        "spec": { "containers": [{ "name": "worker" }] }
    });
    let (out, warnings) = check(&pod, &with);
    let agent = sidecar(&out);
    assert_eq!(agent["image"], "mine:2");
    for (name, value) in [
        ("LEASEHOLD_ADAPTER", "file"),
        ("LEASEHOLD_DRAIN_DEADLINE", "20s"),
        ("LEASEHOLD_FILE_PATH", "/leasehold/$$HOME.yml"),
        ("LEASEHOLD_LISTEN", "0.0.0.0:7500"),
        ("LEASEHOLD_HEALTH_LISTEN", "[::]:7501"),
    ] {
        assert_eq!(variable(agent, name)["value"], value, "{name}");
    }
    assert_eq!(agent["livenessProbe"]["httpGet"]["port"], 7501);
    let limits = json!({ "cpu": "1", "memory": "128Mi", "ephemeral-storage": "256Mi" });
    assert_eq!(agent["resources"]["limits"], limits);
    assert_eq!(agent["resources"]["requests"]["ephemeral-storage"], "64Mi");
    let worker = &out["spec"]["containers"][0];
    assert_eq!(variable(worker, "LEASEHOLD_ADDR")["value"], "http://127.0.0.1:7500");
    assert_eq!(warnings, Vec::<String>::new(), "30 s of grace cover a drain of 20 s");
}

#[test]
fn a_travis_worker_starts_with_remote_control_and_no_jobs() {
    let mut with = settings();
    with.flags.insert("adapter".into(), "travis".into());
    let pod = |env: Value| json!({ "spec": { "containers": [{ "name": "w", "env": env }] } });
    let value = |container: &Value, name: &str| variable(container, name)["value"].clone();
    let (addr, auth) =
        ("TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR", "TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH");

    let (out, _) = check(&pod(json!([])), &with);
    let worker = &out["spec"]["containers"][0];
    assert_eq!(value(worker, addr), "127.0.0.1:8080");
    assert_eq!(value(worker, auth), "leasehold:leasehold");
    assert_eq!(value(worker, "TRAVIS_WORKER_POOL_SIZE"), "0");
    assert_eq!(value(sidecar(&out), "LEASEHOLD_TRAVIS_AUTH"), Value::Null);

    let secret = json!({ "secretKeyRef": { "name": "s", "key": "auth" } });
    let (out, warnings) = check(
        &pod(json!([
            { "name": "TRAVIS_WORKER_POOL_SIZE", "value": "50" },
            { "name": addr, "value": "0.0.0.0:9000" },
            { "name": auth, "valueFrom": secret }
        ])),
        &with,
    );
    let worker = &out["spec"]["containers"][0];
    assert_eq!(value(worker, "TRAVIS_WORKER_POOL_SIZE"), "0");
    assert_eq!(value(worker, addr), "0.0.0.0:9000");
    assert_eq!(value(sidecar(&out), "LEASEHOLD_TRAVIS_URL"), "http://127.0.0.1:9000");
    assert_eq!(variable(sidecar(&out), "LEASEHOLD_TRAVIS_AUTH")["valueFrom"], secret);
    assert!(!warnings.iter().any(|warning| warning.contains("TRAVIS")), "{warnings:?}");

    let elsewhere = json!([{ "name": "TRAVIS_WORKER_POOL_SIZE", "valueFrom": secret }]);
    let (_, warnings) = check(&pod(elsewhere), &with);
    let told = "spec.containers[0].env[6]: TRAVIS_WORKER_POOL_SIZE comes from elsewhere";
    assert!(warnings.iter().any(|warning| warning.starts_with(told)), "{warnings:?}");

    with.flags.insert("travis-url".into(), "http://127.0.0.1:8181".into());
    with.flags.insert("travis-auth".into(), "a:b$c".into());
    let (out, _) = check(&pod(json!(null)), &with);
    let worker = &out["spec"]["containers"][0];
    assert_eq!(value(worker, addr), "127.0.0.1:8181");
    assert_eq!(value(worker, auth), "a:b$$c");
}

#[test]
fn the_worker_is_the_named_container_or_the_first() {
    let pod = |annotations: Value| {
        json!({
            "metadata": { "annotations": annotations },
            "spec": { "containers": [{ "name": "a" }, { "name": "b" }, { "name": "c" }] }
        })
    };
    let (ours, kubectl) =
        ("config.leasehold.dev/container", "kubectl.kubernetes.io/default-container");
    for (annotations, index) in [
        (json!({}), 0),
        (json!(null), 0),
        (json!({ kubectl: "b" }), 1),
        (json!({ kubectl: "b", ours: "c" }), 2),
    ] {
        let (out, _) = check(&pod(annotations), &settings());
        let has_hook: Vec<bool> = out["spec"]["containers"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|container| container.get("lifecycle").is_some())
            .collect();
        assert_eq!(has_hook, [0, 1, 2].map(|at| at == index));
    }
    let said = refusal(&pod(json!({ ours: "d" })), &settings());
    assert_eq!(
        said,
        "config.leasehold.dev/container names the container \"d\", which does not exist: use one \
         of a, b, c"
    );
}

#[test]
fn keeps_the_fields_of_the_container() {
    let pod = json!({ "spec": { "containers": [{
        "name": "worker",
        "env": [{ "name": "LEASEHOLD_ADDR", "value": "http://127.0.0.1:9" }, { "name": "A" }]
    }] } });
    let (out, _) = check(&pod, &settings());
    let worker = &out["spec"]["containers"][0];
    assert_eq!(variable(worker, "LEASEHOLD_ADDR")["value"], "http://127.0.0.1:9");
    let last = worker["env"].as_array().and_then(|variables| variables.last()).expect("variables");
    assert_eq!(last["name"], "A", "ours come first, so that its own may refer to them");
}
