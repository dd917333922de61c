"""The errors of this package."""

from __future__ import annotations


class LeaseholdError(Exception):
    """The base of all errors of this package."""


class Refused(LeaseholdError):
    """The agent refused. `reason` is one of the API's words: no_slot, no_lease, invalid, ..."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class Draining(Refused):
    """The worker is draining: no new job will start."""

    def __init__(self, message: str = "the worker is draining: no new job may start") -> None:
        super().__init__("draining", message)


class Unreachable(LeaseholdError):
    """The agent did not answer within the caller's time limit."""


class Closed(LeaseholdError):
    """This Worker was closed."""


def refusal(reason: str, message: str) -> Refused:
    """The error for a reason that the agent gave."""
    return Draining(message) if reason == "draining" else Refused(reason, message)
