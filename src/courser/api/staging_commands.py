"""The commands for staged writes: messages of a job's tasks, published together. ``commands`` offers them too."""

from typing import Annotated

import msgspec

from courser.api import replies as r
from courser.api.fields import U32, U64, Counted, Flag, Name, OptionalU64
from courser.api.table import Command, command
from courser.model.identifiers import Identifier
from courser.model.messaging import Partitioning
from courser.model.permissions import Action
from courser.records.batch import Batch

PUBLISHED_PART_COUNT_MAX = 100_000
"""Parts of one publish, the same limit as in the catalog: checked before an object is created for each."""


class StagedPartName(msgspec.Struct, frozen=True):
    """One attempt at one part of a batch of a sink. Readers never see parts that are not published."""

    sink: Name
    batch: U64
    part: U32
    attempt: U64


@command(60005, None, Action.SEND_MESSAGES)
class StageMessages(Command, frozen=True):
    """Stage messages on the server: durable with ``FinishStage``, visible with ``PublishStaged``."""

    name: StagedPartName
    chunk: U32
    """0, 1, 2, ... within this attempt. A chunk that is already present is not added again."""
    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    batch: Batch


@command(60006, r.StagedPart)
class FinishStage(Command, frozen=True):
    """Make a part durable. Nothing can be added to it any more."""

    name: StagedPartName
    chunk_count: U32
    """How many chunks there are."""


@command(60007, r.Published, order=("sink", "batch", "keep", "parts"))
class PublishStaged(Command, frozen=True):
    """Append all messages of these parts to their partitions, once per sink and batch, durable on return."""

    sink: Name
    batch: U64
    """A number higher than that of any batch before."""
    parts: Annotated[tuple[tuple[U32, U64], ...], Counted(PUBLISHED_PART_COUNT_MAX)]
    """A part, and the attempt to publish."""
    keep: U64
    """How long the server remembers the sink afterwards, in microseconds; 0 is forever."""


@command(60008, is_audited=True)
class DiscardStaged(Command, frozen=True):
    """Remove staged parts of a sink that are not published."""

    sink: Name
    batch: OptionalU64
    """The batch whose parts are removed; if not present, the parts of all batches."""
    forget: Flag
    """Whether to forget the sink too: its batches may then be published again."""


@command(60009, r.SinkInfo)
class GetSink(Command, frozen=True):
    """What a sink has published, and what is staged for it."""

    sink: Name


@command(60010, r.SinkList, http="GET /sinks")
class GetSinks(Command, frozen=True):
    """All sinks and their staged parts: the user's own, or all users' with the permission to read the server."""


@command(60011, r.StagedPartList, http="GET /sinks/{sink}/parts")
class GetStagedParts(Command, frozen=True):
    """The unpublished staged parts of a sink, of the same users as in ``GetSinks``."""

    sink: Name
