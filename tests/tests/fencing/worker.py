"""A worker for fencing.rs: it appends record after record to a store while it owns a stream.

    worker.py create STORE PLACE
    worker.py records STORE PLACE
    worker.py run STORE PLACE NAME FOLDER
    worker.py run-unfenced STORE PLACE NAME FOLDER

STORE is `postgresql`, `sqlite` or `log`, and PLACE where it is: a connection string or a file.
`records` prints a JSON array of what was written. The worker stops itself once, as a signal would
stop it, where FOLDER/stop-NAME exists: after it has found its lease valid, before its write.
`run-unfenced` writes without a look at tokens: it shows what the fence prevents.

Example, with an agent:

    leasehold-agent run ... -- python3 worker.py run sqlite /tmp/cars.db w-0 /tmp
"""

import fcntl
import json
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import leasehold

STEP_S = 0.02
# Much less than by default: another worker goes on with the streams of one that hangs.
BEAT_WITHIN_S = 3.0
# SQLite locks the whole file for each write.
LOCKED_S_MAX = 60.0

RECORDS_TABLE = """CREATE TABLE records (
    stream TEXT, number INTEGER, token TEXT, worker TEXT, PRIMARY KEY (stream, number))"""
NEXT_RECORD = """INSERT INTO records (stream, number, token, worker)
    SELECT $1, coalesce(max(number), 0) + 1, $1, $1 FROM records WHERE stream = $1"""
RECORDS = "SELECT number, token, worker FROM records ORDER BY stream, number"


class Database:
    """PostgreSQL or SQLite. Each write is a transaction: first the fence, then the record."""

    def __init__(self, connection, mark):
        self.connection, self.mark = connection, mark

    def create(self):
        """Creates the tables."""
        with self.connection, closing(self.connection.cursor()) as cursor:
            cursor.execute(leasehold.FENCE_TABLE)
            cursor.execute(RECORDS_TABLE)

    def records(self):
        """All that was written, in order."""
        with self.connection, closing(self.connection.cursor()) as cursor:
            cursor.execute(RECORDS)
            names = ("number", "token", "worker")
            return [dict(zip(names, row)) for row in cursor.fetchall()]

    def append(self, stream, worker, fenced):
        """Adds the next record."""
        with self.connection, closing(self.connection.cursor()) as cursor:
            if fenced:
                stream.fence(cursor, self.mark)
            row = (stream.name, str(stream.token), worker, stream.name)
            cursor.execute(NEXT_RECORD.replace("$1", self.mark), row)


class Log:
    """A file that is only appended to. Its last record has the highest token."""

    def __init__(self, path):
        self.path = Path(path)

    def create(self):
        """Creates the file."""
        self.path.touch(exist_ok=False)

    def records(self):
        """All that was written, in order."""
        with open(self.path, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return [json.loads(line) for line in file]

    def append(self, stream, worker, fenced):
        """Adds the next record."""
        with open(self.path, "r+", encoding="utf-8") as file:
            # Closing the file unlocks it.
            fcntl.flock(file, fcntl.LOCK_EX)
            lines = file.readlines()
            if fenced and lines:
                stream.check_token(json.loads(lines[-1])["token"])
            record = {"number": len(lines) + 1, "token": stream.token, "worker": worker}
            file.write(json.dumps(record) + "\n")


def open_store(store, place):
    """The store of this kind."""
    if store == "postgresql":
        # The other stores need nothing but Python.
        import psycopg2

        return Database(psycopg2.connect(place), "%s")
    if store == "sqlite":
        return Database(sqlite3.connect(place, timeout=LOCKED_S_MAX), "?")
    return Log(place)


def consume(stream, fenced, kind, place, name, folder):
    """Writes for as long as the stream is this worker's."""
    store, stop = open_store(kind, place), Path(folder, f"stop-{name}")
    while not stream.stopping.wait(STEP_S):
        if not stream.valid():
            break
        if stop.exists():
            stop.unlink()
            # This thread stops here, and with it the whole process.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        try:
            store.append(stream, name, fenced)
        except leasehold.StaleToken as stale:
            # One write: print may write the end of the line apart, and a log comes in between.
            sys.stdout.write(f"refused: {stale}\n")
            sys.stdout.flush()
            break


def main():
    order, kind, place, *rest = sys.argv[1:]
    if order == "create":
        open_store(kind, place).create()
    elif order == "records":
        json.dump(open_store(kind, place).records(), sys.stdout)
    else:
        with leasehold.Worker(beat_within=BEAT_WITHIN_S) as worker:
            fenced = order != "run-unfenced"
            worker.run_streams(lambda stream: consume(stream, fenced, kind, place, *rest))


if __name__ == "__main__":
    main()
