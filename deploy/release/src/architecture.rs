//! The architectures that releases are built for.

use std::fmt;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
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

    /// A program's, as its ELF header names it.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a program for one of them.
    pub fn of_program(program: &Path) -> anyhow::Result<Self> {
        /// Where the header has the number of the machine (elf(5)), which both write little-endian.
        const MACHINE: std::ops::Range<usize> = 18..20;
        let mut header = [0; MACHINE.end];
        let read = std::fs::File::open(program).and_then(|mut file| file.read_exact(&mut header));
        read.with_context(|| format!("cannot read {}", program.display()))?;
        match &header[MACHINE] {
            [62, 0] if header.starts_with(b"\x7fELF") => Ok(Self::Amd64),
            [183, 0] if header.starts_with(b"\x7fELF") => Ok(Self::Arm64),
            _ => bail!("{} is not a program for amd64 or arm64", program.display()),
        }
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
