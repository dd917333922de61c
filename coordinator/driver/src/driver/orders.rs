//! What people ask and order. An order is answered once every later query shows its effect, of this
//! leader or of the next one.

use std::fmt;

use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::sync::oneshot;

use super::Driver;
use crate::clock;
use crate::history::FleetChange;
use crate::order::{OrderKind, WorkerOrder};
use crate::platform::Command;
use crate::port::{Answer, Request, TermEnded};

/// Orders of one caller that were taken and not answered.
pub(super) struct PendingOrders {
    /// Workers that are declared gone.
    gone: Vec<WorkerKey>,
    /// The epoch in which this replica led when it took them.
    term: Epoch,
    answer: Answer,
}

impl fmt::Debug for PendingOrders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingOrders").field("gone", &self.gone).finish_non_exhaustive()
    }
}

impl Driver {
    /// Answers a query, or checks an order and takes its events. Returns the number of events.
    pub(super) fn take_request(&mut self, request: Request) -> usize {
        let now = clock::now();
        match request {
            Request::Query(query) => {
                query(&self.core, now);
                0
            }
            Request::Order(check) => {
                let (orders, answer) = check(&self.core, now);
                let gone = orders.iter().filter(|order| order.kind == OrderKind::DeclareGone);
                let gone = gone.map(|order| order.worker.clone()).collect();
                match self.term() {
                    Some(term) if !orders.is_empty() => {
                        self.pending_orders.push(PendingOrders { gone, term, answer });
                    }
                    // Nothing is ordered: the answer says why.
                    Some(_) | None => answer(Ok(())),
                }
                orders.into_iter().map(|order| self.take_order(order, now)).sum()
            }
        }
    }

    /// Answers the orders whose effect every later query shows, and those whose term has ended.
    pub(super) fn answer_orders(&mut self) {
        let (core, term) = (&self.core, self.term());
        let can_end = |pending: &mut PendingOrders| {
            Some(pending.term) != term || !pending.gone.iter().any(|worker| core.is_ending(worker))
        };
        for PendingOrders { gone, term: epoch, answer } in
            self.pending_orders.extract_if(.., can_end)
        {
            if Some(epoch) != term {
                answer(Err(TermEnded));
            } else if gone.is_empty() {
                answer(Ok(()));
            } else {
                // The next leader must not find their entries.
                let (done, confirmed) = oneshot::channel();
                self.outbox.push(Command::ConfirmEntries { epoch, workers: gone, done });
                tokio::spawn(async move { answer(confirmed.await.map_err(|_| TermEnded)) });
            }
        }
    }

    /// Takes an order, and records who gave it.
    fn take_order(&mut self, order: WorkerOrder, now: Moment) -> usize {
        let WorkerOrder { kind, worker, by } = &order;
        tracing::info!(cluster = %worker.cluster, worker = %worker.worker, %by, "{kind} ordered");
        self.metrics.ordered(*kind, by);
        self.history.note(FleetChange::Ordered(order.clone()), &self.changes, now);
        self.take(order.into(), now)
    }
}
