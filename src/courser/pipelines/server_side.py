"""What a pipeline asks of the server besides messages: whether its topics exist, and to store its progress."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from courser.api.replies import TopicBounds
from courser.client.sync import SyncClient
from courser.client.targets import Target
from courser.errors import AlreadyExists, ClientFailure, ErrorCode, NotAllowed, NotFound
from courser.pipelines.definition import Definition, TopicName, TopicSource
from courser.pipelines.lake_publishing import Origin
from courser.spark.background_clients import connection_to

_QUARANTINE_PARTITIONS = 1
"""Bad rows should be few; in one partition they stay in order."""


class TopicMissing(ClientFailure):
    """A topic that the definition names does not exist."""

    code = ErrorCode.TOPIC_NOT_FOUND


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition of the source."""

    partition: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The topic that is read; empty for other sources."""

    uuid: str = ""
    partitions: tuple[PartitionFacts, ...] = ()


def needs_server(definition: Definition) -> bool:
    """Whether it reads or writes a topic."""
    return isinstance(definition.source, TopicSource) or definition.sink.type == "topic"


def check_topics(definition: Definition, target: Target, *, may_create: bool = True) -> SourceFacts:
    """Check that all topics exist, create those that may be created, and return the facts about the source.

    Raises:
        TopicMissing: a topic does not exist; suggests the closest name.
        ConnectionFailed, AuthenticationFailed, NotAllowed: the server cannot be used.
    """
    client = connection_to(target)
    facts = SourceFacts()
    if isinstance(definition.source, TopicSource):
        place = definition.source.place
        bounds = _require(client, place, "source.topic")
        rows = ((part.partition_id, part.first_offset, part.next_offset) for part in bounds.partitions)
        facts = SourceFacts(bounds.topic_uuid.hex(), tuple(PartitionFacts(*row) for row in rows))
    for place, key, partitions in _written(definition):
        if partitions is None or not may_create:
            if partitions is None:
                _require(client, place, key)
        else:
            _create(client, place, partitions)
    return facts


def lakes_by_offset(definition: Definition, facts: SourceFacts) -> Iterator[tuple[Path, Origin]]:
    """Folders whose files are named after the offsets of the source, with the topic they belong to."""
    if not isinstance(definition.source, TopicSource):
        return
    origin = Origin(str(definition.source.place), facts.uuid)
    sink = definition.sink
    if sink.type == "parquet" and sink.path is not None and definition.transform.sql is None:
        yield Path(sink.path), origin
    if definition.decoding.quarantine_path is not None:
        yield Path(definition.decoding.quarantine_path), origin


def _written(definition: Definition) -> Iterator[tuple[TopicName, str, int | None]]:
    """Topics that are written to, with the number of partitions to create them with."""
    if definition.sink.place is not None:
        yield definition.sink.place, "sink.topic", definition.sink.create_partitions
    if definition.decoding.quarantine_topic is not None:
        yield definition.decoding.quarantine_topic, "source.quarantine_topic", _QUARANTINE_PARTITIONS


def _require(client: SyncClient, place: TopicName, key: str) -> TopicBounds:
    """The bounds of a topic. Anyone who may poll or send may ask for them; no permission for the topic is needed."""
    try:
        return client.get_partition_bounds(place.stream, place.topic)
    except NotFound:
        raise TopicMissing(f'{key}: topic "{place}" does not exist{_alike(client, place)}') from None


def _alike(client: SyncClient, place: TopicName) -> str:
    try:
        names = [topic.name for topic in client.get_topics(place.stream)]
    except NotFound:
        found = get_close_matches(place.stream, _streams(client), n=1)
        return f'; stream "{place.stream}" does not exist' + (f', did you mean "{found[0]}"?' if found else "")
    except NotAllowed:
        return ""
    found = get_close_matches(place.topic, names, n=1)
    if found:
        return f'; did you mean "{place.stream}/{found[0]}"?'
    return f"; create it with: courser topic create {place}"


def _streams(client: SyncClient) -> list[str]:
    with suppress(NotAllowed):
        return [stream.name for stream in client.get_streams()]
    return []


def _create(client: SyncClient, place: TopicName, partitions: int) -> None:
    try:
        client.get_partition_bounds(place.stream, place.topic)
    except NotFound:
        for make in (
            lambda: client.create_stream(place.stream),
            lambda: client.create_topic(place.stream, place.topic, partitions),
        ):
            try:
                make()
            except AlreadyExists:
                # The stream usually exists, and another pipeline may have just created the topic.
                continue


def ask_lag(target: Target, source: TopicSource, ends: Mapping[str, int]) -> dict[str, int]:
    """The messages that are not read yet, by partition. Raises ``CourserError``."""
    bounds = connection_to(target).get_partition_bounds(source.place.stream, source.place.topic)
    return {
        str(one.partition_id): max(0, one.next_offset - ends.get(str(one.partition_id), 0)) for one in bounds.partitions
    }


def store_progress(target: Target, source: TopicSource, ends: Mapping[str, int]) -> None:
    """Store the pipeline's progress on the server, for lag reporting only. The checkpoint is what counts."""
    client = connection_to(target)
    for partition, end in ends.items():
        if end > 0:
            stream, topic = source.place.stream, source.place.topic
            client.store_consumer_offset(stream, topic, int(partition), end - 1, consumer=source.consumer)
