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
from runner.free_space import GIB, needs, shortage

FULL = Path("/proc")
# More than any disk has.
ENDLESS = 1 << 60


class FreeSpace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # They need not be there yet.
        self.built = self.folder / "target/debug"
        self.caches = self.folder / "cache"

    def needs(self) -> dict[Path, int]:
        """What a run needs in these folders."""
        with mock.patch.object(free_space, "built_folder", return_value=self.built), \
                mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.caches)}):
            return needs()

    def test_a_run_begins_where_there_is_enough(self):
        self.assertIsNone(shortage({self.built: 1, self.caches: 1}))

    def test_a_shortage_names_folders_sizes_and_what_may_be_deleted(self):
        text = shortage({self.built: ENDLESS, self.caches: GIB})
        needed = f"{ENDLESS // GIB + 1}.0 GiB may be needed: {self.built}, {self.caches}\n"
        for part in [needed, "GiB are free", "debug/incremental", "target folders",
                     "go clean -cache"]:
            self.assertIn(part, text)
        self.assertEqual(text.count("may be needed"), 1, "one filesystem is one line")

    def test_less_is_needed_once_programs_and_tools_are_there(self):
        cold = self.needs()
        (self.built / "deps").mkdir(parents=True)
        (self.built / "deps/libserde.rlib").write_text("")
        self.assertEqual(self.needs(), cold, "lints have built it")
        (self.built / "deps/libleasehold_types-0.rlib").write_text("")
        self.assertLess(self.needs()[self.built], cold[self.built])
        self.assertEqual(self.needs()[self.caches], cold[self.caches])
        (self.caches / "leasehold").mkdir(parents=True)
        self.assertLess(self.needs()[self.caches], cold[self.caches])

    def test_another_filesystem_needs_room_of_its_own(self):
        text = shortage({self.built: 1, FULL: 2 * GIB})
        self.assertIn(f"    0.0 GiB are free and 2.0 GiB may be needed: {FULL}\n", text)
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
