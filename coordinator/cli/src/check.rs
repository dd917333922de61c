//! `leasehold check`: looks at an installation, or at a cluster before one, and says of everything
//! whether it is as it should be, and how to mend what is not. It changes nothing.

mod before;
mod certificates;
mod cluster;
mod deadlines;
mod definitions;
mod election;
mod fleet;
mod installation;
mod manifests;
mod pods;
mod report;
mod rights;
mod server;
mod version;
mod webhook;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;

use self::cluster::Cluster;
use self::fleet::Fleet;
use self::installation::Installation;
use self::report::{Finding, Problem, Report, Verdict};

/// What `leasehold check` is told.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit: 0 where all is well (warnings allowed), 1 where something failed, 2 for a wrong command line.

Examples:
  leasehold check --pre
  leasehold check
  leasehold check -n ci -o json")]
pub(crate) struct Args {
    /// Look at a cluster before the installation: may it be made, and will it work?
    #[arg(long)]
    pre: bool,
    /// The namespace of the coordinator
    #[arg(long, value_name = "NAMESPACE", default_value = "leasehold-system")]
    namespace: String,
    /// The namespaces whose workers are looked at, separated by commas, or `all`
    #[arg(
        short = 'n',
        long = "workers-namespace",
        value_name = "NAMESPACES",
        value_delimiter = ',',
        default_value = "all"
    )]
    workers: Vec<String>,
    /// The kubeconfig; else KUBECONFIG, ~/.kube/config, or the pod's own rights
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context; its current one unless given
    #[arg(long)]
    context: Option<String>,
    /// How to tell it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// How long all of it may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Lines for people, as they come
    Text,
    /// One JSON object
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    match leasehold_types::duration::parse(text) {
        Ok(duration) if duration.is_zero() => {
            Err(format!("invalid duration {text:?}: use one above 0, for example 10s"))
        }
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks, and tells what was found.
///
/// # Errors
/// Where nothing can be begun.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the runtime cannot be started")?;
    let mut report = match args.output {
        Output::Text => Report::text(),
        Output::Json => Report::json(),
    };
    let limit = args.timeout;
    let is_done = runtime
        .block_on(async { tokio::time::timeout(limit, look(args, &mut report)).await.is_ok() });
    // What hangs in a thread of its own is not waited for.
    runtime.shutdown_background();
    if !is_done {
        report.tell(late(limit));
    }
    report.end();
    Ok(match report.verdict() {
        Verdict::Fail => ExitCode::FAILURE,
        Verdict::Ok | Verdict::Skip | Verdict::Warn => ExitCode::SUCCESS,
    })
}

fn late(limit: Duration) -> Finding {
    let mut finding = Finding::new("timeout", "everything was looked at in time");
    finding.fail(Problem::new(
        format!("the API server did not answer all questions within {limit:?}: the rest is open"),
        "see whether it answers at all (kubectl version), or give more time (--timeout 2m)",
    ));
    finding
}

/// Looks at everything, as far as what comes before lets it.
async fn look(args: Args, report: &mut Report) {
    report.section("Kubernetes");
    let cluster = Cluster::configured(args.kubeconfig.as_deref(), args.context).await;
    let Some(cluster) = server::reached(cluster, report).await else { return };
    if args.pre {
        before::look(&cluster, &args.namespace, report).await;
        return;
    }
    report.section("Installation");
    let installation = Installation::find(&cluster, &args.namespace).await;
    let Some(installation) = installation::look(&cluster, installation, report).await else {
        return;
    };
    report.section("Kinds");
    definitions::look(&cluster, &installation, report).await;
    report.section("Rights");
    rights::look(&cluster, &installation, report).await;
    report.section("Election");
    election::look(&cluster, &installation, report).await;
    let fleet = Fleet::read(&cluster, &installation, &args.workers).await;
    report.section("Certificates");
    let trusted = certificates::look(&cluster, &installation, &fleet, report).await;
    report.section("Injection");
    webhook::look(&cluster, &installation, &fleet, trusted.as_ref(), report).await;
    report.section("Workers");
    pods::look(&cluster, &installation, &fleet, report).await;
    report.section("Deadlines");
    deadlines::look(&cluster, &fleet, report).await;
}
