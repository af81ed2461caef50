"""Every error that Courser raises: one number, one class, one sentence.

Numbers below 20000 are those that Iggy clients know; a retired number stays retired. Numbers from 20000 on
are Courser's own. None of them is 8, 9, 30, 31, 40, 61 or 304: those make SDKs reconnect.

Exceptions carry facts; the sentence is written in ``__str__``. Four families:

* rejections: the caller's fault, nothing was changed;
* storage failures: the disk said no, or what it holds is damaged;
* refused starts: the data directory cannot be opened as it is, with the remedy in the message;
* what a client raises: the server's refusals by kind, and connections that fail.
"""

import errno
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path


class ErrorCode(IntEnum):
    """The number that travels to a client."""

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
    REQUEST_ALREADY_APPLIED = 59
    CLIENT_NOT_FOUND = 100
    INVALID_CLIENT_ID = 101
    STREAM_NOT_FOUND = 1009
    STREAM_ID_ALREADY_EXISTS = 1011
    STREAM_NAME_ALREADY_EXISTS = 1012
    INVALID_TOPIC_SIZE = 1019
    TOPIC_NOT_FOUND = 2010
    TOPIC_ID_ALREADY_EXISTS = 2012
    TOPIC_NAME_ALREADY_EXISTS = 2013
    TOO_MANY_PARTITIONS = 2015
    INVALID_PARTITIONS_COUNT = 2019
    PARTITION_NOT_FOUND = 3007
    NO_PARTITIONS = 3008
    TOPIC_FULL = 3009
    CONSUMER_OFFSET_NOT_FOUND = 3021
    CONSUMER_NOT_RESOLVED = 3022
    INVALID_MESSAGES_COUNT = 4009
    TOO_BIG_USER_HEADERS = 4017
    TOO_BIG_MESSAGE_PAYLOAD = 4022
    INVALID_MESSAGE_CHECKSUM = 4027
    NON_ZERO_OFFSET = 4031
    NON_ZERO_TIMESTAMP = 4032
    MISSING_INDEX = 4033
    INVALID_MESSAGES_SIZE = 4036
    INVALID_BATCH_CHECKSUM = 4039
    UNSUPPORTED_OPTION_KEY = 4041
    INVALID_OPTION_VALUE = 4042
    INVALID_OFFSET = 4100
    INVALID_RESERVED_FIELD = 4101
    GROUP_NOT_FOUND = 5000
    GROUP_ID_ALREADY_EXISTS = 5001
    GROUP_NAME_ALREADY_EXISTS = 5004
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


class CourserError(Exception):
    """The root of everything raised on purpose."""

    code: ErrorCode = ErrorCode.ERROR


# --- rejections ---------------------------------------------------------------------------------------


class Rejection(CourserError):
    """The request is wrong; nothing was changed."""


class InvalidBatch(Rejection):
    """A batch of messages whose bytes contradict themselves."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"invalid batch: {self.reason}"


class CommandRejected(Rejection):
    """A change of metadata that the rules forbid."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class InvalidOffset(Rejection):
    """An offset beyond the end of the partition."""

    code = ErrorCode.INVALID_OFFSET

    def __init__(self, *, offset: int, next_offset: int) -> None:
        super().__init__(offset, next_offset)
        self.offset = offset
        self.next_offset = next_offset

    def __str__(self) -> str:
        return f"offset {self.offset} was never written: the next message gets offset {self.next_offset}"


class ConsumerOffsetNotFound(Rejection):
    """A delete of an offset that was never stored."""

    code = ErrorCode.CONSUMER_OFFSET_NOT_FOUND

    def __str__(self) -> str:
        return "no offset is stored for this consumer"


class TooManyConsumerOffsets(Rejection):
    """The partition remembers as many consumers as it may."""

    code = ErrorCode.TOO_MANY_CONSUMER_OFFSETS

    def __init__(self, *, count_max: int) -> None:
        super().__init__(count_max)
        self.count_max = count_max

    def __str__(self) -> str:
        return f"this partition already stores the offsets of {self.count_max} consumers: delete unused ones first"


class OffsetsUnavailable(Rejection):
    """Messages that a reader asked for and that cannot be read any more: told to readers who must not skip any."""

    def __init__(self, code: ErrorCode, *, first_offset: int, end_offset: int, reason: str) -> None:
        super().__init__(code, first_offset, end_offset, reason)
        self.code = code
        self.first_offset = first_offset
        self.end_offset = end_offset
        """Where reading can go on."""
        self.reason = reason

    def __str__(self) -> str:
        return f"offsets {self.first_offset} to {self.end_offset - 1} are {self.reason}: go on at {self.end_offset}"


# --- storage failures ---------------------------------------------------------------------------------


class StorageFailure(CourserError):
    """The disk refused an operation."""

    code = ErrorCode.STORAGE_FAILURE

    def __init__(self, operation: str, path: Path, cause: OSError | None = None) -> None:
        super().__init__(operation, path, cause)
        self.operation = operation
        self.path = path
        self.cause = cause

    def __str__(self) -> str:
        reason = self.cause.strerror if self.cause is not None and self.cause.strerror else self.cause
        return f"{self.operation} of {self.path} failed: {reason}"


class DiskFull(StorageFailure):
    """No space for this batch. Nothing of it was kept; the same send may succeed once space is free."""

    code = ErrorCode.DISK_FULL


class PartitionReadOnly(CourserError):
    """A failed sync or a failed repair: nothing more is written here until the server starts anew."""

    code = ErrorCode.PARTITION_READ_ONLY

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"partition {self.path} takes no more writes until the server is restarted: {self.reason}"


class PartitionOffline(PartitionReadOnly):
    """The files in the partition's directory belong to another partition: nothing is read or written here."""

    code = ErrorCode.PARTITION_OFFLINE

    def __str__(self) -> str:
        return f"partition {self.path} is offline: {self.reason}"


class MetadataReadOnly(CourserError):
    """A failed sync of the journal: nothing about streams, topics or users can be changed until a restart."""

    code = ErrorCode.METADATA_READ_ONLY

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} takes no more entries until the server is restarted: {self.reason}"


class JournalFull(CourserError):
    """The journal has no slot left, and the snapshot that would make room cannot be written."""

    code = ErrorCode.JOURNAL_FULL

    def __init__(self, path: Path, slot_count: int) -> None:
        super().__init__(path, slot_count)
        self.path = path
        self.slot_count = slot_count

    def __str__(self) -> str:
        return f"{self.path} holds {self.slot_count} entries since the last snapshot, and no new snapshot can be made"


class DamagedData(CourserError):
    """Bytes on disk that fail their checksum."""

    code = ErrorCode.DAMAGED_DATA

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path = path
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.position}: {self.reason}"


class PublishDamaged(CourserError):
    """A publish that is decided and cannot be carried out: what was staged for it is damaged or gone."""

    code = ErrorCode.DAMAGED_DATA

    def __init__(self, sink: str, batch: int, reason: str) -> None:
        super().__init__(sink, batch, reason)
        self.sink = sink
        self.batch = batch
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"batch {self.batch} of sink {self.sink!r} is being published and cannot be finished: {self.reason}; "
            "restore the file and publish the batch again, or give up what is not in the logs yet with "
            f"courser sink delete {self.sink!r} (discard_staged with forget=True)"
        )


# --- refused starts -----------------------------------------------------------------------------------


class StartRefused(CourserError):
    """The data directory cannot be opened as it is; the remedy is part of the message."""

    code = ErrorCode.START_REFUSED

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path = path
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


class AddressRefused(CourserError):
    """The server cannot listen where it should."""

    code = ErrorCode.START_REFUSED

    def __init__(self, address: str, cause: OSError) -> None:
        super().__init__(address, cause)
        self.address = address
        self.cause = cause

    @property
    def reason(self) -> str:
        """What went wrong."""
        return f"cannot listen on {self.address}: {self.cause.strerror or self.cause}"

    @property
    def remedy(self) -> str:
        """What to do."""
        match self.cause.errno:
            case errno.EADDRINUSE:
                return "stop the program that listens there, or set tcp.address to another port"
            case errno.EACCES:
                return "set tcp.address to a port above 1023, or run it as a user who may use this one"
            case _:
                return "set tcp.address to an address of this machine"

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class ConfigurationRefused(CourserError):
    """A file, a variable or an argument says what cannot be; each problem is one sentence."""

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
            "--set system.recovery.recreate_missing_state=true to keep its intact beginning and to rebuild the rest "
            "from the descriptors beside the data",
        )
        self.position = position
        self.damage = reason


# --- what a client raises -----------------------------------------------------------------------------


class RequestFailed(CourserError):
    """The server refused a request, or failed to carry it out. The kinds below say which; ``code`` says exactly."""

    def __init__(self, code: ErrorCode, reason: str, number: int | None = None) -> None:
        super().__init__(code, reason, number)
        self.code = code
        self.reason = reason
        """The server's sentence."""
        self.number = int(code) if number is None else number
        """What travelled: differs from ``code`` only for numbers that this release does not know."""

    def __str__(self) -> str:
        return self.reason


class NotFound(RequestFailed):
    """A stream, topic, partition, group, user, token, client or stored offset that is not there."""


class AlreadyExists(RequestFailed):
    """A name or number that is taken."""


class AuthenticationFailed(RequestFailed):
    """A login that was refused, or a login that is needed and was not made."""


class NotAllowed(RequestFailed):
    """The user may not do this."""


class NotAssigned(RequestFailed):
    """A partition that is not this member's, or a group that this client is no member of."""


class InvalidRequest(RequestFailed):
    """A request that cannot be carried out as it is: a bad value, a bad batch, an unknown option."""


class ServerFailure(RequestFailed):
    """The server could not do what it should: disk full, read-only partition, topic full, a defect."""


class ClientFailure(CourserError):
    """What goes wrong on the client's side. ``reason`` is the sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class ConnectionFailed(ClientFailure):
    """No connection, or it broke before the answer came."""

    code = ErrorCode.DISCONNECTED

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(reason)
        self.args = (address, reason)
        self.address = address
        """``host:port`` of the server."""

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class Uncertain(ConnectionFailed):
    """The connection broke after a change or a send was handed over: whether it was carried out is not known."""


class TimedOut(ConnectionFailed):
    """No answer in time. The connection was given up, because a late answer could not be told from the next."""


class ClientClosed(ClientFailure):
    """A client, producer or consumer that was closed is used."""


class TargetRefused(ClientFailure):
    """An address, a context or an option of a client that makes no sense."""

    code = ErrorCode.CONFIGURATION_REFUSED


class DecryptionFailed(ClientFailure):
    """A payload that cannot be decrypted: another key, or not encrypted at all."""

    code = ErrorCode.INVALID_FORMAT
