//! The agent's pure core: the [`Holder`] of one worker's leases. It decides which leases are held
//! and until when, whether a job may start, what is written to the journal before it takes effect,
//! and what is sent to the coordinator. It has no IO, clock or randomness: time comes in as a
//! [`Moment`](leasehold_types::Moment), and records go out through the trait [`Journal`].
//!
//! # The event loop
//!
//! A driver owns one [`Holder`], passes it one event at a time, and after each event carries out
//! the effects:
//!
//! 1. An event: [`Holder::handle_open`], [`Holder::handle_message`], [`Holder::handle_closed`] and
//!    [`Holder::handle_successor`] for the link, or a request of the worker, for example
//!    [`Holder::begin_job`], [`Holder::end_job`], [`Holder::release_stream`] or [`Holder::drain`].
//! 2. [`Holder::handle_wake`] if [`Holder::poll_timeout`] has passed. The driver also does this
//!    before an event, so that no answer rests on a lease that has expired.
//! 3. [`Holder::poll_effect`] until it returns `None`. The driver carries out each [`Effect`] in
//!    this order.
//! 4. The driver waits for the next event, until [`Holder::poll_timeout`] at the latest.
//!
//! A new holder continues from [`Memory`], the content of its journal, and its first effects
//! include [`Effect::Dial`]. There is no separate step that settles: an event's effects are queued
//! when its call returns. `agent/src/driver.rs` runs this loop in the program, and
//! `tests/simulator` runs it in a simulated world.
//!
//! # The states of an agent
//!
//! The link, of which there is one at a time:
//!
//! ```text
//!   dialling ──handle_open──▶ greeting ──Welcome──▶ reported ──snapshot──▶ live
//!      ▲        sends Hello              sends Report                       │ sends Beats,
//!      └────────────────────────────────────────────────────────────────────┘ applies Grants
//!        handle_closed, handle_successor, a refusal, a violation of the protocol, or a live link
//!        without a message for a ttl: a new link with a higher number
//!
//!   stopped: the agent has left, and a restarted worker starts it again
//!   superseded: a newer agent serves the worker; final
//! ```
//!
//! The drain: working, draining, leaving, left. A lost link changes no lease: each ends by its own
//! time, and the worker uses it until then.
//!
//! # The parts
//!
//! Each item names a module, its subject and its invariant.
//!
//! * [`holder`]: the held leases and jobs. Invariant: a lease is used only after it is in the
//!   journal, and no longer once another worker may be granted it.
//! * `holder::link`: the handshake, reports and beats. Invariant: one link is in use; messages of
//!   an earlier one are ignored.
//! * `holder::grants`: the changes of leases. Invariant: grants are applied without a gap in their
//!   numbers.
//! * `holder::worker`: the worker's requests and reports. Invariant: a job is admitted only while
//!   fewer run than the pool size in effect.
//! * `holder::show`: what the worker has been shown. Invariant: it is in the journal before the
//!   worker sees the first stream.
//! * `holder::drain`: the drain. Invariant: the report of leaving is sent only once it is in the
//!   journal.
//! * `holder::failure`: the worker's failed check. Invariant: a pool reported as ended is not used
//!   again.
//! * [`journal`]: the records and what they add up to. Invariant: a record is written before it
//!   takes effect or is sent.
//!
//! [`effect`] and [`lease`] are the types that go out.
//!
//! # Example
//!
//! An agent dials, reports, is granted two slots, and admits a job:
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold_agent_core::{
//!     Config, Effect, Holder, Journal, JournalError, Memory, Record, RequestError,
//! };
//! use leasehold_types::message::{
//!     AgentMessage, CoordinatorMessage, Grant, PoolGrant, Terms, Welcome,
//! };
//! use leasehold_types::{
//!     ClusterName, Epoch, GrantNumber, JobId, LinkNumber, Moment, TermId, Token, WorkerKey,
//!     WorkerName,
//! };
//!
//! /// A journal in memory. The agent's is a file.
//! struct Records(Vec<Record>);
//!
//! impl Journal for Records {
//!     fn append(&mut self, record: &Record) -> Result<(), JournalError> {
//!         self.0.push(record.clone());
//!         Ok(())
//!     }
//! }
//!
//! let worker = WorkerKey {
//!     cluster: ClusterName::new("builds").expect("a valid name"),
//!     worker: WorkerName::new("worker-0").expect("a valid name"),
//! };
//! let config = Config { stops_worker: true, ..Config::example(worker) };
//! let now = Moment(1_000_000_000);
//! let mut holder = Holder::new(config, Memory::default(), Records(Vec::new()), now);
//! let job = JobId::new("build-42").expect("a valid id");
//! assert_eq!(holder.begin_job(job.clone(), now), Err(RequestError::NoLease { newer: None }));
//!
//! // The driver has opened the link, and the coordinator answers the hello.
//! let link = LinkNumber(1);
//! assert!(effects(&mut holder).iter().any(|effect| matches!(effect, Effect::Dial { .. })));
//! holder.handle_open(link, now);
//! let terms = Terms {
//!     ttl: Duration::from_secs(10),
//!     beat: Duration::from_secs(2),
//!     reserve: Duration::from_millis(10_600),
//!     drain_deadline: Duration::from_secs(600),
//! };
//! let epoch = Epoch(4);
//! let (term, answers_goodbye, protocol) = (TermId(77), false, 1);
//! let welcome = Welcome { epoch, term, cell: None, answers_goodbye, protocol, terms };
//! holder.handle_message(link, CoordinatorMessage::Welcome(welcome), now);
//! let nonce = effects(&mut holder).into_iter().find_map(|effect| match effect {
//!     Effect::Send(_, AgentMessage::Report(report)) => Some(report.nonce),
//!     _ => None,
//! });
//!
//! // The snapshot: two slots, until a ttl after the report was sent.
//! let token = Token { epoch, seq: 1 };
//! let grant = Grant {
//!     snapshot: true,
//!     pool: Some(PoolGrant { token, size: 2, floor: 0 }),
//!     ..Grant::renewal(epoch, GrantNumber(1), nonce.expect("a report"), terms)
//! };
//! holder.handle_message(link, CoordinatorMessage::Grant(grant), now);
//! assert_eq!(holder.begin_job(job, now), Ok(token));
//!
//! // Without a renewal the lease ends by itself.
//! let later = now + terms.ttl;
//! assert!(holder.poll_timeout().is_some_and(|wakeup| wakeup.at <= later));
//! holder.handle_wake(later);
//! assert_eq!(holder.lease(later).pool.size, 0);
//!
//! fn effects(holder: &mut Holder<Records>) -> Vec<Effect> {
//!     std::iter::from_fn(|| holder.poll_effect()).collect()
//! }
//! ```

pub mod effect;
pub mod holder;
pub mod journal;
pub mod lease;

pub use effect::{DrainCancelled, Effect, Notice, SNAPSHOT_NOT_ABOVE, Target, WakeReason, Wakeup};
pub use holder::{Config, Holder, INCARNATION_OFFSET_MAX};
pub use journal::{Journal, JournalError, Memory, Record, UnwrittenJournal};
pub use lease::{
    Lease, LeaseKinds, NextNode, Outstanding, PoolView, RequestError, ShareLease, StreamLease,
};
