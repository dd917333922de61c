//! The commands of the runbooks, copied out of the pages and typed as they stand: here in an
//! installation without Kubernetes. The tests of Kubernetes type those for a cluster.

use tests::reader::Reader;
use tests::readme::Step;
use tests::runbooks::{self, Place};
use tests::{toolbox, tracked_files};

/// What the pages' examples name.
const FLEET: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 8, maxJobsPerWorker: 3}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  streams: [{name: 'cars:new'}, {name: 'cars:updated'}, {name: 'cars:sold'}]
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: extract}
spec: {capacity: 30, minReplicas: 1, maxReplicas: 4}
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 30, maxReplicas: 4}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: news}
spec: {documentsPerSecond: 10, workers: {fetch: {class: extract}}}
";

/// The edit that a page plans.
const EDITED: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: extract}
spec: {capacity: 30, minReplicas: 1, maxReplicas: 5}
";

/// The coordinators, as README starts them.
const COORDINATORS: [&str; 2] = [
    "leasehold-coordinator run --manifests manifests --state-dir state",
    "leasehold-coordinator run --manifests manifests --state-dir state \
     --listen 127.0.0.1:7410 --http-listen 127.0.0.1:7412",
];

/// The worker that pages drain, lose and declare gone. What it runs ends with its agent.
const WORKER: &str =
    "--cluster builds --worker worker-3 --state-dir agent-3 --child-kill-on-parent-death";

/// The commands that change the fleet, in the order in which they are typed, after all others.
const CHANGES: [&str; 4] = [
    "leasehold drain extract/extract-0",
    "leasehold drain worker-3",
    "leasehold-agent leave --coordinator 127.0.0.1:7400 --cluster builds --worker worker-3 \
     --state-dir agent-3",
    "leasehold gone worker-3",
];
/// How commands begin that change the fleet.
const CHANGING: [&str; 4] =
    ["leasehold drain ", "leasehold undrain ", "leasehold gone ", "leasehold-agent leave "];

/// Named in a sentence without what it asks for.
const NAMED_ONLY: [&str; 1] = ["leasehold plan"];

/// Metrics that need not be there: without TLS no certificate ends, and nobody was refused yet.
const ABSENT_METRICS: [&str; 2] =
    ["'^leasehold_certificate_expiry_timestamp_seconds'", "'^leasehold_refusals_total'"];

/// How often a command is typed until it is not refused any more, a tenth of a second apart.
const ATTEMPTS_MAX: u32 = 600;

/// Whether a search may find nothing in a fleet that is well, which grep says by exit code 1.
fn may_find_nothing(command: &str) -> bool {
    command.starts_with("grep ") || ABSENT_METRICS.iter().any(|metric| command.ends_with(*metric))
}

/// Whether a command may succeed without a word: there may have been no such event.
fn may_be_silent(command: &str) -> bool {
    may_find_nothing(command) || command.starts_with("leasehold events")
}

fn changes_the_fleet(command: &str) -> bool {
    CHANGING.iter().any(|words| command.starts_with(*words))
}

/// Saves the manifests, and starts two coordinators and three agents, each in a terminal of its
/// own. The log of both programs is where pages look for the coordinators'.
fn set_up(reader: &mut Reader) {
    reader.unseen("export PATH=\"$PWD/target/release:$PWD/.cache/bin:$PATH\"");
    reader.unseen("mkdir -p /tmp/leasehold/manifests && cd /tmp/leasehold");
    reader.unseen("ln -s /tmp/kept.log coordinator.log");
    for (file, text) in [("manifests/fleet.yaml", FLEET), ("edited.yaml", EDITED)] {
        reader.take(&Step::Save { file: file.to_owned(), text: text.to_owned() });
    }
    for coordinator in COORDINATORS {
        reader.take(&Step::Type(coordinator.to_owned()));
    }
    for (worker, port) in [("extract-0", 7421), ("extract-1", 7422)] {
        start_agent(
            reader,
            &format!(
                "--cluster extract --worker {worker} --state-dir {worker} \
                 --listen 127.0.0.1:{port}"
            ),
        );
    }
    start_agent(reader, WORKER);
}

/// Starts an agent, which is the process `$agent` from then on, and waits until it is welcomed.
fn start_agent(reader: &mut Reader, flags: &str) {
    let dials = "leasehold-agent run --coordinator 127.0.0.1:7400,127.0.0.1:7410";
    reader.take(&Step::Type(format!("{dials} {flags} -- sleep infinity")));
    reader.unseen("agent=$!");
}

/// A command with the exit codes that it may have.
fn as_typed(command: &str) -> String {
    let codes = if may_find_nothing(command) { " || [ $? -eq 1 ]" } else { "" };
    format!("{command}{codes}")
}

/// Types a command that must succeed.
fn type_in(reader: &mut Reader, command: &str) {
    reader.take(&Step::Type(as_typed(command)));
}

/// Types a command until it succeeds: it is refused, as documented, while the worker still runs.
fn type_until_it_succeeds(reader: &mut Reader, command: &str) {
    reader.unseen(&format!(
        "for try in $(seq {ATTEMPTS_MAX}); do\n  \
           if {command}; then break; fi\n  \
           [ $try -lt {ATTEMPTS_MAX} ]\n  \
           sleep 0.1\n\
         done"
    ));
}

/// Types what changes the fleet, each where a page has it.
fn change(reader: &mut Reader) {
    let [drain_share, drain, leave, gone] = CHANGES;
    type_in(reader, drain_share);
    type_in(reader, drain);
    // The agent ends with its drain. It works again as the document says.
    reader.unseen("wait $agent || true");
    start_agent(reader, &format!("{WORKER} --undrain"));

    // The worker is lost, and is not to come back.
    reader.unseen("kill -KILL $agent");
    type_until_it_succeeds(reader, leave);

    // It came back after all, and is lost again, with its host.
    start_agent(reader, WORKER);
    reader.unseen("kill -KILL $agent");
    // It asks first, and nobody can answer here.
    reader.unseen(&format!("if {gone}; then exit 1; fi"));
    type_until_it_succeeds(reader, &format!("{gone} --yes"));
}

#[test]
fn every_command_for_a_standalone_installation_works_unchanged() {
    let Some(mut reader) = Reader::new("the runbooks' commands as a reader types them") else {
        return;
    };
    set_up(&mut reader);
    let commands = runbooks::commands().into_iter();
    let here = commands.filter(|command| command.place == Place::Standalone);
    let mut typed: Vec<String> = here.map(|command| command.text).collect();
    let (changes, others): (Vec<String>, Vec<String>) =
        runbooks::commands_in_prose().into_iter().partition(|command| changes_the_fleet(command));
    let mut known = CHANGES.map(str::to_owned).to_vec();
    known.sort();
    assert_eq!(changes, known, "the commands that change the fleet");
    typed.extend(others.into_iter().filter(|command| !NAMED_ONLY.contains(&command.as_str())));
    assert!(!typed.iter().any(|command| changes_the_fleet(command)), "{typed:#?}");
    typed.iter().for_each(|command| type_in(&mut reader, command));
    change(&mut reader);

    let (_folder, shown) = reader.run();
    let blocks: Vec<&str> = shown.split("\\$ ").collect();
    for command in &typed {
        let line = as_typed(command) + "\n";
        let answer = blocks.iter().find_map(|block| block.strip_prefix(line.as_str()));
        let answer = answer.unwrap_or_else(|| panic!("{command}: not typed\n{shown}"));
        let is_silent = answer.trim().is_empty();
        assert!(!is_silent || may_be_silent(command), "{command}: no answer\n{shown}");
    }
    for words in ["leads term", "builds/worker-3 drains", "builds/worker-3 is gone: "] {
        assert!(shown.contains(words), "no {words:?} in\n{shown}");
    }
}

/// No systemd runs here, so these are not typed: what they name is there.
#[test]
fn commands_for_systemd_name_units_that_are_shipped() {
    let commands = runbooks::commands().into_iter();
    let mut units = 0;
    for command in commands.filter(|command| command.place == Place::Systemd) {
        let words = command.text.split([' ', '\'']);
        let named: Vec<&str> = words.filter(|word| word.starts_with("leasehold-")).collect();
        assert!(!named.is_empty(), "{}: names no unit", command.text);
        for unit in named {
            let template = unit.split('@').next().unwrap_or(unit);
            let file = toolbox::root().join(format!("deploy/systemd/{template}@.service"));
            assert!(unit.contains('@') && file.is_file(), "{}: no unit {unit}", command.text);
            units += 1;
        }
        println!("not typed, for lack of systemd: {}", command.text);
    }
    assert!(units > 0, "no page names a unit");
}

/// A search that finds nothing looks the same, whether all is well or the words are wrong.
#[test]
fn searched_words_are_written_by_the_coordinator() {
    let sources = tracked_files::crates_below("coordinator");
    if sources.is_empty() {
        // Outside a work tree, which is noted.
        return;
    }
    let mut searched = 0;
    for command in runbooks::commands() {
        if !command.text.starts_with("grep ") {
            continue;
        }
        for words in command.text.split('\'').skip(1).step_by(2) {
            let is_written = sources.iter().any(|(_, text)| text.contains(words));
            assert!(is_written, "{}: no log has {words:?}", command.text);
            searched += 1;
        }
    }
    assert!(searched > 0, "no page searches a log");
}

#[test]
fn every_page_has_the_same_parts_and_is_in_the_index() {
    let (index, pages): (Vec<_>, Vec<_>) =
        runbooks::pages().into_iter().partition(|(name, _)| name == "README.md");
    let (_, index) = index.first().expect("an index");
    assert!(pages.len() > 10, "only {} pages", pages.len());
    for (name, text) in &pages {
        for part in
            ["\n**Meanwhile", "\n## How to see it\n", "\n## What to do\n", "\n**It ends by itself"]
        {
            assert!(text.contains(part), "{name} lacks {part:?}");
        }
        assert!(index.contains(&format!("({name})")), "the index lacks {name}");
    }
}
