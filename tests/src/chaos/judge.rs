//! The judge. It believes what the workers wrote down, by one clock, and nothing that a coordinator
//! or an agent says.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_demo::checker::{Step, double_owned, job_steps, steps};
use leasehold_demo::evidence::{Evidence, Own, Run};
use leasehold_demo::records::token_order;

use super::manifests::CAPACITY;

/// Cases of one kind that are reported one by one.
const CASES_MAX: usize = 10;

/// The findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChaosResult {
    /// Jobs that were begun.
    pub jobs: usize,
    /// Of these, those that were done.
    pub jobs_done: usize,
    /// Times that a worker began to own a stream or a share.
    pub owned: usize,
    /// What must never happen, in words.
    pub failures: Vec<String>,
}

/// Judges a run that is over: every worker was killed, or ended when its jobs had.
#[must_use]
pub fn judge(evidence: &Evidence) -> ChaosResult {
    let mut failures = Vec::new();
    let mut add = |what: &str, cases: Vec<String>| {
        let more = cases.len().saturating_sub(CASES_MAX);
        failures.extend(cases.into_iter().take(CASES_MAX).map(|case| format!("{what}: {case}")));
        failures.extend((more > 0).then(|| format!("{what}: {more} cases more")));
    };
    add("a journal contradicts itself", evidence.contradictions.clone());
    add("over the budget", over_budget(evidence));
    add("two owners", double_owned(&evidence.owns).1);
    add("an older token", older_tokens(&evidence.owns));
    add("over the capacity", over_capacity(&evidence.owns));
    let lost = evidence.runs.iter().filter(|run| run.to_ns == u64::MAX);
    let lost = lost.map(|run| format!("{} of {} has no end", run.job, run.worker));
    add("a lost job", lost.collect());
    ChaosResult {
        jobs: evidence.runs.len(),
        jobs_done: evidence.runs.iter().filter(|run| run.done).count(),
        owned: evidence.owns.len(),
        failures,
    }
}

/// Jobs that began while as many ran as may.
fn over_budget(evidence: &Evidence) -> Vec<String> {
    let begun = job_steps(&evidence.runs).into_iter().filter(|step| step.change > 0);
    let case = |Step { at_ns, sum, of, .. }: Step<&Run>| {
        let budget = evidence.budget_at(at_ns);
        (sum > i64::from(budget))
            .then(|| format!("{} began as one of {sum} at {at_ns}, of {budget}", of.job))
    };
    begun.filter_map(case).collect()
}

/// Owners whose token is not above that of an earlier owner.
fn older_tokens(owns: &[Own]) -> Vec<String> {
    let mut highest: BTreeMap<&str, &Own> = BTreeMap::new();
    let mut cases = Vec::new();
    let mut owns: Vec<&Own> = owns.iter().filter(|own| own.from_ns < own.to_ns).collect();
    owns.sort_by_key(|own| own.from_ns);
    for own in owns {
        let Ok(token) = token_order(&own.token) else {
            cases.push(format!("{} of {} is not a valid token", own.token, own.stream));
            continue;
        };
        let before = highest.insert(&own.stream, own);
        let Some(before) = before else { continue };
        let again = before.worker == own.worker && before.token == own.token;
        if !again && token_order(&before.token).is_ok_and(|before| before >= token) {
            cases.push(format!(
                "{} went from {} under {} to {} under {}",
                own.stream, before.worker, before.token, own.worker, own.token
            ));
        }
    }
    cases
}

/// Workers whose shares add up to more than they can take.
fn over_capacity(owns: &[Own]) -> Vec<String> {
    let workers: BTreeSet<&str> = owns.iter().map(|own| &*own.worker).collect();
    let most = i64::from(CAPACITY) * 1_000;
    let cases = |worker| {
        let own = owns.iter().filter(move |own| own.worker == worker);
        let load = |own: &Own| i64::try_from(own.load_milli).unwrap_or(i64::MAX);
        let steps = steps(own.map(|own| (own.from_ns, own.to_ns, load(own), ())));
        steps.into_iter().filter(|step| step.sum > most).map(move |Step { at_ns, sum, .. }| {
            format!("{worker} has {sum} thousandths at {at_ns}, of {most}")
        })
    };
    workers.into_iter().flat_map(cases).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_demo::journal::{Event, Line};

    /// Lines in short: `TIME WORKER EVENT [VALUE...]`.
    fn verdict(text: &str) -> Vec<String> {
        let line = |text: &str| {
            let parts: Vec<&str> = text.split_whitespace().collect();
            let word = |index: usize| parts[index].to_owned();
            let number = |index: usize| parts.get(index).and_then(|text| text.parse().ok());
            let (set, stream) = ("s".to_owned(), || word(3));
            let event = match parts[2] {
                "start" => Event::JobStart { job: word(3) },
                "end" => Event::JobEnd { job: word(3) },
                "own" => {
                    Event::OwnStart { set, stream: stream(), token: word(4), load_milli: number(5) }
                }
                "lose" => Event::OwnEnd {
                    set,
                    stream: stream(),
                    token: word(4),
                    why: "expired".to_owned(),
                    until_ns: number(5),
                },
                "killed" => Event::Killed,
                "stopped" => Event::Stopped,
                "continued" => Event::Continued,
                "budget" => Event::Budget { max_jobs: parts[3].parse().unwrap() },
                other => panic!("{other}"),
            };
            Line { at_ns: parts[0].parse().unwrap(), wall_us: 1, worker: word(1), event }
        };
        let lines = text.lines().map(str::trim).filter(|text| !text.is_empty()).map(line);
        judge(&Evidence::new(lines.collect())).failures
    }

    #[track_caller]
    fn check(text: &str, want: &[&str]) {
        let failures = verdict(text);
        let kinds: Vec<&str> =
            failures.iter().filter_map(|failure| failure.split(':').next()).collect();
        assert_eq!(kinds, want, "{failures:?}");
    }

    #[test]
    fn applies_a_budget_from_the_time_it_takes_effect() {
        check("1 c budget 1\n 2 a start x\n 3 a end x\n 3 b start y\n 4 b end y", &[]);
        check(
            "1 c budget 1\n 2 a start x\n 3 b start y\n 4 b end y\n 5 a end x",
            &["over the budget"],
        );
        check(
            "1 c budget 2\n 2 a start x\n 3 b start y\n 4 c budget 1\n 5 b end y\n 6 a end x",
            &[],
        );
    }

    #[test]
    fn a_stopped_worker_owns_until_its_lease_ends() {
        let handover = "1 a own x 1.1\n 2 a stopped\n 9 b own x 1.2\n 20 a continued";
        check(&format!("{handover}\n 21 a lose x 1.1 8\n 22 b lose x 1.2"), &[]);
        check(&format!("{handover}\n 21 a lose x 1.1 12\n 22 b lose x 1.2"), &["two owners"]);
    }

    #[test]
    fn counts_no_work_of_a_worker_killed_while_stopped() {
        check("1 a own x 1.1\n 2 a stopped\n 9 b own x 1.2\n 20 a killed\n 22 b lose x 1.2", &[]);
        check("1 a own x 1.1\n 9 b own x 1.2\n 20 a killed\n 22 b lose x 1.2", &["two owners"]);
    }

    #[test]
    fn requires_a_higher_token_for_each_new_owner() {
        check("1 a own x 1.9\n 2 a lose x 1.9\n 3 b own x 1.10\n 4 b lose x 1.10", &[]);
        check("1 a own x 1.9\n 2 a lose x 1.9\n 3 a own x 1.9\n 4 a lose x 1.9", &[]);
        let falls = "1 a own x 2.1\n 2 a lose x 2.1\n 3 b own x 1.10\n 4 b lose x 1.10";
        check(falls, &["an older token"]);
    }

    #[test]
    fn requires_shares_to_fit_the_capacity() {
        let first = "1 a own x 1.1 20000";
        check(&format!("{first}\n 2 a own y 1.2 10000\n 3 a killed"), &[]);
        check(&format!("{first}\n 2 a own y 1.2 10001\n 3 a killed"), &["over the capacity"]);
        check(&format!("{first}\n 2 a lose x 1.1\n 2 a own y 1.2 20000\n 3 a killed"), &[]);
    }

    #[test]
    fn a_job_ends_or_dies_with_its_worker() {
        check("1 c budget 1\n 2 a start x\n 3 a killed", &[]);
        check("1 c budget 1\n 2 a start x", &["a lost job"]);
    }
}
