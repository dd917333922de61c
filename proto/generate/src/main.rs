//! Writes `proto/src/gen` from the protos: `cargo run -p leasehold-generate`. A crate of its own,
//! so that it builds even where the generated code does not.

use std::path::{Path, PathBuf};

use anyhow::Context;
use prost::Message;

const PROTOS: [&str; 6] = [
    "leasehold/coordinator/v1/leader.proto",
    "leasehold/coordinator/v1/session.proto",
    "leasehold/coordinator/v1/peer.proto",
    "leasehold/worker/v1/worker.proto",
    "leasehold/admin/v1/admin.proto",
    "externalscaler/externalscaler.proto",
];

fn main() -> anyhow::Result<()> {
    let folder = committed();
    generate(&folder)?;
    println!("wrote {}", folder.display());
    Ok(())
}

fn committed() -> PathBuf {
    protos().join("src/gen")
}

fn protos() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn generate(out: &Path) -> anyhow::Result<()> {
    let descriptors = protox::compile(PROTOS, [protos()]).context("compile the protos")?;
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())
        .with_context(|| format!("write to {}", out.display()))?;
    let mut config = tonic_prost_build::Config::new();
    // Messages know their names, by which their descriptors are found.
    config.enable_type_names();
    tonic_prost_build::configure()
        .out_dir(out)
        .build_transport(false)
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .compile_fds_with_config(descriptors, config)
        .context("generate the code")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_code_is_what_the_protos_give() {
        let fresh = tempfile::tempdir().expect("a temporary folder");
        generate(fresh.path()).expect("the protos compile");
        let folder = committed();
        assert_eq!(names(fresh.path()), names(&folder), "files in proto/src/gen");
        for name in names(&folder) {
            let stale = read(fresh.path(), &name) != read(&folder, &name);
            assert!(!stale, "proto/src/gen/{name} is stale: cargo run -p leasehold-generate");
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("UTF-8")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    fn read(folder: &Path, name: &str) -> Vec<u8> {
        std::fs::read(folder.join(name)).expect("a file")
    }
}
