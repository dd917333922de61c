"""The runner of tests in Go with a real module in which failures are planted."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RUNNER = Path(__file__).resolve().parent.parent / "go_tests.py"
PASSES = "func TestPasses(t *testing.T) {}\n"
FAILS = 'func TestFails(t *testing.T) { t.Run("part", func(t *testing.T) { t.Error("why") }) }\n'
SKIPS = "func TestSkips(t *testing.T) { t.Skip() }\n"


@unittest.skipUnless(shutil.which("go"), "no go")
class PlantedFailures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.module = Path(folder.name)
        (self.module / "go.mod").write_text("module example.com/planted\n\ngo 1.21\n")
        self.plant(".", PASSES)

    def plant(self, package, *tests):
        """Writes tests into a package."""
        folder = self.module / package
        folder.mkdir(exist_ok=True)
        text = "".join(['package planted\n\nimport "testing"\n\n', *tests])
        (folder / "planted_test.go").write_text(text)

    def run_tests(self, *flags):
        """Runs the tests; returns the exit code and the lines."""
        command = [sys.executable, str(RUNNER), str(self.module), *flags]
        done = subprocess.run(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout.splitlines()

    def test_each_test_is_listed_and_runs_alone(self):
        self.plant("below", PASSES, FAILS)
        code, lines = self.run_tests("--list", "--format", "terse")
        self.assertEqual((code, lines), (0, [
            "./TestPasses: test", "below/TestFails: test", "below/TestPasses: test"]))
        code, lines = self.run_tests("--exact", "below/TestPasses")
        self.assertEqual((code, lines), (0, [
            "test below/TestPasses ... ok",
            "test result: ok. 1 passed; 0 failed; 0 ignored"]))

    def test_a_failure_is_shown_once_with_what_it_printed(self):
        self.plant("below", FAILS, SKIPS)
        code, lines = self.run_tests()
        self.assertEqual(code, 1)
        ends = sorted(line for line in lines if line.startswith("test ") and " ... " in line)
        self.assertEqual(ends, [
            "test ./TestPasses ... ok", "test below/TestFails ... FAILED",
            "test below/TestSkips ... ignored"])
        section = lines[lines.index("---- below/TestFails stdout ----"):]
        self.assertTrue(any(line.endswith(": why") for line in section), section)
        self.assertEqual(lines[-1], "test result: FAILED. 1 passed; 1 failed; 1 ignored")

    def test_what_does_not_compile_fails_and_is_shown(self):
        self.plant("below", "nonsense\n")
        for flags in ([], ["--list"]):
            code, lines = self.run_tests(*flags)
            self.assertEqual(code, 1, lines)
            self.assertTrue(any("planted_test.go" in line for line in lines), lines)

    def test_a_program_that_ends_by_itself_fails(self):
        exits = 'func TestExits(t *testing.T) { os.Exit(3) }\n'
        self.plant("below", 'import "os"\n\n', exits)
        code, lines = self.run_tests()
        self.assertEqual((code, lines[-1].split(".")[0]), (1, "test result: FAILED"))


if __name__ == "__main__":
    unittest.main()
