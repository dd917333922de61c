//! The README's commands, copied out of it and typed as they stand, in a network of their own: the
//! ports are the README's, too.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use tests::toolbox::{self, Missing, Tool};

/// What a reader does with a part of the text.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Saves it under the name in its first comment.
    Save { file: String, text: String },
    /// Types it, and waits for its end.
    Type(String),
    /// Types it in a terminal of its own, and waits until this address answers.
    Keep { command: String, answers: String },
}

/// The text's parts between two headings, in order.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("```") {
            let inside = lines.by_ref().take_while(|line| line.trim_start() != "```");
            let text: String = inside.fold(String::new(), |mut text, line| {
                let _ = writeln!(text, "{}", line.get(indent..).unwrap_or_default());
                text
            });
            let comment = text.lines().find_map(|line| line.strip_prefix("# "));
            let name = comment.and_then(|comment| comment.split([':', ' ']).next());
            let file = name.unwrap_or_else(|| panic!("no name in {text}")).to_owned();
            steps.push(Step::Save { file, text });
        } else if indent == 4 || indent == 7 {
            let mut command = line.trim().to_owned();
            while command.ends_with('\\') {
                command.pop();
                command += lines.next().expect("a continued line").trim();
            }
            steps.push(step(command));
        }
    }
    steps
}

fn step(command: String) -> Step {
    let after = |flag: &str| command.split(flag).nth(1).map(|rest| rest.split(' ').next().unwrap());
    if command.starts_with("leasehold-coordinator run") {
        let http = after("--http-listen ").unwrap_or("127.0.0.1:7401");
        let answers = format!("http://{http}/readyz");
        return Step::Keep { command, answers };
    }
    if command.ends_with("-- sleep infinity") {
        let answers = format!("http://{}/readyz", after("--listen ").expect("a port of its own"));
        return Step::Keep { command, answers };
    }
    Step::Type(command)
}

/// The README between a heading and the next one.
fn section<'a>(readme: &'a str, heading: &str) -> &'a str {
    let (_, rest) = readme.split_once(&format!("\n## {heading}\n")).expect(heading);
    rest.split("\n## ").next().unwrap_or(rest)
}

/// A shell's script that does these steps, and says each before it does it.
fn script(steps: &[Step]) -> String {
    let mut script = "set -euo pipefail\nip link set lo up\n".to_owned();
    for step in steps {
        let told = match step {
            Step::Save { file, .. } => format!("save {file}"),
            Step::Type(command) | Step::Keep { command, .. } => command.clone(),
        };
        let _ = writeln!(script, "cat <<'TOLD'\n\\$ {told}\nTOLD");
        let _ = match step {
            Step::Save { file, text } => writeln!(script, "cat > {file} <<'SAVED'\n{text}SAVED"),
            Step::Type(command) => writeln!(script, "{command}"),
            Step::Keep { command, answers } => writeln!(
                script,
                "{command} 2>> kept.log &\nfor try in $(seq 300); do\n  curl -fsS {answers} \
                 2> /dev/null && break\n  [ $try -lt 300 ]\n  sleep 0.1\ndone"
            ),
        };
    }
    script
}

#[test]
fn what_a_reader_types_works_as_it_stands() {
    let Some(grpcurl) = toolbox::tool(Tool::Grpcurl) else { return };
    let Some(mut own) = own_network() else { return };
    let readme = std::fs::read_to_string(toolbox::root().join("README.md")).expect("the README");
    let mut steps = steps(section(&readme, "From a worker, in a few lines of shell"));
    steps.extend(self::steps(section(&readme, "For real")));

    // The programs are built already, and each test has a folder of its own.
    let is_done = |step: &Step| {
        let begins = ["cargo build ", "export PATH=", "mkdir -p /tmp/"];
        matches!(step, Step::Type(typed) if begins.iter().any(|it| typed.starts_with(it)))
    };
    let (done, mut steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_done);
    assert_eq!(done.len(), 3, "{done:?}");
    let typed = |step: &&Step| matches!(step, Step::Type(typed) if typed.ends_with("./worker.sh"));
    let again = steps.iter().find(typed).expect("the agent that starts the worker");
    let Step::Type(again) = again else { unreachable!("it was typed") };
    // It can be started again, as the text says.
    steps.push(Step::Type("mv done/one.gz queue/five".to_owned()));
    steps.push(Step::Type(again.clone()));

    let folder = tempfile::tempdir().expect("a temporary folder");
    for made in ["manifests", "queue"] {
        std::fs::create_dir(folder.path().join(made)).expect("a folder");
    }
    for name in ["one", "two", "three"] {
        let file = folder.path().join("queue").join(name);
        std::fs::write(file, name.repeat(1_000)).expect("a file");
    }
    let programs = toolbox::binary("leasehold-agent");
    let programs = [programs.parent(), grpcurl.parent()].map(|it| it.expect("a folder").to_owned());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = programs.into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(path).expect("a path");
    let output = own
        .args(["bash", "-c", &script(&steps)])
        .current_dir(folder.path())
        .env("PATH", path)
        .output()
        .expect("unshare starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}\n{}", kept(folder.path()));
    let done: BTreeSet<String> = std::fs::read_dir(folder.path().join("done"))
        .expect("the worker's folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    let want = ["five.gz", "three.gz", "two.gz"].map(str::to_owned);
    assert_eq!(done, want.into(), "{said}\n{complained}");
}

/// What the programs said that ran on.
fn kept(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("kept.log")).unwrap_or_default()
}

/// A command that runs another one where no port is taken, and ends all that this one leaves.
fn own_network() -> Option<Command> {
    let user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(user).args(["--net", "--pid", "--fork", "--kill-child=KILL"]);
        command
    };
    match unshare().args(["ip", "link", "set", "lo", "up"]).output() {
        Ok(tried) if tried.status.success() => Some(unshare()),
        Ok(tried) => {
            let why = String::from_utf8_lossy(&tried.stderr).into_owned();
            toolbox::leave_out("the README as typed", why.trim(), Missing::Forbidden);
            None
        }
        Err(error) => {
            toolbox::leave_out("the README as typed", &error.to_string(), Missing::Installable);
            None
        }
    }
}
