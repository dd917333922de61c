//! One change of a tree of maps and lists.

use serde_json::Value;

/// A change at a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// From the pod's (or the template's) root.
    pub path: Vec<Step>,
    /// What happens there.
    pub change: Change,
}

/// A step down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// To a map's value.
    Key(String),
    /// To a list's item.
    Index(usize),
}

/// What happens at a place.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A key is added at the end of its map, or an item is put before the one that is there.
    Insert(Value),
    /// What is there becomes something else, in its place.
    Replace(Value),
    /// What is there goes.
    Remove,
}
