//! Container images of one layer, packed without a builder, for one architecture or several.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::architecture::Architecture;
use crate::checksums::sha256;

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

    /// Writes an archive of an image for this machine: see [`pack`].
    ///
    /// # Errors
    /// If a file cannot be read, or the archive cannot be written.
    pub fn pack(&self, archive: &Path) -> anyhow::Result<()> {
        pack(&[(Architecture::own()?, self)], archive)
    }

    /// Its configuration, with the digest of its layer.
    fn config(&self, architecture: Architecture, layer: &str) -> String {
        json!({
            "architecture": architecture.name(),
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/"],
                "WorkingDir": "/",
                "User": self.user,
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
            "history": [{ "created_by": "leasehold-release" }],
        })
        .to_string()
    }

    fn layer(&self) -> anyhow::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (folder, mode) in [("tmp/", 0o1777), ("etc/", 0o755), ("proc/", 0o755), ("sys/", 0o755)]
        {
            let mut header = header(0, mode);
            header.set_entry_type(EntryType::Directory);
            tar.append_data(&mut header, folder, std::io::empty())?;
        }
        for (source, path) in &self.files {
            let data = std::fs::read(source);
            let data = data.with_context(|| format!("cannot read {}", source.display()))?;
            append(&mut tar, path.trim_start_matches('/'), &data)?;
        }
        Ok(tar.into_inner()?)
    }
}

/// Writes an archive with an image for each of these architectures, under the name of the first. It
/// is an OCI image layout, whose index `ctr images import` and registries read, and for `docker
/// load`, which knows no index, an archive of the first image.
///
/// # Errors
/// If there is no image, a file cannot be read, or the archive cannot be written.
pub fn pack(images: &[(Architecture, &Image)], archive: &Path) -> anyhow::Result<()> {
    const OCI: &str = "application/vnd.oci.image";
    let (_, first) = images.first().context("no image to pack")?;
    let named = || format!("cannot write {}", archive.display());
    let file = std::fs::File::create(archive).with_context(named)?;
    let mut blobs = Blobs { tar: Builder::new(file), written: BTreeSet::new() };
    let (mut manifests, mut for_docker) = (Vec::new(), None);
    for &(architecture, image) in images {
        let layer = blobs.add(&format!("{OCI}.layer.v1.tar"), &image.layer()?)?;
        let config = blobs.add(
            &format!("{OCI}.config.v1+json"),
            &image.config(architecture, &layer.digest).into_bytes(),
        )?;
        for_docker.get_or_insert_with(|| {
            json!([{
                "Config": config.path(), "RepoTags": [first.reference], "Layers": [layer.path()],
            }])
        });
        let kind = format!("{OCI}.manifest.v1+json");
        let manifest = json!({
            "schemaVersion": 2, "mediaType": kind,
            "config": config.descriptor, "layers": [layer.descriptor],
        });
        let mut manifest = blobs.add(&kind, &manifest.to_string().into_bytes())?.descriptor;
        manifest["platform"] = json!({ "architecture": architecture.name(), "os": "linux" });
        manifests.push(manifest);
    }
    let kind = format!("{OCI}.index.v1+json");
    let index = json!({ "schemaVersion": 2, "mediaType": kind, "manifests": manifests });
    let mut index = blobs.add(&kind, &index.to_string().into_bytes())?.descriptor;
    let (_, tag) = first.reference.rsplit_once(':').unwrap_or((&first.reference, "latest"));
    index["annotations"] = json!({
        "io.containerd.image.name": first.reference, "org.opencontainers.image.ref.name": tag,
    });
    for (path, data) in [
        ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })),
        ("index.json", json!({ "schemaVersion": 2, "mediaType": kind, "manifests": [index] })),
        ("manifest.json", for_docker.context("no image to pack")?),
    ] {
        append(&mut blobs.tar, path, data.to_string().as_bytes()).with_context(named)?;
    }
    blobs.tar.finish().with_context(named)
}

/// The blobs of an archive, each once.
struct Blobs {
    tar: Builder<std::fs::File>,
    written: BTreeSet<String>,
}

/// A blob that is in an archive.
struct Blob {
    digest: String,
    descriptor: Value,
}

impl Blobs {
    fn add(&mut self, kind: &str, data: &[u8]) -> anyhow::Result<Blob> {
        let digest = sha256(data);
        let descriptor =
            json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": data.len() });
        let blob = Blob { digest, descriptor };
        if self.written.insert(blob.digest.clone()) {
            append(&mut self.tar, &blob.path(), data).context("cannot write the archive")?;
        }
        Ok(blob)
    }
}

impl Blob {
    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_archive_has_an_index_of_the_images_and_one_for_docker() {
        let folder = tempfile::tempdir().expect("a folder");
        let images = [Architecture::Amd64, Architecture::Arm64].map(|architecture| {
            let file = folder.path().join(architecture.name());
            std::fs::write(&file, architecture.name()).expect("written");
            (architecture, Image::new("mirror.invalid/it:1", &["/it"]).file(&file, "/it"))
        });
        let archive = folder.path().join("it.tar");
        pack(&images.each_ref().map(|(name, image)| (*name, image)), &archive).expect("packed");

        let mut blobs = std::collections::BTreeMap::new();
        let mut tar = tar::Archive::new(std::fs::File::open(&archive).expect("the archive"));
        for entry in tar.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").display().to_string();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).expect("its content");
            if let Some(digest) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(digest, sha256(&data));
            }
            blobs.insert(path, data);
        }
        let parsed = |path: &str| -> Value {
            serde_json::from_slice(&blobs[path]).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let followed = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().expect("a digest");
            let path = digest.replace("sha256:", "blobs/sha256/");
            assert_eq!(descriptor["size"], blobs[&path].len());
            path
        };
        assert_eq!(parsed("oci-layout")["imageLayoutVersion"], "1.0.0");
        let index = &parsed("index.json")["manifests"][0];
        assert_eq!(index["annotations"]["io.containerd.image.name"], "mirror.invalid/it:1");
        let index = parsed(&followed(index));
        let manifests = index["manifests"].as_array().expect("manifests");
        let mut layers = Vec::new();
        for (manifest, architecture) in manifests.iter().zip(["amd64", "arm64"]) {
            assert_eq!(
                manifest["platform"],
                json!({ "architecture": architecture, "os": "linux" })
            );
            let manifest = parsed(&followed(manifest));
            let config = parsed(&followed(&manifest["config"]));
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
            layers.push(followed(&manifest["layers"][0]));
        }
        assert_eq!((manifests.len(), layers[0] == layers[1]), (2, false));
        let docker = &parsed("manifest.json")[0];
        assert_eq!(docker["RepoTags"], json!(["mirror.invalid/it:1"]));
        assert_eq!(docker["Layers"], json!([layers[0]]));
    }
}
