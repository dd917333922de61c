//! What is really waited for, in words.

use leasehold_agent_core::Awaited;

/// What keeps a drain from ending.
pub(super) fn of_drain(awaited: &Awaited) -> String {
    let Awaited { jobs, obeyed, streams, goodbye, .. } = *awaited;
    if goodbye {
        return "a coordinator has yet to hear that nothing is held any more".into();
    }
    let mut parts = vec![match jobs {
        Some(jobs) => format!("{jobs} jobs run"),
        None => unknown(awaited),
    }];
    if obeyed > 0 {
        parts.push(format!("the worker has yet to say that it keeps to 0 jobs, not {obeyed}"));
    }
    parts.push(format!("{streams} streams held"));
    parts.join(", ")
}

/// What an agent waits for that works, and admits no job; none where it can tell of all jobs.
pub(super) fn of_work(awaited: &Awaited) -> Option<String> {
    awaited.jobs.is_none().then(|| unknown(awaited))
}

fn unknown(awaited: &Awaited) -> String {
    let slots = match awaited.slots_max {
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
        let none = Awaited {
            jobs: Some(0),
            slots_max: 0,
            obeyed: 0,
            streams: 0,
            goodbye: false,
            draining: true,
        };
        assert_eq!(of_drain(&none), "0 jobs run, 0 streams held");
        assert_eq!(of_work(&none), None);
        let unknown = Awaited { jobs: None, slots_max: 3, ..none };
        for said in [of_drain(&unknown), of_work(&unknown).expect("it waits")] {
            assert!(said.starts_with("3 slots count as used, since nobody can tell"), "{said}");
        }
        let counts = Awaited { obeyed: 2, streams: 1, ..none };
        let said = of_drain(&counts);
        assert!(said.contains("keeps to 0 jobs, not 2") && said.ends_with("1 streams held"));
        assert!(of_drain(&Awaited { goodbye: true, ..none }).contains("yet to hear"));
    }
}
