"""Takes jobs from a queue folder and compresses them, as many at once as its lease allows.

The queue is three folders: `pending/JOB`, `taken/WORKER@JOB` and `done/JOB.xz`. A job moves by
rename, so two workers never have the same one, and nothing is lost when a worker is killed.

    LEASEHOLD_ADDR=http://127.0.0.1:7411 python3 job_worker.py --queue queue --journal journal
"""

import lzma
import os
import threading
import time
import zlib
from pathlib import Path

from agent import Agent, Refused
from journal import Journal
from process import arguments, exit_with, set_on_signals, tell_start

# How long the agent may keep the question for a slot before it says no.
SLOT_WAIT_MS = 500
# Passes over a file before the one that counts: they make a job as long as a real one.
PASSES = 4
# How often a worker that stops notifies its agent that a job has ended.
END_TRIES = 50


class JobWorker:
    """Asks the agent before each job starts, and notifies it when the job has ended."""

    def __init__(self, agent, queue, journal, name, job_seconds=None):
        self.agent, self.journal, self.name = agent, journal, name
        self.job_seconds = job_seconds
        self.pending, self.taken, self.done = (
            Path(queue, part) for part in ("pending", "taken", "done")
        )
        self.stop = set_on_signals()

    def run(self):
        """Works until a signal stops it; finishes the jobs that run then."""
        for left in self.taken.glob(f"{self.name}@*"):
            # An earlier process of this worker was killed with this job in its hands.
            self.put_back(left.name.split("@", 1)[1], "job_retried")
        running = []
        while not self.stop.is_set():
            job = self.take()
            if not job:
                self.stop.wait(0.05)
                continue
            token = self.wait_for_slot(job)
            if not token:
                self.put_back(job, "job_put_back")
                break
            self.journal.write("job_start", job=job, token=token)
            running = [thread for thread in running if thread.is_alive()]
            running.append(threading.Thread(target=self.work, args=(job,)))
            running[-1].start()
        for thread in running:
            thread.join()
        # A drained worker stays until a signal ends it.
        self.stop.wait()

    def take(self):
        """The oldest job that no other worker has taken; None if there is no such job."""
        for job in sorted(os.listdir(self.pending)):
            try:
                os.rename(self.pending / job, self.taken_path(job))
                return job
            except FileNotFoundError:
                continue
        return None

    def wait_for_slot(self, job):
        """The token under which the job may start; None if no further job is to start."""
        while not self.stop.is_set():
            try:
                return self.agent.begin_job(job, SLOT_WAIT_MS)
            except Refused as refused:
                if refused.reason == "draining":
                    return None
                if refused.reason != "no_slot":
                    self.stop.wait(0.05)
            except OSError:
                # No answer is no yes. The same question again is harmless.
                self.stop.wait(0.1)
        # An answer may have been on its way.
        self.end(job)
        return None

    def work(self, job):
        """Compresses one file; the result appears whole or not at all."""
        source, result = self.taken_path(job), self.done / f"{job}.xz"
        if self.job_seconds is None:
            # This thread can wait for all others of the machine; who answers the agent cannot.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            compress(source, result, seconds=0.4 + zlib.crc32(job.encode()) % 1000 / 1000)
        else:
            # A job that waits for others of the machine would be longer than it should be.
            compress(source, result, seconds=self.job_seconds)
        self.journal.write("job_end", job=job)
        source.unlink()
        self.end(job)

    def end(self, job):
        """Gives the slot back, however long it takes; a worker that stops tries a while only."""
        tries_left = END_TRIES
        while tries_left > 0:
            try:
                return self.agent.end_job(job)
            except (Refused, OSError):
                tries_left -= self.stop.is_set()
                time.sleep(0.1)
        return None

    def put_back(self, job, event):
        """Makes a job that did not end anybody's again."""
        self.journal.write(event, job=job)
        os.rename(self.taken_path(job), self.pending / job)

    def taken_path(self, job):
        return self.taken / f"{self.name}@{job}"


def compress(source, result, seconds):
    """Packs `source` into `result`, with pauses as if the data came from far away."""
    data = source.read_bytes()
    for level in range(1, PASSES + 1):
        zlib.compress(data, level)
        time.sleep(seconds / PASSES)
    packed = lzma.compress(data, preset=0)
    if lzma.decompress(packed) != data:
        raise OSError(f"{source} does not survive its compression")
    part = result.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(packed)
    os.replace(part, result)


def run(args):
    """Works with the options that `main` reads."""
    exit_with(args.exit_with)
    agent = Agent()
    tell_start(agent)
    journal = Journal(Path(args.journal, f"{args.worker}.jobs.jsonl"), args.worker)
    JobWorker(agent, args.queue, journal, args.worker, args.job_seconds).run()


def main():
    run(arguments("Compresses the files of a queue folder.", "queue"))


if __name__ == "__main__":
    main()
