//! The settings of a sidecar.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Quantity;

/// The settings of one sidecar: the installation's, refined by the WorkerCluster's or
/// WorkerClass's. The pod's own annotations override them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// The agent's image.
    pub image: String,
    /// `HOST:PORT` of the coordinators' Service.
    pub coordinator: String,
    /// The name in the coordinators' certificates.
    pub server_name: String,
    /// The audience of the agent's token.
    pub audience: String,
    /// The ConfigMap with the certificate (`ca.crt`) that agents trust.
    pub authority: String,
    /// The WorkerCluster or WorkerClass of a pod whose label names none.
    pub cluster: Option<String>,
    /// The cluster's drain deadline, where it is known: for warnings.
    pub drain_deadline: Option<Duration>,
    /// Flags of the agent, by their names without `--`, as in `adapter`.
    pub flags: BTreeMap<String, String>,
    /// The resources of the sidecar's container.
    pub resources: Resources,
}

impl Sidecar {
    /// The sidecar of the installation that `deploy/base` makes, without a cluster.
    #[must_use]
    pub fn standard(image: &str) -> Self {
        Self {
            image: image.into(),
            coordinator: "leasehold-coordinator.leasehold-system.svc:7400".into(),
            server_name: "leasehold-coordinator.leasehold-system.svc".into(),
            audience: "leasehold.dev".into(),
            authority: "leasehold-ca".into(),
            cluster: None,
            drain_deadline: None,
            flags: BTreeMap::new(),
            resources: Resources::standard(),
        }
    }
}

/// The resource requests and limits of a container; `None` leaves one out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// `requests.cpu`.
    pub cpu_request: Option<Quantity>,
    /// `limits.cpu`.
    pub cpu_limit: Option<Quantity>,
    /// `requests.memory`.
    pub memory_request: Option<Quantity>,
    /// `limits.memory`.
    pub memory_limit: Option<Quantity>,
}

impl Resources {
    /// What an agent needs with room to spare, and no limit on its CPU: a throttled agent renews
    /// late.
    #[must_use]
    pub fn standard() -> Self {
        let quantity = |text: &str| Some(text.parse().expect("a quantity"));
        Self {
            cpu_request: quantity("10m"),
            cpu_limit: None,
            memory_request: quantity("16Mi"),
            memory_limit: quantity("64Mi"),
        }
    }

    /// Overrides the resources by the given ones. A limit without a request also sets the request,
    /// which could be above the limit otherwise. A request without a limit raises a lower limit.
    pub fn refine(&mut self, given: &Self) {
        let Self { cpu_request, cpu_limit, memory_request, memory_limit } = self;
        for (request, limit, requested, limited) in [
            (cpu_request, cpu_limit, &given.cpu_request, &given.cpu_limit),
            (memory_request, memory_limit, &given.memory_request, &given.memory_limit),
        ] {
            match (requested, limited) {
                (None, None) => {}
                (_, Some(_)) => (*request, *limit) = (requested.clone(), limited.clone()),
                (Some(wanted), None) => {
                    if limit.as_ref().is_some_and(|limit| wanted.is_above(limit)) {
                        limit.clone_from(requested);
                    }
                    request.clone_from(requested);
                }
            }
        }
    }

    /// Those that are set, with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &Quantity)> {
        let all = [
            ("the agent's cpu-request", &self.cpu_request),
            ("the agent's cpu-limit", &self.cpu_limit),
            ("the agent's memory-request", &self.memory_request),
            ("the agent's memory-limit", &self.memory_limit),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }
}
