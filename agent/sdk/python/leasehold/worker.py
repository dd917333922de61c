"""The worker's side of its leases: jobs to run, streams and bindings to own, and the end of all."""

from __future__ import annotations

import atexit
import logging
import math
import threading
import uuid
from types import TracebackType
from typing import Any, Callable, Iterator, List, Optional, Tuple, Type

from . import clock
from .agent import Agent
from .bindings import Binding
from .errors import Closed, Draining, LeaseholdError, Refused
from .jobs import Job, Jobs
from .link import PAUSE_MAX_S, PAUSE_MIN_S, Kinds, Link
from .messages import Lease
from .owned import NS, Key, Own, Owned, Owning
from .streams import Stream

LOG = logging.getLogger("leasehold")
# How long `close` waits for what the agent has not confirmed.
CLOSE_S = 2.0
# How long one whose handler has failed is kept before it is released: the next owner,
# this worker perhaps, fails no faster than this.
FAILED_S = 1.0
# Within how long a worker says again that it lives, and how much more often it does.
BEAT_WITHIN_S, BEAT_WITHIN_MIN_S = 30.0, 1.0
BEATS_WITHIN = 3
# How long `close` waits until the agent knows that no further beat comes.
LAST_BEAT_S = 1.0


def _is_seconds(value: object, least: float = 0.0) -> bool:
    return isinstance(value, (int, float)) and least <= value < math.inf


class Worker:
    """A worker, from its start to its drain. All methods may be called from any thread.

    `address` is http://HOST:PORT or unix:PATH; without it LEASEHOLD_ADDR, then LEASEHOLD_SOCKET
    say where the agent is, and else it is http://127.0.0.1:7411.

    One process of a worker says that it starts: this one, unless `start` is false. Streams and
    bindings are `lost` so many seconds before their leases end as `stop_before` says, or when a
    tenth of their time is left, whichever is later. After `os.fork` a child makes a Worker of its
    own.

    The worker tells its agent that it lives. If the agent hears nothing for `beat_within` seconds,
    the worker gets no job, and its streams and bindings go to other workers, until it is heard
    again: so a process that hangs keeps nothing. None for a worker that may hold Python's lock for
    longer; then its leases follow its agent. The shortest is 1.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        *,
        start: bool = True,
        stop_before: float = 1.0,
        beat_within: Optional[float] = BEAT_WITHIN_S,
    ) -> None:
        if not _is_seconds(stop_before):
            raise ValueError(f"invalid stop_before {stop_before!r}: use 0 or more seconds")
        if beat_within is not None and not _is_seconds(beat_within, BEAT_WITHIN_MIN_S):
            raise ValueError(f"invalid beat_within {beat_within!r}: use None, or 1 or more seconds")
        self._beat_within = beat_within
        self._agent = Agent(address)
        self._state = threading.Condition()
        self._jobs = Jobs(self._agent, self._state)
        start_id = uuid.uuid4().hex if start else None
        self._link = Link(
            self._agent, self._state, start_id, self._jobs.running, self._consumed, self._apply
        )
        # The watch requests only the kinds that are consumed; another kind needs a new watch.
        self._streams = Owning(Stream, self._state, stop_before, self._link.cut)
        self._bindings = Owning(Binding, self._state, stop_before, self._link.cut)
        self._owning: Tuple[Owning[Any], ...] = (self._streams, self._bindings)
        self._lease: Optional[Lease] = None
        self._closed = False
        self._threads: List[threading.Thread] = []
        works: List[Callable[[], None]] = [self._link.run, self._notify]
        works.extend(owning.expire_leases for owning in self._owning)
        if beat_within is not None:
            works.append(self._beat)
        for work in works:
            name = f"leasehold-{work.__name__.strip('_')}"
            self._threads.append(threading.Thread(target=work, name=name, daemon=True))
        self._beats = self._threads[-1] if beat_within is not None else None
        for thread in self._threads:
            thread.start()
        # What ended just before the process exits is still reported.
        atexit.register(self.close)

    @property
    def lease(self) -> Optional[Lease]:
        """The newest lease; None before the first. It lists streams and bindings
        once `streams` and `bindings` were called."""
        return self._lease

    @property
    def draining(self) -> bool:
        """Whether the worker drains."""
        return self._jobs.draining

    def job(self, id: Optional[str] = None, wait: Optional[float] = None) -> Job:
        """Waits for a slot and gives the job that may run now: `with worker.job() as job:`.

        Waits for ever, or for `wait` seconds. Raises Draining when the worker drains, Refused
        where there was no slot in time or the id makes no sense, Unreachable where the agent
        could not be asked in time, Closed, ValueError for an id that runs already, and TypeError
        for an id that is no text and a `wait` that is no number.
        """
        return self._jobs.begin(self._link, id, wait)

    def jobs(self) -> Iterator[Job]:
        """One job after another, each ended before the next, until the worker drains.

        Each holds its slot from when it is given out. Where there is no work for it, call
        `job.end()` before you wait; or take the work first, and then `job`.
        """
        while True:
            try:
                job = self.job()
            except (Draining, Closed):
                return
            with job:
                yield job

    def run_jobs(self, handler: Callable[[Job], None], concurrency: int) -> None:
        """Calls `handler` for one job after another in `concurrency` threads, as far as the pool
        has slots; returns when the worker has drained and the last handler has returned.

        A job whose handler fails is logged, and ends like any other. A handler without work calls
        `job.end()` before it waits: each job holds its slot from the handler's begin.
        """
        if concurrency < 1:
            raise ValueError(f"invalid concurrency {concurrency}: use 1 or more")
        names = [f"leasehold-jobs-{number}" for number in range(concurrency)]
        threads = [
            threading.Thread(target=self._run_jobs, args=(handler,), name=name) for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def streams(self) -> Iterator[Stream]:
        """Each stream once this worker owns it, until the worker drains.

        A stream is owned until it is released, so it belongs into a `with` block, usually in a
        thread of its own; or see `run_streams`.
        """
        return _each(self._streams)

    def bindings(self) -> Iterator[Binding]:
        """Each share of a pipeline's node once this worker owns it, until the worker drains.

        A binding is owned until it is released, like a stream; or see `run_bindings`.
        """
        return _each(self._bindings)

    def run_streams(self, handler: Callable[[Stream], None]) -> None:
        """Runs `handler(stream)` in a thread for each stream; returns when the worker has drained.

        A handler works until `stream.stopping` is set. When it returns, the stream is released.
        """
        _run_each(self.streams(), handler)

    def run_bindings(self, handler: Callable[[Binding], None]) -> None:
        """The same for each binding."""
        _run_each(self.bindings(), handler)

    def drain(self, wait: bool = False) -> int:
        """Begins a drain; says how many jobs run. With `wait`, returns at its end, with the jobs
        that outlived its deadline. The agent is asked until it answers."""
        pause = PAUSE_MIN_S
        while True:
            try:
                return self._agent.drain(wait)
            except OSError as error:
                LOG.debug("the agent did not answer the drain: %s", error)
            except Refused as refused:
                if refused.reason != "stopping":
                    raise
            with self._state:
                if self._closed:
                    raise Closed("the worker was closed")
                self._state.wait(pause)
            pause = min(pause * 2, PAUSE_MAX_S)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Ends all of this, once the agent has confirmed everything, or after `timeout` seconds.

        Every loop over jobs, streams and bindings ends. What is still in hand is lost.
        """
        until_ns = clock.now_ns() + int(timeout * NS)
        with self._state:
            self._jobs.closed = True
            for owning in self._owning:
                owning.closed = True
                owning.mark_all_lost()
            self._state.notify_all()
            while self._jobs.unconfirmed or any(
                it.unconfirmed or it.owned_count() for it in self._owning
            ):
                left_s = (until_ns - clock.now_ns()) / NS
                if left_s <= 0 or self._closed:
                    break
                self._state.wait(left_s)
            self._closed = True
            self._state.notify_all()
        self._link.close()
        if self._beats is not None and self._beats is not threading.current_thread():
            self._beats.join(LAST_BEAT_S)
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

    def _run_jobs(self, handler: Callable[[Job], None]) -> None:
        for job in self.jobs():
            try:
                handler(job)
            except Exception:
                LOG.exception("the handler of %s failed", job)

    def _consumed(self) -> Kinds:
        kinds = {"streams": self._streams.consumed, "bindings": self._bindings.consumed}
        return frozenset(kind for kind, consumed in kinds.items() if consumed)

    def _apply(self, asked_ns: int, lease: Lease) -> None:
        with self._state:
            self._lease = lease
            self._jobs.draining = lease.draining
            for owning in self._owning:
                owning.apply(asked_ns, lease)

    def _notify(self) -> None:
        """Sends ends and releases until the agent has confirmed them."""
        pause = PAUSE_MIN_S
        while True:
            with self._state:
                while not (self._link.up and self._has_unconfirmed()):
                    if self._closed:
                        return
                    self._state.wait()
                era = self._link.era
                jobs = list(self._jobs.unconfirmed)
                owned = [(owning, *owed) for owning in self._owning for owed in owning.unconfirmed]
            told = all([self._send_end(job, era) for job in jobs])
            told = all([self._send_release(*owed) for owed in owned]) and told
            if told:
                pause = PAUSE_MIN_S
                continue
            with self._state:
                if self._closed:
                    return
                self._state.wait(pause)
            pause = min(pause * 2, PAUSE_MAX_S)

    def _beat(self) -> None:
        """Tells the agent that this process lives, as long as it does."""
        within_s = self._beat_within or BEAT_WITHIN_S
        while True:
            with self._state:
                while not (self._link.up or self._closed):
                    self._state.wait()
                closed = self._closed
            try:
                # One that has closed takes its promise back: it may have ended well.
                self._agent.beat(0 if closed else int(within_s * 1000))
            except (OSError, LeaseholdError) as error:
                # An agent of an earlier release does not know the call.
                LOG.debug("cannot tell the agent that this worker lives: %s", error)
            if closed:
                return
            with self._state:
                self._state.wait_for(lambda: self._closed, within_s / BEATS_WITHIN)

    def _has_unconfirmed(self) -> bool:
        return bool(self._jobs.unconfirmed) or any(owning.unconfirmed for owning in self._owning)

    def _send_end(self, job_id: str, era: int) -> bool:
        if not self._jobs.may_report_end(job_id):
            return False
        try:
            self._agent.end_job(job_id)
        except (OSError, LeaseholdError) as error:
            if not isinstance(error, Refused) or error.reason != "invalid":
                LOG.debug("cannot report the end of job %s yet: %s", job_id, error)
                return False
        if not self._link.confirm_end(job_id, era):
            return False
        with self._state:
            self._jobs.unconfirmed.pop(job_id, None)
            self._state.notify_all()
        return True

    def _send_release(self, owning: Owning[Any], key: Key, token: str) -> bool:
        try:
            owning.send_release(self._agent, key, token)
        except (OSError, LeaseholdError) as error:
            # What is not held any more needs no release.
            over = isinstance(error, Refused) and error.reason in ("not_held", "invalid")
            if not over:
                LOG.debug("cannot report the release of %s yet: %s", "/".join(key), error)
                return False
        owning.confirm(key, token)
        return True


def _each(owning: Owning[Own]) -> Iterator[Own]:
    while True:
        own = owning.take()
        if not own:
            return
        yield own


def _run_each(all_owned: Iterator[Own], handler: Callable[[Own], None]) -> None:
    threads: List[threading.Thread] = []
    try:
        for own in all_owned:
            threads = [thread for thread in threads if thread.is_alive()]
            name = "/".join(own.key)
            thread = threading.Thread(target=_handle, args=(handler, own), name=name)
            try:
                thread.start()
            except RuntimeError:
                own.release()
                raise
            threads.append(thread)
    finally:
        for thread in threads:
            thread.join()


def _handle(handler: Callable[[Any], None], own: Owned) -> None:
    with own:
        try:
            handler(own)
        except Exception:
            LOG.exception("the handler of %s failed", own)
            own.stopping.wait(FAILED_S)
