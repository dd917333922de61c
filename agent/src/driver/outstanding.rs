//! What is really waited for, in words.

use leasehold_agent_core::Outstanding;

/// What keeps a drain from ending.
pub(super) fn describe_drain(outstanding: &Outstanding) -> String {
    let Outstanding { jobs, obeyed, streams, goodbye, .. } = *outstanding;
    if goodbye {
        return "a coordinator has yet to hear that nothing is held any more".into();
    }
    let mut parts = vec![match jobs {
        Some(jobs) => format!("{jobs} jobs run"),
        None => unknown(outstanding),
    }];
    if obeyed > 0 {
        parts.push(format!("the worker has yet to say that it keeps to 0 jobs, not {obeyed}"));
    }
    parts.push(format!("{streams} streams held"));
    parts.join(", ")
}

/// What an agent waits for that works, and admits no job; none where it can tell of all jobs.
pub(super) fn describe_work(outstanding: &Outstanding) -> Option<String> {
    outstanding.jobs.is_none().then(|| unknown(outstanding))
}

fn unknown(outstanding: &Outstanding) -> String {
    let slots = match outstanding.slots_max {
        0 => "its slots count".into(),
        1 => "1 slot counts".into(),
        slots => format!("{slots} slots count"),
    };
    format!(
        "{slots} as used, since nobody can tell what jobs an earlier agent left: until the worker \
         starts anew or tells its jobs (POST /v1/start, PUT /v1/count), or DeclareWorkerGone says \
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
        assert_eq!(describe_drain(&none), "0 jobs run, 0 streams held");
        assert_eq!(describe_work(&none), None);
        let unknown = Outstanding { jobs: None, slots_max: 3, ..none };
        for said in [describe_drain(&unknown), describe_work(&unknown).expect("it waits")] {
            assert!(said.starts_with("3 slots count as used, since nobody can tell"), "{said}");
        }
        let counts = Outstanding { obeyed: 2, streams: 1, ..none };
        let said = describe_drain(&counts);
        assert!(said.contains("keeps to 0 jobs, not 2") && said.ends_with("1 streams held"));
        assert!(describe_drain(&Outstanding { goodbye: true, ..none }).contains("yet to hear"));
    }
}
