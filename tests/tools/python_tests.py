"""Runs the unit tests of the SDK for Python, and prints a summary line like Rust's runner."""

import sys
import unittest
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent.parent / "agent" / "sdk" / "python"


def main() -> int:
    sys.dont_write_bytecode = True
    tests = unittest.defaultTestLoader.discover(str(SDK), top_level_dir=str(SDK))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, buffer=True).run(tests)
    bad = result.failures + result.errors
    for test, _ in bad:
        print(f"test {test} ... FAILED")
    skipped = len(result.skipped)
    passed = result.testsRun - len(bad) - skipped
    word = "FAILED" if bad else "ok"
    print(f"test result: {word}. {passed} passed; {len(bad)} failed; {skipped} ignored; 0 measured")
    return 1 if bad or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
