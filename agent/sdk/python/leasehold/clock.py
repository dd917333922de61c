"""The one clock that leases are counted by: it never jumps, and a sleep does not stop it."""

from __future__ import annotations

import time

# What has no such clock (macOS, Windows) counts by the one that Python has.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now_ns() -> int:
    """The clock's reading in nanoseconds; only differences mean anything."""
    if _BOOTTIME is not None:
        return time.clock_gettime_ns(_BOOTTIME)
    return time.monotonic_ns()
