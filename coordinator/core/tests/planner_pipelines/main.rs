//! Properties of the placement of pipelines.

mod blocked;
mod lives;
mod packing;
mod world;

use leasehold_types::Load;

/// In thousandths of a document per second.
fn milli(milli: u64) -> Load {
    Load::from_milli(milli).expect("a load")
}
