//! What tests of the whole are built from: the demo, real processes, and the tools that the
//! project installs for them.

pub mod agent_cost;
pub mod agents;
pub mod answers;
pub mod bench;
pub mod browser;
pub mod certificates;
pub mod chaos;
pub mod command_line;
pub mod etcd;
pub mod http;
pub mod keda;
pub mod kube;
pub mod machine;
pub mod memory_limit;
pub mod modules;
pub mod otel_collector;
pub mod postgresql;
pub mod process;
pub mod prometheus;
pub mod raw_http2;
pub mod reader;
pub mod readme;
pub mod report;
pub mod runbooks;
pub mod session;
pub mod slow_disk;
pub mod stream_fleet;
pub mod toolbox;
pub mod tracked_files;
