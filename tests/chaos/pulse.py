"""A program: a healthy client that sends and polls at a steady pace, and one that logs in now and then.

Arguments: port, stream. Each line on standard input is a number of seconds; each answer is one line of JSON.
"""

import json
import struct
import sys
import threading
import time

from courser.api import commands as c
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import PollingKind, ToPartition
from tests.torture.clients import VsrClient

PAUSE = 0.005
"""Seconds between two requests: a client with something to do, and no load."""
LOGIN_PAUSE = 0.5
LOGIN_PATIENCE = 10.0
"""Seconds within which a correct login must succeed, whoever else tries."""
_CONSUMER = Consumer(ConsumerKind.CONSUMER, 9)


class Pulse:
    """Both of them. A client that is turned away comes back at once; that is a failure all the same."""

    def __init__(self, port: int, stream: str) -> None:
        self._port = port
        self._stream = stream
        self._client = VsrClient(port).login()
        self.failures: list[str] = []
        self.latencies: list[float] = []
        self.logins: list[float] = []

    def measure(self, seconds: float) -> str:
        self.failures, self.latencies, self.logins = [], [], []
        over = threading.Event()
        logins = threading.Thread(target=self._keep_logging_in, args=(over,))
        logins.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            began = time.perf_counter()
            try:
                self._round()
                self.latencies.append(time.perf_counter() - began)
            except (OSError, AssertionError, struct.error) as error:
                self.failures.append(f"a request failed: {type(error).__name__}: {error}")
                self._come_back()
            over.wait(PAUSE)
        over.set()
        logins.join()
        return json.dumps({"latencies": self.latencies, "logins": self.logins, "failures": self.failures})

    def _round(self) -> None:
        offset = struct.unpack_from(
            "<Q", self._client.do(c.SendMessages(self._stream, "t", ToPartition(0), []), [b"x" * 100]), 16
        )[0]
        self._client.do(c.PollMessages(_CONSUMER, self._stream, "t", 0, PollingKind.OFFSET, offset, 1, False))

    def _come_back(self) -> None:
        self._client.close()
        try:
            self._client = VsrClient(self._port).login()
        except (OSError, AssertionError) as error:
            self.failures.append(f"no way back: {type(error).__name__}: {error}")

    def _keep_logging_in(self, over: threading.Event) -> None:
        while not over.wait(LOGIN_PAUSE):
            began = time.perf_counter()
            try:
                client = VsrClient(self._port)
                client.socket.settimeout(LOGIN_PATIENCE)
                client.login().close()
                self.logins.append(time.perf_counter() - began)
            except (OSError, AssertionError) as error:
                self.failures.append(f"a correct login failed: {type(error).__name__}: {error}")


def main(port: str, stream: str) -> None:
    pulse = Pulse(int(port), stream)
    for line in sys.stdin:
        sys.stdout.write(pulse.measure(float(line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
