//! `leasehold inject`: what the admission webhook does to pods, done to manifests.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use leasehold_injection::{Resources, Sidecar, inject, uninject};
use leasehold_types::is_host_and_port;
use serde_json::Value;

use crate::manifests::{self, Aliases};
use crate::object::Cluster;
use crate::output;
use crate::source::{self, Source};

const EXAMPLES: &str = "\
Examples:
  # What a Deployment looks like with the sidecar in it
  leasehold inject -f deployment.yaml --cluster builds

  # Into the cluster, without the webhook
  kustomize build . | leasehold inject -f - --cluster builds | kubectl apply -f -

  # With an adapter, as the annotation config.leasehold.dev/adapter would set it
  leasehold inject -f worker.yaml --cluster swarm --set adapter=file \\
      --set file-path=/leasehold/streams.yml

Pods and everything with a pod template are changed, in lists and among other documents too; all
else comes out as it went in. What is injected already, and equal, stays as it is. Nothing is
written where anything is wrong.";

/// Options of `inject`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file with manifests, a folder of such files, or - for stdin; may be repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<String>,
    /// The WorkerCluster or WorkerClass of pods whose label leasehold.dev/cluster names none
    #[arg(long, value_name = "NAME", value_parser = cluster)]
    cluster: Option<String>,
    /// The agent's image
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    #[arg(default_value = concat!("leasehold/agent:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// A setting of the sidecar, by the name of its annotation without config.leasehold.dev/; a
    /// pod's own annotation comes first; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// The coordinators' Service
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    #[arg(default_value = "leasehold-coordinator.leasehold-system.svc:7400")]
    coordinator: String,
    /// The name in the coordinators' certificates, where it is not the host of --coordinator
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    server_name: Option<String>,
    /// The audience of the agent's token
    #[arg(long, value_name = "NAME", default_value = "leasehold.dev")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    audience: String,
    /// How long a drain may take, the cluster's drain.deadline: pods whose grace period cannot
    /// cover it are warned of
    #[arg(long, value_name = "SPAN", value_parser = span)]
    drain_deadline: Option<Duration>,
}

impl Args {
    fn sidecar(&self) -> anyhow::Result<Sidecar> {
        let host = self.coordinator.rsplit_once(':').map_or(&*self.coordinator, |(host, _)| host);
        // An IPv6 address has its brackets for the port's sake.
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
        let given = std::mem::replace(&mut sidecar.resources, Resources::standard());
        sidecar.resources.refine(&given);
        Ok(sidecar)
    }
}

/// Writes the manifests with the sidecar in them.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let with = args.sidecar()?;
    let sources = source::read(&args.filename)?;
    let deadlines = deadlines(&sources);
    let mut warnings = Vec::new();
    let mut pods = 0;
    let text = manifests::rewrite(&sources, Aliases::Copied, &mut |place, pod, value| {
        pods += 1;
        let mut with = with.clone();
        if let Some(Cluster { name, port, .. }) = &pod.cluster {
            with.cluster = Some(name.clone());
            if let Some(port) = port {
                with.flags.entry("worker-port".to_owned()).or_insert_with(|| port.clone());
            }
        }
        let label = value.pointer("/metadata/labels/leasehold.dev~1cluster");
        let own = label.and_then(Value::as_str).or(with.cluster.as_deref());
        let said = own.and_then(|name| deadlines.get(name)).copied();
        with.drain_deadline = said.or(with.drain_deadline);
        let done = inject(value, &with)?;
        warnings.extend(done.warnings.into_iter().map(|warning| format!("{place}: {warning}")));
        Ok(done.edits)
    })?;
    warnings.extend(lost_aliases(&sources, &text));
    if pods == 0 {
        warnings.push("there is no pod and no pod template: nothing is injected".into());
    }
    output::write(&text, &warnings)
}

/// What became copies, and `uninject` would leave so.
fn lost_aliases(sources: &[Source], injected: &str) -> Vec<String> {
    let before = manifests::reuse(sources.iter().map(|source| &*source.text));
    if before.aliases.is_empty() {
        return Vec::new();
    }
    let injected = Source { name: String::new(), text: injected.to_owned() };
    let back = manifests::rewrite(&[injected], Aliases::GivenBack, &mut |_, _, it| uninject(it));
    let after = manifests::reuse(back.iter().map(String::as_str));
    let mut lost: Vec<String> = Vec::new();
    for (alias, uses) in &before.aliases {
        let times = uses.saturating_sub(after.aliases.get(alias).copied().unwrap_or(0));
        if times > 0 {
            let uses = if times == 1 { "use" } else { "uses" };
            lost.push(format!(
                "{times} {uses} of {alias} became a copy, which uninject will leave as it is"
            ));
        }
    }
    if lost.is_empty() && after.keys > before.keys {
        let what = "keys that a map had by merging (<<) became its own";
        lost.push(format!("{what}, and uninject will leave them so"));
    }
    lost
}

/// How long a drain may take in the clusters that the input defines; of one name the longest.
fn deadlines(sources: &[Source]) -> BTreeMap<String, Duration> {
    let mut all = BTreeMap::new();
    for Cluster { name, deadline, .. } in manifests::clusters(sources) {
        let Some(deadline) = deadline.and_then(|text| span(&text).ok()) else { continue };
        let known = all.entry(name).or_insert(deadline);
        *known = deadline.max(*known);
    }
    all
}

fn cluster(text: &str) -> Result<String, String> {
    let name = leasehold_types::ClusterName::new(text).map_err(|why| why.to_string())?;
    match name.parts() {
        (None, _) => Ok(text.into()),
        (Some(_), name) => Err(format!("pods and their cluster share a namespace: write {name}")),
    }
}

fn host_and_port(text: &str) -> Result<String, String> {
    match is_host_and_port(text) {
        true => Ok(text.into()),
        false => {
            Err("write HOST:PORT, as in leasehold-coordinator.leasehold-system.svc:7400".into())
        }
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, as in adapter=file")?;
    checked(name, value)?;
    Ok((name.into(), value.into()))
}

fn image(text: &str) -> Result<String, String> {
    checked("image", text)?;
    Ok(text.into())
}

/// Whether a sidecar can be set so.
fn checked(name: &str, value: &str) -> Result<(), String> {
    let mut scratch = Sidecar { resources: Resources::default(), ..Sidecar::standard("") };
    scratch.set("", name, value).map_err(|why| why.to_string())
}

fn span(text: &str) -> Result<Duration, String> {
    leasehold_types::duration::parse(text).map_err(|error| error.to_string())
}
