"""Streams: handed out once a token, revoked, and over by the worker's own clock."""

import json
import sqlite3
import threading
import unittest
from unittest import mock

import leasehold
from leasehold import clock
from leasehold.messages import StreamLease
from leasehold.owned import MS, NS, end_ns

from .fake_agent import FakeAgent, eventually


class Streams(unittest.TestCase):
    def setUp(self):
        self.agent = FakeAgent()
        self.addCleanup(self.agent.kill)
        self.worker = leasehold.Worker(self.agent.address)
        self.addCleanup(self.worker.close, 0)
        self.streams = self.worker.streams()

    def released(self, name, token):
        return self.agent.called("DELETE", f"/v1/streams/cars/{name}?token={token}")

    def test_a_block_owns_a_stream(self):
        self.agent.show("new", "8.17", valid_for_ms=60_000)
        with next(self.streams) as stream:
            self.assertEqual((stream.set, stream.name, stream.token), ("cars", "new", "8.17"))
            self.assertTrue(stream.valid())
            self.assertLessEqual(stream.time_left(), 60)
        eventually("the release", lambda: self.released("new", "8.17"))
        self.assertFalse(stream.valid())

    def test_streams_are_requested_only_once_they_are_consumed(self):
        self.agent.show("new", "8.17", valid_for_ms=60_000)
        # What the agent shows counts as something that the worker may work on.
        with self.worker.job("a"):
            self.assertEqual(self.worker.lease.streams, ())
            with next(self.streams) as stream:
                self.assertEqual(stream.name, "new")
                self.assertEqual(len(self.worker.lease.streams), 1)
            self.assertEqual(self.agent.jobs, {"a"})

    def test_a_pinned_stream_does_not_end_by_time(self):
        self.agent.show("new", "8.17")
        with next(self.streams) as stream:
            self.assertIsNone(stream.time_left())
            self.assertTrue(stream.valid())

    def test_a_revoked_stream_is_valid_until_it_is_released(self):
        self.agent.show("new", "8.17", valid_for_ms=60_000)
        with next(self.streams) as stream:
            self.agent.show(
                "new", "8.17", "revoked", valid_for_ms=60_000, release_within_ms=30_000
            )
            stream.stopping.wait()
            self.assertTrue(stream.revoked.is_set() and stream.valid())
            self.assertLessEqual(stream.release_within(), 30)
            self.assertEqual(self.released("new", "8.17"), [])
        eventually("the release", lambda: self.released("new", "8.17"))

    def test_a_revoked_stream_that_was_not_handed_out_is_released(self):
        self.agent.show("old", "8.1")
        self.agent.show("new", "8.2")
        taken = next(self.streams)
        self.agent.show("old", "8.1", "revoked")
        self.agent.show("new", "8.2", "revoked")
        left = "new" if taken.name == "old" else "old"
        eventually("the release", lambda: self.agent.called("DELETE", f"/v1/streams/cars/{left}"))
        self.assertEqual(self.agent.called("DELETE", f"/v1/streams/cars/{taken.name}"), [])

    def test_a_worker_that_uses_no_streams_releases_none(self):
        self.agent.show("new", "8.1", "revoked")
        with self.worker.job():
            self.assertEqual(self.worker.lease.streams, ())
        self.assertEqual(self.agent.called("DELETE", "/v1/streams"), [])

    def test_a_token_is_handed_out_once(self):
        self.agent.show("new", "8.9")
        next(self.streams).release()
        eventually("the release", lambda: self.released("new", "8.9"))
        # What was on its way lists it once more; then it is granted again.
        self.agent.show("new", "8.9")
        self.agent.show("new", "8.10")
        self.assertEqual(next(self.streams).token, "8.10")

    def test_the_next_owner_comes_after_the_last_has_released(self):
        self.agent.show("new", "8.1")
        last = next(self.streams)
        self.agent.show("new", "8.2")
        last.lost.wait()
        taken = []
        taker = threading.Thread(target=lambda: taken.append(next(self.streams)))
        taker.start()
        self.agent.show("other", "8.3")
        taker.join()
        self.assertEqual(taken[0].name, "other")
        last.release()
        self.assertEqual(next(self.streams).token, "8.2")

    def test_a_withdrawn_stream_is_lost(self):
        self.agent.show("new", "8.1")
        stream = next(self.streams)
        self.agent.hide("new")
        stream.lost.wait()
        self.assertFalse(stream.valid())

    def test_a_stream_outlives_its_agent_but_not_its_lease(self):
        self.agent.show("new", "8.1", valid_for_ms=600_000)
        stream = next(self.streams)
        self.agent.kill()
        self.assertTrue(stream.valid())
        end = stream.end_ns
        with mock.patch.object(clock, "now_ns", lambda: end - 1):
            self.assertTrue(stream.valid())
        with mock.patch.object(clock, "now_ns", lambda: end):
            self.assertFalse(stream.valid())
        self.assertTrue(stream.lost.is_set() and stream.stopping.is_set())
        self.agent.revive()
        # The agent may still list it: what is lost stays lost until it is released.
        self.agent.show("new", "8.1", valid_for_ms=600_000)
        self.assertFalse(stream.valid())
        stream.release()
        eventually("the release", lambda: self.released("new", "8.1"))

    def test_a_stream_is_lost_by_the_clock_without_a_call(self):
        self.agent.show("new", "8.1", valid_for_ms=2_000)
        with next(self.streams) as stream:
            self.agent.kill()
            self.assertTrue(stream.lost.wait(60))
        self.agent.revive()

    def test_an_expired_lease_is_not_handed_out(self):
        self.agent.show("over", "8.1", valid_for_ms=0)
        self.agent.show("new", "8.2", valid_for_ms=60_000)
        self.assertEqual(next(self.streams).name, "new")

    def test_a_drain_ends_the_loop(self):
        self.agent.show("new", "8.1")
        stream = next(self.streams)
        self.agent.change(draining=True)
        self.assertEqual(list(self.streams), [])
        stream.release()

    def test_a_handler_for_each_stream(self):
        self.agent.show("new", "8.1")
        self.agent.show("old", "8.2")
        running, failed = set(), threading.Event()

        def handle(stream):
            running.add(stream.name)
            stream.stopping.wait()
            if stream.name == "old":
                failed.set()
                raise ZeroDivisionError

        with self.assertLogs("leasehold", "ERROR") as logs:
            consuming = threading.Thread(target=self.worker.run_streams, args=(handle,))
            consuming.start()
            eventually("both", lambda: running == {"new", "old"})
            self.agent.show("old", "8.2", "revoked")
            eventually("the release", lambda: self.released("old", "8.2"))
            self.assertTrue(failed.is_set())
            self.agent.show("new", "8.1", "revoked")
            self.agent.change(draining=True)
            consuming.join()
        self.assertIn("ZeroDivisionError", "\n".join(logs.output))
        eventually("the release", lambda: self.released("new", "8.1"))


class Ends(unittest.TestCase):
    def test_a_stream_ends_before_its_lease_counted_from_the_request(self):
        with mock.patch.object(clock, "now_ns", lambda: 7 * NS):
            lease = StreamLease(valid_for_ms=10_000)
            self.assertEqual(end_ns(2 * NS, lease, NS), 12 * NS - NS // 2)
            self.assertEqual(end_ns(2 * NS, lease, 20 * MS), 12 * NS - 20 * MS)
            self.assertEqual(end_ns(2 * NS, StreamLease(valid_for_ms=1), NS), 2 * NS + MS)
            self.assertIsNone(end_ns(2 * NS, StreamLease(), NS))

    def test_tokens_compare_as_numbers(self):
        tokens = ["9.1", "10.2", "9.10", "9.9"]
        ordered = sorted(leasehold.Token(token) for token in tokens)
        self.assertEqual(ordered, ["9.1", "9.9", "9.10", "10.2"])
        self.assertEqual(sorted(ordered, key=leasehold.Token.sortable), ordered)
        token = leasehold.Token("9.10")
        self.assertTrue("9.9" < token < "10.2" and token <= "9.10" and not token >= "9.11")
        self.assertEqual((token.epoch, token.seq, json.dumps(token)), (9, 10, '"9.10"'))
        for wrong in ("", "9", "9.", "a.1", "-1.2", "1.2.3"):
            with self.assertRaises(ValueError, msg=wrong):
                leasehold.Token(wrong)

    def test_a_token_is_a_fence_in_a_database(self):
        """As docs/FENCING.md writes it."""
        db = sqlite3.connect(":memory:")
        self.addCleanup(db.close)
        db.execute(
            "CREATE TABLE sink(stream TEXT PRIMARY KEY, epoch INTEGER, seq INTEGER, body TEXT)"
        )
        fence = """INSERT INTO sink VALUES (:stream, :epoch, :seq, :body)
            ON CONFLICT (stream) DO UPDATE SET epoch = :epoch, seq = :seq, body = :body
            WHERE (sink.epoch, sink.seq) <= (:epoch, :seq)"""

        def write(token, body):
            token = leasehold.Token(token)
            row = {"stream": "new", "epoch": token.epoch, "seq": token.seq, "body": body}
            return db.execute(fence, row).rowcount == 1

        written = [write("1.9", "a"), write("1.10", "b"), write("1.9", "late"), write("1.10", "c")]
        self.assertEqual(written, [True, True, False, True])
        self.assertEqual(db.execute("SELECT body FROM sink").fetchall(), [("c",)])


if __name__ == "__main__":
    unittest.main()
