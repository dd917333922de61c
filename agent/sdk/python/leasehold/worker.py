"""The worker's side of its leases: jobs to run, streams to own, and the end of both."""

from __future__ import annotations

import atexit
import logging
import threading
import uuid
from types import TracebackType
from typing import Callable, Iterator, List, Optional, Type

from . import clock
from .agent import Agent
from .errors import Closed, Draining, LeaseholdError, Refused
from .jobs import Job, Jobs
from .link import PAUSE_MAX_S, PAUSE_MIN_S, Link
from .messages import Lease
from .streams import NS, Stream, Streams

LOG = logging.getLogger("leasehold")
# How long `close` waits for what is still to be told.
CLOSE_S = 2.0
# How long a stream whose handler has failed is kept before it is let go: whoever gets it next,
# this worker perhaps, fails no faster than this.
FAILED_S = 1.0


class Worker:
    """A worker, from its start to its drain. All methods may be called from any thread.

    `address` is http://HOST:PORT or unix:PATH; without it LEASEHOLD_ADDR, then LEASEHOLD_SOCKET
    say where the agent is, and else it is http://127.0.0.1:7411.

    One process of a worker says that it starts: this one, unless `start` is false. Streams are
    `lost` so many seconds before their leases end as `stop_before` says, or when a tenth of
    their time is left, whichever is later. After `os.fork` a child makes a Worker of its own.
    """

    def __init__(
        self, address: Optional[str] = None, *, start: bool = True, stop_before: float = 1.0
    ) -> None:
        self._agent = Agent(address)
        self._state = threading.Condition()
        self._jobs = Jobs(self._agent, self._state)
        self._streams = Streams(self._state, stop_before)
        start_id = uuid.uuid4().hex if start else None
        self._link = Link(self._agent, self._state, start_id, self._jobs.running, self._obey)
        self._lease: Optional[Lease] = None
        self._closed = False
        self._threads: List[threading.Thread] = []
        for work in (self._link.run, self._tell, self._streams.keep_time):
            name = f"leasehold-{work.__name__.strip('_')}"
            self._threads.append(threading.Thread(target=work, name=name, daemon=True))
        for thread in self._threads:
            thread.start()
        # What ended just before the process does is still told.
        atexit.register(self.close)

    @property
    def lease(self) -> Optional[Lease]:
        """The newest lease that was heard of; None before the first."""
        return self._lease

    @property
    def draining(self) -> bool:
        """Whether the worker drains."""
        return self._jobs.draining

    def job(self, id: Optional[str] = None, wait: Optional[float] = None) -> Job:
        """Waits for a slot and gives the job that may run now: `with worker.job() as job:`.

        Waits for ever, or for `wait` seconds. Raises Draining when the worker drains, Refused
        where there was no slot in time or the id makes no sense, Unreachable where the agent
        could not be asked in time, Closed, and ValueError for an id that runs already.
        """
        return self._jobs.begin(self._link, id, wait)

    def jobs(self) -> Iterator[Job]:
        """One job after another, each ended before the next, until the worker drains."""
        while True:
            try:
                job = self.job()
            except (Draining, Closed):
                return
            with job:
                yield job

    def streams(self) -> Iterator[Stream]:
        """Each stream once this worker owns it, until the worker drains.

        A stream is owned until it is released, so it belongs into a `with` block, usually in a
        thread of its own; or see `run_streams`.
        """
        while True:
            stream = self._streams.take()
            if stream is None:
                return
            yield stream

    def run_streams(self, handler: Callable[[Stream], None]) -> None:
        """Runs `handler(stream)` in a thread for each stream; returns when the worker has drained.

        A handler works until `stream.stopping` is set. When it returns, the stream is released.
        """
        threads: List[threading.Thread] = []
        try:
            for stream in self.streams():
                threads = [thread for thread in threads if thread.is_alive()]
                name = f"{stream.set}/{stream.name}"
                thread = threading.Thread(target=self._handle, args=(handler, stream), name=name)
                try:
                    thread.start()
                except RuntimeError:
                    stream.release()
                    raise
                threads.append(thread)
        finally:
            for thread in threads:
                thread.join()

    def drain(self, wait: bool = False) -> int:
        """Begins a drain; says how many jobs run. With `wait`, returns at its end, with the jobs
        that outlived its deadline. The agent is asked until it answers."""
        pause = PAUSE_MIN_S
        while True:
            try:
                return self._agent.drain(wait)
            except OSError as error:
                LOG.debug("the agent did not answer to the drain: %s", error)
            except Refused as refused:
                if refused.reason != "stopping":
                    raise
            with self._state:
                if self._closed:
                    raise Closed("the worker was closed")
                self._state.wait(pause)
            pause = min(pause * 2, PAUSE_MAX_S)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Ends all of this, once what is to be told was told, or after `timeout` seconds.

        Every loop over jobs and streams ends. Streams that are still in hand are lost.
        """
        until_ns = clock.now_ns() + int(timeout * NS)
        with self._state:
            self._jobs.closed = self._streams.closed = True
            self._streams.lose_all()
            self._state.notify_all()
            while self._jobs.owed or self._streams.owed or self._streams.in_hand():
                left_s = (until_ns - clock.now_ns()) / NS
                if left_s <= 0 or self._closed:
                    break
                self._state.wait(left_s)
            self._closed = True
            self._state.notify_all()
        self._link.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _obey(self, asked_ns: int, lease: Lease) -> None:
        with self._state:
            self._lease = lease
            self._jobs.draining = lease.draining
            self._streams.obey(asked_ns, lease)

    def _handle(self, handler: Callable[[Stream], None], stream: Stream) -> None:
        with stream:
            try:
                handler(stream)
            except Exception:
                LOG.exception("the handler of %s failed", stream)
                stream.stopping.wait(FAILED_S)

    def _tell(self) -> None:
        """Tells the agent what is owed, until it has answered to all of it."""
        pause = PAUSE_MIN_S
        while True:
            with self._state:
                while not (self._link.up and (self._jobs.owed or self._streams.owed)):
                    if self._closed:
                        return
                    self._state.wait()
                era = self._link.era
                jobs, streams = list(self._jobs.owed), list(self._streams.owed)
            told = all([self._tell_end(job, era) for job in jobs])
            told = all([self._tell_release(*stream) for stream in streams]) and told
            if told:
                pause = PAUSE_MIN_S
                continue
            with self._state:
                if self._closed:
                    return
                self._state.wait(pause)
            pause = min(pause * 2, PAUSE_MAX_S)

    def _tell_end(self, job_id: str, era: int) -> bool:
        try:
            self._agent.end_job(job_id)
        except (OSError, LeaseholdError) as error:
            if not isinstance(error, Refused) or error.reason != "invalid":
                LOG.debug("the end of job %s was not told: %s", job_id, error)
                return False
        if not self._link.end_heard(job_id, era):
            return False
        with self._state:
            self._jobs.owed.pop(job_id, None)
            self._state.notify_all()
        return True

    def _tell_release(self, set_name: str, stream: str, token: str) -> bool:
        try:
            self._agent.release_stream(set_name, stream, token)
        except (OSError, LeaseholdError) as error:
            # What is not held any more needs no release.
            over = isinstance(error, Refused) and error.reason in ("not_held", "invalid")
            if not over:
                LOG.debug("the release of %s/%s was not told: %s", set_name, stream, error)
                return False
        with self._state:
            self._streams.owed.pop((set_name, stream, token), None)
            self._state.notify_all()
        return True
