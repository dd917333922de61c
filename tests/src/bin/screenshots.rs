//! Pictures of each view of the page, in light, dark and on a phone: `make screenshots`. What they
//! show is real: two coordinators, and the demo's workers in the middle of a rollout.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use leasehold_demo::journal::Writer;
use leasehold_demo::work::{Sources, Work};
use serde_json::json;
use tests::browser::{Browser, DESK, Key, PHONE, Scheme};
use tests::command_line::CommandLine;
use tests::process::{Agent, Coordinator, Replica};
use tests::toolbox;

/// How long the fleet runs in each of its phases, so that the lines over time show something.
const PHASE: Duration = Duration::from_secs(15);
/// How often the queue is filled up.
const FEED_INTERVAL: Duration = Duration::from_millis(200);
/// How long a page may take to draw what it has received.
const SETTLED_MS: u32 = 700;

/// The view for README.
const README_VIEW: &str = "fleet";

/// Each picture's name, the address that it shows, and the element that must be there.
const VIEWS: [(&str, &str, &str); 10] = [
    ("fleet", "#/fleet", "[data-worker]"),
    ("cluster", "#/fleet/demo", "[data-worker]"),
    ("explanation", "#/fleet/demo?explain=worker:demo/blue-5", "#explanation [data-part=summary]"),
    ("streams", "#/streams", "main"),
    ("set", "#/streams/swarm", "[data-stream]"),
    ("pipelines", "#/pipelines", "[data-pipeline]"),
    ("pipeline", "#/pipelines/news", "[data-node]"),
    ("timeline", "#/timeline", "[data-change]"),
    ("plan", "#/plan/demo", "form#plan"),
    ("failover", "#/fleet", "[data-worker]"),
];

/// Pictures of each view of the page.
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder for the pictures.
    #[arg(long)]
    folder: PathBuf,
    /// Where to put the picture that README shows, too.
    #[arg(long)]
    readme: Option<PathBuf>,
}

fn main() -> Result<()> {
    let Arguments { folder, readme } = Arguments::parse();
    let browser = Browser::start("pictures of the page").context("no browser, see above")?;
    std::fs::create_dir_all(&folder)?;
    println!("==> starting two coordinators and the demo's workers");
    let mut fleet = Fleet::start()?;
    fleet.play()?;
    browser.open(&format!("http://{}/", fleet.coordinator.http));
    for (name, route, element) in VIEWS {
        if name == "failover" {
            fleet.coordinator.process.kill();
        }
        for (kind, window, scheme) in [
            ("light", DESK, Scheme::Light),
            ("dark", DESK, Scheme::Dark),
            ("phone", PHONE, Scheme::Light),
        ] {
            browser.resize(window);
            browser.prefer(scheme);
            let _ = browser.script("location.hash = arguments[0]", &[json!(route)]);
            show(&browser, name, element);
            let path = folder.join(format!("{name}-{kind}.png"));
            std::fs::write(&path, browser.picture())?;
            println!("    {}", path.display());
        }
        fleet.work.feed(&mut fleet.journal)?;
    }
    if let Some(readme) = readme {
        std::fs::copy(folder.join(format!("{README_VIEW}-light.png")), &readme)?;
        println!("    {}", readme.display());
    }
    Ok(())
}

/// Waits until a view is drawn.
fn show(browser: &Browser, name: &str, element: &str) {
    let live = "return document.querySelector('#connection')?.dataset.state === 'live'";
    browser.until(&format!("the live view {name}"), live, &[]);
    let there = "return document.querySelector(arguments[0]) !== null";
    browser.until(&format!("{element} in the view {name}"), there, &[json!(element)]);
    if name == "plan" {
        browser.fill("form#plan [name=maxJobs]", "12");
        browser.fill("form#plan [name=removeWorkers]", "green-1");
        browser.press(Key::Enter);
        browser.until("a plan", there, &[json!("[data-planned-worker]")]);
    }
    // Lines over time are drawn with the next update.
    let drawn = format!(
        "const done = arguments[0];
        setTimeout(() => requestAnimationFrame(() => done(true)), {SETTLED_MS})"
    );
    let _ = browser.script_that_calls(&drawn, &[]);
}

/// Everything that is shown.
struct Fleet {
    agents: Vec<(String, Agent)>,
    coordinator: Coordinator,
    standby: Replica,
    sources: Sources,
    journal: Writer,
    work: Work,
}

impl Fleet {
    fn start() -> Result<Self> {
        let deploy = toolbox::root().join("deploy/standalone");
        let read = |path: &str| {
            std::fs::read_to_string(deploy.join(path)).with_context(|| path.to_owned())
        };
        let cluster = read("manifests/cluster.yaml")?.replace("maxJobs: 12", "maxJobs: 20");
        let manifests = [
            ("cluster.yaml", cluster),
            ("streams.yaml", read("manifests/streams.yaml")?),
            ("swarm-streams.txt", read("manifests/swarm-streams.txt")?),
            ("classes.yaml", read("pipelines/classes.yaml")?),
            ("news.yaml", read("pipelines/news.yaml")?),
        ];
        let streams = manifests[2].1.lines().filter(|line| !line.starts_with('#'));
        let streams: Vec<String> = streams.map(str::to_owned).collect();
        let work = Work::new(&std::env::temp_dir())?;
        let sources = Sources::start(&work, &streams)?;
        let journal = Writer::open(&work.path("journal/demo.jsonl"))?;
        let manifests = manifests.each_ref().map(|(name, text)| (*name, text.as_str()));
        let coordinator = Coordinator::start(&manifests);
        CommandLine(&coordinator).until("status", &["leads term"]);
        let standby = coordinator.standby();
        Ok(Self { agents: Vec::new(), coordinator, standby, sources, journal, work })
    }

    /// A start, a rollout that is half done, a worker that is lost, and a mistake in a manifest.
    fn play(&mut self) -> Result<()> {
        for number in 1..=8 {
            self.worker(&format!("blue-{number}"), "1");
        }
        for (class, worker, port) in [
            ("extract", "extract-1", 9101),
            ("extract", "extract-2", 9102),
            ("index", "index-1", 9201),
            ("index", "index-2", 9202),
        ] {
            let address = format!("127.0.0.1:{port}");
            self.agent(class, worker, &["--worker-address", &address]);
        }
        self.run()?;
        for number in 1..=4 {
            self.worker(&format!("green-{number}"), "2");
            CommandLine(&self.coordinator).line(&format!("drain blue-{number}"));
        }
        self.worker("green-5", "2");
        self.run()?;
        let lost = self.agents.iter_mut().find(|(name, _)| name == "blue-5");
        lost.context("a worker")?.1.process.kill();
        let manifest = self.coordinator.folder().join("manifests/news.yaml");
        let text = std::fs::read_to_string(&manifest)?;
        let mistake = text.replacen("documentsPerSecond: 10", "documentsPerSecond: ten", 1);
        std::fs::write(&manifest, mistake)?;
        self.run()
    }

    /// Lets it run for a while.
    fn run(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PHASE {
            self.work.feed(&mut self.journal)?;
            std::thread::sleep(FEED_INTERVAL);
        }
        Ok(())
    }

    /// An agent with the demo's worker, which runs jobs and consumes streams.
    fn worker(&mut self, worker: &str, generation: &str) {
        let script = toolbox::root().join("deploy/standalone/workers/worker.py");
        let own = std::process::id().to_string();
        let mut flags = ["--generation", generation, "--child-kill-on-parent-death", "--"]
            .map(str::to_owned)
            .to_vec();
        flags.extend(["python3".to_owned(), path(&script)]);
        for part in ["queue", "sources", "sink", "journal"] {
            flags.extend([format!("--{part}"), self.work.argument(part)]);
        }
        flags.extend(["--exit-with".to_owned(), own]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.agent("demo", worker, &flags);
    }

    fn agent(&mut self, cluster: &str, worker: &str, flags: &[&str]) {
        let standby = self.standby.grpc.to_string();
        let flags = [&["--coordinator", &standby], flags].concat();
        let agent = self.coordinator.agent(cluster, worker, &flags);
        self.agents.push((worker.to_owned(), agent));
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.agents.clear();
        // It reports what it could not write; the pictures are there.
        let _ = self.sources.stop();
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
