//! Checks before an installation (`--pre`): the user may install, nothing of another installation
//! is in the way, and the cluster has what workers need.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use kube::api::ListParams;
use leasehold_types::counted;
use serde_json::{Value, json};

use super::api::{ApiClient, ApiError};
use super::definitions::{self, differences};
use super::expected::{self, list, text};
use super::installation::{APPLY_KINDS, apply};
use super::report::{Finding, Problem, Report};
use super::rights::{rights_missing_for_user, user_can};
use super::{evictions, webhook};

/// At most this many requests are in flight.
const REQUESTS_IN_FLIGHT_MAX: usize = 16;
/// The oldest minor version of Kubernetes 1 whose kubelets run native sidecars unasked.
const KUBELET_MINOR_MIN: u64 = 29;
/// The label of a namespace for the enforced level of pod security; no level is enforced without.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Runs all checks before an installation.
pub(super) async fn look(api: &ApiClient, namespace: &str, report: &mut Report) {
    report.add(sidecars(api).await);
    report.add(kubelets(api).await);
    report.add(admission(api).await);
    report.section("Rights");
    report.add(install_rights(api, namespace).await);
    report.add(grant_rights(api, namespace).await);
    report.section("Existing objects");
    report.add(kinds(api).await);
    report.add(own_namespace(api, namespace).await);
    report.add(other_installation(api, namespace).await);
}

/// Creates a pod with a native sidecar, as a dry run, and looks whether it keeps it.
async fn sidecars(api: &ApiClient) -> Finding {
    let mut finding = Finding::new("pre-sidecars", "native sidecars are enabled (dry run)");
    let mut pod = webhook::pod("default", None);
    // Without the label that asks for a sidecar: only its own one is of interest.
    pod["metadata"]["labels"] = json!({});
    let mut sidecar = pod["spec"]["containers"][0].clone();
    sidecar["name"] = "sidecar".into();
    sidecar["restartPolicy"] = "Always".into();
    pod["spec"]["initContainers"] = json!([sidecar]);
    match api.dry_run_create("/api/v1/namespaces/default/pods", &pod).await {
        Ok(made) if made["spec"]["initContainers"][0]["restartPolicy"] == "Always" => {}
        Ok(_) => finding.fail(Problem::new(
            "the API server drops restartPolicy of init containers",
            "enable the feature gate SidecarContainers in the API server and in the kubelets",
        )),
        Err(error) => {
            finding.skip(format!(
                "a dry run of a pod in the namespace default failed: {}",
                error.text()
            ));
        }
    }
    finding
}

async fn kubelets(api: &ApiClient) -> Finding {
    let mut finding = Finding::new("pre-kubelets", "every node's kubelet is 1.29 or newer");
    let nodes = match api.list("/api/v1/nodes", ListParams::default()).await {
        Ok(nodes) => nodes,
        Err(error) => {
            finding.skip(error.text());
            return finding;
        }
    };
    for node in &nodes {
        let version = text(&node["status"]["nodeInfo"]["kubeletVersion"]);
        let minor = version.strip_prefix("v1.").and_then(|rest| rest.split('.').next());
        let minor = minor.and_then(|minor| minor.parse::<u64>().ok());
        if minor.is_some_and(|minor| minor < KUBELET_MINOR_MIN) {
            let name = text(&node["metadata"]["name"]);
            let wrong =
                format!("node {name} runs kubelet {version}: pods with a sidecar never end there");
            let cordon = format!("kubectl cordon {name}");
            finding
                .fail(Problem::new(wrong, "upgrade the node, or keep workers off it").run(cordon));
        }
    }
    finding.note(counted(nodes.len(), "node"));
    finding
}

async fn admission(api: &ApiClient) -> Finding {
    let check = "the API server supports mutating webhooks";
    let mut finding = Finding::new("pre-webhooks", check);
    match api.resources("admissionregistration.k8s.io/v1").await {
        Ok(names) if names.iter().any(|name| name == "mutatingwebhookconfigurations") => {}
        Ok(_) => finding.fail(Problem::new(
            "the API server does not serve mutatingwebhookconfigurations of \
             admissionregistration.k8s.io/v1",
            "enable the API group and the admission plugin MutatingAdmissionWebhook",
        )),
        Err(error) => finding.skip(error.text()),
    }
    finding
}

/// The user may create every kind of object of the installation.
async fn install_rights(api: &ApiClient, namespace: &str) -> Finding {
    let check = "you may create the objects of an installation";
    let mut finding = Finding::new("pre-rights", check);
    let kinds = expected::kinds();
    let count = kinds.len();
    let questions = kinds
        .into_iter()
        .flat_map(|kind| ["get", "create", "patch"].map(|verb| (kind.clone(), verb)));
    let answers = stream::iter(questions)
        .map(|((group, resource, is_namespaced), verb)| async move {
            let within = is_namespaced.then_some(namespace);
            let may = user_can(api, verb, (&group, &resource, ""), within).await;
            (may, resource, verb, is_namespaced)
        })
        .buffered(REQUESTS_IN_FLIGHT_MAX);
    let mut answers = std::pin::pin!(answers);
    while let Some((may, resource, verb, is_namespaced)) = answers.next().await {
        match may {
            Ok(true) => {}
            Ok(false) => {
                let place = if is_namespaced { format!(" in {namespace}") } else { String::new() };
                let wrong = format!("you may not {verb} {resource}{place}");
                let fix =
                    "install as a user with these rights, for example a cluster administrator";
                finding.fail(Problem::new(wrong, fix).run("kubectl auth whoami"));
            }
            Err(error) => {
                finding.skip(error.text());
                return finding;
            }
        }
    }
    finding.note(format!("{count} kinds of objects"));
    finding
}

/// The user may grant the coordinator its rights: RBAC allows users to grant only their own rights.
async fn grant_rights(api: &ApiClient, namespace: &str) -> Finding {
    let check = "you may grant the coordinator its rights";
    let mut finding = Finding::new("pre-give-rights", check);
    match lacking(api, namespace).await {
        Ok(missing) => {
            for one in missing {
                let wrong = format!("you cannot grant rights that you do not have: {one}");
                let fix = "install as a user who has these rights, or may `escalate` and `bind`";
                finding.fail(Problem::new(wrong, fix).run("kubectl auth whoami"));
            }
        }
        Err(error) => finding.skip(error.text()),
    }
    finding
}

async fn lacking(api: &ApiClient, namespace: &str) -> Result<Vec<String>, ApiError> {
    let group = "rbac.authorization.k8s.io";
    let escalates = user_can(api, "escalate", (group, "clusterroles", ""), None).await?;
    let binds = user_can(api, "bind", (group, "clusterroles", ""), None).await?;
    if escalates && binds { Ok(Vec::new()) } else { rights_missing_for_user(api, namespace).await }
}

/// No CustomResourceDefinition of another version exists.
async fn kinds(api: &ApiClient) -> Finding {
    let check = "no CustomResourceDefinition of another version exists";
    let mut finding = Finding::new("pre-kinds", check);
    for definition in expected::definitions().unwrap_or_default() {
        let name = text(&definition["metadata"]["name"]);
        match api.get(definitions::FOLDER, name).await {
            Ok(None) => {}
            Ok(Some(there)) => {
                if !there["metadata"]["deletionTimestamp"].is_null() {
                    let wrong = format!("CustomResourceDefinition {name} is being deleted");
                    let wait = format!("kubectl wait --for=delete crd/{name} --timeout=5m");
                    finding.fail(Problem::new(wrong, "wait until it is deleted").run(wait));
                    continue;
                }
                let differences = differences(&definition, &there);
                match differences.first() {
                    None => finding.note(format!("{name} exists, of this version")),
                    Some(first) => {
                        let wrong = format!(
                            "CustomResourceDefinition {name} exists, of another version: {first}"
                        );
                        let fix = "upgrade that installation, or apply these definitions first";
                        finding.fail(Problem::new(wrong, fix).run(APPLY_KINDS));
                    }
                }
            }
            Err(error) => finding.skip(error.text()),
        }
    }
    finding
}

/// The namespace is free for the installation.
async fn own_namespace(api: &ApiClient, namespace: &str) -> Finding {
    let check = format!("the namespace {namespace} is free, and its pod security stays the same");
    let mut finding = Finding::new("pre-namespace", check);
    match api.get("/api/v1/namespaces", namespace).await {
        Ok(None) => return finding,
        Ok(Some(there)) => {
            if there["status"]["phase"] == "Terminating" {
                let wrong = format!("namespace {namespace} is being deleted");
                let wait = format!("kubectl wait --for=delete namespace/{namespace} --timeout=5m");
                finding.fail(Problem::new(wrong, "wait until it is deleted").run(wait));
                return finding;
            }
            let level = text(&there["metadata"]["labels"][ENFORCE]);
            if level != "restricted" {
                let wrong = format!(
                    "namespace {namespace} enforces pod security level {level:?}; the installation \
                     sets it to `restricted`, for every pod in it"
                );
                let fix = "install into a separate namespace";
                let pods = format!("kubectl -n {namespace} get pods");
                finding.warn(Problem::new(wrong, fix).run(pods));
            }
        }
        Err(error) => {
            finding.skip(error.text());
            return finding;
        }
    }
    let folder = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    if let Ok(Some(deployment)) = api.get(&folder, "leasehold-coordinator").await {
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        let image =
            list(containers).next().map_or("", |container: &Value| text(&container["image"]));
        let wrong = format!("Leasehold is installed already: {image} in {namespace}");
        let fix = "check it with `leasehold check`; installing again upgrades it";
        finding.warn(Problem::new(wrong, fix).run(apply("ha")));
    }
    finding
}

/// No other namespace has an installation: both would write the same webhooks and ClusterRoles.
async fn other_installation(api: &ApiClient, namespace: &str) -> Finding {
    let mut finding = Finding::new("pre-other", "no other namespace has an installation");
    let mut others = BTreeSet::new();
    for (folder, wanted) in
        [(webhook::FOLDER, webhook::wanted()), (evictions::FOLDER, evictions::wanted())]
    {
        match api.get(folder, text(&wanted["metadata"]["name"])).await {
            Ok(Some(there)) => {
                let of = |webhook: &Value| {
                    text(&webhook["clientConfig"]["service"]["namespace"]).to_owned()
                };
                others.extend(list(&there["webhooks"]).map(of));
            }
            Ok(None) => {}
            Err(error) => finding.skip(error.text()),
        }
    }
    // A webhook that is called by its address names no namespace.
    for other in others.iter().filter(|other| !other.is_empty() && *other != namespace) {
        let wrong = format!(
            "Leasehold is installed in namespace {other}: a second installation would take over \
             its webhooks and ClusterRoles"
        );
        let fix = "upgrade that one, give it more namespaces to serve, or remove it first";
        let look = format!("leasehold check --namespace {other}");
        finding.fail(Problem::new(wrong, fix).run(look));
    }
    finding
}
