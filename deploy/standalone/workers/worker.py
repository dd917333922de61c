"""The demo's worker: the job worker and the stream worker, side by side as one.

    leasehold-agent run ... -- python3 worker.py --queue queue --sources sources --sink sink \\
        --journal journal
"""

import subprocess
import sys
from pathlib import Path

from agent import Agent
from process import arguments, set_on_signals, tell_start


def main():
    args = arguments("Runs both workers.", "queue", "sources", "sink")
    tell_start(Agent())
    here = Path(__file__).parent
    common = ["--journal", args.journal, "--worker", args.worker]
    if args.exit_with is not None:
        common += ["--exit-with", str(args.exit_with)]
    stop = set_on_signals()
    children = []
    for program, folders in (("job_worker", ["queue"]), ("stream_worker", ["sources", "sink"])):
        options = [part for name in folders for part in (f"--{name}", getattr(args, name))]
        command = [sys.executable, str(here / f"{program}.py"), *options, *common]
        children.append(subprocess.Popen(command))
    # One without the other is no worker: both end together.
    while not stop.wait(0.1) and all(child.poll() is None for child in children):
        pass
    for child in children:
        child.terminate()
    codes = [child.wait() for child in children]
    sys.exit(next((abs(code) for code in codes if code != 0), 0))


if __name__ == "__main__":
    main()
