//! `leasehold inject`: injects the sidecar into manifests, as the admission webhook does for pods.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use leasehold_injection::{Resources, Sidecar, inject};
use leasehold_kube_api::names;
use leasehold_types::flag::{DurationRange, duration};

use crate::manifests::{self, Document};
use crate::object::Cluster;
use crate::{argument, source};

const EXAMPLES: &str = "\
Examples:
  # Show a Deployment with the sidecar
  leasehold inject -f deployment.yaml --cluster builds

  # Apply manifests with the sidecar, without the webhook
  kustomize build . | leasehold inject -f - --cluster builds | kubectl apply -f -

  # Set an adapter, as the annotation config.leasehold.dev/adapter does
  leasehold inject -f worker.yaml --cluster swarm --set adapter=file \\
      --set file-path=/leasehold/streams.yml

Changes pods and every object with a pod template, in lists too, and writes all documents to stdout.
A document without a pod stays the same to the byte. In the others comments, quotes and the order
of keys stay; if the change touches an anchor or an alias, the aliases of that document become
copies, and a warning says so. Injecting again changes nothing. After an error stdout is empty.";

/// Options of `inject`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file with manifests, a folder of such files, or - for stdin; may be repeated
    #[arg(short, long, value_name = "FILE", required = true, value_parser = argument::source)]
    filename: Vec<String>,
    /// The WorkerCluster or WorkerClass of pods without the label leasehold.dev/cluster
    #[arg(long, value_name = "NAME", value_parser = cluster)]
    cluster: Option<String>,
    /// The agent's image
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    #[arg(default_value = names::AGENT_IMAGE.as_str())]
    image: String,
    /// A setting of the sidecar, named as its annotation without config.leasehold.dev/. A pod's own
    /// annotation overrides it; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// The coordinators' Service
    #[arg(long, value_name = "HOST:PORT", value_parser = argument::service_address)]
    #[arg(default_value = "leasehold-coordinator.leasehold-system.svc:7400")]
    coordinator: String,
    /// The name in the coordinators' certificates, if it is not the host of --coordinator
    #[arg(long, value_name = "NAME", value_parser = argument::server_name)]
    server_name: Option<String>,
    /// The audience of the agent's token
    #[arg(long, value_name = "NAME", default_value = "leasehold.dev")]
    #[arg(value_parser = argument::audience)]
    audience: String,
    /// The cluster's drain.deadline: a pod whose grace period is shorter gets a warning
    #[arg(long, value_name = "DURATION", value_parser = duration(DurationRange::DEADLINE))]
    drain_deadline: Option<Duration>,
}

impl Args {
    fn sidecar(&self) -> anyhow::Result<Sidecar> {
        let host = self.coordinator.rsplit_once(':').map_or(&*self.coordinator, |(host, _)| host);
        // The brackets of an IPv6 address are not part of it.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut sidecar = Sidecar {
            coordinator: self.coordinator.clone(),
            server_name: self.server_name.clone().unwrap_or_else(|| host.into()),
            audience: self.audience.clone(),
            cluster: self.cluster.clone(),
            drain_deadline: self.drain_deadline,
            resources: Resources::default(),
            ..Sidecar::standard("")
        };
        sidecar.set("--", "image", &self.image)?;
        for (name, value) in &self.set {
            sidecar.set("--set ", name, value)?;
        }
        let requested = std::mem::replace(&mut sidecar.resources, Resources::standard());
        sidecar.resources.refine(&requested);
        Ok(sidecar)
    }
}

/// Writes the manifests with the sidecar in them.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let settings = args.sidecar()?;
    let sources = source::read(&args.filename)?;
    let documents = manifests::parse(&sources)?;
    let drain_deadlines = drain_deadlines(&documents);
    let mut warnings = Vec::new();
    let mut pods = 0;
    let mut rewritten = manifests::rewrite(&documents, &mut |document, pod| {
        pods += 1;
        let mut sidecar = settings.clone();
        if let Some(Cluster { name, port, .. }) = &pod.cluster {
            sidecar.cluster = Some(name.clone());
            if let Some(port) = port {
                sidecar.flags.entry("worker-port".to_owned()).or_insert_with(|| port.clone());
            }
        }
        let label = pod.value["metadata"]["labels"]["leasehold.dev/cluster"].as_str();
        let cluster = label.or(sidecar.cluster.as_deref());
        let own_deadline = cluster.and_then(|name| drain_deadlines.get(name)).copied();
        sidecar.drain_deadline = own_deadline.or(sidecar.drain_deadline);
        let injection = inject(pod.value, &sidecar)?;
        let object = &pod.object;
        warnings.extend(
            injection.warnings.iter().map(|warning| format!("{document}, {object}: {warning}")),
        );
        Ok(injection.edits)
    })?;
    if pods == 0 {
        warnings.push(
            "found no pod and no pod template, so nothing was injected: check the files of -f"
                .into(),
        );
    }
    rewritten.warnings.splice(..0, warnings);
    rewritten.print()?;
    Ok(ExitCode::SUCCESS)
}

/// The `drain.deadline` of each cluster in the input; of several with one name the longest.
fn drain_deadlines(documents: &[Document<'_>]) -> BTreeMap<String, Duration> {
    let mut all = BTreeMap::new();
    for Cluster { name, drain_deadline, .. } in manifests::clusters(documents) {
        let Some(deadline) =
            drain_deadline.and_then(|text| DurationRange::DEADLINE.parse(&text).ok())
        else {
            continue;
        };
        let longest = all.entry(name).or_insert(deadline);
        *longest = deadline.max(*longest);
    }
    all
}

fn cluster(text: &str) -> Result<String, String> {
    let cluster = argument::cluster(text)?;
    match cluster.split_once('/') {
        None => Ok(cluster),
        Some((_, name)) => Err(format!("a pod and its cluster share a namespace: write {name}")),
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or("expected NAME=VALUE, for example adapter=file")?;
    check_setting(name, value)?;
    Ok((name.into(), value.into()))
}

fn image(text: &str) -> Result<String, String> {
    let image = argument::image(text)?;
    check_setting("image", &image)?;
    Ok(image)
}

/// Checks a setting of the sidecar by making it.
fn check_setting(name: &str, value: &str) -> Result<(), String> {
    let mut scratch = Sidecar { resources: Resources::default(), ..Sidecar::standard("") };
    scratch.set("", name, value).map_err(|why| why.to_string())
}
