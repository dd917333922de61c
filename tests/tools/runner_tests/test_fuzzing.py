"""Fuzzers that are remembered, and findings that come again until they are mended."""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runner import fuzzing
from runner.fuzzing import Fuzzer

# Stands for a program of libFuzzer: it ends with an input that it keeps, or with one that it is
# given, if a file named `defect` is beside it.
PROGRAM = """#!/usr/bin/env bash
cd "$(dirname "$0")"
echo "$*" >>calls
echo "#12 DONE cov: 3 ft: 4 corp: 2/9b exec/s: 6"
[[ -e defect ]] || exit 0
for one in "$@"; do
    [[ $one == -artifact_prefix=* ]] && echo input >"${one#*=}crash-1"
done
exit 77
"""


class Planted(Fuzzer):
    """A fuzzer whose program is the one above."""

    @property
    def program(self) -> Path:
        return fuzzing.PACKAGE / "program"


class Fuzzing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("ROOT", "PACKAGE", "CACHE"):
            patch = mock.patch.object(fuzzing, name, self.folder)
            patch.start()
            self.addCleanup(patch.stop)
        self.fuzzer = Planted("planted")
        self.fuzzer.program.write_text(PROGRAM)
        self.fuzzer.program.chmod(0o755)
        self.fuzzer.corpus.mkdir(parents=True)
        (self.fuzzer.corpus / "one").write_text("1")
        self.said = []

    def fuzz(self) -> str | None:
        return fuzzing.fuzz(self.fuzzer, 60, self.said.append)

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def test_a_minute_is_remembered_until_the_program_or_an_input_changes(self):
        self.assertFalse(fuzzing.has_passed(self.fuzzer, 60))
        self.assertIsNone(self.fuzz())
        self.assertTrue(fuzzing.has_passed(self.fuzzer, 60))
        self.assertFalse(fuzzing.has_passed(self.fuzzer, 61), "it ran for less")
        (self.fuzzer.corpus / "two").write_text("2")
        self.assertFalse(fuzzing.has_passed(self.fuzzer, 60))
        self.assertIsNone(self.fuzz())
        self.fuzzer.program.write_text(PROGRAM + "# changed\n")
        self.assertFalse(fuzzing.has_passed(self.fuzzer, 60))

    def test_what_is_remembered_gets_only_the_committed_inputs(self):
        self.assertIsNone(fuzzing.replay(self.fuzzer, self.said.append))
        [call] = self.calls()
        self.assertIn("-runs=0", call)
        self.assertIn(str(self.fuzzer.corpus), call)
        self.assertNotIn(str(self.fuzzer.kept), call)
        self.assertEqual(
            fuzzing.status(self.fuzzer), "#12 DONE cov: 3 ft: 4 corp: 2/9b exec/s: 6")

    def test_a_finding_is_named_is_not_remembered_and_comes_first_until_it_passes(self):
        (self.folder / "defect").touch()
        found = self.fuzz()
        self.assertIn("tests/tools/fuzz planted planted/artifacts/crash-1", found)
        self.assertFalse(fuzzing.has_passed(self.fuzzer, 60))
        self.calls()

        self.assertIn("crash-1", self.fuzz())
        self.assertEqual(len(self.calls()), 1, "only the finding runs while it fails")
        self.assertIn("crash-1", fuzzing.replay(self.fuzzer, self.said.append))

        os.unlink(self.folder / "defect")
        self.calls()
        self.assertIsNone(self.fuzz())
        self.assertEqual(len(self.calls()), 2)
        self.assertEqual(self.fuzzer.findings(), [])


if __name__ == "__main__":
    unittest.main()
