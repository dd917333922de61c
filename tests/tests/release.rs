//! What `make release` makes, for arm64 and with programs that are not optimised: the files, that a
//! second time gives the same, and that what is in them runs. An emulator runs the programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use leasehold_release::{Architecture, Program, VERSION};
use serde_json::Value;
use tests::answers::{json, lease};
use tests::command_line::MANIFESTS;
use tests::process::{Process, Replica, eventually, free_address};
use tests::toolbox::{self, Missing};

/// Where the images of this release are said to be.
const IMAGES: &str = "mirror.example/leasehold";
/// Runs programs for arm64.
const EMULATOR: &str = "qemu-aarch64-static";

/// The release, built twice, the second time for another user; none where a tool is missing.
static RELEASES: LazyLock<Option<[PathBuf; 2]>> = LazyLock::new(|| {
    let tools = [EMULATOR, Architecture::Arm64.linker(), "dpkg-deb"];
    let is_there = |tool: &&str| toolbox::on_path(tool).is_some();
    let of_cargo = ["cargo-deb", "cargo-cyclonedx"];
    let is_installed = |tool: &&str| toolbox::root().join(".cache/bin").join(tool).is_file();
    if !tools.iter().all(is_there) || !of_cargo.iter().all(is_installed) {
        toolbox::leave_out("the release", "`make tools` installs its tools", Missing::Installable);
        return None;
    }
    let other = tempfile::tempdir().expect("a folder");
    let other = other.path().to_str().expect("UTF-8");
    let environment = [("TZ", "Asia/Tokyo"), ("LC_ALL", "C.UTF-8"), ("TMPDIR", other)];
    Some([build("first", "022", &[]), build("second", "077", &environment)])
});

/// Builds a release in this test's folder, where one before may be, and returns its folder.
fn build(name: &str, umask: &str, environment: &[(&str, &str)]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("release").join(name);
    let mut release = Command::new("sh");
    release.args(["-c", "umask $0; exec \"$@\"", umask]).arg(toolbox::binary("release"));
    release.args(["all", "--allow-dirty", "--profile", "dev", "--architecture", "arm64"]);
    release.args(["--images", IMAGES]).arg("--output").arg(&folder);
    run(release.envs(environment.iter().copied()));
    folder
}

/// The first of them.
fn release() -> Option<&'static Path> {
    RELEASES.as_ref().map(|[first, _]| first.as_path())
}

#[test]
fn a_release_has_its_files_with_checksums_and_is_the_same_twice() {
    let Some([first, second]) = RELEASES.as_ref() else { return };
    let names = files_of(first);
    let expected = [
        "SHA256SUMS",
        "leasehold-0.1.0-linux-arm64.cdx.json",
        "leasehold-0.1.0-linux-arm64.tar.gz",
        "leasehold-0.1.0.tgz",
        "leasehold-agent-0.1.0-linux-arm64.cdx.json",
        "leasehold-agent.tar",
        "leasehold-agent_0.1.0-1_arm64.deb",
        "leasehold-coordinator-0.1.0-linux-arm64.cdx.json",
        "leasehold-coordinator.tar",
        "leasehold-coordinator_0.1.0-1_arm64.deb",
        "leasehold-deploy-0.1.0.tar.gz",
        "leasehold_0.1.0-1_arm64.deb",
        "toolchain.txt",
    ];
    assert_eq!(names, expected.map(|name| name.replace("0.1.0", VERSION)).into());
    assert_eq!(files_of(second), names);
    for name in &names {
        let [one, other] = [first, second].map(|folder| read(&folder.join(name)));
        assert!(one == other, "{name} differs");
    }
    let listed = run(Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(first));
    assert_eq!(text(&listed).lines().filter(|line| line.ends_with(": OK")).count(), 12);
    let toolchain = String::from_utf8(read(&first.join("toolchain.txt"))).expect("UTF-8");
    for line in ["release: 1.", "arm64 compiler: ", "arm64 linker: GNU ld", "arm64 libc.a: sha256 "]
    {
        assert!(toolchain.lines().any(|one| one.starts_with(line)), "{line} in {toolchain}");
    }
}

#[test]
fn the_images_for_arm64_run_and_an_agent_gets_its_lease() {
    let Some(release) = release() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let [coordinator, agent] = Program::WITH_IMAGE.map(|program| {
        let archive = release.join(program.binary()).with_extension("tar");
        let file = from_image(&archive, program, folder.path());
        let shown = run(Command::new(EMULATOR).arg(&file).arg("--version"));
        assert_eq!(text(&shown), format!("{} {VERSION}\n", program.binary()));
        file
    });

    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests).expect("a folder");
    std::fs::write(manifests.join("cars.yaml"), MANIFESTS).expect("a manifest");
    let [grpc, http, api] = [(); 3].map(|()| free_address());
    let like = Replica::command(folder.path(), [grpc, http]);
    let mut command = Command::new(EMULATOR);
    command.arg(coordinator).args(like.get_args());
    let _coordinator = Process::start(&mut command, &folder.path().join("coordinator.log"));
    let mut command = Command::new(EMULATOR);
    command.arg(agent).args(["run", "--cluster", "builds", "--worker", "w-0"]);
    command.args(["--coordinator", &grpc.to_string(), "--listen", &api.to_string()]);
    command.arg("--state-dir").arg(folder.path().join("worker"));
    let _agent = Process::start(&mut command, &folder.path().join("agent.log"));
    let lease = eventually("a lease", || lease(api).filter(|lease| lease["pool"]["size"] == 3));
    println!("{lease}");
    let clusters = json(http, "/api/v1/clusters").expect("the coordinator's answer");
    assert!(clusters.to_string().contains("builds"), "{clusters}");
}

#[test]
fn a_program_names_the_release_s_registry_and_no_folder_of_the_builder() {
    let Some(release) = release() else { return };
    let unpacked = unpacked(&release.join(format!("leasehold-{VERSION}-linux-arm64.tar.gz")));
    let folder = unpacked.path().join(format!("leasehold-{VERSION}-linux-arm64"));
    let command_line = folder.join("bin/kubectl-leasehold");
    let help = run(Command::new(EMULATOR).arg(command_line).args(["inject", "--help"]));
    assert!(text(&help).contains(&format!("{IMAGES}/agent:{VERSION}")), "{}", text(&help));
    let home = std::env::var("HOME").expect("HOME");
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    let sysroot = text(&sysroot);
    for program in Program::ALL {
        let bytes = read(&folder.join("bin").join(program.binary()));
        let root = toolbox::root().to_str().expect("UTF-8");
        for path in [root, &format!("{home}/.cargo"), sysroot.trim_end()] {
            let at = bytes.windows(path.len()).position(|window| window == path.as_bytes());
            let around = at.map(|at| String::from_utf8_lossy(&bytes[at..at + 200]));
            assert_eq!(around, None, "{} contains a folder", program.binary());
        }
        let page = read(&folder.join("man").join(format!("{}.1", program.binary())));
        let page = String::from_utf8(page).expect("UTF-8");
        assert!(page.contains(".SH NAME") && page.contains(".SH SUBCOMMANDS"), "{page}");
    }
    for file in
        ["man/leasehold-agent-run.1", "man/leasehold-explain.1", "systemd/agent-worker-0.env"]
    {
        assert!(folder.join(file).is_file(), "{file}");
    }
    let page = read(&folder.join("man/leasehold-inject.1"));
    assert!(String::from_utf8_lossy(&page).contains(&format!("{IMAGES}/agent:{VERSION}")));
    let completion = folder.join("completions/bash/leasehold-agent");
    run(Command::new("bash").arg("-n").arg(completion));
}

#[test]
fn a_debian_package_has_the_program_its_unit_and_its_pages() {
    let Some(release) = release() else { return };
    for (name, program) in [
        ("leasehold-coordinator", Program::Coordinator),
        ("leasehold-agent", Program::Agent),
        ("leasehold", Program::CommandLine),
    ] {
        let package = release.join(format!("{name}_{VERSION}-1_arm64.deb"));
        let fields = run(Command::new("dpkg-deb").arg("--field").arg(&package));
        let fields = text(&fields);
        for field in [&format!("Package: {name}"), "Architecture: arm64", "Section: admin"] {
            assert!(fields.lines().any(|line| line == field), "{field} in {fields}");
        }
        let needs = fields.lines().find_map(|line| line.strip_prefix("Depends:"));
        assert_eq!(needs.unwrap_or_default().trim(), "", "a static program needs no package");
        let folder = tempfile::tempdir().expect("a folder");
        run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(folder.path()));
        let at = |path: &str| folder.path().join(path);
        let binary = program.binary();
        let shown = run(Command::new(EMULATOR).arg(at("usr/bin").join(binary)).arg("--version"));
        assert_eq!(text(&shown), format!("{binary} {VERSION}\n"));
        assert!(at(&format!("usr/share/man/man1/{binary}.1.gz")).is_file());
        assert!(at(&format!("usr/share/bash-completion/completions/{binary}")).is_file());
        let unit = at(&format!("usr/lib/systemd/system/{binary}@.service"));
        if program == Program::CommandLine {
            let plugin = std::fs::read_link(at("usr/bin/kubectl-leasehold")).expect("a link");
            assert_eq!(plugin, Path::new("leasehold"));
            continue;
        }
        let unit = String::from_utf8(read(&unit)).expect("UTF-8");
        assert!(unit.contains(&format!("ExecStart=/usr/bin/{binary} run")), "{unit}");
        assert!(!unit.contains("/usr/local/bin"), "{unit}");
        assert!(at(&format!("usr/share/doc/{name}/examples")).is_dir());
    }
}

#[test]
fn the_chart_and_the_manifests_name_the_release_s_registry() {
    let Some(release) = release() else { return };
    for (archive, root) in [
        (format!("leasehold-{VERSION}.tgz"), "leasehold".to_owned()),
        (format!("leasehold-deploy-{VERSION}.tar.gz"), format!("leasehold-deploy-{VERSION}")),
    ] {
        let unpacked = unpacked(&release.join(&archive));
        let mut grep = Command::new("grep");
        grep.args(["-r", "registry.invalid/leasehold"]).arg(unpacked.path());
        let found = grep.output().expect("grep starts");
        assert_eq!(text(&found), "", "{archive}");
        let folder = unpacked.path().join(root);
        assert!(!folder.join("release").exists(), "{archive} has the sources of this tool");
        let values = ["values.yaml", "helm/leasehold/values.yaml"].map(|name| folder.join(name));
        let values = values.into_iter().find(|path| path.is_file()).expect("the chart's values");
        let values = String::from_utf8(read(&values)).expect("UTF-8");
        assert!(values.contains(&format!("repository: {IMAGES}/coordinator\n")), "{values}");
    }
}

#[test]
fn a_bill_of_materials_lists_the_crates_of_its_program() {
    let Some(release) = release() else { return };
    for (program, has) in [("leasehold-agent", false), ("leasehold-coordinator", true)] {
        let file = release.join(format!("{program}-{VERSION}-linux-arm64.cdx.json"));
        let bill: Value = serde_json::from_slice(&read(&file)).expect("JSON");
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["name"], program);
        let components = bill["components"].as_array().expect("components");
        let of = |name: &str| components.iter().find(|component| component["name"] == name);
        let tokio = of("tokio").unwrap_or_else(|| panic!("{program} has tokio"));
        let purl = tokio["purl"].as_str().expect("a package's address");
        assert!(purl.starts_with("pkg:cargo/tokio@1."), "{purl}");
        assert_eq!(tokio["hashes"][0]["alg"], "SHA-256", "{tokio}");
        assert_eq!(tokio["licenses"][0]["expression"], "MIT");
        assert_eq!(of("kube-client").is_some(), has, "{program}");
        assert!(of("tempfile").is_none(), "{program} has what only tests need");
    }
}

/// Unpacks the program of an image for arm64, as its manifest names the layer.
fn from_image(archive: &Path, program: Program, folder: &Path) -> PathBuf {
    let unpacked = unpacked(archive);
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().expect("a digest");
        unpacked.path().join("blobs").join(digest.replace(':', "/"))
    };
    let parsed = |path: &Path| -> Value { serde_json::from_slice(&read(path)).expect("JSON") };
    let index = parsed(&unpacked.path().join("index.json"));
    let named = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
    assert_eq!(*named, program.reference_in(IMAGES));
    let manifests = parsed(&blob(&index["manifests"][0]));
    let manifest = &manifests["manifests"][0];
    assert_eq!(manifest["platform"]["architecture"], "arm64");
    let layer = blob(&parsed(&blob(manifest))["layers"][0]);
    let root = folder.join(program.binary());
    std::fs::create_dir(&root).expect("a folder");
    run(Command::new("tar").arg("-xf").arg(layer).arg("-C").arg(&root));
    root.join(program.binary())
}

fn unpacked(archive: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(folder.path()));
    folder
}

fn files_of(folder: &Path) -> BTreeSet<String> {
    let entries = folder.read_dir().expect("the folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, why) = (text(&output), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}{why}", output.status);
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
