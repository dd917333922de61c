"""What can go wrong between a worker and its agent."""

from __future__ import annotations


class LeaseholdError(Exception):
    """The base of all errors of this package."""


class Refused(LeaseholdError):
    """The agent's no. `reason` is one of the API's words: no_slot, no_lease, invalid, ..."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Draining(Refused):
    """The worker drains: no new job starts, ever again."""

    def __init__(self, message: str = "the worker drains: no new job starts") -> None:
        super().__init__("draining", message)


class Unreachable(LeaseholdError):
    """The agent could not be asked within the time that the caller gave."""


class Closed(LeaseholdError):
    """This Worker was closed."""


def refusal(reason: str, message: str) -> Refused:
    """The error for a reason that the agent gave."""
    return Draining(message) if reason == "draining" else Refused(reason, message)
