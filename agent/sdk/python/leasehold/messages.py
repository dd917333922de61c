"""The messages of the worker API, as the agent writes them in JSON.

They follow proto/leasehold/worker/v1/worker.proto, field by field and under the same names;
tests/tests/sdk/messages.rs compares the two. A field or an enum value that a newer agent adds is
ignored; a field that an older agent leaves out has its default.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Tuple, TypeVar

T = TypeVar("T")

# A JSON object, as json.loads returns it. Every from_json takes one, and raises TypeError or
# ValueError where a field has the wrong type.
Json = Mapping[str, Any]


def _optional(convert: Callable[[Any], T], value: Any) -> Optional[T]:
    return convert(value) if value is not None else None


class StreamLeaseState(enum.Enum):
    """What the worker must do with a stream or a binding."""

    #: Never sent: what a value of a newer agent is read as.
    UNSPECIFIED = "unspecified"
    #: The worker owns it.
    HELD = "held"
    #: The worker must stop using it, then release it.
    REVOKED = "revoked"

    @classmethod
    def _missing_(cls, value: object) -> StreamLeaseState:
        return cls.UNSPECIFIED


class RefusalReason(enum.Enum):
    """Why the agent refused a call."""

    #: Never sent: what a value of a newer agent is read as.
    UNSPECIFIED = "unspecified"
    #: No pool lease is in force.
    NO_LEASE = "no_lease"
    #: Every slot runs a job.
    NO_SLOT = "no_slot"
    #: The worker is draining.
    DRAINING = "draining"
    #: The worker does not hold this lease.
    NOT_HELD = "not_held"
    #: A named limit is reached.
    LIMIT = "limit"
    #: The agent could not write its journal.
    JOURNAL = "journal"
    #: The id or name is invalid.
    INVALID = "invalid"
    #: The worker fails its check.
    FAILING = "failing"

    @classmethod
    def _missing_(cls, value: object) -> RefusalReason:
        return cls.UNSPECIFIED


@dataclass(frozen=True)
class Pool:
    """The pool lease: how many jobs the worker may run."""

    #: How many jobs may run at once; 0 without a lease or while draining.
    size: int = 0
    #: The lease's token, written EPOCH.SEQ; empty without a lease.
    token: str = ""
    #: How many jobs run now.
    running: int = 0
    #: The size is valid for this many milliseconds from when the worker sent the request; None
    #: where it does not expire.
    valid_for_ms: Optional[int] = None

    @classmethod
    def from_json(cls, value: Json) -> Pool:
        """Reads the JSON object."""
        return cls(
            size=int(value.get("size", 0)),
            token=str(value.get("token", "")),
            running=int(value.get("running", 0)),
            valid_for_ms=_optional(int, value.get("valid_for_ms")),
        )


@dataclass(frozen=True)
class StreamLease:
    """The lease of one stream."""

    #: The stream set.
    set: str = ""
    #: The stream.
    stream: str = ""
    #: The fencing token, written EPOCH.SEQ: send it with every write for the stream.
    token: str = ""
    #: Held or revoked.
    state: StreamLeaseState = StreamLeaseState.UNSPECIFIED
    #: The lease is valid for this many milliseconds from when the worker sent the request; None for
    #: a pinned stream, which does not expire.
    valid_for_ms: Optional[int] = None
    #: If revoked: release it within this many milliseconds from when the worker sent the request.
    release_within_ms: Optional[int] = None

    @classmethod
    def from_json(cls, value: Json) -> StreamLease:
        """Reads the JSON object."""
        return cls(
            set=str(value.get("set", "")),
            stream=str(value.get("stream", "")),
            token=str(value.get("token", "")),
            state=StreamLeaseState(value.get("state")),
            valid_for_ms=_optional(int, value.get("valid_for_ms")),
            release_within_ms=_optional(int, value.get("release_within_ms")),
        )


@dataclass(frozen=True)
class Endpoint:
    """A worker that serves a node of a pipeline."""

    #: The worker's name.
    worker: str = ""
    #: Its address, HOST or HOST:PORT; empty where it is not known.
    address: str = ""
    #: Its share of the load, in documents per second: route in these proportions.
    documents_per_second: float = 0.0
    #: It is draining: send documents there only if no other worker takes them.
    draining: bool = False

    @classmethod
    def from_json(cls, value: Json) -> Endpoint:
        """Reads the JSON object."""
        return cls(
            worker=str(value.get("worker", "")),
            address=str(value.get("address", "")),
            documents_per_second=float(value.get("documents_per_second", 0.0)),
            draining=bool(value.get("draining", False)),
        )


@dataclass(frozen=True)
class Next:
    """A node that follows in the pipeline: documents go there next."""

    #: The node's name.
    node: str = ""
    #: The workers that serve it; empty while no worker does.
    endpoints: Tuple[Endpoint, ...] = ()

    @classmethod
    def from_json(cls, value: Json) -> Next:
        """Reads the JSON object."""
        return cls(
            node=str(value.get("node", "")),
            endpoints=tuple(Endpoint.from_json(it) for it in value.get("endpoints") or ()),
        )


@dataclass(frozen=True)
class Binding:
    """The lease of one share of a pipeline's node."""

    #: The pipeline.
    pipeline: str = ""
    #: The node that the worker serves.
    node: str = ""
    #: Which of the node's shares it is, from 0.
    index: int = 0
    #: The fencing token, written EPOCH.SEQ.
    token: str = ""
    #: Held or revoked.
    state: StreamLeaseState = StreamLeaseState.UNSPECIFIED
    #: The lease is valid for this many milliseconds from when the worker sent the request; None
    #: where it does not expire.
    valid_for_ms: Optional[int] = None
    #: If revoked: release it within this many milliseconds from when the worker sent the request.
    release_within_ms: Optional[int] = None
    #: The worker's part of the node's load, in documents per second.
    documents_per_second: float = 0.0
    #: The nodes that documents go to next; empty at the end of the pipeline.
    next: Tuple[Next, ...] = ()

    @classmethod
    def from_json(cls, value: Json) -> Binding:
        """Reads the JSON object."""
        return cls(
            pipeline=str(value.get("pipeline", "")),
            node=str(value.get("node", "")),
            index=int(value.get("index", 0)),
            token=str(value.get("token", "")),
            state=StreamLeaseState(value.get("state")),
            valid_for_ms=_optional(int, value.get("valid_for_ms")),
            release_within_ms=_optional(int, value.get("release_within_ms")),
            documents_per_second=float(value.get("documents_per_second", 0.0)),
            next=tuple(Next.from_json(it) for it in value.get("next") or ()),
        )


@dataclass(frozen=True)
class Lease:
    """Everything that the worker may do now."""

    #: Grows with every change; a renewal does not change it.
    version: int = 0
    #: The pool lease.
    pool: Pool = field(default_factory=lambda: Pool())
    #: The streams that the worker owns, and those that are revoked.
    streams: Tuple[StreamLease, ...] = ()
    #: The worker must start no new job and release every stream.
    draining: bool = False
    #: Whether the agent is connected to a leading coordinator.
    connected: bool = False
    #: The cluster.
    cluster: str = ""
    #: The worker's name.
    worker: str = ""
    #: The shares of pipelines that the worker serves, and those that are revoked.
    bindings: Tuple[Binding, ...] = ()

    @classmethod
    def from_json(cls, value: Json) -> Lease:
        """Reads the JSON object."""
        return cls(
            version=int(value.get("version", 0)),
            pool=Pool.from_json(value.get("pool") or {}),
            streams=tuple(StreamLease.from_json(it) for it in value.get("streams") or ()),
            draining=bool(value.get("draining", False)),
            connected=bool(value.get("connected", False)),
            cluster=str(value.get("cluster", "")),
            worker=str(value.get("worker", "")),
            bindings=tuple(Binding.from_json(it) for it in value.get("bindings") or ()),
        )


@dataclass(frozen=True)
class BeginJobResponse:
    """The answer to BeginJob."""

    #: The pool lease's token, written EPOCH.SEQ.
    token: str = ""

    @classmethod
    def from_json(cls, value: Json) -> BeginJobResponse:
        """Reads the JSON object."""
        return cls(token=str(value.get("token", "")))


@dataclass(frozen=True)
class DrainResponse:
    """The answer to Drain."""

    #: With `wait`: how many jobs still run after the deadline.
    jobs_left: int = 0

    @classmethod
    def from_json(cls, value: Json) -> DrainResponse:
        """Reads the JSON object."""
        return cls(jobs_left=int(value.get("jobs_left", 0)))
