//! `components/pod-register`: who may change pods writes no exposure, and the coordinator does.

use serde_json::{Value, json};
use tests::kube::{Access, Cluster};
use tests::process::eventually;

use super::super::injection::pod;
use super::rights::COORDINATOR;

const TENANT: &str = "tenant";
/// May do everything in the namespace.
const ADMIN: &str = "administrator";
const LABEL: &str = "leasehold.dev/exposed";
const ANNOTATION: &str = "leasehold.dev/exposure";

/// The policy, in force for one namespace: the coordinators of other tests are other users.
struct Policy<'a>(&'a Access);

impl<'a> Policy<'a> {
    fn for_namespace(access: &'a Access, namespace: &str) -> Self {
        let file = tests::toolbox::root().join("deploy/components/pod-register/policy.yaml");
        let text = std::fs::read_to_string(file).expect("the policy");
        for document in text.split("---\n") {
            let mut object: Value = serde_yaml::from_str(document).expect("YAML");
            if object["kind"] == "ValidatingAdmissionPolicyBinding" {
                let label = json!({ "kubernetes.io/metadata.name": namespace });
                let selector = json!({ "namespaceSelector": { "matchLabels": label } });
                object["spec"]["matchResources"] = selector;
            }
            access.apply(&object.to_string());
        }
        Self(access)
    }
}

impl Drop for Policy<'_> {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            let _ = self.0.try_kubectl(&["delete", kind, "leasehold-pod-register"]);
        }
    }
}

#[test]
fn only_the_coordinator_writes_the_register_on_pods() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let namespace = cluster.namespace("register");
    let as_user = |user: &str, arguments: &[&str], input: &str| {
        let who = ["--as", user, "--namespace", &namespace];
        access.try_kubectl_with(&[&who[..], arguments].concat(), input)
    };
    let patch = |user: &str, metadata: Value, more: &[&str]| {
        let patch = json!({ "metadata": metadata }).to_string();
        let arguments = ["patch", "pod/w-0", "--type=merge", "--patch", &patch];
        as_user(user, &[&arguments[..], more].concat(), "")
    };
    for (role, user) in [("edit", TENANT), ("edit", COORDINATOR), ("cluster-admin", ADMIN)] {
        let name = user.replace(':', "-");
        let bind = ["create", "rolebinding", &name, "--clusterrole", role, "--user", user];
        namespace.kubectl(&bind);
    }
    namespace.wait_for_account();
    let worker = pod("w-0", json!({ "leasehold.dev/cluster": "builds" }), json!({}));
    let create = ["create", "--filename=-"];
    as_user(TENANT, &create, &worker.to_string()).expect("a pod");
    let written = json!({ "labels": { LABEL: "true" }, "annotations": { ANNOTATION: "{}" } });
    patch(COORDINATOR, written.clone(), &[]).expect("the coordinator writes");
    let no_label = json!({ "labels": { LABEL: null } });
    patch(TENANT, no_label.clone(), &[]).expect("without the policy a tenant may");
    patch(COORDINATOR, written, &[]).expect("the coordinator writes");

    let _policy = Policy::for_namespace(access, &namespace);
    eventually("the policy in force", || {
        let refused = patch(TENANT, no_label.clone(), &["--dry-run=server"]).err()?;
        refused.contains("only the coordinator writes the label").then_some(())
    });
    let no_annotation = json!({ "annotations": { ANNOTATION: null } });
    let less = json!({ "annotations": { ANNOTATION: "{\"builds\":{}}" } });
    for (metadata, words) in [
        (no_label.clone(), "only the coordinator writes the label"),
        (no_annotation, "only the coordinator writes the annotation"),
        (less, "only the coordinator writes the annotation"),
    ] {
        let refused = patch(TENANT, metadata.clone(), &[]).expect_err("the policy");
        assert!(refused.contains(words), "{metadata}: {refused}");
        // `edit` has no right on the status, but others may have.
        let of_status = patch(ADMIN, metadata.clone(), &["--subresource=status"]);
        let refused = of_status.expect_err("the policy");
        assert!(refused.contains(words), "status: {metadata}: {refused}");
    }
    let born = pod("w-1", json!({ LABEL: "true" }), json!({}));
    let refused = as_user(TENANT, &create, &born.to_string()).expect_err("the policy");
    assert!(refused.contains("only the coordinator writes the label"), "{refused}");
    patch(TENANT, json!({ "labels": { "team": "a" } }), &[]).expect("other labels are theirs");
    patch(COORDINATOR, no_label, &[]).expect("the coordinator writes");
}
