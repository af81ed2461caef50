"""The small objects of the archive: each is believed only under its own key, and a later version is no damage."""

import random
import struct
from collections.abc import Callable

import pytest
import xxhash

from courser import __version__
from courser.archive.claiming import newest_epoch
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveTooNew
from courser.archive.keys import ArchiveKeys
from courser.archive.objects import (
    HEADER_SIZE,
    Manifest,
    ObjectKind,
    Origin,
    Root,
    Seal,
    decode_body,
    decode_object,
    encode_body,
    encode_object,
)
from courser.archive.reader import ArchiveReader
from courser.records.stored_header import PartitionIdentity
from tests.archive.writing import CLUSTER, IDENTITY, Process, capture, captured, disk, naming, plant_segment
from tests.fakes.object_store import FakeStore

KEYS = ArchiveKeys(CLUSTER)
ORIGIN = Origin(cluster=CLUSTER, epoch=2, nonce=bytes(16), number=3, time=4, op=5)
OTHER = PartitionIdentity(bytes(16), 1, 8)
_KEY_DIGEST = slice(136, 152)
_VERSION = slice(36, 38)
_KIND = slice(38, 40)


def changed(data: bytes, place: slice, value: bytes) -> bytes:
    """An object with other bytes in its header, which is intact."""
    header = bytearray(data[:HEADER_SIZE])
    header[place] = value
    header[:16] = xxhash.xxh3_128_digest(header[16:])
    return bytes(header) + data[HEADER_SIZE:]


def in_first_form(data: bytes) -> bytes:
    """An object as versions wrote it that did not say which key it has."""
    return changed(data, _KEY_DIGEST, bytes(16))


def manifest_of(identity: PartitionIdentity = IDENTITY) -> Manifest:
    return Manifest(identity.topic_uuid, identity.partition_id, identity.incarnation, 0, ())


ROOT = Root(time=4, is_final=False, metadata_key="", partitions=())
OBJECTS: list[tuple[ObjectKind, str, str, Callable[[str], bytes]]] = [
    (ObjectKind.SEAL, KEYS.seal(2), KEYS.seal(3), lambda key: encode_body(Seal("start", "1"), key, ORIGIN)),
    (ObjectKind.ROOT, KEYS.root(2, 3), KEYS.root(2, 4), lambda key: encode_body(ROOT, key, ORIGIN)),
    (ObjectKind.ROOT, KEYS.root(2, 3), KEYS.root(3, 3), lambda key: encode_body(ROOT, key, ORIGIN)),
    (
        ObjectKind.MANIFEST,
        KEYS.manifest(IDENTITY, 2, 3),
        KEYS.manifest(IDENTITY, 2, 4),
        lambda key: encode_body(manifest_of(), key, ORIGIN),
    ),
    (
        ObjectKind.METADATA,
        KEYS.metadata(5, 2, "00"),
        KEYS.metadata(6, 2, "00"),
        lambda key: encode_object(ObjectKind.METADATA, key, ORIGIN, b"body"),
    ),
    (
        ObjectKind.CLUSTER,
        KEYS.marker,
        ArchiveKeys(bytes(16)).marker,
        lambda key: encode_object(ObjectKind.CLUSTER, key, ORIGIN, b""),
    ),
]


@pytest.mark.parametrize("form", [bytes, in_first_form])
@pytest.mark.parametrize(("kind", "key", "other", "encode"), OBJECTS)
def test_an_object_is_believed_only_under_its_own_key(
    kind: ObjectKind, key: str, other: str, encode: Callable[[str], bytes], form: Callable[[bytes], bytes]
) -> None:
    data = form(encode(key))
    assert decode_object(data, key, kind)[0] == ORIGIN
    with pytest.raises(ArchiveDamaged, match="the content of another object"):
        decode_object(data, other, kind)


def test_a_manifest_is_believed_only_for_its_own_partition() -> None:
    store = FakeStore(random.Random(1))
    key, other = KEYS.manifest(IDENTITY, 2, 3), KEYS.manifest(OTHER, 2, 3)
    reader = ArchiveReader(store, CLUSTER)
    store.objects[other] = in_first_form(encode_body(manifest_of(), key, ORIGIN))
    with pytest.raises(ArchiveDamaged, match="another partition"):
        reader.manifest(naming(other, OTHER))


@pytest.mark.parametrize(
    ("change", "found", "supported"),
    [((_VERSION, struct.pack("<H", 2)), "format 2", "format 1"), ((_KIND, struct.pack("<H", 9)), "kind 9", "kinds 1")],
)
def test_an_object_of_a_later_version_is_refused_and_both_versions_are_named(
    change: tuple[slice, bytes], found: str, supported: str
) -> None:
    key = KEYS.root(2, 3)
    later = changed(encode_body(ROOT, key, ORIGIN), *change)
    with pytest.raises(ArchiveTooNew) as refused:
        decode_body(later, key, Root)
    for word in (found, supported, __version__, key):
        assert word in str(refused.value)


def test_a_root_of_a_later_version_is_not_replaced_by_the_one_before() -> None:
    store, file_system = FakeStore(random.Random(1)), disk()
    plant_segment(file_system, 0, 10)
    process = Process(store, file_system)
    process.run(capture(captured((0,), open_end=5)))
    process.run(capture(captured((0, 10))))
    newest = max(key for key in store.objects if key.startswith(KEYS.roots))
    store.objects[newest] = changed(store.objects[newest], _VERSION, struct.pack("<H", 2))
    reader = ArchiveReader(store, CLUSTER)
    for look in (reader.newest_root, lambda: list(reader.listed_backwards()), lambda: reader.roots_around(10**18)):
        with pytest.raises(ArchiveTooNew, match="format 2"):
            look()


def test_a_log_of_a_later_version_is_no_seal() -> None:
    store = FakeStore(random.Random(1))
    store.put_new(
        KEYS.seal(0), encode_body(Seal("start", "1"), KEYS.seal(0), Origin(cluster=CLUSTER, epoch=0, nonce=b""))
    )
    assert newest_epoch(store, KEYS) == 1
    store.put_new(KEYS.seal(7)[:-1] + "1", b"an entry")
    with pytest.raises(ArchiveFailure, match="a log"):
        newest_epoch(store, KEYS)
