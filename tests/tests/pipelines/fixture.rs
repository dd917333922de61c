//! Coordinators and agents on loopback, and what they say of pipelines.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use leasehold_proto::admin::v1 as api;
use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::answers::lease;
use tests::command_line::{CommandLine, call};
use tests::process::{Agent, Coordinator, Replica, eventually, put_manifest};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

const HEAD: &str = "---\napiVersion: leasehold.dev/v1alpha1\n";

/// A `WorkerClass` of at most five workers, with `more` in its spec.
pub(crate) fn class(name: &str, capacity: u32, more: &str) -> String {
    let comma = if more.is_empty() { "" } else { ", " };
    format!(
        "{HEAD}kind: WorkerClass\nmetadata: {{name: {name}}}\nspec: {{capacity: {capacity}, \
         maxReplicas: 5, lease: {{ttl: 3s}}{comma}{more}}}\n"
    )
}

/// A `Pipeline` with these nodes.
pub(crate) fn pipeline(name: &str, load: u32, nodes: &str) -> String {
    format!(
        "{HEAD}kind: Pipeline\nmetadata: {{name: {name}}}\nspec: {{documentsPerSecond: {load}, \
         workers: {nodes}}}\n"
    )
}

/// The states that a leader reported, in order: the subject (`PIPELINE` or `PIPELINE/NODE`), and
/// its state.
type ReportedStates = Arc<Mutex<Vec<(String, String)>>>;

/// All processes of a test; they end with it.
pub(crate) struct PipelineFixture {
    runtime: Runtime,
    first: Coordinator,
    second: Option<Replica>,
    agents: BTreeMap<String, Agent>,
    /// Where each worker says that it is reached.
    addresses: BTreeMap<String, String>,
    leader: AdminServiceClient<Channel>,
    reported: ReportedStates,
}

impl PipelineFixture {
    /// Starts a coordinator and follows its events.
    pub(crate) fn start(manifests: &[(&str, &str)]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let first = Coordinator::start(manifests);
        let leader = client(&runtime, &first.grpc.to_string());
        let reported = ReportedStates::default();
        let fixture = Self {
            runtime,
            first,
            second: None,
            agents: BTreeMap::new(),
            addresses: BTreeMap::new(),
            leader,
            reported,
        };
        eventually("a leader", || fixture.leads().then_some(()));
        fixture.follow();
        fixture
    }

    /// Starts a second replica.
    pub(crate) fn standby(&mut self) {
        self.second = Some(self.first.standby());
    }

    /// Kills the leader, and waits for the other replica to lead.
    pub(crate) fn fail_over(&mut self) {
        let second = self.second.as_ref().expect("there is a standby").grpc.to_string();
        self.first.process.kill();
        self.leader = client(&self.runtime, &second);
        eventually("another leader", || self.leads().then_some(()));
        // It has reported all pipelines once all agents are back.
        eventually("all agents at the new leader", || {
            let connected =
                |agent: &Agent| lease(agent.api).is_some_and(|lease| lease["connected"] == true);
            self.agents.values().all(connected).then_some(())
        });
    }

    fn leads(&self) -> bool {
        let mut leader = self.leader.clone();
        let status = async move { leader.get_status(api::GetStatusRequest {}).await };
        self.runtime.block_on(status).is_ok_and(|status| status.into_inner().leads)
    }

    fn follow(&self) {
        let (mut leader, reported) = (self.leader.clone(), Arc::clone(&self.reported));
        let wanted = api::WatchChangesRequest { replay: "0s".into(), ..Default::default() };
        let changes = async move { leader.watch_changes(wanted).await };
        let changes = self.runtime.block_on(changes);
        let mut changes = changes.expect("an event stream of the leader").into_inner();
        self.runtime.spawn(async move {
            while let Ok(Some(change)) = changes.message().await {
                assert_ne!(change.kind(), api::ChangeKind::Skipped, "too slow to follow");
                let name = change.pipeline.clone();
                let told_of = match change.kind() {
                    api::ChangeKind::Pipeline => (name, phase(change.pipeline_phase())),
                    api::ChangeKind::Binding => {
                        (format!("{name}/{}", change.node), binding(change.binding_phase()))
                    }
                    _ => continue,
                };
                reported.lock().expect("the lock is not poisoned").push(told_of);
            }
        });
    }

    /// Starts an agent of a class; its worker is reached at an address that only it says.
    pub(crate) fn agent(&mut self, class: &str, worker: &str) {
        let address = format!("127.0.0.1:{}", 20_000 + self.addresses.len());
        let mut more = vec!["--worker-address", &address];
        let second = self.second.as_ref().map(|replica| replica.grpc.to_string());
        more.extend(second.iter().flat_map(|second| ["--coordinator", second]));
        let agent = self.first.agent(class, worker, &more);
        self.agents.insert(worker.to_owned(), agent);
        self.addresses.insert(worker.to_owned(), address);
    }

    /// Kills an agent, as a node's end does.
    pub(crate) fn kill(&mut self, worker: &str) {
        self.agents.remove(worker).expect("it was started").process.kill();
    }

    /// Sends an agent a signal.
    pub(crate) fn signal(&self, worker: &str, signal: Signal) {
        self.agents[worker].process.signal(signal);
    }

    /// How an agent has ended, which is waited for.
    pub(crate) fn ended(&mut self, worker: &str) -> ExitStatus {
        self.agents.remove(worker).expect("it was started").process.wait()
    }

    /// Has a worker give back `PIPELINE/NODE/INDEX`.
    pub(crate) fn give_back(&self, worker: &str, share: &str, token: &str) {
        let path = format!("/v1/bindings/{share}?token={token}");
        assert!(call(&self.agents[worker], "DELETE", &path), "{share} is given back");
    }

    /// Waits until the leader knows a worker.
    pub(crate) fn knows(&self, class: &str, worker: &str) {
        eventually("the worker to be known", || {
            let mut leader = self.leader.clone();
            let request = api::GetWorkerRequest { cluster: class.into(), worker: worker.into() };
            let answer = async move { leader.get_worker(request).await };
            let known = self.runtime.block_on(answer).ok()?.into_inner().worker?;
            (known.address == self.addresses[worker]).then_some(())
        });
    }

    /// The folder of the manifests.
    pub(crate) fn manifests(&self) -> PathBuf {
        self.first.folder().join("manifests")
    }

    /// Writes a manifest, whole at once.
    pub(crate) fn write(&self, name: &str, text: &str) {
        put_manifest(self.first.folder(), name, text);
    }

    /// What `leasehold plan` says of these manifests in place of those in force, in this form, and
    /// its exit code.
    pub(crate) fn plan(&self, manifests: &str, form: &str) -> (String, Option<i32>) {
        let folder = self.first.folder().join("edited");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("all.yaml"), manifests).expect("a file");
        self.line(&format!("plan -o {form} -f {}", folder.display()))
    }

    /// What a line of `leasehold` prints, or what it complains of, and its exit code.
    pub(crate) fn line(&self, line: &str) -> (String, Option<i32>) {
        let output = CommandLine(&self.first).run(line);
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8(said).expect("UTF-8"), output.status.code())
    }

    /// Removes a manifest.
    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.manifests().join(name)).expect("it is there");
    }

    /// What the coordinator has logged.
    pub(crate) fn log(&self) -> String {
        self.first.process.log()
    }

    /// What is wrong with the manifests.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut leader = self.leader.clone();
        let status = async move { leader.get_status(api::GetStatusRequest {}).await };
        let status = self.runtime.block_on(status).expect("the leader answers").into_inner();
        status.problems.into_iter().map(|problem| problem.message).collect()
    }

    /// A pipeline as the leader shows it.
    pub(crate) fn pipeline(&self, name: &str) -> Option<api::Pipeline> {
        let mut leader = self.leader.clone();
        let request = api::GetPipelineRequest { name: name.into() };
        let answer = async move { leader.get_pipeline(request).await };
        self.runtime.block_on(answer).ok()?.into_inner().pipeline
    }

    /// Whether a pipeline is Ready.
    pub(crate) fn is_ready_now(&self, name: &str) -> bool {
        let pipeline = self.pipeline(name);
        pipeline.is_some_and(|pipeline| pipeline.phase() == api::PipelinePhase::Ready)
    }

    /// Waits until a pipeline is reported as Ready.
    pub(crate) fn is_ready(&self, name: &str) {
        eventually("a pipeline that is Ready", || {
            let reported = self.reported();
            let last = reported.iter().rfind(|(of, _)| of == name);
            let reported = self.second.is_some() || last.is_some_and(|(_, phase)| phase == "Ready");
            (reported && self.is_ready_now(name)).then_some(())
        });
    }

    /// All reported states so far.
    pub(crate) fn reported(&self) -> Vec<(String, String)> {
        self.reported.lock().expect("the lock is not poisoned").clone()
    }

    /// Waits until a pipeline or `PIPELINE/NODE` was reported in exactly these states, in order,
    /// from the mark on; one that follows itself counts once. Notices come over a connection of
    /// their own, so they may be behind what a query answers.
    pub(crate) fn await_states(&self, mark: usize, concerned: &str, expected: &[&str]) {
        let what = format!("{concerned} to be reported in {} states", expected.len());
        let phases = eventually(&what, || {
            let phases = self.phases_since(mark, concerned);
            (phases.len() >= expected.len()).then_some(phases)
        });
        assert_eq!(phases, expected, "{concerned}");
    }

    /// The states reported so far.
    pub(crate) fn phases_since(&self, mark: usize, concerned: &str) -> Vec<String> {
        let reported = self.reported().split_off(mark);
        let mut phases: Vec<_> = reported
            .into_iter()
            .filter(|(of, _)| of == concerned)
            .map(|(_, phase)| phase)
            .collect();
        phases.dedup();
        phases
    }

    fn share(&self, pipeline: &str, node: &str) -> api::Share {
        let pipeline = self.pipeline(pipeline).expect("it is known");
        let binding = pipeline.bindings.into_iter().find(|binding| binding.node == node);
        binding.expect("it has the node").shares.into_iter().next().expect("it is served")
    }

    /// The worker of a node that one worker serves.
    pub(crate) fn worker_of(&self, pipeline: &str, node: &str) -> String {
        self.share(pipeline, node).worker
    }

    /// The token of a node that one worker serves.
    pub(crate) fn token(&self, pipeline: &str, node: &str) -> String {
        self.share(pipeline, node).token
    }

    /// The workers of a node in all of the walkthrough's pipelines.
    pub(crate) fn workers_of(&self, node: &str) -> Vec<String> {
        let mut workers = ["first", "second", "third"].map(|name| self.worker_of(name, node));
        workers.sort();
        workers.into()
    }

    /// Every share as the leader shows it: worker, token and load by `PIPELINE/NODE/INDEX`.
    pub(crate) fn shares(&self) -> BTreeMap<String, (String, String, String)> {
        let mut leader = self.leader.clone();
        let answer =
            async move { leader.list_pipelines(api::ListPipelinesRequest::default()).await };
        let answer = self.runtime.block_on(answer).expect("the leader answers").into_inner();
        let mut shares = BTreeMap::new();
        for pipeline in answer.pipelines {
            for binding in pipeline.bindings {
                for share in binding.shares {
                    let key = format!("{}/{}/{}", pipeline.name, binding.node, share.index);
                    let load = share.documents_per_second.to_string();
                    shares.insert(key, (share.worker, share.token, load));
                }
            }
        }
        shares
    }

    /// What a worker's agent shows it.
    pub(crate) fn lease(&self, worker: &str) -> Value {
        lease(self.agents[worker].api).expect("the agent answers in JSON")
    }

    /// Every share that agents show as held, without what is left of its time, by
    /// `PIPELINE/NODE/INDEX`.
    pub(crate) fn held(&self) -> BTreeMap<String, Value> {
        let mut held = BTreeMap::new();
        for worker in self.agents.keys() {
            let lease = self.lease(worker);
            for binding in lease["bindings"].as_array().expect("a list") {
                let mut binding = binding.clone();
                let text = |name: &str| binding[name].as_str().unwrap_or_default().to_owned();
                if text("state") != "held" {
                    continue;
                }
                let key = format!("{}/{}/{}", text("pipeline"), text("node"), binding["index"]);
                binding.as_object_mut().expect("an object").remove("valid_for_ms");
                let twice = held.insert(key.clone(), binding);
                assert!(twice.is_none(), "two workers hold {key}");
            }
        }
        held
    }

    /// What each worker of a class holds in all, least first.
    pub(crate) fn loads(&self, class: &str) -> Vec<f64> {
        let workers = self.agents.keys().filter(|worker| worker.starts_with(class));
        let sum = |worker: &String| {
            let lease = self.lease(worker);
            let bindings = lease["bindings"].as_array().expect("a list").clone();
            bindings.iter().filter_map(|binding| binding["documents_per_second"].as_f64()).sum()
        };
        let mut sums: Vec<f64> = workers.map(sum).collect();
        sums.sort_by(f64::total_cmp);
        sums
    }

    /// Waits until every worker of a pipeline knows just those that serve the nodes after its own.
    pub(crate) fn knows_the_way(&self, name: &str) {
        let pipeline = self.pipeline(name).expect("it is known");
        let endpoints = |node: &String| {
            let binding = pipeline.bindings.iter().find(|binding| binding.node == *node);
            let mut shares = binding.expect("it has the node").shares.clone();
            shares.sort_by(|a, b| a.worker.cmp(&b.worker));
            let endpoint = |share: &api::Share| {
                json!({"worker": share.worker, "address": self.addresses[&share.worker],
                       "documents_per_second": number(share.documents_per_second),
                       "draining": false})
            };
            let endpoints: Vec<_> = shares.iter().map(endpoint).collect();
            json!({"node": node, "endpoints": endpoints})
        };
        for binding in &pipeline.bindings {
            let next: Vec<_> = binding.next.iter().map(endpoints).collect();
            for share in &binding.shares {
                let key = format!("{name}/{}/{}", binding.node, share.index);
                eventually(&format!("the way on from {key}: {next:?}"), || {
                    let held = self.held();
                    let held = held.get(&key)?;
                    let same = held["token"] == json!(share.token);
                    let load = held["documents_per_second"] == number(share.documents_per_second);
                    (same && load && held["next"] == json!(next)).then_some(())
                });
            }
        }
    }
}

/// A load as JSON has it: whole where it is.
#[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
fn number(load: f64) -> Value {
    if load.fract() == 0.0 { json!(load as i64) } else { json!(load) }
}

fn client(runtime: &Runtime, address: &str) -> AdminServiceClient<Channel> {
    let _inside = runtime.enter();
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    AdminServiceClient::new(endpoint.expect("an address").connect_lazy())
}

fn phase(phase: api::PipelinePhase) -> String {
    match phase {
        api::PipelinePhase::Pending => "Pending",
        api::PipelinePhase::Plotted => "Plotted",
        api::PipelinePhase::Ready => "Ready",
        api::PipelinePhase::Broken => "Broken",
        api::PipelinePhase::Unspecified => "gone",
    }
    .into()
}

fn binding(phase: api::BindingPhase) -> String {
    match phase {
        api::BindingPhase::Pending => "Pending",
        api::BindingPhase::Ready => "Ready",
        api::BindingPhase::DeadEnd => "DeadEnd",
        api::BindingPhase::Unset => "Unset",
        api::BindingPhase::Unspecified => "gone",
    }
    .into()
}
