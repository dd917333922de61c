//! Agents without workers, all of them in this process, for benchmarks: each is the agent's real
//! core with a gRPC connection of its own.

mod agent;
mod fleet_record;
mod link;
mod standalone_replicas;

pub use self::agent::{Agent, AgentIdentity, Coordinators};
pub use self::fleet_record::{Counts, FleetRecord};
pub(crate) use self::link::{endpoint, own_address, plain_endpoint};
pub use self::standalone_replicas::{CLUSTER, JOBS_PER_WORKER, StandaloneReplicas, Turns};
