"""The check for free space, on real filesystems: /proc is one that never has any."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOOLS))

from runner import free_space
from runner.binaries import ROOT
from runner.free_space import COLD_BYTES, GIB, OTHER_BYTES, WARM_BYTES, shortage

FULL = Path("/proc")
# More than any disk has.
ENDLESS = 1 << 60


class FreeSpace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # It need not be there yet.
        self.built = self.folder / "target/debug"

    def needing(self, cold: int, warm: int, *others: Path) -> str | None:
        """What is wrong with these folders if runs need so much."""
        with mock.patch.multiple(free_space, COLD_BYTES=cold, WARM_BYTES=warm):
            return shortage([self.built, self.folder, *others])

    def test_a_run_begins_where_there_is_enough(self):
        self.assertIsNone(self.needing(1, 1))

    def test_a_shortage_names_folders_sizes_and_what_may_be_deleted(self):
        text = self.needing(ENDLESS, 1)
        for part in [f"{ENDLESS // GIB}.0 GiB may be needed: {self.built}, {self.folder}\n",
                     "GiB are free", "debug/incremental", "target folders", "go clean -cache"]:
            self.assertIn(part, text)
        self.assertEqual(text.count("may be needed"), 1, "one filesystem is one line")

    def test_less_is_needed_once_libraries_are_built(self):
        self.assertLess(WARM_BYTES, COLD_BYTES)
        (self.built / "deps").mkdir(parents=True)
        self.assertIsNotNone(self.needing(ENDLESS, 1), "no library is there")
        (self.built / "deps/libserde.rlib").write_text("")
        self.assertIsNone(self.needing(ENDLESS, 1))
        self.assertIsNotNone(self.needing(1, ENDLESS))

    def test_another_filesystem_needs_room_of_its_own(self):
        text = self.needing(1, 1, FULL)
        needed = f"{OTHER_BYTES / GIB:.1f} GiB may be needed: {FULL}\n"
        self.assertIn(f"    0.0 GiB are free and {needed}", text)
        self.assertNotIn(str(self.built), text)

    def test_a_run_without_room_ends_before_it_builds(self):
        for tool in ["test", "check_free_space"]:
            # Where the check is missing, nothing is found that could go on.
            environment = {"XDG_CACHE_HOME": str(FULL), "PATH": str(self.folder)}
            command = [sys.executable, str(TOOLS / tool)]
            done = subprocess.run(
                command, env=environment, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 1, tool)
            self.assertTrue(done.stdout.startswith("!!! not enough free space"), done.stdout)

    def test_make_test_looks_before_it_installs_tools(self):
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        done = subprocess.run(
            ["make", "--dry-run", "test"], cwd=ROOT, env=environment, check=True, text=True,
            stdout=subprocess.PIPE)
        steps = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("tests/")]
        self.assertEqual(
            steps, ["tests/tools/check_free_space", "tests/tools/install", "tests/tools/test"])


if __name__ == "__main__":
    unittest.main()
