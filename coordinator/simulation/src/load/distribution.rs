//! How long something takes: a distribution to draw from.

use std::f64::consts::TAU;
use std::sync::Arc;
use std::time::Duration;

/// The 95th percentile of the standard normal distribution.
const NORMAL_P95: f64 = 1.644_853_627;
/// No draw is longer, so that the sum of all stays far within what a moment can be.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A distribution of durations.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// Always the same.
    Constant(Duration),
    /// Every one between two is as likely.
    Uniform {
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// Many short ones and few long ones, without a memory.
    Exponential {
        /// The mean of what is not cut.
        mean: Duration,
        /// What is longer is cut to this.
        max: Duration,
    },
    /// Its logarithm is distributed normally.
    Lognormal {
        /// Half of them are shorter.
        median: Duration,
        /// The standard deviation of the logarithm.
        deviation: f64,
        /// What is longer is cut to this.
        max: Duration,
    },
    /// One of these, each as likely; at least one.
    Samples(Arc<[Duration]>),
}

impl Distribution {
    /// Exponential, cut at `max`.
    #[must_use]
    pub fn exponential(mean: Duration, max: Option<Duration>) -> Self {
        Self::Exponential { mean, max: max.unwrap_or(LONGEST) }
    }

    /// Lognormal with this median and 95th percentile, which is not below the median; cut at `max`.
    pub(super) fn lognormal(median: Duration, p95: Duration, max: Option<Duration>) -> Self {
        let deviation = (p95.as_secs_f64() / median.as_secs_f64()).ln() / NORMAL_P95;
        Self::Lognormal { median, deviation, max: max.unwrap_or(LONGEST) }
    }

    /// The next one.
    pub fn draw(&self, rng: &mut fastrand::Rng) -> Duration {
        match self {
            Self::Constant(duration) => *duration,
            Self::Uniform { min, max } => *min + (*max - *min).mul_f64(rng.f64()),
            Self::Exponential { mean, max } => times(*mean, -above_zero(rng).ln(), *max),
            Self::Lognormal { median, deviation, max } => {
                // Box and Muller's transform.
                let normal = (-2.0 * above_zero(rng).ln()).sqrt() * (TAU * rng.f64()).cos();
                times(*median, (deviation * normal).exp(), *max)
            }
            Self::Samples(samples) => samples[rng.usize(0..samples.len())],
        }
    }
}

/// A number above 0 and at most 1, so that its logarithm is finite.
fn above_zero(rng: &mut fastrand::Rng) -> f64 {
    1.0 - rng.f64()
}

fn times(duration: Duration, factor: f64, max: Duration) -> Duration {
    let seconds = (duration.as_secs_f64() * factor).clamp(0.0, max.as_secs_f64());
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Ten thousand draws, in minutes and in order.
    fn draws(distribution: &Distribution) -> Vec<f64> {
        let mut rng = fastrand::Rng::with_seed(7);
        let draw = |_| distribution.draw(&mut rng).as_secs_f64() / 60.0;
        let mut draws: Vec<f64> = (0..10_000).map(draw).collect();
        draws.sort_by(f64::total_cmp);
        draws
    }

    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.1, "{found}, not {expected}");
    }

    #[test]
    fn draws_have_the_given_mean_or_percentiles() {
        let exponential = draws(&Distribution::exponential(20 * MINUTE, None));
        assert_near(exponential.iter().sum::<f64>() / 10_000.0, 20.0);
        let lognormal = draws(&Distribution::lognormal(6 * MINUTE, 40 * MINUTE, None));
        assert_near(lognormal[5_000], 6.0);
        assert_near(lognormal[9_500], 40.0);
        let uniform = draws(&Distribution::Uniform { min: MINUTE, max: 3 * MINUTE });
        assert_near(uniform[5_000], 2.0);
        assert!(uniform[0] >= 1.0 && uniform[9_999] <= 3.0);
        let samples = draws(&Distribution::Samples([MINUTE, 5 * MINUTE].into()));
        assert_near(samples.iter().sum::<f64>() / 10_000.0, 3.0);
    }

    #[test]
    fn draws_are_cut_at_the_longest() {
        let cut = Some(25 * MINUTE);
        for distribution in [
            Distribution::exponential(20 * MINUTE, cut),
            Distribution::lognormal(6 * MINUTE, 40 * MINUTE, cut),
        ] {
            assert_eq!(draws(&distribution)[9_999], 25.0, "{distribution:?}");
        }
    }
}
