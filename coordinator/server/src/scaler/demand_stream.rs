//! A stream of answers: one at once, then one after every change. If the view can no longer be
//! used, the stream ends with the reason.

use std::sync::Arc;

use leasehold_driver::clock;
use leasehold_driver::demand::Demand;
use leasehold_driver::view::{Changes, PublishedView};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::query::ClassQuery;
use crate::connections::AllowedCall;

/// What a stream has until it ends: its place, and its connection.
pub(super) type Kept = (OwnedSemaphorePermit, Option<AllowedCall>);

/// One watcher's stream.
#[derive(Debug)]
pub(super) struct DemandStream<T> {
    view: Arc<PublishedView>,
    changes: Changes,
    query: ClassQuery,
    answer: fn(Demand) -> T,
    sent: Option<T>,
    has_ended: bool,
    _kept: Kept,
}

impl<T: Clone + PartialEq> DemandStream<T> {
    pub(super) fn new(
        view: Arc<PublishedView>,
        query: ClassQuery,
        answer: fn(Demand) -> T,
        kept: Kept,
    ) -> Self {
        let changes = view.changes();
        Self { view, changes, query, answer, sent: None, has_ended: false, _kept: kept }
    }

    /// The next answer, or why the stream ends.
    pub(super) async fn next(mut self) -> Option<(Result<T, Status>, Self)> {
        if self.has_ended {
            return None;
        }
        loop {
            let changed = match self.query.demand(&self.view, clock::now()) {
                Ok(demand) => {
                    Some((self.answer)(demand)).filter(|answer| self.sent.as_ref() != Some(answer))
                }
                Err(status) => return Some(self.end(status)),
            };
            if let Some(answer) = changed {
                self.sent = Some(answer.clone());
                return Some((Ok(answer), self));
            }
            if self.changes.next().await.is_err() {
                return Some(self.end(Status::unavailable("the coordinator is shutting down")));
            }
        }
    }

    fn end(mut self, status: Status) -> (Result<T, Status>, Self) {
        self.has_ended = true;
        (Err(status), self)
    }
}
