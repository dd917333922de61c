//! Writes the code that is generated from protos: `cargo run -p leasehold-generate`. A crate of its
//! own, so that it builds even where the generated code does not.

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

/// The part of etcd's API that its platform uses: no part of the project's own contract.
const ETCD_PROTOS: [&str; 1] = ["etcdserverpb.proto"];

/// Each folder of generated code, and what writes it.
const OUTPUTS: [(&str, Generate); 2] =
    [("proto/src/gen", generate), ("coordinator/platform-etcd/src/gen", generate_etcd)];

/// Writes generated code into a folder.
type Generate = fn(&Path) -> anyhow::Result<()>;

fn main() -> anyhow::Result<()> {
    for (folder, generate) in OUTPUTS {
        let folder = root().join(folder);
        generate(&folder)?;
        println!("wrote {}", folder.display());
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn generate(out: &Path) -> anyhow::Result<()> {
    let descriptors =
        protox::compile(PROTOS, [root().join("proto")]).context("compile the protos")?;
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

fn generate_etcd(out: &Path) -> anyhow::Result<()> {
    let protos = root().join("coordinator/platform-etcd/proto");
    let descriptors = protox::compile(ETCD_PROTOS, [protos]).context("compile etcd's protos")?;
    tonic_prost_build::configure()
        .out_dir(out)
        .build_transport(false)
        .build_server(false)
        .compile_fds_with_config(descriptors, tonic_prost_build::Config::new())
        .context("generate the code for etcd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_code_is_what_the_protos_give() {
        for (shown, generate) in OUTPUTS {
            let fresh = tempfile::tempdir().expect("a temporary folder");
            generate(fresh.path()).expect("the protos compile");
            let folder = root().join(shown);
            assert_eq!(names(fresh.path()), names(&folder), "files in {shown}");
            for name in names(&folder) {
                let stale = read(fresh.path(), &name) != read(&folder, &name);
                assert!(!stale, "{shown}/{name} is stale: cargo run -p leasehold-generate");
            }
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
