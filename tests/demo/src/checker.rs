//! The judge of the demo. It believes what the workers wrote down, never the coordinator.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{Evidence, Own, Run};
use crate::minimum::moves_min;

/// A change of the sum over intervals: each has its weight from its beginning to its end.
#[derive(Clone, Copy, Debug)]
pub struct Step<T> {
    /// When.
    pub at_ns: u64,
    /// By how much: below 0 at an end.
    pub change: i64,
    /// The sum from then on.
    pub sum: i64,
    /// What the interval is of.
    pub of: T,
}

/// All changes of the sum over intervals, `(from_ns, to_ns, weight, of)`. One that ends at the
/// moment when another begins is over by then, and an empty one counts nothing.
pub fn steps<T: Copy>(intervals: impl Iterator<Item = (u64, u64, i64, T)>) -> Vec<Step<T>> {
    let mut steps = Vec::new();
    for (from_ns, to_ns, weight, of) in intervals.filter(|(from_ns, to_ns, ..)| from_ns < to_ns) {
        steps.push(Step { at_ns: from_ns, change: weight, sum: 0, of });
        steps.push(Step { at_ns: to_ns, change: -weight, sum: 0, of });
    }
    // Ends sort before beginnings.
    steps.sort_by_key(|step| (step.at_ns, step.change));
    let mut sum = 0;
    for step in &mut steps {
        sum += step.change;
        step.sum = sum;
    }
    steps
}

/// All changes of the number of jobs that run.
#[must_use]
pub fn job_steps(runs: &[Run]) -> Vec<Step<&Run>> {
    steps(runs.iter().map(|run| (run.from_ns, run.to_ns, 1, run)))
}

/// The most runs at the same time within `[from_ns, to_ns)`.
#[must_use]
pub fn peak(runs: &[Run], from_ns: u64, to_ns: u64) -> usize {
    let part = |run: &Run| (run.from_ns.max(from_ns), run.to_ns.min(to_ns), 1, ());
    let most = steps(runs.iter().map(part)).iter().map(|step| step.sum).max().unwrap_or(0);
    usize::try_from(most).expect("no run ends before it began")
}

/// How long streams had two owners or more, summed over streams, and each case in words.
#[must_use]
pub fn double_owned(owns: &[Own]) -> (u64, Vec<String>) {
    let (mut total_ns, mut cases) = (0_u64, Vec::new());
    for owns in by_stream(owns).values() {
        let mut steps: Vec<(u64, bool, &str)> = Vec::new();
        for own in owns.iter().filter(|own| own.from_ns < own.to_ns) {
            steps.push((own.from_ns, true, &own.worker));
            steps.push((own.to_ns, false, &own.worker));
        }
        steps.sort_unstable();
        let (mut holding, mut since_ns): (BTreeMap<&str, i32>, u64) = (BTreeMap::new(), 0);
        for (at_ns, begins, worker) in steps {
            if holding.len() > 1 && at_ns > since_ns {
                // An owner that never ended has the highest end.
                total_ns = total_ns.saturating_add(at_ns - since_ns);
                let names: Vec<&str> = holding.keys().copied().collect();
                cases.push(format!(
                    "{} was owned by {} for {} us",
                    owns[0].stream,
                    names.join(" and "),
                    (at_ns - since_ns) / 1000
                ));
            }
            since_ns = at_ns;
            *holding.entry(worker).or_default() += if begins { 1 } else { -1 };
            holding.retain(|_, count| *count > 0);
        }
    }
    (total_ns, cases)
}

/// How often a stream went from one worker to another within `[from_ns, to_ns)`. A first owner,
/// and a worker that gets its own stream again, are no moves.
#[must_use]
pub fn moves(owns: &[Own], from_ns: u64, to_ns: u64) -> usize {
    let streams = by_stream(owns);
    let pairs = streams.values().flat_map(|owns| owns.windows(2));
    pairs
        .filter(|pair| pair[0].worker != pair[1].worker)
        .filter(|pair| (from_ns..to_ns).contains(&pair[1].from_ns))
        .count()
}

/// The longest time for which a stream that had an owner had none, of those that ended within
/// `[from_ns, to_ns)`.
#[must_use]
pub fn unowned_max_ns(owns: &[Own], from_ns: u64, to_ns: u64) -> u64 {
    let streams = by_stream(owns);
    let pairs = streams.values().flat_map(|owns| owns.windows(2));
    let within = pairs.filter(|pair| (from_ns..to_ns).contains(&pair[1].from_ns));
    within.map(|pair| pair[1].from_ns.saturating_sub(pair[0].to_ns)).max().unwrap_or(0)
}

fn by_stream(owns: &[Own]) -> BTreeMap<&str, Vec<&Own>> {
    let mut streams: BTreeMap<&str, Vec<&Own>> = BTreeMap::new();
    for own in owns {
        streams.entry(&own.stream).or_default().push(own);
    }
    for owns in streams.values_mut() {
        owns.sort_by_key(|own| own.from_ns);
    }
    streams
}

/// What became of a phase.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PhaseResult {
    /// Its name.
    pub name: String,
    /// The highest `maxJobs` in force.
    pub max_jobs: u32,
    /// The most jobs at the same time.
    pub peak_jobs: usize,
    /// Streams that changed their worker.
    pub moves: usize,
    /// The fewest that the change of workers forces.
    pub moves_min: usize,
    /// How long it took.
    pub ms: u64,
    /// The most jobs at the same time after the phase's change was through, or `None` if the cap
    /// need not be reached.
    pub peak_jobs_stable: Option<usize>,
}

/// Judges each phase by itself.
#[must_use]
pub fn phases(evidence: &Evidence) -> Vec<PhaseResult> {
    let result = |phase: &crate::journal::Phase| {
        let living: BTreeSet<String> = phase.living.iter().cloned().collect();
        PhaseResult {
            name: phase.name.clone(),
            max_jobs: phase.max_jobs,
            peak_jobs: peak(&evidence.runs, phase.from_ns, phase.to_ns),
            moves: moves(&evidence.owns, phase.from_ns, phase.to_ns),
            moves_min: moves_min(&evidence.owners_at(phase.from_ns), &living),
            ms: (phase.to_ns - phase.from_ns) / 1_000_000,
            peak_jobs_stable: phase
                .full
                .then(|| peak(&evidence.runs, phase.stable_ns, phase.to_ns)),
        }
    };
    evidence.phases.iter().map(result).collect()
}

/// What became of the jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// With a result in the queue's `done` folder, and a worker's word that it made it.
    pub done: usize,
    /// Put into the queue, and neither waiting there nor done at the end; or said to be done,
    /// without a result.
    pub lost: BTreeSet<String>,
    /// Done more than once.
    pub doubled: BTreeSet<String>,
}

/// Counts jobs. `pending` and `results` are the ids in the queue's folders after the end.
#[must_use]
pub fn jobs(evidence: &Evidence, pending: &BTreeSet<String>, results: &BTreeSet<String>) -> Jobs {
    let mut jobs = Jobs::default();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for run in evidence.runs.iter().filter(|run| run.done) {
        *ends.entry(&run.job).or_default() += 1;
    }
    for job in &evidence.created {
        let ended = ends.get(job.as_str()).copied().unwrap_or(0);
        let has_result = results.contains(job);
        match ended {
            0 if pending.contains(job) => {}
            1 if has_result => jobs.done += 1,
            2.. if has_result => drop(jobs.doubled.insert(job.clone())),
            _ => drop(jobs.lost.insert(job.clone())),
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{self, Line};
    use crate::records::Write;

    /// Journal lines in short: `TIME WORKER EVENT [JOB | STREAM TOKEN [WHY]]`.
    fn lines(text: &str) -> Vec<Line> {
        let line = |text: &str| {
            let parts: Vec<&str> = text.split_whitespace().collect();
            let mut fields = format!(
                r#""at_ns": {}, "wall_us": 1, "worker": "{}", "event": "{}""#,
                parts[0], parts[1], parts[2]
            );
            match parts[3..] {
                [] => {}
                [job] => fields += &format!(r#", "job": "{job}""#),
                [stream, token, ..] => {
                    let why = parts.get(5).unwrap_or(&"revoked");
                    fields += &format!(
                        r#", "set": "s", "stream": "{stream}", "token": "{token}", "why": "{why}""#
                    );
                }
            }
            journal::parse(&format!("{{{fields}}}")).unwrap()
        };
        text.lines().map(str::trim).filter(|text| !text.is_empty()).map(line).collect()
    }

    fn evidence(text: &str) -> Evidence {
        let evidence = Evidence::new(lines(text));
        assert_eq!(evidence.contradictions, Vec::<String>::new());
        evidence
    }

    fn names(text: &str) -> BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn counts_the_most_jobs_that_run_at_once() {
        let evidence = evidence(
            "10 w1 job_start a
             12 w2 job_start b
             20 w1 job_end a
             20 w1 job_start c
             30 w2 job_end b
             40 w1 job_end c",
        );
        assert_eq!(peak(&evidence.runs, 0, 100), 2, "an end makes room at the same moment");
        assert_eq!(peak(&evidence.runs, 0, 12), 1);
        assert_eq!(peak(&evidence.runs, 30, 100), 1, "what runs already counts");
        assert_eq!(peak(&evidence.runs, 40, 100), 0);
    }

    #[test]
    fn counts_a_job_without_an_end_as_running() {
        let evidence = evidence("10 w1 job_start a\n 20 w1 job_start b\n 1000 w1 job_start c");
        assert_eq!(peak(&evidence.runs, 0, u64::MAX), 3);
    }

    #[test]
    fn counts_no_jobs_of_a_killed_worker() {
        let evidence = evidence(
            "10 w1 job_start a
             11 w1 own_start x 1.1
             50 w1 killed
             50 w2 job_start b
             60 w2 own_start x 1.2
             70 w2 job_end b",
        );
        assert_eq!(peak(&evidence.runs, 0, 100), 1);
        assert_eq!(double_owned(&evidence.owns).0, 0);
    }

    #[test]
    fn accepts_a_handover_without_overlap() {
        let evidence = evidence(
            "10 w1 own_start x 1.1
             20 w1 own_end x 1.1
             20 w2 own_start x 1.2
             30 w2 own_end x 1.2 expired
             31 w2 own_start x 1.2
             35 w2 own_end x 1.2 replaced
             34 w1 own_start y 1.3",
        );
        assert_eq!(double_owned(&evidence.owns), (0, Vec::new()));
    }

    #[test]
    fn reports_overlapping_owners_of_a_stream() {
        let mut evidence = evidence(
            "10 w1 own_start x 1.1
             20 w2 own_start x 1.2
             25 w3 own_start x 1.3
             30 w1 own_end x 1.1
             40 w2 own_end x 1.2",
        );
        let (total_ns, cases) = double_owned(&evidence.owns);
        assert_eq!(total_ns, 20);
        assert!(cases[0].contains("w1 and w2"), "{cases:?}");
        assert_eq!(evidence.stretch(&[]), Vec::<String>::new());
    }

    #[test]
    fn reports_two_owners_that_never_stop() {
        let evidence = evidence("10 w1 own_start x 1.1\n 20 w2 own_start x 1.2");
        assert!(double_owned(&evidence.owns).0 > 0);
    }

    #[test]
    fn counts_the_writer_of_a_stream_as_an_owner() {
        let mut evidence = evidence(
            "10 w1 own_start x 1.1
             20 w1 own_end x 1.1
             20 w2 own_start x 1.2",
        );
        let write = |worker: &str, token: &str, at_ns| Write {
            stream: "s/x".to_owned(),
            worker: worker.to_owned(),
            token: token.to_owned(),
            at_ns,
        };
        let honest = [write("w1", "1.1", 19), write("w2", "1.2", 21)];
        assert_eq!(evidence.stretch(&honest), Vec::<String>::new());
        assert_eq!(double_owned(&evidence.owns).0, 0);
        assert_eq!(evidence.stretch(&[write("w1", "1.1", 27)]), Vec::<String>::new());
        assert_eq!(double_owned(&evidence.owns).0, 7, "it wrote after it said that it stopped");
        assert_eq!(evidence.stretch(&[write("w3", "1.3", 30), write("w1", "1.1", 5)]).len(), 2);
    }

    #[test]
    fn counts_moves_within_a_period() {
        let evidence = evidence(
            "10 w1 own_start x 1.1
             10 w1 own_start y 1.2
             20 w1 own_end x 1.1
             21 w2 own_start x 1.3
             30 w2 own_end x 1.3
             31 w1 own_start x 1.4
             32 w1 own_end x 1.4
             33 w1 own_start x 1.5",
        );
        assert_eq!(moves(&evidence.owns, 0, 100), 2, "there and back are two");
        assert_eq!(moves(&evidence.owns, 0, 31), 1);
        assert_eq!(moves(&evidence.owns, 21, 31), 1, "the first one is at 21");
        assert_eq!(moves(&evidence.owns, 32, 100), 0, "taking its own stream again is not a move");
        assert_eq!(evidence.owners_at(25).len(), 2);
        assert_eq!(evidence.owners_at(25)["s/x"], "w2");
        assert_eq!(evidence.owners_at(20).get("s/x"), None);
    }

    #[test]
    fn finds_the_longest_time_without_an_owner() {
        let evidence = evidence(
            "10 w1 own_start x 1.1
             12 w1 own_end x 1.1
             19 w2 own_start x 1.2
             20 w2 killed
             23 w1 own_start x 1.3
             90 w1 own_start y 1.4",
        );
        assert_eq!(unowned_max_ns(&evidence.owns, 0, 100), 7);
        assert_eq!(unowned_max_ns(&evidence.owns, 20, 100), 3);
        assert_eq!(unowned_max_ns(&evidence.owns, 30, 100), 0, "a first owner ends no such time");
    }

    #[test]
    fn counts_done_lost_and_repeated_jobs() {
        let evidence = evidence(
            "1 demo job_created a
             1 demo job_created b
             1 demo job_created c
             1 demo job_created d
             1 demo job_created e
             1 demo job_created f
             10 w1 job_start a
             11 w1 job_end a
             12 w1 job_start b
             13 w1 job_end b
             14 w2 job_start b
             15 w2 job_end b
             16 w1 job_start d
             17 w1 job_end d
             18 w1 job_start e
             19 w1 killed
             20 w1 job_retried e
             21 w2 job_start e
             22 w2 job_end e",
        );
        let jobs = jobs(&evidence, &names("c"), &names("a b e"));
        assert_eq!(jobs.done, 2, "a, and e at the second try");
        assert_eq!(jobs.doubled, names("b"));
        assert_eq!(jobs.lost, names("d f"), "d has no result, f is nowhere");
        assert_eq!(evidence.retried, names("e"));
    }

    #[test]
    fn reports_ends_without_starts() {
        let evidence = Evidence::new(lines("10 w1 job_end a\n 11 w1 own_end x 1.1"));
        assert_eq!(evidence.contradictions.len(), 2);
    }

    #[test]
    fn judges_each_phase_separately() {
        let mut evidence = evidence(
            "10 w1 own_start x 1.1
             10 w1 own_start y 1.2
             12 w1 job_start a
             60 w1 own_end y 1.2
             61 w2 own_start y 1.3
             70 w2 job_start b
             90 w1 job_end a",
        );
        let phase = |name: &str, from_ns, to_ns, living: &str| journal::Phase {
            name: name.to_owned(),
            from_ns,
            stable_ns: to_ns - 5,
            to_ns,
            max_jobs: 2,
            full: true,
            living: names(living).into_iter().collect(),
        };
        evidence.phases = vec![phase("start", 0, 50, "w1"), phase("join", 50, 80, "w1 w2")];
        let results = phases(&evidence);
        let figures = |result: &PhaseResult| (result.peak_jobs, result.moves, result.moves_min);
        assert_eq!(figures(&results[0]), (1, 0, 0));
        assert_eq!(figures(&results[1]), (2, 1, 1));
        assert_eq!(results[1].peak_jobs_stable, Some(2));
    }
}
