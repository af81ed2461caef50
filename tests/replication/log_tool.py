"""Writes and follows a log without a broker: ``python -m tests.replication.log_tool DIRECTORY NAME TTL FAULT_RATE``.

It follows the log in a directory that several processes share, claims when nobody has written for the time to live (in
milliseconds), and then writes numbered messages as fast as they are stored. It prints a line for all that it learns:
``leads EPOCH``, ``acked EPOCH SLOT PAYLOAD``, ``deposed``. A part of its requests goes wrong: their reply is lost, or
they are not carried out.
"""

import itertools
import os
import random
import secrets
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

from courser.archive.disk_store import DiskStore
from courser.archive.errors import ArchiveFailure
from courser.archive.keys import ArchiveKeys
from courser.records.stored_header import PartitionIdentity
from courser.replication.leading import claim
from courser.replication.log_objects import Entry, EntryKind, LogPosition, LogWriting
from courser.replication.log_reader import LogReader
from courser.replication.log_writer import LogWriter
from courser.replication.requests import perform, run
from courser.replication.slot_window import SlotWindow, WindowSettings
from courser.storage.local_files import LocalFileSystem
from courser.storage.watched_clock import SystemClock

KEYS = ArchiveKeys(bytes(range(16)))
IDENTITY = PartitionIdentity(bytes(16), 0, 1)
MILLISECOND = 1_000


class BadNetwork(DiskStore):
    """A store behind a network that loses requests and replies."""

    def __init__(self, directory: Path, fault_rate: float) -> None:
        super().__init__(LocalFileSystem(), directory, secrets.token_bytes(16))
        self._fault_rate = fault_rate

    def put_new(self, key: str, data: bytes) -> bool:
        if random.random() < self._fault_rate:
            raise ArchiveFailure("create", key, "503 Slow Down")
        is_new = super().put_new(key, data)
        if random.random() < self._fault_rate:
            raise ArchiveFailure("create", key, "connection reset")
        return is_new


def wait(microseconds: int) -> None:
    Event().wait(microseconds / 1_000_000)


def tell(*words: object) -> None:
    # One write: what was told before a kill is whole.
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


def follow_until_silent(reader: LogReader, writing: LogWriting, settings: WindowSettings) -> LogPosition:
    """Follow the log until this process leads. Returns where its epoch begins."""
    clock = SystemClock()
    while True:
        heard_at, patience = clock.monotonic(), settings.time_to_live * (1 + 0.3 * random.random())
        while clock.monotonic() - heard_at < patience:
            if reader.read_next() is None:
                wait(10 * MILLISECOND)
            else:
                heard_at = clock.monotonic()
        steps = claim(writing, reader.position, "silence", clock.now)
        begun_at = run(steps, partial(perform, reader.store), wait)
        if begun_at is not None:
            return begun_at


def write(writer: LogWriter, name: str) -> None:
    """Write until somebody else leads."""
    waiting: deque[tuple[LogPosition, bytes]] = deque()
    for number in itertools.count():
        payload = f"{name}-{number}".encode()
        waiting.append((writer.append([Entry(EntryKind.BATCHES, IDENTITY, number, payload)]), payload))
        if len(waiting) == 3:
            position, oldest = waiting.popleft()
            writer.wait_for(position)
            tell("acked", position.epoch, position.slot, oldest.decode())


def main(directory: str, name: str, time_to_live: str, fault_rate: str) -> None:
    store = BadNetwork(Path(directory), float(fault_rate))
    settings = WindowSettings(hedge=100 * MILLISECOND, time_to_live=int(time_to_live) * MILLISECOND)
    writing = LogWriting(KEYS, secrets.token_bytes(16))
    with ThreadPoolExecutor(8) as threads:
        begun_at = follow_until_silent(LogReader(store, KEYS, threads, wait), writing, settings)
    tell("leads", begun_at.epoch)
    writer = LogWriter(store, SlotWindow(writing, SystemClock(), settings, begun_at, b""))
    try:
        write(writer, name)
    except ArchiveFailure as failure:
        tell("deposed", failure)
    finally:
        writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
