"""The streams and bindings that the worker owns, and until when by its own clock.

Invariant: a lease is handed out at most once under a token, and never to a second owner in this
process before the first has released it. `lost` is set before the lease ends, even if the agent
cannot be reached.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Callable, Dict, Generic, Iterable, Optional, Tuple, Type, TypeVar, Union

from . import clock, fence, messages
from .agent import Agent
from .messages import Lease, StreamLeaseState
from .token import Token

LOG = logging.getLogger("leasehold")
NS, MS = 1_000_000_000, 1_000_000
# A timer of Python's does not count the time that a suspended machine slept, which leases do.
SLEEP_MAX_S = 1.0
# A lease is lost at most the tenth part of its remaining time before its end.
SPARE_DIVISOR = 10

# One of the leases that the agent lists.
Listed = Union[messages.StreamLease, messages.Binding]
# Names what is leased: the parts of its path in the worker API.
Key = Tuple[str, ...]
Self = TypeVar("Self", bound="Owned")
Own = TypeVar("Own", bound="Owned")


class Owned:
    """The base of Stream and Binding. Leaving its `with` block releases it."""

    def __init__(self, owning: Owning[Any], lease: Any) -> None:
        self._owning = owning
        #: The fencing token: send it with every write under the lease.
        self.token = Token(lease.token)
        #: Set when the lease has ended or is about to end: it permits no more writes.
        self.lost = threading.Event()
        #: Set when it is revoked: finish the current work, then release it.
        self.revoked = threading.Event()
        #: Set with either: what a worker waits on between two steps.
        self.stopping = threading.Event()
        #: When to have stopped, by the clock; None where the lease does not end by time.
        self.end_ns: Optional[int] = None
        self._release_ns: Optional[int] = None

    @staticmethod
    def listed(lease: Lease) -> Iterable[Listed]:
        """Those of this kind that a lease lists."""
        raise NotImplementedError

    @staticmethod
    def key_of(lease: Any) -> Key:
        """Names what is leased."""
        raise NotImplementedError

    @staticmethod
    def send_release(agent: Agent, key: Key, token: str) -> None:
        """Reports the release to the agent."""
        raise NotImplementedError

    @property
    def key(self) -> Key:
        """Names what is leased."""
        raise NotImplementedError

    def valid(self) -> bool:
        """Whether anything may be written under it at this moment, by the clock."""
        return not self.lost.is_set() and not self._owning.is_over(self)

    def fence(self, cursor: Any, mark: str = "%s") -> None:
        """Refuses a write in the transaction of `cursor`, if a later owner has written to the
        database. Call it in the transaction of the write, before the write.

        `cursor` is a cursor of a database's driver (PEP 249), `mark` how the driver marks a
        parameter: `%s` for psycopg, `?` for sqlite3. The table is `FENCE_TABLE`. Raises
        StaleToken: roll the transaction back.
        """
        fence.advance(cursor, "/".join(self.key), self.token, mark)

    def check_token(self, newest: str) -> None:
        """Refuses a write to a store that has seen `newest`, the highest token of this stream or
        binding that it keeps. Nobody else may write to the store between that look and the write:
        it is locked, or the write is conditional. Raises StaleToken.
        """
        fence.check("/".join(self.key), self.token, newest)

    def time_left(self) -> Optional[float]:
        """Seconds until `lost`, unless the lease is renewed; None where it does not end."""
        end_ns = self.end_ns
        if self.lost.is_set():
            return 0.0
        return max(0.0, (end_ns - clock.now_ns()) / NS) if end_ns is not None else None

    def release_within(self) -> Optional[float]:
        """Of a revoked one: seconds within which it should be released."""
        at_ns = self._release_ns
        return max(0.0, (at_ns - clock.now_ns()) / NS) if at_ns is not None else None

    def release(self) -> None:
        """Releases it: the token permits no more writes. Idempotent."""
        self._owning.release(self)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'/'.join(self.key)} token {self.token}>"

    # What follows is called with the state held.

    def renew(self, asked_ns: int, lease: Any, spare_ns_max: int) -> None:
        """Applies the newest lease, which was requested at `asked_ns`."""
        if self.lost.is_set():
            return
        self.end_ns = end_ns(asked_ns, lease, spare_ns_max)
        if lease.state is not StreamLeaseState.HELD and not self.revoked.is_set():
            if lease.release_within_ms is not None:
                self._release_ns = asked_ns + lease.release_within_ms * MS
            self.revoked.set()
            self.stopping.set()
        elif lease.state is StreamLeaseState.HELD and self.revoked.is_set():
            # No longer revoked: a new leader may decide otherwise.
            self._release_ns = None
            self.revoked.clear()
            self.stopping.clear()

    def mark_lost(self, why: str) -> None:
        """Marks the lease as lost."""
        if not self.lost.is_set():
            LOG.warning("%r is lost: %s", self, why)
            self.lost.set()
            self.stopping.set()


def end_ns(asked_ns: int, lease: Listed, spare_ns_max: int) -> Optional[int]:
    """When to have stopped: a little before the lease ends."""
    if lease.valid_for_ms is not None:
        until_ns = asked_ns + lease.valid_for_ms * MS
        left_ns = max(0, until_ns - clock.now_ns())
        return until_ns - min(spare_ns_max, left_ns // SPARE_DIVISOR)
    return None


class Owning(Generic[Own]):
    """All of one kind that this worker owns."""

    def __init__(
        self,
        kind: Type[Own],
        state: threading.Condition,
        stop_before: float,
        begun: Callable[[], None],
    ) -> None:
        self._kind, self._state, self._begun = kind, state, begun
        self._spare_ns_max = int(stop_before * NS)
        self._listed: Dict[Key, Tuple[int, Listed]] = {}
        # Held, and neither handed out nor withdrawn.
        self._fresh: Dict[Key, None] = {}
        self._owned: Dict[Key, Own] = {}
        # The highest token of each that was handed out or released.
        self._spent: Dict[Key, Token] = {}
        #: Released, and not yet confirmed: at most one for each that was listed.
        self.unconfirmed: Dict[Tuple[Key, str], None] = {}
        #: Whether this process consumes them.
        self.consumed = False
        self.draining = False
        self.closed = False

    def apply(self, asked_ns: int, lease: Lease) -> None:
        """Takes the newest lease. The caller holds the state."""
        self.draining = lease.draining
        listed_all = self._kind.listed(lease)
        self._listed = {self._kind.key_of(it): (asked_ns, it) for it in listed_all}
        for key, own in self._owned.items():
            listed = self._listed.get(key)
            if not listed or listed[1].token != own.token:
                own.mark_lost("it was withdrawn")
            else:
                own.renew(asked_ns, listed[1], self._spare_ns_max)
        self._fresh.clear()
        for key in self._listed:
            self._offer(key)
        self._state.notify_all()

    def take(self) -> Optional[Own]:
        """Waits for the next one to own; None once the worker drains or is closed."""
        with self._state:
            if not self.consumed:
                self.consumed = True
                self._begun()
                for key in self._listed:
                    self._offer(key)
            while not (self.closed or self.draining):
                for key in list(self._fresh):
                    del self._fresh[key]
                    own = self._hand_out(key)
                    if own is not None:
                        return own
                self._state.wait()
            return None

    def release(self, own: Own) -> None:
        """See `Owned.release`."""
        with self._state:
            if self._owned.get(own.key) is not own:
                return
            del self._owned[own.key]
            own.lost.set()
            own.stopping.set()
            self.unconfirmed[(own.key, own.token)] = None
            if own.key in self._listed:
                self._offer(own.key)
            self._state.notify_all()

    def send_release(self, agent: Agent, key: Key, token: str) -> None:
        """Reports a release to the agent."""
        self._kind.send_release(agent, key, token)

    def confirm(self, key: Key, token: str) -> None:
        """Records that the agent has confirmed the release."""
        with self._state:
            self.unconfirmed.pop((key, token), None)
            self._state.notify_all()

    def is_over(self, own: Own) -> bool:
        """Whether its time is over by the clock, which is then noted."""
        with self._state:
            over = own.end_ns is not None and clock.now_ns() >= own.end_ns
            if over:
                own.mark_lost("it was not renewed")
            return over

    def expire_leases(self) -> None:
        """Ends them in time, whether the agent answers or not, until this is closed."""
        with self._state:
            while not self.closed:
                now_ns = clock.now_ns()
                live = [it for it in self._owned.values() if not it.lost.is_set()]
                ends = [it.end_ns for it in live if it.end_ns is not None and not self.is_over(it)]
                left_s = min(((end - now_ns) / NS for end in ends), default=None)
                self._state.wait(min(left_s, SLEEP_MAX_S) if left_s is not None else None)

    def mark_all_lost(self) -> None:
        """No thread follows the lease any longer. The caller holds the state."""
        for own in self._owned.values():
            own.mark_lost("the worker was closed")

    def owned_count(self) -> int:
        """How many are handed out. The caller holds the state."""
        return len(self._owned)

    def _offer(self, key: Key) -> None:
        """Queues one for the next taker, or releases one that no caller takes any more."""
        _, lease = self._listed[key]
        if not self.consumed or key in self._owned:
            return
        token, spent = Token(lease.token), self._spent.get(key)
        if spent is not None and token <= spent:
            return
        if lease.state is StreamLeaseState.HELD and not self.draining:
            self._fresh[key] = None
        elif lease.state in (StreamLeaseState.HELD, StreamLeaseState.REVOKED):
            self._spent[key] = token
            self.unconfirmed[(key, lease.token)] = None

    def _hand_out(self, key: Key) -> Optional[Own]:
        asked_ns, lease = self._listed[key]
        own = self._kind(self, lease)
        own.renew(asked_ns, lease, self._spare_ns_max)
        if own.end_ns is not None and clock.now_ns() >= own.end_ns:
            # It may be renewed yet: the next lease offers it again.
            return None
        self._owned[key] = own
        self._spent[key] = own.token
        self._state.notify_all()
        return own
