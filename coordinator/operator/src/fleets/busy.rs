//! Which pods bear the label of busy ones. It is there before the first grant (see
//! [`super::super::pods`]), stays while jobs run, and goes when none has run for a while: streams
//! alone are handed over, and keep nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::Moment;

use super::standing::Standing;

/// A worker that has run no job for so long is idle: jobs that follow each other closely do not
/// have the label written again and again.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// Since when pods that bear the label have been without jobs, by UID.
#[derive(Debug, Default)]
pub(super) struct Idle(BTreeMap<String, Moment>);

impl Idle {
    /// Whether the pod's label is to be written, and how.
    pub(super) fn look(&mut self, it: &Standing, now: Moment) -> Option<bool> {
        let uid = &it.pod.uid;
        if !it.pod.is_active() || it.is_busy() || !it.pod.busy {
            self.0.remove(uid);
            return (it.pod.is_active() && it.is_busy() && !it.pod.busy).then_some(true);
        }
        let since = *self.0.entry(uid.clone()).or_insert(now);
        // What has drained gets nothing any more: nobody has to wait for it.
        (it.is_drained() || now.since(since) >= IDLE_AFTER).then_some(false)
    }

    /// Forgets pods that are there no more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_there(uid));
    }
}
