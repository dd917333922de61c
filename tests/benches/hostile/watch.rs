//! What is looked at each second during the attack: the webhook as the API server sees it, probes,
//! leadership; and at the end the memory of the coordinators.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tests::process::{PEAK_MEMORY, memory_kib};
use tests::{bench, http};
use tokio::time::{interval, timeout};

use crate::LOOK;
use crate::load::Load;
use crate::test_bed::{REPLICAS, TestBed};

/// A probe that has no answer within this has failed: what kubelets wait by default.
const PROBE_WITHIN: Duration = Duration::from_secs(1);
/// Questions to each webhook before the attack.
const QUESTIONS_BEFORE: usize = 5;
/// Between two lines of progress.
const LINES_EVERY: Duration = Duration::from_secs(30);

/// Times of answers, and what failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) times: Vec<Duration>,
    pub(crate) failures: Vec<String>,
}

impl Answers {
    fn add(&mut self, begun: Instant, answer: Result<(), String>) {
        match answer {
            Ok(()) => self.times.push(begun.elapsed()),
            Err(why) => self.failures.push(why),
        }
    }

    /// The time that this part of the answers did not exceed.
    pub(crate) fn quantile(&self, part: f64) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        let last = times.len().saturating_sub(1);
        times.get((last as f64 * part).ceil() as usize).copied().unwrap_or_default()
    }
}

/// What was seen of one replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaWatch {
    pub(crate) leads: bool,
    /// Seconds in which its metrics did not say of it what they said before the attack.
    pub(crate) leadership_changes: usize,
    /// Pods that the API server asked it about.
    pub(crate) webhook: Answers,
    pub(crate) webhook_before: Answers,
    /// What the API server itself counted: answers, and those of them within a second.
    pub(crate) counted: u64,
    pub(crate) counted_in_time: u64,
    pub(crate) probes: Answers,
    /// The most memory of its control group, and of the process itself.
    pub(crate) memory_bytes: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) ended: bool,
}

/// The looks so far.
pub(crate) struct Watch {
    replicas: [ReplicaWatch; REPLICAS],
    counted_before: [(u64, u64); REPLICAS],
}

impl Watch {
    pub(crate) fn new(test_bed: &TestBed) -> Self {
        let mut watch = Self { replicas: Default::default(), counted_before: Default::default() };
        watch.replicas[test_bed.replicas.leader()].leads = true;
        watch
    }

    /// How fast the webhook is without an attack.
    pub(crate) async fn before(&mut self, test_bed: &TestBed) -> Result<()> {
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            for _ in 0..QUESTIONS_BEFORE {
                let begun = Instant::now();
                replica.webhook_before.add(begun, test_bed.inject(number).await);
            }
        }
        self.counted_before = counted(test_bed).await?;
        Ok(())
    }

    /// Looks until it is dropped.
    pub(crate) async fn run<T>(&mut self, test_bed: &TestBed, load: &Load) -> T {
        let begun = Instant::now();
        let mut said = begun;
        let mut looks = interval(LOOK);
        loop {
            looks.tick().await;
            let [first, second] = &mut self.replicas;
            tokio::join!(first.look(test_bed, 0), second.look(test_bed, 1));
            if said.elapsed() >= LINES_EVERY {
                said = Instant::now();
                let longest = |replica: &ReplicaWatch| replica.webhook.quantile(1.0).as_millis();
                println!(
                    "    {:>4} s: {} leader changes, webhooks at most {} and {} ms, load {}",
                    begun.elapsed().as_secs(),
                    load.leader_changes(),
                    longest(&self.replicas[0]),
                    longest(&self.replicas[1]),
                    bench::load()
                );
            }
        }
    }

    /// All that was seen, with what is read at the end.
    pub(crate) async fn end(mut self, test_bed: &TestBed) -> Result<Vec<ReplicaWatch>> {
        let counted = counted(test_bed).await?;
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            let (before, before_in_time) = self.counted_before[number];
            replica.counted = counted[number].0 - before;
            replica.counted_in_time = counted[number].1 - before_in_time;
            let running = &test_bed.replicas.running[number];
            let memory = running.memory.as_ref().map(|limit| limit.peak_bytes());
            replica.memory_bytes = memory.unwrap_or_default();
            match memory_kib(running.process.id(), PEAK_MEMORY) {
                Some(kib) => replica.resident_bytes = kib * 1024,
                None => replica.ended = true,
            }
        }
        Ok(self.replicas.into())
    }
}

impl ReplicaWatch {
    async fn look(&mut self, test_bed: &TestBed, number: usize) {
        let begun = Instant::now();
        self.webhook.add(begun, test_bed.inject(number).await);
        let address = test_bed.replicas.running[number].http;
        let begun = Instant::now();
        let probe = timeout(PROBE_WITHIN, http::call(address, "GET", "/readyz", "")).await;
        self.probes.add(
            begun,
            match probe {
                Ok(Ok((200, _))) => Ok(()),
                Ok(Ok((status, body))) => Err(format!("{status}: {}", body.trim())),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer in 1 s".to_owned()),
            },
        );
        let metrics = timeout(PROBE_WITHIN, http::call(address, "GET", "/metrics", "")).await;
        // A scrape may find no place: it is the next one that counts.
        if let Ok(Ok((200, text))) = metrics {
            let leads = text.lines().any(|line| line == "leasehold_leader 1");
            self.leadership_changes += usize::from(leads != self.leads);
        }
    }
}

/// The webhook's answers that the API server has counted, and those within a second.
async fn counted(test_bed: &TestBed) -> Result<[(u64, u64); REPLICAS]> {
    const SERIES: &str = "apiserver_admission_webhook_admission_duration_seconds_bucket{";
    let request = hyper::Request::get("/metrics").body(Vec::new())?;
    let text = test_bed.client.request_text(request).await?;
    let mut buckets: BTreeMap<(usize, bool), u64> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with(SERIES)) {
        let name = |number: &usize| line.contains(&TestBed::webhook_name(*number));
        let Some(number) = (0..REPLICAS).find(name) else { continue };
        let is_all = line.contains("le=\"+Inf\"");
        if !is_all && !line.contains("le=\"1\"") {
            continue;
        }
        let count = line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
        let count = count.ok_or_else(|| anyhow!("no count in {line:?}"))?;
        *buckets.entry((number, is_all)).or_default() += count;
    }
    let of = |number, is_all| buckets.get(&(number, is_all)).copied().unwrap_or_default();
    Ok(std::array::from_fn(|number| (of(number, true), of(number, false))))
}
