//! Why the holder refused a request, as HTTP, gRPC, metrics and logs name it.

use leasehold_agent_core::Refused;

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
pub(crate) fn message(refused: &Refused) -> String {
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
