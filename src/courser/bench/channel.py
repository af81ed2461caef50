"""The messages between the conductor of a run and its workers: MessagePack over pipes."""

import struct
from typing import IO, TypeAlias

import msgspec

from courser.bench.latencies import Tally
from courser.bench.plan import ActorTask, Plan
from courser.errors import ConnectionFailed, CourserError, RequestFailed, TimedOut
from courser.wire.vsr_facts import Facts, read_failure

_LENGTH = struct.Struct("<I")


class Login(msgspec.Struct, frozen=True):
    """Where to connect, and how to log in: the fields of a ``Target``."""

    fields: dict[str, str | int | float | bool | None]


class WorkerSetup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker: what its actors do, and where."""

    login: Login
    plan: Plan
    tasks: list[ActorTask]
    streams: list[str]
    """Stream names, by number."""
    topics: list[str]
    groups: list[str]
    is_foreign: bool
    """Whether the topics existed before, so that their messages may have any size."""


class Join(msgspec.Struct, frozen=True, tag=True):
    """Join the groups."""


class Settle(msgspec.Struct, frozen=True, tag=True):
    """Ask for the assigned partitions. All members have joined."""


class Phase(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Start a phase. Times are on the monotonic clock, which all processes of a machine share."""

    begin: int
    end: int | None
    """Nanoseconds. None means until the quotas are met."""
    is_counted: bool
    """Whether quotas apply. They do not during the warm-up."""
    drains: bool
    """Whether consumers continue until ``Stop``."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Stop the consumers, because they have read everything."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Exit."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A preparation step is complete."""


class WorkerProgress(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The progress of a worker's actors."""

    sent: list[int]
    """Messages sent, by task."""
    sent_size: int
    """Bytes of payload sent."""
    received: int
    received_size: int
    are_producing: bool
    """Whether any actor is still sending."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor sent, or what it received."""

    messages: int
    size: int
    """Bytes of payload."""
    requests: int
    """Requests with messages."""
    empty: int
    """Polls without messages."""
    begin: int
    end: int
    """Start of the first and end of the last request with messages, in nanoseconds."""
    latencies: Tally


class ActorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one actor."""

    task: ActorTask
    sent: Part | None = None
    received: Part | None = None
    end_to_end: Tally | None = None


class Done(msgspec.Struct, frozen=True, tag=True):
    """A phase is complete."""

    reports: list[ActorReport]


class Failed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A worker has failed."""

    reason: str
    number: int | None = None
    """The number of the server's error."""
    address: str | None = None
    """The address of a failed connection."""
    is_late: bool = False
    """Whether it timed out."""


ToWorker: TypeAlias = WorkerSetup | Join | Settle | Phase | Stop | Finish
ToConductor: TypeAlias = Ready | WorkerProgress | Done | Failed

_encoder = msgspec.msgpack.Encoder()
to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
to_conductor_decoder = msgspec.msgpack.Decoder(ToConductor)


class WorkerFailed(CourserError):
    """A worker process of the load generator has failed."""


def put(file: IO[bytes], message: ToWorker | ToConductor) -> None:
    """Write one message."""
    frame = _encoder.encode(message)
    file.write(_LENGTH.pack(len(frame)) + frame)
    file.flush()


def take(file: IO[bytes]) -> bytes | None:
    """Read one encoded message; None at the end of the file."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    frame = file.read(size)
    return frame if len(frame) == size else None


def failed(error: CourserError) -> Failed:
    """Convert an error, so that the conductor can raise it again."""
    if isinstance(error, ConnectionFailed):
        return Failed(reason=error.reason, address=error.address, is_late=isinstance(error, TimedOut))
    number = error.number if isinstance(error, RequestFailed) else None
    return Failed(reason=str(error), number=number)


def error_of(failure: Failed) -> CourserError:
    """The error that a failure describes."""
    if failure.address is not None:
        return (TimedOut if failure.is_late else ConnectionFailed)(failure.address, failure.reason)
    if failure.number is not None:
        return read_failure(failure.number, msgspec.json.encode(Facts(failure.reason)))
    return WorkerFailed(failure.reason)
