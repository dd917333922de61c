"""Where the agent is, and what is made of its answers."""

import http.server
import os
import socketserver
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import leasehold
from leasehold import link
from leasehold.agent import Agent, read_lease
from leasehold.messages import Lease, RefusalReason, StreamLeaseState

from .fake_agent import HANG_S, FakeAgent, _Handler, eventually

# The folder of the package, wherever the tests are started.
SDK = Path(__file__).resolve().parents[1]


class Beats(unittest.TestCase):
    def test_a_worker_says_that_it_lives_as_long_as_it_does(self):
        agent = FakeAgent()
        self.addCleanup(agent.kill)
        beats = lambda: [path for _, path, _ in agent.called("POST", "/v1/beat")]
        with leasehold.Worker(agent.address, beat_within=1.0):
            eventually("three beats", lambda: len(beats()) >= 3)
            self.assertEqual(set(beats()), {"/v1/beat?within_ms=1000"})
        self.assertEqual(beats()[-1], "/v1/beat?within_ms=0", "it takes its promise back")

    def test_a_worker_without_beats_says_nothing(self):
        agent = FakeAgent()
        self.addCleanup(agent.kill)
        with leasehold.Worker(agent.address, beat_within=None) as worker, worker.job("a"):
            pass
        # One with beats takes its promise back when it closes, and waits for that.
        self.assertEqual(agent.called("POST", "/v1/beat"), [])

    def test_a_time_that_is_too_short_is_refused(self):
        for within in (0.5, -1, "30s", float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "use None, or 1 or more seconds"):
                leasehold.Worker("http://127.0.0.1:1", beat_within=within)
        # A negative one would have the worker go on after its lease has ended.
        for before in (-20, "1", float("nan"), None):
            with self.assertRaisesRegex(ValueError, "invalid stop_before .*: use 0 or more"):
                leasehold.Worker("http://127.0.0.1:1", stop_before=before)


class Addresses(unittest.TestCase):
    def test_the_environment_says_where_the_agent_is(self):
        both = {"LEASEHOLD_ADDR": "http://[::1]:1234", "LEASEHOLD_SOCKET": "/run/a.sock"}
        cases = [
            (both, "http://[::1]:1234"),
            ({"LEASEHOLD_SOCKET": "/run/a.sock"}, "unix:/run/a.sock"),
            ({}, "http://127.0.0.1:7411"),
        ]
        for environment, address in cases:
            with mock.patch.dict(os.environ, environment, clear=True):
                self.assertEqual(Agent().address, address)

    def test_what_is_no_address_is_refused(self):
        for address in ("127.0.0.1:7411", "https://localhost:1", "http://"):
            with self.assertRaises(ValueError, msg=address):
                Agent(address)

    def test_a_unix_socket_serves_the_same(self):
        agent = FakeAgent()
        self.addCleanup(agent.kill)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "agent.sock"))
            with socketserver.ThreadingUnixStreamServer(path, _UnixHandler) as server:
                server.agent, server.daemon_threads = agent, True
                threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
                with leasehold.Worker(f"unix:{path}") as worker, worker.job("a"):
                    self.assertEqual(agent.jobs, {"a"})
                server.shutdown()

    def test_a_connection_never_reaches_another_process(self):
        agent = FakeAgent()
        self.addCleanup(agent.kill)
        connection = Agent(agent.address).connect()
        self.addCleanup(connection.close)
        self.assertEqual(read_lease(connection, ()).worker, "w1")
        agent.kill()
        agent.revive()
        for _ in range(2):
            with self.assertRaises(OSError):
                read_lease(connection, ())


class Outages(unittest.TestCase):
    def test_a_program_says_that_there_is_no_agent_without_any_setup_of_a_log(self):
        script = "import leasehold; [print(job) for job in leasehold.Worker().jobs()]"
        environment = {**os.environ, "LEASEHOLD_SOCKET": "/nowhere/agent.sock"}
        environment.pop("LEASEHOLD_ADDR", None)
        command = [sys.executable, "-c", script]
        streams = {"stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=SDK, env=environment, **streams) as run:
            hang = threading.Timer(HANG_S, run.kill)
            hang.start()
            line = run.stderr.readline()
            hang.cancel()
            run.kill()
        address = "unix:/nowhere/agent.sock"
        for words in (address, "No such file", "LEASEHOLD_SOCKET names", "--listen"):
            self.assertIn(words, line)

    def test_an_outage_is_logged_once_with_address_reason_and_advice(self):
        agent = FakeAgent()
        agent.kill()
        with mock.patch.object(link, "WARN_AFTER_NS", 0), self.assertLogs("leasehold") as logs:
            with leasehold.Worker(agent.address) as worker:
                for _ in range(2):
                    with self.assertRaisesRegex(leasehold.Unreachable, agent.address):
                        worker.job(wait=0.2)
                with self.assertRaisesRegex(leasehold.Unreachable, "refused.*LEASEHOLD_ADDR"):
                    worker.job(wait=0.2)
                agent.revive()
                self.addCleanup(agent.kill)
                with worker.job():
                    pass
        warnings = [line for line in logs.output if line.startswith("WARNING")]
        self.assertEqual(len(warnings), 1, warnings)
        for words in (agent.address, "refused", "the program passes this address"):
            self.assertIn(words, warnings[0])

    def test_what_is_no_agent_is_named_with_what_it_answered(self):
        class Other(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_error(404, "no such path")

            def log_message(self, *_):
                pass

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            address = f"http://127.0.0.1:{server.server_address[1]}"
            with leasehold.Worker(address) as worker:
                said = "answered 404: b.*is this the address of an agent"
                with self.assertRaisesRegex(leasehold.Unreachable, f"(?s){said}"):
                    worker.job(wait=1)
            server.shutdown()


class _UnixHandler(_Handler):
    # Nagle's algorithm is TCP's.
    disable_nagle_algorithm = False

    def address_string(self):
        return "unix"


class Messages(unittest.TestCase):
    def test_a_lease_is_read_as_the_agent_writes_it(self):
        lease = Lease.from_json(
            {
                "version": 7,
                "pool": {"size": 3, "token": "8.17", "running": 1, "valid_for_ms": 9120},
                "streams": [
                    {"set": "cars", "stream": "cars:new", "token": "8.18", "state": "held"},
                    {"set": "cars", "stream": "cars:sold", "state": "borrowed"},
                ],
                "draining": False,
                "connected": True,
                "of_tomorrow": {},
            }
        )
        self.assertEqual((lease.pool.size, lease.pool.valid_for_ms), (3, 9120))
        self.assertEqual(lease.streams[0].state, StreamLeaseState.HELD)
        self.assertIsNone(lease.streams[0].valid_for_ms)
        # A state of tomorrow is no permission.
        self.assertEqual(lease.streams[1].state, StreamLeaseState.UNSPECIFIED)
        self.assertEqual((lease.connected, lease.worker), (True, ""))

    def test_reasons_are_the_words_of_the_api(self):
        self.assertEqual(RefusalReason("no_slot"), RefusalReason.NO_SLOT)


if __name__ == "__main__":
    unittest.main()
