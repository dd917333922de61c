//! Describes what the agent waits for.

use leasehold_agent_core::Outstanding;

/// What keeps a drain from ending.
pub(super) fn describe_drain(outstanding: &Outstanding) -> String {
    let Outstanding { jobs, obeyed, streams, goodbye, .. } = *outstanding;
    if goodbye {
        return "waiting for a coordinator, to report that the worker leaves".into();
    }
    let mut parts = vec![match jobs {
        Some(jobs) => format!("{} running", amount(jobs, "job")),
        None => unknown(outstanding),
    }];
    if obeyed > 0 {
        parts.push(format!("waiting for the worker to confirm pool size 0: it still has {obeyed}"));
    }
    parts.push(format!("{} held", amount(streams as u64, "stream")));
    parts.join(", ")
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
    use super::*;

    #[test]
    fn describes_jobs_streams_unknown_slots_and_the_last_report() {
        let none = Outstanding {
            jobs: Some(0),
            slots_max: 0,
            obeyed: 0,
            streams: 0,
            goodbye: false,
            draining: true,
        };
        assert_eq!(describe_drain(&none), "0 jobs running, 0 streams held");
        assert_eq!(describe_work(&none), None);
        let unknown = Outstanding { jobs: None, slots_max: 3, ..none };
        for text in [
            describe_drain(&unknown),
            describe_work(&unknown).expect("unknown jobs are outstanding"),
        ] {
            assert!(text.starts_with("3 slots count as used, since the jobs of an"), "{text}");
        }
        let counts = Outstanding { obeyed: 2, streams: 1, ..none };
        let text = describe_drain(&counts);
        assert!(text.contains("pool size 0: it still has 2") && text.ends_with("1 stream held"));
        assert!(
            describe_drain(&Outstanding { goodbye: true, ..none })
                .contains("waiting for a coordinator")
        );
    }
}
