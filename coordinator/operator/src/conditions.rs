//! The conditions of objects, each with its reason. `lastTransitionTime` changes only with the
//! status of a condition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use leasehold_kube_api::status::{Condition, MESSAGE_CHARS_MAX};

/// The object works as its spec asks.
pub(crate) const READY: &str = "Ready";
/// A change is in progress and ends by itself.
pub(crate) const PROGRESSING: &str = "Progressing";
/// Something is wrong and may need an operator's attention.
pub(crate) const DEGRADED: &str = "Degraded";
/// Nothing progresses until a user acts. The condition is present only while it is true, as kstatus
/// expects.
const STALLED: &str = "Stalled";
/// A change is in progress, and nothing stalls it. The condition is present only while it is true,
/// as kstatus expects.
const RECONCILING: &str = "Reconciling";
/// Some pods have an outdated agent. The condition is present only while it is true.
pub(super) const AGENTS_OUTDATED: &str = "AgentsOutdated";
/// Some pods were injected with a warning. The condition is present only while it is true.
pub(super) const INJECTION_WARNINGS: &str = "InjectionWarnings";
/// The limits of a class keep it from the number of workers asked for. The condition is present
/// only while it is true.
pub(super) const SCALING_LIMITED: &str = "ScalingLimited";
/// Another manager sets the replicas of the workload, so the coordinator does not. The condition is
/// present only while it is true.
pub(super) const REPLICAS_MANAGED: &str = "ReplicasManagedElsewhere";
/// Every stream is on its planned worker, and the agents have acknowledged it.
pub(super) const CONVERGED: &str = "Converged";

/// The reason and the message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionReason {
    /// One word in CamelCase.
    pub(crate) reason: &'static str,
    /// The state, and what to do about it.
    pub(crate) message: String,
}

impl ConditionReason {
    /// A reason and its message.
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// A desired condition, without its times.
#[derive(Debug)]
pub(crate) struct DesiredCondition {
    type_: &'static str,
    holds: bool,
    why: ConditionReason,
}

impl DesiredCondition {
    pub(crate) fn new(type_: &'static str, holds: bool, why: ConditionReason) -> Self {
        Self { type_, holds, why }
    }
}

/// The conditions at `now`, where `before` are those written last; `generation` is that of the spec
/// they were computed from.
pub(crate) fn conditions(
    desired: Vec<DesiredCondition>,
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let of = |desired: DesiredCondition| {
        let status = if desired.holds { "True" } else { "False" };
        let same =
            before.iter().find(|stored| stored.type_ == desired.type_ && stored.status == status);
        let message = match desired.why.message.char_indices().nth(MESSAGE_CHARS_MAX) {
            Some((end, _)) => desired.why.message[..end].to_owned(),
            None => desired.why.message,
        };
        Condition {
            type_: desired.type_.to_owned(),
            status: status.to_owned(),
            reason: desired.why.reason.to_owned(),
            message,
            last_transition_time: match same {
                Some(same) => same.last_transition_time.clone(),
                None => Time(truncate_to_second(now)),
            },
            observed_generation: generation,
        }
    };
    desired.into_iter().map(of).collect()
}

/// The API server keeps times in whole seconds.
fn truncate_to_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The conditions without their messages, which change often.
pub(super) fn without_messages(conditions: &[Condition]) -> Vec<Condition> {
    let bare = |condition: &Condition| Condition { message: String::new(), ..condition.clone() };
    conditions.iter().map(bare).collect()
}

/// The generation in force: `in_force` if known, else the generation in the last status, while the
/// core has the object.
pub(crate) fn in_force_generation(
    in_force: Option<i64>,
    is_there: bool,
    before: Option<i64>,
) -> Option<i64> {
    in_force.or(before.filter(|_| is_there))
}

/// The condition that kstatus reads before `Ready`: `Stalled`, or `Reconciling`, or neither. It
/// takes the first of them that is true, and an object that is stalled waits for nothing.
pub(crate) fn stalled_or_reconciling(
    stalled: Option<ConditionReason>,
    progressing: Option<ConditionReason>,
) -> Option<DesiredCondition> {
    let stalled = stalled.map(|why| DesiredCondition::new(STALLED, true, why));
    stalled.or_else(|| progressing.map(|why| DesiredCondition::new(RECONCILING, true, why)))
}

/// The reason for an invalid newest spec.
pub(crate) fn invalid_spec(problem: &str, in_force: Option<i64>) -> ConditionReason {
    let rest = match in_force {
        Some(generation) => {
            format!("generation {generation} stays in force until the spec is corrected")
        }
        None => "the object has no effect until the spec is corrected".into(),
    };
    ConditionReason::new("InvalidSpec", format!("{problem}; {rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::new(second, 5).expect("a time")
    }

    fn ready(holds: bool, reason: &'static str) -> Vec<DesiredCondition> {
        vec![DesiredCondition::new(
            READY,
            holds,
            ConditionReason::new(reason, "m".repeat(2 * MESSAGE_CHARS_MAX)),
        )]
    }

    #[test]
    fn last_transition_time_changes_only_with_the_status() {
        let first = conditions(ready(false, "Waits"), &[], Some(1), at(1));
        assert_eq!(first[0].last_transition_time, Time(Timestamp::from_second(1).expect("1")));
        assert_eq!(first[0].message.chars().count(), MESSAGE_CHARS_MAX);
        let second = conditions(ready(false, "StillWaits"), &first, Some(2), at(2));
        assert_eq!(second[0].last_transition_time, first[0].last_transition_time);
        assert_eq!(
            (second[0].reason.as_str(), second[0].observed_generation),
            ("StillWaits", Some(2))
        );
        let third = conditions(ready(true, "Ready"), &second, Some(2), at(3));
        assert_eq!(third[0].last_transition_time, Time(Timestamp::from_second(3).expect("3")));
        assert_eq!(third[0].status, "True");
    }
}
