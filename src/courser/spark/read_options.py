"""The options of a read as typed values. Pickled to every task.

A read of several topics has options for each of them, which differ in the topic's name and in where it starts and ends.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from courser.client.targets import Target
from courser.records.encryption import KEY_VARIABLE, OLD_KEYS_VARIABLE, keys_from
from courser.spark.addresses import AddressGiven, check_local
from courser.spark.open_archive import ArchiveAccess, archive_access
from courser.spark.option_kinds import EARLIEST, LATEST, ONLY_TOPIC, ByTopic, Given, listed
from courser.spark.options import (
    ARCHIVE_PREFIX,
    OptionRefused,
    Use,
    parse_options,
    required,
    required_topics,
    target_of,
)
from courser.spark.segment_scan import ScanOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, for one topic."""

    target: Target | None
    """None: read from files or from the archive, without a server."""
    stream: str
    topic: str
    source: str
    path: str | None
    archive: ArchiveAccess | None
    """None: no archive is read."""
    scan: ScanOptions
    """How to read from files and from the archive."""
    starting: Given
    starting_time: Given | None
    """Microseconds since 1970."""
    ending: Given
    ending_time: Given | None
    min_partitions: int | None
    """Minimum number of tasks of the whole read."""
    partition_size_max: int
    """Approximate bytes of a task."""
    fail_on_data_loss: bool
    batch_size: int
    """Approximate bytes of an Arrow batch."""
    retries: int

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options for streams only."""

    max_count: int | None
    max_size: int
    min_count: int | None
    max_delay: float
    consumer: str | None


def read_options(
    given: Mapping[str, str], use: Use, environment: Mapping[str, str] = os.environ
) -> tuple[tuple[ReadOptions, ...], dict[str, Any]]:
    """Parse the options of a read, topic by topic. Also returns all values by name.

    Raises:
        OptionRefused: an option is missing, unknown, or in conflict with another.
    """
    values = parse_options(given, use)
    _check_together(values, use)
    topics = required_topics(values)
    bounds = {
        name: _by_topic(name, values.get(name), topics)
        for name in ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")
    }
    if EARLIEST in bounds["endingOffsets"].values():
        raise OptionRefused('option "endingOffsets" cannot be "earliest": nothing would be read')
    stream = required(values, "stream")
    target = None if values["source"] in ("segments", "archive") else target_of(values, environment)
    archive = _archive(given, values, environment)
    try:
        keys = keys_from(environment)
    except ValueError as error:
        raise OptionRefused(f"{KEY_VARIABLE} or {OLD_KEYS_VARIABLE} in the driver's environment: {error}") from None
    scan = ScanOptions(
        read_size=values["batchBytes"],
        verify=values["verify"] == "full",
        skip_corrupt=values["onCorrupt"] != "fail",
        quarantine=values["quarantinePath"],
        keys=keys,
    )
    usual_start = LATEST if use is Use.STREAM else EARLIEST
    reads = tuple(
        ReadOptions(
            target=target,
            stream=stream,
            topic=topic,
            source=values["source"],
            path=values["path"],
            archive=archive,
            scan=scan,
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


def _archive(
    given: Mapping[str, str], values: Mapping[str, Any], environment: Mapping[str, str]
) -> ArchiveAccess | None:
    """The archive, if the source is the archive, or can be and the options name one."""
    settings = {
        name.lower().removeprefix(ARCHIVE_PREFIX): text
        for name, text in given.items()
        if name.lower().startswith(ARCHIVE_PREFIX)
    }
    is_named = bool(settings) or values["archiveConfig"] is not None
    if values["source"] == "archive" or (values["source"] == "auto" and is_named):
        return archive_access(settings, values["archiveConfig"], environment)
    return None


def _check_together(values: Mapping[str, Any], use: Use) -> None:
    """Raise ``OptionRefused`` for options that conflict, and for addresses where only paths work."""
    for name in ("path", "quarantinePath"):
        if values[name] is not None:
            try:
                check_local(values[name], f'option "{name}"')
            except AddressGiven as error:
                raise OptionRefused(str(error)) from None
    if values["source"] == "segments" and values["path"] is None:
        raise OptionRefused('option "source=segments" needs "path", the server\'s data directory')
    if values["source"] == "segments" and use is Use.STREAM:
        raise OptionRefused('streams do not read segment files alone; option "source" must be auto, server or archive')
    if values["source"] == "archive" and values.get("consumer") is not None:
        raise OptionRefused('option "consumer" needs a server; with "source=archive" there is none')
    if (values["onCorrupt"] == "quarantine") != (values["quarantinePath"] is not None):
        raise OptionRefused(
            'options "onCorrupt=quarantine" and "quarantinePath" require each other; set both or neither'
        )
    if values["startingOffsets"] is not None and values["startingTimestamp"] is not None:
        raise OptionRefused('options "startingOffsets" and "startingTimestamp" conflict; set only one of them')


def _by_topic(option: str, given: ByTopic | None, topics: tuple[str, ...]) -> dict[str, Given]:
    """The value of an option by topic; topics that it does not name are absent."""
    if given is None:
        return {}
    if isinstance(given, int):
        return dict.fromkeys(topics, given)
    if ONLY_TOPIC in given:
        if len(topics) > 1:
            raise OptionRefused(
                f'option "{option}" names only partitions, but several topics are read ({listed(topics)}); name the '
                "topics too, as in " + '{"orders": {"0": 23}}'
            )
        given = {topics[0] if topic == ONLY_TOPIC else topic: bound for topic, bound in given.items()}
    if others := given.keys() - set(topics):
        raise OptionRefused(
            f'option "{option}" names topic "{min(others)}", which is not read; topics: {listed(topics)}'
        )
    return dict(given)


def stream_options(values: Mapping[str, Any]) -> StreamOptions:
    """The options for streams only."""
    return StreamOptions(
        max_count=values["maxOffsetsPerTrigger"],
        max_size=values["maxBytesPerTrigger"],
        min_count=values["minOffsetsPerTrigger"],
        max_delay=values["maxTriggerDelay"],
        consumer=values["consumer"],
    )
