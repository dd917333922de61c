//! Leasehold beside its neighbours on a cluster, the real ones: KEDA and a HorizontalPodAutoscaler
//! scale a class, cert-manager makes the certificates, and the descheduler evicts workers.

#[path = "neighbours/cert_manager.rs"]
mod cert_manager;
#[path = "neighbours/descheduler.rs"]
mod descheduler;
#[path = "neighbours/scaling.rs"]
mod scaling;
