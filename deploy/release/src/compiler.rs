//! Compiles the programs, linked statically and without paths of this machine.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::architecture::Architecture;
use crate::checksums::sha256;
use crate::program::Program;
use crate::{is_on_path, output, run};

/// How the names of variables begin that change what is compiled.
const CHANGING: [&str; 5] = ["CARGO_PROFILE_", "CFLAGS", "CXXFLAGS", "TARGET_CFLAGS", "LDFLAGS"];

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
    /// If they cannot be compiled.
    pub fn compile(&self, programs: &[Program], architecture: Architecture) -> anyhow::Result<()> {
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

    /// Checks that this machine can compile for an architecture.
    ///
    /// # Errors
    /// If the compiler's target or a linker is not installed, with the command that installs it.
    pub fn check(&self, architecture: Architecture) -> anyhow::Result<()> {
        let target = architecture.target();
        if !self.sysroot()?.join("lib/rustlib").join(target).join("lib").exists() {
            bail!(
                "the compiler's target {target} is not installed: run `rustup target add {target}`"
            );
        }
        if !architecture.is_own() && !is_on_path(architecture.linker()) {
            bail!(
                "{} is not installed: on Debian, run `apt-get install gcc-{cpu}-linux-gnu \
                 libc6-dev-{architecture}-cross`",
                architecture.linker(),
                cpu = target.split('-').next().unwrap_or(target).replace('_', "-"),
            );
        }
        Ok(())
    }

    /// What a build depends on beside the sources, one per line.
    pub(crate) fn toolchain(&self, architectures: &[Architecture]) -> anyhow::Result<String> {
        let mut text = self.rustc(&["-vV"])?;
        for &architecture in architectures {
            let linker = if architecture.is_own() { "cc" } else { architecture.linker() };
            let asked = |flag: &str| -> anyhow::Result<String> {
                let answer = output(Command::new(linker).arg(flag))?;
                let answer = String::from_utf8_lossy(&answer);
                Ok(answer.lines().next().unwrap_or_default().to_owned())
            };
            let compiler = asked("--version")?;
            let ld = output(Command::new(asked("-print-prog-name=ld")?).arg("--version"))?;
            let ld = String::from_utf8_lossy(&ld);
            let library = asked("-print-file-name=libc.a")?;
            let library = std::fs::read(&library).with_context(|| library.clone())?;
            writeln!(text, "{architecture} compiler: {compiler}")?;
            writeln!(text, "{architecture} linker: {}", ld.lines().next().unwrap_or_default())?;
            writeln!(text, "{architecture} libc.a: sha256 {}", sha256(&library))?;
        }
        Ok(text)
    }

    fn rustc(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let printed = output(Command::new("rustc").args(arguments).current_dir(&self.root))?;
        String::from_utf8(printed).context("rustc's output")
    }

    fn sysroot(&self) -> anyhow::Result<PathBuf> {
        Ok(PathBuf::from(self.rustc(&["--print", "sysroot"])?.trim_end()))
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
        for (name, _) in std::env::vars_os() {
            if CHANGING.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
            {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.root).env("CARGO_ENCODED_RUSTFLAGS", flags);
        // Nothing of this is kept: symbols are stripped, and a release is compiled once.
        command.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "false");
        if !architecture.is_own() {
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
        let version = self.rustc(&["-vV"])?;
        let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: "));
        let commit = commit.context("rustc -vV names no commit")?;
        let mut folders = vec![
            (self.root.clone(), "/leasehold".to_owned()),
            (self.target(), "/target".to_owned()),
            // The standard library's sources, if they are installed: otherwise they have this name.
            (self.sysroot()?.join("lib/rustlib/src/rust"), format!("/rustc/{commit}")),
        ];
        // A registry's folder has the name of the registry or of its mirror.
        let registries = home.join("registry/src");
        for registry in registries.read_dir().into_iter().flatten().flatten() {
            folders.push((registry.path(), "/cargo/registry".to_owned()));
        }
        folders.push((home, "/cargo".to_owned()));
        // The last folder that fits counts: the innermost.
        folders.sort_by_key(|(folder, _)| folder.as_os_str().len());
        let flags = ["-C", "target-feature=+crt-static", "-C", "strip=symbols"];
        let mut flags = flags.map(OsString::from).to_vec();
        for (folder, name) in folders {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.extend([folder.as_os_str(), "=".as_ref(), name.as_ref()]);
            flags.push(flag);
        }
        Ok(flags)
    }
}
