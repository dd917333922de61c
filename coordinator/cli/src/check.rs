//! `leasehold check`: checks an installation, or a cluster before it, and says how to fix what is
//! wrong. It changes nothing.

mod alerts;
mod api;
mod autoscalers;
mod budgets;
mod certificates;
mod deadlines;
mod definitions;
mod election;
mod evictions;
mod expected;
mod fleet;
mod freshness;
mod installation;
mod meshes;
mod monitor;
mod monitors;
mod pods;
mod preflight;
mod report;
mod rights;
mod webhook;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use leasehold_types::flag::{DurationRange, duration};

use self::api::ApiClient;
use self::fleet::Fleet;
use self::installation::Installation;
use self::report::{CheckResult, Finding, Problem, Report};
use crate::argument;

/// The time limits that all checks together may have.
const TIMEOUT: DurationRange =
    DurationRange { min: Duration::from_secs(1), max: Duration::from_secs(3600) };

/// Options of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code: 0 if nothing failed (warnings allowed), 1 if a check failed, 2 for invalid arguments.

Examples:
  leasehold check --pre
  leasehold check
  leasehold check -n ci -o json")]
pub(crate) struct Args {
    /// Check a cluster before the installation: may you install, and will it work?
    #[arg(long)]
    pre: bool,
    /// The namespace of the coordinator
    #[arg(long, value_name = "NAMESPACE", default_value = "leasehold-system")]
    #[arg(value_parser = argument::namespace)]
    namespace: String,
    /// The namespaces whose workers to check, separated by commas, or `all`
    #[arg(
        short = 'n',
        long = "workers-namespace",
        value_name = "NAMESPACES",
        value_delimiter = ',',
        value_parser = argument::namespace,
        default_value = "all"
    )]
    workers: Vec<String>,
    /// The kubeconfig [default: KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig [default: the current one]
    #[arg(long, value_parser = argument::context)]
    context: Option<String>,
    /// The format of the report
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// The time limit for all checks together
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration(TIMEOUT))]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One line per check, as soon as it is done
    Text,
    /// One JSON object at the end
    Json,
}

/// Runs all checks and prints the report.
///
/// # Errors
/// Only if the runtime cannot start: a failed check is an exit code.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let mut report = match args.output {
        Output::Text => Report::text(),
        Output::Json => Report::json(),
    };
    let limit = args.timeout;
    let is_done = runtime
        .block_on(async { tokio::time::timeout(limit, look(args, &mut report)).await.is_ok() });
    // Does not wait for a blocked thread.
    runtime.shutdown_background();
    if !is_done {
        report.add(timed_out(limit));
    }
    report.print_summary();
    Ok(match report.verdict() {
        CheckResult::Fail => ExitCode::FAILURE,
        CheckResult::Ok | CheckResult::Skip | CheckResult::Warn => ExitCode::SUCCESS,
    })
}

fn timed_out(limit: Duration) -> Finding {
    let mut finding = Finding::new("timeout", "all checks were done in time");
    finding.fail(Problem::new(
        format!("the API server did not answer all requests within {limit:?}: checks are missing"),
        "see whether it answers at all (kubectl version), or allow more time (--timeout 2m)",
    ));
    finding
}

/// Runs the checks in order; some stop those after them.
async fn look(args: Args, report: &mut Report) {
    report.section("Kubernetes");
    let api = ApiClient::configured(args.kubeconfig.as_deref(), args.context).await;
    let Some(api) = api::check(api, report).await else { return };
    if args.pre {
        preflight::look(&api, &args.namespace, report).await;
        return;
    }
    report.section("Installation");
    let installation = Installation::find(&api, &args.namespace).await;
    let Some(installation) = installation::look(&api, installation, report).await else {
        return;
    };
    report.section("Kinds");
    definitions::look(&api, report).await;
    report.section("Rights");
    rights::look(&api, &installation, report).await;
    report.section("Election");
    let leader = election::look(&api, &installation, report).await;
    freshness::look(&api, &installation, leader, report).await;
    let fleet = Fleet::read(&api, &installation, &args.workers).await;
    report.section("Certificates");
    let trusted = certificates::look(&api, &installation, &fleet, report).await;
    report.section("Injection");
    webhook::look(&api, &installation, &fleet, trusted.as_ref(), report).await;
    report.section("Workers");
    pods::look(&installation, &fleet, report);
    meshes::look(&installation, &fleet, report);
    evictions::look(&api, &installation, trusted.as_ref(), report).await;
    budgets::look(&api, &fleet, report).await;
    autoscalers::look(&api, &installation, report).await;
    report.section("Deadlines");
    deadlines::look(&api, &fleet, report).await;
    report.section("Monitoring");
    if monitors::look(&api, &installation, &fleet, report).await {
        alerts::look(&api, report).await;
    }
}
