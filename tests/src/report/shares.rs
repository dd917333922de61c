//! How streams are shared out after one more agent has joined.

/// What a join changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// Streams that went from one worker to another.
    pub(super) moved: usize,
    /// Those of the worker that has most.
    pub(super) most: usize,
}
