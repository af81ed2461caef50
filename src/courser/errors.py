"""Every error that Courser raises: one number, one class, one message.

Numbers below 20000 are Iggy's; a retired number is never reused. Numbers from 20000 on are Courser's own, because SDKs
reconnect on 8, 9, 30, 31, 40, 61 and 304.

Exceptions have facts as attributes; ``__str__`` returns the message. Four families:

* rejections: the caller's fault, nothing was changed;
* storage failures: the disk refused, or its data is damaged;
* refused starts: the data directory cannot be opened, with the remedy in the message;
* client errors: requests that the server refused, by kind, and failed connections.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any


class ErrorCode(IntEnum):
    """The number that is sent to a client."""

    ERROR = 1
    INVALID_COMMAND = 3
    INVALID_FORMAT = 4
    FEATURE_UNAVAILABLE = 5
    INVALID_IDENTIFIER = 6
    DISCONNECTED = 8
    RESOURCE_NOT_FOUND = 20
    STALE_CLIENT = 30
    UNAUTHENTICATED = 40
    UNAUTHORIZED = 41
    INVALID_CREDENTIALS = 42
    INVALID_USERNAME = 43
    INVALID_PASSWORD = 44
    INVALID_USER_STATUS = 45
    USER_ALREADY_EXISTS = 46
    USER_INACTIVE = 47
    CANNOT_DELETE_USER = 48
    CANNOT_CHANGE_PERMISSIONS = 49
    INVALID_TOKEN_NAME = 50
    TOKEN_ALREADY_EXISTS = 51
    TOO_MANY_TOKENS = 52
    INVALID_TOKEN = 53
    TOKEN_EXPIRED = 54
    TOO_MANY_USERS = 55
    NOT_ACCEPTED = 58
    REQUEST_ALREADY_APPLIED = 59
    INVALID_ENCRYPTION_KEY = 70
    ACCESS_TOKEN_MISSING = 77
    INVALID_ACCESS_TOKEN = 78
    READ_TOO_LARGE = 80
    HISTORY_UNAVAILABLE = 87
    TOO_MANY_WAITING_READS = 90
    PRODUCER_IDS_EXHAUSTED = 91
    PRODUCER_OUT_OF_ORDER = 92
    PRODUCER_FENCED = 93
    PRODUCER_UNKNOWN = 94
    PRODUCER_NEEDS_PARTITION = 95
    CLIENT_NOT_FOUND = 100
    INVALID_CLIENT_ID = 101
    STREAM_NOT_FOUND = 1009
    STREAM_ID_ALREADY_EXISTS = 1011
    STREAM_NAME_ALREADY_EXISTS = 1012
    INVALID_STREAM_NAME = 1013
    INVALID_TOPIC_SIZE = 1019
    TOPIC_NOT_FOUND = 2010
    TOPIC_ID_ALREADY_EXISTS = 2012
    TOPIC_NAME_ALREADY_EXISTS = 2013
    INVALID_TOPIC_NAME = 2014
    TOO_MANY_PARTITIONS = 2015
    INVALID_REPLICATION_FACTOR = 2018
    INVALID_PARTITIONS_COUNT = 2019
    PARTITION_RESIZE_DISABLED = 2023
    PARTITION_NOT_FOUND = 3007
    NO_PARTITIONS = 3008
    TOPIC_FULL = 3009
    CONSUMER_OFFSET_NOT_FOUND = 3021
    CONSUMER_NOT_RESOLVED = 3022
    INVALID_MESSAGES_COUNT = 4009
    TOO_BIG_USER_HEADERS = 4017
    TOO_BIG_MESSAGE_PAYLOAD = 4022
    INVALID_MESSAGE_CHECKSUM = 4027
    INVALID_KEY_LENGTH = 4028
    NON_ZERO_OFFSET = 4031
    NON_ZERO_TIMESTAMP = 4032
    MISSING_INDEX = 4033
    INVALID_MESSAGES_SIZE = 4036
    INVALID_BATCH_CHECKSUM = 4039
    UNSUPPORTED_OPTION_KEY = 4041
    INVALID_OPTION_VALUE = 4042
    OPTIONS_TOO_LARGE = 4043
    INVALID_OFFSET = 4100
    INVALID_RESERVED_FIELD = 4101
    OPTION_NOT_UPDATABLE = 4103
    OPTION_NOT_RESETTABLE = 4104
    READ_ONLY_OPTION = 4105
    STREAM_ENCRYPTION_UNAVAILABLE = 4106
    CANNOT_MODIFY_ROOT_USER = 4108
    GROUP_NOT_FOUND = 5000
    GROUP_ID_ALREADY_EXISTS = 5001
    GROUP_NAME_ALREADY_EXISTS = 5004
    INVALID_GROUP_NAME = 5005
    GROUP_MEMBER_NOT_FOUND = 5006
    PARTITION_NOT_OWNED = 5009
    SNAPSHOT_FAILED = 9000
    DISK_FULL = 20001
    PARTITION_READ_ONLY = 20002
    DAMAGED_DATA = 20003
    OFFSET_GONE = 20004
    TOO_MANY_CONSUMER_OFFSETS = 20005
    STORAGE_FAILURE = 20006
    START_REFUSED = 20007
    METADATA_READ_ONLY = 20008
    JOURNAL_FULL = 20009
    SERVER_BUSY = 20010
    CONFIGURATION_REFUSED = 20011
    SINK_NOT_FOUND = 20012
    TOO_MANY_SINKS = 20013
    STAGED_PART_NOT_FOUND = 20014
    STAGED_PART_INCOMPLETE = 20015
    STAGED_TARGET_GONE = 20016
    STAGING_FULL = 20017
    BATCH_ALREADY_PUBLISHED = 20018
    PUBLISH_UNFINISHED = 20019
    PARTITION_OFFLINE = 20020
    TOO_MANY_GROUPS = 20030
    TOO_MANY_MEMBERS = 20031
    TOO_MANY_STREAMS = 20032
    TOO_MANY_TOPICS = 20033
    GROUP_HAS_MEMBERS = 20034
    KEY_MISSING = 20040
    CODEC_MISSING = 20041
    ARCHIVE_FAILURE = 20042
    ARCHIVE_TAKEN_OVER = 20043
    NOT_ARCHIVED = 20044


class CourserError(Exception):
    """Base class of all errors that Courser raises on purpose.

    Example:
        from courser.errors import CourserError, NotFound

        try:
            await client.get_topic("shop/nothing")
        except NotFound as error:
            print("no such topic:", error)
        except CourserError as error:
            print(error.code.name, error)
    """

    code: ErrorCode = ErrorCode.ERROR
    """The exact reason, as a number with a name."""

    def __reduce__(self) -> tuple[object, ...]:
        # Not by its constructor, whose arguments may have names.
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[CourserError], arguments: tuple[object, ...], facts: dict[str, object]) -> CourserError:
    """An error from another process."""
    error = kind.__new__(kind)
    error.args = arguments
    vars(error).update(facts)
    return error


# --- rejections ---------------------------------------------------------------------------------------


class Rejection(CourserError):
    """The request is wrong; nothing was changed."""


class InvalidBatch(Rejection):
    """A batch of messages that is inconsistent."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"invalid batch: {self.reason}"


class CommandRejected(Rejection):
    """A command that was refused, with the number and the reason."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False, kw_only=True)
class InvalidOffset(Rejection):
    """An offset beyond the end of the partition."""

    code = ErrorCode.INVALID_OFFSET
    offset: int
    next_offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} does not exist yet; the next message gets offset {self.next_offset}"


class ConsumerOffsetNotFound(Rejection):
    """An offset to delete that is not stored."""

    code = ErrorCode.CONSUMER_OFFSET_NOT_FOUND

    def __str__(self) -> str:
        return "no offset is stored for this consumer"


@dataclass(eq=False, kw_only=True)
class TooManyConsumerOffsets(Rejection):
    """The partition stores the offsets of as many consumers as it may."""

    code = ErrorCode.TOO_MANY_CONSUMER_OFFSETS
    count_max: int

    def __str__(self) -> str:
        return f"this partition already stores the offsets of {self.count_max} consumers; delete unused ones first"


class OffsetsUnavailable(Rejection):
    """Requested messages that cannot be read any more: an error for readers that must not skip any.

    Example:
        from courser.errors import OffsetsUnavailable

        try:
            await client.poll_messages("shop/orders", partition_id=0)
        except OffsetsUnavailable as gap:
            print(f"messages {gap.first_offset} to {gap.end_offset - 1} are gone")
    """

    def __init__(self, code: ErrorCode, *, first_offset: int, end_offset: int, reason: str) -> None:
        super().__init__(code, first_offset, end_offset, reason)
        self.code = code
        self.first_offset = first_offset
        self.end_offset = end_offset
        """Where reading can continue."""
        self.reason = reason

    def __str__(self) -> str:
        return f"offsets {self.first_offset} to {self.end_offset - 1} are {self.reason}; continue at {self.end_offset}"


# --- storage failures ---------------------------------------------------------------------------------


@dataclass(eq=False)
class StorageFailure(CourserError):
    """The disk refused an operation."""

    code = ErrorCode.STORAGE_FAILURE
    operation: str
    """A verb: open, read, write, sync, ..."""
    path: Path
    cause: OSError | None = None

    def __str__(self) -> str:
        reason = self.cause.strerror if self.cause is not None and self.cause.strerror else self.cause
        return f"could not {self.operation} {self.path}: {reason}"


class DiskFull(StorageFailure):
    """The disk is full. Nothing was written; the same request may succeed once space is free."""

    code = ErrorCode.DISK_FULL


@dataclass(eq=False)
class PartitionReadOnly(CourserError):
    """A sync or a repair failed: nothing is written to this partition until a restart."""

    code = ErrorCode.PARTITION_READ_ONLY
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"partition {self.path} is read-only until the server is restarted: {self.reason}"


class PartitionOffline(PartitionReadOnly):
    """The files in the partition's directory belong to another partition: nothing is read or written."""

    code = ErrorCode.PARTITION_OFFLINE

    def __str__(self) -> str:
        return f"partition {self.path} is offline: {self.reason}"


@dataclass(eq=False)
class MetadataReadOnly(CourserError):
    """A sync of the journal failed: streams, topics and users cannot be changed until a restart."""

    code = ErrorCode.METADATA_READ_ONLY
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is read-only until the server is restarted: {self.reason}"


@dataclass(eq=False)
class JournalFull(CourserError):
    """The journal is full, and the snapshot that would make room cannot be written."""

    code = ErrorCode.JOURNAL_FULL
    path: Path
    slot_count: int

    def __str__(self) -> str:
        return (
            f"{self.path} is full: {self.slot_count} entries since the last snapshot, and no new snapshot can be taken"
        )


@dataclass(eq=False)
class DamagedData(CourserError):
    """Bytes on disk that fail their checksum."""

    code = ErrorCode.DAMAGED_DATA
    path: Path
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.position}: {self.reason}"


@dataclass(eq=False)
class PublishDamaged(CourserError):
    """A decided publish that cannot be carried out: a staged part is damaged or missing."""

    code = ErrorCode.DAMAGED_DATA
    sink: str
    batch: int
    reason: str

    def __str__(self) -> str:
        return (
            f"cannot finish publishing batch {self.batch} of sink {self.sink!r}: {self.reason}; "
            "restore the file and publish the batch again, or give up the messages that are not in the logs yet with "
            f"courser sink delete {self.sink!r} (discard_staged with forget=True)"
        )


# --- refused starts -----------------------------------------------------------------------------------


@dataclass(eq=False)
class StartRefused(CourserError):
    """The data directory cannot be opened; the message contains the remedy."""

    code = ErrorCode.START_REFUSED
    path: Path
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


@dataclass(eq=False)
class AddressRefused(CourserError):
    """The server cannot listen on the configured address."""

    code = ErrorCode.START_REFUSED
    address: str
    cause: OSError
    key: str = "tcp.address"
    """The configuration key that sets the address."""

    @property
    def reason(self) -> str:
        return f"cannot listen on {self.address}: {self.cause.strerror or self.cause}"

    @property
    def remedy(self) -> str:
        match self.cause.errno:
            case errno.EADDRINUSE:
                return f"stop the program that uses this port, or set {self.key} to another one"
            case errno.EACCES:
                return f"set {self.key} to a port above 1023, or run the server as a user who may use this port"
            case _:
                return f"set {self.key} to an address of this machine"

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class ConfigurationRefused(CourserError):
    """An invalid configuration in a file, a variable or an argument; one message for each problem."""

    code = ErrorCode.CONFIGURATION_REFUSED

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class MetadataDamaged(StartRefused):
    """The journal or the snapshot is damaged in a way that no crash explains."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(
            path,
            f"damaged at byte {position}: {reason}",
            "restore the metadata directory from a backup, or start once with "
            "--set system.recovery.recreate_missing_state=true to keep its intact beginning and rebuild the rest "
            "from the descriptors beside the data",
        )
        self.position = position
        self.damage = reason


# --- client errors ------------------------------------------------------------------------------------


class RequestFailed(CourserError):
    """The server refused a request or failed to carry it out. The subclass is the kind, ``code`` the exact reason."""

    def __init__(self, code: ErrorCode, reason: str, number: int | None = None) -> None:
        super().__init__(code, reason, number)
        self.code = code
        self.reason = reason
        """The server's message."""
        self.number = int(code) if number is None else number
        """The number on the wire: differs from ``code`` only for numbers that this release does not know."""

    def __str__(self) -> str:
        return self.reason


class NotFound(RequestFailed):
    """A stream, topic, partition, group, user, token, client or stored offset does not exist."""


class AlreadyExists(RequestFailed):
    """A name or id is already used."""


class AuthenticationFailed(RequestFailed):
    """A login was refused, or is required."""


class NotAllowed(RequestFailed):
    """The user does not have the permission."""


class NotAssigned(RequestFailed):
    """A partition is not assigned to this member, or the client is not a member of the group."""


class InvalidRequest(RequestFailed):
    """An invalid request: an invalid value, an invalid batch, an unknown option."""


class TooLarge(InvalidRequest):
    """A request that is larger than the server accepts. Nothing was sent."""

    def __init__(self, what: str, size: int, size_max: int, setting: str | None) -> None:
        limit = f"the server's setting {setting}" if setting is not None else "the protocol"
        super().__init__(
            ErrorCode.INVALID_MESSAGES_SIZE,
            f"{what} has {size:,} bytes, and {limit} allows {size_max:,} in one request",
        )
        self.size = size
        """Bytes of the request."""
        self.size_max = size_max
        """Bytes that are allowed."""
        self.setting = setting
        """The server's setting with this limit; None if it is the limit of the protocol."""


class ServerFailure(RequestFailed):
    """The server could not carry out a valid request: disk full, read-only partition, topic full, a defect."""


class ClientFailure(CourserError):
    """A failure on the client's side. ``reason`` is the message."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ConnectionFailed(ClientFailure):
    """Could not connect, or the connection was lost before the reply."""

    code = ErrorCode.DISCONNECTED

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(reason)
        self.address = address
        """``host:port`` of the server."""

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class Uncertain(ConnectionFailed):
    """The connection was lost after a change or a send was sent: whether it was carried out is not known.

    Example:
        from courser.errors import AlreadyExists, Uncertain

        try:
            await client.create_stream("warehouse")
        except Uncertain:
            # Trying again shows whether it was done.
            try:
                await client.create_stream("warehouse")
            except AlreadyExists:
                pass
    """


class TimedOut(ConnectionFailed):
    """No reply in time. The connection was closed, because a late reply would be taken for the next one."""


class ClientClosed(ClientFailure):
    """A closed client, producer or consumer was used."""


class NotDelivered(ClientFailure):
    """Messages that a producer gave up, because they were not acknowledged in time."""

    def __init__(self, reason: str, messages: Sequence[Any], uncertain_count: int = 0) -> None:
        super().__init__(reason)
        self.messages = tuple(messages)
        """The messages in the order of sending, as ``SendMessage``: ``send_many`` sends them again."""
        self.uncertain_count = uncertain_count
        """How many of them were sent without a reply. They may have been stored."""

    def __str__(self) -> str:
        text = f"{self.reason}: {_counted(len(self.messages), 'message was', 'messages were')} not acknowledged"
        if self.uncertain_count:
            text += f"; {self.uncertain_count} of them may have been stored"
        return text


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


class TargetRefused(ClientFailure):
    """An invalid address, context or option of a client."""

    code = ErrorCode.CONFIGURATION_REFUSED


class DecryptionFailed(ClientFailure):
    """A payload cannot be decrypted: it has another key, or is not encrypted."""

    code = ErrorCode.INVALID_FORMAT


class HandlerFailed(ClientFailure):
    """A handler failed for a message, and there is no dead-letter topic. The error that it raised is the cause."""

    def __init__(self, topic: str, partition_id: int, offset: int, attempts: int) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        what = f"the handler failed {times}" if attempts else "the payload cannot be decoded"
        super().__init__(f"{what} for {topic}, partition {partition_id}, offset {offset}")
        self.topic = topic
        """``stream/topic``."""
        self.partition_id = partition_id
        self.offset = offset
        self.attempts = attempts
        """How often the handler was called; 0 if the payload could not be decoded."""
