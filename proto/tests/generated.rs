//! The generated code in `src/gen` is what the protos give. To write it anew:
//! `LEASEHOLD_REGENERATE=1 cargo test -p leasehold-proto --test generated`.

use std::fs;
use std::path::Path;

use prost::Message;

const PROTOS: [&str; 3] = [
    "leasehold/coordinator/v1/session.proto",
    "leasehold/worker/v1/worker.proto",
    "leasehold/admin/v1/admin.proto",
];

#[test]
fn generated_code_is_what_the_protos_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("src/gen");
    let fresh = tempfile::tempdir().expect("a temporary folder");
    generate(root, fresh.path());

    if std::env::var_os("LEASEHOLD_REGENERATE").is_some() {
        for name in names(fresh.path()) {
            fs::copy(fresh.path().join(&name), committed.join(&name)).expect("write src/gen");
        }
    }
    assert_eq!(names(fresh.path()), names(&committed), "files in proto/src/gen");
    for name in names(fresh.path()) {
        let (want, have) = (read(fresh.path(), &name), read(&committed, &name));
        assert!(want == have, "proto/src/gen/{name} is stale: see the top of this test's file");
    }
}

fn generate(root: &Path, out: &Path) {
    let descriptors = protox::compile(PROTOS, [root]).expect("the protos compile");
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec()).expect("write");
    tonic_prost_build::configure()
        .out_dir(out)
        .build_transport(true)
        .compile_fds(descriptors)
        .expect("the code generates");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).expect("a file")
}
