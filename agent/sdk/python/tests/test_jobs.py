"""Jobs: requests for slots, reports of ends, and restarts of the agent in between."""

import threading
import unittest
from unittest import mock

import leasehold
from leasehold import jobs

from .fake_agent import HANG_S, FakeAgent, eventually


class Jobs(unittest.TestCase):
    def setUp(self):
        self.agent = FakeAgent(pool=1)
        self.addCleanup(self.agent.kill)
        self.worker = leasehold.Worker(self.agent.address)
        self.addCleanup(self.worker.close, 0)

    def test_a_block_is_a_job(self):
        with self.worker.job("build/1 ä") as job:
            self.assertEqual((job.id, job.token), ("build/1 ä", "1.1"))
            self.assertEqual(self.agent.jobs, {"build/1 ä"})
        eventually("the end", lambda: not self.agent.jobs)

    def test_the_start_is_announced_before_the_first_request(self):
        self.worker.job("a").end()
        paths = [path.split("?")[0] for _, path, _ in self.agent.calls]
        self.assertEqual(paths[0], "/v1/start")
        self.assertLess(paths.index("/v1/start"), paths.index("/v1/jobs/a"))

    def test_handlers_run_at_once_as_far_as_there_are_slots_until_the_drain(self):
        self.agent.change(pool=2)
        together, begun, at_once = threading.Barrier(2, timeout=60), [], []

        def handle(job):
            begun.append(job.id)
            if len(begun) > 6:
                self.agent.change(draining=True)
            at_once.append(len(self.agent.jobs))
            if len(begun) <= 2:
                together.wait()
            if len(begun) == 4:
                raise ZeroDivisionError

        with self.assertLogs("leasehold", "ERROR") as logs:
            self.worker.run_jobs(handle, 3)
        self.assertIn("ZeroDivisionError", "\n".join(logs.output))
        self.assertGreater(len(begun), 6)
        self.assertEqual(max(at_once), 2)
        eventually("the ends", lambda: not self.agent.jobs)
        with self.assertRaises(ValueError):
            self.worker.run_jobs(handle, 0)

    def test_a_failing_job_ends_too(self):
        with self.assertRaises(ZeroDivisionError), self.worker.job("a"):
            1 / 0
        eventually("the end", lambda: not self.agent.jobs)

    def test_an_id_that_is_no_text_is_refused_and_stops_nothing(self):
        for wrong in (5, b"x", 1.5):
            with self.assertRaisesRegex(TypeError, "invalid job id .*: use a text"):
                self.worker.job(wrong)
        for wait in ("5", float("inf"), float("nan")):
            with self.assertRaisesRegex(TypeError, "invalid wait .*: use seconds"):
                self.worker.job("a", wait=wait)
        self.worker.job("a").end()
        self.worker.job("b").end()
        eventually("the ends", lambda: not self.agent.jobs)

    def test_a_turn_of_the_loop_may_give_its_slot_back_early(self):
        turns = 0
        for job in self.worker.jobs():
            job.end()
            eventually("the end", lambda: not self.agent.jobs)
            turns += 1
            if turns == 2:
                self.agent.change(draining=True)
        self.assertEqual(turns, 2)

    def test_a_job_waits_for_a_slot(self):
        first = self.worker.job("a")
        began = threading.Event()
        second = threading.Thread(target=lambda: (self.worker.job("b"), began.set()))
        second.start()
        eventually("the question", lambda: self.agent.called("PUT", "/v1/jobs/b"))
        self.assertFalse(began.is_set())
        first.end()
        second.join()
        self.assertEqual(self.agent.jobs, {"b"})

    def test_a_timeout_is_refused_and_leaves_no_slot_in_use(self):
        with self.worker.job("a"):
            with self.assertRaises(leasehold.Refused) as refused:
                self.worker.job("b", wait=0.05)
            self.assertEqual(refused.exception.reason, "no_slot")
            self.assertEqual(self.agent.jobs, {"a"})

    def test_the_end_of_what_was_given_up_follows_the_request(self):
        self.worker.job("first").end()
        self.agent.change(unread={"/v1/jobs/a"})
        with mock.patch.object(jobs, "ANSWER_S", 0.1), self.assertRaises(leasehold.Unreachable):
            self.worker.job("a", wait=0.05)
        # While the agent may still read the request, its end would come too early. Others do not
        # wait for it: the end of `b` would be sent after that of `a`.
        self.worker.job("b").end()
        eventually("the end of b", lambda: self.agent.called("DELETE", "/v1/jobs/b"))
        self.assertEqual(self.agent.called("DELETE", "/v1/jobs/a"), [])
        with self.assertRaises(leasehold.Unreachable):
            self.worker.job("a", wait=0.05)
        self.agent.change(unread=set())
        eventually("the end of a", lambda: self.agent.called("DELETE", "/v1/jobs/a"))
        eventually("free slots", lambda: not self.agent.jobs)
        self.assertEqual(len(self.agent.called("PUT", "/v1/jobs/a")), 1)

    def test_a_request_without_an_answer_is_over_before_the_next_is_sent(self):
        self.worker.job("first").end()
        self.agent.change(unread={"/v1/jobs/a"})
        times = {"ANSWER_S": 0.1, "WAIT_MS_MAX": 50, "PAUSE_MIN_S": 0.001}
        with mock.patch.multiple(jobs, **times):
            waiting = threading.Thread(target=lambda: self.worker.job("a").end())
            waiting.start()
            eventually("it to hang up", lambda: self.agent.hung_up)
            for number in range(20):
                self.worker.job(f"other {number}").end()
            self.assertEqual(self.agent.arrived, ["/v1/jobs/a"])
            self.agent.change(unread=set())
            waiting.join()
        eventually("free slots", lambda: not self.agent.jobs)

    def test_no_more_requests_for_slots_are_under_way_than_there_are_turns(self):
        first = self.worker.job("first")
        self.worker._jobs.turns = threading.BoundedSemaphore(1)
        waiting = threading.Thread(target=lambda: self.worker.job("a").end())
        waiting.start()
        eventually("the question", lambda: self.agent.called("PUT", "/v1/jobs/a"))
        with self.assertRaises(leasehold.Refused) as refused:
            self.worker.job("b", wait=0.05)
        self.assertEqual(refused.exception.reason, "no_slot")
        self.assertEqual(self.agent.called("PUT", "/v1/jobs/b"), [])
        first.end()
        waiting.join()
        # An answer makes room for the next request.
        self.worker.job("b", wait=HANG_S).end()

    def test_an_invalid_id_is_refused_at_once(self):
        with self.assertRaises(leasehold.Refused) as refused:
            self.worker.job("a\nb")
        self.assertEqual(refused.exception.reason, "invalid")

    def test_an_id_runs_once(self):
        with self.worker.job("a"), self.assertRaises(ValueError):
            self.worker.job("a")
        # Its end is heard before it begins again: it does not end the second run.
        with self.worker.job("a"):
            self.assertEqual(self.agent.jobs, {"a"})
            self.assertEqual(len(self.agent.called("DELETE", "/v1/jobs/a")), 1)

    def test_a_drain_ends_the_loop(self):
        done = []
        for job in self.worker.jobs():
            done.append(job.id)
            if len(done) == 3:
                self.assertEqual(self.worker.drain(), 1)
        self.assertEqual(len(set(done)), 3)
        with self.assertRaises(leasehold.Draining):
            self.worker.job()
        eventually("the last end", lambda: not self.agent.jobs)

    def test_an_end_is_reported_after_the_agent_restarts(self):
        job = self.worker.job("a")
        self.agent.kill()
        job.end()
        self.agent.revive()
        eventually("the end", lambda: not self.agent.jobs)
        with self.worker.job("b"):
            self.assertEqual(self.agent.jobs, {"b"})

    def test_an_end_that_the_agent_cannot_write_is_repeated(self):
        job = self.worker.job("a")
        self.agent.change(full=True)
        job.end()
        eventually("a second try", lambda: self.agent.called("DELETE", "/v1/jobs/a")[1:])
        self.assertEqual(self.agent.jobs, {"a"})
        self.agent.change(full=False)
        eventually("the end", lambda: not self.agent.jobs)

    def test_an_agent_with_a_journal_counts_each_job_once(self):
        self.agent.pool = 2
        first, _second = self.worker.job("a"), self.worker.job("b")
        self.agent.kill()
        self.agent.revive()
        starts = eventually("the word", lambda: self.agent.called("POST", "/v1/start")[2:])
        self.assertEqual(starts[0][2]["running"], 2)
        self.assertEqual((self.agent.jobs, self.agent.unnamed), ({"a", "b"}, 0))
        first.end()
        eventually("the end", lambda: self.agent.jobs == {"b"})

    def test_an_agent_without_a_journal_gets_the_number_of_jobs(self):
        self.agent.pool = 3
        first, second = self.worker.job("a"), self.worker.job("b")
        self.agent.kill()
        self.agent.forget()
        self.agent.revive()
        eventually("the word", lambda: self.agent.unnamed == 2)
        # A job that this agent knows the id of is no part of that number.
        third = self.worker.job("c")
        first.end()
        eventually("one fewer", lambda: self.agent.unnamed == 1)
        third.end()
        eventually("its end", lambda: not self.agent.jobs)
        self.assertEqual(self.agent.unnamed, 1)
        second.end()
        eventually("none", lambda: self.agent.unnamed == 0)

    def test_a_waiting_job_is_requested_again_after_an_agent_restart(self):
        first = self.worker.job("a")
        began = []
        second = threading.Thread(target=lambda: began.append(self.worker.job("b")))
        second.start()
        eventually("the question", lambda: self.agent.called("PUT", "/v1/jobs/b"))
        self.agent.kill()
        self.agent.forget()
        self.agent.revive()
        eventually("the word", lambda: self.agent.unnamed == 1)
        self.assertEqual(began, [], "a waiting job does not run")
        first.end()
        second.join()
        self.assertEqual((self.agent.jobs, self.agent.unnamed), ({"b"}, 0))

    def test_a_missing_agent_is_unreachable_within_the_wait(self):
        self.agent.kill()
        with self.assertRaises(leasehold.Unreachable):
            self.worker.job(wait=0.05)
        self.agent.revive()

    def test_a_second_process_of_the_worker_announces_no_start(self):
        agent = FakeAgent()
        agent.start_id = "told by the worker's first process"
        self.addCleanup(agent.kill)
        with leasehold.Worker(agent.address, start=False) as helper, helper.job("of a helper"):
            self.assertEqual(agent.jobs, {"of a helper"})
        self.assertEqual(agent.called("POST", "/v1/start"), [])

    def test_closing_ends_the_loops_and_reports_unconfirmed_ends(self):
        job = self.worker.job("a")
        loop = threading.Thread(target=lambda: list(self.worker.jobs()))
        loop.start()
        job.end()
        self.worker.close()
        loop.join()
        with self.assertRaises(leasehold.Closed):
            self.worker.job()


if __name__ == "__main__":
    unittest.main()
