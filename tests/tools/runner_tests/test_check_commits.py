"""The check of commit messages in small repositories with planted messages."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent
SCRIPT = Path("tests/tools/check_commits")
GOOD = "Fix failover: send grants in bounded batches\n\nA large batch kept the leader busy."
BODY = "\n\nIt was wrong."


class CommitMessages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith("GIT_") and key != "CI"}
        self.environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for who in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.com"}
        self.clone = self.root / "clone"
        self.clone.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.clone, env=self.environment, check=True,
                       stdout=subprocess.DEVNULL)

    def commit(self, message):
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def add_script(self):
        (self.clone / SCRIPT).parent.mkdir(parents=True)
        shutil.copy(TOOLS / SCRIPT.name, self.clone / SCRIPT)
        self.git("add", str(SCRIPT))
        self.commit(GOOD)

    def check(self, clone=None):
        """Runs the script of a clone; returns its exit code and what it printed."""
        command = [sys.executable, str(SCRIPT)]
        done = subprocess.run(command, cwd=clone or self.clone, env=self.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_messages_before_the_script_are_not_checked(self):
        self.commit("wip")
        self.add_script()
        self.commit(GOOD)
        self.assertEqual(self.check(), (0, ""))

    def test_bad_subjects_and_missing_bodies_are_found(self):
        self.add_script()
        for message, words in [
            ("Fix " + "x" * 69 + BODY, "73 characters"),
            ("Fixes failover" + BODY, "imperative"),
            ("Fixed failover" + BODY, "imperative"),
            ("Fixing failover" + BODY, "imperative"),
            ("fix failover" + BODY, "imperative"),
            ("Agent: fix failover" + BODY, "imperative"),
            ("The failover works" + BODY, "imperative"),
            ("Fix failover." + BODY, "full stop"),
            ("Fix failover\nIt was wrong.", "an empty line"),
            ("Fix failover", "a body"),
            ("Fix failover\n\nSigned-off-by: a <a@example.com>", "a body"),
        ]:
            self.commit(message)
            code, printed = self.check()
            self.assertEqual(code, 1, message)
            self.assertIn(words, printed)
            self.git("reset", "--quiet", "--hard", "HEAD~1")
        self.assertEqual(self.check(), (0, ""))

    def test_verbs_that_look_like_other_forms_and_the_longest_subject_pass(self):
        self.add_script()
        for subject in ["Pass orders on", "Embed the page", "Bring it back", "Fix " + "x" * 68]:
            self.commit(subject + BODY)
        self.assertEqual(self.check(), (0, ""))

    def test_merges_and_branches_from_before_the_script_are_not_checked(self):
        self.commit("wip")
        self.git("branch", "old")
        self.add_script()
        self.git("checkout", "--quiet", "old")
        self.commit("wip again")
        self.git("checkout", "--quiet", "main")
        self.git("merge", "--quiet", "--no-ff", "--message", "Merge old", "old")
        self.assertEqual(self.check(), (0, ""))

    def test_a_shallow_clone_checks_what_it_has(self):
        self.commit("wip")
        self.add_script()
        self.commit("wip")
        self.commit(GOOD)
        for depth, code in [(1, 0), (2, 0), (3, 1), (9, 1)]:
            clone = self.root / f"depth-{depth}"
            source = self.clone.as_uri()
            subprocess.run(["git", "clone", "--quiet", f"--depth={depth}", source, str(clone)],
                           env=self.environment, check=True)
            self.assertEqual(self.check(clone)[0], code, depth)

    def test_a_script_that_is_not_committed_checks_nothing(self):
        self.commit("wip")
        (self.clone / SCRIPT).parent.mkdir(parents=True)
        shutil.copy(TOOLS / SCRIPT.name, self.clone / SCRIPT)
        self.assertEqual(self.check(), (0, ""))


if __name__ == "__main__":
    unittest.main()
