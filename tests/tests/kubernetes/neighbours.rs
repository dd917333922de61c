//! Leasehold beside its neighbours on a cluster, the real ones: KEDA and a HorizontalPodAutoscaler
//! scale a class, cert-manager makes the certificates, the descheduler evicts workers, and a
//! Prometheus finds what it scrapes.

#[path = "neighbours/cert_manager.rs"]
mod cert_manager;
#[path = "neighbours/descheduler.rs"]
mod descheduler;
#[path = "neighbours/monitors.rs"]
mod monitors;
#[path = "neighbours/scaling.rs"]
mod scaling;
#[path = "neighbours/scrape_configs.rs"]
mod scrape_configs;
