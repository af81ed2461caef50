"""The options of reads, as values with types: what readers and planning work with. Pickled to every task."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from courser.client.targets import Target
from courser.spark.options import EARLIEST, LATEST, Offsets, OptionRefused, Use, parse_options, required, target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a read was asked for."""

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
    starting: Offsets
    starting_time: int | None
    ending: Offsets
    ending_time: int | None
    min_partitions: int | None
    partition_size_max: int
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
) -> tuple[ReadOptions, dict[str, Any]]:
    """Understand the options of a read; also returns all values by name.

    Raises:
        OptionRefused: something is missing, unknown, or contradicts something else.
    """
    values = parse_options(given, use)
    source = values["source"]
    if source == "segments" and values["path"] is None:
        raise OptionRefused('option "source=segments" needs "path": the data directory of the server')
    if (values["onCorrupt"] == "quarantine") != (values["quarantinePath"] is not None):
        raise OptionRefused('options "onCorrupt=quarantine" and "quarantinePath" belong together: give both, or none')
    is_stream = use is Use.STREAM
    if is_stream and source == "segments":
        raise OptionRefused('a stream reads from the server: option "source" takes auto or server')
    starting = values["startingOffsets"]
    if starting is not None and values["startingTimestamp"] is not None:
        raise OptionRefused('options "startingOffsets" and "startingTimestamp" both say where to begin: give one')
    ending = values.get("endingOffsets", LATEST)
    if ending == EARLIEST:
        raise OptionRefused('option "endingOffsets" does not take "earliest": nothing would be read')
    topic = required(values, "topic")
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        if isinstance(offsets, Mapping) and (others := offsets.keys() - {topic}):
            raise OptionRefused(f'option "{name}" names topic "{min(others)}", but "{topic}" is read')
    return (
        ReadOptions(
            target=None if source == "segments" else target_of(values, environment),
            stream=required(values, "stream"),
            topic=topic,
            source=source,
            path=values["path"],
            verify=values["verify"] == "full",
            skip_corrupt=values["onCorrupt"] != "fail",
            quarantine=values["quarantinePath"],
            starting=(LATEST if is_stream else EARLIEST) if starting is None else starting,
            starting_time=values["startingTimestamp"],
            ending=ending,
            ending_time=values.get("endingTimestamp"),
            min_partitions=values["minPartitions"],
            partition_size_max=values["maxBytesPerPartition"],
            fail_on_data_loss=values["failOnDataLoss"],
            batch_size=values["batchBytes"],
            retries=values["retries"],
        ),
        values,
    )


def stream_options(values: Mapping[str, Any]) -> StreamOptions:
    """The rest, for streams."""
    return StreamOptions(
        max_count=values["maxOffsetsPerTrigger"],
        max_size=values["maxBytesPerTrigger"],
        min_count=values["minOffsetsPerTrigger"],
        max_delay=values["maxTriggerDelay"],
        consumer=values["consumer"],
    )
