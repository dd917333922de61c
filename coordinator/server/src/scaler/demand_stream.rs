//! An answer that is told at once and again whenever it is another one. Where it cannot be vouched
//! for any more, the stream ends with the reason.

use std::sync::Arc;

use leasehold_driver::clock;
use leasehold_driver::demand::Demand;
use leasehold_driver::view::{Changes, View};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::query::ClassQuery;

/// One watcher's stream.
#[derive(Debug)]
pub(super) struct DemandStream<T> {
    view: Arc<View>,
    changes: Changes,
    asked: ClassQuery,
    answer: fn(Demand) -> T,
    told: Option<T>,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

impl<T: Clone + PartialEq> DemandStream<T> {
    pub(super) fn new(
        view: Arc<View>,
        asked: ClassQuery,
        answer: fn(Demand) -> T,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let changes = view.changes();
        Self { view, changes, asked, answer, told: None, is_over: false, _place: place }
    }

    /// The next answer, or why the stream ends.
    pub(super) async fn next(mut self) -> Option<(Result<T, Status>, Self)> {
        if self.is_over {
            return None;
        }
        loop {
            let news = match self.asked.demand(&self.view, clock::now()) {
                Ok(demand) => {
                    Some((self.answer)(demand)).filter(|it| self.told.as_ref() != Some(it))
                }
                Err(status) => return Some(self.end(status)),
            };
            if let Some(answer) = news {
                self.told = Some(answer.clone());
                return Some((Ok(answer), self));
            }
            if self.changes.next().await.is_err() {
                return Some(self.end(Status::unavailable("the coordinator shuts down")));
            }
        }
    }

    fn end(mut self, status: Status) -> (Result<T, Status>, Self) {
        self.is_over = true;
        (Err(status), self)
    }
}
