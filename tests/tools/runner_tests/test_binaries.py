"""Programs of former builds."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runner import binaries


class FormerPrograms(unittest.TestCase):
    def test_only_programs_that_were_not_built_are_removed(self):
        with tempfile.TemporaryDirectory() as folder:
            built, former, notes = (Path(folder) / name for name in ("built", "former", "built.d"))
            for program in (built, former):
                program.write_text("")
                program.chmod(0o755)
            notes.write_text("")
            (Path(folder) / "deps").mkdir()
            binaries.remove_others({built})
            left = {one.name for one in Path(folder).iterdir()}
        self.assertEqual(left, {"built", "built.d", "deps"})


if __name__ == "__main__":
    unittest.main()
