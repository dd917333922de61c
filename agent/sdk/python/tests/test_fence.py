"""The fence in a store, which refuses the token of a former owner."""

import sqlite3
import unittest

import leasehold

from .fake_agent import FakeAgent


class Fence(unittest.TestCase):
    def setUp(self):
        self.agent = FakeAgent()
        self.addCleanup(self.agent.kill)
        worker = leasehold.Worker(self.agent.address)
        self.addCleanup(worker.close, 0)
        self.streams = worker.streams()

    def test_a_database_refuses_a_token_below_the_highest(self):
        self.agent.show("new", "8.9")
        first = next(self.streams)
        first.release()
        self.agent.show("new", "8.10")
        second = next(self.streams)
        database = sqlite3.connect(":memory:")
        self.addCleanup(database.close)
        database.execute(leasehold.FENCE_TABLE)
        for owner in (first, second, second):
            with database:
                owner.fence(database.cursor(), "?")
        with self.assertRaises(leasehold.StaleToken) as refused, database:
            first.fence(database.cursor(), "?")
        self.assertEqual(
            str(refused.exception),
            "token 8.9 of cars/new is stale: the store has 8.10 of a later owner; "
            "write nothing more and release it",
        )
        self.assertEqual(refused.exception.newer, "8.10")
        with database:
            second.fence(database.cursor(), "?")

    def test_a_token_below_the_newest_is_stale(self):
        self.agent.show("new", "8.9")
        stream = next(self.streams)
        for newest in ("8.8", "8.9"):
            stream.check_token(newest)
        with self.assertRaisesRegex(leasehold.StaleToken, "the store has 8.10 of a later owner"):
            stream.check_token("8.10")


if __name__ == "__main__":
    unittest.main()
