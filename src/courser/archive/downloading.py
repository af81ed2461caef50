"""Reads whole objects: several ranges at a time, in order.

A store far away answers late, so that one request at a time would leave the connection idle most of the time. Nothing
is checked here: who takes the parts hashes them.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import xxhash

from courser.archive.errors import ArchiveDamaged, ArchiveFailure
from courser.archive.store import Store
from courser.model.buffers import Buffer
from courser.storage.files import File, read_into

_REQUEST_COUNT = 4
"""Requests at a time: as many parts are in memory."""
STEP_SIZE = 1024 * 1024
"""Bytes of a file that are read at a time: they are still in the processor's cache when they are hashed or written."""


def object_parts(store: Store, key: str, size: int, part_size: int) -> Iterator[Buffer]:
    """An object from its first to its last byte. A part is valid until the next one is asked for.

    Raises:
        ObjectMissing: it is not there.
        ArchiveFailure: the store does not answer, or the object is shorter.
    """
    file = store.open_file(key)
    parts = _ranges(store, key, size, part_size) if file is None else _steps(file, key, size)
    position = 0
    for part in parts:
        position += len(part)
        yield part
    if position != size:
        raise ArchiveDamaged(key, f"it has {position} bytes and should have {size}")


def _ranges(store: Store, key: str, size: int, part_size: int) -> Iterator[Buffer]:
    requests = [
        partial(store.read_range, key, position, min(part_size, size - position))
        for position in range(0, size, part_size)
    ]
    if len(requests) < 2:
        yield from (request() for request in requests)
        return
    waiting: deque[Future[Buffer]] = deque()
    threads = ThreadPoolExecutor(_REQUEST_COUNT, thread_name_prefix="archive-download")
    try:
        for request in requests:
            waiting.append(threads.submit(request))
            if len(waiting) == _REQUEST_COUNT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Nobody waits for the others if one has failed.
        threads.shutdown(wait=False, cancel_futures=True)


def _steps(file: File, key: str, size: int) -> Iterator[Buffer]:
    try:
        yield from file_steps(file, 0, size)
    except OSError as error:
        raise ArchiveFailure("read", key, error.strerror or str(error)) from error
    finally:
        file.close()


def file_steps(file: File, position: int, size: int) -> Iterator[memoryview]:
    """A range of a file; less if the file is shorter. A step is valid until the next one is asked for."""
    buffer = np.empty(min(STEP_SIZE, size), np.uint8).data
    end = position + size
    while position < end:
        filled = read_into(file, position, buffer[: end - position])
        if not filled:
            return
        yield buffer[:filled]
        position += filled


def hash_object(store: Store, key: str, size: int, part_size: int) -> bytes:
    """The XXH3-128 of an object. Raises as ``object_parts`` does."""
    whole = xxhash.xxh3_128()
    for part in object_parts(store, key, size, part_size):
        whole.update(part)
    return whole.digest()
