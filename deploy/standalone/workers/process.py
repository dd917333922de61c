"""What both workers do at their start: options, signals, and the word to the agent."""

import argparse
import os
import signal
import threading
import time

from agent import Agent, Refused

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def arguments(description, *folders):
    """Reads the command line; every folder is an option of that name."""
    parser = argparse.ArgumentParser(description=description)
    for folder in (*folders, "journal"):
        parser.add_argument(f"--{folder}", required=True, metavar="DIR")
    name = os.environ.get("LEASEHOLD_WORKER", "worker")
    parser.add_argument("--worker", default=name, help="this worker's name (default: %(default)s)")
    if "queue" in folders:
        parser.add_argument(
            "--job-seconds",
            type=float,
            metavar="SECONDS",
            help="about how long each job takes (default: from 0.4 to 1.4, by its name)",
        )
    parser.add_argument(
        "--exit-with", type=int, metavar="PID", help="end at once when that process is gone"
    )
    return parser.parse_args()


def hold_signals():
    """Keeps SIGTERM and SIGINT waiting until `set_on_signals`, in children too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def set_on_signals():
    """An event that SIGTERM and SIGINT set, in every process that calls this."""
    stop = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    # A handler would hang where it comes while its own thread holds the event's lock, or while
    # another handler does: an agent signals all processes of a worker, and each signals its
    # children.
    def wait():
        signal.sigwait(SIGNALS)
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop


def tell_start(agent: Agent):
    """Announces the start to the agent: once, if the worker has several processes."""
    if os.environ.get("LEASEHOLD_START_ID"):
        return
    start_id = os.urandom(16).hex()
    while True:
        try:
            agent.start(start_id)
            break
        except (Refused, OSError):
            time.sleep(0.05)
    os.environ["LEASEHOLD_START_ID"] = start_id


def exit_with(pid):
    """Ends this process when process `pid` is gone: a test leaves nothing behind."""

    def watch():
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                os._exit(1)
            except PermissionError:
                pass
            time.sleep(0.3)

    if pid is not None:
        threading.Thread(target=watch, daemon=True).start()
