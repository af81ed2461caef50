"""The catalog in memory: everything that a snapshot contains, and lookup tables by name that are derived from it."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import xxhash

from courser.catalog.entities import (
    DeletedDirectory,
    PurgeEnds,
    Sink,
    Stream,
    Topic,
    UsedIds,
    User,
    topic_as_written,
)


class _Image(msgspec.Struct, array_like=True):
    """The stored form of a state."""

    streams: list[Stream]
    users: list[User]
    stream_ids: UsedIds
    user_ids: UsedIds
    deleted: list[DeletedDirectory]


class _ImageWithSinks(_Image):
    """An image with sinks. Used only if there are sinks; otherwise earlier versions can read the bytes."""

    sinks: list[Sink] = []


class _ImageWithPurges(_ImageWithSinks):
    """An image with the ends of purges. Used only if there are any."""

    purges: list[PurgeEnds] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_ImageWithPurges).decode


class DeletedDirectories(Mapping[str, DeletedDirectory]):
    """Directories whose removal may not be durable yet, by path.

    A directory replaces those inside it, which are found without a walk over all: there may be very many.
    """

    def __init__(self, directories: Iterable[DeletedDirectory] = ()) -> None:
        self._by_path: dict[str, DeletedDirectory] = {}
        self._inside: dict[str, set[str]] = {}
        """The paths in a directory, by its path."""
        for directory in directories:
            self.add(directory)

    def add(self, directory: DeletedDirectory) -> None:
        """Note a directory for removal, and forget those inside it."""
        path = directory.path
        for inside in tuple(self._inside.get(path, ())):
            self.discard(inside)
        self._by_path[path] = directory
        for above in _above(path):
            self._inside.setdefault(above, set()).add(path)

    def discard(self, path: str) -> None:
        """Forget a directory: it is gone."""
        if self._by_path.pop(path, None) is None:
            return
        for above in _above(path):
            paths = self._inside[above]
            paths.discard(path)
            if not paths:
                del self._inside[above]

    def __getitem__(self, path: str) -> DeletedDirectory:
        return self._by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)


def _above(path: str) -> list[str]:
    """The directories of a stream and a topic above a path: each takes two names."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(2, len(names), 2)]


class CatalogState:
    """Streams, users and everything that belongs to them. Only ``transitions.apply`` changes it."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.users: dict[int, User] = {}
        self.stream_ids = UsedIds()
        self.user_ids = UsedIds()
        self.deleted = DeletedDirectories()
        self.sinks: dict[str, Sink] = {}
        self.purge_ends: dict[bytes, tuple[int, ...]] = {}
        """By topic UUID: where its last purge ends in each partition. Absent if no purge recorded it."""
        self.stream_by_name: dict[str, int] = {}
        self.topic_by_name: dict[tuple[int, str], int] = {}
        self.user_by_name: dict[str, int] = {}

    def topic(self, stream_id: int, topic_id: int) -> Topic | None:
        """A topic, or None."""
        stream = self.streams.get(stream_id)
        return stream.topics.get(topic_id) if stream is not None else None

    def purge_end(self, topic: Topic, partition_id: int) -> int:
        """The offset below which a partition that missed the last purge deletes its messages.

        0 if it is not known, because an earlier version journaled the purge or the metadata was rebuilt. Such a purge
        was never acknowledged, since a partition missed it, but messages sent after it may have been.
        """
        ends = self.purge_ends.get(topic.uuid, ())
        return ends[partition_id] if partition_id < len(ends) else 0

    def encode(self) -> bytes:
        """The whole state as bytes. The same changes produce the same bytes, because dicts keep insertion order."""
        fields = (
            [_as_written(self.streams[number]) for number in sorted(self.streams)],
            [self.users[number] for number in sorted(self.users)],
            self.stream_ids,
            self.user_ids,
            [self.deleted[path] for path in sorted(self.deleted)],
        )
        sinks = [self.sinks[name] for name in sorted(self.sinks)]
        if self.purge_ends:
            purges = [PurgeEnds(uuid, self.purge_ends[uuid]) for uuid in sorted(self.purge_ends)]
            return _encode(_ImageWithPurges(*fields, sinks, purges))
        return _encode(_ImageWithSinks(*fields, sinks) if sinks else _Image(*fields))

    def hash(self) -> bytes:
        """XXH3-128 of the whole state."""
        return xxhash.xxh3_128_digest(self.encode())

    @classmethod
    def decode(cls, data: bytes) -> "CatalogState":
        """Decode a state. Raises ``ValueError``."""
        try:
            image = _decode(data)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a catalog state: {error}") from error
        state = cls()
        state.streams = {stream.stream_id: stream for stream in image.streams}
        state.users = {user.user_id: user for user in image.users}
        state.stream_ids = image.stream_ids
        state.user_ids = image.user_ids
        state.deleted = DeletedDirectories(image.deleted)
        state.sinks = {sink.name: sink for sink in image.sinks}
        state.purge_ends = {purge.topic_uuid: purge.ends for purge in image.purges}
        state.index_names()
        return state

    def index_names(self) -> None:
        """Build the lookup tables by name."""
        self.stream_by_name = {stream.name: stream.stream_id for stream in self.streams.values()}
        self.topic_by_name = {
            (stream.stream_id, topic.name): topic.topic_id
            for stream in self.streams.values()
            for topic in stream.topics.values()
        }
        self.user_by_name = {user.name: user.user_id for user in self.users.values()}


def _as_written(stream: Stream) -> Stream:
    topics = {number: topic_as_written(topic) for number, topic in stream.topics.items()}
    return msgspec.structs.replace(stream, topics=topics)
