//! A cluster before an installation: may this user make it, is nothing of another one in its way,
//! and does the cluster have what workers need?

use futures_util::{StreamExt, stream};
use kube::api::ListParams;
use serde_json::{Value, json};

use super::cluster::{Cluster, Trouble};
use super::definitions::{self, differences};
use super::installation::apply;
use super::manifests::{self, list, text};
use super::report::{Finding, Problem, Report};
use super::rights::{not_the_users, user_may};
use super::webhook;

/// Questions that are asked at once.
const AT_ONCE: usize = 16;
/// The oldest minor version of Kubernetes 1 whose kubelets run native sidecars unasked.
const KUBELET_MINOR_MIN: u64 = 29;
/// How much of pod security may be enforced; a namespace that says nothing enforces nothing.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Looks at a cluster before the installation.
pub(super) async fn look(cluster: &Cluster, namespace: &str, report: &mut Report) {
    report.tell(sidecars(cluster).await);
    report.tell(kubelets(cluster).await);
    report.tell(admission(cluster).await);
    report.section("Rights");
    report.tell(may_install(cluster, namespace).await);
    report.tell(may_give(cluster, namespace).await);
    report.section("What is there already");
    report.tell(kinds(cluster).await);
    report.tell(own_namespace(cluster, namespace).await);
}

/// Whether a pod with a native sidecar comes back as one.
async fn sidecars(cluster: &Cluster) -> Finding {
    let mut finding = Finding::new("pre-sidecars", "native sidecars are switched on (a dry run)");
    let mut pod = webhook::pod("default", None);
    // It asks for nothing: only whether its own sidecar stays one.
    pod["metadata"]["labels"] = json!({});
    let mut sidecar = pod["spec"]["containers"][0].clone();
    sidecar["name"] = "sidecar".into();
    sidecar["restartPolicy"] = "Always".into();
    pod["spec"]["initContainers"] = json!([sidecar]);
    match cluster.would_create("/api/v1/namespaces/default/pods", &pod).await {
        Ok(made) if made["spec"]["initContainers"][0]["restartPolicy"] == "Always" => {}
        Ok(_) => finding.fail(Problem::new(
            "the API server drops restartPolicy of init containers",
            "switch the feature gate SidecarContainers on, in the API server and the kubelets",
        )),
        Err(trouble) => {
            finding.skip(format!("a pod could not be tried in default: {}", trouble.text()));
        }
    }
    finding
}

async fn kubelets(cluster: &Cluster) -> Finding {
    let mut finding = Finding::new("pre-kubelets", "every node's kubelet is 1.29 or newer");
    let nodes = match cluster.list("/api/v1/nodes", ListParams::default()).await {
        Ok(nodes) => nodes,
        Err(trouble) => {
            finding.skip(trouble.text());
            return finding;
        }
    };
    for node in &nodes {
        let version = text(&node["status"]["nodeInfo"]["kubeletVersion"]);
        let minor = version.strip_prefix("v1.").and_then(|rest| rest.split('.').next());
        let minor = minor.and_then(|minor| minor.parse::<u64>().ok());
        if minor.is_some_and(|minor| minor < KUBELET_MINOR_MIN) {
            let name = text(&node["metadata"]["name"]);
            let wrong = format!("node {name} is {version}: pods with a sidecar never end there");
            let cordon = format!("kubectl cordon {name}");
            finding.fail(Problem::new(wrong, "upgrade it, or keep workers away").run(cordon));
        }
    }
    finding.note(format!("{} nodes", nodes.len()));
    finding
}

async fn admission(cluster: &Cluster) -> Finding {
    let check = "webhooks that change pods are possible";
    let mut finding = Finding::new("pre-webhooks", check);
    match cluster.resources("admissionregistration.k8s.io/v1").await {
        Ok(names) if names.iter().any(|it| it == "mutatingwebhookconfigurations") => {}
        Ok(_) => finding.fail(Problem::new(
            "the API server does not serve mutatingwebhookconfigurations of \
             admissionregistration.k8s.io/v1",
            "switch the group and the plugin MutatingAdmissionWebhook on",
        )),
        Err(trouble) => finding.skip(trouble.text()),
    }
    finding
}

/// Whether the user may make every kind of object of the installation.
async fn may_install(cluster: &Cluster, namespace: &str) -> Finding {
    let check = "you may make what an installation consists of";
    let mut finding = Finding::new("pre-rights", check);
    let kinds = manifests::kinds();
    let count = kinds.len();
    let questions = kinds
        .into_iter()
        .flat_map(|kind| ["get", "create", "patch"].map(|verb| (kind.clone(), verb)));
    let answers = stream::iter(questions)
        .map(|((group, resource, is_namespaced), verb)| async move {
            let within = is_namespaced.then_some(namespace);
            let may = user_may(cluster, verb, (&group, &resource, ""), within).await;
            (may, resource, verb, is_namespaced)
        })
        .buffered(AT_ONCE);
    let mut answers = std::pin::pin!(answers);
    while let Some((may, resource, verb, is_namespaced)) = answers.next().await {
        match may {
            Ok(true) => {}
            Ok(false) => {
                let place = if is_namespaced { format!(" in {namespace}") } else { String::new() };
                let wrong = format!("you may not {verb} {resource}{place}");
                let mend = "install as somebody who may, as a cluster's administrator";
                finding.fail(Problem::new(wrong, mend).run("kubectl auth whoami"));
            }
            Err(trouble) => {
                finding.skip(trouble.text());
                return finding;
            }
        }
    }
    finding.note(format!("{count} kinds of object"));
    finding
}

/// Whether the user may give the coordinator its rights: nobody may give what they have not.
async fn may_give(cluster: &Cluster, namespace: &str) -> Finding {
    let check = "you may give the coordinator its rights";
    let mut finding = Finding::new("pre-give-rights", check);
    match lacking(cluster, namespace).await {
        Ok(missing) => {
            for one in missing {
                let wrong = format!("you cannot give what you have not: {one}");
                let mend = "install as somebody who has these rights, or may `escalate` roles";
                finding.fail(Problem::new(wrong, mend).run("kubectl auth whoami"));
            }
        }
        Err(trouble) => finding.skip(trouble.text()),
    }
    finding
}

async fn lacking(cluster: &Cluster, namespace: &str) -> Result<Vec<String>, Trouble> {
    let group = "rbac.authorization.k8s.io";
    let escalates = user_may(cluster, "escalate", (group, "clusterroles", ""), None).await?;
    let binds = user_may(cluster, "bind", (group, "clusterroles", ""), None).await?;
    match escalates && binds {
        true => Ok(Vec::new()),
        false => not_the_users(cluster, namespace).await,
    }
}

/// Whether no definition of another version is there.
async fn kinds(cluster: &Cluster) -> Finding {
    let check = "no kinds of another version are there";
    let mut finding = Finding::new("pre-kinds", check);
    for definition in manifests::definitions().unwrap_or_default() {
        let name = text(&definition["metadata"]["name"]);
        match cluster.get(definitions::FOLDER, name).await {
            Ok(None) => {}
            Ok(Some(there)) => {
                if !there["metadata"]["deletionTimestamp"].is_null() {
                    let wrong = format!("CustomResourceDefinition {name} is being removed");
                    let wait = format!("kubectl wait --for=delete crd/{name} --timeout=5m");
                    finding.fail(Problem::new(wrong, "wait until it is gone").run(wait));
                    continue;
                }
                let differences = differences(&definition, &there);
                match differences.first() {
                    None => finding.note(format!("{name} is there, of this version")),
                    Some(first) => {
                        let wrong = format!(
                            "CustomResourceDefinition {name} is there, of another version: {first}"
                        );
                        let mend = "upgrade that installation, or apply these definitions first";
                        let apply = "kubectl apply -k deploy/crds";
                        finding.fail(Problem::new(wrong, mend).run(apply));
                    }
                }
            }
            Err(trouble) => finding.skip(trouble.text()),
        }
    }
    finding
}

/// Whether the namespace takes the installation.
async fn own_namespace(cluster: &Cluster, namespace: &str) -> Finding {
    let check = format!("the namespace {namespace} is free, and stays as it is");
    let mut finding = Finding::new("pre-namespace", check);
    match cluster.get("/api/v1/namespaces", namespace).await {
        Ok(None) => return finding,
        Ok(Some(there)) => {
            if there["status"]["phase"] == "Terminating" {
                let wrong = format!("namespace {namespace} is being removed");
                let wait = format!("kubectl wait --for=delete namespace/{namespace} --timeout=5m");
                finding.fail(Problem::new(wrong, "wait until it is gone").run(wait));
                return finding;
            }
            let level = text(&there["metadata"]["labels"][ENFORCE]);
            if level != "restricted" {
                let wrong = format!(
                    "namespace {namespace} enforces the level {level:?} of pod security; with the \
                     installation it enforces `restricted`, for every pod in it"
                );
                let mend = "install into a namespace of its own";
                let pods = format!("kubectl -n {namespace} get pods");
                finding.warn(Problem::new(wrong, mend).run(pods));
            }
        }
        Err(trouble) => {
            finding.skip(trouble.text());
            return finding;
        }
    }
    let folder = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    if let Ok(Some(deployment)) = cluster.get(&folder, "leasehold-coordinator").await {
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        let image = list(containers).next().map_or("", |it: &Value| text(&it["image"]));
        let wrong = format!("Leasehold is there already: {image} in {namespace}");
        let mend = "look at it with `leasehold check`; installing again upgrades it";
        finding.warn(Problem::new(wrong, mend).run(apply("ha")));
    }
    finding
}
