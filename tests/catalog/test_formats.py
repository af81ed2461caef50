"""The bytes of commands, states and descriptors: whatever is written can be read, and a change of format is noticed.

A golden value that differs means that existing directories cannot be opened any more: then a new format version and a
way from the old one are due, and not a new golden value.
"""

from pathlib import Path

import msgspec
import pytest

from courser.catalog import changes as c
from courser.catalog.changes import change_number, decode_change, encode_change
from courser.catalog.descriptors import (
    StreamDescriptor,
    TopicDescriptor,
    decode_descriptor,
    descriptor_of,
    encode_descriptor,
)
from courser.catalog.entities import Stream, Topic, UsedIds
from courser.catalog.state import CatalogState
from courser.catalog.transitions import apply
from courser.errors import DamagedData
from courser.model.permissions import ALL_PERMISSIONS
from courser.model.quantities import NEVER
from courser.model.topic_options import TopicOptions
from tests.catalog.scenes import HASH, LIFE, PERMISSIONS, uuid

SAMPLES: tuple[c.AnyChange, ...] = (
    *LIFE,
    c.DirectoryRemoval(("streams/0", "streams/1/topics/2")),
    c.PublishEnd("a query", 24),
    c.SinkRemoval("a query"),
)
KINDS = c.AnyChange.__args__
PATH = Path("/data/streams/0/descriptor")


def first_of(kind: type[c.Change]) -> c.AnyChange:
    return next(command for command in SAMPLES if type(command) is kind)


def state_after(commands: tuple[c.AnyChange, ...]) -> CatalogState:
    state = CatalogState()
    for op, command in enumerate(commands):
        apply(state, command, op, 1000 + op)
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_sample_of_every_kind(kind: type[c.Change]) -> None:
    assert type(first_of(kind)) is kind


@pytest.mark.parametrize("command", SAMPLES, ids=lambda command: type(command).__name__)
def test_a_command_is_read_as_it_was_written(command: c.AnyChange) -> None:
    assert decode_change(encode_change(command)) == command


def test_numbers_of_commands_stay_what_they_are() -> None:
    assert {kind.__name__: change_number(first_of(kind)) for kind in KINDS} == {
        "StreamCreation": 1,
        "StreamUpdate": 2,
        "StreamDeletion": 3,
        "StreamPurge": 4,
        "TopicCreation": 5,
        "TopicUpdate": 6,
        "TopicDeletion": 7,
        "TopicPurge": 8,
        "PartitionCreation": 9,
        "PartitionDeletion": 10,
        "GroupCreation": 11,
        "GroupDeletion": 12,
        "UserCreation": 13,
        "UserUpdate": 14,
        "UserDeletion": 15,
        "PasswordChange": 16,
        "PermissionUpdate": 17,
        "TokenCreation": 18,
        "TokenDeletion": 19,
        "DirectoryRemoval": 20,
        "PublishStart": 21,
        "PublishEnd": 22,
        "SinkRemoval": 23,
    }


GOLDEN_COMMANDS = {
    "StreamCreation": "9401a66f7264657273c41001010101010101010101010101010101c0",
    "StreamUpdate": "930200aa616c6c206f7264657273",
    "StreamDeletion": "920300",
    "StreamPurge": "93040090",
    "TopicCreation": (
        "970500a6706c61636564c41002020202020202020202020202020202029bcfffffffffffffffffcf000000040000000001c0"
        "c0c0c0c0c0a9706572736973746564c0c0"
    ),
    "TopicUpdate": "95060000aa6e6577206f72646572739bc0c0c0c0c0c0c0c0c0c0c0",
    "TopicDeletion": "93070005",
    "TopicPurge": "950800000090",
    "PartitionCreation": "9409000001",
    "PartitionDeletion": "940a000002",
    "GroupCreation": "950b0000a762696c6c696e67c0",
    "GroupDeletion": "940c000000",
    "UserCreation": (
        "950da4726f6f74d936246172676f6e32696424763d3139246d3d31393435362c743d322c703d31246332467364484e686248"
        "51246147467a61476868633267c3c0"
    ),
    "UserUpdate": "940e01a7616c6963652062c2",
    "UserDeletion": "920f01",
    "PasswordChange": (
        "931001d937246172676f6e32696424763d3139246d3d31393435362c743d322c703d31246332467364484e68624851246147"
        "467a6147686863326732"
    ),
    "PermissionUpdate": "931101c0",
    "TokenCreation": (
        "951201a66c6170746f70c4200000000000000000000000000000000000000000000000000000000000000000cf0004000000000000"
    ),
    "TokenDeletion": "931301a66c6170746f70",
    "DirectoryRemoval": "921492a973747265616d732f30b273747265616d732f312f746f706963732f32",
    "PublishStart": (
        "9815a7612071756572790003c408000000000000000091940007cd03840591970900c41005050505050505050505050505050505"
        "0108280000"
    ),
    "PublishEnd": "9316a76120717565727918",
    "SinkRemoval": "9217a761207175657279",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_command_are_these(kind: type[c.Change]) -> None:
    assert encode_change(first_of(kind)).hex() == GOLDEN_COMMANDS[kind.__name__]


def test_a_publish_of_before_batches_were_counted_is_read() -> None:
    old = bytes.fromhex(GOLDEN_COMMANDS["PublishStart"].replace("91970900", "91960900")[:-2])
    assert decode_change(old) == first_of(c.PublishStart)


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x91\x63", b"\x92\x01\xa1a", b"\xff\xff"])
def test_a_body_that_is_no_command_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="an invalid change"):
        decode_change(body)


# --- states ---


def test_a_state_is_read_as_it_was_written() -> None:
    for count in range(len(LIFE) + 1):
        state = state_after(LIFE[:count])
        again = CatalogState.decode(state.encode())
        assert again.encode() == state.encode()
        assert again.hash() == state.hash()
        assert (again.streams, again.users, again.deleted) == (state.streams, state.users, state.deleted)
        assert again.sinks == state.sinks
        names = (state.stream_by_name, state.topic_by_name, state.user_by_name)
        assert (again.stream_by_name, again.topic_by_name, again.user_by_name) == names


def test_every_option_and_permission_survives() -> None:
    options = TopicOptions(
        message_expiry=NEVER,
        max_topic_size=1,
        compression=2,
        replication_factor=3,
        segment_size=4,
        enforce_fsync=True,
        messages_required_to_save=5,
        size_of_messages_required_to_save=6,
        preallocate_segments=False,
        durability="persisted",
        consumer_offset_durability="replicated",
        keep_latest_by_key=True,
        local_retention_time=7,
        local_retention_size=8,
        partition_resize_policy="fixed",
    )
    assert None not in msgspec.structs.astuple(options)
    state = state_after(
        (
            c.UserCreation("root", HASH, True, ALL_PERMISSIONS),
            c.UserCreation("alice", HASH, False, PERMISSIONS),
            c.StreamCreation("s", uuid(1)),
            c.TopicCreation(0, "t", uuid(2), 1, options),
        )
    )
    again = CatalogState.decode(state.encode())
    assert again.streams[0].topics[0].options == options
    assert again.hash() == state.hash()
    descriptor = descriptor_of(state.streams[0], state.streams[0].topics[0])
    assert decode_descriptor(encode_descriptor(descriptor), PATH) == descriptor
    update = c.TopicUpdate(0, 0, "t", options)
    assert decode_change(encode_change(update)) == update
    assert [user.permissions for user in again.users.values()] == [ALL_PERMISSIONS, PERMISSIONS]


def test_the_bytes_of_a_state_are_these() -> None:
    state = state_after(LIFE[:14])
    assert state.encode().hex() == GOLDEN_STATE


GOLDEN_STATE = (
    "95919600c41001010101010101010101010101010101aa616c6c206f7264657273cd03e981009900c4100202020202020202"
    "0202020202020202aa6e6577206f7264657273cd03ea9bc0c0c0c0c0c0c0c0c0c0c091930002cd03ea81079307a561756469"
    "74cd03f492089192010701920190929700a4726f6f74d936246172676f6e32696424763d3139246d3d31393435362c743d32"
    "2c703d31246332467364484e68624851246147467a61476868633267c3cd03e8c0809701a7616c6963652062d93624617267"
    "6f6e32696424763d3139246d3d31393435362c743d322c703d31246332467364484e68624851246147467a61476868633267"
    "c2cd03ef929ac3c2c2c2c2c2c2c2c2c2810097c2c3c2c2c2c2810094c2c2c3c281a66c6170746f7094a66c6170746f70c420"
    "0000000000000000000000000000000000000000000000000000000000000000cd03f1cf0004000000000000920190920290"
    "9292d92173747265616d732f302f746f706963732f302f706172746974696f6e732f312d32c4100202020202020202020202"
    "020202020292d92173747265616d732f302f746f706963732f302f706172746974696f6e732f322d35c41002020202020202"
    "020202020202020202"
)


# --- descriptors ---

STREAM = Stream(3, uuid(7), "orders", 11, {}, UsedIds(9, [(2, 4)]))


def topic_of_life() -> Topic:
    return state_after(LIFE[:13]).streams[0].topics[0]


@pytest.mark.parametrize("descriptor", [descriptor_of(STREAM), descriptor_of(STREAM, topic_of_life())])
def test_a_descriptor_is_read_as_it_was_written(descriptor: StreamDescriptor | TopicDescriptor) -> None:
    assert decode_descriptor(encode_descriptor(descriptor), PATH) == descriptor


@pytest.mark.parametrize("descriptor", [descriptor_of(STREAM), descriptor_of(STREAM, topic_of_life())])
def test_every_flipped_cut_or_added_byte_of_a_descriptor_is_found(
    descriptor: StreamDescriptor | TopicDescriptor,
) -> None:
    data = encode_descriptor(descriptor)
    damaged = [data[:size] for size in range(len(data))] + [data + b"!"]
    for position in range(len(data)):
        for bit in (0x01, 0x80):
            flipped = bytearray(data)
            flipped[position] ^= bit
            damaged.append(bytes(flipped))
    for bad in damaged:
        with pytest.raises(DamagedData, match=str(PATH)):
            decode_descriptor(bad, PATH)


def test_the_bytes_of_descriptors_are_these() -> None:
    found = [encode_descriptor(descriptor_of(STREAM)), encode_descriptor(descriptor_of(STREAM, topic_of_life()))]
    assert [data.hex() for data in found] == [GOLDEN_STREAM_DESCRIPTOR, GOLDEN_TOPIC_DESCRIPTOR]


GOLDEN_STREAM_DESCRIPTOR = (
    "e332a824c4d7a6ba2becd6409b84b20c435253440100010022000000000000009503c4100707070707070707070707070707"
    "0707a66f72646572730b920991920204"
)
GOLDEN_TOPIC_DESCRIPTOR = (
    "330a52c9e8ebb679a24bb7db9ea129bf43525344010002006b000000000000009303c4100707070707070707070707070707"
    "07079900c41002020202020202020202020202020202aa6e6577206f7264657273cd03ea9bc0c0c0c0c0c0c0c0c0c0c09193"
    "0002cd03ea82009300a762696c6c696e67cd03eb079307a56175646974cd03f492089192010701"
)
