//! What further grants change in the streams of a worker, and which grants wait to be
//! acknowledged.

use std::collections::BTreeSet;
use std::mem;

use leasehold_types::{GrantNumber, StreamKey};

use crate::merge::merge;

/// The streams of one worker that further grants are about.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamChanges {
    /// Planned here and not granted yet.
    wanted: BTreeSet<StreamKey>,
    /// Planned here, and not free at the last check.
    blocked: BTreeSet<StreamKey>,
    /// The next grant revokes them, or no longer renews them.
    revoking: BTreeSet<StreamKey>,
    /// Shares that the worker holds, and whose routes have changed since they were last sent.
    rerouted: BTreeSet<StreamKey>,
    /// Shares that the worker was granted, with the grants that it has not acknowledged yet.
    unacknowledged: BTreeSet<(GrantNumber, StreamKey)>,
}

impl StreamChanges {
    /// The plan wants the stream here.
    pub(crate) fn want(&mut self, stream: StreamKey) {
        self.blocked.remove(&stream);
        self.wanted.insert(stream);
    }

    /// The first streams that are wanted and may be free, and whether there are more.
    pub(crate) fn wanted(&self, most: usize) -> (Vec<StreamKey>, bool) {
        (self.wanted.iter().take(most).cloned().collect(), self.wanted.len() > most)
    }

    /// A stream is granted, or is no longer planned here. Returns whether it was wanted.
    pub(crate) fn drop_want(&mut self, stream: &StreamKey) -> bool {
        self.wanted.remove(stream)
    }

    /// Nothing is planned here any more.
    pub(crate) fn drop_wants(&mut self) {
        self.wanted.clear();
        self.blocked.clear();
    }

    /// A wanted stream is not free. Returns whether it was wanted.
    pub(crate) fn block(&mut self, stream: &StreamKey) -> bool {
        let was_wanted = self.drop_want(stream);
        if was_wanted {
            self.blocked.insert(stream.clone());
        }
        was_wanted
    }

    /// Streams that were not free are tried again. Returns whether there were any.
    pub(crate) fn unblock(&mut self) -> bool {
        let any = !self.blocked.is_empty();
        merge(&mut self.wanted, mem::take(&mut self.blocked));
        any
    }

    /// The next grant revokes the stream, or no longer renews it.
    pub(crate) fn revoke(&mut self, stream: StreamKey) {
        self.revoking.insert(stream);
    }

    /// Takes the first streams that the next grant revokes.
    pub(crate) fn take_revoked(&mut self, most: usize) -> BTreeSet<StreamKey> {
        let mut first = mem::take(&mut self.revoking);
        if let Some(later) = first.iter().nth(most).cloned() {
            self.revoking = first.split_off(&later);
        }
        first
    }

    /// The routes of a share have changed.
    pub(crate) fn reroute(&mut self, share: StreamKey) {
        self.rerouted.insert(share);
    }

    /// Takes the first share whose routes have changed.
    pub(crate) fn take_rerouted(&mut self) -> Option<StreamKey> {
        self.rerouted.pop_first()
    }

    /// The routes of this share are sent. Returns whether they had changed.
    pub(crate) fn route_sent(&mut self, share: &StreamKey) -> bool {
        self.rerouted.remove(share)
    }

    /// A grant of a share was sent.
    pub(crate) fn await_acknowledgement(&mut self, sent_in: GrantNumber, share: StreamKey) {
        self.unacknowledged.insert((sent_in, share));
    }

    /// All grants up to this one are applied. Returns the shares that this acknowledges.
    pub(crate) fn acknowledge(&mut self, applied: GrantNumber) -> Vec<StreamKey> {
        let mut shares = Vec::new();
        while self.unacknowledged.first().is_some_and(|(sent_in, _)| *sent_in <= applied) {
            shares.extend(self.unacknowledged.pop_first().map(|(_, share)| share));
        }
        shares
    }

    /// A report is adopted, which covers every earlier grant.
    pub(super) fn report_adopted(&mut self) {
        self.unacknowledged.clear();
    }
}
