//! Whole simulations of small fleets, and what is wrong with files of loads.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, Stream, StreamSet,
};
use leasehold_types::{ClusterName, SetName, StreamName};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A cluster `builds` of 20 jobs, 4 for each worker. No job runs as long as its drains may take.
fn budgets() -> Desired {
    let cluster = Cluster {
        jobs_max: 20,
        jobs_per_worker_max: 4,
        drain_deadline: 7_200 * SECOND,
        ..Cluster::example()
    };
    let name = ClusterName::new("builds").unwrap();
    Desired { clusters: [(name, Arc::new(cluster))].into(), ..Desired::default() }
}

/// The same with eight streams.
fn budgets_and_streams() -> Desired {
    let stream = |number| Stream {
        name: StreamName::new(&format!("stream-{number}")).unwrap(),
        weight: 1,
        dedicated: false,
    };
    let set = StreamSet {
        cluster: ClusterName::new("builds").unwrap(),
        streams: Arc::new((0..8).map(stream).collect()),
        policy: Policy::Sticky,
        mode: Mode::Expiring,
        handover_deadline: 30 * SECOND,
        moves: Moves { per_round_max: usize::MAX, cooldown: 30 * SECOND, settle: SECOND },
    };
    let sets = [(SetName::new("cars").unwrap(), Arc::new(set))].into();
    Desired { sets, ..budgets() }
}

/// A load of more jobs than the budget takes for an hour and a half, with these events.
fn load_file(events: &str) -> String {
    format!(
        "for: 3h\nclusters:\n- name: builds\n  startup: {{uniform: {{min: 20s, max: 40s}}}}\n  \
         arrivals: {{steps: [{{at: \"00:00\", perHour: 150}}, {{at: \"01:30\", perHour: 20}}]}}\n  \
         durations: {{exponential: {{mean: 10m, max: 1h}}}}\nevents: [{events}]\n"
    )
}

fn load(text: &str, desired: &Desired) -> Load {
    let read = LoadFile::read("load.yaml", text);
    let resolved = read.and_then(|file| file.resolve(desired, &BTreeMap::new()));
    resolved.unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn figures(load: &Load, side: Side) -> JobFigures {
    run(load, side, IdleTime::Skipped, 1).unwrap().clusters.remove(0).jobs
}

const ROLLOUT: &str = "{at: 30m, rollout: {cluster: builds}}";
const EVERYTHING: &str = "{at: 10m, lose: {cluster: builds, workers: 1, replacedAfter: 4m}}, \
                          {at: 30m, rollout: {cluster: builds, maxSurge: 2, maxUnavailable: 0}}, \
                          {at: 50m, failover: {after: 3s}}, {at: 1h, outage: {for: 8m}}, \
                          {at: 80m, scale: {cluster: builds, workers: 3}}, \
                          {at: 100m, scale: {cluster: builds, workers: 6}}";

/// The check of the budget: the jobs above it, summed over seconds, and the most at once.
fn above_budget(figures: &JobFigures) -> (f64, u32) {
    (figures.above_budget_slot_seconds, figures.above_budget_max)
}

#[test]
fn leases_keep_the_budget_through_everything_and_fixed_pools_exceed_it_in_a_rollout() {
    for events in [ROLLOUT, EVERYTHING] {
        let load = load(&load_file(events), &budgets());
        let leases = figures(&load, Side::Leasehold);
        assert_eq!(above_budget(&leases), (0.0, 0), "{events}: {leases:?}");
        assert_eq!(leases.running_max, 20, "{events}: the budget is used: {leases:?}");
    }
    // The same check finds too many jobs where nothing counts those of pods that end.
    let load = load(&load_file(ROLLOUT), &budgets());
    let pools = figures(&load, Side::Deployment);
    let (slot_seconds, most) = above_budget(&pools);
    assert!(slot_seconds > 0.0 && most > 0, "{pools:?}");
    assert!(pools.killed > 0, "jobs outlast the grace period: {pools:?}");
}

/// The check finds a coordinator that forgets the jobs of workers that drain.
#[cfg(leasehold_mutations)]
#[test]
fn the_check_of_the_budget_finds_a_deliberate_fault_of_the_coordinator() {
    use leasehold_types::mutation::{self, Mutation};

    let load = load(&load_file(ROLLOUT), &budgets());
    mutation::set(Some(Mutation::GrowOverBudget));
    let faulty = run(&load, Side::Leasehold, IdleTime::Skipped, 1);
    mutation::set(None);
    let faulty = faulty.unwrap().clusters.remove(0).jobs;
    assert!(above_budget(&faulty).1 > 0, "{faulty:?}");
}

#[test]
fn leases_kill_no_job_in_a_rollout_and_every_job_ends() {
    let load = load(&load_file(ROLLOUT), &budgets());
    let figures = figures(&load, Side::Leasehold);
    assert_eq!((figures.killed, figures.waiting), (0, 0), "{figures:?}");
    assert!(figures.arrived > 150, "{figures:?}");
    assert!(figures.arrived - figures.ended < 20, "the last ones still run: {figures:?}");
    assert!(figures.workers_max > 5, "old workers run beside new ones: {figures:?}");
}

/// One pod more at a time, each of which is ready for two minutes before an old one is deleted.
#[test]
fn a_rollout_waits_until_each_new_pod_has_been_ready_for_as_long_as_the_load_says() {
    let rollout = "{at: 30m, rollout: {cluster: builds, maxSurge: 1, maxUnavailable: 0}}";
    let last_worker = |min_ready: &str| {
        let text = load_file(rollout)
            .replace("- name: builds", &format!("- name: builds\n  minReady: {min_ready}"))
            .replace("{uniform: {min: 20s, max: 40s}}", "{constant: 30s}")
            .replace("{exponential: {mean: 10m, max: 1h}}", "{constant: 1s}");
        let load = load(&text, &budgets());
        let run = run(&load, Side::Leasehold, IdleTime::Skipped, 1).unwrap().clusters.remove(0);
        run.phases[1].last_worker_seconds.unwrap()
    };
    // Five pods of 30 s each, and jobs of a second.
    let at_once = last_worker("0s");
    assert!((150.0..152.0).contains(&at_once), "{at_once}");
    let later = last_worker("2m");
    assert!((750.0..752.0).contains(&later), "{later}");
}

/// Kubernetes gives the pods of a rollout a grace period. A scale-in waits for their jobs.
#[test]
fn jobs_that_outlast_the_grace_period_are_killed_in_a_rollout_and_not_in_a_scale_in() {
    let mut desired = budgets();
    for cluster in desired.clusters.values_mut() {
        Arc::make_mut(cluster).drain_deadline = 5 * 60 * SECOND;
    }
    let run = |events: &str| {
        let load = load(&load_file(events), &desired);
        let figures = figures(&load, Side::Leasehold);
        assert_eq!(above_budget(&figures), (0.0, 0), "{events}: {figures:?}");
        figures
    };
    let rollout = run(ROLLOUT);
    assert!(rollout.killed > 0, "jobs run for up to an hour: {rollout:?}");
    // None of them began after its pod was deleted: each had run for the grace period at least.
    let each = rollout.killed_job_seconds / rollout.killed as f64;
    assert!(each > 330.0, "{each} s on average: {rollout:?}");
    let scale_in = run("{at: 30m, scale: {cluster: builds, workers: 2}}");
    assert_eq!(scale_in.killed, 0, "{scale_in:?}");
}

#[test]
fn one_seed_is_one_outcome_and_another_seed_is_another() {
    let load = load(&load_file(EVERYTHING), &budgets_and_streams());
    let [first, second, other] = [1, 1, 2].map(|seed| simulate(&load, seed).unwrap());
    assert_eq!(first, second);
    assert_ne!(first.clusters, other.clusters);
    let sides: Vec<Side> = first.clusters[0].sides.iter().map(|side| side.side).collect();
    assert_eq!(sides, Side::ALL);
}

/// Each side has the same jobs, so that what they make of them can be compared.
#[test]
fn every_side_gets_the_same_jobs() {
    // Few enough that each begins when it arrives: at all times the same number runs.
    let text = load_file("")
        .replace("- name: builds", "- name: builds\n  autoscaler: {minReplicas: 5}")
        .replace("perHour: 150", "perHour: 10")
        .replace("perHour: 20", "perHour: 10");
    let outcome = simulate(&load(&text, &budgets()), 1).unwrap();
    let [first, others @ ..] = outcome.clusters[0].sides.as_slice() else { panic!("no side") };
    assert!(first.jobs.ended > 10, "{:?}", first.jobs);
    assert_eq!(others.len(), 2);
    for SideOutcome { side, jobs, course, .. } in others {
        assert_eq!((jobs.arrived, jobs.ended), (first.jobs.arrived, first.jobs.ended), "{side}");
        assert_eq!((jobs.wait_max_seconds, jobs.killed), (0.0, 0), "{side}");
        assert_eq!(course.running, first.course.running, "{side}");
    }
    // Whatever happens to a fleet, as many jobs arrive.
    let outcome = simulate(&load(&load_file(EVERYTHING), &budgets()), 1).unwrap();
    let arrived = outcome.clusters[0].sides.iter().map(|side| side.jobs.arrived);
    let arrived: Vec<u64> = arrived.collect();
    assert!(arrived[0] > 150, "{arrived:?}");
    assert_eq!(arrived, [arrived[0]; 3]);
}

/// Two workers that cannot use the whole budget become nine, which it does not divide into: each
/// worker that joins lowers the shares of those that wait for slots already.
fn uneven() -> (String, Desired) {
    let mut desired = budgets();
    for cluster in desired.clusters.values_mut() {
        Arc::make_mut(cluster).jobs_max = 10;
    }
    let text = load_file("{at: 1h, scale: {cluster: builds, workers: 9}}")
        .replace("- name: builds", "- name: builds\n  workers: 2")
        .replace("{uniform: {min: 20s, max: 40s}}", "{constant: 30s}")
        .replace("perHour: 150", "perHour: 100")
        .replace("perHour: 20", "perHour: 100")
        .replace("mean: 10m, max: 1h", "mean: 8m");
    (text, desired)
}

#[test]
fn idle_time_that_is_skipped_changes_no_figure() {
    // Leadership outlasts this outage. When it ends depends on the last renewal before one that
    // is longer, and so on where the clock was.
    let events = EVERYTHING.replace("for: 8m", "for: 4m");
    for (text, desired) in [
        (load_file(&events), budgets()),
        (load_file(ROLLOUT), budgets()),
        (load_file(&events), budgets_and_streams()),
        uneven(),
    ] {
        let load = load(&text, &desired);
        let [all, skipped] = [IdleTime::Simulated, IdleTime::Skipped]
            .map(|idle_time| run(&load, Side::Leasehold, idle_time, 1).unwrap().clusters.remove(0));
        assert!(all.jobs.ended > 100, "{text}: {:?}", all.jobs);
        assert_eq!(all.jobs, skipped.jobs, "{text}");
        assert_eq!(all.course, skipped.course, "{text}");
        let moves = [&all, &skipped].map(|run| run.streams.map(|streams| streams.moves));
        assert_eq!(moves[0], moves[1], "{text}");
    }
}

#[test]
fn a_lost_worker_keeps_its_slots_and_a_failover_changes_nothing() {
    let with = |events: &str| {
        let load = load(&load_file(events), &budgets_and_streams());
        run(&load, Side::Leasehold, IdleTime::Skipped, 1).unwrap().clusters.remove(0)
    };
    let undisturbed = with("");
    let failover = with("{at: 1h, failover: {after: 2s}}");
    assert!(failover.jobs.ended > 100, "{:?}", failover.jobs);
    assert_eq!(failover.jobs, undisturbed.jobs, "jobs begin and end as without it");
    let unowned = [&failover, &undisturbed].map(|run| run.streams.unwrap().unowned_seconds);
    assert_eq!(unowned[0], unowned[1], "no lease ends");
    let moves = |run: &ClusterRun| run.streams.map(|streams| streams.moves);
    assert_eq!(moves(&failover), moves(&undisturbed), "no stream moves");

    let lost = with("{at: 1h, lose: {cluster: builds, workers: 1, replacedAfter: 20m}}");
    assert!(lost.jobs.killed > 0, "{:?}", lost.jobs);
    // Four slots for about twenty minutes, while jobs wait.
    let more = lost.jobs.wasted_slot_seconds - undisturbed.jobs.wasted_slot_seconds;
    assert!((4_000.0..6_500.0).contains(&more), "{more}");
    assert!(moves(&lost) > moves(&undisturbed), "its streams go to others");
    let unowned = lost.streams.map(|streams| streams.unowned_max_seconds).unwrap();
    // A lease of 10 s has certainly ended after 10.6 s.
    assert!((8.0..14.0).contains(&unowned), "{unowned}");
}

/// On Kubernetes its Node is deleted, or somebody says it, maybe long after the pod is replaced.
#[test]
fn a_lost_workers_slots_are_free_when_the_platform_says_that_it_is_gone() {
    let wasted = |gone: &str| {
        let lose =
            format!("{{at: 30m, lose: {{cluster: builds, workers: 1, replacedAfter: 10m{gone}}}}}");
        let load = load(&load_file(&lose), &budgets());
        figures(&load, Side::Leasehold).wasted_slot_seconds
    };
    let more = wasted(", goneAfter: 30m") - wasted("");
    // Four slots for twenty minutes, while jobs wait.
    assert!((4_000.0..5_500.0).contains(&more), "{more}");
}

/// Six workers, one of which is lost: the others could have all slots of the budget.
#[test]
fn a_lost_worker_is_given_up_in_time_after_a_failover_too() {
    let mut desired = budgets();
    for cluster in desired.clusters.values_mut() {
        Arc::make_mut(cluster).lost_after = Some(5 * 60 * SECOND);
    }
    let lose = "{at: 30m, lose: {cluster: builds, workers: 1, replacedAfter: 2h}}";
    let wasted = |events: &str| {
        let text = load_file(events).replace("- name: builds", "- name: builds\n  workers: 6");
        let load = load(&text, &desired);
        figures(&load, Side::Leasehold).wasted_slot_seconds
    };
    let undisturbed = wasted("");
    // Its three or four slots for five minutes. With the failover the next leader counts again from
    // the end of what its predecessor granted, which is five minutes after the last renewal.
    for (events, expected) in [
        (lose.to_owned(), 600.0..1_500.0),
        (format!("{lose}, {{at: 34m, failover: {{}}}}"), 2_400.0..3_700.0),
    ] {
        let more = wasted(&events) - undisturbed;
        assert!(expected.contains(&more), "{events}: {more}");
    }
}

/// Leadership ends five minutes after the last renewal, and leases of 10 s soon after that.
#[test]
fn a_long_outage_ends_the_leases_of_all_streams_until_it_is_over() {
    let unowned_max = |minutes: u32| {
        let outage = format!("{{at: 1h, outage: {{for: {minutes}m}}}}");
        let load = load(&load_file(&outage), &budgets_and_streams());
        let run = run(&load, Side::Leasehold, IdleTime::Skipped, 1).unwrap().clusters.remove(0);
        let streams = run.streams.unwrap();
        (streams.unowned_max_seconds, streams.unowned_seconds)
    };
    let (longest, all) = unowned_max(8);
    assert!((165.0..200.0).contains(&longest), "{longest}");
    assert!(all > 8.0 * 165.0, "each of the eight: {all}");
    let (longest, _) = unowned_max(4);
    assert!(longest < 8.0, "leadership outlasts it: {longest}");
}

#[test]
fn a_lower_budget_ends_no_job_and_lets_none_begin() {
    let events = "{at: 30m, budget: {cluster: builds, maxJobs: 8}}";
    let load = load(&load_file(events), &budgets());
    let run = run(&load, Side::Leasehold, IdleTime::Skipped, 1).unwrap().clusters.remove(0);
    assert_eq!(run.jobs.killed, 0, "{:?}", run.jobs);
    assert!(run.jobs.above_budget_max > 0, "its jobs go on: {:?}", run.jobs);
    let part = |time: Duration| (time.as_secs_f64() / run.course.part_seconds) as usize;
    assert_eq!(run.course.budget[part(31 * 60 * SECOND)], 8);
    // The most jobs of each part of the time, from the event on.
    let after = &run.course.running[part(30 * 60 * SECOND)..];
    assert!(after[0] > 8 && after.last().is_some_and(|last| *last <= 8), "{after:?}");
    let grows = |pair: &&[u32]| pair[1] > pair[0].max(8);
    assert_eq!(after.windows(2).find(grows), None, "none begins above the budget: {after:?}");
}

/// Streams that were balanced with equal weights are so no longer.
#[test]
fn streams_move_when_their_weights_change() {
    let moves = |weight: u32| {
        let streams = format!(
            "streams: [{{set: cars, names: [stream-0, stream-1, stream-5, stream-6], weights: \
             [{{at: \"00:00\", weight: 1}}, {{at: \"01:00\", weight: {weight}}}]}}]\n"
        );
        let load = load(&(load_file("") + &streams), &budgets_and_streams());
        let run = run(&load, Side::Leasehold, IdleTime::Skipped, 1).unwrap().clusters.remove(0);
        run.streams.map(|streams| streams.moves).unwrap()
    };
    assert!(moves(10) > moves(1), "{} and {}", moves(10), moves(1));
}

fn problems(text: &str) -> Vec<String> {
    let read = LoadFile::read("load.yaml", text);
    let resolved = read.and_then(|file| file.resolve(&budgets(), &BTreeMap::new()));
    resolved.unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_wrong_with_a_load_is_named_with_its_place_and_what_to_do() {
    let cluster = "for: 1h\nclusters:\n- name: builds\n";
    let arrivals = format!("{cluster}  arrivals: {{perHour: 6}}\n");
    let durations = "  durations: {constant: 1m}\n";
    let good = format!("{arrivals}{durations}");
    assert!(LoadFile::read("load.yaml", &good).is_ok());
    for (text, problem) in [
        (
            "for: 0s\nclusters: []\n".to_owned(),
            "load.yaml:1:6: for: must be above 0 and at most 744h",
        ),
        (
            "for: 1h\nclusters: []\n".to_owned(),
            "clusters: is empty: give at least one WorkerCluster or",
        ),
        (
            good.replace("builds", "buids"),
            "load.yaml:3:9: clusters[0].name: is buids, which no WorkerCluster or WorkerClass is \
             called; did you mean builds?",
        ),
        (
            good.replace("arrivals", "arivals"),
            "load.yaml:4:3: clusters[0].arivals: is not a known field: remove it, or use one of: \
             name, workers, startup, arrivals, durations, streamRelease, minReady, stabilization, \
             deployment, autoscaler; did you mean arrivals?",
        ),
        (
            good.replace("perHour: 6", "perHour: -6"),
            "load.yaml:4:23: clusters[0].arrivals.perHour: is -6, but must be a number of jobs: 0, \
             or from 0.001 to 10000000",
        ),
        (arrivals.clone(), "clusters[0].durations: is missing: say how long jobs run"),
        (format!("{cluster}{durations}"), "clusters[0].arrivals: is missing: say how many jobs"),
        (
            good.replace("constant: 1m", "constant: 1m, uniform: {min: 1m, max: 2m}"),
            "clusters[0].durations: must be given in exactly one way: constant, uniform,",
        ),
        (
            good.replace("constant: 1m", "lognormal: {median: 5m, p95: 2m}"),
            "clusters[0].durations.lognormal.p95: is below the median (5m): raise it",
        ),
        (
            good.replace("constant: 1m", "constant: 1 minute"),
            "clusters[0].durations.constant: is the text \"1 minute\", but must be a duration such",
        ),
        (
            good.replace(
                "perHour: 6",
                "steps: [{at: \"9:00\", perHour: 1}, {at: \"08:00\", perHour: 1}]",
            ),
            "clusters[0].arrivals.steps[0].at: is the text \"9:00\", but must be a time of the day",
        ),
        (
            good.replace(
                "perHour: 6",
                "steps: [{at: \"09:00\", perHour: 1}, {at: \"08:00\", perHour: 1}]",
            ),
            "clusters[0].arrivals.steps[1].at: is not after the step before: sort the steps",
        ),
        (
            format!("{good}events:\n- {{at: 2h, failover: {{}}}}\n"),
            "load.yaml:7:8: events[0].at: is not before the end (1h): lower it",
        ),
        (
            format!("{good}events:\n- {{at: 1m}}\n"),
            "events[0]: must have exactly one of: rollout, scale, lose, failover, outage, budget",
        ),
        (
            format!("{good}events:\n- {{at: 1m, rollout: {{cluster: build}}}}\n"),
            "events[0].rollout.cluster: is build, which is not among clusters above: add it; did \
             you mean builds?",
        ),
        (
            format!("{good}events:\n- {{at: 1m, scale: {{cluster: builds, workers: 0}}}}\n"),
            "events[0].scale.workers: is 0, but must be from 1 to 20000",
        ),
        (
            good.clone()
                + "events:\n- {at: 1m, lose: {cluster: builds, workers: 1, goneAfter: 5m}}\n",
            "events[0].lose.goneAfter: is before replacedAfter (5m50s): raise it",
        ),
        (
            format!("{good}  deployment: {{pool: 21}}\n"),
            "load.yaml:6:22: clusters[0].deployment.pool: is 21, so that one pod alone would \
             exceed the budget: lower it to maxJobs (20) or less",
        ),
        (
            good.replace("perHour: 6", "perHour: 10000000"),
            "clusters: get about 10000000 jobs together, more than 5000000: lower the rates",
        ),
    ] {
        let found = problems(&text);
        assert!(found.iter().any(|one| one.contains(problem)), "{problem}\n{found:#?}\n{text}");
    }
}

#[test]
fn real_durations_are_read_from_a_file_beside_the_load() {
    let text = "for: 1h\nclusters:\n- name: builds\n  arrivals: {perHour: 60}\n  \
                durations: {csv: {file: jobs.csv, column: seconds}}\n";
    let file = LoadFile::read("load.yaml", text).unwrap();
    assert_eq!(file.csv_files(), ["jobs.csv"].into());
    let csv = |text: &str| -> BTreeMap<String, String> {
        [("jobs.csv".to_owned(), text.to_owned())].into()
    };
    let load = file.resolve(&budgets(), &csv("job,seconds\na,30\nb,90\n")).unwrap();
    let figures = figures(&load, Side::Leasehold);
    assert!(figures.ended > 30, "{figures:?}");
    let problems = file.resolve(&budgets(), &csv("job,seconds\na,soon\n")).unwrap_err();
    let why = "jobs.csv:2:1: is \"soon\", but must be a number of seconds, 0 or more";
    assert_eq!(problems[0].to_string(), why);
}
