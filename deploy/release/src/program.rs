//! The programs of a release.

use std::path::Path;

use leasehold_kube_api::names::IMAGES;

use crate::image::Image;

/// A program of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `leasehold-coordinator`.
    Coordinator,
    /// `leasehold-agent`.
    Agent,
    /// `leasehold`, the command line.
    CommandLine,
}

impl Program {
    /// All.
    pub const ALL: [Self; 3] = [Self::Coordinator, Self::Agent, Self::CommandLine];
    /// Those that run in containers.
    pub const WITH_IMAGE: [Self; 2] = [Self::Coordinator, Self::Agent];

    /// Its file's name.
    #[must_use]
    pub fn binary(self) -> &'static str {
        match self {
            Self::Coordinator => "leasehold-coordinator",
            Self::Agent => "leasehold-agent",
            Self::CommandLine => "leasehold",
        }
    }

    /// Its package of Cargo.
    #[must_use]
    pub fn package(self) -> &'static str {
        match self {
            Self::Coordinator | Self::Agent => self.binary(),
            Self::CommandLine => "leasehold-cli",
        }
    }

    /// The folder of its package.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Agent => "agent",
            Self::CommandLine => "coordinator/cli",
        }
    }

    /// The definition of its command line.
    #[must_use]
    pub fn command(self) -> clap::Command {
        match self {
            Self::Coordinator => leasehold_coordinator::config::command(),
            Self::Agent => leasehold_agent::config::command(),
            Self::CommandLine => leasehold_cli::command(),
        }
    }

    /// The image that `deploy/` runs it from, in the registry and folder that this release names.
    #[must_use]
    pub fn reference(self) -> String {
        self.reference_in(IMAGES)
    }

    /// The same in another registry and folder.
    #[must_use]
    pub fn reference_in(self, images: &str) -> String {
        format!("{images}/{}:{}", self.image_name(), crate::VERSION)
    }

    /// The same with another tag.
    #[must_use]
    pub fn reference_with_tag(self, tag: &str) -> String {
        format!("{IMAGES}/{}:{tag}", self.image_name())
    }

    /// Its image, with the program from this file: one program, nobody's user, nothing else, as
    /// `deploy/images` builds them.
    #[must_use]
    pub fn image(self, file: &Path) -> Image {
        self.image_named(&self.reference(), file)
    }

    /// The same under another name.
    #[must_use]
    pub fn image_named(self, reference: &str, file: &Path) -> Image {
        let path = format!("/{}", self.binary());
        Image::new(reference, &[&path]).program(file, &path)
    }

    fn image_name(self) -> &'static str {
        self.binary().trim_start_matches("leasehold-")
    }
}
