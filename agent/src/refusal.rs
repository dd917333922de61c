//! The reason of a refusal, as HTTP, gRPC, metrics and logs show it.

use leasehold_agent_core::RequestError;

/// Every reason.
pub(crate) const REASONS: [&str; 8] =
    ["no_lease", "no_slot", "draining", "failing", "not_held", "invalid", "limit", "journal"];

/// The reason as HTTP, gRPC and the metrics name it.
pub(crate) fn reason(refused: &RequestError) -> &'static str {
    match refused {
        RequestError::NoLease { .. } => "no_lease",
        RequestError::NoSlot { .. } => "no_slot",
        RequestError::Draining => "draining",
        RequestError::Failing => "failing",
        RequestError::NotHeld { .. } => "not_held",
        RequestError::Counted { .. } | RequestError::AsksForJobs { .. } => "invalid",
        RequestError::Limit { .. } => "limit",
        RequestError::Journal(_) => "journal",
    }
}

/// The message for people.
pub(crate) fn message(refused: &RequestError) -> String {
    match refused {
        RequestError::NoLease { newer } => {
            format!("no pool lease is in force: no job may start{}", newer_generation(*newer))
        }
        RequestError::NoSlot { size, running, newer } => {
            format!("every slot is in use: {running} of {size}{}", newer_generation(*newer))
        }
        RequestError::Draining => "the worker is draining: no new job may start".into(),
        RequestError::Failing => {
            "the worker fails, and /readyz says why: no new job may start".into()
        }
        RequestError::NotHeld { held: None } => "this worker does not hold this lease".into(),
        RequestError::NotHeld { held: Some(held) } => {
            format!("this worker holds this lease under token {held}, not under the given one")
        }
        RequestError::Counted { running, in_effect } => format!(
            "this worker's jobs are counted: PUT /v1/count, or the agent's adapter, reported \
             running {running} and pool_size {in_effect}. Count this job, too; or report a new \
             start (POST /v1/start with another start_id), and then ask for each job"
        ),
        RequestError::AsksForJobs { running } => format!(
            "this worker asks for each job with PUT /v1/jobs/ID ({running} run now), and its \
             slots would be counted twice. Go on so; or report a new start (POST /v1/start with \
             another start_id), which ends these jobs, and then report counts"
        ),
        RequestError::Limit { what, max } => format!("too many {what}: at most {max}"),
        RequestError::Journal(why) => format!("cannot write the agent's journal: {why}"),
    }
}

/// That workers of newer generations come first, and what to do about it.
fn newer_generation(newer: Option<u64>) -> String {
    newer.map_or_else(String::new, |newer| {
        format!(
            "; workers of newer generations come first: for an equal share start this worker's \
             agent with --generation {newer}"
        )
    })
}
