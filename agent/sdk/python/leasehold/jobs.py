"""Jobs: the slots that run, and the ends that the agent has not confirmed yet.

Invariant: a job runs only after the agent's present process has admitted it, or learnt of it when
its era began. An end is repeated until the agent confirms it.
"""

from __future__ import annotations

import math
import threading
import uuid
from types import TracebackType
from typing import Dict, Optional, Set, Type

from . import clock
from .agent import Agent
from .errors import Closed, Draining, Refused, Unreachable
from .link import PAUSE_MAX_S, PAUSE_MIN_S, Link
from .token import Token

# How long the agent may hold one request for a slot.
WAIT_MS_MAX = 10_000
# At most this many requests for a slot are in flight; more wait here. The agent accepts 1024
# connections, and the end of a job must not wait behind requests for slots.
SLOT_REQUESTS_MAX = 256
NS = 1_000_000_000


class Job:
    """A job that may run. It ends with its `with` block, or by `end`."""

    def __init__(self, jobs: Jobs, job_id: str, token: Token) -> None:
        self._jobs = jobs
        #: Its id.
        self.id = job_id
        #: The pool lease's token.
        self.token = token

    def end(self) -> None:
        """Ends the job. Returns at once; the SDK repeats it until the agent has confirmed."""
        self._jobs.end(self)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<Job {self.id} token {self.token}>"


class Jobs:
    """All jobs of this worker."""

    def __init__(self, agent: Agent, state: threading.Condition) -> None:
        self._agent, self._state = agent, state
        self._pending: Set[str] = set()
        self._turns = threading.BoundedSemaphore(SLOT_REQUESTS_MAX)
        self._running: Dict[str, Job] = {}
        #: Ended, and not yet confirmed: never more than ran at once when the agent went away.
        self.unconfirmed: Dict[str, None] = {}
        self.draining = False
        self.closed = False

    def running(self) -> Set[str]:
        """The ids of jobs that run. The caller holds the state."""
        return set(self._running)

    def begin(self, link: Link, job_id: Optional[str], wait: Optional[float]) -> Job:
        """See `Worker.job`."""
        job_id = job_id if job_id is not None else uuid.uuid4().hex
        if not isinstance(job_id, str):
            raise TypeError(f"invalid job id {job_id!r}: use a text, or leave it out")
        if wait is not None and not (isinstance(wait, (int, float)) and math.isfinite(wait)):
            raise TypeError(f"invalid wait {wait!r}: use seconds, or None to wait for ever")
        until_ns = clock.now_ns() + int(wait * NS) if wait is not None else None
        with self._state:
            if job_id in self._running or job_id in self._pending:
                raise ValueError(f"the job {job_id!r} already runs or waits to run: use another id")
            self._pending.add(job_id)
        pending = _PendingJob(self, link, job_id, until_ns)
        try:
            return pending.admit()
        except BaseException:
            with self._state:
                if pending.unsure:
                    self.unconfirmed[job_id] = None
                    self._state.notify_all()
            raise
        finally:
            with self._state:
                self._pending.discard(job_id)

    def end(self, job: Job) -> None:
        """Ends the job and frees its slot. Idempotent."""
        with self._state:
            if self._running.get(job.id) is job:
                del self._running[job.id]
                self.unconfirmed[job.id] = None
                self._state.notify_all()

    def put(self, job: Job) -> None:
        """The job runs from now on. The caller holds the state."""
        self._running[job.id] = job

    def ask(self, job_id: str, wait_ms: int) -> Token:
        """Asks the agent once."""
        with self._turns:
            return self._agent.begin_job(job_id, wait_ms)


class _PendingJob:
    """One job on its way to its slot."""

    def __init__(self, jobs: Jobs, link: Link, job_id: str, until_ns: Optional[int]) -> None:
        self._jobs, self._link, self._job_id = jobs, link, job_id
        self._state = jobs._state
        self._until_ns = until_ns
        self._pause_s = PAUSE_MIN_S
        #: Whether the agent may have admitted it without our knowing.
        self.unsure = False

    def admit(self) -> Job:
        """Asks until there is a yes; raises for a no, and when the time is over."""
        while True:
            era = self._wait_for_link()
            wait_ms = self._wait_ms()
            try:
                self.unsure = True
                token = self._jobs.ask(self._job_id, wait_ms)
            except Refused as refused:
                self.unsure = False
                self._consider(refused)
            except OSError as error:
                if self._is_over():
                    raise Unreachable(self._link.outage(error)) from error
                self._pause()
            else:
                with self._state:
                    # A process that took over meanwhile was not told of this job: ask it.
                    if self._link.era == era:
                        job = Job(self._jobs, self._job_id, token)
                        self._jobs.put(job)
                        return job

    def _wait_for_link(self) -> int:
        """Waits until the agent may be asked; the era in which it is."""
        with self._state:
            while True:
                if self._jobs.closed:
                    raise Closed("the worker was closed")
                if self._jobs.draining:
                    raise Draining()
                # An end of the same id that is still owed would end this one.
                if self._link.up and self._job_id not in self._jobs.unconfirmed:
                    return self._link.era
                if self._is_over():
                    raise Unreachable(self._link.outage())
                self._state.wait(self._left_s(PAUSE_MAX_S))

    def _consider(self, refused: Refused) -> None:
        if refused.reason in ("draining", "invalid") or self._is_over():
            raise refused
        # The agent has let us wait for a slot; for anything else we wait ourselves.
        if refused.reason not in ("no_slot", "no_lease", "failing"):
            self._pause()

    def _pause(self) -> None:
        with self._state:
            self._state.wait(self._left_s(self._pause_s))
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)

    def _is_over(self) -> bool:
        return self._until_ns is not None and clock.now_ns() >= self._until_ns

    def _left_s(self, most_s: float) -> float:
        if self._until_ns is not None:
            return max(0.0, min(most_s, (self._until_ns - clock.now_ns()) / NS))
        return most_s

    def _wait_ms(self) -> int:
        return int(self._left_s(WAIT_MS_MAX / 1000) * 1000)
