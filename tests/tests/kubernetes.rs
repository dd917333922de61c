//! Ring 4: a real Kubernetes. The tests of this binary share one control plane and take namespaces
//! and nodes of their own in it.

#[path = "kubernetes/access.rs"]
mod access;
#[path = "kubernetes/api_server_outage.rs"]
mod api_server_outage;
#[path = "kubernetes/authority.rs"]
mod authority;
#[path = "kubernetes/check.rs"]
mod check;
#[path = "kubernetes/classes.rs"]
mod classes;
#[path = "kubernetes/cordons.rs"]
mod cordons;
#[path = "kubernetes/crds.rs"]
mod crds;
#[path = "kubernetes/deploy.rs"]
mod deploy;
#[path = "kubernetes/desired_state.rs"]
mod desired_state;
#[path = "kubernetes/election.rs"]
mod election;
#[path = "kubernetes/evictions.rs"]
mod evictions;
#[path = "kubernetes/forged_token.rs"]
mod forged_token;
#[path = "kubernetes/half_open.rs"]
mod half_open;
#[path = "kubernetes/harness.rs"]
mod harness;
#[path = "kubernetes/injection.rs"]
mod injection;
#[path = "kubernetes/installed.rs"]
mod installed;
#[path = "kubernetes/leaders.rs"]
mod leaders;
#[path = "kubernetes/life.rs"]
mod life;
#[path = "kubernetes/lossy_proxy.rs"]
mod lossy_proxy;
#[path = "kubernetes/neighbours.rs"]
mod neighbours;
#[path = "kubernetes/operator.rs"]
mod operator;
#[path = "kubernetes/others.rs"]
mod others;
#[path = "kubernetes/pipelines.rs"]
mod pipelines;
#[path = "kubernetes/readme.rs"]
mod readme;
#[path = "kubernetes/real_node.rs"]
mod real_node;
#[path = "kubernetes/removed.rs"]
mod removed;
#[path = "kubernetes/rollout.rs"]
mod rollout;
#[path = "kubernetes/runbooks.rs"]
mod runbooks;
#[path = "kubernetes/scaler.rs"]
mod scaler;
#[path = "kubernetes/status.rs"]
mod status;
#[path = "kubernetes/stored_objects.rs"]
mod stored_objects;
#[path = "kubernetes/stream_lists.rs"]
mod stream_lists;
#[path = "kubernetes/swarm.rs"]
mod swarm;
#[path = "kubernetes/tenants.rs"]
mod tenants;
#[path = "kubernetes/token_flood.rs"]
mod token_flood;
#[path = "kubernetes/unreadable.rs"]
mod unreadable;
#[path = "kubernetes/upgrade.rs"]
mod upgrade;
#[path = "kubernetes/validation.rs"]
mod validation;
#[path = "kubernetes/watch_rights.rs"]
mod watch_rights;
