"""The test command with real test binaries in which failures are planted."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS))

from runner import report
from runner.binaries import TestBinary
from runner.execution import BinaryRun, Lane, Progress, run_lanes, run_binary
from runner.libtest import Outcome, Reader
from runner.passed import Passed
from runner.result import FLAKY_MAX, rerun_failed

TESTS = ["always_passes", "fails_twice", "flaky_1", "flaky_2", "flaky_3", "flaky_4",
         "kills_its_process", "never_ends"]


class PlantedFailures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.built = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.built.cleanup)
        cls.program = Path(cls.built.name) / "planted"
        source = Path(__file__).with_name("planted.rs")
        subprocess.run(["rustc", "--test", "--edition=2024", "-o", cls.program, source], check=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def binary(self, *planted: str) -> TestBinary:
        environment = {"PLANTED": ",".join(planted), "PLANTED_FOLDER": str(self.folder)}
        return TestBinary("planted: unit", (str(self.program),), self.folder, environment)

    def run_with(self, *planted: str):
        """Runs the binary with these failures; returns the result and what was printed."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            progress = Progress()
            runs = run_lanes([Lane("planted", [self.binary(*planted)])], self.folder, progress)
            result = rerun_failed(runs, self.folder / "flaky", progress)
            print("\n".join(result.lines()))
        return result, printed.getvalue()

    def test_a_run_without_a_failure_is_green(self):
        result, printed = self.run_with()
        self.assertFalse(result.is_red())
        self.assertTrue(printed.endswith("leasehold: 8 passed, 0 failed, 0 skipped\n"), printed)
        self.assertFalse((self.folder / "flaky").exists())

    def test_a_failure_that_passes_alone_is_flaky_and_keeps_its_evidence(self):
        result, printed = self.run_with("flaky_1")
        self.assertFalse(result.is_red())
        self.assertIn("\nflaky: flaky_1 (passed alone; evidence in ", printed)
        self.assertTrue(printed.endswith("leasehold: 8 passed, 0 failed, 0 skipped\n"), printed)
        evidence = result.flaky[0].evidence
        self.assertIn("the first run of it fails", (evidence / "failure.txt").read_text())
        self.assertIn("test always_passes ... ok", (evidence / "binary.log").read_text())
        self.assertIn("test flaky_1 ... ok", (evidence / "alone.log").read_text())

    def test_only_the_failed_test_runs_again(self):
        self.run_with("flaky_1")
        self.assertEqual((self.folder / "always_passes").read_text(), "1")
        self.assertEqual((self.folder / "flaky_1").read_text(), "2")

    def test_of_a_binary_that_takes_no_names_all_tests_run_again(self):
        for planted, is_red, times in [("flaky_1", False, "2"), ("fails_twice", True, "4")]:
            binary = replace(self.binary(planted), takes_names=False)
            with contextlib.redirect_stdout(io.StringIO()):
                runs = run_lanes([Lane("planted", [binary])], self.folder, Progress())
                result = rerun_failed(runs, self.folder / "flaky", Progress())
            self.assertEqual(result.is_red(), is_red, planted)
            self.assertEqual([one.name for one in result.flaky], [] if is_red else [planted])
            self.assertEqual((self.folder / "always_passes").read_text(), times)

    def test_a_failure_that_fails_again_is_red(self):
        result, printed = self.run_with("fails_twice")
        self.assertTrue(result.is_red())
        self.assertIn("the evidence of fails_twice", printed)
        self.assertIn("\ntest fails_twice ... FAILED\n", printed)
        self.assertTrue(printed.endswith("leasehold: 7 passed, 1 failed, 0 skipped\n"), printed)

    def noted(self, *planted: str) -> tuple[Passed, TestBinary]:
        """Runs the binary of a package with these failures: what is remembered, and the binary."""
        package = self.folder / "package"
        package.mkdir()
        (package / "data").write_text("1")
        command, environment = (str(self.program),), self.binary(*planted).environment
        binary = TestBinary("planted: unit", command, package, environment)
        passed = Passed(self.folder / "passed", [binary.name])
        self.assertIsNone(passed.find(binary))
        with contextlib.redirect_stdout(io.StringIO()):
            for run in run_lanes([Lane("planted", [binary])], self.folder, Progress()):
                passed.note(run)
        return passed, binary

    def test_a_binary_that_passed_is_found_until_what_it_depends_on_changes(self):
        passed, binary = self.noted()
        found = passed.find(binary)
        self.assertEqual(sorted(one.name for one in found.outcomes), TESTS)
        self.assertIn("8 tests passed earlier", "".join(report.passed_before([found])))

        (binary.folder / "data").write_text("2")
        self.assertIsNone(passed.find(binary))
        (binary.folder / "data").write_text("1")
        self.assertIsNotNone(passed.find(binary))

        os.environ["LEASEHOLD_PLANTED"] = "1"
        self.addCleanup(os.environ.pop, "LEASEHOLD_PLANTED", None)
        self.assertIsNone(passed.find(binary))
        del os.environ["LEASEHOLD_PLANTED"]

        program = self.folder / "other"
        program.write_bytes(self.program.read_bytes() + b"1")
        other = TestBinary(binary.name, (str(program),), binary.folder)
        self.assertIsNone(passed.find(other))

    def test_a_binary_with_a_failure_is_not_remembered(self):
        passed, binary = self.noted("flaky_1")
        self.assertIsNone(passed.find(binary))

    def test_a_binary_that_passed_is_taken_from_its_lane_and_others_stay(self):
        passed, binary = self.noted()
        other = TestBinary("another: unit", binary.command, binary.folder)
        runs, [lane] = passed.take_from([Lane("planted", [binary, other], threads=3)])
        self.assertEqual([run.binary for run in runs], [binary])
        self.assertEqual(lane, Lane("planted", [other], threads=3))

    def test_a_binary_that_is_not_deterministic_is_not_remembered(self):
        _, binary = self.noted()
        passed = Passed(self.folder / "passed", [])
        self.assertIsNone(passed.find(binary))
        passed = Passed(self.folder / "others", [])
        passed.note(BinaryRun(binary, self.folder, [Outcome("always_passes", "ok", 0.0)]))
        self.assertFalse((self.folder / "others").exists())

    def test_examples_run_again_when_a_source_or_a_library_changes(self):
        sources = self.folder / "sources"
        sources.mkdir()
        subprocess.run(["git", "init", "--quiet"], cwd=sources, check=True)
        for file in ["lib.rs", "Cargo.toml", "Cargo.lock", "text"]:
            (sources / file).write_text("1")
        binary = TestBinary("examples", ("cargo", "test", "--doc"), sources)
        passed = Passed(self.folder / "passed", [binary.name])
        passed.note(BinaryRun(binary, sources, [Outcome("lib.rs - (line 1)", "ok", 0.0)]))
        for file in ["lib.rs", "Cargo.toml", "Cargo.lock"]:
            self.assertIsNotNone(passed.find(binary), file)
            (sources / file).write_text("2")
            self.assertIsNone(passed.find(binary), file)
            (sources / file).write_text("1")
        (sources / "text").write_text("2")
        self.assertIsNotNone(passed.find(binary))

    def test_more_than_three_flaky_tests_are_red(self):
        names = [f"flaky_{number}" for number in range(1, 5)]
        result, _ = self.run_with(*names[:FLAKY_MAX])
        self.assertFalse(result.is_red())
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        result, printed = self.run_with(*names)
        self.assertTrue(result.is_red())
        self.assertEqual(result.failed, [])
        self.assertEqual(sorted(one.name for one in result.flaky), names)
        self.assertIn("4 flaky tests, of at most 3", printed)

    def test_a_crash_names_the_tests_that_ran_and_each_runs_again(self):
        result, printed = self.run_with("kills_its_process")
        self.assertIn("running: ", printed)
        self.assertIn("kills_its_process", printed)
        self.assertEqual(result.failed, [])
        self.assertIn("kills_its_process", [one.name for one in result.flaky])
        self.assertEqual(result.passed, len(TESTS))

    def test_a_binary_that_ends_no_test_is_killed_and_the_test_is_named(self):
        run = run_binary(
            self.binary("never_ends"), [], self.folder / "log", silence_seconds_max=0.5)
        self.assertIn("was killed", run.broken)
        self.assertTrue(run.broken.endswith("running: never_ends"), run.broken)
        self.assertEqual({one.name: one.result for one in run.outcomes}["never_ends"], "FAILED")

    def test_a_missing_program_is_red(self):
        binary = TestBinary("missing: unit", (str(self.folder / "missing"),), self.folder)
        with contextlib.redirect_stdout(io.StringIO()):
            runs = run_lanes([Lane("planted", [binary])], self.folder, Progress())
            result = rerun_failed(runs, self.folder / "flaky", Progress())
        self.assertEqual(len(result.failed), 1)


class Durations(unittest.TestCase):
    def test_a_test_starts_when_an_earlier_one_ends(self):
        reader = Reader(listed=["a", "b", "c", "d"], threads=2, started=100.0)
        ends = [("test b ... ok", 103.0), ("test a ... ok", 104.0), ("test d ... FAILED", 105.0),
                ("test c ... ok", 110.0)]
        outcomes = [reader.line(line, now) for line, now in ends]
        # c starts at the first end, d at the second.
        self.assertEqual([one.seconds for one in outcomes], [3.0, 4.0, 1.0, 7.0])

    def test_the_name_of_a_test_is_the_one_that_is_listed(self):
        for line, name in [
            ("test a::b ... ok", "a::b"),
            ("test a::b - should panic ... FAILED", "a::b"),
            ("test src/lib.rs - (line 4) - compile ... ok", "src/lib.rs - (line 4)"),
            ("test src/lib.rs - a (line 9) - compile fail ... ok", "src/lib.rs - a (line 9)"),
        ]:
            reader = Reader(listed=[name], threads=2, started=0.0)
            self.assertEqual(reader.line(line, 1.0).name, name)
            self.assertEqual(reader.unfinished(), [])

    def test_what_programs_print_meanwhile_hides_no_result(self):
        reader = Reader(listed=["a", "b", "c", "d"], threads=2, started=0.0)
        for line in ["sh: 1: [: test a ... -lt: argument expected", "ok", "ok",
                     "drained: test b ... ok", "test x ... ok", "test c ... {}", "a line", "FAILED",
                     "test d ... "]:
            reader.line(line, 1.0)
        results = {name: one.result for name, one in reader.outcomes.items()}
        self.assertEqual(results, {"a": "ok", "b": "ok", "c": "FAILED"})
        self.assertEqual(reader.unfinished(), ["d"])

    def test_the_text_of_a_failure_belongs_to_its_test(self):
        reader = Reader(listed=["a", "b"], threads=2, started=0.0)
        for line in ["test a ... FAILED", "test b - should panic ... FAILED", "", "failures:", "",
                     "---- a stdout ----", "first", "", "---- b stdout ----", "second", "",
                     "failures:", "    a", "    b", "", "test result: FAILED. 0 passed"]:
            reader.line(line, 1.0)
        texts = {name: one.text.strip() for name, one in reader.outcomes.items()}
        self.assertEqual(texts, {"a": "first", "b": "second"})


class LeftOut(unittest.TestCase):
    def test_only_what_could_be_installed_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            notes = Path(folder) / "left-out"
            self.assertEqual(report.left_out(notes)[1], False)
            notes.write_text("forbidden\ta node\tit needs root\n")
            lines, could_install = report.left_out(notes)
            self.assertEqual((lines[-1], could_install), ("!!!   a node: it needs root", False))
            with notes.open("a") as file:
                file.write("installable\tgrpcurl\tno Go\n")
            self.assertEqual(report.left_out(notes)[1], True)


if __name__ == "__main__":
    unittest.main()
