//! The samples of `deploy/samples`, each with real processes on its own manifests: whether it keeps
//! what its README promises.

#[path = "samples/documents.rs"]
mod documents;
#[path = "samples/feeds.rs"]
mod feeds;
#[path = "samples/fleet.rs"]
mod fleet;
#[path = "samples/gate.rs"]
mod gate;
#[path = "sdk/go_tool.rs"]
mod go_tool;
#[path = "sdk/typescript_sdk.rs"]
mod typescript_sdk;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use fleet::{Fleet, python};
use gate::Gate;
use leasehold_types::Token;
use tests::process::eventually;
use tests::toolbox::{self, Missing};

/// The names in a folder, which may be missing.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names.map(|name| name.into_string().expect("UTF-8")).collect()
}

/// Writes builds into a queue, each of which waits at the gate, and prints what others have left in
/// its folder.
fn queue_builds(queue: &Path, gate: &Gate, builds: &[&str]) {
    let pending = queue.join("pending");
    std::fs::create_dir_all(&pending).expect("a folder for builds");
    for build in builds {
        std::fs::write(pending.join(build), gate.script("ls && touch left && echo built"))
            .expect("a build");
    }
}

/// The sample in Go, which is built once.
static RUNNER: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| go_tool::build("the sample runners", "deploy/samples/runners", "."));

/// The sample in Go with a queue, or `None` without Go.
fn runner(queue: &Path) -> Option<Command> {
    let mut command = Command::new(RUNNER.as_deref()?);
    command.arg(queue);
    Some(command)
}

#[test]
fn runners_keep_the_budget_and_a_rollout_loses_no_build() {
    let mut fleet = Fleet::start("runners");
    let (queue, gate) = (fleet.folder().join("queue"), Gate::closed(fleet.folder()));
    let Some(mut runner) = runner(&queue) else { return };
    let builds = ["a", "b", "c", "d", "e", "f", "g"];
    queue_builds(&queue, &gate, &builds);
    let partial = queue.join("pending/.partial");
    std::fs::write(&partial, "exit 1").expect("a part of a build");
    fleet.add("runners", "r-0", &[], &mut runner);
    fleet.add("runners", "r-1", &[], &mut runner);
    gate.eventually_running(3);
    // The rollout: a runner of the next generation comes, and one of the first drains.
    fleet.add("runners", "r-2", &["--generation", "1"], &mut runner);
    fleet.eventually_connected("r-2");
    fleet.begin_drain("r-0");
    fleet.eventually_draining("r-0");
    gate.open();
    fleet.eventually_ended("r-0");
    let done = queue.join("done");
    eventually("the end of all builds", || (names(&done).len() == builds.len()).then_some(()));
    assert_eq!(names(&done), BTreeSet::from(builds.map(str::to_owned)));
    assert!(names(&queue.join("failed")).is_empty(), "{:?}", names(&queue.join("failed")));
    for build in builds {
        let log = std::fs::read_to_string(queue.join("logs").join(format!("{build}.log")));
        assert_eq!(log.expect("a log"), "built\n", "{build} ran once, alone");
    }
    assert!(partial.exists(), "a build that is not whole waits");
    assert_eq!(gate.most(), 3, "the budget is used, and kept");
}

#[test]
fn a_build_of_a_killed_runner_runs_again() {
    let mut fleet = Fleet::start("runners");
    let (queue, gate) = (fleet.folder().join("queue"), Gate::closed(fleet.folder()));
    let Some(mut runner) = runner(&queue) else { return };
    queue_builds(&queue, &gate, &["a"]);
    fleet.add("runners", "r-0", &[], &mut runner);
    gate.eventually_running(1);
    fleet.restart("r-0", &mut runner);
    gate.eventually_running(2);
    gate.open();
    let done = queue.join("done");
    eventually("its end", || names(&done).contains("a").then_some(()));
}

/// Makes videos of one second.
fn make_videos(folder: &Path, videos: &[&str]) {
    std::fs::create_dir_all(folder).expect("a folder for videos");
    for video in videos {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-loglevel", "error"]);
        ffmpeg.args(["-f", "lavfi", "-i", "testsrc=duration=1:size=320x240:rate=10"]);
        ffmpeg.args(["-f", "lavfi", "-i", "sine=duration=1"]);
        let made = ffmpeg.arg(folder.join(format!("{video}.mkv"))).status().expect("ffmpeg starts");
        assert!(made.success(), "ffmpeg: {made}");
    }
}

/// The codec and the height of a video, as ffprobe writes them.
fn probed(video: &Path) -> String {
    let mut ffprobe = Command::new("ffprobe");
    ffprobe.args(["-v", "error", "-select_streams", "v:0"]);
    ffprobe.args(["-show_entries", "stream=codec_name,height", "-of", "csv=p=0"]);
    let output = ffprobe.arg(video).output().expect("ffprobe starts");
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

#[test]
fn the_transcoder_keeps_the_budget_and_a_drain_cuts_no_video_off() {
    if ["ffmpeg", "ffprobe", "python3"].map(toolbox::on_path).contains(&None) {
        let why = "`make tools TOOLS=ffmpeg` installs it";
        toolbox::leave_out("the test of the sample transcoder", why, Missing::Installable);
        return;
    }
    let mut fleet = Fleet::start("transcoder");
    let (folder, gate) = (fleet.folder().join("videos"), Gate::closed(fleet.folder()));
    let videos = ["a", "b", "c", "d", "e"];
    make_videos(&folder.join("in"), &videos);
    let partial = folder.join("in/.partial.mkv");
    std::fs::write(&partial, "").expect("a part of a video");
    let mut worker = python(Path::new("python3"), "transcoder/transcode.py");
    worker.arg(&folder).env("PATH", gate.put_before("ffmpeg"));
    fleet.add("transcoder", "t-0", &[], &mut worker);
    fleet.add("transcoder", "t-1", &[], &mut worker);
    gate.eventually_running(2);
    let out = folder.join("out");
    let early = names(&out);
    assert!(early.iter().all(|result| result.ends_with(".part")), "not yet whole: {early:?}");
    fleet.add("transcoder", "t-2", &[], &mut worker);
    fleet.begin_drain("t-0");
    fleet.eventually_draining("t-0");
    gate.open();
    fleet.eventually_ended("t-0");
    let done = folder.join("done");
    eventually("the end of all videos", || (names(&done).len() == videos.len()).then_some(()));
    assert_eq!(names(&out), BTreeSet::from(videos.map(|video| format!("{video}.mkv.mp4"))));
    for video in names(&out) {
        assert_eq!(probed(&out.join(&video)), "h264,480", "{video}");
    }
    assert!(partial.exists(), "a video that is not whole waits");
    assert_eq!(gate.most(), 2, "the budget is used, and kept");
}

/// The streams of the sample's manifest.
const FOLDERS: [&str; 6] = ["books", "films", "letters", "maps", "music", "photos"];

/// The archives of a folder, each with its time and the token of its owner, by both.
fn archives(target: &Path, folder: &str) -> Vec<(u64, Token, PathBuf)> {
    let whole = names(&target.join(folder)).into_iter().filter_map(|name| {
        let (time, token) = name.strip_suffix(".tar.gz")?.split_once('-').expect("TIME-TOKEN");
        let time: u64 = time.parse().expect("seconds");
        let token: Token = token.parse().expect("a token");
        Some((time, token, target.join(folder).join(&name)))
    });
    let mut whole: Vec<_> = whole.collect();
    whole.sort();
    whole
}

/// What is in an archive.
fn unpacked(archive: &Path) -> String {
    let mut tar = Command::new("tar");
    let output = tar.args(["--extract", "--to-stdout", "--file"]).arg(archive).output();
    let output = output.expect("tar starts");
    assert!(output.status.success(), "{}: {output:?}", archive.display());
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn backups_keep_the_budget_and_a_drain_hands_folders_over_with_whole_archives() {
    let mut fleet = Fleet::start("backups");
    let (sources, target) = (fleet.folder().join("sources"), fleet.folder().join("target"));
    for folder in FOLDERS {
        std::fs::create_dir_all(sources.join(folder)).expect("a folder to back up");
        std::fs::write(sources.join(folder).join("file"), folder).expect("a file in it");
    }
    let gate = Gate::closed(fleet.folder());
    let mut worker = Command::new(toolbox::binary("examples/backups"));
    worker.arg(&sources).arg(&target).arg("1").env("PATH", gate.put_before("tar"));
    fleet.add("backups", "b-0", &[], &mut worker);
    fleet.add("backups", "b-1", &[], &mut worker);
    gate.eventually_running(2);
    assert!(FOLDERS.iter().all(|folder| archives(&target, folder).is_empty()), "not yet whole");
    fleet.begin_drain("b-0");
    fleet.eventually_draining("b-0");
    gate.open();
    fleet.eventually_ended("b-0");
    let log = fleet.log("b-0");
    assert!(log.contains(".tar.gz"), "it ends the archive that it has begun: {log}");
    let before = FOLDERS.map(|folder| archives(&target, folder).len());
    eventually("more archives of each folder", || {
        let now = FOLDERS.map(|folder| archives(&target, folder).len());
        now.iter().zip(before).all(|(now, before)| *now > before).then_some(())
    });
    for folder in FOLDERS {
        let archives = archives(&target, folder);
        assert!(archives.iter().all(|(_, _, archive)| unpacked(archive) == folder), "{folder}");
        let tokens: Vec<Token> = archives.iter().map(|(_, token, _)| *token).collect();
        assert!(tokens.is_sorted(), "a former owner of {folder} has gone on: {tokens:?}");
    }
    assert_eq!(gate.most(), 2, "the budget is used, and kept");
}
