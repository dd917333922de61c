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
//! drop(job); // ended: the agent is told until it answers
//!
//! worker.run_streams(consume).await; // a task each, until the worker drains
//! worker.run_bindings(serve).await; // the same for shares of pipelines
//! # Ok(())
//! # }
//! ```
//!
//! What holds however often the agent restarts: a job runs only after a yes, an end and a release
//! are told until they are answered, a stream or binding is handed out once a token, and it is
//! lost, by this process's own clock, before its lease ends.

mod address;
mod binding;
mod clock;
mod error;
mod job;
mod keeper;
mod lease;
mod link;
mod route;
mod state;
mod stream;
mod worker;

pub use binding::Binding;
pub use error::Error;
pub use job::Job;
pub use lease::{Bindings, Lease, Owning, Streams};
pub use leasehold_types::Token;
pub use route::{Endpoint, Next};
pub use stream::Stream;
pub use worker::{Options, Worker};
