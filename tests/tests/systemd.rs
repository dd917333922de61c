//! The units of `deploy/systemd`: coordinators, and agents with their workers, are stopped and
//! started as the units say it, and each time the workers work again.

#[path = "systemd/unit.rs"]
mod unit;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tests::process::{eventually, free_address, until_ok};
use tests::readme::{self, Step};
use tests::toolbox::{self, Missing, Tool};

use self::unit::{Machine, Service, span};

const CLUSTER: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 8, maxJobsPerWorker: 3}
";

/// Takes jobs from `queue`, one after another; `begun` and `ended` say which. What a worker before
/// has not ended, it begins again.
const WORKER: &str = r#"#!/bin/sh
trap 'stop=1' TERM
mkdir -p queue taken done
for left in taken/*; do [ -e "$left" ] && mv "$left" queue/; done
curl -fsS "$LEASEHOLD_ADDR/v1/start" -d "{\"start_id\":\"$(date +%s%N)-$$\"}" || exit 1
while [ -z "$stop" ]; do
  job=$(ls queue | head -n 1)
  slot="$LEASEHOLD_ADDR/v1/jobs/$job"
  if [ -z "$job" ] || ! curl -fsS -X PUT "$slot?wait_ms=200"; then sleep 0.02; continue; fi
  mv "queue/$job" taken/
  echo "$job" >> begun
  sleep 0.05
  mv "taken/$job" done/ && echo "$job" >> ended
  curl -fsS -X DELETE "$slot"
done
"#;

/// What the documents start.
const SERVICES: [&str; 4] = [
    "leasehold-coordinator@a",
    "leasehold-coordinator@b",
    "leasehold-agent@worker-0",
    "leasehold-agent@worker-1",
];
/// Stops and starts.
const ROUNDS: usize = 10;
/// Jobs that a worker must have done before it is stopped again, and jobs that it may be at then.
const JOBS: usize = 3;

/// Types what the documents say that installs the units, where `root` is `/`.
fn install(root: &Path) -> Machine {
    let text = std::fs::read_to_string(toolbox::root().join("docs/OPERATIONS.md"));
    let steps = readme::steps(readme::section(&text.expect("the document"), "Under systemd"));
    let programs = toolbox::binary("leasehold-agent");
    let programs = format!("{}/", programs.parent().expect("a folder").display());
    let mut machine = Machine { root: root.to_owned(), ports: BTreeMap::new() };
    let mut started = Vec::new();
    for step in steps {
        let Step::Type(command) = step else { panic!("this test saves no files: {step:?}") };
        if let Some(names) = command.strip_prefix("systemctl start ") {
            started.extend(names.split(' ').map(str::to_owned));
        } else if !command.starts_with("systemctl ") {
            let typed = machine.place(&command).replace("target/release/", &programs);
            let mut shell = Command::new("sh");
            let typed = shell.args(["-ec", &typed]).current_dir(toolbox::root()).status();
            assert!(typed.expect("a shell").success(), "{command}");
        }
    }
    assert_eq!(started, SERVICES);

    // A cluster of the test's own instead of the examples.
    let manifests = root.join("etc/leasehold/manifests");
    std::fs::remove_dir_all(&manifests).expect("the examples");
    std::fs::create_dir(&manifests).expect("a folder");
    std::fs::write(manifests.join("builds.yaml"), CLUSTER).expect("a manifest");
    let worker = root.join("usr/local/bin/worker");
    std::fs::write(&worker, WORKER).expect("the worker");
    std::fs::set_permissions(&worker, PermissionsExt::from_mode(0o755)).expect("its mode");

    let entries = std::fs::read_dir(root.join("etc/leasehold")).expect("what was installed");
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let ports = text.split("127.0.0.1:").skip(1).filter_map(|rest| rest.get(..4)?.parse().ok());
        machine.ports.extend(ports.map(|port: u16| (port, 0)));
    }
    assert_eq!(machine.ports.len(), 6, "each program has ports of its own: {:?}", machine.ports);
    machine.ports.values_mut().for_each(|own| *own = free_address().port());
    machine
}

/// All services of one host.
struct Host {
    coordinators: Vec<Service>,
    agents: Vec<Service>,
    jobs: usize,
}

impl Host {
    fn new(machine: &Machine) -> Self {
        let services = |kind: &str| {
            let ours = SERVICES.iter().filter(|name| name.starts_with(kind));
            ours.map(|name| Service::new(name, machine)).collect()
        };
        let coordinators = services("leasehold-coordinator");
        Self { coordinators, agents: services("leasehold-agent"), jobs: 0 }
    }

    fn services(&mut self) -> impl Iterator<Item = &mut Service> {
        self.coordinators.iter_mut().chain(&mut self.agents)
    }

    /// More jobs for each worker.
    fn put_jobs(&mut self) {
        for _ in 0..JOBS {
            for agent in &self.agents {
                let queue = agent.worker_folder().join("queue");
                std::fs::create_dir_all(&queue).expect("a queue");
                let job = queue.join(format!("job-{}", self.jobs));
                std::fs::write(job, "").expect("a job");
                self.jobs += 1;
            }
        }
    }

    /// Waits until every job has ended, while systemd looks after its services.
    fn until_done(&mut self, why: &str) {
        until_ok(&format!("every job to be done {why}"), || {
            self.services().for_each(Service::look_after);
            // The last that a worker does with a job is to write that it has ended.
            let done: usize = self.agents.iter().map(|agent| lines(agent, "ended").len()).sum();
            if done == self.jobs { Ok(()) } else { Err(format!("{done} of {}", self.jobs)) }
        });
    }
}

/// The names of a worker's files in a folder.
fn list(agent: &Service, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(agent.worker_folder().join(folder));
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
}

/// The lines of a worker's file.
fn lines(agent: &Service, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(agent.worker_folder().join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Stops services, and asserts that none of them has failed or left anything.
fn stop(services: &mut [Service]) {
    for service in services {
        assert!(service.stop(), "{} failed as it was stopped", service.name);
    }
}

/// No job was begun or ended twice, and none that was begun is open.
fn assert_jobs(agent: &Service) {
    let (mut begun, mut ended) = (lines(agent, "begun"), lines(agent, "ended"));
    assert_eq!(list(agent, "taken"), Vec::<String>::new(), "{}: a lost job", agent.name);
    begun.sort();
    ended.sort();
    assert_eq!(begun, ended, "{}", agent.name);
    begun.dedup();
    assert_eq!(begun.len(), ended.len(), "{}: a job was done twice: {ended:?}", agent.name);
}

#[test]
fn workers_resume_after_each_stop_and_start() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let machine = install(root.path());
    let mut host = Host::new(&machine);
    for round in 1..=ROUNDS {
        for service in host.services().filter(|service| service.processes().is_empty()) {
            service.start();
        }
        host.put_jobs();
        host.until_done(&format!("in round {round}"));
        // In the middle of these they are asked to end.
        host.put_jobs();
        eventually("work to stop", || {
            let work = |agent: &Service| !list(agent, "taken").is_empty();
            host.agents.iter().any(work).then_some(())
        });
        stop(&mut host.agents);
        host.agents.iter().for_each(assert_jobs);
        // Every other time the coordinators run on.
        if round % 2 == 0 {
            stop(&mut host.coordinators);
        }
    }
    let restarts = host.services().map(|service| service.restarts).sum::<u32>();
    assert_eq!(restarts, 0, "a service ended by itself");

    // All that crashes comes back.
    host.services().for_each(Service::start);
    host.until_done("after the last stop");
    for agent in 0..host.agents.len() {
        host.put_jobs();
        kill(host.agents[agent].main());
        host.until_done("after the kill of an agent");
    }
    for coordinator in 0..host.coordinators.len() {
        kill(host.coordinators[coordinator].main());
        host.put_jobs();
        host.until_done("after the kill of a coordinator");
    }
    let agent = &host.agents[0];
    let is_worker = |id: &u32| parent(*id) == Some(agent.main());
    kill(agent.processes().into_iter().find(is_worker).expect("the worker"));
    host.put_jobs();
    host.until_done("after the kill of a worker");
    // Losing a standby affects nothing, and systemd restarts it after a second.
    until_ok("every service to be started again", || {
        host.services().for_each(Service::look_after);
        if host.services().all(|service| service.restarts > 0) { Ok(()) } else { Err("not yet") }
    });
    let restarts: Vec<u32> = host.services().map(|service| service.restarts).collect();
    assert_eq!(restarts, [1, 1, 1, 1], "a killed worker is its agent's to start");
    stop(&mut host.agents);
    stop(&mut host.coordinators);
}

#[test]
fn a_drained_worker_is_not_restarted_forever() {
    let Some(grpcurl) = toolbox::tool(Tool::Grpcurl) else { return };
    let root = tempfile::tempdir().expect("a temporary folder");
    let machine = install(root.path());
    let mut host = Host::new(&machine);
    host.services().for_each(Service::start);
    host.put_jobs();
    host.until_done("before the drain");

    let order = r#"{"cluster":"builds","worker":"worker-0"}"#;
    let method = "leasehold.admin.v1.AdminService/DrainWorker";
    let is_taken = |coordinator: &Service| {
        let address = &coordinator.environment()["LEASEHOLD_LISTEN"];
        let mut command = Command::new(&grpcurl);
        command.args(["-plaintext", "-d", order, address, method]);
        command.status().expect("grpcurl starts").success()
    };
    assert!(host.coordinators.iter().any(is_taken), "one of them leads");
    until_ok("the unit to rest", || {
        host.services().for_each(Service::look_after);
        if host.agents[0].rests() { Ok(()) } else { Err("it runs, or is started again") }
    });
    let restarts: Vec<u32> = host.services().map(|service| service.restarts).collect();
    assert_eq!(restarts, [0, 0, 1, 0], "once, to see that the order stands");
    assert!(host.agents[0].has_said("the coordinator ordered this worker to drain"));

    // What the documents say that has it work again.
    let settings = root.path().join("etc/leasehold/agent-worker-0.env");
    let text = std::fs::read_to_string(&settings).expect("its settings");
    std::fs::write(&settings, text + "LEASEHOLD_UNDRAIN=true\n").expect("they are written");
    host.agents[0].start();
    host.put_jobs();
    host.until_done("after the drain");
    host.agents.iter().for_each(assert_jobs);
    stop(&mut host.agents);
    stop(&mut host.coordinators);
}

fn parent(id: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

fn kill(id: u32) {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, Signal::KILL).expect("it runs");
}

#[test]
fn a_stop_waits_for_the_drain() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let machine = install(root.path());
    let agent = Service::new(SERVICES[2], &machine);
    let drain = span(&agent.environment()["LEASEHOLD_DRAIN_DEADLINE"]);
    // Of --child-grace.
    let grace = Duration::from_secs(30);
    assert!(span(agent.setting("TimeoutStopSec")) > drain + grace);
}

#[test]
fn systemd_accepts_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let why = "systemd-analyze is not installed (Debian: systemd)";
        return toolbox::leave_out(
            "systemd's own check of deploy/systemd",
            why,
            Missing::Forbidden,
        );
    }
    // The programs are not where the units have them, and verify asks for that.
    let copies = tempfile::tempdir().expect("a temporary folder");
    let mut units = Vec::new();
    for name in ["leasehold-coordinator@.service", "leasehold-agent@.service"] {
        let text = std::fs::read_to_string(toolbox::root().join("deploy/systemd").join(name))
            .expect("a unit");
        let copy = copies.path().join(name);
        let text = text.replace("/usr/local/bin/leasehold-coordinator", "/bin/true");
        let text = text.replace("/usr/local/bin/leasehold-agent", "/bin/true");
        std::fs::write(&copy, text).expect("a copy");
        units.push(copy);
    }
    let verify = Command::new("systemd-analyze").arg("verify").args(&units).output();
    let verify = verify.expect("systemd-analyze starts");
    let said = String::from_utf8_lossy(&verify.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("leasehold-")).collect();
    assert!(ours.is_empty(), "{said}");
}
