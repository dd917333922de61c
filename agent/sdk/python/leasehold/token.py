"""Fencing tokens, which compare as numbers."""

from __future__ import annotations

from typing import Tuple


class Token(str):
    """A token, EPOCH.SEQ. It is a text, so it goes into JSON and logs as it is, and it compares by
    its numbers: `Token("1.9") < Token("1.10")`, where the texts compare the other way round.

    The other side of a comparison may be a plain text. Raises ValueError for an invalid token.
    """

    #: The number of the leader's term.
    epoch: int
    #: Counts the grants of a term.
    seq: int

    def __new__(cls, text: str) -> Token:
        epoch, dot, seq = text.partition(".")
        if not (dot and epoch.isdecimal() and seq.isdecimal()):
            raise ValueError(f"invalid token {text!r}: expected EPOCH.SEQ, for example 8.17")
        token = super().__new__(cls, text)
        token.epoch, token.seq = int(epoch), int(seq)
        return token

    def sortable(self) -> str:
        """A text of 41 characters that compares as the token does, for a store with texts only."""
        return f"{self.epoch:020}.{self.seq:020}"

    def __lt__(self, other: str) -> bool:
        return _order(self) < _order(other)

    def __le__(self, other: str) -> bool:
        return _order(self) <= _order(other)

    def __gt__(self, other: str) -> bool:
        return _order(self) > _order(other)

    def __ge__(self, other: str) -> bool:
        return _order(self) >= _order(other)


def _order(token: str) -> Tuple[int, int]:
    whole = token if isinstance(token, Token) else Token(token)
    return whole.epoch, whole.seq
