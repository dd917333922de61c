//! A real Kubernetes for tests: its control plane on this machine, nodes that play their pods, and
//! a real node. Nothing in here stands in for the API server, its controllers or the scheduler.

mod access;
mod binaries;
mod bridge;
mod cluster;
mod control_plane;
mod fleet;
mod fleet_fixture;
mod guard;
mod hollow_node;
mod kubeconfig;
mod machine;
mod namespace;
mod neighbours;
mod node;
mod objects;
mod pki;
mod pod_status;
mod pods;
mod real_cluster;
mod real_installation;
mod record;
mod replicas;
mod rollout_scenario;
mod wait;

pub use access::{Access, TokenFor};
pub(crate) use binaries::find as find_binary;
pub use cluster::{Cluster, EXISTING_VARIABLE};
pub use control_plane::{Component, ControlPlane, WEBHOOK_CLIENT};
pub(crate) use control_plane::{etcd_command, local};
pub use fleet::{CoordinatorEndpoints, Fleet, Work};
pub use fleet_fixture::{FleetFixture, Lease};
pub use hollow_node::HollowNode;
pub use namespace::Namespace;
pub use neighbours::{CertManager, Descheduler, ExternalMetrics};
pub use node::{Node, PAUSE_IMAGE};
pub use objects::{Objects, feeds, list, name, names, object};
pub use pods::{NoProcesses, Runner, SimulatedPod};
pub use real_cluster::RealCluster;
pub use real_installation::{RealInstallation, TestNamespace, WORKER_IMAGE, container};
pub use record::{Record, Version};
pub use replicas::{AUDIENCE, Operator, Replicas};
pub use rollout_scenario::{Disruption, JOBS_AFTER, JOBS_BEFORE, RolloutScenario, WorkloadKind};
pub use wait::{POLL, until, until_answer};
