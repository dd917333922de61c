//! The effects of a core as the lines of an outcome. CONN is the number of a connection, and a
//! TOKEN is `EPOCH.SEQ`. What is sent to agents:
//!
//! * `CONN welcome epoch=EPOCH`
//! * `CONN refusal REASON: MESSAGE`, and `CONN close` where the core ends the connection
//! * `CONN grant NUMBER echoes=NONCE …`, where NONCE is that of the newest report or beat that the
//!   core has. What follows is what the grant changes; with nothing it renews the leases:
//!   * `snapshot`: it lists all that the agent holds; `fresh`: before this agent nothing was
//!     outstanding for the worker; `drain` and `undrain`: an order, and its end
//!   * `pool=TOKEN:SIZE`, and `(floor JOBS)` for the size without a lease, unless it is 0
//!   * `newer=GENERATION`: workers of that generation get slots first
//!   * `+STREAM:TOKEN`: the stream is granted, with `(pinned)` until it is given back
//!   * `-STREAM:TOKEN`: it is revoked, with `(lapses)` it is no longer renewed either
//!
//! What is ordered from the platform: `register WORKER,…` and `unregister WORKER,…` for the entries
//! of workers, `confirm` for a renewal of leadership, `step down above=EPOCH` and `ask term
//! seen=EPOCH` for a higher epoch.
//!
//! The notices are sentences. `freed STREAM of WORKER HOW` ends a lease: `Released` by its agent,
//! `Expired`, or `Gone` with its worker.

use std::fmt::Write as _;

use leasehold_coordinator_core::effect::{Effect, Notice, Order};
use leasehold_types::message::{CoordinatorMessage, DrainOrder, Grant, StreamState};

fn shown_order(order: &Order) -> String {
    match order {
        Order::Register(workers) => {
            let names: Vec<_> = workers.iter().map(|(key, ..)| key.worker.as_str()).collect();
            format!("register {}", names.join(","))
        }
        Order::Unregister(workers) => {
            let names: Vec<_> = workers.iter().map(|key| key.worker.as_str()).collect();
            format!("unregister {}", names.join(","))
        }
        Order::Confirm => "confirm".into(),
        Order::StepDown { above } => format!("step down above={above:?}"),
        Order::AskTerm { seen } => format!("ask term seen={seen}"),
    }
}

/// An effect as a line; none for those that no scenario shows.
pub(crate) fn shown(effect: &Effect) -> Option<String> {
    Some(match effect {
        Effect::Send { conn, message: CoordinatorMessage::Welcome(welcome) } => {
            format!("{} welcome epoch={}", conn.0, welcome.epoch)
        }
        Effect::Send { conn, message: CoordinatorMessage::Refusal(refusal) } => {
            format!("{} refusal {:?}: {}", conn.0, refusal.reason, refusal.message)
        }
        Effect::Send { conn, message: CoordinatorMessage::Grant(grant) } => {
            format!("{} {}", conn.0, shown_grant(grant))
        }
        Effect::Close(conn) => format!("{} close", conn.0),
        Effect::Order { order, .. } => shown_order(order),
        Effect::Notice(Notice::EpochAhead { worker, seen }) => {
            format!("{} is ahead with epoch {seen}", worker.worker)
        }
        Effect::Notice(Notice::EpochRepeated { worker, epoch }) => {
            format!("{} has obeyed another leader of epoch {epoch}", worker.worker)
        }
        Effect::Notice(Notice::StreamFreed { worker, stream, how, .. }) => {
            format!("freed {} of {} {how:?}", stream.stream, worker.worker)
        }
        Effect::Notice(Notice::HoldEnded(_)) => "hold ended".into(),
        Effect::Notice(Notice::Failing { worker, failure }) => {
            format!("{} fails: {failure}", worker.worker)
        }
        Effect::Notice(Notice::NameRefused { worker, .. }) => {
            format!("another agent wants the name {}", worker.worker)
        }
        Effect::Notice(Notice::Recovered(worker)) => format!("{} passes again", worker.worker),
        Effect::Notice(Notice::Lost(worker)) => format!("lost {}", worker.worker),
        Effect::Notice(Notice::GivenUp { worker, .. }) => format!("given up {}", worker.worker),
        Effect::Notice(Notice::ProtocolViolation { worker, rule }) => {
            format!("violation of {}: {rule}", worker.worker)
        }
        Effect::Notice(_) => return None,
    })
}

fn shown_grant(grant: &Grant) -> String {
    let mut line = format!("grant {} echoes={}", grant.number, grant.nonce);
    for (flag, name) in [
        (grant.snapshot, "snapshot"),
        (grant.fresh, "fresh"),
        (grant.drain == Some(DrainOrder::Drain), "drain"),
        (grant.drain == Some(DrainOrder::Undrain), "undrain"),
    ] {
        if flag {
            let _ = write!(line, " {name}");
        }
    }
    if let Some(pool) = grant.pool {
        let _ = write!(line, " pool={}:{}", pool.token, pool.size);
        if pool.floor > 0 {
            let _ = write!(line, "(floor {})", pool.floor);
        }
    }
    if let Some(newer) = grant.newer_generation {
        let _ = write!(line, " newer={newer}");
    }
    for stream in &grant.streams {
        let (name, token) = (&stream.stream.stream, stream.token);
        let _ = match stream.state {
            StreamState::Held { pinned: false } => write!(line, " +{name}:{token}"),
            StreamState::Held { pinned: true } => write!(line, " +{name}:{token}(pinned)"),
            StreamState::Revoked { renewed: true, .. } => write!(line, " -{name}:{token}"),
            StreamState::Revoked { renewed: false, .. } => write!(line, " -{name}:{token}(lapses)"),
        };
    }
    line
}
