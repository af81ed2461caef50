"""Replies that SDK 0.10 reads differently than SDK 0.9: what changed in ``vsr_replies``.

Streams and users have two blocks of options like topics; what a topic is set to is only in its blocks; partitions say
which incarnation they are, and who has a copy.
"""

from collections.abc import Callable
from struct import Struct

import msgspec

from courser.api import replies as r
from courser.model.topic_options import MUTABLE, TopicOptions, compression_for_sdks
from courser.wire import shared_replies as shared
from courser.wire.layouts import layout_of
from courser.wire.vsr_options import write_block_of_text, write_topic_options
from courser.wire.vsr_replies import ReplyWriter, record_writers
from courser.wire.writing import text8, u64

_REPLICA_ID = 0
"""The number of the only server."""
_VIEW = 0
"""How often another server has taken over: never."""
_HIDDEN_OPTIONS = frozenset({"enforce_fsync"})
"""Accepted from clients that send it, but SDK 0.10 does not have it any more."""
_NEW_OPTIONS = frozenset({"partition_resize_policy"})

_TOPIC = Struct(
    "<"
    "I"  # id
    "Q"  # created_at
    "I"  # partitions_count
    "Q"  # size
    "Q"  # messages_count
)
_CONTEXT = Struct(
    "<"
    "Q"  # incarnation
    "Q"  # owner_generation: 0 outside of groups
    "Q"  # metadata_op: the entry since which it is so
)
_ROUTE = Struct(
    "<"
    "Q"  # incarnation
    "Q"  # metadata_op
    "I"  # view
    "I"  # partitions_count
    "B"  # primary_replica
)
_NO_OPTIONS = bytes(4)
OPTIONS_OF_STREAM = _NO_OPTIONS + write_block_of_text("encryption_key_source", "none")
"""None is set, and none has a key of its own."""
OPTIONS_OF_USER = _NO_OPTIONS + _NO_OPTIONS
"""None is set, and there are none."""
_COPIES = bytes((1, _REPLICA_ID, 1, _REPLICA_ID))
"""Two lists after their counts: who has a copy of a partition, and whose is complete."""

_stream, _partition, _user = layout_of(r.StreamInfo), layout_of(r.PartitionInfo), layout_of(r.UserInfo)


def _write_stream(row: r.StreamInfo) -> bytes:
    return _stream.write(row) + OPTIONS_OF_STREAM


def _write_user(row: r.UserInfo) -> bytes:
    return _user.write(row) + OPTIONS_OF_USER


def _write_topic(row: r.TopicInfo) -> bytes:
    head = _TOPIC.pack(row.topic_id, row.created_at, row.partition_count, row.size, row.message_count)
    return head + text8(row.name) + write_options_of_topic(row.options, row.effective)


def write_options_of_topic(options: TopicOptions, effective: TopicOptions) -> bytes:
    """Two blocks: the options that were set, and the defaults of the others."""
    effective = msgspec.structs.replace(
        effective,
        compression=compression_for_sdks(effective.compression),
        partition_resize_policy=effective.partition_resize_policy or MUTABLE,
    )
    if options.compression is not None:
        options = msgspec.structs.replace(options, compression=compression_for_sdks(options.compression))
    return write_topic_options(options, effective, _HIDDEN_OPTIONS, _NEW_OPTIONS)


def _write_partition(row: r.PartitionInfo) -> bytes:
    return _partition.write(row) + _CONTEXT.pack(row.incarnation, 0, row.incarnation)


def _write_partition_with_copies(row: r.PartitionInfo) -> bytes:
    return _write_partition(row) + _COPIES


def _write_route(reply: r.PartitionRoute) -> bytes:
    return _ROUTE.pack(reply.incarnation, reply.incarnation, _VIEW, reply.partition_count, _REPLICA_ID)


def _write_stats(reply: r.Stats) -> bytes:
    return shared.write_stats(reply) + u64(reply.open_file_count) + u64(reply.open_file_limit)


def _writers(partition: Callable[[r.PartitionInfo], bytes]) -> dict[type[r.Reply], ReplyWriter]:
    return {
        **record_writers(stream=_write_stream, topic=_write_topic, partition=partition, user=_write_user),
        r.Stats: _write_stats,
        r.ClusterMetadata: lambda reply: shared.write_cluster(reply, bytes((_REPLICA_ID,))),
        r.PartitionRoute: _write_route,
    }


WRITERS = _writers(_write_partition)
"""Of protocol 0.12.0 and 0.12.1."""
WRITERS_WITH_COPIES = _writers(_write_partition_with_copies)
"""Of protocol 0.12.2."""
