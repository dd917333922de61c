"""Compiles the SDK for TypeScript and runs its unit tests, with the flags and the output of Rust's
runner:

    python3 tests/tools/node_tests.py [--list] [--exact NAME]

A test is named FILE::NAME, for example jobs::a block is a job.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "agent/sdk/typescript/tests"
COMPILED = ROOT / ".cache/typescript/units"
SUFFIX = ".test.ts"
# A file whose tests take longer hangs.
FILE_MS_MAX = 300_000
# Node 20 cannot list tests: each begins with such a line.
TEST = re.compile(r'^test\("([^"\\]*)", ', re.MULTILINE)
ANY_TEST = re.compile(r"^\s*test\(", re.MULTILINE)


def names() -> list[str]:
    """The names of all tests."""
    found = []
    for path in sorted(SOURCES.glob(f"*{SUFFIX}")):
        try:
            listed = names_in(path.read_text(encoding="utf-8"))
        except ValueError as error:
            sys.exit(f"{path}: {error}")
        found += [f"{path.name.removesuffix(SUFFIX)}::{name}" for name in listed]
    return found


def names_in(text: str) -> list[str]:
    """The names of the tests in a file. Raises ValueError where one cannot be read."""
    listed = TEST.findall(text)
    if len(listed) != len(ANY_TEST.findall(text)):
        raise ValueError('a test cannot be listed: begin each with test("NAME", on one line')
    return listed


def run(files: list[str], pattern: list[str]) -> int:
    """Runs the tests of compiled files; the reporter prints their results."""
    compiled = subprocess.run([str(ROOT / "tests/tools/typescript_sdk"), str(COMPILED)])
    if compiled.returncode != 0:
        return compiled.returncode
    reporter = ROOT / "tests/tools/node_reporter.mjs"
    limit = f"--test-timeout={FILE_MS_MAX}"
    command = ["node", "--test", limit, "--test-reporter", str(reporter), *pattern]
    paths = [str(COMPILED / "dist/tests" / file) for file in files]
    return subprocess.run([*command, *paths]).returncode


def main() -> int:
    flags = sys.argv[1:]
    if flags and flags[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    listed = names()
    if "--list" in flags:
        print("\n".join(f"{name}: test" for name in listed))
        return 0
    pattern = []
    if "--exact" in flags:
        wanted = flags[flags.index("--exact") + 1]
        listed = [name for name in listed if name == wanted]
        pattern = ["--test-name-pattern", f"^{re.escape(wanted.split('::', 1)[1])}$"]
    if not listed:
        print("no test has this name: use --list", file=sys.stderr)
        return 1
    files = sorted({name.split("::", 1)[0] for name in listed})
    return run([f"{file}.test.js" for file in files], pattern)


if __name__ == "__main__":
    sys.exit(main())
