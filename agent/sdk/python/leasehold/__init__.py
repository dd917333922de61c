"""Leases for workers: how many jobs may run, which streams this worker owns, and which shares of
pipelines it serves.

    worker = leasehold.Worker()
    with worker.job("build-42"):  # waits for a slot
        build(42)

    for stream in worker.streams():
        threading.Thread(target=consume, args=(stream,)).start()

    worker.run_bindings(serve)
"""

from .bindings import Binding
from .errors import Closed, Draining, LeaseholdError, Refused, StaleToken, Unreachable
from .fence import FENCE_TABLE
from .jobs import Job
from .messages import Endpoint, Lease, Next, Pool, RefusalReason, StreamLease, StreamLeaseState
from .owned import Owned
from .streams import Stream
from .token import Token
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Binding",
    "Closed",
    "Draining",
    "Endpoint",
    "FENCE_TABLE",
    "Job",
    "Lease",
    "LeaseholdError",
    "Next",
    "Owned",
    "Pool",
    "RefusalReason",
    "Refused",
    "StaleToken",
    "Stream",
    "StreamLease",
    "StreamLeaseState",
    "Token",
    "Unreachable",
    "Worker",
]
