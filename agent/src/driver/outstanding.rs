//! What is really waited for, in words.

use leasehold_agent_core::Outstanding;

/// What keeps a drain from ending.
pub(super) fn describe_drain(outstanding: &Outstanding) -> String {
    let Outstanding { jobs, obeyed, streams, goodbye, .. } = *outstanding;
    if goodbye {
        return "waiting for a coordinator, which must learn that the worker has left".into();
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

/// What keeps a working agent from admitting jobs; none where it knows of all jobs.
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
        "{slots} as used, since it is unknown which jobs an earlier agent left: until the worker \
         restarts or reports its jobs (POST /v1/start, PUT /v1/count), or DeclareWorkerGone says \
         that none runs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_named() {
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
        for said in [describe_drain(&unknown), describe_work(&unknown).expect("it waits")] {
            assert!(said.starts_with("3 slots count as used, since it is unknown"), "{said}");
        }
        let counts = Outstanding { obeyed: 2, streams: 1, ..none };
        let said = describe_drain(&counts);
        assert!(said.contains("pool size 0: it still has 2") && said.ends_with("1 stream held"));
        assert!(
            describe_drain(&Outstanding { goodbye: true, ..none })
                .contains("waiting for a coordinator")
        );
    }
}
