//! Makes a release, step by step.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use leasehold_kube_api::names::IMAGES;

use crate::architecture::Architecture;
use crate::archive::Archive;
use crate::compiler::Compiler;
use crate::program::Program;
use crate::{VERSION, checksums, debian, deployment, file_names, image, output, pages, sbom};

/// What is released.
#[derive(Debug)]
pub struct Release {
    /// How the programs are compiled.
    pub compiler: Compiler,
    /// What for, in order.
    pub architectures: Vec<Architecture>,
    /// The folder that the files are written to.
    pub folder: PathBuf,
    /// Whether changes that are not committed are released too.
    pub allow_dirty: bool,
}

impl Release {
    /// Builds all of it. The folder then has these files and no others.
    ///
    /// # Errors
    /// If a tool is missing, or a step fails.
    pub fn build(&self) -> anyhow::Result<()> {
        if !self.allow_dirty {
            check_clean(&self.compiler.root)?;
        }
        let time_s = commit_time(&self.compiler.root)?;
        // A release that fails leaves no half of itself under the old checksums.
        empty(&self.folder)?;
        let pages = tempfile::tempdir().context("a folder for the manual pages")?;
        for program in Program::ALL {
            pages::write(program, self.registry(), &pages.path().join(program.binary()))?;
        }
        for &architecture in &self.architectures {
            step(&format!("compiling for {architecture} (some minutes the first time)"));
            self.compiler.compile(&Program::ALL, architecture)?;
        }
        for &architecture in &self.architectures {
            step(&format!("packing for {architecture}: archive, Debian packages, materials"));
            self.archive(architecture, pages.path(), time_s)?;
            for program in Program::ALL {
                let pages = pages.path().join(program.binary());
                let compiler = &self.compiler;
                debian::write(compiler, program, architecture, &pages, time_s, &self.folder)?;
            }
            sbom::write(&self.compiler.root, architecture, time_s, &self.folder)?;
        }
        step("packing images, chart and manifests");
        self.images()?;
        deployment::write(&self.compiler.root, self.registry(), time_s, &self.folder)?;
        checksums::write(&self.folder)?;
        self.list()
    }

    /// Packs the images, each for all architectures.
    ///
    /// # Errors
    /// If a program is not compiled, or the archive cannot be written.
    pub fn images(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.folder).context("the folder of the images")?;
        for program in Program::WITH_IMAGE {
            let reference = program.reference_in(self.registry());
            let images: Vec<_> = self
                .architectures
                .iter()
                .map(|&architecture| {
                    let file = self.compiler.folder(program, architecture).join(program.binary());
                    (architecture, program.image_named(&reference, &file))
                })
                .collect();
            let images: Vec<_> = images.iter().map(|(of, image)| (*of, image)).collect();
            image::pack(&images, &self.folder.join(program.binary()).with_extension("tar"));
            let names: Vec<_> = self.architectures.iter().map(|of| of.name()).collect();
            println!("    {}.tar: {reference} ({})", program.binary(), names.join(", "));
        }
        Ok(())
    }

    /// The programs with their manual pages, completions and units in one archive.
    fn archive(&self, architecture: Architecture, pages: &Path, time_s: u64) -> anyhow::Result<()> {
        let root = &self.compiler.root;
        let name = format!("leasehold-{VERSION}-linux-{architecture}");
        let path = self.folder.join(format!("{name}.tar.gz"));
        let mut archive = Archive::create(&path, &name, time_s)?;
        for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
            archive.add_file(name, &root.join(name))?;
        }
        for program in Program::ALL {
            let binary = program.binary();
            let file = self.compiler.folder(program, architecture).join(binary);
            archive.add_file(&format!("bin/{binary}"), &file)?;
        }
        archive.add_link("bin/kubectl-leasehold", Program::CommandLine.binary())?;
        let units = root.join("deploy/systemd");
        for name in file_names(&units)? {
            archive.add_file(&format!("systemd/{name}"), &units.join(name))?;
        }
        let of_shells = pages::SHELLS.map(|(_, shell)| format!("completions/{shell}"));
        for program in Program::ALL {
            let pages = pages.join(program.binary());
            for below in of_shells.iter().map(String::as_str).chain(["man"]) {
                for name in file_names(&pages.join(below))? {
                    archive.add_file(&format!("{below}/{name}"), &pages.join(below).join(name))?;
                }
            }
        }
        archive.finish()
    }

    /// The registry and folder of the images.
    fn registry(&self) -> &str {
        self.compiler.images.as_deref().unwrap_or(IMAGES)
    }

    fn list(&self) -> anyhow::Result<()> {
        step(&format!("Leasehold {VERSION} is in {}", self.folder.display()));
        for name in file_names(&self.folder)? {
            let bytes = self.folder.join(&name).metadata()?.len();
            println!("    {:>8.1} MB  {name}", bytes as f64 / 1e6);
        }
        Ok(())
    }
}

fn step(what: &str) {
    println!("\n==> {what}");
}

/// The time of the commit that is released, in seconds since 1970: all files have it.
fn commit_time(root: &Path) -> anyhow::Result<u64> {
    let time = output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?;
    let time = String::from_utf8(time).context("git log")?;
    time.trim_end().parse().with_context(|| format!("git log printed {time:?}"))
}

/// Refuses a checkout with changes that are not committed.
fn check_clean(root: &Path) -> anyhow::Result<()> {
    let changed = output(Command::new("git").args(["status", "--porcelain"]).current_dir(root))?;
    let changed = String::from_utf8_lossy(&changed);
    if changed.is_empty() {
        return Ok(());
    }
    let first: Vec<_> = changed.lines().take(5).collect();
    bail!(
        "the checkout has changes that are not committed, so nobody could build this release \
         again:\n{}\nCommit or remove them, or add --allow-dirty to try it",
        first.join("\n")
    );
}

/// Makes an empty folder, or empties one that has a release.
fn empty(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let names = file_names(folder)?;
    let is_release = names.iter().any(|name| name == checksums::FILE)
        || names.iter().all(|name| name.starts_with("leasehold"));
    if !is_release {
        bail!(
            "{} has files that are not of a release, for example {}: name another folder",
            folder.display(),
            names[0]
        );
    }
    for name in names {
        std::fs::remove_file(folder.join(&name)).context(name)?;
    }
    Ok(())
}
