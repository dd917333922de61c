//! The images that `deploy/` names, packed as `deploy/images` builds them: one program, nobody's
//! user, nothing else. What is packed here and what users install go by the same names.

use std::path::Path;

use super::image::Image;

/// A program of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `leasehold-coordinator`.
    Coordinator,
    /// `leasehold-agent`.
    Agent,
}

impl Program {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Coordinator, Self::Agent];

    /// Its file's name.
    #[must_use]
    pub fn binary(self) -> &'static str {
        match self {
            Self::Coordinator => "leasehold-coordinator",
            Self::Agent => "leasehold-agent",
        }
    }

    /// The image that `deploy/` runs it from.
    #[must_use]
    pub fn reference(self) -> &'static str {
        match self {
            Self::Coordinator => {
                concat!("registry.invalid/leasehold/coordinator:", env!("CARGO_PKG_VERSION"))
            }
            Self::Agent => concat!("registry.invalid/leasehold/agent:", env!("CARGO_PKG_VERSION")),
        }
    }

    /// Its image, with the program from this file.
    #[must_use]
    pub fn image(self, file: &Path) -> Image {
        let path = format!("/{}", self.binary());
        Image::new(self.reference(), &[&path]).program(file, &path)
    }
}
