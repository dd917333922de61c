//! The state of a pipeline between two reconciliations. All of it may be lost, at the
//! price of a write that changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_kube_api::resources::Pipeline;
use leasehold_kube_api::status::PipelineStatus;
use leasehold_platform_kube::pods::{PodFacts, PodName, version};
use leasehold_types::Moment;

use super::object_writer::{ObjectError, ObjectId};
use crate::workqueue::{Delays, Failures};

/// Passes with writes that follow each other without a pause.
const BURST: u32 = 20;
/// The pause after which one more may.
const REFILL: Duration = Duration::from_millis(500);

/// How long an object waits after a failure.
const RETRY_DELAYS: Delays =
    Delays { first: Duration::from_millis(200), longest: Duration::from_secs(30) };

/// The state.
#[derive(Debug)]
pub(super) struct PipelineState {
    /// What went wrong.
    pub(super) failures: Failures<ObjectId, ObjectError>,
    /// The status as it was written last.
    pub(super) written: Option<WrittenStatus>,
    /// The pods that its endpoints rest on, as the last pass saw them.
    pub(super) pods: BTreeMap<PodName, Option<Arc<PodFacts>>>,
    /// Whether the last pass has written anything.
    pub(super) wrote: bool,
    write_rate: WriteRate,
}

/// A status as it was written.
#[derive(Debug)]
pub(super) struct WrittenStatus {
    /// Which of the Pipelines of its name it is of.
    pub(super) uid: String,
    /// When, in the API server's count.
    pub(super) version: u64,
    /// What.
    pub(super) status: PipelineStatus,
}

/// How many passes were made lately.
#[derive(Debug, Default)]
struct WriteRate {
    managed_objects: u32,
    since: Moment,
}

impl Default for PipelineState {
    fn default() -> Self {
        Self {
            failures: Failures::new(RETRY_DELAYS),
            written: None,
            pods: BTreeMap::new(),
            wrote: false,
            write_rate: WriteRate::default(),
        }
    }
}

impl PipelineState {
    /// The status that a Pipeline has: the newer of the one that was seen and the one that was
    /// written here.
    pub(super) fn status(&self, object: &Pipeline) -> PipelineStatus {
        let metadata = &object.metadata;
        let seen = version(metadata.resource_version.as_deref());
        let own = self
            .written
            .as_ref()
            .filter(|shown| Some(&shown.uid) == metadata.uid.as_ref() && shown.version >= seen);
        match own {
            Some(shown) => shown.status.clone(),
            None => object.status.clone().unwrap_or_default(),
        }
    }

    /// When the next pass may be made, after one at `now` that has written something.
    pub(super) fn next_write_at(&mut self, now: Moment) -> Moment {
        let rate = &mut self.write_rate;
        let passed = now.since(rate.since).as_millis() / REFILL.as_millis();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed > 0 {
            rate.managed_objects = rate.managed_objects.saturating_sub(passed);
            rate.since = now;
        }
        rate.managed_objects += 1;
        if rate.managed_objects <= BURST {
            now
        } else {
            now + REFILL * (rate.managed_objects - BURST)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_a_constantly_changing_pipeline_twice_a_second() {
        let mut state = PipelineState::default();
        let start = Moment(1_000_000_000_000);
        for _ in 0..BURST {
            assert_eq!(state.next_write_at(start), start);
        }
        assert_eq!(state.next_write_at(start), start + REFILL);
        let later = start + REFILL;
        assert_eq!(state.next_write_at(later), later + REFILL);
        let rested = later + REFILL * 2 * BURST;
        assert_eq!(state.next_write_at(rested), rested);
    }
}
