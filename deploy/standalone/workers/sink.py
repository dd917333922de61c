"""An append-only file for each stream, which refuses a former owner.

Every line carries the token of its writer. A token lower than the file's highest is refused, so a
worker that was stopped between "is it still mine?" and its write cannot corrupt a successor's work.
"""

import fcntl
import json
import os
from contextlib import contextmanager

from agent import clock_ns

# The longest line of a sink: its last line is found within this many bytes.
LINE_BYTES_MAX = 64 * 1024


class Fenced(Exception):
    """A higher token has been here."""


def token_order(token):
    """Tokens are written EPOCH.SEQ and grow: first by epoch, then by number."""
    epoch, seq = token.split(".")
    return int(epoch), int(seq)


class Sink:
    """One stream's file, opened by an owner. Opening it shuts out every lower token."""

    def __init__(self, path, worker, token):
        self.worker, self.token = worker, token
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = -1
        try:
            with self._lock():
                self._write([self._line(self.record, self.offset, fence=True)])
        except Fenced:
            self.close()
            raise

    def append(self, records):
        """Adds (offset behind the record in its source, text) pairs under this owner's token."""
        with self._lock():
            lines = []
            for number, (offset, text) in enumerate(records, self.record + 1):
                lines.append(self._line(number, offset, text=text))
            self._write(lines)
            self.record, self.offset = self.record + len(records), records[-1][0]

    def close(self):
        """Closes the file; its lines stay."""
        os.close(self.fd)

    @contextmanager
    def _lock(self):
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            if os.fstat(self.fd).st_size != self.size:
                self._look()
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def _look(self):
        """Reads the last record's number and place, and who wrote last."""
        size = os.fstat(self.fd).st_size
        start = max(0, size - LINE_BYTES_MAX)
        tail = os.pread(self.fd, size - start, start)
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            # A writer was killed in the middle of a line: it never counted.
            os.ftruncate(self.fd, start + whole)
        last = {"token": "0.0", "record": 0, "offset": 0}
        if whole:
            last = json.loads(tail[:whole].splitlines()[-1])
        if token_order(self.token) < token_order(last["token"]):
            raise Fenced(f"token {self.token} is older than {last['token']}")
        self.record, self.offset, self.size = last["record"], last["offset"], start + whole

    def _line(self, record, offset, **fields):
        line = {"token": self.token, "record": record, "offset": offset, "worker": self.worker}
        return json.dumps({**line, "at_ns": clock_ns(), **fields}) + "\n"

    def _write(self, lines):
        data = "".join(lines).encode()
        while data:
            data = data[os.write(self.fd, data) :]
        self.size = os.fstat(self.fd).st_size
