"""A server of feeds, to try the sample with: each path has a feed of 20 packets in a second.

    python3 deploy/samples/feeds/camera.py [PORT]

It listens on 127.0.0.1, on port 8554 unless another is given, and speaks as much of RTSP as
feeds.py does: SETUP and PLAY, and the packets of RTP in the same connection. The packets of a feed
are numbered by the time, so that a feed goes on while nobody reads it.

Example: python3 deploy/samples/feeds/camera.py 8554
"""

import socketserver
import struct
import sys
import time

PORT = 8554
PACKETS_PER_SECOND = 20
PAYLOAD = bytes(160)
# Version 2, payload type 96, and the source's number.
RTP_HEAD, RTP_FLAGS, SOURCE = struct.Struct(">HHII"), 0x8060, 1
PACKET_MARK, PACKET_HEAD = 0x24, struct.Struct(">BBH")


class Session(socketserver.StreamRequestHandler):
    """A connection of a reader."""

    def handle(self):
        try:
            while (method := self.answer()) != "PLAY":
                if method is None:
                    return
            self.play()
        except ConnectionError:
            # The reader has gone.
            return

    def answer(self):
        """Answers a request; returns its method, or None after the last one."""
        line = self.rfile.readline().decode()
        fields = iter(lambda: self.rfile.readline().decode().strip(), "")
        fields = dict(field.split(": ", 1) for field in fields)
        if not line:
            return None
        answer = f"RTSP/1.0 200 OK\r\nCSeq: {fields['CSeq']}\r\nSession: 1;timeout=60\r\n\r\n"
        self.wfile.write(answer.encode())
        return line.split()[0]

    def play(self):
        """Sends packets until the reader goes."""
        number = int(time.time() * PACKETS_PER_SECOND)
        while True:
            number += 1
            time.sleep(max(0, number / PACKETS_PER_SECOND - time.time()))
            head = RTP_HEAD.pack(RTP_FLAGS, number & 0xFFFF, number & 0xFFFFFFFF, SOURCE)
            packet = head + PAYLOAD
            self.wfile.write(PACKET_HEAD.pack(PACKET_MARK, 0, len(packet)) + packet)


class Server(socketserver.ThreadingTCPServer):
    """A thread for each reader, which ends with the process."""

    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].isdigit():
        sys.exit(__doc__)
    port = int(sys.argv[1]) if sys.argv[1:] else PORT
    with Server(("127.0.0.1", port), Session) as server:
        server.serve_forever()
