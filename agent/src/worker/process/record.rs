//! The record of the running programs in the state folder, from which the next agent finds them.
//! Process ids are invalid after a reboot of the host.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_types::{StreamKey, Token};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::process_group::{PidNamespace, ProcessGroup, recorded_elsewhere};
use crate::state_dir::{self, StateDir, boot_id};

/// The most bytes of the file: four thousand programs with the longest names need 4 MB.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// How long a killed program may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the agent checks whether it has exited.
const EXIT_POLL: Duration = Duration::from_millis(10);

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RecordFile {
    boot_id: String,
    /// Where the ids of the processes are valid; unknown in a record of an earlier version.
    #[serde(default)]
    pid_namespace: Option<PidNamespace>,
    #[serde(rename = "guard")]
    watchdog: Option<ProcessGroup>,
    programs: Vec<ProgramRecord>,
}

/// One stream's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramRecord {
    pub(super) stream: StreamKey,
    pub(super) token: Token,
    pub(super) group: ProcessGroup,
}

/// The record file; none without a state folder.
#[derive(Debug, Default)]
pub(super) struct Record {
    path: Option<PathBuf>,
}

/// What a previous agent left running.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    pub(super) record: Record,
    pub(super) watchdog: Option<ProcessGroup>,
    pub(super) programs: Vec<ProgramRecord>,
}

impl Leftovers {
    /// Finds the running programs, and kills those that are not `claimed`. Nothing else may start
    /// before.
    pub(crate) async fn find(
        dir: Option<&StateDir>,
        claimed: impl Fn(&StreamKey, Token) -> bool,
    ) -> anyhow::Result<Self> {
        let record = Record { path: dir.map(|dir| dir.file("programs.json")) };
        let text = record.read()?;
        let watchdog = text.watchdog.filter(ProcessGroup::has_leader);
        let running = text.programs.into_iter().filter(|program| program.group.exists());
        let (programs, over): (Vec<_>, Vec<_>) =
            running.partition(|program| claimed(&program.stream, program.token));
        for ProgramRecord { stream, token, group } in &over {
            tracing::warn!(%stream, %token, pid = group.id,
                "a program of the previous agent runs without a lease: this agent kills it");
        }
        end(over.iter().map(|program| &program.group)).await?;
        Ok(Self { record, watchdog, programs })
    }
}

/// Checks that no program of a stream that a previous agent started still runs. Returns why that
/// is not proven; none if it is.
///
/// # Errors
/// If one runs.
pub(crate) fn check_ended(dir: &StateDir) -> anyhow::Result<Option<String>> {
    let record = Record { path: Some(dir.file("programs.json")) };
    let RecordFile { pid_namespace, programs, .. } = record.read()?;
    let program_of = |program: &ProgramRecord| format!("the program of stream {}", program.stream);
    if let Some(running) = programs.iter().find(|program| program.group.exists()) {
        bail!("process {}, {}, still runs: stop it first", running.group.id, program_of(running));
    }
    let is_proven = pid_namespace.is_some_and(|recorded| recorded.is_own());
    let first = programs.first().filter(|_| !is_proven);
    Ok(first.map(|program| recorded_elsewhere(&program_of(program), program.group.id)))
}

impl Record {
    /// Whether a successor finds the running programs.
    pub(super) fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Replaces the record atomically.
    pub(super) fn write(
        &self,
        watchdog: &ProcessGroup,
        programs: Vec<ProgramRecord>,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let (boot_id, pid_namespace) = (boot_id().unwrap_or_default(), PidNamespace::own());
        let watchdog = Some(watchdog.clone());
        let text = RecordFile { boot_id, pid_namespace, watchdog, programs };
        let text = serde_json::to_vec(&text).expect("a record has only plain fields");
        let written = state_dir::replace(path, &text);
        written.map(drop).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the record, when no program runs.
    pub(super) fn remove(&self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }

    fn read(&self) -> anyhow::Result<RecordFile> {
        let Some(path) = &self.path else { return Ok(RecordFile::default()) };
        let text = state_dir::read(path, BYTES_MAX)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let Some(text) = text else { return Ok(RecordFile::default()) };
        let text: RecordFile = serde_json::from_slice(&text).with_context(|| {
            format!(
                "cannot parse {}, the record of programs that may still run: stop those that run, \
                 then remove the file",
                path.display()
            )
        })?;
        let same_boot = boot_id().is_some_and(|id| id == text.boot_id);
        Ok(if same_boot { text } else { RecordFile::default() })
    }
}

/// Kills groups, and waits until none of their processes runs.
pub(super) async fn end(groups: impl Iterator<Item = &ProcessGroup>) -> anyhow::Result<()> {
    let mut left: Vec<&ProcessGroup> = groups.collect();
    let until = tokio::time::Instant::now() + EXIT_TIMEOUT;
    loop {
        left.iter().for_each(|group| group.signal(Signal::KILL));
        left.retain(|group| group.exists());
        let Some(first) = left.first() else { return Ok(()) };
        if tokio::time::Instant::now() >= until {
            bail!(
                "{} programs did not exit after SIGKILL, for example process {}",
                left.len(),
                first.id
            );
        }
        tokio::time::sleep(EXIT_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{Epoch, SetName, StreamName};

    use super::*;
    use crate::state_dir::Locks;

    #[test]
    fn programs_have_ended_only_where_their_ids_are_valid() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = StateDir::open(folder.path(), Locks::Checked).expect("it is locked");
        assert_eq!(check_ended(&dir).expect("there is no record"), None);
        let (set, name) = (SetName::new("s").expect("a name"), StreamName::new("x"));
        let stream = StreamKey { set, stream: name.expect("a name") };
        let token = Token { epoch: Epoch(1), seq: 1 };
        // No process has this id.
        let group = ProcessGroup { id: i32::MAX, started: "1".into(), cgroup: None };
        let other = Some("1:1".parse().expect("a namespace"));
        for (pid_namespace, is_proven) in
            [(PidNamespace::own(), true), (other, false), (None, false)]
        {
            let programs =
                vec![ProgramRecord { stream: stream.clone(), token, group: group.clone() }];
            let boot_id = boot_id().unwrap_or_default();
            let record = RecordFile { boot_id, pid_namespace, watchdog: None, programs };
            let text = serde_json::to_vec(&record).expect("it has only plain fields");
            std::fs::write(dir.file("programs.json"), text).expect("it is written");
            let doubt = check_ended(&dir).expect("none runs");
            assert_eq!(doubt.is_none(), is_proven, "{doubt:?}");
        }
    }
}
