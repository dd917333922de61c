//! The start page of the book: its first worker in each language, built and run as the page says,
//! in a clone of its own, without a network. All other commands of the page are the README's.

use leasehold_types::Token;
use tests::reader::Reader;
use tests::readme::{self, Step};
use tests::toolbox::{self, Missing};

use super::{TYPED_HERE, read};

const PAGE: &str = "docs/START.md";
/// The section with the workers. A subsection for each language, and one on what they print.
const WORKERS: &str = "A worker of your own";
const LANGUAGES: [&str; 4] = ["Python", "Rust", "TypeScript", "Go"];
const SHOWN: &str = "What you see";

/// Cargo builds what this checkout's lock file names, which is there, into a folder that is kept:
/// the packages are in the same places in every run.
const REAL_CARGO: &str = "\
unset -f cargo
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET RUSTFLAGS
export CARGO_NET_OFFLINE=true
cp /tmp/clone/Cargo.lock Cargo.lock
mkdir -p /tmp/checkout/.cache/start-worker target
mount --bind /tmp/checkout/.cache/start-worker target";

/// What npm would fetch is there already: the SDK's lock file names it, and `make tools` has
/// installed it.
const OFFLINE_NPM: &str = "\
installed=/tmp/checkout/.cache/typescript/node_modules
npm() {
    case \"$1\" in
        ci) ln -s \"$installed\" node_modules ;;
        install)
            command npm install --offline --no-audit --no-fund \"$2\"
            ln -s \"$installed\"/{typescript,@types,undici-types} node_modules/
            mkdir -p node_modules/.bin
            ln -s ../typescript/bin/tsc node_modules/.bin/tsc ;;
        *) command npm \"$@\" ;;
    esac
}";

/// Types what the page says for a language. What the terminals showed, or `None` where something is
/// not installed, which is noted.
fn shown_by(language: &str, before: &str) -> Option<String> {
    let mut reader = Reader::new(&format!("the start page's worker in {language}"))?;
    reader.fill_clone();
    let page = read(PAGE);
    let section = readme::section(&page, WORKERS);
    let common = section.split("\n### ").next().expect("what all languages share");
    for step in readme::steps(common) {
        reader.take(&step);
    }
    reader.unseen(before);
    for step in readme::steps(readme::subsection(section, language)) {
        if matches!(&step, Step::Type(command) if command.starts_with("cargo build")) {
            reader.unseen(REAL_CARGO);
        }
        reader.take(&step);
    }
    Some(reader.run().1)
}

/// The worker ran its three jobs under one lease, and the page says how that looks.
fn assert_leased(shown: &str) {
    let token_of = |number: u32| {
        let begin = format!("job-{number} runs under the lease ");
        let token = shown.lines().find_map(|line| line.strip_prefix(&*begin));
        let token: Token =
            token.unwrap_or_else(|| panic!("no {begin:?}:\n{shown}")).parse().ok()?;
        Some(token)
    };
    let tokens = [1, 2, 3].map(token_of);
    assert!(tokens[0].is_some() && tokens.iter().all(|one| *one == tokens[0]), "{tokens:?}");
    let page = read(PAGE);
    let said = readme::spans(readme::subsection(readme::section(&page, WORKERS), SHOWN));
    for words in ["job-1 runs under the lease", "pool granted size=2"] {
        assert!(said.contains(words), "{PAGE} does not name {words:?}: {said:?}");
        assert!(shown.contains(words), "no {words:?}:\n{shown}");
    }
}

/// Whether a program is there; noted where it is not.
fn has(program: &str, language: &str) -> bool {
    let is_there = toolbox::on_path(program).is_some();
    if !is_there {
        let what = format!("the start page's worker in {language}");
        toolbox::leave_out(&what, &format!("no {program}"), Missing::Installable);
    }
    is_there
}

#[test]
fn the_first_worker_in_python_gets_its_lease() {
    let shown = if has("pip", "Python") { shown_by("Python", "") } else { None };
    if let Some(shown) = shown {
        assert_leased(&shown);
    }
}

#[test]
fn the_first_worker_in_rust_gets_its_lease() {
    if let Some(shown) = shown_by("Rust", "") {
        assert_leased(&shown);
    }
}

#[test]
fn the_first_worker_in_typescript_gets_its_lease() {
    if !toolbox::root().join(".cache/bin/tsc").is_file() {
        let why = "`make tools TOOLS=typescript` installs its compiler";
        let what = "the start page's worker in TypeScript";
        return toolbox::leave_out(what, why, Missing::Installable);
    }
    let shown = if has("npm", "TypeScript") { shown_by("TypeScript", OFFLINE_NPM) } else { None };
    if let Some(shown) = shown {
        assert_leased(&shown);
    }
}

#[test]
fn the_first_worker_in_go_gets_its_lease() {
    let offline = "export GOTOOLCHAIN=local GOPROXY=off GOWORK=off CGO_ENABLED=0";
    let shown = if has("go", "Go") { shown_by("Go", offline) } else { None };
    if let Some(shown) = shown {
        assert_leased(&shown);
    }
}

#[test]
fn the_page_has_a_worker_in_each_language() {
    let page = read(PAGE);
    let section = readme::section(&page, WORKERS);
    let found: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert_eq!(found, [LANGUAGES.as_slice(), &[SHOWN]].concat());
    for language in LANGUAGES {
        let steps = readme::steps(readme::subsection(section, language));
        let runs = |step: &Step| matches!(step, Step::Type(line) if line.contains("-agent run "));
        assert!(steps.iter().any(runs), "{language}: no command runs the worker");
    }
    assert_eq!(readme::steps(readme::subsection(section, SHOWN)), [], "no test types these");
}

/// The commands of a text, without the comments behind them.
fn commands(text: &str) -> Vec<String> {
    let command = |step| match step {
        Step::Type(typed) => typed.split("  #").next().unwrap_or_default().trim().to_owned(),
        Step::Save { file, .. } => panic!("no test saves {file}"),
    };
    readme::steps(text).into_iter().map(command).collect()
}

/// They are run with the README's.
#[test]
fn every_other_command_of_the_page_is_one_of_the_readme() {
    let text = read("README.md");
    let mut tested = readme::spans(&text);
    tested.extend(commands(readme::section(&text, TYPED_HERE[0])));
    let page = read(PAGE);
    let others = readme::headings(&page).into_iter().filter(|heading| *heading != WORKERS);
    let typed: Vec<String> =
        others.flat_map(|heading| commands(readme::section(&page, heading))).collect();
    assert!(!typed.is_empty());
    let untested: Vec<_> = typed.iter().filter(|command| !tested.contains(*command)).collect();
    assert!(untested.is_empty(), "{PAGE} has commands that README.md lacks: {untested:?}");
}
