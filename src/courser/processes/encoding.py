"""Messages between the processes of one server, as bytes.

Pickled: both ends are the same program, and nobody else holds an end of the sockets that carry them. Large values, such
as the messages of a send or a poll, are not copied into the pickle: they follow it.

Sends and polls are frequent, and pickling one takes as long as carrying it out. They and their answers are taken apart
instead, into a tuple of numbers and bytes (``marshal``).
"""

import io
import marshal
import pickle
from collections.abc import Sequence
from typing import Any

from courser.api.commands import PollMessages, SendMessages
from courser.api.replies import Polled, Sent
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import Balanced, ByKey, Partitioning, PollingKind, ToPartition
from courser.records.batch import Batch
from courser.records.frames import FrameLayout
from courser.records.producers import BatchProducer

CALL, NOTE, ANSWER, FAILURE, CANCELLED, INTERRUPT = range(6)
"""What a message is: its first value. Plain numbers: looking up members of an enum takes long."""
COMMAND = "command"
"""The name of the calls that carry out a command for a connection of the caller."""

_PICKLE_START = 0x80
"""The first byte of every pickle, and of nothing that ``marshal`` writes for a tuple."""
_SEND, _SENT, _POLL, _POLLED = range(4)
_BALANCED = Balanced()
_POLLING_KINDS = {int(kind): kind for kind in PollingKind}
_CONSUMER_KINDS = {int(kind): kind for kind in ConsumerKind}


def encode(message: tuple[Any, ...]) -> tuple[bytes, Sequence[memoryview]]:
    """The bytes of a message, and the memory that it refers to."""
    kind = message[0]
    if kind == CALL and message[2] == COMMAND:
        client, user_id, command = message[3]
        if type(command) is SendMessages and type(client) is int and len(command.batches) == 1:
            if type(command.batches[0]) is Batch:
                return _encoded_send(message[1], client, user_id, command)
        elif type(command) is PollMessages and type(client) is int:
            return marshal.dumps(_parts_of_poll(message[1], client, user_id, command)), ()
    elif kind == ANSWER:
        value = message[2]
        if type(value) is Sent:
            parts = (_SENT, message[1], value.stream_id, value.topic_id, value.partition_id, value.base_offset)
            return marshal.dumps(parts), ()
        if type(value) is Polled:
            figures = value.partition_id, value.current_offset, value.message_count, value.size, value.incarnation
            return marshal.dumps((_POLLED, message[1], *figures)), value.pieces
    return _pickled(message)


def decode(data: memoryview, buffers: Sequence[memoryview]) -> tuple[Any, ...]:
    """A message. It refers to the memory of ``buffers``."""
    if data[0] == _PICKLE_START:
        message: tuple[Any, ...] = pickle.loads(data, buffers=buffers)
        return message
    parts = marshal.loads(data)
    form, call_id = parts[0], parts[1]
    if form == _SENT:
        return ANSWER, call_id, Sent(*parts[2:])
    if form == _SEND:
        return CALL, call_id, COMMAND, (parts[2], parts[3], _decoded_send(parts, buffers[0]))
    if form == _POLLED:
        _, _, partition_id, current_offset, message_count, size, incarnation = parts
        return ANSWER, call_id, Polled(partition_id, current_offset, message_count, tuple(buffers), size, incarnation)
    return CALL, call_id, COMMAND, (parts[2], parts[3], _decoded_poll(parts))


# --- frequent messages --------------------------------------------------------------------------------


def _encoded_send(
    call_id: int, client: int, user_id: int | None, command: SendMessages
) -> tuple[bytes, Sequence[memoryview]]:
    batch = command.batches[0]
    frames = batch.frames
    facts = batch.origin_timestamp, batch.count, batch.checksums, frames.frame_size, frames.packed_starts
    producer = None if batch.producer is None else tuple(batch.producer)
    partitioning = command.partitioning
    # A number is a partition, bytes are a key, and None is neither.
    where = (
        partitioning.partition_id
        if type(partitioning) is ToPartition
        else partitioning.key
        if type(partitioning) is ByKey
        else None
    )
    place = command.stream, command.topic, where, command.incarnation
    parts = (_SEND, call_id, client, user_id, *place, producer, *facts)
    return marshal.dumps(parts), (batch.body,)


def _decoded_send(parts: tuple[Any, ...], body: memoryview) -> SendMessages:
    _, _, _, _, stream, topic, where, incarnation, producer, origin_timestamp, count, *rest = parts
    partitioning: Partitioning = _BALANCED
    if type(where) is int:
        partitioning = ToPartition(where)
    elif where is not None:
        partitioning = ByKey(where)
    checksums, frame_size, packed_starts = rest
    frames = FrameLayout(count, frame_size, packed_starts, len(body))
    sender = None if producer is None else BatchProducer(*producer)
    batch = Batch(origin_timestamp, count, body, frames, checksums, sender)
    return SendMessages(stream, topic, partitioning, [batch], incarnation)


def _parts_of_poll(call_id: int, client: int, user_id: int | None, command: PollMessages) -> tuple[Any, ...]:
    consumer = command.consumer
    place = command.stream, command.topic, command.partition_id
    start = int(command.kind), command.value, command.count, command.auto_commit, command.incarnation
    return _POLL, call_id, client, user_id, int(consumer.kind), consumer.identifier, *place, *start


def _decoded_poll(parts: tuple[Any, ...]) -> PollMessages:
    _, _, _, _, consumer_kind, identifier, stream, topic, partition_id, kind, *rest = parts
    consumer = Consumer(_CONSUMER_KINDS[consumer_kind], identifier)
    return PollMessages(consumer, stream, topic, partition_id, _POLLING_KINDS[kind], *rest)


# --- all others ---------------------------------------------------------------------------------------


def _pickled(message: object) -> tuple[bytes, list[memoryview]]:
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=keep).dump(message)
    return stream.getvalue(), buffers


class _Pickler(pickle.Pickler):
    """Pickles what ``pickle`` does not, or not well."""

    def reducer_override(self, value: object) -> Any:
        if type(value) is memoryview:
            return memoryview, (pickle.PickleBuffer(value),)
        return NotImplemented
