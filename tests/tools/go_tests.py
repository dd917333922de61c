"""Runs the unit tests of a Go module, with the flags and the output of Rust's runner:

    python3 tests/tools/go_tests.py agent/sdk/go [--list] [--exact NAME]

A test's name is PACKAGE/TEST; the package is its folder in the module.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# No compiler is fetched, none for C is needed, and a workspace above the module is not looked at.
ENVIRONMENT = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}
RESULTS = {"pass": "ok", "fail": "FAILED", "skip": "ignored"}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) > 1 else 2
    module, flags = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if "--list" in flags:
        return show_tests(module)
    which = ["./..."]
    if "--exact" in flags:
        package, test = flags[flags.index("--exact") + 1].rsplit("/", 1)
        which = ["-run", f"^{test}$", f"./{package}"]
    return run(module, which)


def show_tests(module: Path) -> int:
    """Lists the tests; returns the exit code."""
    path = module_path(module)
    # In an order of their own: packages are listed as they come out of the compiler.
    names = []
    with go_test(module, "-list", "^Test", "./...") as listing:
        for event in events(listing):
            test = event.get("Output", "").strip()
            if test.startswith("Test"):
                names.append(f"{package_of(event, path)}/{test}")
    for name in sorted(names):
        print(f"{name}: test")
    return listing.returncode


def run(module: Path, which: list[str]) -> int:
    """Runs these tests, with a line for each; returns the exit code."""
    path = module_path(module)
    # What each test printed, and each package beside its tests.
    texts, results = defaultdict(str), {}
    with go_test(module, "-count=1", *which) as running:
        for event in events(running):
            test, _, part = event.get("Test", "").partition("/")
            name = f"{package_of(event, path)}/{test}"
            texts[name] += event.get("Output", "")
            result = RESULTS.get(event["Action"])
            if result and test and not part:
                results[name] = result
                print(f"test {name} ... {result}", flush=True)
    failed = [name for name, result in results.items() if result == "FAILED"]
    if running.returncode != 0 and not failed:
        print("".join(text for name, text in texts.items() if name.endswith("/")))
    if failed:
        print("\nfailures:\n")
        for name in failed:
            print(f"---- {name} stdout ----\n{texts[name]}\n")
        print("failures:")
    ignored = sum(result == "ignored" for result in results.values())
    passed = len(results) - len(failed) - ignored
    is_good = running.returncode == 0 and bool(results)
    word = "ok" if is_good else "FAILED"
    print(f"test result: {word}. {passed} passed; {len(failed)} failed; {ignored} ignored")
    return 0 if is_good else 1


def go_test(module: Path, *arguments: str) -> subprocess.Popen:
    """Starts `go test`, whose output is an event a line."""
    command = ["go", "test", "-json", *arguments]
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.Popen(
        command, cwd=module, env=environment, text=True, stdout=subprocess.PIPE)


def events(running: subprocess.Popen) -> Iterator[dict]:
    """The events of packages and tests. What else it says, such as a compiler's error, is shown."""
    for line in running.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            event = {"Output": line}
        if "Package" in event:
            yield event
        else:
            print(event.get("Output", ""), end="", file=sys.stderr, flush=True)


def package_of(event: dict, path: str) -> str:
    """The folder of an event's package in the module of this path."""
    return event["Package"].removeprefix(path).removeprefix("/") or "."


def module_path(module: Path) -> str:
    """The path that go.mod gives the module."""
    lines = (module / "go.mod").read_text(encoding="utf-8").splitlines()
    return next(line.split()[1] for line in lines if line.startswith("module "))


if __name__ == "__main__":
    sys.exit(main())
