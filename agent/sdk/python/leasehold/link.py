"""The link to the agent: it watches the lease, and connects again when the connection breaks.

Invariant: a worker sees a lease, or asks for a job, only after the agent's present process knows
this start and the running jobs. One process of the agent is one *era*.
"""

from __future__ import annotations

import logging
import threading
from typing import Callable, FrozenSet, Optional, Set

from . import clock
from .agent import Agent, Connection, read_lease
from .errors import LeaseholdError
from .messages import Lease

LOG = logging.getLogger("leasehold")
# Between two attempts to reach the agent.
PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 1.0
# After this long without an agent the log says so.
WARN_AFTER_NS = 3_000_000_000

Apply = Callable[[int, Lease], None]
# The kinds of leases that this process consumes: `streams`, `bindings`.
Kinds = FrozenSet[str]


class Link:
    """Follows the lease in a thread of its own. `state` guards all of a worker's state."""

    def __init__(
        self,
        agent: Agent,
        state: threading.Condition,
        start_id: Optional[str],
        running: Callable[[], Set[str]],
        consumed: Callable[[], Kinds],
        apply: Apply,
    ) -> None:
        self._agent, self._state = agent, state
        self._start_id, self._running, self._apply = start_id, running, apply
        # The agent takes what it shows for what the worker may work on, so it is asked for what
        # is consumed here alone.
        self._consumed = consumed
        self._shown: Kinds = frozenset()
        self._started = not start_id
        self._watch: Optional[Connection] = None
        self._control: Optional[Connection] = None
        # Calls on the control connection, one after another.
        self._calls = threading.Lock()
        # Jobs that ran when this era began: an agent without memory knows their number only.
        self._unnamed: Set[str] = set()
        self._closed = threading.Event()
        # Why the last attempt to reach the agent has failed.
        self._failure: Optional[BaseException] = None
        #: Counts the agent's processes, as far as this worker has met them.
        self.era = 0
        #: Whether this era's process knows this start and its jobs.
        self.up = False

    def run(self) -> None:
        """Follows the lease until the link is closed."""
        pause = PAUSE_MIN_S
        # When to warn; None once the log has said that there is no agent.
        warn_at_ns: Optional[int] = clock.now_ns() + WARN_AFTER_NS
        while not self._closed.is_set():
            try:
                self._follow()
                pause = PAUSE_MIN_S
            except (OSError, LeaseholdError) as error:
                was_up, self._failure = self.up, error
                pause = PAUSE_MIN_S if was_up else min(pause * 2, PAUSE_MAX_S)
                if was_up:
                    warn_at_ns = clock.now_ns() + WARN_AFTER_NS
                LOG.debug("cannot connect to the agent at %s: %s", self._agent.address, error)
                if warn_at_ns is not None and clock.now_ns() >= warn_at_ns:
                    LOG.warning("%s; still trying", self.outage())
                    warn_at_ns = None
            except Exception:
                # A worker whose link has ended for good would never hear of a lease's end.
                LOG.exception("the connection to the agent at %s failed", self._agent.address)
            finally:
                self._down()
            self._closed.wait(pause)

    def outage(self, failure: Optional[BaseException] = None) -> str:
        """Why the agent does not answer, and what to do."""
        why = failure or self._failure or "it has not answered yet"
        return f"cannot reach the agent at {self._agent.address}: {why} ({self._agent.advice()})"

    def close(self) -> None:
        """Ends the link, for good."""
        self._closed.set()
        self.cut()

    def cut(self) -> None:
        """Ends this era: the link is made again."""
        with self._state:
            connections = (self._watch, self._control)
        for connection in connections:
            if connection is not None:
                connection.cut()

    def confirm_end(self, job_id: str, era: int) -> bool:
        """Records that the process of `era` has confirmed a job's end. False if a later process has
        taken over, which must confirm it as well. A process without ids gets the lower number."""
        with self._state:
            if self.era != era:
                return False
            if job_id not in self._unnamed:
                return True
            self._unnamed.discard(job_id)
            control, left = self._control, len(self._unnamed)
        try:
            if control is not None:
                # No new connection: it might reach a process that knows less than this one.
                self._announce_start(control, left)
        except (OSError, LeaseholdError):
            with self._state:
                broken = self._control is control
            if broken:
                self.cut()
        return True

    def _follow(self) -> None:
        if not self._started and self._start_id is not None:
            # Before the first look: what the previous process owned must not be seen as ours.
            self._agent.start(self._start_id, 0)
            self._started = True
        watch = self._agent.connect()
        with self._state:
            self._watch = watch
            shown = self._shown = self._consumed()
        asked_ns = clock.now_ns()
        leases = watch.watch(shown)
        control = self._agent.connect()
        with self._state:
            self._control = control
            self.era += 1
            self._unnamed = set(self._running())
            running = len(self._unnamed)
        # It may be another process than before, with or without a memory: this is right for both.
        self._announce_start(control, running)
        control_asked_ns = clock.now_ns()
        with self._calls:
            first = read_lease(control, shown)
        with self._state:
            self.up = True
            LOG.info("connected to the agent at %s (era %d)", self._agent.address, self.era)
        self._apply(control_asked_ns, first)
        for lease in leases:
            # What was on its way before the start was told speaks of another start.
            if lease.version >= first.version:
                self._apply(asked_ns, lease)
            if self._closed.is_set():
                return

    def _announce_start(self, control: Connection, running: int) -> None:
        if not self._start_id:
            return
        with self._calls:
            control.call("POST", "/v1/start", {"start_id": self._start_id, "running": running})

    def _down(self) -> None:
        with self._state:
            ended = self._closed.is_set() or self._shown != self._consumed()
            if self.up and not ended:
                LOG.warning("the connection to the agent at %s is lost", self._agent.address)
            connections = (self._watch, self._control)
            self._watch = self._control = None
            self.up = False
            self._state.notify_all()
        for connection in connections:
            if connection is not None:
                connection.close()
