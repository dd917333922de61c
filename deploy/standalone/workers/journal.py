"""A worker's own journal: what it did and when, for checks of the platform."""

import json
import os
import time

from agent import clock_ns


class Journal:
    """JSON lines in a file. One write a line: several threads may share it."""

    def __init__(self, path, worker):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.worker = worker

    def write(self, event, at_ns=None, wall_us=None, **fields):
        """Adds a line; the clocks are read here unless they were read earlier."""
        line = {
            "event": event,
            "at_ns": at_ns if at_ns is not None else clock_ns(),
            "wall_us": wall_us or time.time_ns() // 1000,
            "worker": self.worker,
            **fields,
        }
        os.write(self.fd, (json.dumps(line) + "\n").encode())
