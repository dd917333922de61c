//! How workers run: they act by their own clock and by what their agent last showed them.

use std::collections::BTreeMap;

use leasehold_agent_core::Lease;
use leasehold_types::{JobId, Load, Moment, StreamKey, Token};

use crate::system::clock::{MS, Real};
use crate::system::faults::Sequence;
use crate::system::profile::one_in;
use crate::system::worker::{StreamUse, WorkerCall, WorkerKind};
use crate::world::World;
use crate::world::queue::SimEvent;

/// One worker in this many makes its calls first and reads its lease later; more often if its
/// agent is new.
const READS_LATER_ONE_IN: u32 = 12;

/// A stream or a share of a pipeline, as the agent shows it.
struct Shown {
    token: Token,
    until: Option<Moment>,
    revoked: bool,
    load: Option<Load>,
}

impl World {
    /// The worker's process starts.
    pub(super) fn boot_worker(&mut self, pod: usize) {
        let run = self.pods[pod].run;
        let worker = &mut self.pods[pod].worker;
        worker.alive = true;
        worker.jobs_wanted = self.rng.u32(1..=8);
        worker.calls.clear();
        let call = WorkerCall::Start(worker.start_id(), 0);
        worker.calls.push_back(call);
        worker.introduced = run;
        let soon = self.rng.u64(0..50 * MS);
        self.tick_after(pod, soon);
    }

    /// The worker's process dies: its jobs end, and it no longer uses its streams.
    pub(super) fn crash_worker(&mut self, pod: usize, again_after: Option<Real>) {
        let worker = &mut self.pods[pod].worker;
        if !worker.alive {
            return;
        }
        worker.alive = false;
        worker.start += 1;
        worker.jobs.clear();
        worker.unnamed.clear();
        worker.unanswered_job = None;
        worker.in_effect = (0, None);
        worker.streams.clear();
        worker.calls.clear();
        let start = worker.start;
        if let Some(after) = again_after {
            self.after(after, SimEvent::BootWorker { pod, start });
        }
    }

    /// The agent's lease has changed: the worker, which watches it, asks soon.
    pub(super) fn tick_soon(&mut self, pod: usize) {
        let worker = &mut self.pods[pod].worker;
        if worker.alive && !worker.tick_soon {
            worker.tick_soon = true;
            let soon = match self.rng.u8(0..8) {
                0 if self.quiet_since.is_none() => self.rng.u64(0..self.profile.ttl_real()),
                _ => self.rng.u64(0..10 * MS),
            };
            self.tick_after(pod, soon);
        }
    }

    fn tick_after(&mut self, pod: usize, delay: Real) {
        let worker = &mut self.pods[pod].worker;
        worker.tick_number += 1;
        let (start, number) = (worker.start, worker.tick_number);
        self.after(delay, SimEvent::Tick { pod, start, number, asked: None });
    }

    /// The worker makes its calls, reads its lease, and acts on it.
    pub(super) fn tick(&mut self, pod: usize, asked: Option<Moment>) {
        self.pods[pod].worker.tick_soon = false;
        let ttl = self.profile.ttl_real();
        let next = self.rng.u64(ttl / 8..=ttl / 3);
        self.tick_after(pod, next);
        let asked = asked.unwrap_or(self.view().local_of_pod(pod));
        self.stop_by_time(pod);
        if self.pods[pod].agent.is_none() {
            return;
        }
        let start = self.pods[pod].worker.start;
        let is_new = self.pods[pod].worker.introduced != self.pods[pod].run;
        let returns_at_once = self.owes_ends_alone(pod);
        if !(returns_at_once && self.rng.bool()) {
            self.make_calls(pod);
        }
        if !returns_at_once && !self.pods[pod].worker.calls.is_empty() {
            // It starts nothing before its agent has taken its calls.
            return;
        }
        let one_in_many = if is_new { 2 } else { READS_LATER_ONE_IN };
        if self.quiet_since.is_none() && one_in(&mut self.rng, one_in_many) {
            self.coverage.hit("worker called its agent, and reads its lease later");
            self.pods[pod].worker.reads_at = self.t + self.rng.u64(0..ttl / 2);
        }
        if self.t < self.pods[pod].worker.reads_at {
            return;
        }
        let Some(lease) = self.agent_call(pod, |holder, now| holder.lease(now)) else { return };
        if self.pods[pod].worker.start != start {
            // Its agent has ended it during one of its calls: nobody reads the answer.
            return;
        }
        self.checks().observe_lease(pod, &lease);
        self.read_streams(pod, asked, &lease);
        match self.pods[pod].worker.kind {
            WorkerKind::Gate => self.ask_for_jobs(pod),
            WorkerKind::Count => self.keep_to_size(pod, asked, &lease),
        }
    }

    /// Whether the worker continues although its agent does not know yet that some jobs ended.
    fn owes_ends_alone(&self, pod: usize) -> bool {
        let worker = &self.pods[pod].worker;
        let ends = worker.calls.iter().all(|call| matches!(call, WorkerCall::End(_)));
        let known = worker.introduced == self.pods[pod].run;
        self.profile.has(Sequence::UnconfirmedEnds) && known && ends && !worker.calls.is_empty()
    }

    fn stop_by_time(&mut self, pod: usize) {
        let now = self.view().local_of_pod(pod);
        let worker = &mut self.pods[pod].worker;
        if worker.stoppable {
            let before = worker.streams.len();
            worker.streams.retain(|_, used| used.until.is_none_or(|until| now < until));
            if worker.streams.len() < before {
                self.coverage.hit("worker stopped a stream by its own clock");
            }
        }
    }

    fn read_streams(&mut self, pod: usize, asked: Moment, lease: &Lease) {
        let now = self.view().local_of_pod(pod);
        let listed = self.shown(pod, lease);
        let keeps = self.pods[pod].disk.borrow().nearly_full;
        let worker = &mut self.pods[pod].worker;
        worker
            .streams
            .retain(|key, used| listed.get(key).is_some_and(|stream| stream.token == used.token));
        let (start, mut go) = (worker.start, Vec::new());
        for (key, stream) in listed {
            // The time left, counted from when it asked.
            let until = stream.until.map(|until| asked + until.since(now));
            let fresh = StreamUse { token: stream.token, until, decided: false, load: stream.load };
            let known = worker.streams.contains_key(&key);
            // A share is given back when the agent asks for it, also in a drain.
            let wanted = !stream.revoked && (!lease.draining || stream.load.is_some());
            let used = worker.streams.entry(key.clone()).or_insert(fresh);
            used.until = until;
            used.decided &= !wanted;
            if !wanted && !used.decided {
                used.decided = true;
                let unknown = !known && self.rng.bool();
                let ignored = keeps || one_in(&mut self.rng, self.profile.ignore_one_in);
                if unknown || !ignored {
                    go.push((key, stream.token));
                } else {
                    self.coverage.hit("fault: worker ignored a revoke");
                }
            }
        }
        for (stream, token) in go {
            let ttl = self.profile.ttl_real();
            let long = self.rng.u8(0..6) == 0;
            let time = self.rng.u64(0..=if long { ttl * 3 / 2 } else { ttl / 20 });
            self.after(time, SimEvent::StopUse { pod, start, stream, token });
        }
    }

    /// The streams that a lease shows, and the shares where the worker learns of them.
    fn shown(&self, pod: usize, lease: &Lease) -> BTreeMap<StreamKey, Shown> {
        let node = &self.pods[pod];
        let streams = lease.streams.iter().map(|stream| {
            let (token, until, revoked) = (stream.token, stream.until, stream.revoked.is_some());
            (stream.stream.clone(), Shown { token, until, revoked, load: None })
        });
        let shares = lease.bindings.iter().filter(|_| node.exposes_bindings).map(|binding| {
            let (token, until, revoked) = (binding.token, binding.until, binding.revoked.is_some());
            let stream = binding.key.stream();
            (stream, Shown { token, until, revoked, load: Some(binding.load) })
        });
        streams.chain(shares).collect()
    }

    /// The worker has finished its work on a revoked stream. If the revoke was withdrawn, it may go
    /// on.
    pub(super) fn stop_use_decided(&mut self, pod: usize, stream: StreamKey, token: Token) {
        let used = self.pods[pod].worker.streams.get(&stream);
        if used.is_some_and(|used| used.token == token && !used.decided) && self.rng.bool() {
            self.coverage.hit("worker kept a stream after all");
            return;
        }
        self.stop_use(pod, stream, token);
    }

    /// The worker has let a stream go, and reports that.
    pub(super) fn stop_use(&mut self, pod: usize, stream: StreamKey, token: Token) {
        let worker = &mut self.pods[pod].worker;
        if worker.streams.get(&stream).is_some_and(|used| used.token == token) {
            worker.streams.remove(&stream);
        }
        worker.calls.push_back(WorkerCall::Release(stream, token));
        self.make_calls(pod);
    }

    /// The id of a job that is to begin. Some workers give each job an id of its own, others take
    /// one again once the end of its job was reported.
    fn new_job(&mut self, pod: usize) -> JobId {
        let returns_at_once = self.profile.has(Sequence::UnconfirmedEnds);
        let worker = &mut self.pods[pod].worker;
        let id = |number| JobId::new(&format!("p{pod}-{}-{number}", worker.start)).expect("a name");
        if pod % 2 == 1 {
            let ends = |job: &JobId| {
                !returns_at_once && worker.calls.contains(&WorkerCall::End(job.clone()))
            };
            let is_free = |job: &JobId| !worker.jobs.contains(job) && !ends(job);
            return (1..).map(id).find(is_free).expect("some number is free");
        }
        worker.next_job += 1;
        id(worker.next_job)
    }

    fn run_job(&mut self, pod: usize, job: JobId) {
        let ttl = self.profile.ttl_real();
        let long = self.rng.u8(0..4) == 0;
        let time = self.rng.u64(MS..=if long { ttl * 4 } else { ttl });
        let worker = &mut self.pods[pod].worker;
        worker.jobs.insert(job.clone());
        let start = worker.start;
        self.after(time, SimEvent::JobEnd { pod, start, job });
        self.coverage.hit("job ran");
    }

    fn ask_for_jobs(&mut self, pod: usize) {
        for _ in 0..8 {
            let worker = &self.pods[pod].worker;
            if !worker.alive || worker.jobs.len() as u32 >= worker.jobs_wanted {
                return;
            }
            let job = match worker.unanswered_job.clone() {
                Some(job) => job,
                None => self.new_job(pod),
            };
            let (takes_none, known) = {
                let memory = &self.pods[pod].disk.borrow().memory;
                (memory.draining || memory.failing, memory.jobs.contains_key(&job))
            };
            let asked = job.clone();
            match self.agent_call(pod, |holder, now| holder.begin_job(asked, now)) {
                None => {
                    self.pods[pod].worker.unanswered_job = Some(job);
                    return;
                }
                Some(Ok(_)) => {
                    let worker = &mut self.pods[pod].worker;
                    worker.unanswered_job = None;
                    // An earlier job of the same id has ended, too.
                    worker.calls.retain(|call| *call != WorkerCall::End(job.clone()));
                    self.checks().observe_job_start(pod, &job, takes_none && !known);
                    self.run_job(pod, job);
                }
                Some(Err(refused)) => {
                    self.trace.say(self.t, || format!("        p{pod} job refused: {refused:?}"));
                    self.coverage.hit("job refused");
                    return;
                }
            }
        }
    }

    fn keep_to_size(&mut self, pod: usize, asked: Moment, lease: &Lease) {
        let now = self.view().local_of_pod(pod);
        let until = lease.pool.until.map(|until| asked + until.since(now));
        let before = self.pods[pod].worker.in_effect.0;
        self.pods[pod].worker.in_effect = (lease.pool.size, until);
        for _ in 0..8 {
            let worker = &self.pods[pod].worker;
            let running = worker.jobs.len() as u32;
            if running >= worker.jobs_wanted || running >= lease.pool.size {
                break;
            }
            let job = self.new_job(pod);
            self.run_job(pod, job);
        }
        if before != lease.pool.size
            || lease.pool.running != self.pods[pod].worker.jobs.len() as u32
        {
            self.report_count_later(pod);
        }
    }

    fn report_count_later(&mut self, pod: usize) {
        let start = self.pods[pod].worker.start;
        let ttl = self.profile.ttl_real();
        let late = self.rng.u64(0..=ttl / 4);
        self.after(late, SimEvent::ReportCount { pod, start });
    }

    /// A counting worker reports how many jobs it runs.
    pub(super) fn count_due(&mut self, pod: usize) {
        let worker = &mut self.pods[pod].worker;
        if worker.kind == WorkerKind::Count {
            let call = WorkerCall::Count(worker.jobs.len() as u32, worker.in_effect.0);
            worker.calls.push_back(call);
        }
        self.make_calls(pod);
    }

    /// A job has ended.
    pub(super) fn job_end(&mut self, pod: usize, job: JobId) {
        let worker = &mut self.pods[pod].worker;
        if !worker.jobs.remove(&job) {
            return;
        }
        match worker.kind {
            WorkerKind::Gate if worker.unnamed.remove(&job) => {
                worker
                    .calls
                    .push_back(WorkerCall::Start(worker.start_id(), worker.unnamed.len() as u32));
            }
            WorkerKind::Gate => worker.calls.push_back(WorkerCall::End(job)),
            WorkerKind::Count => self.report_count_later(pod),
        }
        self.make_calls(pod);
        if self.rng.bool() {
            self.tick_soon(pod);
        }
    }

    /// Makes the calls that are due, as long as the agent answers.
    fn make_calls(&mut self, pod: usize) {
        if self.paused_pod(pod) || self.pods[pod].agent.is_none() || !self.pods[pod].worker.alive {
            return;
        }
        self.introduce(pod);
        while let Some(call) = self.pods[pod].worker.calls.front().cloned() {
            let running = self.pods[pod].worker.jobs.len() as u32;
            let said = call.clone();
            let result = self.agent_call(pod, |holder, now| match said {
                WorkerCall::Start(start, running) => holder.start_worker(start, running, now),
                WorkerCall::End(job) => holder.end_job(&job, now),
                WorkerCall::Release(stream, token) => holder.release_stream(&stream, token, now),
                WorkerCall::Count(running, in_effect) => {
                    holder.report_count(running, in_effect, now)
                }
            });
            self.trace.say(self.t, || format!("        p{pod} worker calls {call:?}: {result:?}"));
            use leasehold_agent_core::RequestError;
            match result {
                // No answer, or nothing was written: try again later.
                None | Some(Err(RequestError::Journal(_))) => return,
                Some(_) => {}
            }
            self.pods[pod].worker.calls.pop_front();
            if matches!(call, WorkerCall::Start(..))
                && self.pods[pod].worker.kind == WorkerKind::Count
            {
                self.pods[pod].worker.calls.push_front(WorkerCall::Count(running, 0));
            }
        }
    }

    /// A worker introduces itself to a new agent and reports how many jobs it runs.
    fn introduce(&mut self, pod: usize) {
        let run = self.pods[pod].run;
        let disk = std::rc::Rc::clone(&self.pods[pod].disk);
        let worker = &mut self.pods[pod].worker;
        if worker.introduced == run {
            return;
        }
        worker.introduced = run;
        // What it counted for the agent before means nothing to this one.
        worker.calls.retain(|call| !matches!(call, WorkerCall::Start(..) | WorkerCall::Count(..)));
        worker.unnamed = worker.jobs.clone();
        worker.unnamed.retain(|job| !disk.borrow().memory.jobs.contains_key(job));
        let size = worker.in_effect.0;
        let call = match worker.kind {
            WorkerKind::Gate => WorkerCall::Start(worker.start_id(), worker.unnamed.len() as u32),
            WorkerKind::Count => WorkerCall::Count(worker.jobs.len() as u32, size),
        };
        worker.calls.push_front(call);
    }
}
