//! The README's commands, copied out of it and typed as they stand, in a network and a `/tmp` of
//! their own: the ports and folders are the README's, too. Those of its section "On Kubernetes" are
//! typed by the tests of Kubernetes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use tests::process::Process;
use tests::readme::{self, Step};
use tests::toolbox::{self, Missing, Tool};

/// The sections with commands that are typed here, and by the tests of Kubernetes.
const TYPED_HERE: [&str; 3] =
    ["Two commands", "From a worker, in a few lines of shell", "For real"];
const TYPED_ELSEWHERE: [&str; 1] = ["On Kubernetes"];
/// The section with a drawing, whose lines are indented as commands are.
const DRAWN: &str = "How it flows";

/// What a terminal shows that is kept open.
const KEPT: &str = "leasehold/kept.log";
/// How long a program may take until it answers, in tenths of a second.
const ANSWER_TENTHS_MAX: u32 = 600;

fn read() -> String {
    std::fs::read_to_string(toolbox::root().join("README.md")).expect("the README")
}

/// Where a program answers that runs until it is told to end: it has a terminal of its own.
fn kept_at(command: &str) -> Option<String> {
    let after = |flag: &str| command.split(flag).nth(1)?.split_whitespace().next();
    let address = match command {
        it if it.starts_with("leasehold-coordinator run") => {
            after("--http-listen ").unwrap_or("127.0.0.1:7401")
        }
        it if it.ends_with("-- sleep infinity") => after("--listen ").unwrap_or("127.0.0.1:7411"),
        _ => return None,
    };
    Some(format!("http://{address}/readyz"))
}

/// The part of the script that takes this step, after saying so.
fn scripted(step: &Step) -> String {
    match step {
        Step::Save { file, text } => {
            format!("echo '$ save {file}'\ncat > {file} <<'SAVED'\n{text}SAVED\n")
        }
        Step::Type(command) => {
            let say = format!("cat <<'TYPED'\n\\$ {command}\nTYPED\n");
            let Some(answers) = kept_at(command) else { return say + command + "\n" };
            say + &format!(
                "{command} >> /tmp/{KEPT} 2>&1 &\n\
                 for try in $(seq {ANSWER_TENTHS_MAX}); do\n  \
                   if curl -fsS {answers} 2> /dev/null; then echo; break; fi\n  \
                   kill -0 $! || exit 1\n  \
                   [ $try -lt {ANSWER_TENTHS_MAX} ]\n  \
                   sleep 0.1\n\
                 done\n"
            )
        }
    }
}

/// What a build line builds is there: these tests' own builds, which go by the same names.
fn assert_built(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let packages = words.windows(2).filter(|pair| pair[0] == "-p").map(|pair| pair[1]);
    let built: Vec<_> = packages.map(toolbox::binary).collect();
    assert!(!built.is_empty(), "{command}: builds no package by its name");
}

/// A script that stands in for what takes minutes and shows that the rest is as a reader has it:
/// a clone with the built programs and tools in their places, in a `/tmp` that is `folder`.
fn prelude(folder: &Path) -> String {
    let programs = toolbox::binary("leasehold-agent");
    let programs = programs.parent().expect("a folder").display();
    let (root, folder) = (toolbox::root().display(), folder.display());
    format!(
        "set -euo pipefail
ip link set lo up
mkdir -p {folder}/clone/target/release {folder}/clone/.cache/bin
mount --bind {programs} {folder}/clone/target/release
mount --bind {root}/.cache/bin {folder}/clone/.cache/bin
make() {{ command make -C {root} --dry-run \"$@\" > /dev/null; }}
cargo() {{ :; }}
mount --rbind {folder} /tmp
echo fail > /tmp/.curlrc
export CURL_HOME=/tmp
cd /tmp/clone
"
    )
}

/// All that a reader does, in order.
fn script(readme: &str, folder: &Path) -> String {
    let [make, worker, steps] =
        TYPED_HERE.map(|heading| readme::steps(readme::section(readme, heading)));
    let mut script = prelude(folder);
    make.iter().for_each(|step| script += &scripted(step));
    let mut worker_command = None;
    for step in &steps {
        script += &scripted(step);
        let Step::Type(command) = step else { continue };
        if command.starts_with("cargo build") {
            assert_built(command);
        }
        if command.ends_with("cd /tmp/leasehold") {
            // "saved as worker.sh", in the folder where the reader is from now on.
            worker.iter().for_each(|step| script += &scripted(step));
        }
        if command.ends_with("-- ./worker.sh") {
            worker_command = Some(command.clone());
        }
        if command.ends_with("-- sleep infinity") {
            script += "export LEASEHOLD_ADDR=http://127.0.0.1:7421\n";
            for typed in readme::spans(readme).iter().filter(|it| it.starts_with("curl ")) {
                script += &scripted(&Step::Type(typed.clone()));
            }
            script += "unset LEASEHOLD_ADDR\n";
        }
    }
    // It can be started again, as the text says.
    let again = worker_command.expect("the agent that starts the worker");
    let _ = write!(script, "date > queue/four\n{}", scripted(&Step::Type(again)));
    script
}

#[test]
fn what_a_reader_types_works_as_it_stands() {
    if toolbox::tool(Tool::Grpcurl).is_none() {
        return;
    }
    let Some(mut own) = own_machine() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("script");
    std::fs::write(&file, script(&read(), folder.path())).expect("the script");
    own.arg("bash").arg(&file);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("LEASEHOLD_") || name.starts_with("MAKE") {
            own.env_remove(&*name);
        }
    }
    let mut reader = Process::start(&mut own, &folder.path().join("reader.log"));
    let status = reader.wait();
    let kept = std::fs::read_to_string(folder.path().join(KEPT)).unwrap_or_default();
    assert!(status.success(), "{status}\n--- other terminals\n{kept}");
    let done =
        std::fs::read_dir(folder.path().join("leasehold/done")).expect("the worker's folder");
    let mut done: Vec<_> = done.map(|entry| entry.expect("an entry").file_name()).collect();
    done.sort();
    let want = ["four.gz", "one.gz", "three.gz", "two.gz"];
    assert_eq!(done, want, "{}\n--- other terminals\n{kept}", reader.log());
}

#[test]
fn every_command_of_the_readme_is_typed_by_some_test() {
    let readme = read();
    for heading in readme::headings(&readme) {
        if TYPED_HERE.contains(&heading) || TYPED_ELSEWHERE.contains(&heading) || heading == DRAWN {
            continue;
        }
        let steps = readme::steps(readme::section(&readme, heading));
        assert!(steps.is_empty(), "nobody types what stands under \"{heading}\": {steps:?}");
    }
}

#[test]
fn what_the_text_makes_can_be_made() {
    let spans = readme::spans(&read());
    let made: Vec<_> = spans.iter().filter_map(|span| span.strip_prefix("make ")).collect();
    assert!(!made.is_empty(), "the README names nothing to make: {spans:?}");
    for words in made {
        let mut make = Command::new("make");
        make.arg("--directory").arg(toolbox::root()).arg("--dry-run").args(words.split(' '));
        let output = make.env_remove("MAKEFLAGS").output().expect("make starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "make {words}: {said}");
    }
}

/// A command that runs another one where no port is taken and `/tmp` can be its own, and ends all
/// that this one leaves. None where that is not allowed, which is noted.
fn own_machine() -> Option<Command> {
    let user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(user).args(["--net", "--mount", "--pid", "--fork", "--kill-child=KILL"]);
        command
    };
    let what = "the README's commands as a reader types them";
    let tried = "ip link set lo up && mount --rbind /tmp /tmp";
    match unshare().args(["sh", "-c", tried]).output() {
        Ok(tried) if tried.status.success() => Some(unshare()),
        Ok(tried) => {
            let said = String::from_utf8_lossy(&tried.stderr);
            let why = format!("no namespaces of its own: {}", said.trim().replace('\n', "; "));
            toolbox::leave_out(what, &why, Missing::Forbidden);
            None
        }
        Err(error) => {
            let why = format!("unshare of util-linux: {error}");
            toolbox::leave_out(what, &why, Missing::Installable);
            None
        }
    }
}
