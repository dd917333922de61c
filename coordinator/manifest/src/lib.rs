//! The manifests: what people write, read once into the desired state. Past this module no
//! invalid value exists, and whatever is wrong is named with its file, line, column and field.

pub mod admission;
mod catalog;
mod changed_part;
pub mod changes;
mod check;
pub mod collection;
mod decode;
pub mod folder;
pub mod last_good;
mod lists_in_force;
mod losses;
pub mod manifest;
mod marks;
mod places;
mod precedence;
mod problem;
pub mod proposal;
mod resolve;
mod source;
mod streams;
mod tree;
mod values;
mod yaml_file;

#[cfg(test)]
mod tests;

pub use catalog::{Catalog, FolderVersion, Reading};
pub use check::{ObjectId, Spec};
pub use losses::Loss;
pub use precedence::Created;
pub use problem::Problem;
pub use source::MemoryFiles;
pub use values::{CountOrPercent, ManifestDuration, Rate};
pub use yaml_file::YamlFile;
