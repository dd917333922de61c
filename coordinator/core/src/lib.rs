//! The coordinator's pure core. It decides which worker gets which pool size, which streams and
//! which shares of pipelines; when a lease is granted, revoked and freed; and what must be stored
//! before a grant. It has no IO, clock, randomness or environment: time comes in as a
//! [`Moment`](leasehold_types::Moment).
//!
//! # The event loop
//!
//! A driver owns one [`Core`] and repeats a *turn*:
//!
//! 1. [`Core::handle`] for each [`Event`](event::Event) that has arrived, with its time of arrival.
//!    Nothing is planned or granted yet, so events that arrive together are planned together.
//! 2. [`Core::settle`], once: it reads the manifest, runs due timers, plans, and composes grants.
//!    `heard` is the time before which every message that arrived has been handled. Silence is
//!    measured up to `heard`, because a later message may still be queued.
//! 3. [`Core::poll_effect`] until it returns `None`. The driver carries out each
//!    [`Effect`](effect::Effect) in this order.
//! 4. If [`Core::has_more`], the next turn follows at once, with the events that have arrived
//!    meanwhile: a turn does a bounded amount of work ([`Config::slice`]). Otherwise the driver
//!    waits for an event, until [`Core::poll_timeout`] at the latest, when it handles
//!    [`Event::Wake`](event::Event::Wake).
//!
//! Queries (`&Core`) may be called between two turns. `coordinator/driver` runs this loop in the
//! program, and `tests/simulator` runs it in a simulated world.
//!
//! # The states of a replica
//!
//! ```text
//!           Elected               manifest in force, stored workers counted
//!   standby ────────▶ starting ─────────────────────────────────────────────▶ leader
//!      ▲                  │                                                      │
//!      └─────── Deposed ──┴── Deposed, term not renewed, or higher epoch needed ─┘
//! ```
//!
//! `Elected` starts a new term in every state. A starting replica is reported as a standby by
//! [`Core::leadership`], and refuses agents as a standby does. It leads at the end of `handle` if
//! there is little to read, otherwise after a later `settle`. A leader whose term has ended without
//! a renewal, or whose agents need a higher epoch, emits
//! [`Order::StepDown`](effect::Order::StepDown) and stands by.
//!
//! # The parts
//!
//! Each item names a module, its subject and its invariant.
//!
//! * [`core`]: the role of this replica. Invariant: all state that only a leader has is dropped
//!   with the term.
//! * `core::replica`: the desired state in force, the turn's budget and the effects. Invariant: a
//!   manifest takes effect as a whole.
//! * `core::leader`: the state of one term, see below. Invariant: it is made when the term begins
//!   and dropped when the term ends.
//! * `ledger`: claims on streams, and committed slots. Invariant: it never has fewer slots or
//!   leases than workers may use.
//! * `sent_tables`: which tables of nodes were sent to an agent. Invariant: a change is made from
//!   the version that was sent last.
//! * [`planner`]: pure functions, which see no time, ledger or leadership.
//! * [`exposure`]: what is stored about a worker. Invariant: an unreadable entry counts as
//!   everything.
//! * [`campaign`]: a leader's requests to its two stores. Invariant: a registration is acknowledged
//!   only after a later renewal.
//! * [`turn`]: the times of a driver's turn. Invariant: a worker is not silent while its message
//!   may be queued.
//!
//! [`desired`], [`event`], [`effect`] and [`view`] are the types that go in and out.
//!
//! # The owners of a leader
//!
//! A leader consists of owners. The fields of each are private to its module, or to its folder, and
//! none refers to another: what one needs of another is an argument, and what it answers is applied
//! by the leader. `Leader::settle` is the order in which that happens in a turn.
//!
//! ```text
//!   events     hello, report, beat    manifest       gone       the time
//!                      │                 │             │            │
//!                      ▼                 ▼             ▼            ▼
//!   facts          Sessions ───────▶ Clusters     PendingFrees    Timers ◀─────────────┐
//!                      │                 │             │            │                  │
//!                      └──────┬──────────┴─────┬───────┴────────────┘                  │
//!                             ▼                ▼                                       │
//!   plans                  Ledger ──────▶ PlanQueue ──▶ Pools, StreamPlan, Pipelines   │
//!                             ▲   changed                       │ what the plan changes│
//!                             │                                 ▼                      │
//!   checks                    │                            SlicedTasks                 │
//!                             │ granted,                        │ workers to message   │
//!                             │ revoked                         ▼                      │
//!   messages                  └──────────────────────────── Outgoing ───▶ grants       │
//!                                                               │ what has to wait     │
//!                                                               ▼                      │
//!                                                            Renewal ──────────────────┘
//! ```
//!
//! * `leader::sessions`: connections, places among the welcomes, reports in progress. Answers who
//!   is welcomed next, and what a session leaves when it ends.
//! * `leader::goodbyes`: connections of agents that have left. Answers which is told so once an
//!   entry is removed. Invariant: no successor finds an entry of an agent that was told.
//! * `leader::epoch_ahead`: agents that remember a later term. Answers with refusals and notices,
//!   and when to ask the store.
//! * `leader::unreadable`: namespaces whose stored entries could not be read at the election.
//!   Answers whose agents are refused. Invariant: nothing is granted there before they are entered.
//! * `leader::clusters`: the specs and workers, and of each cluster its pools and its schedule.
//!   Answers which clusters a manifest changes.
//! * `leader::pools`: the planned pool sizes of a cluster. Answers whose size changes. Invariant: a
//!   turn's cost grows with the sizes that change, not with the cluster.
//! * `leader::plan_schedule`: when the streams of a cluster are due. Answers when to look again.
//! * `leader::plan_queue`: the clusters to plan, and the plan in the making. Answers which is next.
//! * `leader::pipelines`: the states of pipelines and bindings. Answers the planned lease of a
//!   share, and what follows from a change: notices, shares whose claims are compared with the
//!   plan, and routes to send. Invariant: the shares that count are those of pipelines in force,
//!   and reported ones of pipelines that are being recovered.
//! * `leader::sliced_tasks`: checks that grow with the fleet. Answers with the next task.
//! * `leader::pending_frees`: accounts that have to end, and claims that have expired during a
//!   hold. Answers what ends next.
//! * `leader::timers`: reminders by their moments. Answers which are due. Invariant: one that
//!   depends on silence waits until every earlier message is handled.
//! * `leader::renewal`: the end of leadership. Answers what continues after a renewal.
//! * `leader::outgoing`: workers with a message or an answer to get. Answers whose message is
//!   composed next. Invariant: no worker is taken twice before each that waits is taken once.
//!
//! The other modules of `leader` apply these answers:
//!
//! * `leader::agent_rules`: which agent may connect, and which one has a worker's name.
//! * `leader::hello`. Invariant: nothing that a hello says is adopted.
//! * `leader::report_adoption`. Invariant: a worker counts as reported once all of its report is
//!   adopted.
//! * `leader::worker_names`: how a name passes to another agent. Invariant: the former agent's
//!   account is stored before the name's entry is replaced.
//! * `leader::registration`: the entries that are stored. Invariant: nothing is granted that the
//!   worker's stored entry, or the one being written, does not allow.
//! * `leader::stream_plan`: the plan of a cluster's streams. Invariant: no stream is reconciled
//!   before the whole plan is applied.
//! * `leader::pipeline_changes`: plans of pipelines, and what follows from them.
//! * `leader::grant_rules`: what may be granted. Invariant: it is within the budget, the stored
//!   entry and the capacity, and no other worker can have the stream.
//! * `leader::grant_composer`: the next message of one agent. Invariant: a lease counts as granted
//!   once its grant is composed.
//! * `leader::grants`: whose messages are composed in a turn.
//! * `leader::absence`: silent, missing and given-up workers. Invariant: absence frees something
//!   only once leadership was renewed after it.
//!
//! A `Query` reads the owners between two turns, for everything that people and platforms ask.
//! `leader::facts` is the part of them that plans are made from.
//!
//! # Example
//!
//! A replica is elected and welcomes an agent:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use leasehold_coordinator_core::desired::{Cluster, Desired};
//! use leasehold_coordinator_core::effect::{Effect, Notice};
//! use leasehold_coordinator_core::event::{ConnId, Elected, Event};
//! use leasehold_coordinator_core::view::Leadership;
//! use leasehold_coordinator_core::{Config, Core};
//! use leasehold_types::message::{CoordinatorMessage, Hello};
//! use leasehold_types::{ClusterName, Epoch, Moment, TermId, WorkerKey, WorkerName};
//!
//! let ttl = Duration::from_secs(10);
//! let name = ClusterName::new("builds").expect("a valid name");
//! let cluster = Cluster { jobs_max: 8, jobs_per_worker_max: 4, ttl, ..Cluster::example() };
//! let desired =
//!     Desired { clusters: [(name.clone(), Arc::new(cluster))].into(), ..Desired::default() };
//!
//! // The first turn: the desired state and an election have arrived.
//! let mut core = Core::new(Config::default());
//! let now = Moment(1_000_000_000);
//! core.handle(Event::Desired(Arc::new(desired)), now);
//! core.handle(
//!     Event::Elected(Elected {
//!         epoch: Epoch(4),
//!         term: TermId(77),
//!         cell: None,
//!         until: now + Duration::from_secs(15),
//!         predecessor_end: now,
//!         exposed: [].into(), // no worker may hold a lease of an earlier term
//!         unreadable: [].into(),
//!     }),
//!     now,
//! );
//! core.settle(now, now);
//! assert_eq!(core.leadership(), Leadership::Leader(Epoch(4)));
//! let effects: Vec<Effect> = std::iter::from_fn(|| core.poll_effect()).collect();
//! assert!(effects.contains(&Effect::Notice(Notice::Elected(Epoch(4)))));
//! assert!(core.poll_timeout().is_some());
//!
//! // The second turn: an agent has connected.
//! let conn = ConnId(1);
//! let worker = WorkerName::new("worker-0").expect("a valid name");
//! let hello = Hello::example(WorkerKey { cluster: name, worker });
//! let now = now + Duration::from_millis(20);
//! core.handle(Event::Hello(conn, hello, None), now);
//! core.settle(now, now);
//! let welcome = std::iter::from_fn(|| core.poll_effect()).find_map(|effect| match effect {
//!     Effect::Send { conn: to, message: CoordinatorMessage::Welcome(welcome) } if to == conn => {
//!         Some(welcome)
//!     }
//!     _ => None,
//! });
//! let welcome = welcome.expect("a welcome");
//! assert_eq!((welcome.epoch, welcome.terms.ttl), (Epoch(4), ttl));
//! ```

pub mod campaign;
pub mod core;
pub mod desired;
pub mod effect;
pub mod event;
pub mod exposure;
mod ledger;
mod merge;
mod observed;
mod ordered_table;
pub mod planner;
mod sent_tables;
pub mod turn;
pub mod view;

pub use crate::core::{Config, Core};
