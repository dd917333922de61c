//! Makes a release, step by step.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use leasehold_kube_api::names::UNPUBLISHED_IMAGES;

use crate::architecture::Architecture;
use crate::archive::Archive;
use crate::compiler::Compiler;
use crate::program::Program;
use crate::{
    VERSION, checksums, debian, deployment, file_names, image, output, pages, sbom, step, tool,
    tracked,
};

/// The file that names what the programs were built with.
const TOOLCHAIN: &str = "toolchain.txt";

/// What is released.
#[derive(Debug)]
pub struct Release {
    /// How the programs are compiled.
    pub compiler: Compiler,
    /// What for, in order.
    pub architectures: Vec<Architecture>,
    /// The folder that the files are written to.
    pub folder: PathBuf,
}

impl Release {
    /// Builds all of it. The folder then has these files and no others. Until all are built it has
    /// those of the release before. With `allow_dirty` changes that are not committed are released,
    /// too.
    ///
    /// # Errors
    /// If a tool is missing, the folder has other files than a release's, or a step fails.
    pub fn build(&self, allow_dirty: bool) -> anyhow::Result<()> {
        let root = &self.compiler.root;
        if !allow_dirty {
            check_clean(root)?;
        }
        for &architecture in &self.architectures {
            self.compiler.check(architecture)?;
        }
        for name in [debian::TOOL, sbom::TOOL] {
            tool(root, name)?;
        }
        let former = former(&self.folder)?;
        let time_s = commit_time(root)?;
        let pages = tempfile::tempdir().context("a folder for the manual pages")?;
        for program in Program::ALL {
            pages::write(program, self.registry(), &pages.path().join(program.binary()))?;
        }
        self.compile(&Program::ALL)?;

        let parent = self.folder.parent().context("the folder of a release has a parent")?;
        let built = tempfile::Builder::new().prefix(".release-").tempdir_in(parent);
        let built = built.with_context(|| format!("cannot write in {}", parent.display()))?;
        for &architecture in &self.architectures {
            step(&format!("packing for {architecture}: archive, Debian packages, materials"));
            self.archive(architecture, pages.path(), time_s, built.path())?;
            for program in Program::ALL {
                let pages = pages.path().join(program.binary());
                let compiler = &self.compiler;
                debian::write(compiler, program, architecture, &pages, time_s, built.path())?;
            }
            sbom::write(root, architecture, time_s, built.path())?;
        }
        step("packing images, chart and manifests");
        self.pack_images(built.path())?;
        deployment::write(root, self.registry(), time_s, built.path())?;
        let toolchain = self.compiler.toolchain(&self.architectures)?;
        std::fs::write(built.path().join(TOOLCHAIN), toolchain).context(TOOLCHAIN)?;
        checksums::write(built.path())?;

        for name in former {
            std::fs::remove_file(self.folder.join(&name)).context(name)?;
        }
        for name in file_names(built.path())? {
            std::fs::rename(built.path().join(&name), self.folder.join(&name)).context(name)?;
        }
        self.list()
    }

    /// Builds the images alone.
    ///
    /// # Errors
    /// If a target is missing, a program cannot be compiled, or an archive cannot be written.
    pub fn build_images(&self) -> anyhow::Result<()> {
        for &architecture in &self.architectures {
            self.compiler.check(architecture)?;
        }
        self.compile(&Program::WITH_IMAGE)?;
        step("packing");
        std::fs::create_dir_all(&self.folder).context("the folder of the images")?;
        self.pack_images(&self.folder)
    }

    fn compile(&self, programs: &[Program]) -> anyhow::Result<()> {
        for &architecture in &self.architectures {
            step(&format!("compiling for {architecture} (some minutes the first time)"));
            self.compiler.compile(programs, architecture)?;
        }
        Ok(())
    }

    /// Packs the images, each for all architectures.
    fn pack_images(&self, folder: &Path) -> anyhow::Result<()> {
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
            image::pack(&images, &folder.join(program.binary()).with_extension("tar"))?;
            let names: Vec<_> = self.architectures.iter().map(|of| of.name()).collect();
            println!("    {}.tar: {reference} ({})", program.binary(), names.join(", "));
        }
        Ok(())
    }

    /// The programs with their manual pages, completions and units in one archive.
    fn archive(
        &self,
        architecture: Architecture,
        pages: &Path,
        time_s: u64,
        folder: &Path,
    ) -> anyhow::Result<()> {
        let root = &self.compiler.root;
        let name = format!("leasehold-{VERSION}-linux-{architecture}");
        let path = folder.join(format!("{name}.tar.gz"));
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
        for path in tracked(root, debian::UNITS)? {
            let below = path.strip_prefix("deploy/").unwrap_or(&path);
            if !below.starts_with("systemd/debian/") {
                archive.add_file(below, &root.join(&path))?;
            }
        }
        let completions = pages::SHELLS.map(|(_, shell)| format!("completions/{shell}"));
        for program in Program::ALL {
            let pages = pages.join(program.binary());
            for below in completions.iter().map(String::as_str).chain(["man"]) {
                for name in file_names(&pages.join(below))? {
                    archive.add_file(&format!("{below}/{name}"), &pages.join(below).join(name))?;
                }
            }
        }
        archive.finish()
    }

    /// The registry and folder of the images.
    fn registry(&self) -> &str {
        self.compiler.images.as_deref().unwrap_or(UNPUBLISHED_IMAGES)
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

/// The time of the commit that is released, in seconds since 1970: all files have it.
fn commit_time(root: &Path) -> anyhow::Result<u64> {
    let time = output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?;
    let time = String::from_utf8(time).context("git log")?;
    time.trim_end().parse().with_context(|| format!("git log printed {time:?}"))
}

/// Refuses a checkout with changes that are not committed.
fn check_clean(root: &Path) -> anyhow::Result<()> {
    let changed = output(
        Command::new("git")
            .args(["status", "--porcelain", "--untracked-files=all"])
            .current_dir(root),
    )?;
    let changed = String::from_utf8_lossy(&changed);
    if changed.is_empty() {
        return Ok(());
    }
    let first: Vec<_> = changed.lines().take(5).collect();
    bail!(
        "the checkout has changes that are not committed, so this release could not be built \
         again:\n{}\nCommit or remove them, or add --allow-dirty to try it",
        first.join("\n")
    );
}

/// The files of the release that a folder has; none if it is empty or does not exist yet.
fn former(folder: &Path) -> anyhow::Result<Vec<String>> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let listed = match std::fs::read_to_string(folder.join(checksums::FILE)) {
        Ok(listed) => listed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).context(checksums::FILE),
    };
    let listed: Vec<&str> =
        listed.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    let mut names = Vec::new();
    for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_listed = listed.contains(&name.as_str());
        // Other projects have a file of this name too.
        let is_release = listed.contains(&TOOLCHAIN);
        if !is_release || (name != checksums::FILE && !is_listed) {
            bail!(
                "{} has a file that is not of a release, {name}: name another folder",
                folder.display()
            );
        }
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_anything_but_a_release_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        assert_eq!(former(folder.path()).expect("an empty folder"), Vec::<String>::new());
        put("leasehold-agent.tar", "an image");
        put(TOOLCHAIN, "rustc");
        let refused = || former(folder.path()).expect_err("no release").to_string();
        assert!(refused().contains("name another folder"));
        checksums::write(folder.path()).expect("checksums");
        let mut names = former(folder.path()).expect("a release");
        names.sort_unstable();
        assert_eq!(names, [checksums::FILE, "leasehold-agent.tar", TOOLCHAIN]);
        put("notes.txt", "mine");
        assert!(refused().contains("notes.txt"), "{}", refused());
        std::fs::remove_file(folder.path().join("notes.txt")).expect("removed");
        put(checksums::FILE, "0123  leasehold-agent.tar\n0123  image.iso\n");
        put("image.iso", "another project's");
        let why = refused();
        assert!(!why.is_empty() && folder.path().join("image.iso").exists(), "{why}");
    }

    #[test]
    fn a_checkout_with_changes_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let git = |arguments: &[&str]| {
            let who = ["-c", "user.name=tests", "-c", "user.email=tests@example.invalid"];
            let arguments = [&who[..], arguments].concat();
            output(Command::new("git").args(arguments).current_dir(folder.path())).expect("git");
        };
        git(&["init", "--quiet"]);
        git(&["config", "status.showUntrackedFiles", "no"]);
        std::fs::write(folder.path().join("file"), "1").expect("written");
        let why = check_clean(folder.path()).expect_err("a new file").to_string();
        assert!(why.contains("?? file") && why.contains("--allow-dirty"), "{why}");
        git(&["add", "file"]);
        git(&["commit", "--quiet", "--message", "Add a file"]);
        check_clean(folder.path()).expect("all is committed");
        std::fs::write(folder.path().join("file"), "2").expect("written");
        check_clean(folder.path()).expect_err("a changed file");
    }
}
