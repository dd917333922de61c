//! YAML (and so JSON) that is changed in a few places and is otherwise left as it was written.
//!
//! A document is read into a tree that knows where each node stands. Edits change the tree; then
//! the source is changed just there, and read again: only what says the same as the tree goes
//! out. Where the source cannot be changed in place, the document is written anew, with the text
//! and quoting of every scalar.

mod alias;
mod change;
mod cut;
mod place;
mod read;
mod splice;
mod tree;
mod value;
mod write;

pub(crate) use alias::{Reuse, give_back, marked};
pub(crate) use change::apply;
pub(crate) use place::find;
pub(crate) use read::read;
pub(crate) use splice::rewrite;
pub(crate) use tree::{Document, Kind, Node};
pub(crate) use value::{look, to_json};
