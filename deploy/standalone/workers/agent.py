"""The agent's HTTP API in plain calls: a worker needs no SDK, only HTTP and JSON.

Every time in a lease counts from when the worker asked, so the clock is read before the call.
"""

import http.client
import json
import os
import time
from urllib.parse import quote, urlsplit

# A clock that keeps running while the machine sleeps, if the system has one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_ns():
    """Nanoseconds of a clock that never jumps."""
    return time.clock_gettime_ns(_CLOCK)


class Refused(Exception):
    """The agent's no, with its reason: no_lease, no_slot, draining, not_held, ..."""

    def __init__(self, reason, message):
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class Agent:
    """The agent beside this worker. A call raises OSError where it cannot be reached in time."""

    def __init__(self, address=None):
        url = urlsplit(address or os.environ.get("LEASEHOLD_ADDR", "http://127.0.0.1:7411"))
        self.host, self.port = url.hostname, url.port

    def start(self, start_id):
        """This process starts: the jobs of an earlier one have ended."""
        self._call("POST", "/v1/start", {"start_id": start_id, "running": 0})

    def begin_job(self, job, wait_ms):
        """May this job start? Waits for a slot; asking again for the same job is harmless."""
        path = f"/v1/jobs/{quote(job, safe='')}?wait_ms={wait_ms}"
        return self._call("PUT", path, wait_s=wait_ms / 1000)["token"]

    def end_job(self, job):
        """The job has ended, or never began: its slot is free."""
        self._call("DELETE", f"/v1/jobs/{quote(job, safe='')}")

    def release_stream(self, set_name, stream, token):
        """This worker writes nothing more for the stream under this token."""
        path = f"/v1/streams/{quote(set_name, safe='')}/{quote(stream, safe='')}?token={token}"
        self._call("DELETE", path)

    def watch(self):
        """Yields (asked_ns, lease) now, after every change and at every renewal."""
        asked_ns = clock_ns()
        connection = http.client.HTTPConnection(self.host, self.port)
        try:
            connection.request("GET", "/v1/lease/watch")
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"the watch answered {response.status}")
            while line := response.readline():
                yield asked_ns, json.loads(line)
        except http.client.HTTPException as error:
            raise OSError(f"the watch was cut off: {error!r}") from error
        finally:
            connection.close()

    def _call(self, method, path, body=None, wait_s=0.0):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=wait_s + 5)
        try:
            text = json.dumps(body) if body is not None else None
            connection.request(method, path, text, {"content-type": "application/json"})
            response = connection.getresponse()
            status, answer = response.status, response.read()
        except http.client.HTTPException as error:
            raise OSError(f"the agent's answer was cut off: {error!r}") from error
        finally:
            connection.close()
        if status == 200:
            return json.loads(answer or b"{}")
        try:
            error = json.loads(answer)["error"]
            raise Refused(error["reason"], error["message"])
        except (ValueError, KeyError, TypeError):
            raise OSError(f"the agent answered {status}: {answer[:200]!r}") from None
