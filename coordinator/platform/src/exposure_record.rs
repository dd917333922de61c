//! The JSON form in which platforms store an exposure. A reader never assumes less than was
//! written: an unreadable record counts as [`Exposure::anything`].

use std::time::Duration;

use leasehold_coordinator_core::exposure::{Exposure, SetScope, SetsVersion};
use leasehold_types::Incarnation;
use leasehold_types::limits::{JOBS_PER_WORKER_MAX, TTL_MAX};
use serde::{Deserialize, Serialize};

/// An exposure as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExposureRecord {
    incarnation: Incarnation,
    ttl_ms: u64,
    jobs_max: u32,
    sets: SetsRecord,
    /// Absent if the platform does not reserve names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
    /// Absent where an earlier agent's leases were outstanding, and in entries of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fresh_agent: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SetsRecord {
    None,
    Listed { version: String, timeless: bool },
    Any,
}

impl From<&Exposure> for ExposureRecord {
    fn from(exposure: &Exposure) -> Self {
        // Rounded up to whole milliseconds.
        let ttl_ms = exposure.ttl.as_nanos().div_ceil(1_000_000);
        Self {
            incarnation: exposure.incarnation,
            ttl_ms: u64::try_from(ttl_ms).unwrap_or(u64::MAX),
            jobs_max: exposure.jobs_max,
            sets: match exposure.sets {
                SetScope::None => SetsRecord::None,
                SetScope::Any => SetsRecord::Any,
                SetScope::Listed { version, timeless } => {
                    SetsRecord::Listed { version: format!("{:016x}", version.0), timeless }
                }
            },
            identity: exposure.identity.map(|identity| identity.to_string()),
            fresh_agent: exposure.fresh_agent.map(|agent| agent.to_string()),
        }
    }
}

impl From<ExposureRecord> for Exposure {
    /// Numbers above the limits of a worker are cut to the limit.
    fn from(written: ExposureRecord) -> Self {
        let ExposureRecord { incarnation, ttl_ms, jobs_max, sets, identity, fresh_agent } = written;
        let sets = match sets {
            SetsRecord::None => SetScope::None,
            SetsRecord::Any => SetScope::Any,
            SetsRecord::Listed { version, timeless } => match u64::from_str_radix(&version, 16) {
                Ok(version) => SetScope::Listed { version: SetsVersion(version), timeless },
                Err(_) => SetScope::Any,
            },
        };
        Self {
            incarnation,
            ttl: Duration::from_millis(ttl_ms).min(TTL_MAX),
            jobs_max: jobs_max.min(JOBS_PER_WORKER_MAX),
            sets,
            identity: identity.and_then(|identity| identity.parse().ok()),
            fresh_agent: fresh_agent.and_then(|agent| agent.parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::AgentId;

    use super::*;

    #[test]
    fn reads_what_it_writes_and_rejects_unknown_sets() {
        let listed = SetScope::Listed { version: SetsVersion(u64::MAX), timeless: true };
        let identity = Some(AgentId(7));
        for (sets, identity) in
            [(SetScope::None, None), (listed, identity), (SetScope::Any, identity)]
        {
            let (incarnation, ttl) = (Incarnation(3), Duration::from_secs(9));
            let fresh_agent = identity;
            let exposure = Exposure { incarnation, ttl, jobs_max: 4, sets, identity, fresh_agent };
            let text = serde_json::to_string(&ExposureRecord::from(&exposure)).unwrap();
            let read: ExposureRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(Exposure::from(read), exposure, "{text}");
        }
        let names = r#"{"incarnation":1,"ttlMs":1,"jobsMax":1,"sets":{"ci/feeds":true}}"#;
        assert!(serde_json::from_str::<ExposureRecord>(names).is_err());
    }
}
