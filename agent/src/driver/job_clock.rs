//! Run times of the worker's jobs, for the agent's reports and beats: people ask how long a drain
//! takes. Nothing is decided by them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leasehold_proto::coordinator::v1::OpenSessionRequest;
use leasehold_proto::map;
use leasehold_types::limits::{ENDED_JOB_TIMES_MAX, RUNNING_JOB_TIMES_MAX};
use leasehold_types::message::{AgentMessage, JobTimes};
use leasehold_types::{JobId, Moment, Token};

/// The jobs of one worker, with the times at which they began.
#[derive(Debug)]
pub(super) struct JobClock {
    /// Jobs with ids.
    named: BTreeMap<JobId, Moment>,
    /// Jobs that the worker only counts, the oldest first: they are taken to end in this order.
    counted: VecDeque<Moment>,
    /// Number of running jobs that began before this agent started.
    inherited: u32,
    agent_started: Moment,
    ended: u64,
    /// Run times of the last jobs that ended, in seconds.
    ended_seconds: VecDeque<u32>,
    /// The value of `ended` in the last message that was sent.
    ended_sent: u64,
    changed: bool,
}

/// The jobs that run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningJobs {
    /// Those with an id, by id.
    pub(crate) named: Vec<RunningJob>,
    /// How many others there are.
    pub(crate) unnamed: u32,
}

/// A job that runs.
#[derive(Clone, Debug)]
pub(crate) struct RunningJob {
    pub(crate) id: JobId,
    /// The token under which it began, where that is known.
    pub(crate) token: Option<Token>,
    /// None if it began before this agent started.
    pub(crate) ran: Option<Duration>,
}

impl JobClock {
    /// The clock of a worker in which `inherited` jobs run already.
    pub(super) fn new(inherited: u32, now: Moment) -> Self {
        Self {
            named: BTreeMap::new(),
            counted: VecDeque::new(),
            inherited,
            agent_started: now,
            ended: 0,
            ended_seconds: VecDeque::new(),
            ended_sent: 0,
            changed: false,
        }
    }

    /// A job with an id has begun.
    pub(super) fn began(&mut self, job: JobId, now: Moment) {
        self.named.insert(job, now);
        self.changed = true;
    }

    /// A job with an id has ended.
    pub(super) fn ended(&mut self, job: &JobId, now: Moment) {
        match self.named.remove(job) {
            Some(since) => self.note_end(since, now),
            None => self.end_inherited(),
        }
    }

    /// Adjusts to the number of running jobs: the worker may have begun or ended some that it only
    /// counts.
    pub(super) fn settle(&mut self, running: u32, now: Moment) {
        while self.running() < running {
            self.counted.push_back(now);
            self.changed = true;
        }
        while self.running() > running {
            if self.inherited > 0 {
                self.end_inherited();
            } else if let Some(since) = self.counted.pop_front() {
                self.note_end(since, now);
            } else if let Some(job) = self.named.keys().next().cloned() {
                // The worker has begun anew, and all of its jobs have ended.
                self.ended(&job, now);
            }
        }
    }

    /// Adds run times to a message: all that are kept to a report, those since the last message to
    /// a beat, if a job has begun or ended since that one was made.
    pub(super) fn attach(&mut self, message: AgentMessage, now: Moment) -> OpenSessionRequest {
        let unsent = match &message {
            AgentMessage::Report(_) => self.ended,
            AgentMessage::Beat(_) if self.changed => self.ended - self.ended_sent,
            AgentMessage::Beat(_) | AgentMessage::Hello(_) => return message.into(),
        };
        // A job may have begun or ended after the message was made: the coordinator takes the run
        // times for those of the jobs that the message counts, so the next one tells them again.
        self.changed = message.running() != Some(self.running());
        self.ended_sent = self.ended;
        let mut request = message.into();
        map::attach_job_times(&mut request, self.job_times(unsent, now));
        request
    }

    /// The run times with the last `ended` jobs that ended, as far as they are kept.
    fn job_times(&self, ended: u64, now: Moment) -> JobTimes {
        let kept = self.ended_seconds.len();
        let older = kept.saturating_sub(usize::try_from(ended).unwrap_or(usize::MAX));
        let inherited = std::iter::repeat_n(self.agent_started, self.inherited as usize);
        let begun = self.named.values().copied().chain(self.counted.iter().copied());
        let ages = begun.chain(inherited).map(|begun| seconds(begun, now));
        let mut running_seconds: Vec<_> = ages.collect();
        running_seconds.sort_unstable();
        running_seconds.truncate(RUNNING_JOB_TIMES_MAX);
        let ended_seconds = self.ended_seconds.iter().skip(older).copied().collect();
        JobTimes { ended: self.ended, ended_seconds, running_seconds }
    }

    /// The jobs with ids, with how long each has run. `running` counts all.
    pub(super) fn running_jobs<'a>(
        &self,
        jobs: impl Iterator<Item = (&'a JobId, Option<Token>)>,
        running: u32,
        now: Moment,
    ) -> RunningJobs {
        let job = |(id, token): (&JobId, _)| RunningJob {
            id: id.clone(),
            token,
            ran: self.named.get(id).map(|since| now.since(*since)),
        };
        let named: Vec<_> = jobs.map(job).collect();
        let count = u32::try_from(named.len()).unwrap_or(u32::MAX);
        RunningJobs { named, unnamed: running.saturating_sub(count) }
    }

    fn running(&self) -> u32 {
        let seen = self.named.len() + self.counted.len();
        self.inherited.saturating_add(u32::try_from(seen).unwrap_or(u32::MAX))
    }

    fn end_inherited(&mut self) {
        self.inherited = self.inherited.saturating_sub(1);
        self.changed = true;
    }

    fn note_end(&mut self, since: Moment, now: Moment) {
        self.ended += 1;
        self.ended_seconds.push_back(seconds(since, now));
        if self.ended_seconds.len() > ENDED_JOB_TIMES_MAX {
            self.ended_seconds.pop_front();
        }
        self.changed = true;
    }
}

fn seconds(since: Moment, now: Moment) -> u32 {
    u32::try_from(now.since(since).as_secs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_types::message::{Beat, Jobs, Report};

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(1_000 + seconds)
    }

    fn job(name: &str) -> JobId {
        JobId::new(name).expect("an id")
    }

    /// The run times in the next report.
    fn reported(clock: &mut JobClock, now: Moment) -> String {
        let jobs = Jobs::Running(clock.running());
        let report = AgentMessage::Report(Report { jobs, ..Report::example() });
        attached(clock, report, now).expect("a report has them")
    }

    /// The run times in the next beat.
    fn beaten(clock: &mut JobClock, now: Moment) -> Option<String> {
        let beat = beat_with(clock.running());
        attached(clock, beat, now)
    }

    /// A beat that was made while so many jobs ran.
    fn beat_with(running: u32) -> AgentMessage {
        AgentMessage::Beat(Beat { jobs: Jobs::Running(running), ..Beat::example() })
    }

    /// The total of ended jobs, their run times, and the ages of running ones.
    fn attached(clock: &mut JobClock, message: AgentMessage, now: Moment) -> Option<String> {
        let times = map::take_job_times(&mut clock.attach(message, now)).expect("valid");
        times.map(|JobTimes { ended, ended_seconds, running_seconds }| {
            format!("{ended} {ended_seconds:?} {running_seconds:?}")
        })
    }

    #[test]
    fn jobs_with_ids_are_told_as_long_as_they_ran() {
        let mut clock = JobClock::new(0, at(0));
        clock.began(job("a"), at(10));
        clock.began(job("b"), at(20));
        clock.settle(2, at(20));
        assert_eq!(beaten(&mut clock, at(25)).as_deref(), Some("0 [] [5, 15]"));
        assert_eq!(beaten(&mut clock, at(26)), None, "nothing has changed");
        clock.ended(&job("b"), at(50));
        clock.settle(1, at(50));
        assert_eq!(beaten(&mut clock, at(50)).as_deref(), Some("1 [30] [40]"));
        clock.ended(&job("a"), at(60));
        clock.settle(0, at(60));
        assert_eq!(beaten(&mut clock, at(60)).as_deref(), Some("2 [50] []"));
        assert_eq!(reported(&mut clock, at(70)), "2 [30, 50] []");
    }

    #[test]
    fn a_beat_that_was_made_before_a_job_began_does_not_end_the_telling() {
        let mut clock = JobClock::new(0, at(0));
        clock.began(job("a"), at(10));
        let beat = beat_with(clock.running());
        clock.began(job("b"), at(20));
        assert_eq!(attached(&mut clock, beat, at(20)).as_deref(), Some("0 [] [0, 10]"));
        assert_eq!(beaten(&mut clock, at(21)).as_deref(), Some("0 [] [1, 11]"), "with both jobs");
        assert_eq!(beaten(&mut clock, at(22)), None, "nothing has changed");
    }

    #[test]
    fn counted_jobs_end_in_the_order_in_which_they_began() {
        let mut clock = JobClock::new(0, at(0));
        clock.settle(1, at(0));
        clock.settle(3, at(10));
        clock.settle(1, at(30));
        assert_eq!(reported(&mut clock, at(31)), "2 [30, 20] [21]");
    }

    #[test]
    fn jobs_that_began_before_the_agent_are_not_told_as_short_ones() {
        let mut clock = JobClock::new(2, at(0));
        clock.began(job("new"), at(5));
        clock.settle(3, at(5));
        assert_eq!(reported(&mut clock, at(9)), "0 [] [4, 9, 9]");
        clock.ended(&job("old"), at(20));
        clock.settle(2, at(20));
        clock.settle(1, at(25));
        assert_eq!(beaten(&mut clock, at(30)).as_deref(), Some("0 [] [25]"));
    }

    #[test]
    fn a_message_stays_small_however_many_jobs_there_are() {
        let mut clock = JobClock::new(0, at(0));
        clock.settle(10_000, at(0));
        clock.settle(5_000, at(1));
        // The mapping refuses more.
        let reported = reported(&mut clock, at(2));
        assert!(reported.starts_with("5000 ["), "{reported}");
        assert_eq!(reported.matches(", ").count(), 31 + 63, "{reported}");
    }

    #[test]
    fn a_worker_that_begins_anew_has_ended_its_jobs() {
        let mut clock = JobClock::new(0, at(0));
        clock.began(job("a"), at(0));
        clock.settle(1, at(0));
        clock.settle(0, at(8));
        assert_eq!(beaten(&mut clock, at(9)).as_deref(), Some("1 [8] []"));
    }
}
