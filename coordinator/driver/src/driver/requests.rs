//! The requests to the driver: those of the operator and of probes in one queue, those of people in
//! another, so that who asks much delays only people.

use tokio::sync::mpsc;

use crate::port::Request;

/// Requests that may wait in a queue.
const REQUESTS_MAX: usize = 64;

/// Whose requests are in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// The operator, the platform and probes.
    Operator,
    /// People, by the admin API.
    People,
}

impl Asker {
    /// In the order in which a turn takes their requests.
    pub(super) const ALL: [Self; 2] = [Self::Operator, Self::People];
}

/// Both queues.
#[derive(Debug)]
pub(super) struct Requests {
    of_operator: mpsc::Receiver<Request>,
    of_people: mpsc::Receiver<Request>,
}

/// Where requests come in.
#[derive(Debug)]
pub(super) struct RequestSenders {
    pub(super) of_operator: mpsc::Sender<Request>,
    pub(super) of_people: mpsc::Sender<Request>,
}

impl Requests {
    pub(super) fn new() -> (RequestSenders, Self) {
        let (operator_in, of_operator) = mpsc::channel(REQUESTS_MAX);
        let (people_in, of_people) = mpsc::channel(REQUESTS_MAX);
        let senders = RequestSenders { of_operator: operator_in, of_people: people_in };
        (senders, Self { of_operator, of_people })
    }

    /// The next request, the operator's first; `None` if nobody can ask any longer.
    pub(super) async fn next(&mut self) -> Option<Request> {
        tokio::select! {
            biased;
            Some(request) = self.of_operator.recv() => Some(request),
            Some(request) = self.of_people.recv() => Some(request),
            else => None,
        }
    }

    /// A request that waits in the queue of `asker`.
    pub(super) fn take(&mut self, asker: Asker) -> Option<Request> {
        match asker {
            Asker::Operator => self.of_operator.try_recv().ok(),
            Asker::People => self.of_people.try_recv().ok(),
        }
    }
}
