"""A file system without a disk, in which the power fails.

It promises only what ``FileSystem`` promises, and is harsher than ext4 on purpose: of everything that was not synced,
a power cut leaves any part. Code that survives here leans on no habit of a particular kernel.

* A file's ``sync`` makes its bytes and its size durable, not its name: that takes ``sync_directory`` of the parent,
  and the parent's own name takes that of the grandparent.
* A write may be torn between sectors, sometimes between any two bytes; sizes survive independently of bytes.
* A rename happens or does not; when it is lost, the old name is back, and so is the file that it replaced.
* After a failed sync the next one succeeds without having done anything, while reads go on showing the lost bytes.
"""

import contextlib
import errno
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from courser.model.buffers import Buffer
from courser.storage.files import DirectoryEntry, DirectoryIdentity, EntryKind
from tests.fakes.faults import CrashMoment, FaultPlan, SimulatedCrash
from tests.fakes.nodes import (
    Allocated,
    DirectoryNode,
    FileNode,
    Linked,
    NameChange,
    Node,
    Renamed,
    Resized,
    Unlinked,
    Written,
    commit_names,
    copy_tree,
    fail_names,
    survive_names,
    walk,
)
from tests.fakes.open_files import FakeFile, refuse

__all__ = ["CrashMoment", "FakeFile", "FakeFileSystem", "FaultPlan", "SimulatedCrash"]

Result = TypeVar("Result")


class FakeFileSystem:
    """Implements ``FileSystem`` in memory. Starts with nothing but the root directory.

    A path names the same file with or without a leading slash. Hand in a seeded source of randomness: what happens
    is decided by it and by the calls alone.

    Attributes:
        random: decides what a crash leaves.
        plan: which calls fail, fall short or are the last one; empty at first.
        calls: how often each operation was called.
        mutations: how many calls there were that change something: the positions for ``FaultPlan.crash_at``.
        cold: reads with ``wait=False`` raise ``BlockingIOError``.
        capacity: the bytes that all files together may have. A write that would pass it is cut short, the next one is
            refused. Only ``truncate`` may pass it, because a hole takes no space.
        used: the bytes that all files together have.
        life: counts the processes that lived here.
        open_files: the paths of all open files, those of dead processes included.
        forgotten: the paths of files that nobody has closed.
    """

    def __init__(self, random: random.Random, plan: FaultPlan | None = None, capacity: int | None = None) -> None:
        self.random = random
        self.plan = plan or FaultPlan()
        self.capacity = capacity
        self.cold = False
        self.calls: dict[str, int] = defaultdict(int)
        self.mutations = 0
        self.used = 0
        self.life = 0
        self.open_files: dict[int, Path] = {}
        self.forgotten: list[Path] = []
        self._crashed = False
        self._lock = threading.RLock()
        self._last_number = 1
        self._root = DirectoryNode(1)
        self._pending: list[NameChange] = []
        self._boot_id = random.randbytes(16)
        self._mount_id = random.getrandbits(32) + 1

    # --- the protocol ---------------------------------------------------------------------------------

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> FakeFile:
        """Open a file. ``create`` demands that it does not exist yet, and implies ``writable``."""
        return self._perform("open", path, lambda: self._open(path, writable or create, create), mutates=create)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """The entries, in no particular order. ``FileNotFoundError`` if there is no such directory."""
        return self._perform("list_directory", path, lambda: self._list(path), mutates=False)

    def make_directory(self, path: Path) -> None:
        """Make one directory; ``FileExistsError`` if it is there."""
        self._perform("make_directory", path, lambda: self._make_directory(path))

    def rename(self, source: Path, target: Path) -> None:
        """Replace ``target`` in one step. Durable after ``sync_directory`` of either parent, as with a journal."""
        self._perform("rename", source, lambda: self._rename(source, target))

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; ``FileExistsError`` if the name is taken."""

        def link() -> None:
            node = self._file(source)
            self._link(target, node)
            node.name_count += 1

        self._perform("link", source, link)

    def unlink(self, path: Path) -> None:
        """Remove a file's name. Its bytes live on while it is open or has another name."""
        self._perform("unlink", path, lambda: self._unlink(path))

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        self._perform("remove_directory", path, lambda: self._remove_directory(path))

    def sync_directory(self, path: Path) -> None:
        """Make the names in this directory durable. Not the directory's own name."""

        def commit() -> None:
            self._pending = commit_names(self._pending, self._directory(path))

        def fail() -> None:
            self._pending = fail_names(self._pending, self._directory(path), self.random)

        self._perform("sync_directory", path, commit, failed=fail)

    def identity(self, path: Path) -> DirectoryIdentity:
        """Who this directory is right now."""

        def identify() -> DirectoryIdentity:
            return DirectoryIdentity(self._boot_id, self._mount_id, self._directory(path).number)

        return self._perform("identity", path, identify, mutates=False)

    def free_space(self, path: Path) -> int:
        """Free bytes of the disk."""
        return self._perform("free_space", path, self._room, mutates=False)

    # --- crashes --------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies: nothing that was written is lost, but no open file may be used any more."""
        with self._lock:
            self.life += 1
            self._crashed = False
            self._count_used()

    def power_cut(self) -> None:
        """The machine dies: what was synced is there, of the rest any part. The boot id is a new one."""
        with self._lock:
            self._lose_memory()
            self._boot_id = self.random.randbytes(16)

    def remount(self) -> None:
        """The disk goes away and comes back, the machine stays up: a power cut under the old boot id."""
        with self._lock:
            self._lose_memory()
            self._mount_id += 1

    # --- for tests, past all faults and counters ------------------------------------------------------

    def contents(self, path: Path) -> bytes:
        """A file's bytes as the process sees them."""
        with self._lock:
            return bytes(self._file(path).data)

    def files(self) -> list[Path]:
        """The files that the process sees, sorted."""
        with self._lock:
            return sorted(path for path, node in _paths(self._root, Path("/")) if isinstance(node, FileNode))

    def plant(self, path: Path, data: Buffer) -> None:
        """Put a file there, or replace what is in it: durably, directories above it included."""
        with self._lock:
            parent = self._plant_directory(path.parent)
            node = parent.entries.get(path.name)
            if isinstance(node, DirectoryNode):
                refuse(errno.EISDIR, path)
            if node is None:
                node = FileNode(self._number())
                parent.entries[path.name] = parent.durable[path.name] = node
            before = node.taken
            # In place: open files go on showing what is on the disk.
            node.data[:] = data
            node.durable[:] = data
            node.pending.clear()
            node.diverged = False
            self.used += node.taken - before

    def plant_directory(self, path: Path) -> None:
        """Make sure that a directory is there, durably, with those above it."""
        with self._lock:
            self._plant_directory(path)

    def copy_directory(self, source: Path, target: Path) -> None:
        """What an operator's copy does: the same bytes in new inodes, durable."""
        with self._lock:
            self.plant_directory(target)
            for path, node in list(_paths(self._directory(source), target)):
                if isinstance(node, FileNode):
                    self.plant(path, bytes(node.data))
                else:
                    self.plant_directory(path)

    def clone(self, random: random.Random) -> "FakeFileSystem":
        """A copy of the disk and of all that is pending, to try another outcome. Without open files and faults."""
        with self._lock:
            other = FakeFileSystem(random, capacity=self.capacity)
            other.cold = self.cold
            other.life = self.life
            other._last_number = self._last_number
            other._boot_id, other._mount_id = self._boot_id, self._mount_id
            other._root, other._pending = copy_tree(self._root, self._pending)
            other._count_used()
            return other

    def export(self, directory: Path) -> None:
        """Write everything that the process sees into a real directory."""
        with self._lock:
            for path, node in _paths(self._root, directory):
                if isinstance(node, DirectoryNode):
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    path.write_bytes(node.data)

    # --- how a call goes ------------------------------------------------------------------------------

    def _perform(
        self,
        operation: str,
        path: Path,
        effect: Callable[[], Result],
        *,
        mutates: bool = True,
        part: Callable[[], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> Result:
        """Count the call, and let it fail or be the last one if the plan says so.

        Args:
            operation: its name in ``OPERATIONS``.
            path: what it is about.
            effect: what it does.
            mutates: whether a crash may happen in it.
            part: what it does if the process dies in the middle. Without it the call happens as a whole or not.
            failed: what the disk does when the plan lets the call fail.
        """
        with self._lock:
            if self._crashed:
                # Handlers that run while the crash passes through them belong to a dead process.
                raise SimulatedCrash(f"{operation} of {path} after the crash")
            self.calls[operation] += 1
            error = self.plan.failure(operation, path)
            if mutates:
                self.mutations += 1
                moment = self.plan.crash(self.random)
                if moment is not None:
                    self._crash(f"{operation} of {path}", moment, effect, part)
            if error is not None:
                if failed is not None:
                    failed()
                refuse(error, path)
            return effect()

    def _crash(
        self, call: str, moment: CrashMoment, effect: Callable[[], object], part: Callable[[], None] | None
    ) -> NoReturn:
        if moment is CrashMoment.MIDDLE and part is None:
            moment = self.random.choice((CrashMoment.BEFORE, CrashMoment.AFTER))
        # If the call would have been refused, nobody is left to be told.
        with contextlib.suppress(OSError):
            if moment is CrashMoment.AFTER:
                effect()
            elif moment is CrashMoment.MIDDLE and part is not None:
                part()
        self._crashed = True
        raise SimulatedCrash(f"{moment.value} {call}")

    def _lose_memory(self) -> None:
        self.life += 1
        self._crashed = False
        survive_names(self.random, self._pending)
        self._pending = []
        self._settle(self._root, set())
        self._count_used()

    def _settle(self, directory: DirectoryNode, seen: set[int]) -> None:
        directory.entries = dict(directory.durable)
        for node in directory.entries.values():
            if isinstance(node, DirectoryNode):
                self._settle(node, seen)
            elif node.number in seen:
                node.name_count += 1
            else:
                seen.add(node.number)
                node.name_count = 1
                node.cut_power(self.random)

    def _count_used(self) -> None:
        files = {node.number: node for node in walk(self._root) if isinstance(node, FileNode)}
        self.used = sum(node.taken for node in files.values())

    # --- effects on files -----------------------------------------------------------------------------

    def _write(self, file: FakeFile, position: int, data: bytes) -> int:
        node = _writable_node(file)
        if position < 0:
            refuse(errno.EINVAL, file.path)
        size = self.plan.portion("write_at", file.path, len(data), self.random)
        missing = position + size - node.taken - self._room()
        if missing > 0 and size > 0:
            size -= missing
            if size <= 0:
                refuse(errno.ENOSPC, file.path)
        self._change(node, Written(position, data[:size]))
        return size

    def _truncate(self, file: FakeFile, size: int) -> None:
        node = _writable_node(file)
        if size < 0:
            refuse(errno.EINVAL, file.path)
        if size <= len(node.data):
            self._give_back(node)
        self._change(node, Resized(size))

    def _allocate(self, file: FakeFile, position: int, size: int) -> None:
        node = _writable_node(file)
        if position < 0 or size < 0:
            refuse(errno.EINVAL, file.path)
        end = position + size
        possible = node.taken + self._room()
        if end > possible:
            # ext4 extends the file as it finds blocks, and leaves it so when it finds no more.
            self._change(node, Allocated(self.random.randint(len(node.data), max(possible, len(node.data)))))
            refuse(errno.ENOSPC, file.path)
        self._change(node, Allocated(end))

    def _reserve(self, file: FakeFile, position: int, size: int) -> None:
        node = _writable_node(file)
        if position < 0 or size < 0:
            refuse(errno.EINVAL, file.path)
        missing = position + size - node.taken
        if missing > self._room():
            refuse(errno.ENOSPC, file.path)
        if missing > 0:
            node.reserved = position + size
            self.used += missing

    def _give_back(self, node: FileNode) -> None:
        self.used -= node.taken - len(node.data)
        node.reserved = 0

    def _change(self, node: FileNode, change: Written | Resized | Allocated) -> None:
        before = node.taken
        node.change(change)
        self.used += node.taken - before

    def _room(self) -> int:
        return max(0, self.capacity - self.used) if self.capacity is not None else 1 << 62

    def _release(self, file: FakeFile) -> None:
        with self._lock:
            if file._life == self.life:
                file._node.handles -= 1
                self._free(file._node)

    def _free(self, node: FileNode) -> None:
        """The space of a file without a name comes back when the last handle goes."""
        if not node.name_count and node.handles == 0:
            self.used -= node.taken

    # --- effects on names -----------------------------------------------------------------------------

    def _open(self, path: Path, writable: bool, create: bool) -> FakeFile:
        if not create:
            return FakeFile(self, path, self._file(path), writable=writable)
        node = FileNode(self._number())
        self._link(path, node)
        return FakeFile(self, path, node, writable=writable)

    def _link(self, path: Path, node: Node) -> None:
        parent = self._directory(path.parent)
        if path.name in parent.entries or not path.name:
            refuse(errno.EEXIST, path)
        parent.entries[path.name] = node
        self._pending.append(Linked(parent, path.name, node))

    def _make_directory(self, path: Path) -> None:
        self._link(path, DirectoryNode(self._number()))

    def _list(self, path: Path) -> list[DirectoryEntry]:
        return [
            DirectoryEntry(name, EntryKind.FILE, len(node.data))
            if isinstance(node, FileNode)
            else DirectoryEntry(name, EntryKind.DIRECTORY, 0)
            for name, node in self._directory(path).entries.items()
        ]

    def _unlink(self, path: Path) -> None:
        node = self._file(path)
        parent = self._directory(path.parent)
        del parent.entries[path.name]
        self._pending.append(Unlinked(parent, path.name, node))
        self._lose_name(node)

    def _remove_directory(self, path: Path) -> None:
        node = self._directory(path)
        if node is self._root:
            refuse(errno.EBUSY, path)
        if node.entries:
            refuse(errno.ENOTEMPTY, path)
        parent = self._directory(path.parent)
        del parent.entries[path.name]
        self._pending.append(Unlinked(parent, path.name, node))

    def _rename(self, source: Path, target: Path) -> None:
        node = self._node(source)
        parent, target_parent = self._directory(source.parent), self._directory(target.parent)
        replaced = target_parent.entries.get(target.name)
        if replaced is node:
            return
        if isinstance(node, DirectoryNode):
            if any(step is target_parent for step in walk(node)):
                refuse(errno.EINVAL, target)
            if isinstance(replaced, FileNode):
                refuse(errno.ENOTDIR, target)
        elif isinstance(replaced, DirectoryNode):
            refuse(errno.EISDIR, target)
        if isinstance(replaced, DirectoryNode) and replaced.entries:
            refuse(errno.ENOTEMPTY, target)
        del parent.entries[source.name]
        target_parent.entries[target.name] = node
        self._pending.append(Renamed(parent, source.name, target_parent, target.name, node))
        if isinstance(replaced, FileNode):
            self._lose_name(replaced)

    def _lose_name(self, node: FileNode) -> None:
        node.name_count -= 1
        self._free(node)

    def _plant_directory(self, path: Path) -> DirectoryNode:
        directory = self._root
        for name in _names(path):
            self._pending = commit_names(self._pending, directory)
            child = directory.entries.get(name)
            if child is None:
                child = DirectoryNode(self._number())
                directory.entries[name] = child
            if isinstance(child, FileNode):
                refuse(errno.ENOTDIR, path)
            directory.durable[name] = child
            directory = child
        self._pending = commit_names(self._pending, directory)
        return directory

    # --- looking up -----------------------------------------------------------------------------------

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _node(self, path: Path) -> Node:
        node: Node = self._root
        for name in _names(path):
            if isinstance(node, FileNode):
                refuse(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                refuse(errno.ENOENT, path)
            node = found
        return node

    def _directory(self, path: Path) -> DirectoryNode:
        node = self._node(path)
        if isinstance(node, FileNode):
            refuse(errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> FileNode:
        node = self._node(path)
        if isinstance(node, DirectoryNode):
            refuse(errno.EISDIR, path)
        return node


def _names(path: Path) -> tuple[str, ...]:
    parts = path.parts
    return parts[1:] if path.anchor else parts


def _writable_node(file: FakeFile) -> FileNode:
    if not file._writable:
        refuse(errno.EBADF, file.path)
    return file._node


def _paths(directory: DirectoryNode, path: Path) -> list[tuple[Path, Node]]:
    """Everything below a directory, itself included, parents first."""
    found: list[tuple[Path, Node]] = [(path, directory)]
    for name, node in directory.entries.items():
        if isinstance(node, DirectoryNode):
            found.extend(_paths(node, path / name))
        else:
            found.append((path / name, node))
    return found
