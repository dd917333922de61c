//! A stream that this worker owns.

use std::ops::Deref;

use crate::lease::Lease;

/// A stream that this worker owns, until it is dropped: dropping lets it go.
#[derive(Debug)]
pub struct Stream(Lease);

impl Stream {
    pub(crate) fn of(lease: Lease) -> Self {
        Self(lease)
    }

    /// The stream set.
    #[must_use]
    pub fn set(&self) -> &str {
        &self.0.key().of
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.key().name
    }

    /// Releases the stream, and returns when the agent has confirmed that.
    pub async fn release(self) {
        self.0.release().await;
    }
}

impl Deref for Stream {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}
