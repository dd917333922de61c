//! Ring 4: a real Kubernetes. The tests of this binary share one control plane and take namespaces
//! and nodes of their own in it.

#[path = "kubernetes/crds.rs"]
mod crds;
#[path = "kubernetes/harness.rs"]
mod harness;
