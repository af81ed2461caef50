"""The options of reads, as values with types: what readers and planning work with. Pickled to every task.

A read of several topics has options for each of them. They differ in the name, and in where the topic begins and ends.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from courser.client.targets import Target
from courser.spark.option_kinds import EARLIEST, LATEST, ONLY_TOPIC, ByTopic, Given
from courser.spark.options import OptionRefused, Use, parse_options, required, required_topics, target_of
from courser.spark.topic_names import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a read was asked for of one topic."""

    target: Target | None
    """None: no server is asked, everything comes from files."""
    stream: str
    topic: str
    source: str
    path: str | None
    verify: bool
    """Whether the bodies of stored batches are hashed too."""
    skip_corrupt: bool
    quarantine: str | None
    """Folder for damaged bytes that are skipped; None: they are left where they are."""
    starting: Given
    starting_time: Given | None
    """Microseconds since 1970."""
    ending: Given
    ending_time: Given | None
    min_partitions: int | None
    """Tasks of the whole read, at least."""
    partition_size_max: int
    """Bytes of a task, about."""
    fail_on_data_loss: bool
    batch_size: int
    """Bytes of one Arrow batch, about."""
    retries: int

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What only streams have."""

    max_count: int | None
    max_size: int
    min_count: int | None
    max_delay: float
    consumer: str | None


def read_options(
    given: Mapping[str, str], use: Use, environment: Mapping[str, str] = os.environ
) -> tuple[tuple[ReadOptions, ...], dict[str, Any]]:
    """Understand the options of a read, topic by topic; also returns all values by name.

    Raises:
        OptionRefused: something is missing, unknown, or contradicts something else.
    """
    values = parse_options(given, use)
    _check_together(values, use)
    topics = required_topics(values)
    bounds = {
        name: _by_topic(name, values.get(name), topics)
        for name in ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")
    }
    if EARLIEST in bounds["endingOffsets"].values():
        raise OptionRefused('option "endingOffsets" does not take "earliest": nothing would be read')
    stream = required(values, "stream")
    target = None if values["source"] == "segments" else target_of(values, environment)
    usual_start = LATEST if use is Use.STREAM else EARLIEST
    reads = tuple(
        ReadOptions(
            target=target,
            stream=stream,
            topic=topic,
            source=values["source"],
            path=values["path"],
            verify=values["verify"] == "full",
            skip_corrupt=values["onCorrupt"] != "fail",
            quarantine=values["quarantinePath"],
            starting=bounds["startingOffsets"].get(topic, usual_start),
            starting_time=bounds["startingTimestamp"].get(topic),
            ending=bounds["endingOffsets"].get(topic, LATEST),
            ending_time=bounds["endingTimestamp"].get(topic),
            min_partitions=values["minPartitions"],
            partition_size_max=values["maxBytesPerPartition"],
            fail_on_data_loss=values["failOnDataLoss"],
            batch_size=values["batchBytes"],
            retries=values["retries"],
        )
        for topic in topics
    )
    return reads, values


def _check_together(values: Mapping[str, Any], use: Use) -> None:
    """Raise ``OptionRefused`` for options that do not go with each other."""
    if values["source"] == "segments" and values["path"] is None:
        raise OptionRefused('option "source=segments" needs "path": the data directory of the server')
    if values["source"] == "segments" and use is Use.STREAM:
        raise OptionRefused('a stream reads from the server: option "source" takes auto or server')
    if (values["onCorrupt"] == "quarantine") != (values["quarantinePath"] is not None):
        raise OptionRefused('options "onCorrupt=quarantine" and "quarantinePath" belong together: give both, or none')
    if values["startingOffsets"] is not None and values["startingTimestamp"] is not None:
        raise OptionRefused('options "startingOffsets" and "startingTimestamp" both say where to begin: give one')


def _by_topic(option: str, given: ByTopic | None, topics: tuple[str, ...]) -> dict[str, Given]:
    """What an option says of each topic; nothing of those that it does not name."""
    if given is None:
        return {}
    if isinstance(given, int):
        return dict.fromkeys(topics, given)
    if ONLY_TOPIC in given:
        if len(topics) > 1:
            raise OptionRefused(
                f'option "{option}" names partitions alone, but several topics are read, {listed(topics)}: name them '
                "too, as in " + '{"orders": {"0": 23}}'
            )
        given = {topics[0] if topic == ONLY_TOPIC else topic: bound for topic, bound in given.items()}
    if others := given.keys() - set(topics):
        raise OptionRefused(f'option "{option}" names topic "{min(others)}", but {listed(topics)} is read')
    return dict(given)


def stream_options(values: Mapping[str, Any]) -> StreamOptions:
    """The rest, for streams."""
    return StreamOptions(
        max_count=values["maxOffsetsPerTrigger"],
        max_size=values["maxBytesPerTrigger"],
        min_count=values["minOffsetsPerTrigger"],
        max_delay=values["maxTriggerDelay"],
        consumer=values["consumer"],
    )
