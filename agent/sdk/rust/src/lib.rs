//! Leases for workers: how many jobs may run, which streams this worker owns, and which shares of
//! pipelines it serves.
//!
//! ```no_run
//! # async fn build(_: &str) {}
//! # async fn consume(_: leasehold::Stream) {}
//! # async fn serve(_: leasehold::Binding) {}
//! # async fn example() -> Result<(), leasehold::Error> {
//! let worker = leasehold::Worker::connect().await?;
//! let job = worker.job("build-42").await?; // waits for a slot
//! build(job.id()).await;
//! drop(job); // ended: the agent is notified until it confirms
//!
//! worker.run_streams(consume).await; // a task for each, until the worker drains
//! worker.run_bindings(serve).await; // the same for shares of pipelines
//! # Ok(())
//! # }
//! ```
//!
//! Invariants, however often the agent restarts: a job runs only after the agent has admitted it;
//! ends and releases are repeated until the agent confirms them; a stream or binding is handed out
//! once under a token, and it is lost, by this process's own clock, before its lease ends.

mod address;
mod clock;
mod error;
mod fence;
mod job;
mod lease;
mod link;
mod owned;
mod route;
mod session;
mod state;
mod worker;

pub use error::Error;
pub use fence::{FENCE_TABLE, StaleToken};
pub use job::Job;
pub use lease::{Binding, Bindings, Lease, Owning, Stream, Streams};
pub use leasehold_types::Token;
pub use route::{Endpoint, Next};
pub use worker::{Options, Worker};
