//! Describes what the agent waits for.

use std::cmp::Reverse;
use std::time::Duration;

use leasehold_agent_core::Outstanding;
use leasehold_types::duration;

use super::job_clock::RunningJobs;

/// The most jobs that are named.
const NAMED_MAX: usize = 3;

/// What keeps a drain from ending, with the jobs that have run for longest.
pub(super) fn describe_drain(outstanding: &Outstanding, running: &RunningJobs) -> String {
    let Outstanding { jobs, in_effect, streams, shares, goodbye, .. } = *outstanding;
    if goodbye {
        return "waiting for a coordinator, to report that the worker leaves".into();
    }
    let mut parts = vec![match jobs {
        Some(jobs) => format!("{} running{}", amount(jobs, "job"), names(running)),
        None => unknown(outstanding),
    }];
    if in_effect > 0 {
        parts.push(format!(
            "waiting for the worker to confirm pool size 0: it still has {in_effect}"
        ));
    }
    parts.push(format!("{} held", amount(streams as u64, "stream")));
    if shares > 0 {
        let shares = amount(shares as u64, "share");
        parts
            .push(format!("{shares} of pipelines held until another worker of the class has room"));
    }
    parts.join(", ")
}

/// ` (build-7 for 3m, build-9 for 2m and 4 others)`; nothing if no job has an id.
fn names(running: &RunningJobs) -> String {
    let mut jobs: Vec<_> = running.named.iter().collect();
    if jobs.is_empty() {
        return String::new();
    }
    // One that began before this agent started has run for longest.
    jobs.sort_by_key(|job| Reverse(job.ran.unwrap_or(Duration::MAX)));
    let named = jobs.iter().take(NAMED_MAX).map(|job| match job.ran {
        Some(ran) => format!("{} for {}", job.id, duration::format_short(ran)),
        None => job.id.to_string(),
    });
    let named: Vec<_> = named.collect();
    let others = jobs.len() - named.len() + running.unnamed as usize;
    let others = match others {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        others => format!(" and {others} others"),
    };
    format!(" ({}{others})", named.join(", "))
}

/// What keeps an agent that does not drain from admitting jobs; none if all jobs are known.
pub(super) fn describe_work(outstanding: &Outstanding) -> Option<String> {
    outstanding.jobs.is_none().then(|| unknown(outstanding))
}

/// A number with its noun: `1 job`, `2 jobs`.
pub(crate) fn amount(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

fn unknown(outstanding: &Outstanding) -> String {
    let slots = match outstanding.slots_max {
        0 => "its slots count".into(),
        1 => "1 slot counts".into(),
        slots => format!("{slots} slots count"),
    };
    format!(
        "{slots} as used, since the jobs of an earlier agent are unknown: the worker must restart \
         or report its jobs (POST /v1/start, PUT /v1/count), or a person must confirm with \
         DeclareWorkerGone that none runs"
    )
}

#[cfg(test)]
mod tests {
    use leasehold_types::JobId;

    use super::*;
    use crate::driver::job_clock::RunningJob;

    #[test]
    fn describes_jobs_streams_unknown_slots_and_the_last_report() {
        let nothing = RunningJobs::default();
        let none = Outstanding {
            jobs: Some(0),
            slots_max: 0,
            in_effect: 0,
            streams: 0,
            shares: 0,
            goodbye: false,
            draining: true,
        };
        assert_eq!(describe_drain(&none, &nothing), "0 jobs running, 0 streams held");
        assert_eq!(describe_work(&none), None);
        let unknown = Outstanding { jobs: None, slots_max: 3, ..none };
        for text in [
            describe_drain(&unknown, &nothing),
            describe_work(&unknown).expect("unknown jobs are outstanding"),
        ] {
            assert!(text.starts_with("3 slots count as used, since the jobs of an"), "{text}");
        }
        let counts = Outstanding { in_effect: 2, streams: 1, ..none };
        let text = describe_drain(&counts, &nothing);
        assert!(text.contains("pool size 0: it still has 2") && text.ends_with("1 stream held"));
        let text = describe_drain(&Outstanding { shares: 2, ..none }, &nothing);
        assert!(
            text.ends_with(
                ", 2 shares of pipelines held until another worker of the class has room"
            )
        );
        assert!(
            describe_drain(&Outstanding { goodbye: true, ..none }, &nothing)
                .contains("waiting for a coordinator")
        );
    }

    #[test]
    fn names_the_jobs_that_have_run_for_longest() {
        let job = |id: &str, minutes: Option<u64>| RunningJob {
            id: JobId::new(id).expect("an id"),
            token: None,
            ran: minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        };
        let mut running =
            RunningJobs { named: vec![job("a", Some(2)), job("b", None)], unnamed: 0 };
        assert_eq!(names(&running), " (b, a for 2m)");
        running.named.extend([job("c", Some(7)), job("d", Some(1))]);
        assert_eq!(names(&running), " (b, c for 7m, a for 2m and 1 other)");
        running.unnamed = 4;
        assert_eq!(names(&running), " (b, c for 7m, a for 2m and 5 others)");
        assert_eq!(names(&RunningJobs { named: Vec::new(), unnamed: 4 }), "");
    }
}
