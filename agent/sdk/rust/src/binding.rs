//! A binding that this worker owns: its share of a pipeline's node.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use crate::lease::Lease;
use crate::route::{Endpoint, Next, Turns};

/// A share of a pipeline's node that this worker owns, until it is dropped: dropping lets it go.
#[derive(Debug)]
pub struct Binding {
    lease: Lease,
    turns: Mutex<Turns>,
}

impl Binding {
    pub(crate) fn of(lease: Lease) -> Self {
        Self { lease, turns: Mutex::default() }
    }

    /// The pipeline.
    #[must_use]
    pub fn pipeline(&self) -> &str {
        &self.lease.key().of
    }

    /// The node of it that this worker serves.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.lease.key().name
    }

    /// Which of the node's shares it is, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.lease.key().index
    }

    /// The share of the load that is this worker's. It lasts as long as the token does.
    #[must_use]
    pub fn documents_per_second(&self) -> f64 {
        self.lease.load
    }

    /// Where documents go from here, by node, at this moment; empty at the end of the pipeline.
    #[must_use]
    pub fn next(&self) -> Arc<[Next]> {
        self.lease.routes()
    }

    /// Where the next document for `node` goes: its workers take turns in proportion to their
    /// shares of the load, those that drain only if no other is left. None where no worker
    /// serves the node at this moment, or none of that name comes next.
    #[must_use]
    pub fn pick(&self, node: &str) -> Option<Endpoint> {
        let next = self.next();
        let route = next.iter().find(|next| next.node == node)?;
        let mut turns = self.turns.lock().expect("nobody panics with it");
        turns.pick(route).cloned()
    }

    /// Releases the binding, and returns when the agent has confirmed that.
    pub async fn release(self) {
        self.lease.release().await;
    }
}

impl Deref for Binding {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
