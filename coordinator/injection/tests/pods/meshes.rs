//! Pods in a service mesh, whose proxy takes what comes to the pod's address.

use serde_json::{Value, json};

use super::shared::{check, istio, refusal, settings, sidecar};

const PROBES: &str = "config.leasehold.dev/probes";

/// Whether the agent of a pod is probed by a command, and not at the pod's address.
fn is_by_command(pod: &Value) -> bool {
    let (out, _) = check(pod, &settings());
    let agent = sidecar(&out);
    let kinds: Vec<bool> = ["startupProbe", "livenessProbe"]
        .iter()
        .map(|name| {
            let probe = &agent[name];
            assert_ne!(probe.get("exec").is_some(), probe.get("httpGet").is_some(), "{probe}");
            probe.get("exec").is_some()
        })
        .collect();
    assert_eq!(kinds[0], kinds[1]);
    kinds[0]
}

#[test]
fn an_agent_behind_istios_proxy_is_probed_in_its_container() {
    let (out, _) = check(&istio(), &settings());
    let agent = sidecar(&out);
    assert_eq!(agent["name"], "leasehold-agent");
    let command = json!({ "command": ["/leasehold-agent", "probe"] });
    assert_eq!(
        agent["startupProbe"],
        json!({
            "exec": command, "timeoutSeconds": 5, "periodSeconds": 1, "failureThreshold": 120,
            "terminationGracePeriodSeconds": 30,
        })
    );
    assert_eq!(
        agent["livenessProbe"],
        json!({
            "exec": command, "timeoutSeconds": 5, "periodSeconds": 10, "failureThreshold": 3,
            "terminationGracePeriodSeconds": 30,
        })
    );
}

#[test]
fn a_pod_shows_that_it_is_in_a_mesh_by_its_proxy_or_asks_for_one() {
    let pod = |metadata: Value, spec: Value| {
        let mut pod = json!({ "metadata": metadata, "spec": { "containers": [{ "name": "w" }] } });
        for (key, value) in spec.as_object().expect("a map") {
            pod["spec"][key] = value.clone();
        }
        pod
    };
    let labelled = |key: &str, value: &str| pod(json!({ "labels": { key: value } }), json!({}));
    let annotated =
        |key: &str, value: &str| pod(json!({ "annotations": { key: value } }), json!({}));
    let (istio, linkerd) = ("sidecar.istio.io/inject", "linkerd.io/inject");
    for meshed in [
        labelled(istio, "true"),
        annotated(istio, "true"),
        annotated(linkerd, "enabled"),
        annotated(linkerd, "ingress"),
        pod(json!({}), json!({ "containers": [{ "name": "w" }, { "name": "linkerd-proxy" }] })),
        pod(
            json!({}),
            json!({ "initContainers": [{ "name": "linkerd-proxy", "restartPolicy": "Always" }] }),
        ),
    ] {
        assert!(is_by_command(&meshed), "{meshed}");
    }
    for plain in [
        labelled(istio, "false"),
        annotated(linkerd, "disabled"),
        labelled("istio.io/dataplane-mode", "ambient"),
        pod(json!({}), json!({ "initContainers": [{ "name": "mesh" }] })),
    ] {
        assert!(!is_by_command(&plain), "{plain}");
    }
}

#[test]
fn an_annotation_outweighs_what_a_pod_shows() {
    let mut meshed = istio();
    meshed["metadata"]["annotations"][PROBES] = json!("http");
    assert!(!is_by_command(&meshed));
    let plain = |kind: &str| {
        json!({
            "metadata": { "annotations": { PROBES: kind } },
            "spec": { "containers": [{ "name": "w" }] }
        })
    };
    assert!(is_by_command(&plain("exec")));
    let said = refusal(&plain("grpc"), &settings());
    assert!(said.contains("use http or exec") && said.contains(PROBES), "{said}");
    let of_all = settings().set("--set ", "probes", "exec").expect_err("of one pod only");
    assert!(of_all.to_string().contains("an annotation"), "{of_all}");
}

/// Another webhook adds its proxy after the agent's, and the API server asks the first one again.
#[test]
fn a_proxy_that_comes_later_changes_the_probes_of_the_agent() {
    let pod = json!({ "metadata": {}, "spec": { "containers": [{ "name": "w" }] } });
    let (mut out, _) = check(&pod, &settings());
    assert!(sidecar(&out)["livenessProbe"]["httpGet"].is_object());
    let containers = out["spec"]["containers"].as_array_mut().expect("containers");
    containers.push(json!({ "name": "linkerd-proxy" }));
    let again = leasehold_injection::inject(&out, &settings()).expect("it can be injected again");
    let out = super::shared::after(&again.edits, &out);
    assert!(sidecar(&out)["livenessProbe"]["exec"].is_object(), "{out:#}");
}
