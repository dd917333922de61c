//! Where it runs: in namespaces that give pods users of their own, as OpenShift does, and in those
//! that enforce the level `restricted`; from a registry of one's own, by digest.

use leasehold_injection::{AgentUser, Sidecar};
use serde_json::{Value, json};
use tests::kube::{Access, Namespace};
use tests::process::eventually;

use tests::toolbox;

use super::super::installed::{
    ExclusiveControlPlane, Installed, coordinator_pods, until_pods_are_admitted,
};
use super::kustomization;

/// What OpenShift's security context constraint `restricted-v2` demands of a pod once it has given
/// the namespace's ids to all that names none.
const RESTRICTED_V2: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: restricted-v2}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  variables:
    - name: containers
      expression: >-
        object.spec.containers
        + (has(object.spec.initContainers) ? object.spec.initContainers : [])
    - name: named
      expression: has(object.spec.securityContext)
  validations:
    - message: "runAsUser: must be in the ranges: [1000700000, 1000709999]"
      expression: >-
        (!variables.named || !has(object.spec.securityContext.runAsUser)
        || object.spec.securityContext.runAsUser in [1000700000]) &&
        variables.containers.all(it, !has(it.securityContext) || !has(it.securityContext.runAsUser)
        || it.securityContext.runAsUser in [1000700000])
    - message: "fsGroup: must be in the ranges: [1000700000, 1000709999]"
      expression: >-
        !variables.named || !has(object.spec.securityContext.fsGroup)
        || object.spec.securityContext.fsGroup in [1000700000]
    - message: "capabilities.drop: must be ALL"
      expression: >-
        variables.containers.all(it, has(it.securityContext) && has(it.securityContext.capabilities)
        && has(it.securityContext.capabilities.drop)
        && 'ALL' in it.securityContext.capabilities.drop)
    - message: "allowPrivilegeEscalation: must be false"
      expression: >-
        variables.containers.all(it, has(it.securityContext)
        && has(it.securityContext.allowPrivilegeEscalation)
        && !it.securityContext.allowPrivilegeEscalation)
    - message: "host namespaces, ports and paths are not allowed"
      expression: >-
        (!has(object.spec.hostNetwork) || !object.spec.hostNetwork) &&
        (!has(object.spec.volumes) || object.spec.volumes.all(it, has(it.emptyDir)
        || has(it.projected) || has(it.secret) || has(it.configMap) || has(it.downwardAPI)
        || has(it.csi) || has(it.persistentVolumeClaim) || has(it.ephemeral)))
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: restricted-v2}
spec:
  policyName: restricted-v2
  validationActions: [Deny]
  matchResources:
    namespaceSelector: {matchExpressions: [
      {key: kubernetes.io/metadata.name, operator: In, values: [leasehold-system, openshift]}]}
"#;

/// The policy, and a namespace that it holds in, as long as this value is there.
struct OpenShift(Namespace);

impl OpenShift {
    fn apply(access: &Access) -> Self {
        // Made first, so that half of it is removed, too.
        let openshift = Self(Namespace::existing(access, "openshift"));
        access.apply(RESTRICTED_V2);
        access.kubectl(&["create", "namespace", "openshift"]);
        let restricted = "pod-security.kubernetes.io/enforce=restricted";
        access.kubectl(&["label", "namespace", "openshift", restricted]);
        openshift.0.wait_for_account();
        // The API server takes a moment to know a policy.
        eventually("the policy", || openshift.refuses().then_some(()));
        openshift
    }

    /// Whether the policy is in force: it refuses pods that name a user.
    fn refuses(&self) -> bool {
        let answer = self.create(&pod(AgentUser::STANDARD));
        answer.is_err_and(|why| why.contains("runAsUser: must be in the ranges"))
    }

    /// Asks the API server for a pod, without making it.
    fn create(&self, pod: &Value) -> Result<String, String> {
        self.0.try_kubectl_with(&["create", "--dry-run=server"], pod)
    }
}

impl Drop for OpenShift {
    fn drop(&mut self) {
        let delete = |object| self.0.access.try_kubectl(&["delete", object, "--ignore-not-found"]);
        let _ = delete("validatingadmissionpolicybinding/restricted-v2");
        let _ = delete("validatingadmissionpolicy/restricted-v2");
        // The API server takes a moment to forget a policy. It would refuse the next test's pods.
        if !std::thread::panicking() {
            eventually("the end of the policy", || (!self.refuses()).then_some(()));
        }
        let _ = delete("namespace/openshift");
    }
}

/// A pod that names no ids itself, with its agent.
fn pod(user: AgentUser) -> Value {
    let security = json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
    });
    let seccomp = json!({ "type": "RuntimeDefault" });
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "worker" },
        "spec": {
            "securityContext": { "runAsNonRoot": true, "seccompProfile": seccomp },
            "containers": [{ "name": "worker", "image": "w", "securityContext": security }],
        },
    });
    let standard = Sidecar::standard("registry.invalid/leasehold/agent:0.1.0");
    let sidecar = Sidecar { cluster: Some("builds".into()), user, ..standard };
    let injection = leasehold_injection::inject(&pod, &sidecar).expect("a good pod");
    leasehold_injection::apply(&injection.edits, &mut pod);
    pod
}

#[test]
fn pods_with_an_agent_and_the_coordinators_are_admitted_by_restricted_v2_and_restricted() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let open_shift = OpenShift::apply(access);
    // A fixed user is refused; the level `restricted` of the namespace holds, too.
    open_shift.create(&pod(AgentUser::Unset)).expect("a pod without fixed ids");
    let overlay = kustomization("../../deploy/overlays/ha", &["openshift"], "");
    let _installed = Installed::new(access, overlay.path());
    until_pods_are_admitted(access, 3);
    let pod = &coordinator_pods(access)[0];
    let variables = pod["spec"]["containers"][0]["env"].as_array().expect("variables");
    let user = variables.iter().find(|variable| variable["name"] == "LEASEHOLD_AGENT_USER");
    assert_eq!(user.expect("it is set")["value"], "none");
}

#[test]
fn the_documented_settings_of_registry_digests_secrets_and_users_apply() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let document = std::fs::read_to_string(toolbox::root().join("docs/KUBERNETES.md"));
    let document = document.expect("a document");
    let (_, section) = document.split_once("### Where it runs").expect("the section");
    let (_, block) = section.split_once("```yaml\n").expect("a kustomization");
    let (block, _) = block.split_once("```").expect("its end");
    let folder = kustomization("../../deploy/overlays/ha", &["openshift"], "");
    let text = block.replace(" leasehold/deploy/", " ../../deploy/");
    std::fs::write(folder.path().join("kustomization.yaml"), text).expect("written");
    let _installed = Installed::new(access, folder.path());
    until_pods_are_admitted(access, 3);
    let pod = &coordinator_pods(access)[0]["spec"];
    let container = &pod["containers"][0];
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let image = |name: &str| format!("registry.example/leasehold/{name}@{digest}");
    assert_eq!(container["image"], image("coordinator"));
    let set = |name: &str| {
        let mut variables = container["env"].as_array().expect("variables").iter();
        variables.find(|variable| variable["name"] == name).expect("it is set")["value"].clone()
    };
    assert_eq!(set("LEASEHOLD_AGENT_IMAGE"), image("agent"));
    assert_eq!(set("LEASEHOLD_AGENT_PULL_SECRETS"), "registry");
    assert_eq!(pod["imagePullSecrets"], json!([{ "name": "registry" }]));
    assert_eq!(pod["securityContext"]["runAsUser"], 10001);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
}
