"""Resets a pipeline: starts a new generation of the checkpoint with its own starting point. The old one is kept."""

import json
from dataclasses import dataclass

from courser.errors import ClientFailure
from courser.pipelines.checkpoint import begin_generation, lock_path, open_checkpoint
from courser.pipelines.definition import Definition, FileSource, Start, parse_start
from courser.pipelines.locking import Lock, this_process
from courser.pipelines.progress import offsets_of

CURRENT = "current"
"""Continue after the last finished batch, but without the state of grouped rows."""


@dataclass(frozen=True, slots=True)
class ResetReport:
    """What a reset did."""

    name: str
    generation: int
    starting: str
    kept: str
    """The folder of the old generation."""
    warning: str | None = None


def reset(definition: Definition, to: str) -> ResetReport:
    """Start a new generation at ``to``: ``earliest``, ``latest``, ``current``, a time or offsets as JSON.

    Raises:
        LockTaken: the pipeline is running.
        ClientFailure: ``to`` is invalid.
    """
    with Lock(lock_path(definition.checkpoint), this_process(definition.name)).acquire():
        old = open_checkpoint(definition.checkpoint)
        start = _start(definition, to)
        fresh = begin_generation(definition.checkpoint, start)
    return ResetReport(
        definition.name,
        fresh.generation,
        start.timestamp or start.offsets,
        str(old.folder),
        _warning(definition, to),
    )


def _start(definition: Definition, to: str) -> Start:
    if isinstance(definition.source, FileSource):
        if to != "earliest":
            raise ClientFailure("files can only be read from the beginning; use --to earliest")
        return Start()
    if to != CURRENT:
        try:
            return parse_start(to)
        except ValueError as error:
            raise ClientFailure(f"--to {error}") from error
    text = open_checkpoint(definition.checkpoint).last_offsets()
    offsets = offsets_of(text).next if text is not None else {}
    if not offsets:
        raise ClientFailure(
            f"{definition.checkpoint} has no finished batch to continue from; use --to earliest to start over"
        )
    return Start(json.dumps(offsets))


def _warning(definition: Definition, to: str) -> str | None:
    if to in (CURRENT, "latest") or definition.sink.type == "console":
        return None
    is_topic = not isinstance(definition.source, FileSource)
    if definition.sink.type == "parquet" and definition.transform.sql is None and is_topic:
        # These files are named after offsets, so rows that are read again replace the existing ones.
        return None
    where = definition.sink.place or definition.sink.path
    return f"rows that are read again will be written again; empty {where} first, or use another sink"
