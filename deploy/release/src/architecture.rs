//! The architectures that releases are built for.

use std::fmt;

use anyhow::bail;
use clap::ValueEnum;

/// An architecture of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Architecture {
    /// This machine's.
    ///
    /// # Errors
    /// If releases are not built for it.
    pub fn own() -> anyhow::Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("no image is built for {other}: use a machine with amd64 or arm64"),
        }
    }

    /// Whether it is this machine's.
    #[must_use]
    pub fn is_own(self) -> bool {
        Self::own().is_ok_and(|own| own == self)
    }

    /// Its name, as images and Debian have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The compiler's name of it.
    #[must_use]
    pub fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Debian's linker for it.
    #[must_use]
    pub fn linker(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu-gcc",
            Self::Arm64 => "aarch64-linux-gnu-gcc",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
