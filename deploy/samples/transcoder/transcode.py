"""Transcodes videos with ffmpeg, as many at once over the whole fleet as the budget allows.

    leasehold-agent run ... -- python3 deploy/samples/transcoder/transcode.py FOLDER

All workers share FOLDER. A video in FOLDER/in moves to FOLDER/taken/WORKER while it is transcoded,
and then to FOLDER/done or FOLDER/failed. Copy it under a name that begins with a dot, and rename it
when it is whole. FOLDER/out has the results, each whole, as VIDEO.mp4. SIGTERM drains the worker,
which ends once its last video is done.

Example:

    leasehold-agent run --coordinator 127.0.0.1:7400 --cluster transcoder --worker t-0 \\
        -- python3 deploy/samples/transcoder/transcode.py /srv/videos
"""

import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import leasehold

# How many videos one worker transcodes at once, if the budget allows them.
VIDEOS_MAX = 2
IDLE_PAUSE_S = 1
# H.264 of 480 lines and AAC in MP4, which begins to play before all of it is there.
FORMAT = "-vf scale=-2:480 -c:v libx264 -preset veryfast -c:a aac -movflags +faststart -f mp4"


class Videos:
    """The folder with the videos. To read them from elsewhere, replace `take` and `finish`."""

    def __init__(self, folder, worker):
        self.folder, self.taken = folder, folder / "taken" / worker
        for part in ("in", "out", "done", "failed", f"taken/{worker}"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        # What an earlier process of this worker has not ended.
        for video in self.taken.iterdir():
            self.finish(video, "in")

    def take(self):
        """The first video by name that waits and is whole; None if none does."""
        for video in sorted((self.folder / "in").iterdir()):
            if video.name.startswith("."):
                continue
            try:
                # Of several workers that rename a file one succeeds.
                return video.rename(self.taken / video.name)
            except FileNotFoundError:
                continue
        return None

    def finish(self, video, to):
        """Moves a video that this worker has taken to another folder."""
        video.rename(self.folder / to / video.name)

    def transcode(self, job):
        """Transcodes one video in the slot of a job, whatever becomes of the lease meanwhile."""
        video = self.take()
        if video is None:
            # Before the pause: another worker may need the slot.
            job.end()
            time.sleep(IDLE_PAUSE_S)
            return
        # With the suffix of the video: a.mkv and a.mov have a result each.
        result = self.folder / "out" / f"{video.name}.mp4"
        part = result.with_name(f".{result.name}.part")
        command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-y", "-i", video]
        done = subprocess.run([*command, *FORMAT.split(), part])
        if done.returncode == 0:
            part.rename(result)
        else:
            part.unlink(missing_ok=True)
        self.finish(video, "done" if done.returncode == 0 else "failed")
        logging.info("ffmpeg ended with %d: %s", done.returncode, video.name)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    if not (name := os.environ.get("LEASEHOLD_WORKER")):
        sys.exit("no LEASEHOLD_WORKER: start the worker beside an agent")
    if shutil.which("ffmpeg") is None:
        sys.exit("no ffmpeg on PATH: install it")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    videos = Videos(Path(sys.argv[1]), name)
    # A queue of this kind may be written to in a signal's handler.
    terminated = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: terminated.put(None))
    with leasehold.Worker() as worker:
        jobs = threading.Thread(target=worker.run_jobs, args=(videos.transcode, VIDEOS_MAX))
        jobs.start()
        # The agent sends SIGTERM after the drain. A worker that ended with the drain would be
        # started again.
        terminated.get()
        if not worker.draining:
            worker.drain()
        jobs.join()


if __name__ == "__main__":
    main()
