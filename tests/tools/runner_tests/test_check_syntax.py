"""The check of Python files with planted mistakes."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from check_syntax import problems_of

WORKER = """
class Worker:
    def __init__(self):
        self.{attribute} = 1

    def stop(self):
        pass
"""


class PythonFiles(unittest.TestCase):
    def test_an_attribute_that_hides_a_method_is_found(self):
        self.assertEqual(problems_of(WORKER.format(attribute="stopped")), [])
        [(line, why)] = problems_of(WORKER.format(attribute="stop"))
        self.assertEqual(line, 4)
        self.assertIn("the attribute stop hides a method of Worker", why)

    def test_invalid_python_is_found(self):
        [(line, _)] = problems_of("good = 1\nif:\n")
        self.assertEqual(line, 2)


if __name__ == "__main__":
    unittest.main()
