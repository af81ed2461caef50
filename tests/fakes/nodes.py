"""Files and directories of the fake disk: what the process sees, what is durable, and what lies between.

Each change is done at once to what the process sees, and kept as a record until a sync applies it to the durable
state. A power cut applies any part of the records instead. So no write copies a file, and a sync costs what changed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

SECTOR = 512
"""What a disk writes as a whole or not at all."""


class Fate(Enum):
    """What a power cut does to one change."""

    WHOLE = auto()
    TORN = auto()
    LOST = auto()


@dataclass(slots=True, eq=False)
class Written:
    """Bytes put at a position. Never changed after it was made: clones share it."""

    position: int
    data: bytes

    def redo(self, image: bytearray) -> None:
        """Do it to an image of the file."""
        put(image, self.position, self.data)


@dataclass(slots=True, eq=False)
class Resized:
    """Cut or extended to a size."""

    size: int

    def redo(self, image: bytearray) -> None:
        """Do it to an image of the file."""
        resize(image, self.size)


@dataclass(slots=True, eq=False)
class Allocated:
    """Extended with zeros, never cut."""

    end: int

    def redo(self, image: bytearray) -> None:
        """Do it to an image of the file."""
        if self.end > len(image):
            resize(image, self.end)


DataChange: TypeAlias = Written | Resized | Allocated


def put(image: bytearray, position: int, data: bytes) -> None:
    """Write into an image; a gap before it reads as zeros."""
    if not data:
        return
    if position > len(image):
        resize(image, position)
    image[position : position + len(data)] = data


def resize(image: bytearray, size: int) -> None:
    """Cut an image, or extend it with zeros."""
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


@dataclass(slots=True, eq=False)
class FileNode:
    """A file without its name."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[DataChange] = field(default_factory=list)
    diverged: bool = False
    """A failed sync lost something that reads still show."""
    handles: int = 0
    name_count: int = 1
    reserved: int = 0
    """Up to here the disk has room for it, however full it is."""

    @property
    def taken(self) -> int:
        """Bytes that it takes of the disk."""
        return max(len(self.data), self.reserved)

    def change(self, change: DataChange) -> None:
        """Do it to what the process sees, and remember it for the disk."""
        change.redo(self.data)
        self.pending.append(change)

    def commit(self) -> None:
        """A sync that worked."""
        for change in self.pending:
            change.redo(self.durable)
        self.pending.clear()

    def fail(self, source: random.Random) -> None:
        """A sync that did not: some of it reached the disk, the rest never will, and the next sync will not say so."""
        if not self.pending:
            return
        if source.random() < 0.5:
            _survive(source, self.durable, self.pending)
        self.pending.clear()
        self.diverged = True

    def discard_clean(self) -> None:
        """Show what is really on the disk, with what may still get there."""
        if self.diverged:
            self.data = bytearray(self.durable)
            for change in self.pending:
                change.redo(self.data)
            self.diverged = False

    def cut_power(self, source: random.Random) -> None:
        """Keep what was durable and any part of what was not."""
        if self.pending:
            _survive(source, self.durable, self.pending)
            self.pending.clear()
        elif not self.diverged:
            return
        self.diverged = False
        self.data = bytearray(self.durable)


@dataclass(slots=True, eq=False)
class DirectoryNode:
    """A directory without its name."""

    number: int
    entries: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)

    def contains(self, other: "DirectoryNode") -> bool:
        """Whether the durable tree below this directory, itself included, holds the other one."""
        return self is other or any(
            isinstance(node, DirectoryNode) and node.contains(other) for node in self.durable.values()
        )


Node: TypeAlias = FileNode | DirectoryNode


@dataclass(slots=True, eq=False)
class _OneName:
    """A change of one name."""

    directory: DirectoryNode
    name: str
    node: Node

    def slots(self) -> tuple[tuple[DirectoryNode, str], ...]:
        """The names concerned."""
        return ((self.directory, self.name),)


class Linked(_OneName):
    """A name made for a new file or directory."""

    __slots__ = ()

    def redo(self, *, forced: bool) -> None:
        """Do it to the durable names, unless a lost change before it makes it impossible.

        Args:
            forced: the directory was synced, so the name is this file's even if a failed sync left another one there.
        """
        if forced or self.name not in self.directory.durable:
            self.directory.durable[self.name] = self.node


class Unlinked(_OneName):
    """A name removed from a file or an empty directory."""

    __slots__ = ()

    def redo(self, *, forced: bool) -> None:
        """Do it to the durable names, unless a lost change before it makes it impossible.

        Args:
            forced: the parent directory was synced, so a directory goes even if the unlinks in it are not durable.
        """
        if self.directory.durable.get(self.name) is self.node and (forced or not _is_filled(self.node)):
            del self.directory.durable[self.name]


@dataclass(slots=True, eq=False)
class Renamed:
    """A name moved, perhaps over another one, in one step."""

    source: DirectoryNode
    source_name: str
    target: DirectoryNode
    target_name: str
    node: Node

    def slots(self) -> tuple[tuple[DirectoryNode, str], ...]:
        """The names concerned."""
        return ((self.source, self.source_name), (self.target, self.target_name))

    def redo(self, *, forced: bool) -> None:
        """Do it to the durable names, unless a lost change before it makes it impossible."""
        if self.source.durable.get(self.source_name) is not self.node:
            return
        replaced = self.target.durable.get(self.target_name)
        if replaced is not None and (type(replaced) is not type(self.node) or (_is_filled(replaced) and not forced)):
            return
        if isinstance(self.node, DirectoryNode) and self.node.contains(self.target):
            return
        del self.source.durable[self.source_name]
        self.target.durable[self.target_name] = self.node


NameChange: TypeAlias = Linked | Unlinked | Renamed


def commit_names(pending: list[NameChange], directory: DirectoryNode) -> list[NameChange]:
    """Make the changes of one directory durable and return those that still are not."""
    chosen, left = _split(pending, directory)
    for change in chosen:
        change.redo(forced=True)
    return left


def fail_names(pending: list[NameChange], directory: DirectoryNode, source: random.Random) -> list[NameChange]:
    """As ``FileNode.fail``: any part of the changes is done, the rest never will be."""
    chosen, left = _split(pending, directory)
    survive_names(source, chosen)
    return left


def survive_names(source: random.Random, pending: list[NameChange]) -> None:
    """What a power cut leaves of changes to names: any of them, in their order, each as a whole."""
    for change, fate in zip(pending, _fates(source, len(pending)), strict=True):
        if fate is Fate.WHOLE or (fate is Fate.TORN and source.random() < 0.5):
            change.redo(forced=False)


def walk(directory: DirectoryNode) -> Iterator[Node]:
    """Everything that the process sees below a directory, itself included."""
    yield directory
    for node in directory.entries.values():
        if isinstance(node, DirectoryNode):
            yield from walk(node)
        else:
            yield node


def copy_tree(root: DirectoryNode, pending: list[NameChange]) -> tuple[DirectoryNode, list[NameChange]]:
    """A copy that shares nothing that can change."""
    copies: dict[Node, Node] = {}
    return _copy_directory(root, copies), [_copy_change(change, copies) for change in pending]


def _copy_directory(node: DirectoryNode, copies: dict[Node, Node]) -> DirectoryNode:
    copy = copies.get(node)
    if not isinstance(copy, DirectoryNode):
        copies[node] = copy = DirectoryNode(node.number)
        copy.entries = {name: _copy_node(child, copies) for name, child in node.entries.items()}
        copy.durable = {name: _copy_node(child, copies) for name, child in node.durable.items()}
    return copy


def _copy_node(node: Node, copies: dict[Node, Node]) -> Node:
    if isinstance(node, DirectoryNode):
        return _copy_directory(node, copies)
    copy = copies.get(node)
    if copy is None:
        copies[node] = copy = FileNode(
            node.number,
            bytearray(node.data),
            bytearray(node.durable),
            list(node.pending),
            node.diverged,
            0,
            node.name_count,
        )
        copy.reserved = node.reserved
    return copy


def _copy_change(change: NameChange, copies: dict[Node, Node]) -> NameChange:
    node = _copy_node(change.node, copies)
    if isinstance(change, Renamed):
        source, target = _copy_directory(change.source, copies), _copy_directory(change.target, copies)
        return Renamed(source, change.source_name, target, change.target_name, node)
    return type(change)(_copy_directory(change.directory, copies), change.name, node)


def _is_filled(node: Node) -> bool:
    return isinstance(node, DirectoryNode) and bool(node.durable)


def _split(pending: list[NameChange], directory: DirectoryNode) -> tuple[list[NameChange], list[NameChange]]:
    """Part the changes of a directory from the others.

    A rename between directories ties them: what was done to its names earlier has to become durable before it,
    because a change that is applied after its successor would undo it.
    """
    chosen: list[NameChange] = []
    left: list[NameChange] = []
    tied: set[tuple[DirectoryNode, str]] = set()
    for change in reversed(pending):
        slots = change.slots()
        if any(slot[0] is directory or slot in tied for slot in slots):
            tied.update(slots)
            chosen.append(change)
        else:
            left.append(change)
    chosen.reverse()
    left.reverse()
    return chosen, left


def _fates(source: random.Random, count: int) -> list[Fate]:
    """One fate for each change.

    Sometimes they survive in order up to some point, as with a journal, sometimes each is drawn by itself, with odds
    that differ from cut to cut: with even odds "all" and "nothing" would hardly ever come up.
    """
    if source.random() < 0.3:
        whole = source.randint(0, count)
        return ([Fate.WHOLE] * whole + [Fate.TORN] + [Fate.LOST] * (count - whole))[:count]
    odds = source.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    return [Fate.WHOLE if source.random() < odds else source.choice((Fate.TORN, Fate.LOST)) for _ in range(count)]


def _survive(source: random.Random, image: bytearray, pending: list[DataChange]) -> None:
    """What a power cut leaves of changes to a file. Bytes and sizes reach a disk on different ways."""
    fates = _fates(source, len(pending))
    size_fates = fates if source.random() < 0.5 else _fates(source, len(pending))
    size = len(image)
    for change, fate, size_fate in zip(pending, fates, size_fates, strict=True):
        if isinstance(change, Written):
            _survive_bytes(source, image, change, fate)
            size = max(size, _survive_end(source, change.position, change.position + len(change.data), size_fate))
        elif isinstance(change, Allocated):
            size = max(size, _survive_end(source, size, change.end, size_fate))
        elif size_fate is Fate.WHOLE or (size_fate is Fate.TORN and source.random() < 0.5):
            size = change.size
            # What lay behind a cut is gone, whatever extends the file later.
            del image[size:]
    # Bytes behind the size are as lost as those that were never written; a size without bytes is a hole.
    resize(image, size)


def _survive_end(source: random.Random, start: int, end: int, fate: Fate) -> int:
    """Up to where a change that ended at ``end`` made the file grow; 0: not at all."""
    if fate is Fate.LOST or start >= end:
        return 0
    return end if fate is Fate.WHOLE else source.randint(start, end)


def _survive_bytes(source: random.Random, image: bytearray, change: Written, fate: Fate) -> None:
    data, position = change.data, change.position
    if fate is Fate.WHOLE:
        put(image, position, data)
    elif fate is Fate.TORN and data:
        if source.random() < 0.25:
            cut = source.randint(0, len(data))
            if source.random() < 0.7:
                put(image, position, data[:cut])
            else:
                put(image, position + cut, data[cut:])
            return
        # Sectors are counted from the start of the file, so the first and the last one of a write may be partial.
        sectors = (position + len(data) - 1) // SECTOR - position // SECTOR + 1
        kept = source.getrandbits(sectors)
        start = 0
        for index in range(sectors):
            end = min(len(data), (position // SECTOR + index + 1) * SECTOR - position)
            if kept >> index & 1:
                put(image, position + start, data[start:end])
            start = end
