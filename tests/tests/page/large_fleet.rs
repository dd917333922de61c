//! 2,000 workers that change four times a second: the page touches only what has changed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::{
    Beat, DrainPhase, HeldPool, Hello, OpenSessionRequest, OpenSessionResponse, Report,
};
use leasehold_types::limits::PROTOCOL_VERSION;
use serde_json::{Value, json};
use tests::process::eventually;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::fixture::{PageFixture, cell};

const WORKERS: usize = 2_000;
/// Workers whose running jobs change at a time.
const CHANGED: usize = 200;
/// The updates that are watched, and the interval between them.
const UPDATES: usize = 40;
const INTERVAL: Duration = Duration::from_millis(250);
/// Sessions over one connection; a coordinator takes up to 16.
const SESSIONS_PER_CONNECTION: usize = 10;
/// Jobs that one worker may run.
const JOBS_PER_WORKER: u32 = 9;

const MANIFEST: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: large}
spec: {maxJobs: 18000, maxJobsPerWorker: 9, lease: {ttl: 10m}}
";

/// Records the time between two frames.
const FRAMES: &str = "
    window.frames = [];
    let before = performance.now();
    const next = now => {
        window.frames.push(now - before);
        before = now;
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
";

/// The sessions of all agents, without their workers: the leases last longer than the test.
struct Agents {
    runtime: Runtime,
    jobs: Vec<mpsc::Sender<u32>>,
}

impl Agents {
    fn start(coordinator: SocketAddr) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let jobs = runtime.block_on(async {
            let mut jobs = Vec::with_capacity(WORKERS);
            let endpoint = Endpoint::from_shared(format!("http://{coordinator}"));
            let endpoint = endpoint.expect("an address");
            while jobs.len() < WORKERS {
                let channel = endpoint.connect().await.expect("a connection");
                for _ in 0..SESSIONS_PER_CONNECTION {
                    let (to, seen) = mpsc::channel(4);
                    let name = worker(jobs.len());
                    tokio::spawn(run(channel.clone(), name, seen));
                    jobs.push(to);
                }
            }
            jobs
        });
        Self { runtime, jobs }
    }

    /// Has this worker run so many jobs.
    fn set_jobs(&self, index: usize, jobs: u32) {
        self.runtime.block_on(self.jobs[index].send(jobs)).expect("the session goes on");
    }
}

fn worker(index: usize) -> String {
    format!("w-{index:04}")
}

/// One session: it takes what it is granted, and runs what `jobs` says.
async fn run(channel: Channel, worker: String, mut jobs: mpsc::Receiver<u32>) {
    let (to, messages) = mpsc::channel(8);
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        cluster: "large".into(),
        worker,
        incarnation: 1,
        link: 1,
        stops_worker: true,
        ..Hello::default()
    };
    let say = async |said| {
        let sent = to.send(OpenSessionRequest { message: Some(said) }).await;
        sent.expect("the coordinator listens");
    };
    say(Said::Hello(hello)).await;
    let mut client = SessionServiceClient::new(channel);
    let answers = client.open_session(ReceiverStream::new(messages)).await;
    let mut answers = answers.expect("a session").into_inner();
    let epoch = loop {
        match heard(&mut answers).await {
            Some(Heard::Welcome(welcome)) => break welcome.epoch,
            Some(Heard::Waiting(_)) => {}
            other => panic!("no welcome: {other:?}"),
        }
    };
    let drain = DrainPhase::Working.into();
    let report = Report { epoch, nonce: 1, running: Some(0), drain, ..Report::default() };
    say(Said::Report(report)).await;
    let mut beat = Beat { epoch, nonce: 1, running: Some(0), drain, ..Beat::default() };
    loop {
        tokio::select! {
            heard = heard(&mut answers) => match heard {
                Some(Heard::Grant(grant)) => {
                    beat.applied = grant.number;
                    if let Some(pool) = grant.pool {
                        let size = pool.size;
                        beat.pool = Some(HeldPool {
                            token: pool.token, size, granted_size: size, floor: pool.floor,
                        });
                    } else if beat.running == Some(0) {
                        // A renewal needs no answer.
                        continue;
                    }
                }
                Some(_) => continue,
                None => return,
            },
            Some(running) = jobs.recv() => beat.running = Some(running),
            else => return,
        }
        beat.nonce += 1;
        say(Said::Beat(beat.clone())).await;
    }
}

async fn heard(answers: &mut Streaming<OpenSessionResponse>) -> Option<Heard> {
    answers.message().await.ok().flatten().and_then(|response| response.message)
}

#[test]
fn with_2000_workers_only_what_has_changed_is_touched() {
    let Some(fixture) = PageFixture::start("the page", &[("large.yaml", MANIFEST)]) else {
        return;
    };
    let agents = Agents::start(fixture.coordinator.grpc);
    eventually("all workers and their slots", || {
        let clusters = fixture.leasehold().json("clusters");
        let large = &clusters["clusters"][0];
        let all = large["connected"] == json!(WORKERS) && large["granted"] == json!(18_000);
        all.then_some(())
    });
    fixture.open("#/fleet/large");
    let all = format!("return document.querySelectorAll('[data-worker]').length === {WORKERS}");
    fixture.browser.until("a cell for each worker", &all, &[]);
    readable(&fixture);

    // One of them.
    let forget = "window.seen.cells.clear(); window.seen.workers = []";
    let _ = fixture.browser.script(forget, &[]);
    agents.set_jobs(17, 5);
    fixture.has(&cell("large/w-0017"), &[("running", "5"), ("size", "9")]);
    assert_eq!(touched(&fixture), BTreeSet::from(["large/w-0017".to_owned()]));

    // 200 of them, four times a second.
    let _ = fixture.browser.script(forget, &[]);
    let _ = fixture.browser.script(FRAMES, &[]);
    let mut random = fastrand::Rng::with_seed(1);
    let mut last = vec![0; WORKERS];
    last[17] = 5;
    let mut changed = BTreeSet::new();
    for _ in 0..UPDATES {
        // The pace is what is measured: nothing is waited for.
        std::thread::sleep(INTERVAL);
        for _ in 0..CHANGED {
            let index = random.usize(..WORKERS);
            last[index] = random.u32(..=JOBS_PER_WORKER);
            agents.set_jobs(index, last[index]);
            changed.insert(format!("large/{}", worker(index)));
        }
    }
    let shown: Vec<_> = last
        .iter()
        .enumerate()
        .map(|(index, jobs)| json!([format!("large/{}", worker(index)), jobs.to_string()]))
        .collect();
    let as_it_is = "const wrong = arguments[0].filter(([name, running]) => document.querySelector(
            `[data-worker=\"${name}\"]`)?.dataset.running !== running);
        return wrong.length === 0";
    fixture.browser.until("all cells as they are", as_it_is, &[json!(shown)]);
    let beyond: Vec<_> = touched(&fixture).difference(&changed).cloned().collect();
    assert!(beyond.is_empty(), "touched without a change: {beyond:?}");
    print_frames(&fixture);
}

/// Every cell is wide enough to be seen, and the page no wider than its window.
fn readable(fixture: &PageFixture) {
    let sizes = "
        const cells = [...document.querySelectorAll('[data-worker]')];
        const boxes = cells.map(cell => cell.getBoundingClientRect());
        return {
            narrowest: Math.min(...boxes.map(box => Math.min(box.width, box.height))),
            beyond: document.documentElement.scrollWidth - window.innerWidth,
        }";
    let sizes = fixture.browser.script(sizes, &[]);
    assert!(sizes["narrowest"].as_f64() >= Some(8.0), "{sizes}");
    assert!(sizes["beyond"].as_f64() <= Some(0.0), "{sizes}");
}

/// The cells that have been written to.
fn touched(fixture: &PageFixture) -> BTreeSet<String> {
    let cells = fixture.browser.script("return [...window.seen.cells]", &[]);
    serde_json::from_value(cells).expect("names")
}

/// A measure and no assertion: the time of a frame depends on what else the machine does.
fn print_frames(fixture: &PageFixture) {
    let frames = fixture.browser.script("return window.frames", &[]);
    let mut frames: Vec<f64> = serde_json::from_value(frames).expect("milliseconds");
    frames.sort_by(f64::total_cmp);
    let at = |share: f64| frames[((frames.len() - 1) as f64 * share) as usize];
    let late = frames.iter().filter(|frame| **frame > 17.0).count();
    println!(
        "{} frames: {:.1} ms at 50 %, {:.1} ms at 99 %, {:.1} ms at most, {late} above 17 ms",
        frames.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    let stats: Value = fixture.browser.script("return window.leasehold?.stats() ?? {}", &[]);
    println!("the page's own record: {stats}");
}
