//! Run times of jobs, which reports and beats carry beside what the cores read.

use leasehold_types::limits::{ENDED_JOB_TIMES_MAX, RUNNING_JOB_TIMES_MAX};
use leasehold_types::message::JobTimes;

use crate::coordinator::v1 as wire;
use crate::coordinator::v1::open_session_request::Message;
use crate::map::{Invalid, at_most};

/// Adds run times to a report or a beat. A hello has no place for them.
pub fn attach_job_times(request: &mut wire::OpenSessionRequest, times: JobTimes) {
    if let Some(place) = place(request) {
        let JobTimes { ended, ended_seconds, running_seconds } = times;
        *place = Some(wire::JobTimes { ended, ended_seconds, running_seconds });
    }
}

/// Removes the run times from a report or a beat and returns them, if it has any.
///
/// # Errors
/// If they are more than [`ENDED_JOB_TIMES_MAX`] or [`RUNNING_JOB_TIMES_MAX`].
pub fn take_job_times(request: &mut wire::OpenSessionRequest) -> Result<Option<JobTimes>, Invalid> {
    let Some(times) = place(request).and_then(Option::take) else { return Ok(None) };
    let wire::JobTimes { ended, ended_seconds, running_seconds } = times;
    at_most("job_times.ended_seconds", ended_seconds.len(), ENDED_JOB_TIMES_MAX)?;
    at_most("job_times.running_seconds", running_seconds.len(), RUNNING_JOB_TIMES_MAX)?;
    Ok(Some(JobTimes { ended, ended_seconds, running_seconds }))
}

fn place(request: &mut wire::OpenSessionRequest) -> Option<&mut Option<wire::JobTimes>> {
    match &mut request.message {
        Some(Message::Report(report)) => Some(&mut report.job_times),
        Some(Message::Beat(beat)) => Some(&mut beat.job_times),
        Some(Message::Hello(_)) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat() -> wire::OpenSessionRequest {
        wire::OpenSessionRequest { message: Some(Message::Beat(wire::Beat::default())) }
    }

    fn taken(ended: usize, running: usize) -> Result<Option<JobTimes>, Invalid> {
        let mut request = beat();
        let (ended_seconds, running_seconds) = (vec![1; ended], vec![2; running]);
        attach_job_times(&mut request, JobTimes { ended: 9, ended_seconds, running_seconds });
        take_job_times(&mut request)
    }

    #[test]
    fn takes_what_was_attached_and_refuses_too_much() {
        let times = taken(32, 64).expect("the most").expect("attached");
        assert_eq!(
            (times.ended, times.ended_seconds.len(), times.running_seconds.len()),
            (9, 32, 64)
        );
        assert_eq!(take_job_times(&mut beat()), Ok(None));
        for (ended, running, field) in [(33, 0, "ended_seconds"), (0, 65, "running_seconds")] {
            let error = taken(ended, running).expect_err(field);
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
