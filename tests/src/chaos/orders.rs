//! What needs a leader: workers that are declared gone, and the moment from which a lower budget
//! counts. It is tried until a leader answers, in a thread of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use leasehold_demo::admin::Admin;
use leasehold_demo::journal::Event;

use super::fleet::{Journal, addresses};
use super::manifests::JOBS;

/// Between two tries.
const RETRY: Duration = Duration::from_millis(200);

/// Steers the fleet by the leader's admin API.
#[derive(Debug)]
pub(super) struct AdminOrders {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    journal: Journal,
    stops: AtomicBool,
    todo: Mutex<Todo>,
}

#[derive(Debug)]
struct Todo {
    /// Clusters and their workers that are to be declared gone.
    gone: Vec<(String, String)>,
    /// The budget that the journal says.
    budget: u32,
    /// A lower budget, which applies once usage has fallen to it.
    lower: Option<u32>,
}

impl AdminOrders {
    /// Begins with this budget.
    pub(super) fn start(journal: Journal, budget: u32) -> Result<Self> {
        journal.write("chaos", Event::Budget { max_jobs: budget })?;
        let todo = Mutex::new(Todo { gone: Vec::new(), budget, lower: None });
        let state = Arc::new(State { journal, stops: AtomicBool::new(false), todo });
        let admin = Admin::new(&addresses())?;
        let thread = std::thread::spawn({
            let state = Arc::clone(&state);
            move || state.run(&admin)
        });
        Ok(Self { state, thread: Some(thread) })
    }

    /// Declares a worker gone, and the earlier ones of its name, as soon as a leader answers.
    pub(super) fn declare_gone(&self, cluster: &str, worker: String) {
        self.state.todo().gone.push((cluster.to_owned(), worker));
    }

    /// Another budget is about to be wanted.
    pub(super) fn budget(&self, jobs: u32) -> Result<()> {
        let mut todo = self.state.todo();
        todo.lower = (jobs < todo.budget).then_some(jobs);
        if jobs > todo.budget {
            todo.budget = jobs;
            self.state.journal.write("chaos", Event::Budget { max_jobs: jobs })?;
        }
        Ok(())
    }

    /// What is left to be done.
    pub(super) fn left(&self) -> Vec<String> {
        let todo = self.state.todo();
        let gone = todo.gone.iter();
        let gone = gone.map(|(cluster, worker)| {
            format!("a leader that takes the order that {cluster}/{worker} is gone")
        });
        let lower = todo.lower.iter();
        let lower = lower.map(|jobs| format!("no more than {jobs} slots in use"));
        gone.chain(lower).collect()
    }
}

impl Drop for AdminOrders {
    fn drop(&mut self) {
        self.state.stops.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("the thread that steers the fleet has panicked");
        }
    }
}

impl State {
    fn todo(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, admin: &Admin) {
        while !self.stops.load(Ordering::Relaxed) {
            let gone = self.todo().gone.clone();
            for (cluster, worker) in gone {
                if are_gone(admin, &cluster, &worker) {
                    self.todo().gone.retain(|(_, other)| *other != worker);
                }
            }
            let lower = self.todo().lower;
            if let Some(jobs) = lower
                && let Ok(cluster) = admin.cluster(JOBS)
                && cluster.max_jobs == jobs
                && cluster.committed <= jobs
            {
                self.lowered(jobs);
            }
            std::thread::sleep(RETRY);
        }
    }

    /// No more than this is in use, unless another budget was wanted meanwhile.
    fn lowered(&self, jobs: u32) {
        let mut todo = self.todo();
        if todo.lower == Some(jobs) {
            (todo.lower, todo.budget) = (None, jobs);
            let written = self.journal.write("chaos", Event::Budget { max_jobs: jobs });
            written.expect("the journal of what is done can be written");
        }
    }
}

/// Declares all workers of a name gone. Whether that is done.
fn are_gone(admin: &Admin, cluster: &str, name: &str) -> bool {
    let Ok(workers) = admin.workers(cluster) else { return false };
    let earlier = |worker: &str| worker.split_once('@').is_some_and(|(of, _)| of == name);
    let earlier = workers.into_iter().map(|worker| worker.name).filter(|name| earlier(name));
    std::iter::once(name.to_owned()).chain(earlier).all(|worker| {
        let answer = admin.declare_gone(cluster, &worker);
        // One that no leader knows holds nothing.
        answer.is_ok() || answer.is_err_and(|error| error.to_string().starts_with("NotFound"))
    })
}
