"""Reads feeds by RTSP and writes what arrives to PostgreSQL: each feed by one worker at a time.

    leasehold-agent run ... -- python3 deploy/samples/feeds/feeds.py rtsp://HOST:PORT

A stream of the worker's is a feed, and its name the path of the feed at that address. How the
database is reached say libpq's variables, PGHOST and others. SIGTERM drains the worker.

Example:

    PGHOST=localhost PGUSER=feeds leasehold-agent run --coordinator 127.0.0.1:7400 \\
        --cluster feeds --worker f-0 -- python3 deploy/samples/feeds/feeds.py rtsp://127.0.0.1:8554
"""

import logging
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

import leasehold
import psycopg2

# What arrives within this time is one transaction.
BATCH_S = 0.2
# How long an answer may take.
ANSWER_S_MAX = 10
# A feed that sends nothing for longer is connected again: its server may be gone without a word.
SILENCE_S_MAX = 30
RTSP_PORT = 554
# RFC 2326, 10.12: a packet among the answers begins with this, its channel and its length. Channel
# 0 is RTP, whose second field is the number of the packet (RFC 3550, 5.1).
PACKET_MARK, PACKET_HEAD, RTP_HEAD = 0x24, struct.Struct(">BBH"), struct.Struct(">HHII")
# A server ends what a stopped worker has begun, so that the feed's next owner does not wait for it.
OPTIONS = "-c idle_in_transaction_session_timeout=10s"
PACKETS_TABLE = """CREATE TABLE IF NOT EXISTS packets (
    number BIGSERIAL PRIMARY KEY, feed TEXT NOT NULL, rtp_number INTEGER NOT NULL,
    bytes INTEGER NOT NULL, token TEXT NOT NULL, worker TEXT NOT NULL)"""
INSERT = "INSERT INTO packets (feed, rtp_number, bytes, token, worker) VALUES (%s, %s, %s, %s, %s)"


class Feed:
    """A session of RTSP, with its packets in the same connection."""

    def __init__(self, url):
        at = urlsplit(url)
        self.url, self.requests, self.buffer = url, 0, bytearray()
        address = (at.hostname, at.port or RTSP_PORT)
        self.connection = socket.create_connection(address, timeout=ANSWER_S_MAX)
        session = self.request("SETUP", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
        self.request("PLAY", f"Session: {session}")
        self.connection.setblocking(False)
        self.received_at = time.monotonic()

    def close(self):
        """Ends the session."""
        self.connection.close()

    def request(self, method, header):
        """Sends a request and returns the session that the answer names."""
        self.requests += 1
        request = f"{method} {self.url} RTSP/1.0\r\nCSeq: {self.requests}\r\n{header}\r\n\r\n"
        self.connection.sendall(request.encode())
        while b"\r\n\r\n" not in self.buffer:
            self.receive()
        head, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        self.buffer = bytearray(rest)
        status, *fields = head.decode().split("\r\n")
        if status.split()[1:2] != ["200"]:
            raise ConnectionError(f"{method} {self.url}: {status}")
        fields = dict(field.split(": ", 1) for field in fields)
        return fields.get("Session", "").partition(";")[0]

    def receive(self):
        """Adds what has arrived to the buffer."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError(f"{self.url} has ended")
        self.buffer += data

    def packets(self):
        """The number and the length of each packet that has arrived."""
        before = len(self.buffer)
        try:
            while True:
                self.receive()
        except BlockingIOError:
            pass
        if len(self.buffer) > before:
            self.received_at = time.monotonic()
        elif time.monotonic() - self.received_at > SILENCE_S_MAX:
            raise ConnectionError(f"{self.url} sent nothing for {SILENCE_S_MAX} s")
        packets, at = [], 0
        while len(self.buffer) - at >= PACKET_HEAD.size:
            mark, channel, length = PACKET_HEAD.unpack_from(self.buffer, at)
            if mark != PACKET_MARK:
                raise ConnectionError(f"{self.url} sent no packet: 0x{mark:02x}")
            begin, end = at + PACKET_HEAD.size, at + PACKET_HEAD.size + length
            if end > len(self.buffer):
                break
            if channel == 0:
                _, number, _, _ = RTP_HEAD.unpack_from(self.buffer, begin)
                packets.append((number, length - RTP_HEAD.size))
            at = end
        del self.buffer[:at]
        return packets


def create_tables():
    """Creates the tables. Several workers may begin at once, so one lock orders them."""
    with closing(psycopg2.connect("")) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('packets'))")
            cursor.execute(leasehold.FENCE_TABLE)
            cursor.execute(PACKETS_TABLE)


def consume(stream, server, worker):
    """Writes a feed's packets until the stream is revoked or lost."""
    owner = (str(stream.token), worker)
    with closing(psycopg2.connect("", options=OPTIONS)) as connection, closing(
        Feed(f"{server}/{stream.name}")
    ) as feed:
        while not stream.stopping.is_set():
            time.sleep(BATCH_S)
            rows = [(stream.name, *packet, *owner) for packet in feed.packets()]
            if not rows:
                continue
            try:
                # In one transaction: a process that was stopped until now may be no owner any more.
                with connection, connection.cursor() as cursor:
                    stream.fence(cursor)
                    cursor.executemany(INSERT, rows)
            except leasehold.StaleToken as stale:
                logging.warning("not written: %s", stale)
                return


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    if not (name := os.environ.get("LEASEHOLD_WORKER")):
        sys.exit("no LEASEHOLD_WORKER: start the worker beside an agent")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    server = sys.argv[1].rstrip("/")
    # A queue of this kind may be written to in a signal's handler.
    terminated = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: terminated.put(None))
    create_tables()
    with leasehold.Worker() as worker:
        handler = partial(consume, server=server, worker=name)
        streams = threading.Thread(target=worker.run_streams, args=(handler,))
        streams.start()
        # The agent sends SIGTERM after the drain. A worker that ended with the drain would be
        # started again.
        terminated.get()
        if not worker.draining:
            worker.drain()
        streams.join()


if __name__ == "__main__":
    main()
