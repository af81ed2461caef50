"""What the releases of the SDK from 0.9 on do differently on the wire: one table for each protocol version.

All of them send the same frames, so the first bytes of a connection do not tell them apart: the version in the login
does. A new release is a new table, made from the one before by what has changed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from courser.api import commands as c
from courser.api import replies as r
from courser.api.metadata_changes import MetadataChanges
from courser.api.replies import Reply
from courser.errors import ErrorCode as E
from courser.wire import (
    vsr_catalogue,
    vsr_changes,
    vsr_failures,
    vsr_records,
    vsr_replies,
    vsr_requests,
    vsr_updates,
    vsr_waiting,
)
from courser.wire import vsr_headers as headers
from courser.wire.layouts import layout_of
from courser.wire.vsr_failures import FailureTable
from courser.wire.vsr_replies import ReplyWriter
from courser.wire.vsr_requests import RequestReader

WriterOfCommand: TypeAlias = Callable[[Any, Any], bytes]
"""Encodes the reply to a command, given both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VsrDialect:
    """How the clients of one protocol version speak."""

    release: str
    """The release of the original server, for the reply to a login."""
    repeats_version: bool
    """Whether the same reply has the version of the client, instead of the line's first."""
    has_request_checksums: bool
    """Whether headers have the checksum of the body. Otherwise it is a random number, the same for every repeat."""
    has_incarnations: bool
    """Whether requests for a partition say which incarnation of it the client means."""
    has_producers: bool
    """Whether batches may say which idempotent producer sent them."""
    secret_size: int
    """Bytes of the secret in a login."""
    pack_polled: Callable[..., bytes]
    """The reply to a poll up to its batches."""
    polled_size: int
    """Bytes of that."""
    reads: Mapping[int, RequestReader]
    """The readers of requests that change nothing, by code; polls have their own."""
    deferred: Mapping[int, vsr_waiting.DeferredReader | None]
    """The readers of reads that may wait, by code. None is a cancellation of one."""
    changes: Mapping[int, RequestReader]
    """The readers of changes and stored offsets, by operation; sends have their own."""
    codes_of_changes: frozenset[int]
    """Codes that the classic wire has for these changes: they are not accepted here."""
    codes_of_values: frozenset[int]
    """Errors in a body that can be decoded; for all others the client gets only "malformed"."""
    writers: Mapping[type[Reply], ReplyWriter]
    writers_of_commands: Mapping[type[c.Command], WriterOfCommand]
    """For replies that depend on more than their type."""
    failures: FailureTable

    def operation_in_reply(self, operation: int) -> int:
        """A refusal repeats the operation only if the client knows it: it would not accept the header."""
        known = operation in self.changes or operation in headers.SESSION_OPERATIONS
        return operation if known else headers.NON_REPLICATED


def _codes_of(operations: Mapping[int, RequestReader]) -> frozenset[int]:
    return frozenset(row.code for row in c.COMMANDS if row.operation in operations)


SDK_0_9 = VsrDialect(
    release="0.9.0",
    repeats_version=False,
    has_request_checksums=True,
    has_incarnations=False,
    has_producers=False,
    secret_size=0,
    pack_polled=headers.pack_polled,
    polled_size=headers.POLLED_SIZE,
    reads=vsr_requests.READERS_OF_CODES,
    deferred={},
    changes=vsr_requests.READERS_OF_OPERATIONS,
    codes_of_changes=_codes_of(vsr_requests.READERS_OF_OPERATIONS) | {c.SendMessages.row.code},
    codes_of_values=frozenset({E.UNSUPPORTED_OPTION_KEY, E.INVALID_OPTION_VALUE, E.TOO_MANY_PARTITIONS}),
    writers=vsr_replies.WRITERS,
    writers_of_commands={c.CreateTopic: lambda _, reply: vsr_replies.write_new_topic(reply)},
    failures=vsr_failures.SDK_0_9,
)
"""Protocol 0.11."""

_GONE_CODES = frozenset({c.FlushMessages.row.code})
_GONE_OPERATIONS = frozenset(
    kind.row.operation for kind in (c.UpdateStream, c.PurgeStream, c.UpdateTopic, c.PurgeTopic, c.UpdateUser)
)
_NEW_READS: dict[int, RequestReader] = {
    c.GetPartitionRoute.row.code: layout_of(c.GetPartitionRoute).read,
    c.GetMetadataChanges.row.code: vsr_changes.read_request,
}


def _without(readers: Mapping[int, RequestReader], gone: frozenset[int]) -> dict[int, RequestReader]:
    return {number: read for number, read in readers.items() if number not in gone}


_CHANGES_0_12 = _without(SDK_0_9.changes, _GONE_OPERATIONS) | {
    c.CreateStream.row.operation: vsr_catalogue.create_stream,
    c.CreateTopic.row.operation: vsr_catalogue.create_topic,
    c.CreateUser.row.operation: vsr_catalogue.create_user,
    vsr_updates.UPDATE_RESOURCE: vsr_updates.update_resource,
}
_NEW_CODES_OF_VALUES = frozenset(
    {
        E.OPTIONS_TOO_LARGE,
        E.OPTION_NOT_UPDATABLE,
        E.OPTION_NOT_RESETTABLE,
        E.READ_ONLY_OPTION,
        E.STREAM_ENCRYPTION_UNAVAILABLE,
        E.INVALID_ENCRYPTION_KEY,
        E.INVALID_REPLICATION_FACTOR,
        E.INVALID_STREAM_NAME,
        E.INVALID_TOPIC_NAME,
        E.INVALID_USERNAME,
        E.INVALID_USER_STATUS,
    }
)

PROTOCOL_0_12_0 = replace(
    SDK_0_9,
    release="0.10.0",
    repeats_version=True,
    has_request_checksums=False,
    has_incarnations=True,
    secret_size=32,
    pack_polled=headers.pack_polled_with_context,
    polled_size=headers.POLLED_WITH_CONTEXT_SIZE,
    reads=_without(SDK_0_9.reads, _GONE_CODES) | _NEW_READS,
    deferred=vsr_waiting.READERS_0_12_0,
    changes=_CHANGES_0_12,
    codes_of_changes=_codes_of(_CHANGES_0_12) | {c.SendMessages.row.code, vsr_updates.UPDATE_RESOURCE_CODE},
    codes_of_values=SDK_0_9.codes_of_values | _NEW_CODES_OF_VALUES,
    writers={
        **SDK_0_9.writers,
        **vsr_records.WRITERS,
        r.ReadyPartitions: vsr_waiting.write_ready,
        MetadataChanges: vsr_changes.write_page,
    },
    writers_of_commands={c.DescribeOptions: vsr_catalogue.write_described},
    failures=vsr_failures.SDK_0_10,
)
"""The first builds of SDK 0.10."""
PROTOCOL_0_12_1 = replace(PROTOCOL_0_12_0, deferred=vsr_waiting.READERS_0_12_1)
PROTOCOL_0_12_2 = replace(
    PROTOCOL_0_12_1, has_producers=True, writers={**PROTOCOL_0_12_1.writers, **vsr_records.WRITERS_WITH_COPIES}
)

_LINE_0_11, _LINE_0_12 = 11, 12
"""Major and minor version in one number."""
_PATCH_BITS = 10
_BY_LINE: Mapping[int, tuple[VsrDialect, ...]] = {
    _LINE_0_11: (SDK_0_9,),
    _LINE_0_12: (PROTOCOL_0_12_0, PROTOCOL_0_12_1, PROTOCOL_0_12_2),
}
"""The dialects of each line, by patch."""

VERSION_MIN = _LINE_0_11 << _PATCH_BITS
VERSION_MAX = _LINE_0_12 << _PATCH_BITS | len(_BY_LINE[_LINE_0_12]) - 1
"""The protocol versions that a refused client is told."""
SUPPORTED = "0.11 (SDK 0.9) and 0.12.0 to 0.12.2 (SDK 0.10)"
"""The same for people."""


def dialect_of(version: int) -> VsrDialect | None:
    """How a client of a protocol version speaks; None if that is not known.

    Patches that came later are taken for the last one that is known.
    """
    dialects = _BY_LINE.get(version >> _PATCH_BITS)
    if dialects is None:
        return None
    patch = version & (1 << _PATCH_BITS) - 1
    return dialects[min(patch, len(dialects) - 1)]
