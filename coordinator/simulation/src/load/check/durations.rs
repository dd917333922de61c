//! The rules on durations and their distributions.

use std::time::Duration;

use leasehold_manifest::ManifestDuration;
use leasehold_types::duration;

use super::super::spec::DurationSpec;
use super::super::{Distribution, samples};
use super::Checker;

impl Checker<'_> {
    pub(super) fn duration(&mut self, at: &str, spec: &DurationSpec) -> Option<Distribution> {
        let DurationSpec { constant, uniform, exponential, lognormal, csv } = spec;
        match (constant, uniform, exponential, lognormal, csv) {
            (Some(constant), None, None, None, None) => Some(Distribution::Constant(constant.0)),
            (None, Some(uniform), None, None, None) => {
                let (min, max) = (uniform.min.0, uniform.max.0);
                if max < min {
                    let message = format!("is below min ({}): raise it", duration::format(min));
                    self.blame(&format!("{at}.uniform.max"), message);
                }
                (max >= min).then_some(Distribution::Uniform { min, max })
            }
            (None, None, Some(exponential), None, None) => {
                let mean = self.above_zero(&format!("{at}.exponential.mean"), exponential.mean)?;
                Some(Distribution::exponential(mean, exponential.max.map(|max| max.0)))
            }
            (None, None, None, Some(lognormal), None) => {
                let median =
                    self.above_zero(&format!("{at}.lognormal.median"), lognormal.median)?;
                let p95 = lognormal.p95.0;
                if p95 < median {
                    let message =
                        format!("is below the median ({}): raise it", duration::format(median));
                    self.blame(&format!("{at}.lognormal.p95"), message);
                    return None;
                }
                Some(Distribution::lognormal(median, p95, lognormal.max.map(|max| max.0)))
            }
            (None, None, None, None, Some(csv)) => {
                let text = self.csv.get(&csv.file).map_or("", String::as_str);
                let read = samples::read(&csv.file, text, csv.column.as_deref());
                let samples = read.map_err(|problem| self.problems.push(problem)).ok()?;
                Some(Distribution::Samples(samples))
            }
            _ => {
                let message = "must be given in exactly one way: constant, uniform, exponential, \
                               lognormal or csv";
                self.blame(at, message);
                None
            }
        }
    }

    pub(super) fn above_zero(&mut self, field: &str, given: ManifestDuration) -> Option<Duration> {
        if given.0.is_zero() {
            self.blame(field, "is 0, but must be above 0");
        }
        (!given.0.is_zero()).then_some(given.0)
    }
}
