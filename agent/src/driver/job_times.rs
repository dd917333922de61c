//! How long jobs run, which the agent tells with its reports and beats: people ask how long a drain
//! takes. Nothing is decided by it.

use std::collections::{BTreeMap, VecDeque};

use leasehold_proto::coordinator::v1::JobTimes as ToldJobTimes;
use leasehold_proto::coordinator::v1::OpenSessionRequest;
use leasehold_proto::coordinator::v1::open_session_request::Message;
use leasehold_types::message::AgentMessage;
use leasehold_types::{JobId, Moment};

/// The most ended jobs that are told in one message.
const ENDED_MAX: usize = 32;
/// The most running jobs that are told in one message.
const RUNNING_MAX: usize = 64;

/// The jobs of one worker and their times.
#[derive(Debug)]
pub(super) struct JobTimes {
    /// Those with ids.
    named: BTreeMap<JobId, Moment>,
    /// Those that the worker only counts, the oldest first: they are taken to end in this order.
    counted: VecDeque<Moment>,
    /// Those that began before this agent, which therefore knows no time of theirs.
    inherited: u32,
    begun: Moment,
    ended: u64,
    /// How long the last ones ran, in seconds.
    ended_seconds: VecDeque<u32>,
    /// What was told last: the number of those that had ended.
    told: u64,
    changed: bool,
}

impl JobTimes {
    /// The times of a worker in which so many jobs run already.
    pub(super) fn new(inherited: u32, now: Moment) -> Self {
        Self {
            named: BTreeMap::new(),
            counted: VecDeque::new(),
            inherited,
            begun: now,
            ended: 0,
            ended_seconds: VecDeque::new(),
            told: 0,
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

    /// So many jobs run in all: the worker may have begun or ended some that it only counts.
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

    /// A message as it is sent: a report tells everything, a beat what has changed.
    pub(super) fn tell(&mut self, message: AgentMessage, now: Moment) -> OpenSessionRequest {
        let mut request = OpenSessionRequest::from(message);
        match &mut request.message {
            Some(Message::Report(report)) => {
                report.job_times = Some(self.since(0, now));
            }
            Some(Message::Beat(beat)) if self.changed => {
                beat.job_times = Some(self.since(self.told, now));
            }
            Some(Message::Beat(_) | Message::Hello(_)) | None => return request,
        }
        (self.told, self.changed) = (self.ended, false);
        request
    }

    fn since(&self, told: u64, now: Moment) -> ToldJobTimes {
        let fresh = usize::try_from(self.ended - told).unwrap_or(usize::MAX);
        let known = self.ended_seconds.len();
        let ended_seconds = self.ended_seconds.iter().skip(known.saturating_sub(fresh));
        let inherited = std::iter::repeat_n(self.begun, self.inherited as usize);
        let begun = self.named.values().copied().chain(self.counted.iter().copied());
        let mut running_seconds: Vec<_> =
            begun.chain(inherited).map(|since| seconds(since, now)).collect();
        running_seconds.sort_unstable();
        running_seconds.truncate(RUNNING_MAX);
        ToldJobTimes {
            ended: self.ended,
            ended_seconds: ended_seconds.copied().collect(),
            running_seconds,
        }
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
        if self.ended_seconds.len() > ENDED_MAX {
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

    use leasehold_types::message::{Beat, DrainPhase, Jobs, Report, ReportedMemory};
    use leasehold_types::{Epoch, GrantNumber, Incarnation, Nonce};

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(0) + Duration::from_secs(1_000 + seconds)
    }

    fn job(name: &str) -> JobId {
        JobId::new(name).expect("an id")
    }

    fn report() -> AgentMessage {
        AgentMessage::Report(Report {
            epoch: Epoch(1),
            nonce: Nonce(1),
            memory: ReportedMemory { knows_from: Incarnation(0), aged: true },
            pool: None,
            streams: Vec::new(),
            jobs: Jobs::Running(0),
            drain: DrainPhase::Working,
        })
    }

    fn beat() -> AgentMessage {
        AgentMessage::Beat(Beat {
            epoch: Epoch(1),
            nonce: Nonce(2),
            applied: GrantNumber(1),
            pool: None,
            jobs: Jobs::Running(0),
            drain: DrainPhase::Working,
            released: Vec::new(),
            wants_snapshot: false,
        })
    }

    /// The total of ended jobs, their seconds, and the ages of running ones.
    fn told(times: &mut JobTimes, message: AgentMessage, now: Moment) -> Option<(u64, String)> {
        let told = match times.tell(message, now).message.expect("a message") {
            Message::Report(report) => report.job_times,
            Message::Beat(beat) => beat.job_times,
            Message::Hello(_) => None,
        };
        told.map(|told| {
            (told.ended, format!("{:?} {:?}", told.ended_seconds, told.running_seconds))
        })
    }

    #[test]
    fn jobs_with_ids_are_told_as_long_as_they_ran() {
        let mut times = JobTimes::new(0, at(0));
        times.began(job("a"), at(10));
        times.began(job("b"), at(20));
        times.settle(2, at(20));
        assert_eq!(told(&mut times, beat(), at(25)), Some((0, "[] [5, 15]".into())));
        assert_eq!(told(&mut times, beat(), at(26)), None, "nothing has changed");
        times.ended(&job("b"), at(50));
        times.settle(1, at(50));
        assert_eq!(told(&mut times, beat(), at(50)), Some((1, "[30] [40]".into())));
        times.ended(&job("a"), at(60));
        times.settle(0, at(60));
        assert_eq!(told(&mut times, beat(), at(60)), Some((2, "[50] []".into())));
        assert_eq!(told(&mut times, report(), at(70)), Some((2, "[30, 50] []".into())));
    }

    #[test]
    fn counted_jobs_end_in_the_order_in_which_they_began() {
        let mut times = JobTimes::new(0, at(0));
        times.settle(1, at(0));
        times.settle(3, at(10));
        times.settle(1, at(30));
        assert_eq!(told(&mut times, report(), at(31)), Some((2, "[30, 20] [21]".into())));
    }

    #[test]
    fn jobs_that_began_before_the_agent_are_not_told_as_short_ones() {
        let mut times = JobTimes::new(2, at(0));
        times.began(job("new"), at(5));
        times.settle(3, at(5));
        assert_eq!(told(&mut times, report(), at(9)), Some((0, "[] [4, 9, 9]".into())));
        times.ended(&job("old"), at(20));
        times.settle(2, at(20));
        times.settle(1, at(25));
        assert_eq!(told(&mut times, beat(), at(30)), Some((0, "[] [25]".into())));
    }

    #[test]
    fn a_message_stays_small_however_many_jobs_there_are() {
        let mut times = JobTimes::new(0, at(0));
        times.settle(10_000, at(0));
        times.settle(5_000, at(1));
        let request = times.tell(report(), at(2));
        let Some(Message::Report(report)) = request.message else { panic!("{request:?}") };
        let told = report.job_times.expect("told");
        assert_eq!(told.ended, 5_000);
        assert_eq!((told.ended_seconds.len(), told.running_seconds.len()), (32, 64));
    }

    #[test]
    fn a_worker_that_begins_anew_has_ended_its_jobs() {
        let mut times = JobTimes::new(0, at(0));
        times.began(job("a"), at(0));
        times.settle(1, at(0));
        times.settle(0, at(8));
        assert_eq!(told(&mut times, beat(), at(9)), Some((1, "[8] []".into())));
    }
}
