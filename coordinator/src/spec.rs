//! The manifests: what people write, read once into the desired state. Past this module no
//! invalid value exists, and whatever is wrong is named with its file, line, column and field.

mod problem;

pub use problem::Problem;
