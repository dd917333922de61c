//! The manifests: what people write, read once into the desired state. Past this module no
//! invalid value exists, and whatever is wrong is named with its file, line, column and field.

pub mod admission;
mod amount;
mod catalog;
mod check;
pub mod collection;
mod decode;
mod duration;
pub mod folder;
pub mod last_good;
pub mod manifest;
mod problem;
mod quantity;
mod rate;
mod resolve;
mod streams;
mod tree;

#[cfg(test)]
mod tests;

pub use amount::Amount;
pub use catalog::{Catalog, Reading};
pub use check::{ObjectId, Spec};
pub use duration::{DURATION_MAX, Span};
pub use problem::Problem;
pub use quantity::Quantity;
pub use rate::Rate;
