//! The stored exposure of a worker: what a successor learns of it, and what is being stored.

use super::faults;
use crate::exposure::Exposure;

/// The entry of a worker, as far as this leader knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredExposure {
    /// The most that the worker may hold, as stored.
    exposure: Exposure,
    /// `exposure` carries this leader's epoch, so a delayed removal by a predecessor cannot end it.
    adopted: bool,
    /// The exposure that is being stored in its place.
    next: Option<Exposure>,
    /// The worker has another name than before, and no entry under that yet.
    unwritten: bool,
}

impl StoredExposure {
    /// The most that the worker may hold, as stored.
    pub(crate) fn exposure(&self) -> &Exposure {
        &self.exposure
    }

    /// The exposure that is being stored in its place.
    pub(crate) fn next(&self) -> Option<&Exposure> {
        self.next.as_ref()
    }

    /// Whether this leader has stored it: a delayed removal by a predecessor cannot end it.
    pub(crate) fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Whether the worker has another name than before, and no entry under that yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.unwritten
    }

    /// Whether the stored exposure, and the one that is being stored in its place, allow a new
    /// grant. An exposure that a predecessor stored counts only once this leader has adopted it.
    pub(crate) fn allows(&self, allows: impl Fn(&Exposure) -> bool) -> bool {
        let all = allows(&self.exposure) && self.next.as_ref().is_none_or(allows);
        all && (self.adopted || faults::grants_under_foreign_entry())
    }

    /// This exposure was ordered to be stored.
    pub(crate) fn begin_write(&mut self, exposure: Exposure) {
        self.next = Some(exposure);
    }

    /// This leader has stored an exposure.
    pub(crate) fn written(&mut self, exposure: Exposure) {
        self.next.take_if(|next| *next == exposure);
        self.exposure = exposure;
        (self.adopted, self.unwritten) = (true, false);
    }

    /// The worker has another name, and no entry under that yet. Returns what is stored under the
    /// name before, joined by `join` with what is being stored.
    pub(crate) fn begin_rename(
        &mut self,
        join: impl FnOnce(&Exposure, &Exposure) -> Exposure,
    ) -> Exposure {
        (self.adopted, self.unwritten) = (false, true);
        match self.next.take() {
            Some(next) => join(&self.exposure, &next),
            None => self.exposure.clone(),
        }
    }

    /// An entry was read when the term began.
    pub(super) fn read(&mut self, exposure: Exposure, is_own: bool) {
        (self.exposure, self.adopted) = (exposure, is_own);
    }
}
