"""The errors of this package."""

from __future__ import annotations

from typing import Optional

from .token import Token


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


class StaleToken(LeaseholdError):
    """A store has seen a higher token than that of the write: `name`, which is SET/STREAM or
    PIPELINE/NODE/INDEX, has a later owner. `newer` is None if the store did not return it."""

    def __init__(self, name: str, token: Token, newer: Optional[Token]) -> None:
        if newer is not None:
            # A store of texts has it with leading zeros.
            newer = Token(f"{newer.epoch}.{newer.seq}")
        super().__init__(
            f"token {token} of {name} is stale: the store has {newer or 'a newer one'} of a later "
            "owner; write nothing more and release it"
        )
        self.name = name
        self.token = token
        self.newer = newer


def refusal(reason: str, message: str) -> Refused:
    """The error for a reason that the agent gave."""
    return Draining(message) if reason == "draining" else Refused(reason, message)
