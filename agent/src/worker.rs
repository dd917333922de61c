//! What stands between the holder and its worker: one adapter a way in which workers learn of
//! their leases.

pub(crate) mod api;
mod bound;
pub(crate) mod command;
pub(crate) mod counted;
pub(crate) mod file;
pub(crate) mod http;
pub(crate) mod leash;
pub(crate) mod process;
pub(crate) mod start;
pub(crate) mod travis;
mod view;

use leasehold_agent_core::Refused;

pub(crate) use view::LeaseView;

/// A refusal's reason as HTTP, gRPC and the figures name it.
pub(crate) fn reason(refused: &Refused) -> &'static str {
    match refused {
        Refused::NoLease => "no_lease",
        Refused::NoSlot { .. } => "no_slot",
        Refused::Draining => "draining",
        Refused::NotHeld { .. } => "not_held",
        Refused::Limit { .. } => "limit",
        Refused::Journal(_) => "journal",
    }
}

/// A refusal in words.
pub(crate) fn words(refused: &Refused) -> String {
    match refused {
        Refused::NoLease => "no pool lease is in force: no job may start".into(),
        Refused::NoSlot { size, running } => {
            format!("all slots are taken: {running} jobs run, {size} may")
        }
        Refused::Draining => "the worker drains: no new job starts".into(),
        Refused::NotHeld { held: None } => "this worker does not hold it".into(),
        Refused::NotHeld { held: Some(held) } => {
            format!("this worker holds it under token {held}, not under that one")
        }
        Refused::Limit { what, max } => format!("{what}: at most {max}"),
        Refused::Journal(why) => format!("the agent's journal cannot be written: {why}"),
    }
}
