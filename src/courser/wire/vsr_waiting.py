"""Bodies of SDK 0.10's reads that may wait: one partition (106), several (109), or only waiting (107).

The server carries out each as a wait and a read. A read that does not wait has no wait.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import NamedTuple, TypeAlias

from courser.api import commands as c
from courser.api import replies as r
from courser.errors import ErrorCode as E
from courser.model.messaging import PollingKind
from courser.wire.reading import POLL_HEAD_SIZE_MAX, POLLING_KINDS, Malformed, Reader, route_of_poll

CANCEL = 108
"""The code of a cancellation. Its request number is that of the read; there is no reply."""

_WAIT_MAX = 600_000_000
_TIMEOUT_MAX = 630_000_000
_TIMEOUT_MARGIN = 1_000_000
"""Microseconds that a request may wait, that its client waits for the reply, and by how much the latter is longer."""
_SIZE_MIN = 344
"""Bytes that a client has to accept: the head of a reply, and a batch with one small message."""
_TARGET_COUNT_MAX = 1000

_POLL_TAIL = Struct(
    "<"
    "B"  # has_partition
    "I"  # partition_id
    "B"  # strategy kind
    "Q"  # strategy value
    "I"  # count
    "B"  # auto_commit
    "Q"  # wait
    "I"  # min_count
    "I"  # max_bytes: of the body of the reply
    "Q"  # request_timeout
)
_FETCH = Struct(
    "<"
    "Q"  # wait
    "Q"  # request_timeout
    "I"  # min_count
    "I"  # count
    "I"  # max_bytes: of batch records
    "B"  # auto_commit
    "I"  # number of targets
)
_FETCH_TARGET = Struct(
    "<"
    "I"  # partition_id
    "B"  # strategy kind
    "Q"  # strategy value
    "I"  # max_bytes
    "Q"  # incarnation
    "Q"  # owner_generation
)
_AWAIT = Struct(
    "<"
    "Q"  # wait
    "Q"  # request_timeout
    "I"  # number of targets
)
_AWAIT_TARGET = Struct(
    "<"
    "I"  # partition_id
    "B"  # strategy kind
    "Q"  # strategy value
)
_FETCHED = Struct(
    "<"
    "I"  # partition_id
    "I"  # status
    "Q"  # current_offset
    "I"  # message_count
    "Q"  # incarnation
    "Q"  # owner_generation
    "Q"  # metadata_op: the entry since which it is so
    "Q"  # next_offset
    "I"  # bytes of records
)
_U32 = Struct("<I")
POLLED_PREFIX_SIZE = 40
"""Bytes before the records in the reply to a poll."""

_FETCHED_KINDS = frozenset({PollingKind.OFFSET, PollingKind.NEXT})
_ENTRY_CODE_OF: Mapping[int, int] = {
    E.READ_TOO_LARGE: E.READ_TOO_LARGE,
    E.HISTORY_UNAVAILABLE: E.HISTORY_UNAVAILABLE,
    E.PARTITION_NOT_FOUND: E.PARTITION_NOT_FOUND,
    E.TOO_MANY_CONSUMER_OFFSETS: 3024,
    E.PARTITION_NOT_OWNED: E.PARTITION_NOT_OWNED,
    E.GROUP_NOT_FOUND: E.PARTITION_NOT_OWNED,
    E.GROUP_MEMBER_NOT_FOUND: E.PARTITION_NOT_OWNED,
}
"""Failures of one partition after which the client knows that nothing was committed; all others are 58."""


class DeferredRead(NamedTuple):
    """A request that may wait."""

    wait: c.AwaitMessages | None
    read: c.Command | None
    """None: the reply says which partitions can be read."""


DeferredReader: TypeAlias = Callable[[memoryview, int], DeferredRead]
"""Decodes a body, given the incarnation in the header. Raises ``Malformed``, with the number for the client."""


def _check(holds: bool, reason: str, *, commits: bool) -> None:
    if not holds:
        # Another number would leave a client in doubt about what was committed.
        raise Malformed(reason, E.FEATURE_UNAVAILABLE if commits else E.INVALID_COMMAND)


def _check_times(wait: int, timeout: int, *, commits: bool, always: bool) -> None:
    """``always``: the timeout has its margin even if there is no wait."""
    _check(wait <= _WAIT_MAX, f"a wait of {wait} us, where {_WAIT_MAX} are allowed", commits=commits)
    _check(0 < timeout <= _TIMEOUT_MAX, f"a timeout of {timeout} us", commits=commits)
    is_long = timeout >= wait + _TIMEOUT_MARGIN or not (wait or always)
    _check(is_long, f"a timeout of {timeout} us for a wait of {wait} us", commits=commits)


def _kind(number: int, *, commits: bool) -> PollingKind:
    _check(number in POLLING_KINDS, f"unknown polling strategy {number}", commits=commits)
    return POLLING_KINDS[number]


def read_poll(body: memoryview, incarnation: int) -> DeferredRead:
    """Decode a poll of one partition."""
    head_size = len(body) - _POLL_TAIL.size
    if not 0 <= head_size <= POLL_HEAD_SIZE_MAX:
        raise Malformed(f"a poll of {len(body)} bytes")
    consumer, stream, topic, position = route_of_poll(body[:head_size].tobytes(), 0)
    fields = _POLL_TAIL.unpack_from(body, head_size)
    has_partition, partition_id, kind_number, value, count, commits, wait, min_count, size_max, timeout = fields
    commits = commits != 0
    _check(position == head_size, f"a poll has {head_size - position} bytes too many", commits=commits)
    _check(has_partition == 1, "it names no partition", commits=commits)
    _check(0 < min_count <= count, f"at least {min_count} of {count} messages", commits=commits)
    _check(size_max >= _SIZE_MIN, f"a reply of at most {size_max} bytes", commits=commits)
    _check_times(wait, timeout, commits=commits, always=False)
    kind = _kind(kind_number, commits=commits)
    poll = c.PollMessages(consumer, stream, topic, partition_id, kind, value, count, commits, incarnation)
    read = c.ReadMessages(poll, size_max - POLLED_PREFIX_SIZE)
    if not wait:
        return DeferredRead(None, read)
    targets = (c.ReadTarget(partition_id, kind, value, incarnation=incarnation),)
    return DeferredRead(c.AwaitMessages(consumer, stream, topic, targets, min_count, wait), read)


def read_fetch(body: memoryview, _: int) -> DeferredRead:
    """Decode a fetch from several partitions. Its targets say which incarnations they mean."""
    reader = Reader(body)
    consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
    fields = _FETCH.unpack_from(reader.take(_FETCH.size))
    wait, timeout, min_count, count, size_max, commits, target_count = fields
    commits = commits != 0
    _check(1 <= target_count <= _TARGET_COUNT_MAX, f"{target_count} partitions", commits=commits)
    is_exact = reader.remaining == target_count * _FETCH_TARGET.size
    _check(is_exact, f"{reader.remaining} bytes for {target_count} partitions", commits=commits)
    _check(0 < min_count <= count, f"at least {min_count} of {count} messages", commits=commits)
    _check(size_max >= _SIZE_MIN, f"a reply of at most {size_max} bytes", commits=commits)
    _check_times(wait, timeout, commits=commits, always=True)
    targets = []
    for partition_id, kind_number, value, share, incarnation, _ in _FETCH_TARGET.iter_unpack(reader.rest()):
        kind = _kind(kind_number, commits=commits)
        _check(kind in _FETCHED_KINDS, f"a fetch cannot start by {kind.name.lower()}", commits=commits)
        _check(_SIZE_MIN <= share <= size_max, f"{share} of {size_max} bytes of a partition", commits=commits)
        targets.append(c.ReadTarget(partition_id, kind, value, share, incarnation))
    is_unique = len({target.partition_id for target in targets}) == target_count
    _check(is_unique, "it names a partition twice", commits=commits)
    places = tuple(targets)
    read = c.FetchMessages(consumer, stream, topic, places, count, size_max, commits)
    if not wait:
        return DeferredRead(None, read)
    return DeferredRead(c.AwaitMessages(consumer, stream, topic, places, min_count, wait), read)


def read_wait(body: memoryview, incarnation: int) -> DeferredRead:
    """Decode a wait for several partitions. The header says which incarnation of the first one is meant."""
    reader = Reader(body)
    consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
    wait, timeout, target_count = _AWAIT.unpack_from(reader.take(_AWAIT.size))
    _check(1 <= target_count <= _TARGET_COUNT_MAX, f"{target_count} partitions", commits=False)
    is_exact = reader.remaining == target_count * _AWAIT_TARGET.size
    _check(is_exact, f"{reader.remaining} bytes for {target_count} partitions", commits=False)
    _check_times(wait, timeout, commits=False, always=False)
    targets = []
    for partition_id, kind_number, value in _AWAIT_TARGET.iter_unpack(reader.rest()):
        targets.append(c.ReadTarget(partition_id, _kind(kind_number, commits=False), value, incarnation=incarnation))
        incarnation = 0
    return DeferredRead(c.AwaitMessages(consumer, stream, topic, tuple(targets), 1, wait), None)


READERS_0_12_0: Mapping[int, DeferredReader | None] = {
    c.ReadMessages.row.code: read_poll,
    c.AwaitMessages.row.code: read_wait,
    CANCEL: None,
}
"""By code; None is a cancellation."""
READERS_0_12_1: Mapping[int, DeferredReader | None] = {
    c.ReadMessages.row.code: read_poll,
    c.FetchMessages.row.code: read_fetch,
    CANCEL: None,
}


# --- replies ------------------------------------------------------------------------------------------


def write_ready(reply: r.ReadyPartitions) -> bytes:
    """The partitions that can be read."""
    count = len(reply.partition_ids)
    return _U32.pack(count) + Struct(f"<{count}I").pack(*reply.partition_ids)


def fetched_head(reply: r.Fetched, *, commits: bool) -> bytes:
    """The reply to a fetch up to its batches."""
    entries = [
        _FETCHED.pack(
            row.partition_id,
            _status_of(row.status, commits=commits),
            row.current_offset,
            row.message_count,
            row.incarnation,
            0,
            row.incarnation,
            row.next_offset,
            row.size,
        )
        for row in reply.partitions
    ]
    return _U32.pack(len(entries)) + b"".join(entries)


def _status_of(status: int, *, commits: bool) -> int:
    if not status:
        return 0
    return _ENTRY_CODE_OF.get(status, E.NOT_ACCEPTED) if commits else status
