//! Compressed archives whose bytes depend on their content alone: files in order, all with one time
//! and nobody's name.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// An archive that is being written, a `.tar.gz`.
pub(crate) struct Archive {
    tar: Builder<GzEncoder<File>>,
    root: String,
    time_s: u64,
}

impl Archive {
    /// Creates an archive with everything in the folder `root`. Its files have the time `time_s`,
    /// in seconds since 1970.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn create(path: &Path, root: &str, time_s: u64) -> anyhow::Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { tar: Builder::new(compressed(file)), root: root.to_owned(), time_s })
    }

    /// Adds data as a file at a path below the root. Those that may be run are programs.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn add(&mut self, path: &str, data: &[u8], is_program: bool) -> anyhow::Result<()> {
        let mut header = self.header(if is_program { 0o755 } else { 0o644 });
        header.set_size(data.len() as u64);
        self.tar.append_data(&mut header, format!("{}/{path}", self.root), data).context("archive")
    }

    /// Adds a file at a path below the root.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub(crate) fn add_file(&mut self, path: &str, source: &Path) -> anyhow::Result<()> {
        let mut data = Vec::new();
        let opened = File::open(source).and_then(|mut file| {
            file.read_to_end(&mut data)?;
            file.metadata()
        });
        let metadata = opened.with_context(|| format!("cannot read {}", source.display()))?;
        self.add(path, &data, is_program(&metadata))
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn add_link(&mut self, path: &str, to: &str) -> anyhow::Result<()> {
        let mut header = self.header(0o777);
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        let path = format!("{}/{path}", self.root);
        self.tar.append_link(&mut header, path, to).context("archive")
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let file = self.tar.into_inner()?.finish()?;
        file.sync_all().context("archive")
    }

    fn header(&self, mode: u32) -> Header {
        let mut header = Header::new_gnu();
        header.set_mode(mode);
        header.set_mtime(self.time_s);
        header
    }
}

/// Writes data compressed.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn gzip(data: &[u8], path: &Path) -> anyhow::Result<()> {
    let named = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(named)?;
    let mut gzip = compressed(file);
    gzip.write_all(data).and_then(|()| gzip.try_finish()).with_context(named)
}

/// Compresses what is written to it; the result has no name and no time.
fn compressed(file: File) -> GzEncoder<File> {
    GzBuilder::new().write(file, Compression::default())
}

/// Whether a file may be run.
pub(crate) fn is_program(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}
