"""The fence in a store: it refuses a write under a token that is lower than one that the store has
seen. The other SDKs have the same statements, so that their workers may share a store."""

from __future__ import annotations

from typing import Any

from .errors import StaleToken
from .token import Token

#: The table in which a database keeps the highest token of each stream and binding. `fence` reads
#: and writes it. For PostgreSQL, and SQLite from 3.35.
FENCE_TABLE = """\
CREATE TABLE IF NOT EXISTS leasehold_fence (stream TEXT PRIMARY KEY, token TEXT NOT NULL)"""

# Returns no row where the table has a higher token. The row stays locked until the transaction
# ends, so that a later owner's write waits for this one.
_ADVANCE = """INSERT INTO leasehold_fence (stream, token) VALUES ($1, $2)
    ON CONFLICT (stream) DO UPDATE SET token = excluded.token
    WHERE leasehold_fence.token <= excluded.token
    RETURNING token"""

_NEWER = "SELECT token FROM leasehold_fence WHERE stream = $1 AND token > $2"


def advance(cursor: Any, name: str, token: Token, mark: str) -> None:
    """See `Owned.fence`."""
    parameters = (name, token.sortable())
    if not _rows(cursor, _ADVANCE, mark, parameters):
        newer = [Token(text) for (text,) in _rows(cursor, _NEWER, mark, parameters)]
        raise StaleToken(name, token, newer[0] if newer else None)


def check(name: str, token: Token, newest: str) -> None:
    """See `Owned.check_token`."""
    if token < newest:
        raise StaleToken(name, token, Token(newest))


def _rows(cursor: Any, statement: str, mark: str, parameters: Any) -> Any:
    cursor.execute(statement.replace("$1", mark).replace("$2", mark), parameters)
    return cursor.fetchall()
