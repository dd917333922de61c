"""The agent's HTTP/JSON calls, over TCP or a Unix socket, one by one and without any memory.

A connection is one process of the agent's: it is never opened again behind its user's back.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any, Callable, Collection, Dict, Iterator, Optional, Tuple, TypeVar
from urllib.parse import quote, urlsplit

from .errors import refusal
from .messages import BeginJobResponse, DrainResponse, Lease
from .token import Token

T = TypeVar("T")

ADDRESS_DEFAULT = "http://127.0.0.1:7411"
# How long an answer may take beyond what the question allows it.
ANSWER_S = 5.0
# The longest line of a watch. A lease of 10,000 streams is some two MB.
LINE_BYTES_MAX = 64 * 1024 * 1024
# Bytes that are read, and dropped, at a time from a connection whose last call was given up.
READ_BYTES = 4096


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: Optional[float]) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        self.sock = connection


class Connection:
    """One connection to the agent. Its calls raise OSError where no whole answer comes."""

    def __init__(self, http_connection: http.client.HTTPConnection) -> None:
        self._http = http_connection
        self._http.connect()
        # From here on a call fails rather than reach another process.
        self._http.auto_open = 0

    def call(self, method: str, path: str, body: Optional[Dict[str, Any]] = None) -> Any:
        """One question; its answer as JSON gives it. Raises Refused for the agent's no."""
        try:
            text = json.dumps(body) if body is not None else None
            self._http.request(method, path, text, {"content-type": "application/json"})
            response = self._http.getresponse()
            return _answer(response.status, response.read())
        except http.client.HTTPException as error:
            raise OSError(f"the agent's answer was cut off: {error!r}") from error

    def begin_job(self, job_id: str, wait_ms: int) -> Token:
        """The pool lease's token, once the job may start. The agent may wait for `wait_ms`."""
        answer = self.call("PUT", f"/v1/jobs/{quote(job_id, safe='')}?wait_ms={wait_ms}")
        return _read(lambda value: Token(BeginJobResponse.from_json(value).token), answer)

    def watch(self, kinds: Collection[str]) -> Iterator[Lease]:
        """The lease now, after every change and at every renewal, with its `streams` and
        `bindings` where `kinds` names them. Asked when this returns."""
        try:
            self._http.request("GET", "/v1/lease/watch" + _without(kinds))
            response = self._http.getresponse()
            if response.status != 200:
                _answer(response.status, response.read())
        except http.client.HTTPException as error:
            raise OSError(f"the watch was cut off: {error!r}") from error
        if self._http.sock is not None:
            # Nothing is due while nothing changes.
            self._http.sock.settimeout(None)
        return self._lines(response)

    def cut(self) -> None:
        """Ends every call on this connection, those in other threads too."""
        connection = self._http.sock
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def hang_up(self) -> None:
        """Makes the agent drop the call that has got no answer here, and end this connection."""
        connection = self._http.sock
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def has_ended(self) -> bool:
        """Whether the agent has ended this connection: it handles no call on it any more. Does not
        wait."""
        connection = self._http.sock
        if connection is None:
            return True
        try:
            connection.setblocking(False)
            while connection.recv(READ_BYTES):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Closes it."""
        self._http.close()

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[Lease]:
        try:
            while True:
                line = response.readline(LINE_BYTES_MAX)
                if not line.endswith(b"\n"):
                    return
                yield _read(Lease.from_json, json.loads(line))
        except http.client.HTTPException as error:
            raise OSError(f"the watch was cut off: {error!r}") from error
        except ValueError as error:
            raise OSError(f"cannot decode the lease that the agent sent: {error}") from error


class Agent:
    """Where the agent is, and what it can be asked."""

    def __init__(self, address: Optional[str] = None) -> None:
        self.address, self._origin = _found(address)
        url = urlsplit(self.address)
        if url.scheme == "unix":
            self._path: Optional[str] = self.address[len("unix:") :]
        elif url.scheme == "http" and url.hostname:
            self._path = None
            self._host, self._port = url.hostname, url.port or 80
        else:
            raise ValueError(
                f"invalid address {self.address!r}: expected http://HOST:PORT or unix:PATH"
            )

    def advice(self) -> str:
        """What to do where nobody answers there as an agent."""
        return (
            f"{self._origin}; start this program as the COMMAND of leasehold-agent run, or set "
            "LEASEHOLD_ADDR to the agent's --listen, as http://HOST:PORT"
        )

    def connect(self, timeout: Optional[float] = ANSWER_S) -> Connection:
        """A new connection. Raises OSError where nothing listens."""
        if self._path is not None:
            return Connection(_UnixConnection(self._path, timeout))
        return Connection(http.client.HTTPConnection(self._host, self._port, timeout=timeout))

    def end_job(self, job_id: str) -> None:
        """The job has ended."""
        self._once("DELETE", f"/v1/jobs/{quote(job_id, safe='')}")

    def release(self, kind: str, key: Tuple[str, ...], token: str) -> None:
        """The worker has let one of its `streams` or `bindings` go."""
        path = "/".join(quote(part, safe="") for part in key)
        self._once("DELETE", f"/v1/{kind}/{path}?token={quote(token, safe='')}")

    def drain(self, wait: bool) -> int:
        """Begins a drain; how many jobs are left, with `wait` at its end."""
        path = "/v1/drain?wait=true" if wait else "/v1/drain"
        answer = self._once("POST", path, timeout=None if wait else ANSWER_S)
        return _read(DrainResponse.from_json, answer).jobs_left

    def beat(self, within_ms: int) -> None:
        """The worker lives, and says so again within this time."""
        self._once("POST", f"/v1/beat?within_ms={within_ms}")

    def start(self, start_id: str, running: int) -> None:
        """The worker's process starts."""
        self._once("POST", "/v1/start", {"start_id": start_id, "running": running})

    def _once(
        self,
        method: str,
        path: str,
        body: Optional[Dict[str, Any]] = None,
        timeout: Optional[float] = ANSWER_S,
    ) -> Any:
        connection = self.connect(timeout)
        try:
            return connection.call(method, path, body)
        finally:
            connection.close()


def _found(address: Optional[str]) -> Tuple[str, str]:
    """The address to use, and where it comes from."""
    if address:
        return address, "the program passes this address"
    address = os.environ.get("LEASEHOLD_ADDR")
    if address:
        return address, "LEASEHOLD_ADDR names this address"
    path = os.environ.get("LEASEHOLD_SOCKET")
    if path:
        return f"unix:{path}", "LEASEHOLD_SOCKET names this socket"
    return ADDRESS_DEFAULT, "LEASEHOLD_ADDR and LEASEHOLD_SOCKET are not set"


def _answer(status: int, body: bytes) -> Any:
    try:
        answer = json.loads(body)
        if status == 200:
            return answer
        error = answer["error"]
        reason, message = str(error["reason"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        # An agent's errors are JSON.
        said = f"it answered {status}: {body[:200]!r}; is this the address of an agent?"
        raise OSError(said) from None
    raise refusal(reason, message)


def _read(read: Callable[[Any], T], value: Any) -> T:
    try:
        return read(value)
    except (AttributeError, TypeError, ValueError) as error:
        raise OSError(f"cannot decode the agent's answer: {error}") from error


def read_lease(connection: Connection, kinds: Collection[str]) -> Lease:
    """The lease now, as `Connection.watch` shows it."""
    return _read(Lease.from_json, connection.call("GET", "/v1/lease" + _without(kinds)))


def _without(kinds: Collection[str]) -> str:
    """The query that leaves the other kinds out."""
    left_out = [f"without_{kind}=true" for kind in ("streams", "bindings") if kind not in kinds]
    return "?" + "&".join(left_out) if left_out else ""
