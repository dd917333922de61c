//! Container images of one layer, packed without a builder.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use ring::digest::{SHA256, digest};
use serde_json::json;
use tar::{Builder, EntryType, Header};

/// An image to be packed.
#[derive(Clone, Debug)]
pub struct Image {
    reference: String,
    entrypoint: Vec<String>,
    user: String,
    files: Vec<(PathBuf, String)>,
}

impl Image {
    /// An image of this name, for instance `localhost/agent:1`, that runs `entrypoint`, a path and
    /// its first arguments, as the user nobody.
    #[must_use]
    pub fn new(reference: &str, entrypoint: &[&str]) -> Self {
        let entrypoint = entrypoint.iter().map(|&part| part.to_owned()).collect();
        let user = "65532:65532".to_owned();
        Self { reference: reference.to_owned(), entrypoint, user, files: Vec::new() }
    }

    /// Its name.
    #[must_use]
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// With a file of this machine at an absolute path.
    #[must_use]
    pub fn file(mut self, source: &Path, path: &str) -> Self {
        self.files.push((source.to_owned(), path.to_owned()));
        self
    }

    /// With a program of this machine at an absolute path, and with the shared libraries that it
    /// needs, where it needs any.
    ///
    /// # Panics
    /// If there is no `ldd`.
    #[must_use]
    pub fn program(mut self, source: &Path, path: &str) -> Self {
        let output = Command::new("ldd").arg(source).output().expect("ldd starts");
        // It fails for a static program, which needs none.
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self = self.file(Path::new(library), library);
            }
        }
        self.file(source, path)
    }

    /// Writes an archive that `ctr images import` reads.
    ///
    /// # Panics
    /// If a file cannot be read or the archive not be written.
    pub fn pack(&self, archive: &Path) {
        let layer = self.layer().expect("a layer in memory");
        let layer_id = hex(&layer);
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/"],
                "WorkingDir": "/",
                "User": self.user,
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_id}")] },
            "history": [{ "created_by": "tests" }],
        });
        let config = config.to_string().into_bytes();
        let (config_file, layer_file) =
            (format!("{}.json", hex(&config)), format!("{layer_id}/layer.tar"));
        let manifest = json!([{
            "Config": config_file, "RepoTags": [self.reference], "Layers": [layer_file],
        }]);
        let file = std::fs::File::create(archive).expect("the archive is created");
        let mut tar = Builder::new(file);
        for (path, data) in [
            (&*layer_file, &*layer),
            (&*config_file, &*config),
            ("manifest.json", manifest.to_string().as_bytes()),
        ] {
            append(&mut tar, path, data).expect("the archive is written");
        }
        tar.finish().expect("the archive is written");
    }

    fn layer(&self) -> std::io::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (folder, mode) in [("tmp/", 0o1777), ("etc/", 0o755), ("proc/", 0o755), ("sys/", 0o755)]
        {
            let mut header = header(0, mode);
            header.set_entry_type(EntryType::Directory);
            tar.append_data(&mut header, folder, std::io::empty())?;
        }
        for (source, path) in &self.files {
            append(&mut tar, path.trim_start_matches('/'), &std::fs::read(source)?)?;
        }
        tar.into_inner()
    }
}

fn append<W: Write>(tar: &mut Builder<W>, path: &str, data: &[u8]) -> std::io::Result<()> {
    tar.append_data(&mut header(data.len(), 0o755), path, data)
}

fn header(size: usize, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    header
}

fn hex(data: &[u8]) -> String {
    digest(&SHA256, data).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// This machine's, in the words of images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
