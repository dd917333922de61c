//! The settings of a sidecar.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use leasehold_types::{Quantity, WorkerName};

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
    /// The user and group of the sidecar's container.
    pub user: AgentUser,
    /// The Secrets, in the pod's namespace, that the agent's image is pulled with.
    pub pull_secrets: Vec<String>,
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
            user: AgentUser::STANDARD,
            pull_secrets: Vec::new(),
        }
    }
}

/// The user and group that an agent runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentUser {
    /// These ids.
    Ids {
        /// `runAsUser`.
        user: u32,
        /// `runAsGroup`.
        group: u32,
    },
    /// Neither is set: the pod, the cluster or the image decides.
    Unset,
}

impl AgentUser {
    /// That of the agent's image, set so that the pod's own user does not count.
    pub const STANDARD: Self = Self::Ids { user: 65532, group: 65532 };
}

impl FromStr for AgentUser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        /// The highest id that the API server takes.
        const ID_MAX: u32 = i32::MAX.unsigned_abs();
        if text == "none" {
            return Ok(Self::Unset);
        }
        let (user, group) = text.split_once(':').unwrap_or((text, text));
        let id = |text: &str| text.parse().ok().filter(|id: &u32| *id <= ID_MAX);
        match (id(user), id(group)) {
            (Some(0), Some(_)) => {
                Err(format!("invalid user {text:?}: an agent never runs as root, use another id"))
            }
            (Some(user), Some(group)) => Ok(Self::Ids { user, group }),
            _ => Err(format!("invalid user {text:?}: use UID, UID:GID, or none for no fixed ids")),
        }
    }
}

/// The names of Secrets, separated by commas.
///
/// # Errors
/// If one is no name of a Secret, or there are too many.
pub fn pull_secrets(text: &str) -> Result<Vec<String>, String> {
    /// Secrets that one agent's image may be pulled with.
    const SECRETS_MAX: usize = 8;
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if let Some(name) = names.iter().find(|name| WorkerName::present_name(name).is_err()) {
        return Err(format!("invalid name of a Secret {name:?}: use names, separated by commas"));
    }
    if names.len() <= SECRETS_MAX {
        Ok(names)
    } else {
        Err(format!("{} Secrets are too many: use at most {SECRETS_MAX}", names.len()))
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
    /// `requests.ephemeral-storage`.
    pub ephemeral_storage_request: Option<Quantity>,
    /// `limits.ephemeral-storage`.
    pub ephemeral_storage_limit: Option<Quantity>,
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
            ephemeral_storage_request: None,
            ephemeral_storage_limit: None,
        }
    }

    /// Overrides the resources by the given ones. A limit without a request also sets the request,
    /// which could be above the limit otherwise. A request without a limit raises a lower limit.
    pub fn refine(&mut self, given: &Self) {
        let Self {
            cpu_request,
            cpu_limit,
            memory_request,
            memory_limit,
            ephemeral_storage_request: storage_request,
            ephemeral_storage_limit: storage_limit,
        } = self;
        let (requested, limited) =
            (&given.ephemeral_storage_request, &given.ephemeral_storage_limit);
        for (request, limit, requested, limited) in [
            (cpu_request, cpu_limit, &given.cpu_request, &given.cpu_limit),
            (memory_request, memory_limit, &given.memory_request, &given.memory_limit),
            (storage_request, storage_limit, requested, limited),
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

    /// Limits what nobody has set to what is asked for, as a pod of the class `Guaranteed` needs
    /// it: with enough CPU that the limit does not delay renewals.
    pub(crate) fn guarantee(&mut self) {
        const CPU: &str = "100m";
        let standard = Self::standard();
        if (&self.cpu_request, &self.cpu_limit) == (&standard.cpu_request, &standard.cpu_limit) {
            self.cpu_request = Some(CPU.parse().expect("a quantity"));
            self.cpu_limit.clone_from(&self.cpu_request);
        }
        if (&self.memory_request, &self.memory_limit)
            == (&standard.memory_request, &standard.memory_limit)
        {
            self.memory_request.clone_from(&self.memory_limit);
        }
    }

    /// Those that are set, with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &Quantity)> {
        let all = [
            ("the agent's cpu-request", &self.cpu_request),
            ("the agent's cpu-limit", &self.cpu_limit),
            ("the agent's memory-request", &self.memory_request),
            ("the agent's memory-limit", &self.memory_limit),
            ("the agent's ephemeral-storage-request", &self.ephemeral_storage_request),
            ("the agent's ephemeral-storage-limit", &self.ephemeral_storage_limit),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    }
}
