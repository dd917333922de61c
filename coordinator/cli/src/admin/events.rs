//! `leasehold events`: what has happened in the fleet, and with `--follow` what happens.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::jiff::Timestamp;
use leasehold_proto::admin::v1::{ChangeKind, WatchChangesRequest, WatchChangesResponse};
use leasehold_proto::json;
use leasehold_types::limits::HISTORY_RETENTION;
use leasehold_types::{counted, duration};
use tonic::Status;

use super::connection::{ConnectionArgs, Coordinator};
use super::output::{Format, print};
use super::{run, words};
use crate::argument::{self, WorkerPath};
use crate::usage;

/// How long the next of the changes that the leader has kept may take: it asks the platform for
/// each namespace whether the caller may see it.
const CHANGE_WITHIN: Duration = Duration::from_secs(30);
/// The interval between two attempts to find a leader.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Options of `events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A leader keeps the changes of the last hour. After a change of leader --follow goes on with the next
one, from its beginning.

Examples:
  leasehold events --since 10m
  leasehold events --follow --cluster builds
  leasehold events --kind lost,gone,drain-started -o json")]
pub(crate) struct Args {
    /// Go on with what happens from now on
    #[arg(short, long)]
    follow: bool,
    /// How far back to begin, at most an hour
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = since)]
    since: Duration,
    /// Only changes of this cluster
    #[arg(long, value_name = "NAME", value_parser = argument::cluster)]
    cluster: Option<String>,
    /// Only changes of these kinds, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = kind)]
    kind: Vec<ChangeKind>,
    /// Only changes of this worker: NAME, or CLUSTER/NAME
    #[arg(long, value_name = "NAME")]
    worker: Option<WorkerPath>,
    /// Only changes of this stream: NAME, or SET/NAME
    #[arg(long, value_name = "NAME", value_parser = argument::stream)]
    stream: Option<String>,
    /// The form of the output: table, or json with an object in each line
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    connection: ConnectionArgs,
}

fn since(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

/// What to say of changes that are asked for, and too old to be kept; `None` if none is too old.
fn too_old(since: Duration, now: Timestamp) -> Option<String> {
    let oldest = now.checked_sub(HISTORY_RETENTION).ok().filter(|_| since > HISTORY_RETENTION)?;
    let kept = duration::format_short(HISTORY_RETENTION);
    let oldest = oldest.strftime("%Y-%m-%dT%H:%M:%SZ");
    Some(format!("changes are kept for {kept}: those before {oldest} are not shown"))
}

/// The kind of this name.
fn kind(text: &str) -> Result<ChangeKind, String> {
    let known = || (1..).map_while(|number| ChangeKind::try_from(number).ok());
    known().find(|kind| words::change(*kind) == text).ok_or_else(|| {
        let all: Vec<_> = known().map(words::change).collect();
        format!("expected one of {}", all.join(", "))
    })
}

/// Runs `leasehold events`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn events(args: &Args) -> anyhow::Result<ExitCode> {
    if !matches!(args.output, Format::Table | Format::Json) {
        return Err(usage::wrong("events are shown with -o table or -o json"));
    }
    run(&args.connection, async |mut coordinator| {
        if let Some(missing) = too_old(args.since, Timestamp::now()) {
            eprintln!("{missing}");
        }
        let mut replay = args.since;
        loop {
            let ended = watch(&mut coordinator, args, replay).await?;
            if !args.follow {
                return Ok(ExitCode::SUCCESS);
            }
            if let Some(status) = ended {
                eprintln!("{}; following the next leader", status.message());
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
            coordinator.redial().await;
            // The next leader tells what it has done itself, which is all new.
            replay = HISTORY_RETENTION;
        }
    })
}

/// Prints changes until the watch ends: why it did, if it broke off.
async fn watch(
    coordinator: &mut Coordinator,
    args: &Args,
    replay: Duration,
) -> anyhow::Result<Option<Status>> {
    let request = WatchChangesRequest {
        cluster: args.cluster.clone().unwrap_or_default(),
        replay: duration::format(replay),
        only_replay: !args.follow,
    };
    let mut changes =
        coordinator.ask(async |mut client| client.watch_changes(request.clone()).await).await?;
    loop {
        let next = changes.message();
        let next = if args.follow {
            next.await
        } else {
            let next = tokio::time::timeout(CHANGE_WITHIN, next).await;
            next.with_context(|| {
                format!(
                    "the coordinator has sent no further change for {CHANGE_WITHIN:?}: later ones \
                     are missing here"
                )
            })?
        };
        match next {
            // A coordinator of an earlier version goes on with what happens now.
            Ok(Some(change)) if !args.follow && !change.replayed => return Ok(None),
            Ok(Some(change)) if is_wanted(&change, args) => print(&line(&change, args.output)?)?,
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(status) if args.follow => return Ok(Some(status)),
            Err(status) => return Err(coordinator.explained(&status)),
        }
    }
}

fn is_wanted(change: &WatchChangesResponse, args: &Args) -> bool {
    let kind = change.kind();
    // These say that changes of any worker and stream may be missing.
    let concerns_all =
        matches!(kind, ChangeKind::Elected | ChangeKind::Deposed | ChangeKind::Skipped);
    let is_worker = args.worker.as_ref().is_none_or(|WorkerPath { cluster, name }| {
        *name == change.worker && cluster.as_ref().is_none_or(|wanted| *wanted == change.cluster)
    });
    // Behind its set with a slash, or alone.
    let WatchChangesResponse { set, stream, .. } = change;
    let is_stream = args.stream.as_ref().is_none_or(|wanted| {
        wanted == stream || wanted.strip_suffix(stream.as_str()) == Some(&format!("{set}/"))
    });
    let is_named = is_worker && is_stream;
    (args.kind.is_empty() || args.kind.contains(&kind)) && (concerns_all || is_named)
}

fn line(change: &WatchChangesResponse, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Json => {
            let json = serde_json::to_string(&json::value(change)).context("a change")?;
            Ok(format!("{json}\n"))
        }
        Format::Table | Format::Wide | Format::Yaml | Format::Name => {
            let (kind, object, detail) =
                (words::change(change.kind()), object_of(change), detail_of(change));
            let text = format!("{}  {kind:<15}  {object}  {detail}", change.time);
            Ok(format!("{}\n", text.trim_end()))
        }
    }
}

/// What the change is about.
fn object_of(change: &WatchChangesResponse) -> String {
    let path = |parts: &[&str]| {
        let parts: Vec<_> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
        parts.join("/")
    };
    let worker = path(&[&change.cluster, &change.worker]);
    let stream = path(&[&change.set, &change.stream]);
    let pipeline = path(&[&change.pipeline, &change.node]);
    let objects = [stream, pipeline, worker];
    let objects: Vec<_> = objects.into_iter().filter(|object| !object.is_empty()).collect();
    objects.join(" on ")
}

fn detail_of(change: &WatchChangesResponse) -> String {
    let detail = match change.kind() {
        ChangeKind::Elected | ChangeKind::Deposed => format!("term {}", change.epoch),
        ChangeKind::PoolGranted => format!("size {} token {}", change.size, change.token),
        ChangeKind::Skipped => format!("{} missing here", counted(change.skipped, "change")),
        ChangeKind::Pipeline => words::pipeline(change.pipeline_phase()),
        ChangeKind::Binding => words::binding(change.binding_phase()),
        _ if !change.token.is_empty() => format!("token {}", change.token),
        _ => String::new(),
    };
    let parts = [detail.as_str(), change.message.as_str()];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_are_no_longer_kept_are_named() {
        let now = "2026-01-31T02:07:00.125Z".parse().expect("a time");
        let missing = |hours: u64| too_old(Duration::from_secs(hours * 3_600), now);
        assert_eq!(missing(1), None);
        let said = "changes are kept for 1h: those before 2026-01-31T01:07:00Z are not shown";
        assert_eq!(missing(2), Some(said.to_owned()));
    }
}
