//! A load as people write it. What a field means is checked in [`super::check`].

use leasehold_manifest::{CountOrPercent, ManifestDuration, Rate};
use serde::Deserialize;

use super::day_time::DayTime;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct LoadSpec {
    #[serde(rename = "for")]
    pub(super) length: ManifestDuration,
    /// The time of the day at which the simulation starts.
    #[serde(default)]
    pub(super) start: DayTime,
    pub(super) clusters: Vec<ClusterSpec>,
    #[serde(default)]
    pub(super) pipelines: Vec<PipelineRateSpec>,
    #[serde(default)]
    pub(super) streams: Vec<StreamWeightSpec>,
    #[serde(default)]
    pub(super) events: Vec<EventSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ClusterSpec {
    pub(super) name: String,
    #[serde(default)]
    pub(super) workers: Option<u32>,
    #[serde(default)]
    pub(super) startup: Option<DurationSpec>,
    #[serde(default)]
    pub(super) arrivals: Option<ArrivalsSpec>,
    #[serde(default)]
    pub(super) durations: Option<DurationSpec>,
    #[serde(default)]
    pub(super) stream_release: Option<ManifestDuration>,
    #[serde(default)]
    pub(super) min_ready: Option<ManifestDuration>,
    #[serde(default)]
    pub(super) stabilization: Option<ManifestDuration>,
    #[serde(default)]
    pub(super) deployment: DeploymentSpec,
    #[serde(default)]
    pub(super) autoscaler: AutoscalerSpec,
}

/// Exactly one of its fields is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ArrivalsSpec {
    #[serde(default)]
    pub(super) per_hour: Option<f64>,
    #[serde(default)]
    pub(super) steps: Option<Vec<StepSpec>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct StepSpec {
    pub(super) at: DayTime,
    pub(super) per_hour: f64,
}

/// A pipeline of the manifests whose load is another one than theirs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PipelineRateSpec {
    pub(super) name: String,
    pub(super) rate: RateSpec,
}

/// Exactly one of its fields is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RateSpec {
    #[serde(default)]
    pub(super) per_second: Option<Rate>,
    #[serde(default)]
    pub(super) steps: Option<Vec<RateStepSpec>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RateStepSpec {
    pub(super) at: DayTime,
    pub(super) per_second: Rate,
}

/// Streams of a set whose weights are others than those of the manifest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct StreamWeightSpec {
    pub(super) set: String,
    pub(super) names: Vec<String>,
    pub(super) weights: Vec<WeightStepSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct WeightStepSpec {
    pub(super) at: DayTime,
    pub(super) weight: u32,
}

/// Exactly one of its fields is given.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct DurationSpec {
    pub(super) constant: Option<ManifestDuration>,
    pub(super) uniform: Option<UniformSpec>,
    pub(super) exponential: Option<ExponentialSpec>,
    pub(super) lognormal: Option<LognormalSpec>,
    pub(super) csv: Option<CsvSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct UniformSpec {
    pub(super) min: ManifestDuration,
    pub(super) max: ManifestDuration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ExponentialSpec {
    pub(super) mean: ManifestDuration,
    #[serde(default)]
    pub(super) max: Option<ManifestDuration>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct LognormalSpec {
    pub(super) median: ManifestDuration,
    pub(super) p95: ManifestDuration,
    #[serde(default)]
    pub(super) max: Option<ManifestDuration>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct CsvSpec {
    pub(super) file: String,
    #[serde(default)]
    pub(super) column: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct DeploymentSpec {
    pub(super) pool: Option<u32>,
    pub(super) grace_period: Option<ManifestDuration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct AutoscalerSpec {
    pub(super) min_replicas: Option<u32>,
    pub(super) max_replicas: Option<u32>,
    pub(super) target: Option<f64>,
}

/// Beside the time exactly one of its fields is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct EventSpec {
    /// After the start.
    pub(super) at: ManifestDuration,
    #[serde(default)]
    pub(super) rollout: Option<RolloutSpec>,
    #[serde(default)]
    pub(super) scale: Option<ScaleSpec>,
    #[serde(default)]
    pub(super) lose: Option<LoseSpec>,
    #[serde(default)]
    pub(super) failover: Option<FailoverSpec>,
    #[serde(default)]
    pub(super) outage: Option<OutageSpec>,
    #[serde(default)]
    pub(super) budget: Option<BudgetSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RolloutSpec {
    pub(super) cluster: String,
    #[serde(default)]
    pub(super) max_surge: Option<CountOrPercent>,
    #[serde(default)]
    pub(super) max_unavailable: Option<CountOrPercent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ScaleSpec {
    pub(super) cluster: String,
    pub(super) workers: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct LoseSpec {
    pub(super) cluster: String,
    pub(super) workers: u32,
    #[serde(default)]
    pub(super) replaced_after: Option<ManifestDuration>,
    #[serde(default)]
    pub(super) gone_after: Option<ManifestDuration>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FailoverSpec {
    #[serde(default)]
    pub(super) after: Option<ManifestDuration>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct OutageSpec {
    #[serde(rename = "for")]
    pub(super) lasts: ManifestDuration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct BudgetSpec {
    pub(super) cluster: String,
    pub(super) max_jobs: u32,
}
