"""Runs the unit tests in Python below a folder, with the flags and the output of Rust's runner:

    python3 tests/tools/python_tests.py agent/sdk/python [--list] [--exact NAME]
"""

import sys
import unittest
from pathlib import Path


class Lines(unittest.TestResult):
    """Prints a line for each test, as Rust's runner does."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = True
        self.texts: dict[str, str] = {}

    def _end(self, test: unittest.TestCase, result: str) -> None:
        # Past the buffer of the test's own output.
        print(f"test {test.id()} ... {result}", file=sys.__stdout__, flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._end(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._end(test, "ignored")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.texts[test.id()] = self.failures[-1][1]
        self._end(test, "FAILED")

    def addError(self, test, err):
        super().addError(test, err)
        self.texts[test.id()] = self.errors[-1][1]
        self._end(test, "FAILED")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            failures = self.failures if issubclass(err[0], test.failureException) else self.errors
            self.texts[test.id()] = failures[-1][1]
            self._end(test, "FAILED")


def cases(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    """The tests of a suite, one by one."""
    found = []
    for one in suite:
        found += cases(one) if isinstance(one, unittest.TestSuite) else [one]
    return found


def main() -> int:
    sys.dont_write_bytecode = True
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) > 1 else 2
    folder, flags = str(Path(sys.argv[1]).resolve()), sys.argv[2:]
    tests = cases(unittest.defaultTestLoader.discover(folder, top_level_dir=folder))
    if "--exact" in flags:
        wanted = flags[flags.index("--exact") + 1]
        tests = [test for test in tests if test.id() == wanted]
    if "--list" in flags:
        print("\n".join(f"{test.id()}: test" for test in tests))
        return 0
    lines = Lines()
    unittest.TestSuite(tests).run(lines)
    if lines.texts:
        print("\nfailures:\n")
        for name, text in lines.texts.items():
            print(f"---- {name} stdout ----\n{text}\n")
        print("failures:")
    failed, skipped = len(lines.texts), len(lines.skipped)
    word = "FAILED" if failed else "ok"
    passed = lines.testsRun - failed - skipped
    print(f"test result: {word}. {passed} passed; {failed} failed; {skipped} ignored")
    return 1 if failed or not lines.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
