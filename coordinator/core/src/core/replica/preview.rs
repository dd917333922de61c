//! A stream set as it would be under another manifest. Nothing is put in force.

use std::sync::Arc;

use super::position_index::PositionIndex;
use super::{SetState, StreamSlot};
use crate::desired::StreamSet;

/// A set as it would be, as far as it is read.
#[derive(Clone, Debug)]
pub(in crate::core) struct SetPreview {
    spec: Arc<StreamSet>,
    index: PositionIndex,
    streams: Vec<StreamSlot>,
}

impl SetPreview {
    pub(in crate::core) fn new(spec: &Arc<StreamSet>) -> Self {
        let streams = Vec::with_capacity(spec.streams.len());
        Self { spec: Arc::clone(spec), index: PositionIndex::new(&spec.streams), streams }
    }

    /// Reads at most `most` further streams. Those of the present set keep their planned workers,
    /// unless it is of another cluster.
    pub(in crate::core) fn read(&mut self, present: Option<&SetState>, most: usize) {
        let present = present.filter(|set| set.spec.cluster == self.spec.cluster);
        let start = self.streams.len();
        let end = start.saturating_add(most).min(self.spec.streams.len());
        for at in start..end {
            self.index.insert(&self.spec.streams, at);
            let name = &self.spec.streams[at].name;
            let slot = present.and_then(|set| Some(set.streams[set.position(name)?].clone()));
            self.streams.push(slot.unwrap_or_default());
        }
    }

    pub(in crate::core) fn is_whole(&self) -> bool {
        self.streams.len() == self.spec.streams.len()
    }

    /// The set, once all of it is read.
    pub(in crate::core) fn into_state(self) -> SetState {
        let Self { spec, index, streams } = self;
        SetState { spec, index, streams, is_planned: true, limited: false }
    }
}
