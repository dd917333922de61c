"""Jobs: the slots that run, and the ends that the agent has not confirmed yet.

Invariant: a job runs only after the agent's present process has admitted it, or learnt of it when
its era began. An end is repeated until the agent confirms it. While the agent may still handle a
request for a job, neither the job's end nor a second request is sent: they travel on connections of
their own, and a request that the agent handles last would admit a job that has ended.
"""

from __future__ import annotations

import math
import threading
import uuid
from types import TracebackType
from typing import Dict, Optional, Set, Type

from . import clock
from .agent import ANSWER_S, Agent, Connection
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
        self._state = state
        #: Whom requests for slots are sent to.
        self.agent = agent
        #: One is taken by each request for a slot until the agent cannot handle it any more.
        self.turns = threading.BoundedSemaphore(SLOT_REQUESTS_MAX)
        self._pending: Set[str] = set()
        self._running: Dict[str, Job] = {}
        #: Ended, and not yet confirmed: never more than ran at once when the agent went away, and
        #: those that were given up, each with its last request.
        self.unconfirmed: Dict[str, Optional[SlotRequest]] = {}
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
                    self.unconfirmed[job_id] = pending.request
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

    def may_report_end(self, job_id: str) -> bool:
        """Whether the unconfirmed end of this job may be sent now."""
        with self._state:
            request = self.unconfirmed.get(job_id)
            return request is None or request.is_over()


class SlotRequest:
    """One request for a slot, for which its sender has taken a turn."""

    def __init__(self, turns: threading.BoundedSemaphore) -> None:
        self._turns: Optional[threading.BoundedSemaphore] = turns
        #: Of this request alone, once it is open.
        self.connection: Optional[Connection] = None

    def give_up(self) -> None:
        """There will be no answer. The request is over once the agent has ended its connection."""
        if self.connection is None:
            self.end()
        else:
            self.connection.hang_up()

    def is_over(self) -> bool:
        """Whether the agent cannot handle it any more. The caller holds the state."""
        if self.connection is not None and self.connection.has_ended():
            self.end()
        return self._turns is None

    def end(self) -> None:
        """The agent has answered it, or has ended its connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self._turns is not None:
            self._turns.release()
            self._turns = None


class _PendingJob:
    """One job on its way to its slot."""

    def __init__(self, jobs: Jobs, link: Link, job_id: str, until_ns: Optional[int]) -> None:
        self._jobs, self._link, self._job_id = jobs, link, job_id
        self._state = jobs._state
        self._until_ns = until_ns
        self._pause_s = PAUSE_MIN_S
        # Why the last request got no answer.
        self._error: Optional[OSError] = None
        #: Whether the agent may have admitted it without our knowing.
        self.unsure = False
        #: The last request.
        self.request: Optional[SlotRequest] = None

    def admit(self) -> Job:
        """Asks until there is a yes; raises for a no, and when the time is over."""
        while True:
            era = self._wait_for_link()
            if not self._jobs.turns.acquire(timeout=self._left_s(PAUSE_MAX_S)):
                if self._is_over():
                    raise Refused("no_slot", f"{SLOT_REQUESTS_MAX} jobs wait before this one")
                continue
            try:
                token = self._ask()
            except Refused as refused:
                self.unsure = False
                self._consider(refused)
            except OSError as error:
                self._error = error
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

    def _ask(self) -> Token:
        """Asks the agent once."""
        request = self.request = SlotRequest(self._jobs.turns)
        try:
            wait_ms = self._wait_ms()
            connection = self._jobs.agent.connect(ANSWER_S + wait_ms / 1000)
            self.unsure, request.connection = True, connection
            token = connection.begin_job(self._job_id, wait_ms)
        except Refused:
            request.end()
            raise
        except BaseException:
            request.give_up()
            raise
        request.end()
        return token

    def _wait_for_link(self) -> int:
        """Waits until the agent may be asked; the era in which it is."""
        with self._state:
            while True:
                if self._jobs.closed:
                    raise Closed("the worker was closed")
                if self._jobs.draining:
                    raise Draining()
                is_answered = self.request is None or self.request.is_over()
                # An end of the same id that is still owed would end this one.
                is_settled = is_answered and self._job_id not in self._jobs.unconfirmed
                if self._link.up and is_settled:
                    return self._link.era
                if self._is_over():
                    raise Unreachable(self._link.outage(self._error))
                # Nothing wakes this thread when a connection ends.
                self._state.wait(self._left_s(PAUSE_MAX_S if is_answered else PAUSE_MIN_S))

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
