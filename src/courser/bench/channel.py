"""What the conductor of a run and its workers tell each other: frames of MessagePack over pipes."""

import struct
from typing import IO, TypeAlias

import msgspec

from courser.bench.latencies import Tally
from courser.bench.plan import ActorTask, Plan
from courser.errors import ConnectionFailed, CourserError, RequestFailed, TimedOut
from courser.wire.vsr_facts import Facts, read_failure

_LENGTH = struct.Struct("<I")


class Login(msgspec.Struct, frozen=True):
    """Where to connect to: the fields of a ``Target`` that matter."""

    fields: dict[str, str | int | float | bool | None]


class WorkerSetup(msgspec.Struct, frozen=True, tag=True):
    """The first thing a worker hears."""

    login: Login
    plan: Plan
    tasks: list[ActorTask]
    streams: list[str]
    """Names, by number."""
    topics: list[str]
    groups: list[str]
    is_foreign: bool
    """Whether the messages that are read may be of any size."""


class Join(msgspec.Struct, frozen=True, tag=True):
    """Become members of the groups."""


class Settle(msgspec.Struct, frozen=True, tag=True):
    """All have joined: find out which partitions are whose."""


class Phase(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Work. Times are of the monotonic clock, which all processes of a machine share."""

    begin: int
    end: int | None
    """Nanoseconds; None: until the quotas are met."""
    is_counted: bool
    """Whether quotas hold; not while warming up."""
    drains: bool
    """Whether consumers go on until they are told to stop."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Consumers have all that there is."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Go home."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Done with a step before the work."""


class WorkerProgress(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How far the actors of a worker are."""

    sent: list[int]
    """Messages, by task."""
    sent_size: int
    """Bytes of payload."""
    received: int
    received_size: int
    are_producing: bool
    """Whether any of them still sends."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor sent, or what it received."""

    messages: int
    size: int
    """Bytes of payload."""
    requests: int
    """Those that carried messages."""
    empty: int
    """Polls that found nothing."""
    begin: int
    end: int
    """Of the first and the last request that carried messages, nanoseconds."""
    latencies: Tally


class ActorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one task."""

    task: ActorTask
    sent: Part | None = None
    received: Part | None = None
    end_to_end: Tally | None = None


class Done(msgspec.Struct, frozen=True, tag=True):
    """A phase is over."""

    reports: list[ActorReport]


class Failed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A worker gives up."""

    reason: str
    number: int | None = None
    """Of the server's refusal."""
    address: str | None = None
    """Of a connection that failed."""
    is_late: bool = False


ToWorker: TypeAlias = WorkerSetup | Join | Settle | Phase | Stop | Finish
ToConductor: TypeAlias = Ready | WorkerProgress | Done | Failed

_encoder = msgspec.msgpack.Encoder()
to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
to_conductor_decoder = msgspec.msgpack.Decoder(ToConductor)


class WorkerFailed(CourserError):
    """A worker of the load generator broke down."""


def put(file: IO[bytes], message: ToWorker | ToConductor) -> None:
    """Write one message."""
    frame = _encoder.encode(message)
    file.write(_LENGTH.pack(len(frame)) + frame)
    file.flush()


def take(file: IO[bytes]) -> bytes | None:
    """One message, still encoded; None at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    frame = file.read(size)
    return frame if len(frame) == size else None


def failed(error: CourserError) -> Failed:
    """An error, to be raised again on the other side."""
    if isinstance(error, ConnectionFailed):
        return Failed(reason=error.reason, address=error.address, is_late=isinstance(error, TimedOut))
    number = error.number if isinstance(error, RequestFailed) else None
    return Failed(reason=str(error), number=number)


def error_of(failure: Failed) -> CourserError:
    """What to raise."""
    if failure.address is not None:
        return (TimedOut if failure.is_late else ConnectionFailed)(failure.address, failure.reason)
    if failure.number is not None:
        return read_failure(failure.number, msgspec.json.encode(Facts(failure.reason)))
    return WorkerFailed(failure.reason)
