"""Remember what classic clients have proven about their release, for later connections that prove nothing.

A program often has several connections with the same login: one sends, and thereby proves how long its headers are;
another only reads. Some prove it in one run and only read in the next one. So the proofs are kept in a small file.
Losing the file is harmless: the server guesses again, as with a new client.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from courser.errors import StorageFailure
from courser.storage.durable_files import read_if_there, replace_file
from courser.storage.files import FileSystem
from courser.storage.paths import PROVEN_DIALECTS
from courser.wire.classic_dialect import NO_PROOF, LoginFields, Proof

_log = logging.getLogger(__name__)

LOGIN_COUNT_MAX = 1000
"""Logins that are remembered. The oldest is forgotten first."""
_TEXT_LENGTH_MAX = 100
"""Characters of a version or context. Logins with longer ones are not remembered."""

_Key: TypeAlias = tuple[int, LoginFields]
"""User id and login."""
_Proofs: TypeAlias = tuple[Proof, ...]
Value = TypeVar("Value", int, bool)


class ProvenDialects:
    """The proofs by user and login. Can be used from any thread.

    Args:
        file_system: where the file is.
        data_directory: the directory of the file.
        pool: for writing the file.
        is_saved: whether this process writes the file.
    """

    def __init__(self, file_system: FileSystem, data_directory: Path, pool: Executor, *, is_saved: bool = True) -> None:
        """Blocks: it reads the file."""
        self._file_system = file_system
        self._path = data_directory / PROVEN_DIALECTS
        self._pool = pool
        self._is_saved = is_saved
        self.on_new: Callable[[int, LoginFields, Proof], None] | None = None
        """Told on any thread what a connection of this process has proven."""
        self._lock = threading.Lock()
        """For the file."""
        self._proofs: dict[_Key, _Proofs] = {}
        try:
            entries = msgspec.json.decode(
                read_if_there(file_system, self._path) or b"[]", type=list[tuple[_Key, _Proofs]]
            )
        except (StorageFailure, msgspec.DecodeError) as error:
            _log.warning("cannot read %s, which is not needed to start: %s", self._path, error)
        else:
            self._proofs.update(entries)

    def recall(self, user_id: int, login: LoginFields) -> Proof:
        """What the connections of a user with the same login have proven, as far as they agree."""
        proofs = self._proofs.get((user_id, login), ())
        return Proof(
            _agreed(proof.first_id for proof in proofs),
            _agreed(proof.has_long_header for proof in proofs),
        )

    def note(self, user_id: int, login: LoginFields, proof: Proof) -> None:
        """Remember what a connection has proven."""
        if proof == NO_PROOF or max(len(login.version), len(login.context)) > _TEXT_LENGTH_MAX:
            return
        if self.learn(user_id, login, proof) and self.on_new is not None:
            self.on_new(user_id, login, proof)

    def learn(self, user_id: int, login: LoginFields, proof: Proof) -> bool:
        """Remember what a connection of any process has proven. Returns False if it was known."""
        key = (user_id, login)
        known = self._proofs.get(key, ())
        if proof in known:
            return False
        self._proofs[key] = (*known, proof)
        if len(self._proofs) > LOGIN_COUNT_MAX:
            self._proofs.pop(next(iter(self._proofs)), None)
        if self._is_saved:
            with contextlib.suppress(RuntimeError):  # The server stops.
                self._pool.submit(self._save)
        return True

    def _save(self) -> None:
        with self._lock:
            try:
                replace_file(self._file_system, self._path, msgspec.json.encode(list(self._proofs.items())))
            except StorageFailure as failure:
                _log.warning(
                    "cannot write %s, which only serves to guess the release of clients: %s", self._path, failure
                )


def _agreed(values: Iterable[Value | None]) -> Value | None:
    """The value that all have that have one; None if they differ."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None
