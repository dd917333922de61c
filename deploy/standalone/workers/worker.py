"""The demo's worker: the job worker and the stream worker, side by side as one.

    leasehold-agent run ... -- python3 worker.py --queue queue --sources sources --sink sink \\
        --journal journal
"""

import multiprocessing
import sys

import job_worker
import stream_worker
from agent import Agent
from process import arguments, hold_signals, set_on_signals, tell_start


def main():
    args = arguments("Runs both workers.", "queue", "sources", "sink")
    tell_start(Agent())
    hold_signals()
    # A process each: neither waits for the other.
    programs = (job_worker.run, stream_worker.run)
    children = [multiprocessing.Process(target=run, args=(args,)) for run in programs]
    for child in children:
        child.start()
    stop = set_on_signals()
    # One without the other is no worker: both end together.
    while not stop.wait(0.1) and all(child.is_alive() for child in children):
        pass
    for child in children:
        child.terminate()
        child.join()
    sys.exit(next((abs(child.exitcode) for child in children if child.exitcode != 0), 0))


if __name__ == "__main__":
    main()
