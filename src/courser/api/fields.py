"""How the fields of commands and replies are encoded: each field has a kind, given where it is declared.

The codecs derive their readers and writers from these kinds. A type that is always written the same way
(``Identifier``, ``Consumer``, ``Partitioning``) needs no kind.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, TypeAlias

from courser.model.permissions import Permissions


class Kind(Enum):
    """How one value is written. All numbers are little-endian."""

    U8 = auto()
    U32 = auto()
    U64 = auto()
    ID = auto()
    """32 bits: the number of a stream, topic, partition, group or user. SDK 0.5 counts them from 1."""
    FLAG = auto()
    """A byte: 0 is false."""
    NAME = auto()
    """A length in one byte and UTF-8; never empty."""
    TEXT8 = auto()
    """A length in one byte and UTF-8."""
    TEXT32 = auto()
    """A length in four bytes and UTF-8."""
    ACTIVE = auto()
    """The status of a user: 1 active, 2 inactive."""
    SNAPSHOT_COMPRESSION = auto()
    """A byte from 1 to 6."""
    SNAPSHOT_KINDS = auto()
    """A count in one byte, and a byte for each kind."""
    UUID = auto()
    """16 bytes."""
    OPTIONAL_PARTITION = auto()
    """A byte that says whether a partition is present, and four bytes for it in either case."""
    OPTIONAL_U64 = auto()
    """A byte that says whether a number is present, and eight bytes for it in either case."""
    MAYBE_U64 = auto()
    """A byte that says whether a number follows."""
    MAYBE_PERMISSIONS = auto()
    """A byte that says whether permissions follow, without their size."""
    OPTIONAL_NAME = auto()
    """A byte that says whether a name follows."""
    OPTIONAL_ACTIVE = auto()
    """A byte that says whether a status follows."""
    ABSENT = auto()
    """Not part of the usual layout: only some releases send it."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of rows in four bytes, then the rows."""

    count_max: int | None = None
    """How many rows a request may have; None: as many as fit into a frame."""


@dataclass(frozen=True, slots=True)
class ToTheEnd:
    """Rows up to the end of the payload."""


U8: TypeAlias = Annotated[int, Kind.U8]
U32: TypeAlias = Annotated[int, Kind.U32]
U64: TypeAlias = Annotated[int, Kind.U64]
Id: TypeAlias = Annotated[int, Kind.ID]
Flag: TypeAlias = Annotated[bool, Kind.FLAG]
Name: TypeAlias = Annotated[str, Kind.NAME]
Text8: TypeAlias = Annotated[str, Kind.TEXT8]
Text32: TypeAlias = Annotated[str, Kind.TEXT32]
Active: TypeAlias = Annotated[bool, Kind.ACTIVE]
SnapshotCompression: TypeAlias = Annotated[int, Kind.SNAPSHOT_COMPRESSION]
SnapshotKinds: TypeAlias = Annotated[tuple[int, ...], Kind.SNAPSHOT_KINDS]
Uuid: TypeAlias = Annotated[bytes, Kind.UUID]
OptionalPartition: TypeAlias = Annotated[int | None, Kind.OPTIONAL_PARTITION]
OptionalU64: TypeAlias = Annotated[int | None, Kind.OPTIONAL_U64]
MaybeU64: TypeAlias = Annotated[int | None, Kind.MAYBE_U64]
MaybePermissions: TypeAlias = Annotated[Permissions | None, Kind.MAYBE_PERMISSIONS]
OptionalName: TypeAlias = Annotated[str | None, Kind.OPTIONAL_NAME]
OptionalActive: TypeAlias = Annotated[bool | None, Kind.OPTIONAL_ACTIVE]
ChosenId: TypeAlias = Annotated[int | None, Kind.ABSENT]
"""The id that a client of SDK 0.5 chooses for a new stream, topic or group."""
Incarnation: TypeAlias = Annotated[int, Kind.ABSENT]
"""The journal entry that created a partition: another one if it was deleted and created again.

In a request it is the partition that an SDK from 0.10 on means; 0 if the client does not say."""
