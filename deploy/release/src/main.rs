//! Builds a release, or its images alone: `make release`, `make images`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use leasehold_release::{Architecture, Compiler, Profile, Release};

/// Builds what a release of Leasehold consists of.
#[derive(Debug, Parser)]
#[command(
    name = "release",
    version,
    after_help = "Examples:
  release all --output target/dist
  release all --output target/dist --images registry.example/leasehold
  release images --output .cache/images --architecture arm64"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Builds everything, for both architectures unless one is named
    #[command(after_help = "Example:\n  release all --output target/dist")]
    All(AllArgs),
    /// Builds the container images alone, for this machine unless an architecture is named
    #[command(after_help = "Example:\n  release images --output .cache/images --profile dev")]
    Images(CommonArgs),
}

#[derive(Args, Debug)]
struct AllArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Also builds a checkout with changes that are not committed; bills of materials are of the
    /// last commit
    #[arg(long)]
    allow_dirty: bool,
}

#[derive(Args, Debug)]
struct CommonArgs {
    /// The folder that the files are written to
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// An architecture to build for; may be repeated
    #[arg(long = "architecture", value_enum, value_name = "ARCHITECTURE")]
    architectures: Vec<Architecture>,
    /// The registry and folder that the images are published in [default:
    /// registry.invalid/leasehold, from which nothing can be pulled]
    #[arg(long, value_name = "IMAGES", value_parser = images)]
    images: Option<String>,
    /// How the programs are optimised
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
}

impl CommonArgs {
    fn release(self, default: Vec<Architecture>) -> anyhow::Result<Release> {
        let mut architectures =
            if self.architectures.is_empty() { default } else { self.architectures };
        architectures.sort_unstable();
        architectures.dedup();
        // The crate is in deploy/release.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let folder = std::path::absolute(self.output)?;
        let compiler = Compiler { root, profile: self.profile, images: self.images };
        Ok(Release { compiler, architectures, folder })
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::All(args) => {
            let both = vec![Architecture::Amd64, Architecture::Arm64];
            args.common.release(both)?.build(args.allow_dirty)
        }
        Command::Images(common) => common.release(vec![Architecture::own()?])?.build_images(),
    }
}

/// A registry with a folder, such as `registry.example/leasehold`.
fn images(text: &str) -> Result<String, String> {
    let is_name = |part: &str| {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(allowed)
    };
    let (host, folder) = text.split_once('/').unwrap_or((text, ""));
    let (name, port) = host.split_once(':').unwrap_or((host, "1"));
    if is_name(name) && port.parse::<u16>().is_ok() && folder.split('/').all(is_name) {
        return Ok(text.to_owned());
    }
    Err("expected a registry and a folder without a tag, for example registry.example/leasehold"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn images_have_a_registry_and_a_folder_and_no_tag() {
        for text in ["registry.example/leasehold", "mirror:5000/a/b-c", "ghcr.io/acme/leasehold"] {
            assert_eq!(images(text).as_deref(), Ok(text));
        }
        for text in ["", "leasehold", "https://a/b", "a/b:1", "a/", "/a", "A/b", "a:x/b", "a/b@c"] {
            assert!(images(text).is_err(), "{text}");
        }
    }
}
