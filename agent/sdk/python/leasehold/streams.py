"""A stream while the worker owns it."""

from __future__ import annotations

from typing import Any, Tuple

from . import messages
from .agent import Agent
from .owned import Key, Owned, Owning


class Stream(Owned):
    """A stream while this worker owns it. Leaving its `with` block lets it go."""

    def __init__(self, owning: Owning[Any], lease: messages.StreamLease) -> None:
        super().__init__(owning, lease)
        #: The stream set.
        self.set = lease.set
        #: The stream's name.
        self.name = lease.stream

    @property
    def key(self) -> Key:
        """The set and the stream's name."""
        return (self.set, self.name)

    @staticmethod
    def listed(lease: messages.Lease) -> Tuple[messages.StreamLease, ...]:
        """The streams of a lease."""
        return lease.streams

    @staticmethod
    def key_of(lease: messages.StreamLease) -> Key:
        """The set and the stream's name."""
        return (lease.set, lease.stream)

    @staticmethod
    def send_release(agent: Agent, key: Key, token: str) -> None:
        """Reports the release to the agent."""
        agent.release("streams", key, token)
