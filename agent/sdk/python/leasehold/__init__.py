"""Leases for workers: how many jobs may run, and which streams this worker owns.

    worker = leasehold.Worker()
    for job in worker.jobs():
        work(job.id)

    for stream in worker.streams():
        threading.Thread(target=consume, args=(stream,)).start()
"""

from .errors import Closed, Draining, LeaseholdError, Refused, Unreachable
from .jobs import Job
from .messages import Lease, Pool, RefusalReason, StreamLease, StreamLeaseState
from .streams import Stream, token_order
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "Draining",
    "Job",
    "Lease",
    "LeaseholdError",
    "Pool",
    "RefusalReason",
    "Refused",
    "Stream",
    "StreamLease",
    "StreamLeaseState",
    "Unreachable",
    "Worker",
    "token_order",
]
