//! The open connections of a port: a bounded number, and a new one is always accepted.
//!
//! Invariant: an accepted connection is served, whatever the others do. At the limit the connection
//! that has been idle for longest is closed. At most one connection more than the limit is open for
//! each port that accepts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The connections of a port.
#[derive(Debug)]
pub(super) struct Connections {
    max: usize,
    open: Mutex<OpenConnections>,
    /// Connections that have not ended, including those that were evicted.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    connections: BTreeMap<u64, Arc<Connection>>,
}

/// Counts one connection as open, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    number: u64,
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

/// The use of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    usage: Mutex<Usage>,
    evicted: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    /// Requests that are being served.
    requests: u32,
    /// When the last of them began or ended, or the connection was accepted.
    since: Instant,
}

/// A request that is being served, until it is dropped.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<Connection>);

impl Connections {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default(), count: watch::Sender::new(0) })
    }

    /// Registers a connection that was just accepted.
    pub(super) fn register(self: &Arc<Self>) -> ConnectionGuard {
        if self.lock().connections.len() >= self.max {
            self.evict();
        }
        let usage = Mutex::new(Usage { requests: 0, since: Instant::now() });
        let connection = Arc::new(Connection { usage, evicted: Notify::new() });
        self.count.send_modify(|count| *count += 1);
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, connection.clone());
        ConnectionGuard { number, connection, connections: self.clone() }
    }

    /// Waits until evicted connections have ended. Until then their files are open.
    pub(super) async fn settled(&self) {
        let mut count = self.count.subscribe();
        count.wait_for(|count| *count <= self.max).await.expect("its sender is in `self`");
    }

    /// Closes the connection that has been idle for longest; if all wait for an answer, the one
    /// that has waited longest. Returns whether there was one.
    pub(super) fn evict(&self) -> bool {
        let mut open = self.lock();
        let rank = |connection: &Connection| {
            let Usage { requests, since } = *connection.lock();
            (requests > 0, since)
        };
        let longest = open.connections.iter().min_by_key(|(_, connection)| rank(connection));
        let Some(number) = longest.map(|(number, _)| *number) else { return false };
        if let Some(connection) = open.connections.remove(&number) {
            connection.evicted.notify_one();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().expect("the lock is not poisoned")
    }
}

impl ConnectionGuard {
    /// The connection.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.lock().connections.remove(&self.number);
        self.connections.count.send_modify(|count| *count -= 1);
    }
}

impl Connection {
    /// Notes that a request is being served, until the result is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> ActiveRequest {
        let mut usage = self.lock();
        *usage = Usage { requests: usage.requests + 1, since: Instant::now() };
        ActiveRequest(self.clone())
    }

    /// Whether a request is being served.
    pub(super) fn is_busy(&self) -> bool {
        self.lock().requests > 0
    }

    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Waits until the connection has been idle for this long.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let Usage { requests, since } = *self.lock();
            let idle = if requests > 0 { Duration::ZERO } else { since.elapsed() };
            if idle >= limit {
                return;
            }
            tokio::time::sleep(limit - idle).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().expect("the lock is not poisoned")
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut usage = self.0.lock();
        *usage = Usage { requests: usage.requests - 1, since: Instant::now() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn evicts_the_longest_idle_connection_at_the_limit() {
        let connections = Connections::new(3);
        let (waits, silent, asked) =
            (connections.register(), connections.register(), connections.register());
        let busy = waits.connection().begin();
        drop(asked.connection().begin());
        let newest = connections.register();
        silent.connection().evicted().await;
        drop(silent);
        drop(connections.register());
        asked.connection().evicted().await;
        // All connections wait for an answer now.
        let also = newest.connection().begin();
        let last = connections.register();
        let third = last.connection().begin();
        drop(connections.register());
        waits.connection().evicted().await;
        drop((busy, also, third));
    }

    #[tokio::test]
    async fn an_evicted_connection_counts_until_it_has_ended() {
        let connections = Connections::new(1);
        let first = connections.register();
        connections.settled().await;
        let _second = connections.register();
        first.connection().evicted().await;
        let settled = connections.settled();
        let mut settled = std::pin::pin!(settled);
        assert!(tokio::time::timeout(Duration::ZERO, settled.as_mut()).await.is_err());
        drop(first);
        settled.await;
    }
}
