"""The list of tests in TypeScript, with a planted test that cannot be listed."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from node_tests import names_in

LISTED = 'test("a job waits", async (t) => {\n  assert.ok(FORM.test("a"));\n});\n'


class TestsOfNode(unittest.TestCase):
    def test_tests_are_listed_by_their_names(self):
        self.assertEqual(names_in(LISTED + LISTED.replace("waits", "ends")),
                         ["a job waits", "a job ends"])

    def test_a_test_that_cannot_be_listed_is_found(self):
        for planted in ('test(\n  "two lines", () => {});', "  test(name, () => {});"):
            with self.assertRaisesRegex(ValueError, "begin each with test"):
                names_in(LISTED + planted)


if __name__ == "__main__":
    unittest.main()
