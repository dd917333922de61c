"""A fake agent: it counts slots, lists what the test sets, and can be killed."""

import json
import select
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

# A hang shows as a failure after this time.
HANG_S = 60
POLL_S = 0.005


def eventually(what, holds):
    """Waits until a condition holds, and returns its value."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        value = holds()
        if value:
            return value
        time.sleep(POLL_S)
    raise AssertionError(f"timeout: {what}")


class FakeAgent:
    """One process of an agent's after another, on one port."""

    def __init__(self, pool=1):
        self.news = threading.Condition()
        self.pool, self.draining, self.streams, self.bindings = pool, False, {}, {}
        self.version = 1
        self.forget()
        # Calls in their order: (method, path with query, body).
        self.calls = []
        # Requests to PUT these paths are not read yet.
        self.unread = set()
        # The paths of such requests that have come, and of those whose senders have hung up.
        self.arrived, self.hung_up = [], []
        self.server, self.port, self.connections = None, 0, set()
        self.revive()

    def forget(self):
        """The journal is lost."""
        self.start_id, self.jobs, self.unnamed, self.full = None, set(), 0, False

    def revive(self):
        """A process listens."""

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self.dead = False
        self.server = Server(("127.0.0.1", self.port), _Handler)
        self.server.agent = self
        self.port = self.server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"
        serve = self.server.serve_forever
        threading.Thread(target=serve, args=(0.01,), daemon=True).start()

    def kill(self):
        """Kills the process: the port closes, and all connections break."""
        with self.news:
            self.dead = True
            self.news.notify_all()
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        eventually("connections to end", lambda: not self.connections)

    def leave_unread(self, path, connection):
        """Reads a request no earlier than the test says. The caller holds the news."""
        self.arrived.append(path)
        is_hung_up = False
        while path in self.unread and not self.dead:
            self.news.wait(POLL_S)
            if not is_hung_up and select.select([connection], [], [], 0)[0]:
                is_hung_up = not connection.recv(1, socket.MSG_PEEK)
                self.hung_up += [path] * is_hung_up

    def change(self, **what):
        """Sets fields of this agent, and tells the watches."""
        with self.news:
            for name, value in what.items():
                setattr(self, name, value)
            self.version += 1
            self.news.notify_all()

    def show(self, name, token, state="held", **times):
        """Lists a stream of the set `cars`."""
        shown = {"set": "cars", "stream": name, "token": token, "state": state, **times}
        self.change(streams={**self.streams, name: shown})

    def bind(self, token, state="held", next=(), **more):
        """Lists the binding `ns/first/in/2`; `next` are the workers of the node `out`."""
        key = {"pipeline": "ns/first", "node": "in", "index": 2}
        endpoints = [
            {"worker": worker, "address": f"{worker}:80", "documents_per_second": load}
            for worker, load in next
        ]
        shown = {**key, "token": token, "state": state, "documents_per_second": 2.5, **more}
        shown["next"] = [{"node": "out", "endpoints": endpoints}]
        self.change(bindings={"in": shown})

    def hide(self, name):
        """Removes a stream from the lease."""
        self.change(streams={key: it for key, it in self.streams.items() if key != name})

    def called(self, method, start):
        """The calls so far whose path starts so."""
        with self.news:
            return [call for call in self.calls if call[0] == method and call[1].startswith(start)]

    def lease(self, query):
        listed = lambda kind, all_of: [] if f"without_{kind}" in query else list(all_of.values())
        running = len(self.jobs) + self.unnamed
        return {
            "version": self.version,
            "pool": {"size": self.pool, "token": "1.1", "running": running},
            "streams": listed("streams", self.streams),
            "bindings": listed("bindings", self.bindings),
            "draining": self.draining,
            "connected": True,
            "cluster": "ci",
            "worker": "w1",
            "a_field_of_tomorrow": [1],
        }

    def answer(self, method, path, query, body):
        """Status and answer. The caller holds the news."""
        if self.full and method in ("DELETE", "POST"):
            return 503, _no("journal")
        if path == "/v1/start":
            if self.start_id != body["start_id"]:
                self.start_id, self.unnamed = body["start_id"], body["running"]
                self.jobs.clear()
            self.unnamed = min(self.unnamed, body["running"])
        elif path == "/v1/lease":
            return 200, self.lease(query)
        elif path == "/v1/drain":
            self.draining = True
            self.version += 1
            return 200, {"jobs_left": len(self.jobs)}
        elif path.startswith("/v1/streams/"):
            name = unquote(path.rsplit("/", 1)[1])
            held = self.streams.get(name)
            if not held or held["token"] != query["token"][0]:
                return 409, _no("not_held")
            del self.streams[name]
            self.version += 1
        elif path == "/v1/bindings/ns%2Ffirst/in/2":
            held = self.bindings.get("in")
            if not held or held["token"] != query["token"][0]:
                return 409, _no("not_held")
            self.bindings = {}
            self.version += 1
        elif path.startswith("/v1/jobs/"):
            wait_ms = int(query["wait_ms"][0]) if query else 0
            return self.job(method, unquote(path[len("/v1/jobs/") :]), wait_ms)
        return 200, {}

    def job(self, method, job_id, wait_ms):
        if method == "DELETE":
            self.jobs.discard(job_id)
            self.news.notify_all()
            return 200, {}
        if not job_id.isprintable():
            return 400, _no("invalid")
        free = lambda: self.draining or self.dead or job_id in self.jobs or self.has_slot()
        self.news.wait_for(free, wait_ms / 1000)
        if self.draining:
            return 409, _no("draining")
        if self.dead or not free():
            return 409, _no("no_slot")
        self.jobs.add(job_id)
        return 200, {"token": "1.1"}

    def has_slot(self):
        return self.start_id is not None and len(self.jobs) + self.unnamed < self.pool


def _no(reason):
    return {"error": {"reason": reason, "message": "set by the test"}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server.agent.connections.add(self.connection)

    def finish(self):
        self.server.agent.connections.discard(self.connection)
        try:
            super().finish()
        except OSError:
            pass

    def handle(self):
        try:
            super().handle()
        except (OSError, ValueError):
            pass

    def log_message(self, *_):
        pass

    def serve(self):
        agent = self.server.agent
        size = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        url = urlsplit(self.path)
        if url.path == "/v1/lease/watch":
            return self.watch(agent, parse_qs(url.query))
        with agent.news:
            if self.command == "PUT" and url.path in agent.unread:
                agent.leave_unread(url.path, self.connection)
            agent.calls.append((self.command, self.path, body))
            status, answer = agent.answer(self.command, url.path, parse_qs(url.query), body)
            agent.news.notify_all()
            if agent.dead:
                self.close_connection = True
                return None
        self.reply(status, json.dumps(answer).encode())
        return None

    do_GET = do_PUT = do_POST = do_DELETE = serve

    def reply(self, status, data):
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def watch(self, agent, query):
        self.close_connection = True
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        seen = 0
        while True:
            with agent.news:
                agent.news.wait_for(lambda: agent.dead or agent.version != seen)
                if agent.dead:
                    return
                seen = agent.version
                line = json.dumps(agent.lease(query)).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
