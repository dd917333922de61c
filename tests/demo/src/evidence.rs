//! What the workers' journals say, as intervals: which job ran when and where, and who owned which
//! stream when. A killed worker's intervals end at its death.

use std::collections::{BTreeMap, BTreeSet};

use crate::journal::{Event, Line, Phase};
use crate::records::Write;

/// The time of a job in one worker's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The job.
    pub job: String,
    /// The worker.
    pub worker: String,
    /// When it began.
    pub from_ns: u64,
    /// When it ended; `u64::MAX` where it never did.
    pub to_ns: u64,
    /// Whether the job was done then.
    pub done: bool,
}

/// The time for which one worker owned a stream under one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// The stream.
    pub stream: String,
    /// The worker.
    pub worker: String,
    /// The token.
    pub token: String,
    /// When it began.
    pub from_ns: u64,
    /// When it ended; `u64::MAX` where it never did.
    pub to_ns: u64,
    /// Why it ended; empty where it never did.
    pub why: String,
    /// The load that came with it, in thousandths; 0 where none did.
    pub load_milli: u64,
}

/// A worker was asked to end by a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// The worker.
    pub worker: String,
    /// When.
    pub at_ns: u64,
    /// How many jobs it ran.
    pub running: usize,
    /// How many streams it owned.
    pub owned: usize,
}

/// All that the journals record.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Every run of a job, by time of its beginning.
    pub runs: Vec<Run>,
    /// Every time of owning, by stream and then by time of its beginning.
    pub owns: Vec<Own>,
    /// Every time that a worker was asked to end by a signal.
    pub terminations: Vec<Termination>,
    /// Jobs that were put into the queue.
    pub created: BTreeSet<String>,
    /// Jobs that were put back after their worker was killed.
    pub retried: BTreeSet<String>,
    /// The budgets, and since when each holds, in order.
    pub budgets: Vec<(u64, u32)>,
    /// The demo's phases, in order.
    pub phases: Vec<Phase>,
    /// Lines that contradict others; none in a sound journal.
    pub contradictions: Vec<String>,
    /// Workers that are stopped by a signal, and since when.
    pub stopped: BTreeMap<String, u64>,
}

impl Evidence {
    /// Reads journal lines, of all workers together, in any order.
    #[must_use]
    pub fn new(mut lines: Vec<Line>) -> Self {
        lines.sort_by_key(|line| line.at_ns);
        let mut evidence = Self::default();
        for line in lines {
            evidence.take(line);
        }
        evidence.owns.sort_by(|a, b| (&a.stream, a.from_ns).cmp(&(&b.stream, b.from_ns)));
        evidence
    }

    /// Jobs that a worker has begun after a moment, and done.
    #[must_use]
    pub fn done_since(&self, worker: &str, from_ns: u64) -> usize {
        let since = |run: &&Run| run.worker == worker && run.from_ns >= from_ns && run.done;
        self.runs.iter().filter(since).count()
    }

    /// Streams that a worker has owned after a moment, each as often as it was granted.
    #[must_use]
    pub fn owned_since(&self, worker: &str, from_ns: u64) -> usize {
        self.owns.iter().filter(|own| own.worker == worker && own.from_ns >= from_ns).count()
    }

    /// Takes in one more line. Lines of one worker come in order of time.
    pub fn take(&mut self, line: Line) {
        let Line { at_ns, worker, event, .. } = line;
        match event {
            Event::JobStart { job } => {
                let run = Run { job, worker, from_ns: at_ns, to_ns: u64::MAX, done: false };
                self.runs.push(run);
            }
            Event::JobEnd { job } => self.end_run(&job, &worker, at_ns),
            Event::OwnStart { set, stream, token, load_milli } => self.owns.push(Own {
                stream: format!("{set}/{stream}"),
                worker,
                token,
                from_ns: at_ns,
                to_ns: u64::MAX,
                why: String::new(),
                load_milli: load_milli.unwrap_or(0),
            }),
            Event::OwnEnd { set, stream, token, why, until_ns } => {
                // Between the two the worker was not run, and used nothing.
                let end_ns = until_ns.map_or(at_ns, |until_ns| until_ns.min(at_ns));
                self.end_own(&format!("{set}/{stream}"), &worker, &token, end_ns, why);
            }
            Event::Stopped => _ = self.stopped.insert(worker, at_ns),
            Event::Continued => _ = self.stopped.remove(&worker),
            Event::Killed => {
                // What was stopped did nothing between that and its end.
                let at_ns = self.stopped.remove(&worker).unwrap_or(at_ns);
                for run in self.runs.iter_mut().filter(|run| run.worker == worker) {
                    run.to_ns = run.to_ns.min(at_ns);
                }
                for own in self.owns.iter_mut().filter(|own| own.worker == worker) {
                    own.to_ns = own.to_ns.min(at_ns);
                }
            }
            Event::JobCreated { job } => drop(self.created.insert(job)),
            Event::JobRetried { job } => drop(self.retried.insert(job)),
            Event::Phase(phase) => self.phases.push(phase),
            Event::Budget { max_jobs } => self.budgets.push((at_ns, max_jobs)),
            Event::JobPutBack { .. }
            | Event::Watching
            | Event::Ended
            | Event::Seen { .. }
            | Event::Fault { .. }
            | Event::Lease { .. } => {}
            Event::ToldToEnd { running, owned } => {
                self.terminations.push(Termination { worker, at_ns, running, owned });
            }
        }
    }

    fn end_run(&mut self, job: &str, worker: &str, at_ns: u64) {
        let open = |run: &&mut Run| run.job == job && run.worker == worker && run.to_ns == u64::MAX;
        match self.runs.iter_mut().rev().find(open) {
            Some(run) => (run.to_ns, run.done) = (at_ns, true),
            None => self.contradictions.push(format!("{worker} ended job {job} without a start")),
        }
    }

    fn end_own(&mut self, stream: &str, worker: &str, token: &str, at_ns: u64, why: String) {
        let open = |own: &&mut Own| {
            own.stream == stream
                && own.worker == worker
                && own.token == token
                && own.to_ns == u64::MAX
        };
        match self.owns.iter_mut().rev().find(open) {
            Some(own) => (own.to_ns, own.why) = (at_ns.max(own.from_ns), why),
            None => self
                .contradictions
                .push(format!("{worker} stopped {stream} ({token}) without a start")),
        }
    }

    /// Lengthens each time of owning to the last write under its token: a worker that wrote for
    /// longer than it says owned for longer. Returns the writes outside every owner's time.
    pub fn stretch(&mut self, writes: &[Write]) -> Vec<String> {
        let mut by_token: BTreeMap<(String, String, String), Vec<usize>> = BTreeMap::new();
        for (index, own) in self.owns.iter().enumerate() {
            let key = (own.stream.clone(), own.worker.clone(), own.token.clone());
            by_token.entry(key).or_default().push(index);
        }
        let mut strays = Vec::new();
        for write in writes {
            let key = (write.stream.clone(), write.worker.clone(), write.token.clone());
            let indices = by_token.get(&key).map_or(&[][..], Vec::as_slice);
            let began = indices.iter().rev().find(|&&i| self.owns[i].from_ns <= write.at_ns);
            match began {
                Some(&index) => {
                    let own = &mut self.owns[index];
                    own.to_ns = own.to_ns.max(write.at_ns);
                }
                None => strays.push(format!(
                    "{} wrote to {} under {}, which it did not own",
                    write.worker, write.stream, write.token
                )),
            }
        }
        strays
    }

    /// The budget at a moment; 0 before the first.
    #[must_use]
    pub fn budget_at(&self, at_ns: u64) -> u32 {
        let mut newest = self.budgets.iter().rev();
        newest.find(|(since_ns, _)| *since_ns <= at_ns).map_or(0, |(_, budget)| *budget)
    }

    /// Who owns each stream at a moment.
    #[must_use]
    pub fn owners_at(&self, at_ns: u64) -> BTreeMap<String, String> {
        self.owns
            .iter()
            .filter(|own| own.from_ns <= at_ns && at_ns < own.to_ns)
            .map(|own| (own.stream.clone(), own.worker.clone()))
            .collect()
    }
}
