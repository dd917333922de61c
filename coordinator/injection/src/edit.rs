//! One change of a tree of maps and lists, and how to apply it.

use std::fmt;

use serde_json::Value;

/// A change at a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// From the pod's (or the template's) root.
    pub path: Vec<Step>,
    /// What happens there.
    pub change: EditOperation,
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
pub enum EditOperation {
    /// A key is added at the end of its map, or an item is put before the one that is there.
    Insert(Value),
    /// Replaces the value.
    Replace(Value),
    /// Removes the value.
    Remove,
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.into())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// A path as people write it: `spec.containers[0].env`.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a>(pub &'a [Step]);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if number == 0 => write!(f, "{key}")?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// The value at a path, if any.
#[must_use]
pub fn at<'a>(root: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(root, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    })
}

fn at_mut<'a>(root: &'a mut Value, path: &[Step]) -> Option<&'a mut Value> {
    path.iter().try_fold(root, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    })
}

/// Makes the changes, in order.
///
/// # Panics
/// Where an edit names a place that the tree does not have: it was made for another tree.
pub fn apply(edits: &[Edit], to: &mut Value) {
    for edit in edits {
        let done = change(edit, to);
        assert!(done.is_some(), "{} is not there: made for another tree", Place(&edit.path));
    }
}

/// One change; `None` where its place is not there.
fn change(edit: &Edit, to: &mut Value) -> Option<()> {
    let (last, parent) = edit.path.split_last()?;
    let parent = at_mut(to, parent)?;
    match (&edit.change, last) {
        (EditOperation::Insert(value), Step::Key(key)) => {
            let before = parent.as_object_mut()?.insert(key.clone(), value.clone());
            before.is_none().then_some(())
        }
        (EditOperation::Insert(value), Step::Index(index)) => {
            let list = parent.as_array_mut()?;
            (*index <= list.len()).then(|| list.insert(*index, value.clone()))
        }
        (EditOperation::Replace(value), last) => {
            *at_mut(parent, std::slice::from_ref(last))? = value.clone();
            Some(())
        }
        (EditOperation::Remove, Step::Key(key)) => parent.as_object_mut()?.remove(key).map(drop),
        (EditOperation::Remove, Step::Index(index)) => {
            let list = parent.as_array_mut()?;
            (*index < list.len()).then(|| drop(list.remove(*index)))
        }
    }
}
