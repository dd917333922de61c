"""Bindings: handed out like streams, and where their documents go next."""

import threading
import unittest

import leasehold
from leasehold.bindings import Turns
from leasehold.messages import Endpoint, Next

from .fake_agent import FakeAgent, eventually


class Bindings(unittest.TestCase):
    def setUp(self):
        self.agent = FakeAgent()
        self.addCleanup(self.agent.kill)
        self.worker = leasehold.Worker(self.agent.address)
        self.addCleanup(self.worker.close, 0)

    def released(self, token):
        return self.agent.called("DELETE", f"/v1/bindings/ns%2Ffirst/in/2?token={token}")

    def test_a_block_owns_a_binding_and_sees_the_newest_way_on(self):
        self.agent.bind("8.17", next=[("a", 1)], valid_for_ms=60_000)
        with next(self.worker.bindings()) as binding:
            self.assertEqual((binding.pipeline, binding.node, binding.index), ("ns/first", "in", 2))
            self.assertEqual((binding.token, binding.documents_per_second), ("8.17", 2.5))
            self.assertTrue(binding.valid())
            self.assertEqual(binding.pick("out").address, "a:80")
            self.assertIsNone(binding.pick("elsewhere"))
            self.agent.bind("8.17", next=[("a", 1), ("b", 1)], valid_for_ms=60_000)
            eventually("the way on", lambda: len(binding.next[0].endpoints) == 2)
            picked = [binding.pick("out").worker for _ in range(4)]
            self.assertEqual(sorted(picked), ["a", "a", "b", "b"])
            self.agent.bind("8.17", next=[], valid_for_ms=60_000)
            eventually("nobody to be next", lambda: not binding.pick("out"))
            self.assertEqual(self.released("8.17"), [])
        eventually("the release", lambda: self.released("8.17"))
        self.assertFalse(binding.valid())

    def test_a_token_is_handed_out_once_and_its_next_after_the_last_was_released(self):
        self.agent.bind("8.1", next=[("a", 1)])
        bindings = self.worker.bindings()
        last = next(bindings)
        self.agent.bind("8.2", next=[("b", 1)])
        last.lost.wait()
        self.assertEqual(last.pick("out").worker, "a")
        last.release()
        self.assertEqual(next(bindings).token, "8.2")

    def test_a_worker_that_takes_only_streams_gives_no_binding_back(self):
        self.agent.bind("8.1", "revoked")
        self.agent.show("new", "8.2")
        next(self.worker.streams()).release()
        eventually("the stream", lambda: self.agent.called("DELETE", "/v1/streams/"))
        self.assertEqual(self.released("8.1"), [])

    def test_a_handler_for_each_binding(self):
        self.agent.bind("8.1")
        held = threading.Event()

        def handle(binding):
            held.set()
            binding.stopping.wait()

        serving = threading.Thread(target=self.worker.run_bindings, args=(handle,))
        serving.start()
        held.wait()
        self.agent.bind("8.1", "revoked", release_within_ms=30_000)
        eventually("the release", lambda: self.released("8.1"))
        self.agent.change(draining=True)
        serving.join()

    def test_a_drain_goes_on_with_what_was_handed_out_and_gives_the_rest_back(self):
        self.agent.bind("8.1")
        bindings = self.worker.bindings()
        binding = next(bindings)
        self.agent.change(draining=True)
        self.assertIsNone(next(bindings, None))
        self.assertFalse(binding.stopping.is_set())
        self.assertTrue(binding.valid())
        self.agent.bind("8.2")
        binding.lost.wait()
        binding.release()
        eventually("the release of what nobody takes", lambda: self.released("8.2"))


class Choice(unittest.TestCase):
    def picks(self, turns, count, *endpoints):
        """What is picked among `(WORKER, LOAD)`, with a `~` before one that drains."""
        listed = tuple(
            Endpoint(worker.strip("~"), "", load, worker.startswith("~"))
            for worker, load in endpoints
        )
        picked = [turns.pick(Next("out", listed)) for _ in range(count)]
        return "".join(it.worker if it is not None else "-" for it in picked)

    def test_workers_take_turns_in_proportion_to_their_loads_and_smoothly(self):
        picks = self.picks(Turns(), 14, ("a", 5.0), ("b", 1.0), ("c", 1.0))
        self.assertEqual(picks, "aabacaaaabacaa")
        self.assertEqual(self.picks(Turns(), 8, ("a", 2.5), ("b", 7.5)), "babbbabb")

    def test_one_that_drains_takes_documents_only_where_nobody_else_does(self):
        turns = Turns()
        self.assertEqual(self.picks(turns, 3, ("~a", 5.0), ("b", 1.0)), "bbb")
        self.assertEqual(self.picks(turns, 4, ("~a", 1.0), ("~b", 1.0)), "abab")
        self.assertEqual(self.picks(turns, 1), "-")

    def test_a_change_of_the_workers_keeps_the_turns_of_those_that_stay(self):
        turns = Turns()
        self.assertEqual(self.picks(turns, 1, ("a", 1.0), ("b", 1.0), ("c", 1.0)), "a")
        self.assertEqual(self.picks(turns, 5, ("a", 1.0), ("b", 1.0)), "bbaba")
        self.assertEqual(self.picks(turns, 2, ("a", 0.0), ("b", 1.0)), "bb")
        self.assertEqual(self.picks(turns, 4, ("a", 0.0), ("b", 0.0)), "baba")

    def test_what_was_due_under_larger_loads_is_no_debt_under_smaller_ones(self):
        turns = Turns()
        self.assertEqual(self.picks(turns, 1, ("a", 900.0), ("b", 800.0)), "a")
        self.assertEqual(self.picks(turns, 6, ("a", 1.0), ("b", 1.0)), "bbabab")


if __name__ == "__main__":
    unittest.main()
