"""Copies growing files, one a stream, to a sink: only streams that its lease gives it.

It watches the lease. A stream that is revoked is stopped and then released; a stream whose time
runs out is stopped by this process's own clock, whatever the agent says or does not say.

    LEASEHOLD_ADDR=http://127.0.0.1:7411 python3 stream_worker.py \\
        --sources sources --sink sink --journal journal
"""

import os
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

from agent import Agent, Refused, clock_ns
from journal import Journal
from process import arguments, exit_with, set_on_signals, tell_start
from sink import Fenced, Sink

# How often a source is looked at where nothing else happens.
LOOK_S = 0.05
# Bytes of a source that one look takes at most: the clock is read between two looks.
CHUNK_BYTES = 64 * 1024


class Owned:
    """A stream while this worker owns it."""

    def __init__(self, token, until_ns, source, sink):
        self.token, self.until_ns = token, until_ns
        self.source, self.sink = source, sink

    def copy(self):
        """Appends the records that are new in the source. Half a line waits for its end."""
        if not self.source or self.over():
            return
        self.source.seek(self.sink.offset)
        data = self.source.read(CHUNK_BYTES)
        records, offset = [], self.sink.offset
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            offset += len(line)
            records.append((offset, line.decode().rstrip("\n")))
        if records and not self.over():
            self.sink.append(records)

    def over(self):
        """Whether the lease has ended by this process's clock."""
        return self.until_ns is not None and clock_ns() >= self.until_ns


class StreamWorker:
    """Owns what the newest lease says, until that lease's end."""

    def __init__(self, agent, sources, sinks, journal):
        self.agent, self.journal = agent, journal
        self.sources, self.sinks = Path(sources), Path(sinks)
        self.owned = {}
        self.news, self.newest = threading.Condition(), None
        self.seen = set()
        self.stop = set_on_signals()

    def run(self):
        """Works until a signal stops it, then releases every stream."""
        # The watch of the lease must not wait for threads that copy: Python's 5 ms are too long.
        sys.setswitchinterval(0.0005)
        threading.Thread(target=self.watch, daemon=True).start()
        while not self.stop.is_set():
            with self.news:
                self.news.wait_for(lambda: self.newest is not None, timeout=LOOK_S)
                newest, self.newest = self.newest, None
            if newest is not None:
                self.obey(*newest)
            for key in list(self.owned):
                self.step(key)
        releases = [self.stop_stream(key, "stopped") for key in list(self.owned)]
        for release in releases:
            release.join(timeout=2)

    def watch(self):
        """Keeps the newest lease. Runs beside the work, so that neither waits for the other."""
        while True:
            try:
                for asked_ns, lease in self.agent.watch():
                    self.note(asked_ns, lease)
                    with self.news:
                        self.newest = (asked_ns, lease)
                        self.news.notify()
            except (OSError, ValueError):
                pass
            # The agent may be restarting. Streams stay owned until their time has ended.
            time.sleep(0.05)

    def note(self, asked_ns, lease):
        """Writes down the tokens that are new, and the state of the lease."""
        at = {"at_ns": clock_ns(), "wall_us": time.time_ns() // 1000}
        pool = lease["pool"]
        grants = [(None, None, pool["token"])] if pool["token"] else []
        grants += [(s["set"], s["stream"], s["token"]) for s in lease["streams"]]
        for set_name, stream, token in grants:
            if (set_name, stream, token) not in self.seen:
                self.seen.add((set_name, stream, token))
                self.journal.write("seen", set=set_name, stream=stream, token=token, **at)
        self.journal.write(
            "lease",
            asked_ns=asked_ns,
            connected=lease["connected"],
            draining=lease["draining"],
            pool=pool["size"],
            until_ns=until(asked_ns, pool),
            streams=len(lease["streams"]),
            **at,
        )

    def obey(self, asked_ns, lease):
        """Starts, keeps and stops streams as the lease says."""
        listed = {}
        for stream in lease["streams"]:
            listed[stream["set"], stream["stream"]] = stream
        for key in list(self.owned):
            if key not in listed:
                self.end(key, "withdrawn")
        for key, stream in listed.items():
            own = self.owned.get(key)
            if own is not None and own.token != stream["token"]:
                self.end(key, "replaced")
                own = None
            if stream["state"] == "revoked":
                if not own:
                    self.release(key, stream["token"])
                else:
                    self.stop_stream(key, "revoked")
            elif not own:
                self.begin(key, stream["token"], asked_ns, until(asked_ns, stream))
            else:
                own.until_ns = until(asked_ns, stream)

    def begin(self, key, token, asked_ns, until_ns):
        """Takes a stream up where its last owner stopped; the sink knows where that was."""
        if until_ns is not None and clock_ns() >= until_ns:
            return
        fields = {"set": key[0], "stream": key[1], "token": token}
        self.journal.write("own_start", asked_ns=asked_ns, until_ns=until_ns, **fields)
        name = quote(key[1], safe="")
        try:
            sink = Sink(self.sinks / f"{name}.jsonl", self.journal.worker, token)
        except Fenced as fenced:
            self.journal.write("own_end", why=f"fenced: {fenced}", **fields)
            self.release(key, token)
            return
        try:
            source = open(self.sources / f"{name}.log", "rb")
        except FileNotFoundError:
            source = None  # It is owned, and there is nothing to copy.
        self.owned[key] = Owned(token, until_ns, source, sink)

    def step(self, key):
        """One look at a stream: stop at its end, or copy what is new."""
        own = self.owned[key]
        try:
            own.copy()
        except Fenced:
            self.stop_stream(key, "fenced")
            return
        if own.over():
            # Nothing was written after that moment: this is when owning ended.
            self.end(key, "expired", at_ns=own.until_ns)

    def stop_stream(self, key, why):
        """Stops a stream, and only then notifies the agent."""
        token = self.owned[key].token
        self.end(key, why)
        return self.release(key, token)

    def end(self, key, why, at_ns=None):
        """Stops a stream: nothing is written for it after this."""
        own = self.owned.pop(key)
        own.sink.close()
        if own.source is not None:
            own.source.close()
        fields = {"set": key[0], "stream": key[1], "token": own.token}
        self.journal.write("own_end", at_ns=at_ns, why=why, **fields)

    def release(self, key, token):
        """Releases a stream at the agent, in a thread: other streams do not wait."""

        def release():
            for _ in range(20):
                try:
                    return self.agent.release_stream(key[0], key[1], token)
                except Refused:
                    return None  # It is no longer held: nothing is left to release.
                except OSError:
                    time.sleep(0.1)
            return None

        thread = threading.Thread(target=release, daemon=True)
        thread.start()
        return thread


def until(asked_ns, lease):
    """When a lease ends by this process's clock; None where it does not end by time."""
    valid_for_ms = lease.get("valid_for_ms")
    return asked_ns + int(valid_for_ms) * 1_000_000 if valid_for_ms is not None else None


def run(args):
    """Works with the options that `main` reads."""
    exit_with(args.exit_with)
    agent = Agent()
    tell_start(agent)
    journal = Journal(Path(args.journal, f"{args.worker}.streams.jsonl"), args.worker)
    journal.write("watching", pid=os.getpid())
    StreamWorker(agent, args.sources, args.sink, journal).run()


def main():
    run(arguments("Copies the streams that its lease gives it.", "sources", "sink"))


if __name__ == "__main__":
    main()
