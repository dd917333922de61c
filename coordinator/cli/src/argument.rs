//! The readers of arguments that are names, addresses or paths. Every command uses these, so that
//! each refuses an empty or invalid one in the same words.

use std::net::SocketAddr;
use std::str::FromStr;

use leasehold_types::{
    ClusterName, PipelineName, SetName, WorkerName, flag, is_host_and_port, why_undialable,
};

/// A cluster's name.
pub(crate) fn cluster(text: &str) -> Result<String, String> {
    flag::name::<ClusterName>("a cluster's name, for example builds")(text)
}

/// A worker's name, without its cluster.
pub(crate) fn worker(text: &str) -> Result<String, String> {
    flag::name::<WorkerName>("a worker's name, for example worker-1")(text)
}

/// A stream set's name.
pub(crate) fn set(text: &str) -> Result<String, String> {
    flag::name::<SetName>("a stream set's name, for example cars")(text)
}

/// A pipeline's name.
pub(crate) fn pipeline(text: &str) -> Result<String, String> {
    flag::name::<PipelineName>("a pipeline's name, for example third")(text)
}

/// A stream's name, which may follow that of its set and a slash.
pub(crate) fn stream(text: &str) -> Result<String, String> {
    flag::text("a stream's name, for example cars:new")(text)
}

/// The name of a namespace of Kubernetes.
pub(crate) fn namespace(text: &str) -> Result<String, String> {
    flag::text("a namespace, for example leasehold-system")(text)
}

/// A context of a kubeconfig.
pub(crate) fn context(text: &str) -> Result<String, String> {
    flag::text("a context, as `kubectl config get-contexts` lists them")(text)
}

/// The audience of a token.
pub(crate) fn audience(text: &str) -> Result<String, String> {
    flag::text("an audience, for example leasehold.dev")(text)
}

/// The name in a certificate.
pub(crate) fn server_name(text: &str) -> Result<String, String> {
    flag::text("the name in the certificate, for example leasehold-coordinator")(text)
}

/// A container's image.
pub(crate) fn image(text: &str) -> Result<String, String> {
    flag::text("an image, for example registry/agent:1.0")(text)
}

/// A column of a table.
pub(crate) fn column(text: &str) -> Result<String, String> {
    flag::text("a column's title, for example worker")(text)
}

/// A source of manifests.
pub(crate) fn source(text: &str) -> Result<String, String> {
    flag::text("a file, a folder, or - for stdin")(text)
}

/// An address of this host that no other can reach, and a port.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().ok();
    address.filter(|address| address.ip().is_loopback()).ok_or_else(|| {
        "expected a loopback address and a port, for example 127.0.0.1:7480: everybody who \
         reaches the port sees what you may see"
            .to_owned()
    })
}

/// The address of a coordinator.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    if is_host_and_port(text) {
        return Ok(text.to_owned());
    }
    Err("expected HOST:PORT, for example 127.0.0.1:7400".to_owned())
}

/// The address that agents in other pods and on other hosts dial.
pub(crate) fn service_address(text: &str) -> Result<String, String> {
    let address = host_and_port(text)?;
    match why_undialable(&address) {
        Some(why) => Err(format!(
            "injected agents cannot dial this address: {why}; give the HOST:PORT of the \
             coordinators' Service, for example leasehold-coordinator.leasehold-system.svc:7400"
        )),
        None => Ok(address),
    }
}

/// A worker as people name it: NAME, or CLUSTER/NAME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerPath {
    /// Its cluster, if that is given.
    pub(crate) cluster: Option<String>,
    /// Its name there.
    pub(crate) name: String,
}

impl FromStr for WorkerPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A cluster's name may have a namespace, and so a slash of its own.
        let (cluster, name) = match text.rsplit_once('/') {
            Some((of, name)) => (Some(cluster(of)?), name),
            None => (None, text),
        };
        Ok(Self { cluster, name: worker(name)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_may_follow_its_cluster() {
        for (text, of, name) in [
            ("worker-1", None, "worker-1"),
            ("builds/worker-1", Some("builds"), "worker-1"),
            ("ci/builds/worker-1", Some("ci/builds"), "worker-1"),
        ] {
            let (cluster, name) = (of.map(str::to_owned), name.to_owned());
            assert_eq!(text.parse(), Ok(WorkerPath { cluster, name }), "{text}");
        }
        for (wrong, why) in [
            ("", "expected a worker's name"),
            ("builds/", "expected a worker's name"),
            ("/worker-1", "expected a cluster's name"),
            ("a b", "worker name \"a b\" is not a DNS subdomain"),
        ] {
            let said = wrong.parse::<WorkerPath>().expect_err(wrong);
            assert!(said.starts_with(why), "{wrong}: {said}");
        }
    }

    #[test]
    fn nobody_in_another_pod_dials_every_address_of_a_machine() {
        assert!(service_address("leasehold-coordinator.leasehold-system.svc:7400").is_ok());
        for address in ["0.0.0.0:7400", "[::]:7400", "7400:7400"] {
            let why = service_address(address).expect_err(address);
            assert!(
                why.starts_with("injected agents cannot dial this address: "),
                "{address}: {why}"
            );
            assert!(why.contains("the coordinators' Service"), "{address}: {why}");
        }
    }
}
