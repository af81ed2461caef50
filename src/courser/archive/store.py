"""What the archive needs from a store of objects, and the rule that says who created an object.

Kinds: a directory (``disk_store``) and the object stores that obstore supports (``object_store``). All calls block.
Nothing here retries: callers know what a repetition costs.

A store may lose the reply to a request that succeeded, and some libraries then report that the object already exists.
So the answer alone never decides who created an object. Every object that is created contains the nonce of its writer,
and reading it back does (``create``).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from threading import Event
from typing import Protocol, TypeVar

from courser.archive.errors import ArchiveFailure, ArchiveInterrupted, ObjectMissing, StoreRefused
from courser.model.buffers import Buffer
from courser.storage.files import File

Answer = TypeVar("Answer")

_ATTEMPT_COUNT = 5
"""Attempts to create an object whose outcome is unknown."""


class Creation(Enum):
    """Who created an object, after an attempt to do so."""

    MINE = "mine"
    ANOTHERS = "another's"
    UNKNOWN = "unknown"
    """The store did not answer, or the request may still arrive. The same attempt may be repeated."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a store reports about an object."""

    key: str
    size: int
    tag: str
    """The entity tag, without quotes; empty if the store has none."""
    modified_at: int
    """Microseconds, by the clock of the store."""


class Store(Protocol):
    """A place for objects with a key each. Every method may raise ``ArchiveFailure``."""

    @property
    def name(self) -> str:
        """The place, for messages: without credentials."""

    @property
    def reports_md5(self) -> bool:
        """Whether the tag of an object may be the MD5 of its bytes: then it need not be read back to be checked."""

    @property
    def keeps_parts(self) -> bool:
        """Whether an upload still needs a part when it asks for the next one."""

    def recognize(self) -> None:
        """Take the store that is there now for the right one. From now on, nothing is written to any other.

        Raises ``ArchiveGone`` if there is none.
        """

    def check_place(self) -> None:
        """Raise ``ArchiveGone`` if the store that was recognized is not there. Who reads its objects knows more."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Create a small object. Return False if the store says that it exists, whoever made it.

        After ``ArchiveFailure`` it is unknown whether it was created.
        """

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create a large object whose key nobody else uses. All parts but the last have the same size."""

    def read(self, key: str) -> bytes:
        """Read the whole object. Raises ``ObjectMissing``."""

    def read_range(self, key: str, position: int, size: int) -> Buffer:
        """Bytes of an object, not copied if that can be avoided; fewer at its end. Raises ``ObjectMissing``."""

    def open_file(self, key: str) -> File | None:
        """The object as a file of this machine; None if the store is elsewhere. Raises ``ObjectMissing``.

        Who can read the file needs no copy of its bytes. What its methods raise is ``OSError``.
        """

    def find(self, key: str) -> StoredObject | None:
        """What the store reports about an object; None if there is none."""

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        """The objects below a prefix, which ends with a slash. New objects may appear late."""

    def list_names(self, prefix: str) -> list[str]:
        """The next parts of the keys below a prefix, which ends with a slash, if more parts follow."""

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""


def create(store: Store, key: str, data: bytes, failures: list[ArchiveFailure] | None = None) -> Creation:
    """Create an object, and find out who did. ``data`` contains the writer's nonce: equal bytes are its own.

    What the store said if it refused, or nothing came back, is added to ``failures``.
    """
    noted = failures if failures is not None else []
    try:
        if store.put_new(key, data):
            return Creation.MINE
    except ArchiveInterrupted:
        raise
    except ArchiveFailure as failure:
        # The object may exist, or appear later.
        noted.append(failure)
    try:
        return Creation.MINE if store.read(key) == data else Creation.ANOTHERS
    except ObjectMissing:
        # A store may refuse one of two concurrent attempts before it decides on either.
        return Creation.UNKNOWN
    except ArchiveInterrupted:
        raise
    except ArchiveFailure as failure:
        noted.append(failure)
        return Creation.UNKNOWN


def create_surely(store: Store, key: str, data: bytes) -> Creation:
    """Create an object, and try again while the outcome is unknown. The bytes stay the same.

    Raises:
        ArchiveFailure: it is still unknown.
    """
    failures: list[ArchiveFailure] = []
    for _ in range(_ATTEMPT_COUNT):
        creation = create(store, key, data, failures)
        if creation is not Creation.UNKNOWN:
            return creation
    raise failures[0] if failures else ArchiveFailure("create", key, "the store did not say whether it was created")


def create_checked(store: Store, key: str, data: bytes) -> None:
    """Create an object whose key nobody else uses, and check it.

    Raises:
        ArchiveFailure: the store did not answer, or has other bytes: they are damaged.
    """
    check_creation(store, create_surely(store, key, data), key, data)


def check_creation(store: Store, creation: Creation, key: str, data: bytes) -> None:
    """Check an object after its creation. Nobody else uses its key: other bytes are damaged, or came late."""
    if creation is not Creation.MINE or store.read(key) != data:
        raise ArchiveFailure("verify", key, "the store has other bytes than were sent")


def probe(store: Store, key: str, nonce: bytes) -> None:
    """Check that the store refuses to create an object twice. ``key`` is used for nothing else.

    Raises:
        StoreRefused: it does not. Two servers could then overwrite each other's objects.
        ArchiveFailure: the store cannot be reached.
    """
    first, second = b"first " + nonce, b"second " + nonce
    creation = create_surely(store, key, first)
    is_overwritten = store.put_new(key, second) or store.read(key) != first
    store.delete(key)
    if creation is not Creation.MINE or is_overwritten:
        raise StoreRefused(store.name, "it overwrites objects that exist, although it was asked not to (If-None-Match)")


def read_if_there(store: Store, key: str) -> bytes | None:
    try:
        return store.read(key)
    except ObjectMissing:
        return None


class StoppableStore:
    """A store that can be taken from the thread that uses it: after that, every call raises ``ArchiveInterrupted``.

    A call that hangs cannot be ended. When it returns at last, the server may have given up its data directory, so the
    thread must not do what comes next.
    """

    def __init__(self, store: Store, stop: Event) -> None:
        self._store = store
        self._stop = stop
        self.name = store.name
        self.reports_md5 = store.reports_md5
        self.keeps_parts = store.keeps_parts

    def _ask(self, key: str, request: Callable[[], Answer]) -> Answer:
        self._check(key)
        answer = request()
        self._check(key)
        return answer

    def _check(self, key: str) -> None:
        if self._stop.is_set():
            raise ArchiveInterrupted(key)

    def recognize(self) -> None:
        self._ask(self.name, self._store.recognize)

    def check_place(self) -> None:
        self._ask(self.name, self._store.check_place)

    def put_new(self, key: str, data: bytes) -> bool:
        return self._ask(key, lambda: self._store.put_new(key, data))

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        self._ask(key, lambda: self._store.upload(key, parts))

    def read(self, key: str) -> bytes:
        return self._ask(key, lambda: self._store.read(key))

    def read_range(self, key: str, position: int, size: int) -> Buffer:
        return self._ask(key, lambda: self._store.read_range(key, position, size))

    def open_file(self, key: str) -> File | None:
        return self._ask(key, lambda: self._store.open_file(key))

    def find(self, key: str) -> StoredObject | None:
        return self._ask(key, lambda: self._store.find(key))

    def list_objects(self, prefix: str) -> Iterator[StoredObject]:
        for found in self._store.list_objects(prefix):
            self._check(prefix)
            yield found

    def list_names(self, prefix: str) -> list[str]:
        return self._ask(prefix, lambda: self._store.list_names(prefix))

    def delete(self, key: str) -> None:
        self._ask(key, lambda: self._store.delete(key))
