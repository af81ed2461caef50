"""Claims an archive, and writes its roots: what all processes of a server have archived counts from then on.

One process does this, which has the metadata. A root names the metadata and, for each partition, the manifest that the
process of its topic has written (``manifest_writer``). A run writes the metadata, and a root after each of its steps.

All methods block. One thread uses a writer.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from courser.archive.capture import Step
from courser.archive.claiming import ArchiveState, check_known, claim, read_state
from courser.archive.errors import ArchiveGone
from courser.archive.keys import ArchiveKeys, Nonces
from courser.archive.manifest_writer import Written
from courser.archive.objects import ObjectKind, Origin, PartitionRoot, Root, checksum_of, encode_body, encode_object
from courser.archive.store import Store, check_creation, create_checked, create_surely, probe
from courser.storage.files import FileSystem

_decode_rows = msgspec.msgpack.Decoder(tuple[PartitionRoot, ...]).decode


class RootWriter:
    """Writes the roots of one server. Call ``begin`` first; after a failure, the same call may be repeated."""

    def __init__(
        self,
        store: Store,
        file_system: FileSystem,
        data_directory: Path,
        state: ArchiveState,
        *,
        nonce: bytes,
        take_over: bool = False,
    ) -> None:
        """``nonce`` has 16 random bytes, which are new for each process."""
        self._store = store
        self._file_system = file_system
        self._data_directory = data_directory
        self.state = state
        """What this server knows of its claim."""
        self._take_over = take_over
        self._keys = ArchiveKeys(state.cluster)
        self._nonces = Nonces(nonce)
        self._is_claimed = False
        self._step_number = 0
        self.newest_step = 0
        """The step that has written the newest root of this epoch; 0 if it has none yet."""
        self._root_number = 0
        self._root: Root | None = None
        """The newest root of this epoch."""
        self._metadata_key = ""
        self._metadata_checksum = b""
        self.metadata_op = -1
        """The op of the catalog that is archived; -1 if none is."""

    def begin(self) -> None:
        """Claim an epoch, if this server has none, or prove that the store still has what it was told last.

        Raises:
            StoreRefused: the store ignores conditions.
            ArchiveTakenOver: another server writes this archive.
            ArchiveGone: another store is there, or none.
            ArchiveFailure: the store did not answer.
        """
        if self._is_claimed:
            self._prove_newest_root()
            return
        self._store.recognize()
        # A claim that failed before may have been made after all. Then only the directory knows its nonce.
        state = read_state(self._file_system, self._data_directory) or self.state
        if not self._take_over:
            check_known(self._store, state)
        probe(self._store, self._keys.probe(self._nonces.new()), self._nonces.own)
        self.state = claim(
            self._store, self._file_system, self._data_directory, state, self._nonces.own, take_over=self._take_over
        )
        self._root, self._root_number = None, 0
        self._step_number = self.newest_step = 0
        self._is_claimed = True
        # Once: if the archive is gone later, nobody has asked for a new one in its place.
        self._take_over = False

    def _prove_newest_root(self) -> None:
        """A store may be set back to a time after the claim: then it has the claim, and not what came last."""
        if (
            self._root is not None
            and self._store.find(self._keys.root(self.state.epoch, self._root_number - 1)) is None
        ):
            raise ArchiveGone(self._store.name, "it has not what this server has written there last; was it set back?")

    def lose(self) -> None:
        """The archive is gone. If it comes back, it may have another state or another owner: claim it then."""
        self._is_claimed = False
        self.metadata_op = -1

    def next_step(self, time: int, op: int) -> Step:
        """The next step of a run."""
        self._step_number += 1
        return Step(self._step_number, time, op)

    def put_metadata(self, step: Step, snapshot: bytes) -> None:
        """Write the catalog for the next roots. Raises ``ArchiveFailure``."""
        key = self._keys.metadata(max(step.op, 0), self.state.epoch, self._nonces.new())
        data = encode_object(ObjectKind.METADATA, key, self._origin(step), snapshot)
        create_checked(self._store, key, data)
        self._metadata_key, self.metadata_op = key.removeprefix(self._keys.base), step.op
        self._metadata_checksum = checksum_of(data)

    def put_root(self, step: Step, written: Iterable[Written], *, is_final: bool) -> None:
        """Write a root with what all processes have written, unless the newest one says the same.

        ``is_final``: the server stops, and this is all that it ever confirmed. Raises ``ArchiveFailure``.
        """
        shares = tuple(written)
        root = Root(
            time=step.time,
            is_final=is_final and all(share.is_complete for share in shares),
            metadata_key=self._metadata_key,
            metadata_checksum=self._metadata_checksum,
            partitions=tuple(row for share in shares for row in _decode_rows(share.rows)),
        )
        if self._is_same(root):
            return
        key = self._keys.root(self.state.epoch, self._root_number)
        data = encode_body(root, key, self._origin(step, self._root_number))
        creation = create_surely(self._store, key, data)
        # Only now: roots are numbered without gaps.
        self._root_number += 1
        self.newest_step = step.number
        check_creation(self._store, creation, key, data)
        self._root = root

    def _is_same(self, root: Root) -> bool:
        """Whether the newest root says all that this one does."""
        old = self._root
        return (
            old is not None
            and not root.is_final
            and (old.metadata_key, old.partitions) == (root.metadata_key, root.partitions)
        )

    def _origin(self, step: Step, number: int = 0) -> Origin:
        return Origin(
            cluster=self.state.cluster,
            epoch=self.state.epoch,
            nonce=self._nonces.own,
            number=number,
            time=step.time,
            op=max(step.op, 0),
        )
