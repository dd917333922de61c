//! Compiles the programs, linked statically and without paths of this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::architecture::Architecture;
use crate::program::Program;
use crate::{output, run};

/// How the programs are optimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// For speed, and the agent for size.
    Release,
    /// Not: for tests.
    Dev,
}

/// Compiles programs in one checkout.
#[derive(Debug)]
pub struct Compiler {
    /// The checkout.
    pub root: PathBuf,
    /// How they are optimised.
    pub profile: Profile,
    /// The registry and folder of the images that the programs name by default; none for one that
    /// cannot exist.
    pub images: Option<String>,
}

impl Compiler {
    /// Compiles these programs for an architecture.
    ///
    /// # Errors
    /// If the target or its linker is not installed, or they cannot be compiled.
    pub fn compile(&self, programs: &[Program], architecture: Architecture) -> anyhow::Result<()> {
        self.check(architecture)?;
        let profiles: Vec<_> = programs.iter().map(|program| self.profile_of(*program)).collect();
        for profile in ["dev", "release", "agent"] {
            let of_profile = programs.iter().zip(&profiles).filter(|(_, own)| **own == profile);
            let packages: Vec<_> = of_profile.map(|(program, _)| program.package()).collect();
            if !packages.is_empty() {
                run(&mut self.cargo(architecture, profile, &packages)?)?;
            }
        }
        Ok(())
    }

    /// The folder that a compiled program is in.
    #[must_use]
    pub fn folder(&self, program: Program, architecture: Architecture) -> PathBuf {
        let folder = match self.profile_of(program) {
            "dev" => "debug",
            other => other,
        };
        self.target().join(architecture.target()).join(folder)
    }

    /// Cargo's profile for a program.
    pub(crate) fn profile_of(&self, program: Program) -> &'static str {
        match (self.profile, program) {
            (Profile::Dev, _) => "dev",
            (Profile::Release, Program::Agent) => "agent",
            (Profile::Release, Program::Coordinator | Program::CommandLine) => "release",
        }
    }

    /// Cargo's target folder.
    pub(crate) fn target(&self) -> PathBuf {
        let folder = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
        self.root.join(folder.unwrap_or_else(|| "target".into()))
    }

    /// Whether the machine can compile for an architecture.
    fn check(&self, architecture: Architecture) -> anyhow::Result<()> {
        let target = architecture.target();
        let sysroot = output(self.rustc().args(["--print", "sysroot"]))?;
        let sysroot = String::from_utf8(sysroot).context("rustc --print sysroot")?;
        if !Path::new(sysroot.trim_end()).join("lib/rustlib").join(target).join("lib").exists() {
            bail!(
                "the compiler's target {target} is not installed: run `rustup target add {target}`"
            );
        }
        if Some(architecture) != Architecture::own().ok() && !is_on_path(architecture.linker()) {
            bail!(
                "{} is not installed: on Debian, run `apt-get install gcc-{cpu}-linux-gnu \
                 libc6-dev-{architecture}-cross`",
                architecture.linker(),
                cpu = target.split('-').next().unwrap_or(target).replace('_', "-"),
            );
        }
        Ok(())
    }

    fn rustc(&self) -> Command {
        let mut command = Command::new("rustc");
        command.current_dir(&self.root);
        command
    }

    fn cargo(
        &self,
        architecture: Architecture,
        profile: &str,
        packages: &[&str],
    ) -> anyhow::Result<Command> {
        let target = architecture.target();
        let mut command = Command::new("cargo");
        command.args(["build", "--locked", "--bins", "--target", target, "--profile", profile]);
        for package in packages {
            command.args(["--package", package]);
        }
        let flags = self.rustc_flags()?.join(OsString::from("\x1f").as_os_str());
        command.current_dir(&self.root).env("CARGO_ENCODED_RUSTFLAGS", flags);
        // Nothing of this is kept: symbols are stripped, and a release is compiled once.
        command.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "false");
        if Some(architecture) != Architecture::own().ok() {
            let name = target.to_uppercase().replace('-', "_");
            command.env(format!("CARGO_TARGET_{name}_LINKER"), architecture.linker());
        }
        match &self.images {
            Some(images) => command.env("LEASEHOLD_IMAGES", images),
            None => command.env_remove("LEASEHOLD_IMAGES"),
        };
        Ok(command)
    }

    /// Static programs, without symbols and without the folders that this machine builds in.
    fn rustc_flags(&self) -> anyhow::Result<Vec<OsString>> {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
        let home = home.context("neither CARGO_HOME nor HOME is set")?;
        let mut flags = ["-C", "target-feature=+crt-static", "-C", "strip=symbols"]
            .map(OsString::from)
            .to_vec();
        // The last that fits counts.
        for (folder, name) in
            [(&home, "/cargo"), (&self.root, "/leasehold"), (&self.target(), "/target")]
        {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.extend([folder.as_os_str(), "=".as_ref(), name.as_ref()]);
            flags.push(flag);
        }
        Ok(flags)
    }
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
