"""Who leads: the claim of the next epoch.

Epoch ``e`` ends with the first object that is a seal; whoever created it leads ``e + 1``, and begins with slot 0 there.
A process claims once: if it is deposed, it ends, and starts again as a follower. If its epoch was not sealed when it
died, its successor on the same machine seals it at once, and never goes on in it: requests of the dead process may
still arrive.
"""

from collections.abc import Callable

from courser.archive.errors import ArchiveGone
from courser.archive.objects import HEADER_SIZE, NO_PARENT, checksum_of
from courser.replication.log_objects import LogPosition, LogWriting, is_copy
from courser.replication.log_reader import check_free, check_seal
from courser.replication.requests import RETRY_PAUSE, Pause, Put, Steps, read


def claim(
    writing: LogWriting, position: LogPosition, reason: str, time: Callable[[], int]
) -> Steps[LogPosition | None]:
    """End the epoch at a position, which is the end of the log as far as its reader knows.

    Returns the position at which the next epoch begins, and this process leads; or None: another object came first.

    Raises:
        ArchiveGone: this is not the store that was read.
        LogMovedOn: the next epoch has begun: load a root.
        ObjectsMissing: the store was set back.
    """
    keys = writing.keys
    yield from _check_store(writing, position)
    if not (yield from check_free(keys, position)):
        return None
    data = writing.seal(position, reason, time())
    if not (yield from _create(position.key(keys), data)):
        return None
    yield from check_seal(keys, position)
    return position.behind(data, writing.nonce, is_seal=True)


def _check_store(writing: LogWriting, position: LogPosition) -> Steps[None]:
    """Check that the store still has the object with which the epoch began, or the seal before it."""
    key, checksum = writing.keys.slot(position.epoch, 0), position.first
    if not position.slot:
        key, checksum = writing.keys.slot(position.epoch - 1, position.sealed_slot), position.parent
    if checksum == NO_PARENT:
        return
    found = yield from read(key, HEADER_SIZE)
    if found is None or checksum_of(found) != checksum:
        raise ArchiveGone(key, "it is not what was read before; was the store set back or replaced?")


def _create(key: str, data: bytes) -> Steps[bool]:
    """Create an object; False if another is there. Asks until the store has decided."""
    while True:
        if (yield Put(key, data)) is True:
            return True
        found = yield from read(key, HEADER_SIZE)
        if found is not None:
            return is_copy(found, data)
        yield Pause(RETRY_PAUSE)
