"""A worker with an HTTP interface of its own: GET /status, PUT /size/N, POST /drain. It runs as
many jobs as it may; a job is a file, and ends when that is gone."""

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--port-file", required=True)
parser.add_argument("--job-dir", required=True)
parser.add_argument("--token", default="")
parser.add_argument("--fixed", type=int, help="it runs so many jobs and knows no PUT /size")
args = parser.parse_args()
lock = threading.Lock()
state = {"size": args.fixed or 0, "drained": False, "broken": False, "asked": []}


def running():
    return len(list(Path(args.job_dir).iterdir()))


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_all(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if args.token and self.headers.get("Authorization") != args.token:
            return self.answer(401, {})
        call = (self.command, self.path)
        with lock:
            if call == ("GET", "/status"):
                jobs = {"running": running(), "limit": state["size"]}
                return self.answer(200, {"jobs": "?" if state["broken"] else jobs})
            if call == ("GET", "/asked"):
                return self.answer(200, state["asked"])
            if call == ("POST", "/break"):
                state["broken"] = not state["broken"]
                return self.answer(200, {})
            state["asked"].append([self.command, self.path, text])
            if self.command == "PUT" and self.path.startswith("/size/") and not args.fixed:
                state["size"] = int(self.path.rpartition("/")[2])
                return self.answer(200, {})
            if call == ("POST", "/drain"):
                state["size"] = 0
                return self.answer(202, {})
        return self.answer(404, {})

    do_GET = do_PUT = do_POST = handle_all

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
Path(args.port_file + ".new").write_text(str(server.server_port))
Path(args.port_file + ".new").rename(args.port_file)
number = 0
while True:
    with lock:
        if running() < state["size"]:
            number += 1
            Path(args.job_dir, f"job-{number}").touch()
    time.sleep(0.005)
