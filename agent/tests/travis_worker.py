"""A stand-in for the Travis worker: its remote controller with all its traps, and jobs that are
recorded when they begin and when they end.

It always has another job for a processor that is free. Every trap is on unless --without names it.
A trap that an agent steps into leaves a line in the journal.
"""

import argparse
import base64
import json
import os
import random
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TRAPS = {
    "crash": "told a size before it is ready, it crashes",
    "ignore": "a size of 0 or less is answered with 204 and does nothing",
    "grow": "told a size while it shuts down, it adds processors",
    "overshoot": "a size counts processors that take jobs, not those that drain beside them",
    "toggle": "a second pause ends the process",
    "auth": "401 without user and password, 403 with wrong ones",
    "null": "no processors are null",
    "decrement": "POST /pool/decrement does nothing",
    "json": "a body that is no JSON is answered with 400",
    "total": "totalProcessed forgets processors that have ended",
    "int": "SIGINT lets jobs end",
    "term": "SIGTERM loses jobs",
}


class Journal:
    """One JSON object a line, with the time of the clock that all processes share."""

    def __init__(self, path, worker):
        self.file = open(path, "a", buffering=1, encoding="utf-8")
        self.worker = worker
        self.lock = threading.Lock()

    def write(self, what, **more):
        with self.lock:
            at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            line = {"at": at, "worker": self.worker, "what": what, **more}
            self.file.write(json.dumps(line) + "\n")


class Processor(threading.Thread):
    """Runs one job after another until it is asked to end."""

    def __init__(self, pool, number):
        super().__init__(daemon=True)
        self.pool = pool
        self.number = number
        self.id = f"{number:08x}@{os.getpid()}.{pool.args.worker}"
        self.graceful = threading.Event()
        self.processed = 0
        self.status = "new"

    def run(self):
        try:
            while not self.graceful.wait(self.pool.pause_between()):
                self.status = "processing"
                self.pool.run_job(self.number)
                self.processed += 1
                self.status = "waiting"
        finally:
            self.status = "done"
            self.pool.ended(self)


class Pool:
    def __init__(self, args, journal):
        self.args, self.journal = args, journal
        self.lock = threading.RLock()
        self.random = random.Random(args.seed)
        self.started = time.monotonic()
        self.processors = []
        self.active = 0
        self.numbers = 0
        self.jobs = 0
        self.forgotten = 0
        self.pauses = 0
        self.leaving = False
        # What keeps the process: processors, and a pause.
        self.kept = 0
        self.first = threading.Event()
        self.over = threading.Event()

    def on(self, trap):
        return trap not in self.args.without

    def ready(self):
        file = self.args.ready_file
        return not file or os.path.exists(file)

    def pause_between(self):
        return self.random.uniform(0, self.args.pause_ms / 1000)

    def run_job(self, processor):
        with self.lock:
            self.jobs += 1
            job = f"{self.args.worker}-{os.getpid()}-{processor:04}-{self.jobs}"
            lasts = self.random.uniform(*self.args.job_ms) / 1000
        folder = self.args.job_dir
        file = folder and Path(folder) / job
        self.journal.write("job_start", job=job)
        if file:
            file.touch()
            while file.exists():
                time.sleep(0.005)
        else:
            time.sleep(lasts)
        self.journal.write("job_end", job=job)

    def keep(self, by):
        self.kept += by
        if self.kept == 0 and self.first.is_set():
            self.over.set()

    def increment(self):
        self.numbers += 1
        processor = Processor(self, self.numbers)
        self.processors.append(processor)
        self.active += 1
        self.keep(1)
        self.first.set()
        processor.start()

    def decrement(self):
        if self.processors:
            processor = self.processors.pop()
            if not self.on("total"):
                self.forgotten += processor.processed
            processor.graceful.set()

    def ended(self, processor):
        with self.lock:
            self.active -= 1
            self.keep(-1)

    def set_size(self, size):
        with self.lock:
            if self.leaving and size > len(self.processors):
                self.journal.write("trap", trap="grow")
                if not self.on("grow"):
                    return 409
            now = len(self.processors) if self.on("overshoot") else self.active
            for _ in range(size - now):
                self.increment()
            for _ in range(now - size):
                self.decrement()
            self.journal.write("size", size=size, active=self.active)
        return 204

    def shut_down(self, pause):
        with self.lock:
            self.journal.write("shut_down", pause=pause)
            if pause:
                self.pauses += 1
                if self.pauses == 1:
                    self.kept += 1
                elif self.on("toggle"):
                    self.journal.write("toggled_again")
                    if self.pauses > 2:
                        return
                    self.leaving = True
                    self.kept -= 1
            elif self.pauses != 1:
                self.leaving = True
            for _ in range(len(self.processors)):
                self.decrement()
            self.first.set()
            self.keep(0)

    def info(self):
        with self.lock:
            processors = [
                {
                    "id": processor.id,
                    "processed": processor.processed,
                    "status": processor.status,
                    "lastJobId": 0,
                }
                for processor in self.processors
            ]
            total = sum(processor.processed for processor in self.processors) + self.forgotten
            if not processors and self.on("null"):
                processors = None
            return {
                "version": "stand-in",
                "revision": "0",
                "generated": "2020-01-01T00:00:00Z",
                "uptime": self.uptime(),
                "poolSize": self.active,
                "expectedPoolSize": len(self.processors),
                "totalProcessed": total,
                "processors": processors,
            }

    def uptime(self):
        seconds = time.monotonic() - self.started
        minutes, seconds = divmod(seconds, 60)
        return f"{int(minutes)}m{seconds:.6f}s" if minutes else f"{seconds:.6f}s"


class Controller(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pool = None
    auth = None
    orders = 0

    def answer(self, status, body=b"", kind="text/plain"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        given = self.headers.get("Authorization", "")
        kind, _, value = given.partition(" ")
        if kind != "Basic":
            self.answer(401)
            return False
        if base64.b64decode(value).decode() != self.auth and self.pool.on("auth"):
            self.answer(403)
            return False
        return True

    def body(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            return json.loads(text)
        except ValueError:
            self.answer(400 if self.pool.on("json") else 204)
            return None

    def order(self, carry_out):
        """Carries an order out; where its answer is to be lost, hangs up."""
        Controller.orders += 1
        every = self.pool.args.lose_every
        lost = every and Controller.orders % every == 0
        # Half of the lost ones are not even heard.
        status = 204 if lost and Controller.orders // every % 2 == 0 else carry_out()
        if lost:
            self.pool.journal.write("lost_answer")
            self.close_connection = True
        else:
            self.answer(status)

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, b"OK")
        elif self.path == "/ready":
            ready = self.pool.ready()
            self.answer(*((200, b"OK") if ready else (503, b"Not Ready")))
        elif self.path == "/worker":
            if self.allowed():
                info = self.pool.info()
                self.answer(200, json.dumps(info).encode() + b"\n", "application/json")
        else:
            self.answer(404)

    def do_PATCH(self):
        if self.path != "/worker":
            return self.answer(404)
        if not self.allowed():
            return None
        wanted = self.body()
        if not isinstance(wanted, dict):
            return None
        size = wanted.get("poolSize", 0)
        if size <= 0:
            self.pool.journal.write("trap", trap="ignore")
            if self.pool.on("ignore"):
                return self.answer(204)
        if not self.pool.ready():
            self.pool.journal.write("trap", trap="crash")
            if self.pool.on("crash"):
                os._exit(2)
        return self.order(lambda: self.pool.set_size(size))

    def do_DELETE(self):
        if self.path != "/worker":
            return self.answer(404)
        if not self.allowed():
            return None
        options = self.body()
        if not isinstance(options, dict):
            return None

        def carry_out():
            if options.get("graceful"):
                self.pool.shut_down(bool(options.get("pause")))
            else:
                lose_jobs(self.pool)
            return 204

        return self.order(carry_out)

    def do_POST(self):
        if not self.allowed():
            return
        if self.path == "/pool/increment":
            with self.pool.lock:
                self.pool.increment()
            self.answer(204)
        elif self.path == "/pool/decrement":
            if not self.pool.on("decrement"):
                with self.pool.lock:
                    self.pool.decrement()
            self.answer(204)
        else:
            self.answer(404)

    def log_message(self, *_):
        pass


def lose_jobs(pool):
    """What SIGTERM does: nothing waits for a job."""
    pool.journal.write("lost", jobs=sum(it.status == "processing" for it in pool.processors))
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--worker", required=True, help="its name in the journal")
    parser.add_argument("--journal", required=True, help="where jobs are recorded")
    parser.add_argument("--job-ms", nargs=2, type=int, default=[50, 500], help="how long jobs run")
    parser.add_argument("--job-dir", help="a job makes a file there, and ends when that is gone")
    parser.add_argument("--pause-ms", type=int, default=5, help="the longest wait for a job")
    parser.add_argument("--ready-file", help="it is ready once this file is there")
    parser.add_argument("--lose-every", type=int, default=0, help="of so many orders one answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", action="append", default=[], choices=sorted(TRAPS))
    args = parser.parse_args()
    journal = Journal(args.journal, args.worker)
    pool = Pool(args, journal)
    Controller.pool = pool
    Controller.auth = os.environ["TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH"]
    host, port = os.environ["TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR"].rsplit(":", 1)
    server = ThreadingHTTPServer((host, int(port)), Controller)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    gracefully = (lambda *_: pool.shut_down(False)) if pool.on("int") else (lambda *_: None)
    signal.signal(signal.SIGINT, gracefully)
    lost = (lambda *_: lose_jobs(pool)) if pool.on("term") else gracefully
    signal.signal(signal.SIGTERM, lost)
    with pool.lock:
        for _ in range(int(os.environ.get("TRAVIS_WORKER_POOL_SIZE", "1"))):
            pool.increment()
    journal.write("begin", port=server.server_port)
    while not pool.over.wait(0.05):
        pass
    journal.write("exit")
    # At once: a signal that comes during a longer farewell would look like a crash.
    os._exit(0)


main()
