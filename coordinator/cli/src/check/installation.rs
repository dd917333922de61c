//! The installation itself: its Deployment, from which the other lines learn how it is set up, its
//! replicas, and its version.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::cluster::{Cluster, Trouble};
use super::manifests::{list, objects, text};
use super::report::{Finding, Problem, Report, patch};
use super::version::{self, Version};

/// The name of the Deployment, the Service and the service account.
const NAME: &str = "leasehold-coordinator";
/// Replicas without which a failover has nobody to go to.
const REPLICAS_MIN: u64 = 2;

/// An installation, as its Deployment says that it is set up.
#[derive(Clone, Debug)]
pub(super) struct Installation {
    /// The coordinator's namespace.
    pub(super) namespace: String,
    /// The Service that agents dial.
    pub(super) service: String,
    /// The coordinator's service account.
    pub(super) account: String,
    /// The namespaces that are served; all where it is empty.
    pub(super) served: Vec<String>,
    /// The coordinator's image.
    pub(super) image: String,
    /// The Secret of a certificate that others make; none where the coordinator makes its own.
    pub(super) foreign_secret: Option<String>,
    /// What is set in the coordinator's environment.
    environment: BTreeMap<String, String>,
    deployment: Value,
}

impl Installation {
    /// The installation in a namespace; none where there is no Deployment.
    pub(super) async fn find(cluster: &Cluster, namespace: &str) -> Result<Found, Trouble> {
        let folder = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        let deployment = cluster.get(&folder, NAME).await?;
        Ok(match deployment {
            Some(deployment) => Found::There(Box::new(Self::of(namespace, deployment))),
            None => Found::Nowhere(namespace.to_owned()),
        })
    }

    /// The one that `deploy/` makes.
    #[cfg(test)]
    pub(super) fn example() -> Self {
        let deployment = objects().iter().find(|object| object["kind"] == "Deployment");
        Self::of("leasehold-system", deployment.expect("a Deployment").clone())
    }

    fn of(namespace: &str, deployment: Value) -> Self {
        let pod = &deployment["spec"]["template"]["spec"];
        let container = list(&pod["containers"])
            .find(|container| container["name"] == "coordinator")
            .unwrap_or(&pod["containers"][0]);
        let variable = |it: &Value| (text(&it["name"]).to_owned(), text(&it["value"]).to_owned());
        let environment: BTreeMap<_, _> = list(&container["env"]).map(variable).collect();
        let set = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        let served = set("LEASEHOLD_WATCH_NAMESPACE").map(String::as_str).unwrap_or_default();
        let served = served.split(',').map(str::trim).filter(|name| !name.is_empty());
        let foreign_secret =
            set("LEASEHOLD_TLS_CERT").and_then(|file| mounted(pod, container, file));
        let account = text(&pod["serviceAccountName"]);
        Self {
            namespace: namespace.to_owned(),
            service: set("LEASEHOLD_SERVICE").cloned().unwrap_or_else(|| NAME.to_owned()),
            account: if account.is_empty() { "default" } else { account }.to_owned(),
            served: served.map(str::to_owned).collect(),
            image: text(&container["image"]).to_owned(),
            foreign_secret,
            environment: environment.clone(),
            deployment,
        }
    }

    /// The agent's image that is injected unless a cluster or a pod wants another.
    pub(super) fn agent_image(&self) -> String {
        match self.environment.get("LEASEHOLD_AGENT_IMAGE") {
            Some(image) => image.clone(),
            None => {
                // The coordinator goes by its own version, whatever its image is called.
                let own = Version::of_image(&self.image).and_then(|_| version::tag(&self.image));
                let own = own.map(|tag| tag.strip_prefix('v').unwrap_or(tag));
                format!("leasehold/agent:{}", own.unwrap_or(version::OWN))
            }
        }
    }

    /// The command that installs it again, or brings it up to this program's version.
    pub(super) fn apply(&self) -> String {
        let overlay = match (self.served.is_empty(), self.replicas()) {
            (false, _) => "namespaced",
            (true, 1) => "dev",
            (true, _) => "ha",
        };
        apply(overlay)
    }

    /// The command that restarts the coordinator.
    pub(super) fn restart(&self) -> String {
        format!("kubectl -n {} rollout restart deployment/{NAME}", self.namespace)
    }

    fn replicas(&self) -> u64 {
        self.deployment["spec"]["replicas"].as_u64().unwrap_or(1)
    }
}

/// The command that installs an overlay.
pub(super) fn apply(overlay: &str) -> String {
    format!("kubectl apply -k deploy/overlays/{overlay}")
}

/// The Secret that a file of a container comes from.
fn mounted(pod: &Value, container: &Value, file: &str) -> Option<String> {
    let mount = list(&container["volumeMounts"])
        .find(|mount| file.starts_with(text(&mount["mountPath"])))?;
    let volume = list(&pod["volumes"]).find(|volume| volume["name"] == mount["name"])?;
    volume["secret"]["secretName"].as_str().map(str::to_owned)
}

/// What was found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    There(Box<Installation>),
    /// The namespace in which there is none.
    Nowhere(String),
}

/// Looks at the installation; without one, there is nothing else to look at.
pub(super) async fn look(
    cluster: &Cluster,
    found: Result<Found, Trouble>,
    report: &mut Report,
) -> Option<Installation> {
    let check = "the coordinator is installed";
    let mut finding = Finding::new("installed", check);
    let installation = match found {
        Ok(Found::There(installation)) => *installation,
        Ok(Found::Nowhere(namespace)) => {
            let wrong = format!("there is no Deployment {NAME} in namespace {namespace}");
            let mend = "install it, or name its namespace (--namespace)";
            finding.fail(Problem::new(wrong, mend).run(apply("ha")));
            report.tell(finding);
            return None;
        }
        Err(trouble) => {
            let wrong = format!("the Deployment {NAME} cannot be read: {}", trouble.text());
            let mend = "run this as somebody who may read the coordinator's namespace";
            finding.fail(Problem::new(wrong, mend));
            report.tell(finding);
            return None;
        }
    };
    finding.note(format!("{} in namespace {}", installation.image, installation.namespace));
    report.tell(finding);
    report.tell(replicas(&installation));
    report.tell(same_version(&installation));
    report.tell(service(cluster, &installation).await);
    Some(installation)
}

fn replicas(it: &Installation) -> Finding {
    let (wanted, ready) =
        (it.replicas(), it.deployment["status"]["readyReplicas"].as_u64().unwrap_or(0));
    let namespace = &it.namespace;
    let mut finding =
        Finding::new("replicas", "the coordinator's replicas are ready, two at least");
    finding.note(format!("{ready} of {wanted} are ready"));
    if ready == 0 || ready < wanted {
        let wrong = format!("Deployment {NAME} in {namespace}: {ready} of {wanted} replicas ready");
        let problem = Problem::new(wrong, "see what they wait for")
            .run(format!("kubectl -n {namespace} get pods,events"))
            .run(format!("kubectl -n {namespace} logs deployment/{NAME} --tail=20"));
        // With one that is ready, everything works.
        if ready == 0 { finding.fail(problem) } else { finding.warn(problem) }
    } else if wanted < REPLICAS_MIN {
        let wrong = format!("Deployment {NAME} in {namespace}: one replica, and nobody stands by");
        let scale = format!("kubectl -n {namespace} scale deployment/{NAME} --replicas=3");
        finding.warn(Problem::new(wrong, "run more than one").run(scale));
    }
    finding
}

fn same_version(it: &Installation) -> Finding {
    let check = format!("the coordinator and this program, {}, are of one version", version::OWN);
    let mut finding = Finding::new("coordinator-version", check);
    let (theirs, own) = (Version::of_image(&it.image), Version::own());
    let Some((theirs, own)) = theirs.zip(own) else {
        finding.skip(format!("the image {} does not say its version", it.image));
        return finding;
    };
    if theirs == own {
        return finding;
    }
    let wrong = format!(
        "Deployment {NAME} in {} runs {}: what this program expects of its kinds, rights and \
         settings is that of {own}",
        it.namespace, it.image
    );
    let mend = match theirs < own {
        true => "upgrade the coordinator",
        false => "check with the program of that version, or put the coordinator back",
    };
    let problem = Problem::new(wrong, mend).run(it.apply());
    match theirs.understands(own) {
        true => finding.warn(problem),
        false => finding.fail(problem),
    }
    finding
}

/// The Service that agents dial, and who is behind it.
async fn service(cluster: &Cluster, it: &Installation) -> Finding {
    let check = "agents find the coordinator: its Service has endpoints";
    let mut finding = Finding::new("service", check);
    reached_at(&mut finding, cluster, it, "grpc").await;
    finding
}

/// Says how many are behind a port of the Service, and what is wrong where nobody is.
pub(super) async fn reached_at(
    finding: &mut Finding,
    cluster: &Cluster,
    it: &Installation,
    port: &str,
) {
    let Installation { namespace, service, .. } = it;
    match endpoints(cluster, it, port).await {
        Ok(0) => {}
        Ok(ready) => return finding.note(format!("{ready} behind {service}.{namespace}.svc")),
        Err(trouble) => return finding.skip(trouble.text()),
    }
    let folder = format!("/api/v1/namespaces/{namespace}/services");
    match cluster.get(&folder, service).await {
        Ok(there) => finding.fail(nobody(it, port, there.as_ref())),
        Err(trouble) => finding.skip(trouble.text()),
    }
}

/// Why nobody is behind a port of the Service.
fn nobody(it: &Installation, port: &str, there: Option<&Value>) -> Problem {
    let Installation { namespace, service, .. } = it;
    let place = format!("Service {service} in {namespace}");
    let again = "apply the overlay again";
    let Some(there) = there else {
        return Problem::new(format!("there is no {place}"), again).run(it.apply());
    };
    let place = format!("{place}: nobody is behind its port `{port}`");
    let wanted = objects().iter().find(|object| object["kind"] == "Service");
    let wanted = wanted.map_or(&Value::Null, |wanted| &wanted["spec"]["selector"]);
    let is = &there["spec"]["selector"];
    if is != wanted {
        let wrong = format!("{place}: it selects {is}, and not {wanted}");
        let path = "/spec/selector";
        let body = json!([{ "op": "replace", "path": path, "value": wanted }]);
        let object = format!("service/{service} -n {namespace}");
        let mend = "have it select the coordinator";
        return Problem::new(wrong, mend).run(patch(&object, "json", &body));
    }
    if !list(&there["spec"]["ports"]).any(|it| it["name"] == port) {
        return Problem::new(format!("{place}: it has none of that name"), again).run(it.apply());
    }
    let pods = format!("kubectl -n {namespace} get pods -l app.kubernetes.io/name={NAME}");
    Problem::new(format!("{place}: no pod is ready"), "see what they wait for").run(pods)
}

/// How many are ready behind a port of the Service.
async fn endpoints(cluster: &Cluster, it: &Installation, port: &str) -> Result<usize, Trouble> {
    let folder = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", it.namespace);
    let label = format!("kubernetes.io/service-name={}", it.service);
    let slices = cluster.list(&folder, kube::api::ListParams::default().labels(&label)).await?;
    let of_port = slices.iter().filter(|slice| list(&slice["ports"]).any(|it| it["name"] == port));
    let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
    Ok(of_port.flat_map(|slice| list(&slice["endpoints"])).filter(ready).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_that_is_injected_is_of_the_coordinators_version_not_of_its_images_name() {
        let own = format!("leasehold/agent:{}", version::OWN);
        for (image, agent) in [
            ("mirror:5000/leasehold/coordinator:0.9.1", "leasehold/agent:0.9.1"),
            ("leasehold/coordinator:v0.9.1", "leasehold/agent:0.9.1"),
            ("leasehold/coordinator:stable", &own),
            ("leasehold/coordinator", &own),
        ] {
            let installation = Installation { image: image.into(), ..Installation::example() };
            assert_eq!(installation.agent_image(), agent, "{image}");
        }
    }
}
