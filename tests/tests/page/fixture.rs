//! A fleet of real processes, and the page that shows it in a real browser.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tests::browser::Browser;
use tests::command_line::CommandLine;
use tests::process::{Agent, Coordinator, Replica, until_ok};

/// Notes everything that becomes of workers' cells and streams' rows, what is refused by the page's
/// policy, and that this page was never loaded again.
const OBSERVE: &str = "
    window.seen = {
        workers: [], streams: [], connections: [], jobs: [], cells: new Set(), violations: [],
    };
    const worker = cell => {
        const data = cell.dataset;
        window.seen.cells.add(data.worker);
        window.seen.workers.push(
            [data.worker, data.state ?? '', Number(data.size ?? 0), Number(data.running ?? 0)]);
    };
    const stream = row => window.seen.streams.push([row.dataset.stream, row.dataset.owner ?? '']);
    const within = (node, attribute) => node.nodeType !== 1 ? [] : [
        ...(node.hasAttribute(attribute) ? [node] : []),
        ...node.querySelectorAll(`[${attribute}]`),
    ];
    const note = changes => {
        for (const change of changes) {
            const target = change.target;
            if (change.type === 'attributes') {
                if (target.dataset.worker !== undefined) worker(target);
                if (target.dataset.stream !== undefined) stream(target);
                if (target.id === 'connection') {
                    window.seen.connections.push([target.dataset.state, Date.now()]);
                }
            }
            for (const node of change.addedNodes) {
                within(node, 'data-worker').forEach(worker);
                within(node, 'data-stream').forEach(stream);
            }
            for (const node of change.removedNodes) {
                within(node, 'data-worker').forEach(
                    cell => window.seen.workers.push([cell.dataset.worker, 'removed', 0, 0]));
            }
        }
        const cells = [...document.querySelectorAll('[data-worker]')];
        window.seen.jobs.push(cells.reduce((sum, cell) => sum + Number(cell.dataset.running), 0));
    };
    new MutationObserver(note)
        .observe(document, {subtree: true, childList: true, attributes: true});
    document.addEventListener('securitypolicyviolation', event => window.seen.violations.push(
        `${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
";

/// A coordinator, perhaps with standbys, its agents, and a browser. The browser is the first field:
/// it ends before what it shows.
pub(crate) struct PageFixture {
    pub(crate) browser: Browser,
    pub(crate) coordinator: Coordinator,
    pub(crate) standbys: Vec<Replica>,
    pub(crate) agents: BTreeMap<String, Agent>,
}

impl PageFixture {
    /// Starts a leader and one standby on these manifests, and a browser; none where there is no
    /// browser, which is noted.
    pub(crate) fn start(what: &str, manifests: &[(&str, &str)]) -> Option<Self> {
        let browser = Browser::start(what)?;
        browser.run_first(OBSERVE);
        let coordinator = Coordinator::start(manifests);
        CommandLine(&coordinator).until("status", &["leads term"]);
        let standbys = vec![coordinator.standby()];
        // A page that was opened before the leader knew the standby would not know it either.
        until_ok("two replicas with their ports for HTTP", || {
            let status = CommandLine(&coordinator).json("status");
            let replicas =
                status["replicas"][0]["status"]["replicas"].as_array().into_iter().flatten();
            let has_port =
                |one: &&Value| one["httpAddress"].as_str().is_some_and(|at| !at.is_empty());
            if replicas.filter(has_port).count() == 2 { Ok(()) } else { Err(status.to_string()) }
        });
        Some(Self { browser, coordinator, standbys, agents: BTreeMap::new() })
    }

    /// The program `leasehold`.
    pub(crate) fn leasehold(&self) -> CommandLine<'_> {
        CommandLine(&self.coordinator)
    }

    /// Starts an agent that knows every coordinator.
    pub(crate) fn agent(&mut self, cluster: &str, worker: &str, more: &[&str]) {
        let others: Vec<String> = self.standbys.iter().map(|one| one.grpc.to_string()).collect();
        let others = others.join(",");
        let dials: &[&str] = if others.is_empty() { &[] } else { &["--coordinator", &others] };
        let agent = self.coordinator.agent(cluster, worker, &[dials, more].concat());
        self.agents.insert(worker.to_owned(), agent);
    }

    /// Opens a view of the leader's page, as a new page, and waits until it is live.
    pub(crate) fn open(&self, route: &str) {
        self.open_at(self.coordinator.http, route);
    }

    /// The same at this replica.
    pub(crate) fn open_at(&self, http: SocketAddr, route: &str) {
        // A change of the fragment alone would load nothing.
        self.browser.open("about:blank");
        self.browser.open(&format!("http://{http}/{route}"));
        self.browser.until("a live page", LIVE, &[]);
    }

    /// Goes to a view by a click, as far as the navigation has it, or else by its address.
    pub(crate) fn go(&self, route: &str) {
        let link = format!("nav a[href=\"{route}\"]");
        let is_there = "return document.querySelector(arguments[0]) !== null";
        if self.browser.script(is_there, &[json!(link)]) == json!(true) {
            self.browser.click(&link);
        } else {
            let _ = self.browser.script("location.hash = arguments[0]", &[json!(route)]);
        }
        let view =
            "return document.querySelector('main[data-view]')?.dataset.view === arguments[0]";
        self.browser.until(&format!("the view {route}"), view, &[json!(view_of(route))]);
    }

    /// Waits for an element that is shown; returns what it says.
    pub(crate) fn text(&self, selector: &str) -> String {
        let script = "const element = document.querySelector(arguments[0]);
            return element && element.getClientRects().length > 0 && element.innerText.trim()";
        let text = self.browser.until(selector, script, &[json!(selector)]);
        text.as_str().expect("a text").to_owned()
    }

    /// Waits until an element that is shown says all these words.
    pub(crate) fn says(&self, selector: &str, words: &[&str]) -> String {
        until_ok(&format!("{selector} with {words:?}"), || {
            let text = self.text(selector);
            if words.iter().all(|word| text.contains(word)) { Ok(text) } else { Err(text) }
        })
    }

    /// Waits until an element's data are these, by the names that scripts use for them.
    pub(crate) fn has(&self, selector: &str, data: &[(&str, &str)]) {
        let script = "const element = document.querySelector(arguments[0]);
            return element ? {...element.dataset} : 'nothing'";
        until_ok(&format!("{selector} with {data:?}"), || {
            let there = self.browser.try_script(script, &[json!(selector)]);
            let there = there.map_err(|error| error.to_string())?;
            let is_so = data.iter().all(|(name, value)| there[name] == json!(value));
            if is_so { Ok(()) } else { Err(there.to_string()) }
        });
    }

    /// Waits until no element that this selector finds is shown.
    pub(crate) fn has_no(&self, selector: &str) {
        let script = "return [...document.querySelectorAll(arguments[0])].every(
            element => element.getClientRects().length === 0)";
        self.browser.until(&format!("no {selector}"), script, &[json!(selector)]);
    }

    /// What has been seen so far, of one kind.
    pub(crate) fn seen(&self, kind: &str) -> Vec<Value> {
        let seen = self.browser.script("return window.seen[arguments[0]]", &[json!(kind)]);
        seen.as_array().cloned().unwrap_or_default()
    }

    /// What a worker's cell has shown, one after the other: state, size and running jobs.
    pub(crate) fn cell_history(&self, worker: &str) -> Vec<(String, u64, u64)> {
        let rows = self.seen("workers").into_iter().filter(|row| row[0] == json!(worker));
        let mut history: Vec<_> = rows
            .map(|row| {
                let number = |value: &Value| value.as_f64().map_or(0, |value| value as u64);
                (row[1].as_str().unwrap_or_default().to_owned(), number(&row[2]), number(&row[3]))
            })
            .collect();
        history.dedup();
        history
    }
}

/// Whether the page is live.
pub(crate) const LIVE: &str =
    "return document.querySelector('#connection')?.dataset.state === 'live'";

/// The selector of a worker's cell.
pub(crate) fn cell(path: &str) -> String {
    format!("[data-worker=\"{path}\"]")
}

/// The name of the view that a route shows.
fn view_of(route: &str) -> &'static str {
    let path = route.trim_start_matches("#/").split('?').next().unwrap_or_default();
    match (path.split('/').next().unwrap_or_default(), path.contains('/')) {
        ("fleet", false) => "fleet",
        ("fleet", true) => "cluster",
        ("streams", false) => "streams",
        ("streams", true) => "set",
        ("pipelines", false) => "pipelines",
        ("pipelines", true) => "pipeline",
        ("timeline", _) => "timeline",
        ("plan", _) => "plan",
        (other, _) => panic!("no view {other:?}"),
    }
}
