//! The coordinator's ports: gRPC for agents, people and autoscalers, HTTP for probes and metrics,
//! and their TLS certificates.

pub mod admin;
pub mod cluster_history;
mod connections;
pub mod file_shares;
pub mod grpc;
pub mod http;
pub mod https;
pub mod job_history;
pub mod other_cells;
mod request_places;
pub mod scaler;
mod shared_look;
pub mod tls;
mod web;
