"""Epochs: at every start, a server claims the right to write an archive.

Epoch ``e`` ends when somebody creates its seal, and whoever did has epoch ``e + 1``. A seal is created only if it does
not exist yet, so each epoch has one owner. A server that finds the seal of its own epoch has been replaced, and writes
nothing more.

The data directory remembers the cluster, the last epoch and the nonce of the claim (the file ``archive_state``). The
nonce is written before the claim is made: after a crash in between, the next start recognizes its own seal.

A store that has neither the marker of the cluster nor the last seal is not the one that was claimed: its disk is not
mounted, or somebody has emptied or replaced it. Then nothing is written there (``ArchiveGone``).
"""

import struct
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from courser import __version__
from courser.archive.errors import ArchiveGone, ArchiveTakenOver, ArchiveTooNew
from courser.archive.keys import ArchiveKeys, number_of_seal
from courser.archive.objects import ObjectKind, Origin, Seal, decode_body, encode_body, encode_object
from courser.archive.store import Creation, Store, create_surely, read_if_there
from courser.errors import StartRefused
from courser.records.checksum import xxh3
from courser.storage.durable_files import replace_file, storage_failure
from courser.storage.files import FileSystem, read_exactly
from courser.storage.paths import ARCHIVE_STATE

_STATE = struct.Struct(
    "<"
    "Q"  # checksum: XXH3-64 of the rest
    "4s"  # magic
    "I"  # format_version
    "16s"  # cluster
    "Q"  # epoch
    "16s"  # nonce
    "8x"
)
_MAGIC = b"CRSA"
_VERSION = 1
_CHECKSUM_SIZE = 8


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What a data directory remembers about its archive."""

    cluster: bytes
    epoch: int = 0
    """The last epoch that it had, or had seen when it was restored; 0 before the first claim."""
    nonce: bytes = bytes(16)
    """Of the last claim, which may not have been made."""


def read_state(file_system: FileSystem, data_directory: Path) -> ArchiveState | None:
    """What the directory remembers; None if it never had an archive.

    Raises:
        StartRefused: the file is damaged.
        StorageFailure: it cannot be read.
    """
    path = data_directory / ARCHIVE_STATE
    try:
        with closing(file_system.open(path)) as file:
            data = bytes(read_exactly(file, 0, min(file.size(), _STATE.size)) or b"")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_failure("read", path, error) from error
    if len(data) == _STATE.size:
        checksum, magic, version, cluster, epoch, nonce = _STATE.unpack(data)
        if magic == _MAGIC and version == _VERSION and xxh3(data[_CHECKSUM_SIZE:]) == checksum:
            return ArchiveState(cluster, epoch, nonce)
    raise StartRefused(
        path,
        "it is damaged, so it is unknown which archive this directory belongs to",
        "restore it from a backup; or remove it, and the server begins a new archive beside the old one",
    )


def write_state(file_system: FileSystem, data_directory: Path, state: ArchiveState) -> None:
    """Replace the file. Durable on return."""
    rest = _STATE.pack(0, _MAGIC, _VERSION, state.cluster, state.epoch, state.nonce)[_CHECKSUM_SIZE:]
    replace_file(file_system, data_directory / ARCHIVE_STATE, xxh3(rest).to_bytes(8, "little") + rest)


def newest_epoch(store: Store, keys: ArchiveKeys, at_least: int = 0) -> int:
    """The epoch that has no seal yet. ``at_least`` is known to have begun.

    Raises:
        ArchiveTooNew: a later version writes this archive.
    """
    epoch = at_least
    for found in store.list_objects(keys.seals):
        sealed, number = number_of_seal(found.key) or (-1, 0)
        if number:
            raise ArchiveTooNew(found.key, "a log", "seals")
        epoch = max(epoch, sealed + 1)
    # The list may be behind.
    while store.find(keys.seal(epoch)) is not None:
        epoch += 1
    return epoch


def claim(
    store: Store, file_system: FileSystem, data_directory: Path, state: ArchiveState, nonce: bytes, *, take_over: bool
) -> ArchiveState:
    """Get the next epoch, and remember it. ``nonce`` is that of this process.

    Raises:
        ArchiveTakenOver: another server had an epoch after the last one of this directory.
        ArchiveGone: the store has no archive of this directory, and had one.
        ArchiveFailure: the store did not answer. May be repeated.
    """
    keys = ArchiveKeys(state.cluster)
    _mark_cluster(store, keys, nonce)
    current = newest_epoch(store, keys, state.epoch)
    if current > state.epoch and not take_over and not _is_own(store, keys, state, current):
        raise ArchiveTakenOver(store.name, current, state.epoch)
    intended = replace(state, epoch=max(current, state.epoch), nonce=nonce)
    write_state(file_system, data_directory, intended)
    origin, key = Origin(cluster=state.cluster, epoch=current, nonce=nonce), keys.seal(current)
    if create_surely(store, key, encode_body(Seal("start", __version__), key, origin)) is Creation.ANOTHERS:
        raise ArchiveTakenOver(store.name, current + 1, state.epoch)
    claimed = replace(intended, epoch=current + 1)
    write_state(file_system, data_directory, claimed)
    return claimed


def check_known(store: Store, state: ArchiveState) -> None:
    """Before a claim, and before anything is written: check that a store has the archive of a data directory.

    Raises:
        ArchiveGone: it has not, or it has an older state of it than the directory knows.
    """
    keys = ArchiveKeys(state.cluster)
    if not state.epoch or (store.find(keys.marker) and store.find(keys.seal(state.epoch - 1))):
        return
    # What is written there now would be missing from the archive later, and deleted here.
    reason = (
        "it has no archive of this server, or an older state of it; check that the right disk is mounted, or that "
        "this is the right bucket; to begin a new archive there, start once with "
        "--set data_maintenance.archiver.take_over=true"
    )
    raise ArchiveGone(store.name, reason)


def check_claim(store: Store, state: ArchiveState) -> None:
    """Check that the epoch of ``state``, which this process has claimed, is its own, and that nobody has ended it.

    Raises:
        ArchiveGone: this is not the store in which it was claimed.
        ArchiveTakenOver: another server has ended the epoch.
    """
    keys = ArchiveKeys(state.cluster)
    if store.find(keys.marker) is None:
        raise ArchiveGone(store.name, "it has no archive of this server any more; was it emptied or replaced?")
    if not _has_seal_of(store, keys, state):
        raise ArchiveGone(store.name, "it has not what this server has claimed there; was it set back or replaced?")
    if store.find(keys.seal(state.epoch)) is not None:
        raise ArchiveTakenOver(store.name, newest_epoch(store, keys, state.epoch), state.epoch)
    # Last: all that was found is there only if it is the same store.
    store.check_place()


def _has_seal_of(store: Store, keys: ArchiveKeys, state: ArchiveState) -> bool:
    """Whether the seal with which the epoch of ``state`` began has its nonce."""
    key = keys.seal(state.epoch - 1)
    data = read_if_there(store, key)
    return data is not None and decode_body(data, key, Seal)[0].nonce == state.nonce


def _is_own(store: Store, keys: ArchiveKeys, state: ArchiveState, current: int) -> bool:
    """Whether the only new epoch is the one that this directory claimed before it crashed."""
    return current == state.epoch + 1 and _has_seal_of(store, keys, replace(state, epoch=current))


def _mark_cluster(store: Store, keys: ArchiveKeys, nonce: bytes) -> None:
    """Say that there is such a cluster. Whoever says so first, it means the same."""
    if store.find(keys.marker) is None:
        origin = Origin(cluster=keys.cluster, epoch=0, nonce=nonce)
        create_surely(store, keys.marker, encode_object(ObjectKind.CLUSTER, keys.marker, origin, b""))
