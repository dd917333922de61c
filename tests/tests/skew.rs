//! Today's programs beside those of the last release, under the faults of `make chaos`: leaders and
//! agents are killed, stopped and cut off, so that each takes over what the other has left. The
//! workers' journals are the judge.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tests::chaos::plan::{COORDINATORS, Fault, NODES, Step, Target, steps};
use tests::toolbox::{self, BINARIES_VARIABLE, Missing};

/// How long faults go on.
const LASTING: Duration = Duration::from_secs(15);
/// What runs, and how many of each begin: more of each are started after faults.
const STARTED: [(&str, usize); 2] =
    [("leasehold-coordinator", COORDINATORS), ("leasehold-agent", NODES)];
/// Where the search for a schedule ends.
const SEEDS_MAX: u64 = 100_000;

/// One run at a time: a run has a load of its own.
static TURN: Mutex<()> = Mutex::new(());

/// Which build of a program runs.
#[derive(Clone, Copy)]
enum Build {
    Last,
    Today,
    /// One after the other, start by start.
    Alternating,
}

#[test]
fn agents_of_the_last_release_work_with_todays_coordinators() {
    run([Build::Today, Build::Last]);
}

#[test]
fn todays_agents_work_with_coordinators_of_the_last_release() {
    run([Build::Last, Build::Today]);
}

/// A rollout of the coordinators and one of the agents, and back: starts are of one release and of
/// the other in turn, also on the files that the other one has left.
#[test]
fn both_releases_take_over_from_each_other() {
    run([Build::Alternating, Build::Alternating]);
}

/// Runs coordinators and agents of these builds under faults.
fn run(builds: [Build; 2]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let what = "the last release beside today's programs";
    if let Some(why) = tests::chaos::refusal() {
        return toolbox::leave_out(what, &why, Missing::Forbidden);
    }
    let Some(release) = toolbox::last_release(what) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for ((name, _), build) in STARTED.into_iter().zip(builds) {
        put_launcher(folder.path(), name, &release, build);
    }
    let worker = toolbox::binary("job_worker");
    std::os::unix::fs::symlink(worker, folder.path().join("job_worker")).expect("a link");
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let seconds = LASTING.as_secs().to_string();
    command.args(["--seconds", &seconds, "--seed", &seed().to_string()]);
    command.env(BINARIES_VARIABLE, folder.path());
    let output = command.output().expect("it is there");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    for (name, first) in STARTED {
        let starts = std::fs::read_to_string(folder.path().join(format!("{name}.starts")));
        let starts = starts.expect("the starts are counted").lines().count();
        assert!(starts > first, "{name}: {starts} starts, so none after a fault\n{said}");
    }
}

/// Any seed whose faults end coordinators and agents, so that others take over.
fn seed() -> u64 {
    let first = fastrand::u64(..1_000_000);
    let kills = |seed: u64, wanted: fn(&Target) -> bool| {
        let killed = |step: &Step| matches!(&step.fault, Fault::Kill(target) if wanted(target));
        steps(seed, LASTING).iter().filter(|step| killed(step)).count()
    };
    (first..first + SEEDS_MAX)
        .find(|seed| {
            kills(*seed, |target| matches!(target, Target::Coordinator(_))) > 1
                && kills(*seed, |target| matches!(target, Target::Agent(_))) > 0
        })
        .expect("a seed that kills both")
}

/// Puts a program in the folder that counts its starts, and becomes the build that is due.
fn put_launcher(folder: &Path, name: &str, release: &Path, build: Build) {
    let (last, today) = (release.join(name), toolbox::binary(name));
    let [even, odd] = match build {
        Build::Last => [&last, &last],
        Build::Today => [&today, &today],
        Build::Alternating => [&last, &today],
    };
    let starts = folder.join(format!("{name}.starts"));
    let script = format!(
        "#!/bin/sh\n\
         echo >> {starts}\n\
         [ $(($(wc -l < {starts}) % 2)) = 0 ] && exec {even} \"$@\"\n\
         exec {odd} \"$@\"\n",
        starts = starts.display(),
        even = even.display(),
        odd = odd.display()
    );
    let path = folder.join(name);
    std::fs::write(&path, script).expect("the launcher");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
}
