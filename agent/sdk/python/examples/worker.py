"""A worker with the SDK: jobs, streams, and a sink that refuses a former owner.

    leasehold-agent run ... -- python3 agent/sdk/python/examples/worker.py FOLDER

It writes what it did, and when, to FOLDER/journal/WORKER.jsonl, and a record every few milliseconds
to FOLDER/sink/STREAM.jsonl while it owns that stream. While FOLDER/hold exists no job ends. SIGTERM
drains it, and it ends when nothing is left.
"""

import fcntl
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import leasehold

if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
FOLDER = Path(sys.argv[1])
NAME = os.environ.get("LEASEHOLD_WORKER", "worker")
# Jobs at once, where the pool allows as many.
THREADS = 4
STEP_S = 0.02
# Much less than by default: another worker goes on with the streams of one that hangs.
BEAT_WITHIN_S = 3


class Journal:
    """What this worker did. One write a line: threads may share it."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event, at_ns=None, **fields):
        at_ns = at_ns or time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        line = {"event": event, "at_ns": at_ns, "wall_us": time.time_ns() // 1000, "worker": NAME}
        os.write(self.fd, (json.dumps({**line, **fields}) + "\n").encode())


class Fenced(Exception):
    """A higher token has been here."""


class Sink:
    """A stream's file. It keeps the highest token that it has seen, and refuses lower ones."""

    def __init__(self, stream):
        self.token, self.last_ns = stream.token, None
        path = FOLDER / "sink" / f"{quote(stream.name, safe='')}.jsonl"
        self.file = open(path, "a+b", buffering=0)

    def append(self):
        """Adds the next record."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            self.file.seek(max(0, self.file.seek(0, os.SEEK_END) - 4096))
            lines = self.file.read().splitlines() or [b'{"token": "0.0", "record": 0}']
            last = json.loads(lines[-1])
            if self.token < last["token"]:
                raise Fenced(f"token {self.token} is older than {last['token']}")
            record = last["record"] + 1
            self.last_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            line = {"token": self.token, "record": record, "worker": NAME, "at_ns": self.last_ns}
            self.file.write((json.dumps({**line, "text": f"record {record}"}) + "\n").encode())
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)


def run_job(job, journal):
    """The work."""
    journal.write("job_start", job=job.id, token=job.token)
    time.sleep(5 * STEP_S)
    while (FOLDER / "hold").exists():
        time.sleep(STEP_S)
    journal.write("job_end", job=job.id)


def consume(stream, journal):
    """Writes to the sink for as long as the stream is this worker's."""
    lease = {"set": stream.set, "stream": stream.name, "token": stream.token}
    sink, why = Sink(stream), "revoked"
    try:
        while True:
            if stream.valid():
                is_first = not sink.last_ns
                sink.append()
                if is_first:
                    # From its first record on: that one shuts out a former owner that was stopped
                    # between "is it still mine?" and its write.
                    journal.write("own_start", at_ns=sink.last_ns, **lease)
            if stream.stopping.wait(STEP_S):
                break
    except Fenced as fenced:
        why = f"fenced: {fenced}"
    if not sink.last_ns:
        return
    looked_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if not stream.valid():
        why = "lost"
    # Of a stream that is over this thread may hear late; it wrote nothing after that moment.
    at_ns = looked_ns if why == "revoked" else sink.last_ns
    journal.write("own_end", at_ns=at_ns, why=why, **lease)


def main():
    for folder in ("journal", "sink"):
        (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    journal = Journal(FOLDER / "journal" / f"{NAME}.jsonl")
    with leasehold.Worker(beat_within=BEAT_WITHIN_S) as worker:
        drain = threading.Thread(target=worker.drain, daemon=True)
        signal.signal(signal.SIGTERM, lambda *_: drain.is_alive() or drain.start())
        work = (lambda job: run_job(job, journal), THREADS)
        jobs = threading.Thread(target=worker.run_jobs, args=work)
        jobs.start()
        worker.run_streams(lambda stream: consume(stream, journal))
        jobs.join()


if __name__ == "__main__":
    main()
