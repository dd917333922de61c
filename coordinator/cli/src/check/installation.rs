//! The installation: the coordinator's Deployment, which says how it is configured, its replicas,
//! its version and its Service.

use std::collections::BTreeMap;
use std::fmt;

use leasehold_kube_api::names;
use leasehold_types::counted;
use serde_json::{Value, json};

use super::api::{ApiClient, ApiError};
use super::expected::{list, objects, text};
use super::report::{Finding, Problem, Report, patch};
use crate::port_forward::AGENT_PORT;

/// The name of the Deployment, the Service and the service account.
const NAME: &str = "leasehold-coordinator";
/// The port of a pod for health and metrics, unless the Deployment names another.
const HTTP_PORT: u16 = 7401;
/// With fewer replicas there is no standby.
const REPLICAS_MIN: u64 = 2;

/// An installation, as its Deployment configures it.
#[derive(Clone, Debug)]
pub(super) struct Installation {
    /// The coordinator's namespace.
    pub(super) namespace: String,
    /// The Service that agents dial.
    pub(super) service: String,
    /// The coordinator's service account.
    pub(super) account: String,
    /// The served namespaces; all if it is empty.
    pub(super) served: Vec<String>,
    /// The coordinator's image.
    pub(super) image: String,
    /// The Secret of a certificate from elsewhere; `None` if the coordinator issues its own.
    pub(super) external_secret: Option<String>,
    /// The coordinator's environment variables.
    environment: BTreeMap<String, String>,
    deployment: Value,
}

impl Installation {
    /// The installation in a namespace, if it has a Deployment.
    pub(super) async fn find(api: &ApiClient, namespace: &str) -> Result<Found, ApiError> {
        let folder = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        let deployment = api.get(&folder, NAME).await?;
        Ok(match deployment {
            Some(deployment) => Found::Installed(Box::new(Self::of(namespace, deployment))),
            None => Found::Missing(namespace.to_owned()),
        })
    }

    /// The installation that `deploy/` makes.
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
        let variable = |variable: &Value| {
            (text(&variable["name"]).to_owned(), text(&variable["value"]).to_owned())
        };
        let environment: BTreeMap<_, _> = list(&container["env"]).map(variable).collect();
        let set = |name: &str| environment.get(name).filter(|value| !value.is_empty());
        let served = set("LEASEHOLD_WATCH_NAMESPACE").map(String::as_str).unwrap_or_default();
        let served = served.split(',').map(str::trim).filter(|name| !name.is_empty());
        let external_secret =
            set("LEASEHOLD_TLS_CERT").and_then(|file| mounted(pod, container, file));
        let account = text(&pod["serviceAccountName"]);
        Self {
            namespace: namespace.to_owned(),
            service: set("LEASEHOLD_SERVICE").cloned().unwrap_or_else(|| NAME.to_owned()),
            account: if account.is_empty() { "default" } else { account }.to_owned(),
            served: served.map(str::to_owned).collect(),
            image: text(&container["image"]).to_owned(),
            external_secret,
            environment: environment.clone(),
            deployment,
        }
    }

    /// The image that is injected unless a cluster or a pod sets another.
    pub(super) fn agent_image(&self) -> String {
        match self.environment.get("LEASEHOLD_AGENT_IMAGE") {
            Some(image) => image.clone(),
            None => {
                // The coordinator injects the agent of its own version, wherever its image is from.
                let own = Version::of_image(&self.image).and_then(|_| tag(&self.image));
                let own = own.map(|tag| tag.strip_prefix('v').unwrap_or(tag));
                format!("{}/agent:{}", names::IMAGES, own.unwrap_or(OWN_VERSION))
            }
        }
    }

    /// The coordinator's port as agents dial it.
    pub(super) fn agent_port(&self) -> u16 {
        self.port("LEASEHOLD_AGENT_COORDINATOR", AGENT_PORT)
    }

    /// The port of a replica's pod that serves its health, over HTTP.
    pub(super) fn http_port(&self) -> u16 {
        self.port("LEASEHOLD_HTTP_LISTEN", HTTP_PORT)
    }

    /// The labels of the replicas' pods.
    pub(super) fn pod_labels(&self) -> &Value {
        &self.deployment["spec"]["template"]["metadata"]["labels"]
    }

    /// The port of a replica's pod with its metrics, as the Deployment declares it; `None` if the
    /// Deployment does not.
    pub(super) fn metrics_port(&self) -> Option<&Value> {
        let containers = list(&self.deployment["spec"]["template"]["spec"]["containers"]);
        let mut ports = containers.flat_map(|container| list(&container["ports"]));
        ports.find(|port| port["containerPort"] == self.http_port())
    }

    /// The port in the address that a variable holds.
    fn port(&self, variable: &str, default: u16) -> u16 {
        let address = self.environment.get(variable);
        let port = address.and_then(|address| address.rsplit_once(':')?.1.parse().ok());
        port.unwrap_or(default)
    }

    /// The command that applies this program's version of its overlay.
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

/// The command that installs the definitions of kinds.
pub(super) const APPLY_KINDS: &str = "kubectl apply -k deploy/crds";

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

/// The result of [`Installation::find`].
#[derive(Clone, Debug)]
pub(super) enum Found {
    Installed(Box<Installation>),
    /// This namespace has no installation.
    Missing(String),
}

/// Checks the installation; without one nothing else can be checked.
pub(super) async fn look(
    api: &ApiClient,
    found: Result<Found, ApiError>,
    report: &mut Report,
) -> Option<Installation> {
    let check = "the coordinator is installed";
    let mut finding = Finding::new("installed", check);
    let installation = match found {
        Ok(Found::Installed(installation)) => *installation,
        Ok(Found::Missing(namespace)) => {
            let wrong = format!("there is no Deployment {NAME} in namespace {namespace}");
            let fix = "install it, or pass its namespace (--namespace)";
            finding.fail(Problem::new(wrong, fix).run(APPLY_KINDS).run(apply("ha")));
            report.add(finding);
            return None;
        }
        Err(error) => {
            let wrong = format!("cannot read the Deployment {NAME}: {}", error.text());
            let fix = "run this as a user who may read the coordinator's namespace";
            finding.fail(Problem::new(wrong, fix));
            report.add(finding);
            return None;
        }
    };
    finding.note(format!("{} in namespace {}", installation.image, installation.namespace));
    report.add(finding);
    report.add(replicas(&installation));
    report.add(same_version(&installation));
    report.add(service(api, &installation).await);
    Some(installation)
}

fn replicas(installation: &Installation) -> Finding {
    let (wanted, ready) = (
        installation.replicas(),
        installation.deployment["status"]["readyReplicas"].as_u64().unwrap_or(0),
    );
    let namespace = &installation.namespace;
    let mut finding =
        Finding::new("replicas", "the coordinator has at least two replicas, all ready");
    finding.note(format!("{ready} of {wanted} are ready"));
    if ready == 0 || ready < wanted {
        let wrong =
            format!("Deployment {NAME} in {namespace}: {ready} of {wanted} replicas are ready");
        let problem = Problem::new(wrong, "see what they wait for")
            .run(format!("kubectl -n {namespace} get pods,events"))
            .run(format!("kubectl -n {namespace} logs deployment/{NAME} --tail=20"));
        // One ready replica is enough to work.
        if ready == 0 { finding.fail(problem) } else { finding.warn(problem) }
    } else if wanted < REPLICAS_MIN {
        let wrong = format!("Deployment {NAME} in {namespace}: one replica, without a standby");
        let scale = format!("kubectl -n {namespace} scale deployment/{NAME} --replicas=3");
        finding.warn(Problem::new(wrong, "run at least two").run(scale));
    }
    finding
}

fn same_version(installation: &Installation) -> Finding {
    let check = format!("the coordinator has the version of this program, {}", OWN_VERSION);
    let mut finding = Finding::new("coordinator-version", check);
    let (theirs, own) = (Version::of_image(&installation.image), Version::own());
    let Some((theirs, own)) = theirs.zip(own) else {
        finding.skip(format!("the tag of the image {} is not a version", installation.image));
        return finding;
    };
    if theirs == own {
        return finding;
    }
    let wrong = format!(
        "Deployment {NAME} in {} runs {}; this program checks kinds, rights and settings of \
         version {own}",
        installation.namespace, installation.image
    );
    let fix = if theirs < own {
        "upgrade the coordinator"
    } else {
        "use the program of that version, or downgrade the coordinator"
    };
    let problem = Problem::new(wrong, fix).run(installation.apply());
    if theirs.is_compatible(own) {
        finding.warn(problem);
    } else {
        finding.fail(problem);
    }
    finding
}

/// The Service that agents dial has endpoints.
async fn service(api: &ApiClient, installation: &Installation) -> Finding {
    let check = "the coordinator's Service has endpoints for agents";
    let mut finding = Finding::new("service", check);
    check_endpoints(&mut finding, api, installation, "grpc").await;
    finding
}

/// Adds the number of endpoints of a Service's port, or the problem that there are none.
pub(super) async fn check_endpoints(
    finding: &mut Finding,
    api: &ApiClient,
    installation: &Installation,
    port: &str,
) {
    let Installation { namespace, service, .. } = installation;
    match endpoints(api, installation, port).await {
        Ok(0) => {}
        Ok(ready) => {
            return finding
                .note(format!("{} of {service}.{namespace}.svc", counted(ready, "endpoint")));
        }
        Err(error) => return finding.skip(error.text()),
    }
    let folder = format!("/api/v1/namespaces/{namespace}/services");
    match api.get(&folder, service).await {
        Ok(there) => finding.fail(no_endpoints(installation, port, there.as_ref())),
        Err(error) => finding.skip(error.text()),
    }
}

/// Why a port of the Service has no endpoints.
fn no_endpoints(installation: &Installation, port: &str, there: Option<&Value>) -> Problem {
    let Installation { namespace, service, .. } = installation;
    let place = format!("Service {service} in {namespace}");
    let again = "apply the overlay again";
    let Some(there) = there else {
        return Problem::new(format!("there is no {place}"), again).run(installation.apply());
    };
    let place = format!("{place}: its port `{port}` has no endpoints");
    let wanted = objects().iter().find(|object| object["kind"] == "Service");
    let wanted = wanted.map_or(&Value::Null, |wanted| &wanted["spec"]["selector"]);
    let is = &there["spec"]["selector"];
    if is != wanted {
        let wrong = format!("{place}: its selector is {is} instead of {wanted}");
        let path = "/spec/selector";
        let body = json!([{ "op": "replace", "path": path, "value": wanted }]);
        let object = format!("service/{service} -n {namespace}");
        let fix = "restore the selector";
        return Problem::new(wrong, fix).run(patch(&object, "json", &body));
    }
    if !list(&there["spec"]["ports"]).any(|declared| declared["name"] == port) {
        return Problem::new(format!("{place}: it has no port of that name"), again)
            .run(installation.apply());
    }
    let pods = format!("kubectl -n {namespace} get pods -l app.kubernetes.io/name={NAME}");
    Problem::new(format!("{place}: no pod is ready"), "see what they wait for").run(pods)
}

/// The number of ready endpoints of a Service's port.
async fn endpoints(
    api: &ApiClient,
    installation: &Installation,
    port: &str,
) -> Result<usize, ApiError> {
    let folder =
        format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", installation.namespace);
    let label = format!("kubernetes.io/service-name={}", installation.service);
    let slices = api.list(&folder, kube::api::ListParams::default().labels(&label)).await?;
    let of_port =
        slices.iter().filter(|slice| list(&slice["ports"]).any(|listed| listed["name"] == port));
    let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
    Ok(of_port.flat_map(|slice| list(&slice["endpoints"])).filter(ready).count())
}

/// This program's version, which is that of the coordinator and agent built with it.
pub(super) const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// How many minor versions two programs may be apart, whichever is the newer one.
const MINORS_APART_MAX: u64 = 2;

/// A version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u64, u64, u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl Version {
    /// This program's.
    pub(super) fn own() -> Option<Self> {
        Self::parse(OWN_VERSION)
    }

    /// The version in an image's tag; `None` if the tag is not a version, or is missing.
    pub(super) fn of_image(image: &str) -> Option<Self> {
        Self::parse(tag(image)?)
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once(['-', '+']).map_or(text, |(version, _)| version);
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version = Self(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// Whether both work together (`docs/VERSIONS.md`).
    pub(super) fn is_compatible(self, other: Self) -> bool {
        self.0 == other.0 && self.1.abs_diff(other.1) <= MINORS_APART_MAX
    }
}

/// The tag of an image, if it has one.
fn tag(image: &str) -> Option<&str> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    last.split_once(':').map(|(_, tag)| tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expects_the_agent_image_of_the_coordinator_version() {
        let own = names::AGENT_IMAGE.as_str();
        for (image, agent) in [
            ("mirror:5000/leasehold/coordinator:0.9.1", "registry.invalid/leasehold/agent:0.9.1"),
            (
                "registry.invalid/leasehold/coordinator:v0.9.1",
                "registry.invalid/leasehold/agent:0.9.1",
            ),
            ("registry.invalid/leasehold/coordinator:stable", own),
            ("registry.invalid/leasehold/coordinator", own),
        ] {
            let installation = Installation { image: image.into(), ..Installation::example() };
            assert_eq!(installation.agent_image(), agent, "{image}");
        }
    }

    #[test]
    fn ports_are_those_of_the_deployment_or_of_the_manifests() {
        let mut installation = Installation::example();
        assert_eq!((installation.agent_port(), installation.http_port()), (7400, 7401));
        installation.environment = BTreeMap::from([
            ("LEASEHOLD_AGENT_COORDINATOR".to_owned(), "front.ci.svc:9000".to_owned()),
            ("LEASEHOLD_HTTP_LISTEN".to_owned(), "[::]:9001".to_owned()),
        ]);
        assert_eq!((installation.agent_port(), installation.http_port()), (9000, 9001));
        installation.environment.clear();
        assert_eq!((installation.agent_port(), installation.http_port()), (7400, 7401));
    }

    #[test]
    fn reads_versions_only_from_tags() {
        for (image, wanted) in [
            ("registry.invalid/leasehold/agent:0.1.0", Some((0, 1, 0))),
            ("mirror:5000/leasehold/agent:v1.20.3", Some((1, 20, 3))),
            ("mirror:5000/leasehold/agent", None),
            ("agent:1.2.3-rc.1@sha256:00", Some((1, 2, 3))),
            ("agent@sha256:00", None),
            ("agent:latest", None),
            ("agent:1.2", None),
            ("agent:1.2.3.4", None),
        ] {
            let wanted = wanted.map(|(major, minor, patch)| Version(major, minor, patch));
            assert_eq!(Version::of_image(image), wanted, "{image}");
        }
    }

    #[test]
    fn versions_of_one_major_and_two_minors_apart_are_compatible() {
        let own = Version(0, 3, 1);
        for (other, wanted) in [
            (Version(0, 3, 9), true),
            (Version(0, 1, 0), true),
            (Version(0, 5, 0), true),
            (Version(0, 0, 9), false),
            (Version(0, 6, 0), false),
            (Version(1, 3, 1), false),
        ] {
            assert_eq!(own.is_compatible(other), wanted, "{other}");
        }
        assert!(Version::own().is_some());
    }
}
