//! A pod that is being changed: each change is made on a copy and noted as an edit, so that later
//! steps see earlier ones. It notes too which maps and lists it had to make.

use serde_json::{Map, Value, json};

use crate::edit::{Edit, EditOperation, Place, Step, apply, at};
use crate::refusal::Refusal;

/// A copy of a pod, and the edits that led to it.
pub(crate) struct Draft {
    pod: Value,
    edits: Vec<Edit>,
    /// Maps and lists that were created, parents first, with their previous values.
    made: Vec<(Vec<Step>, Before)>,
}

/// The previous value where a map or list was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// The key did not exist.
    Nothing,
    /// The key was null.
    Null,
}

/// A path of keys.
pub(crate) fn keys(names: &[&str]) -> Vec<Step> {
    names.iter().map(|name| Step::from(*name)).collect()
}

/// A path, one step longer.
pub(crate) fn below(path: &[Step], step: impl Into<Step>) -> Vec<Step> {
    let mut longer = path.to_vec();
    longer.push(step.into());
    longer
}

impl Draft {
    pub(crate) fn new(pod: &Value) -> Self {
        Self { pod: pod.clone(), edits: Vec::new(), made: Vec::new() }
    }

    pub(crate) fn pod(&self) -> &Value {
        &self.pod
    }

    pub(crate) fn at(&self, path: &[Step]) -> Option<&Value> {
        at(&self.pod, path)
    }

    pub(crate) fn made(&self) -> &[(Vec<Step>, Before)] {
        &self.made
    }

    /// The draft's pod and how it came about.
    pub(crate) fn finish(self) -> (Value, Vec<Edit>) {
        (self.pod, self.edits)
    }

    pub(crate) fn change(&mut self, path: Vec<Step>, change: EditOperation) {
        let edit = Edit { path, change };
        apply(std::slice::from_ref(&edit), &mut self.pod);
        self.edits.push(edit);
    }

    pub(crate) fn insert(&mut self, path: Vec<Step>, value: Value) {
        self.change(path, EditOperation::Insert(value));
    }

    pub(crate) fn remove(&mut self, path: Vec<Step>) {
        self.change(path, EditOperation::Remove);
    }

    /// Appends to a list that is there.
    pub(crate) fn push(&mut self, path: &[Step], item: Value) {
        let length = self.at(path).and_then(Value::as_array).map_or(0, Vec::len);
        self.insert(below(path, length), item);
    }

    /// Creates a map at `path` if it is missing; its parent must exist.
    pub(crate) fn want_map(&mut self, path: &[Step]) -> Result<(), Refusal> {
        self.want(path, json!({}), Value::is_object)
    }

    /// Creates a list at `path` if it is missing; its parent must exist.
    pub(crate) fn want_list(&mut self, path: &[Step]) -> Result<(), Refusal> {
        self.want(path, json!([]), Value::is_array)
    }

    fn want(
        &mut self,
        path: &[Step],
        empty: Value,
        fits: fn(&Value) -> bool,
    ) -> Result<(), Refusal> {
        let (change, before) = match self.at(path) {
            None => (EditOperation::Insert(empty), Before::Nothing),
            Some(Value::Null) => (EditOperation::Replace(empty), Before::Null),
            Some(there) if fits(there) => return Ok(()),
            Some(_) if empty.is_array() => return Err(Refusal::shape(path, "a list")),
            Some(_) => return Err(Refusal::shape(path, "a map")),
        };
        self.change(path.to_vec(), change);
        self.made.push((path.to_vec(), before));
        Ok(())
    }

    /// Removes maps and lists that the injection created and that are empty again.
    pub(crate) fn unmake(&mut self, path: &[Step], before: Before) {
        let empty = match self.at(path) {
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            _ => false,
        };
        match before {
            _ if !empty => {}
            Before::Nothing => self.remove(path.to_vec()),
            Before::Null => self.change(path.to_vec(), EditOperation::Replace(Value::Null)),
        }
    }
}

/// The map at `path`; `None` if it is missing or null.
pub(crate) fn map_at<'a>(
    pod: &'a Value,
    path: &[Step],
) -> Result<Option<&'a Map<String, Value>>, Refusal> {
    match at(pod, path) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(Refusal::shape(path, "a map")),
    }
}

/// The list at `path`; empty if it is missing or null.
pub(crate) fn list_at<'a>(pod: &'a Value, path: &[Step]) -> Result<&'a [Value], Refusal> {
    match at(pod, path) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(Refusal::shape(path, "a list")),
    }
}

/// The index of the item with this name.
pub(crate) fn named(list: &[Value], name: &str) -> Option<usize> {
    list.iter().position(|item| item.get("name").and_then(Value::as_str) == Some(name))
}

/// The string at `path`; `None` if it is missing or null.
pub(crate) fn text_at<'a>(pod: &'a Value, path: &[Step]) -> Result<Option<&'a str>, Refusal> {
    match at(pod, path) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Refusal::Shape { field: Place(path).to_string(), wanted: "a text" }),
    }
}
