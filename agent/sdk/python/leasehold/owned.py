"""What the worker owns, streams and bindings alike, and until when by its own clock.

Invariant: one is handed out at most once under a token, and its next owner in this process comes
after its last one has let go. `lost` is set before the lease ends, heard or unheard.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Callable, Dict, Generic, Iterable, Optional, Tuple, Type, TypeVar, Union

from . import clock, messages
from .agent import Agent
from .messages import Lease, StreamLeaseState

LOG = logging.getLogger("leasehold")
NS, MS = 1_000_000_000, 1_000_000
# A timer of Python's does not count the time that a suspended machine slept, which leases do.
SLEEP_MAX_S = 1.0
# The part of what is left of a lease that is kept for stopping in time.
SPARE = 10

# One of the leases that the agent lists.
Listed = Union[messages.StreamLease, messages.Binding]
# Names what is leased: the parts of its path in the worker API.
Key = Tuple[str, ...]
Order = Tuple[int, int]
Self = TypeVar("Self", bound="Owned")
Own = TypeVar("Own", bound="Owned")


def token_order(token: str) -> Order:
    """A token EPOCH.SEQ as a comparable value. Raises ValueError for an invalid token."""
    epoch, seq = token.split(".")
    return int(epoch), int(seq)


class Owned:
    """What a Stream and a Binding have in common. Leaving its `with` block lets it go."""

    def __init__(self, owning: Owning[Any], lease: Any) -> None:
        self._owning = owning
        #: The fencing token, EPOCH.SEQ: goes with everything that is written under the lease.
        self.token: str = lease.token
        #: Set when the lease is over, or will be in a moment: nothing may be written any more.
        self.lost = threading.Event()
        #: Set when it is revoked: finish what is in hand, then let go.
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
    def tell_release(agent: Agent, key: Key, token: str) -> None:
        """Reports the release to the agent."""
        raise NotImplementedError

    @property
    def key(self) -> Key:
        """Names what is leased."""
        raise NotImplementedError

    def valid(self) -> bool:
        """Whether anything may be written under it at this moment, by the clock."""
        return not self.lost.is_set() and not self._owning.is_over(self)

    def time_left(self) -> Optional[float]:
        """Seconds until `lost`, unless the lease is renewed; None where it does not end."""
        end_ns = self.end_ns
        if self.lost.is_set():
            return 0.0
        return max(0.0, (end_ns - clock.now_ns()) / NS) if end_ns is not None else None

    def release_within(self) -> Optional[float]:
        """Of a revoked one: seconds within which it should be let go."""
        at_ns = self._release_ns
        return max(0.0, (at_ns - clock.now_ns()) / NS) if at_ns is not None else None

    def release(self) -> None:
        """Lets it go: nothing more is written under this token. Twice is once."""
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
        """What the agent says of it, asked at `asked_ns`."""
        if self.lost.is_set():
            return
        self.end_ns = end_ns(asked_ns, lease, spare_ns_max)
        if lease.state is not StreamLeaseState.HELD and not self.revoked.is_set():
            if lease.release_within_ms is not None:
                self._release_ns = asked_ns + lease.release_within_ms * MS
            self.revoked.set()
            self.stopping.set()
        elif lease.state is StreamLeaseState.HELD and self.revoked.is_set():
            # It is to be kept after all: a new leader may want it so.
            self._release_ns = None
            self.revoked.clear()
            self.stopping.clear()

    def lose(self, why: str) -> None:
        """The lease is over."""
        if not self.lost.is_set():
            LOG.warning("%r is lost: %s", self, why)
            self.lost.set()
            self.stopping.set()


def end_ns(asked_ns: int, lease: Listed, spare_ns_max: int) -> Optional[int]:
    """When to have stopped: a little before the lease ends."""
    if lease.valid_for_ms is not None:
        until_ns = asked_ns + lease.valid_for_ms * MS
        left_ns = max(0, until_ns - clock.now_ns())
        return until_ns - min(spare_ns_max, left_ns // SPARE)
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
        self._in_hand: Dict[Key, Own] = {}
        # The highest token of each that was handed out or released.
        self._spent: Dict[Key, Order] = {}
        #: Released, and not yet confirmed: at most one for each that was listed.
        self.owed: Dict[Tuple[Key, str], None] = {}
        #: Whether this process consumes them.
        self.consumed = False
        self.draining = False
        self.closed = False

    def obey(self, asked_ns: int, lease: Lease) -> None:
        """Takes the newest lease. The caller holds the state."""
        self.draining = lease.draining
        listed_all = self._kind.listed(lease)
        self._listed = {self._kind.key_of(it): (asked_ns, it) for it in listed_all}
        for key, own in self._in_hand.items():
            listed = self._listed.get(key)
            if not listed or listed[1].token != own.token:
                own.lose("it was withdrawn")
            else:
                own.renew(asked_ns, listed[1], self._spare_ns_max)
        self._fresh.clear()
        for key in self._listed:
            self._offer(key)
        self._state.notify_all()

    def take(self) -> Optional[Own]:
        """The next one to own, once there is one; None when there will be none any more."""
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
            if self._in_hand.get(own.key) is not own:
                return
            del self._in_hand[own.key]
            own.lost.set()
            own.stopping.set()
            self.owed[(own.key, own.token)] = None
            if own.key in self._listed:
                self._offer(own.key)
            self._state.notify_all()

    def tell_release(self, agent: Agent, key: Key, token: str) -> None:
        """Reports a release to the agent."""
        self._kind.tell_release(agent, key, token)

    def heard(self, key: Key, token: str) -> None:
        """The agent knows that it was let go."""
        with self._state:
            self.owed.pop((key, token), None)
            self._state.notify_all()

    def is_over(self, own: Own) -> bool:
        """Whether its time is over by the clock, which is then noted."""
        with self._state:
            over = own.end_ns is not None and clock.now_ns() >= own.end_ns
            if over:
                own.lose("it was not renewed")
            return over

    def keep_time(self) -> None:
        """Ends them in time, whether the agent answers or not, until this is closed."""
        with self._state:
            while not self.closed:
                now_ns = clock.now_ns()
                live = [it for it in self._in_hand.values() if not it.lost.is_set()]
                ends = [it.end_ns for it in live if it.end_ns is not None and not self.is_over(it)]
                left_s = min(((end - now_ns) / NS for end in ends), default=None)
                self._state.wait(min(left_s, SLEEP_MAX_S) if left_s is not None else None)

    def lose_all(self) -> None:
        """No thread follows the lease any longer. The caller holds the state."""
        for own in self._in_hand.values():
            own.lose("the worker was closed")

    def in_hand(self) -> int:
        """How many are handed out. The caller holds the state."""
        return len(self._in_hand)

    def _offer(self, key: Key) -> None:
        """Queues one for the next taker, or releases one that no caller took."""
        _, lease = self._listed[key]
        if not self.consumed or key in self._in_hand:
            return
        order = token_order(lease.token)
        if order <= self._spent.get(key, (-1, -1)):
            return
        if lease.state is StreamLeaseState.HELD:
            self._fresh[key] = None
        elif lease.state is StreamLeaseState.REVOKED:
            self._spent[key] = order
            self.owed[(key, lease.token)] = None

    def _hand_out(self, key: Key) -> Optional[Own]:
        asked_ns, lease = self._listed[key]
        own = self._kind(self, lease)
        own.renew(asked_ns, lease, self._spare_ns_max)
        if own.end_ns is not None and clock.now_ns() >= own.end_ns:
            # It may be renewed yet: the next lease offers it again.
            return None
        self._in_hand[key] = own
        self._spent[key] = token_order(lease.token)
        self._state.notify_all()
        return own
