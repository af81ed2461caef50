"""Folders of small files that must survive, on this machine or at an address that Spark's file systems know.

What is at an address is read and written by Java, through the same Hadoop file system as Spark's own checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from courser.errors import ClientFailure
from courser.lake.atomic_files import write_atomically
from courser.spark.addresses import is_address
from courser.spark.connectors import FileSystemMissing, file_system
from courser.spark.failures import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TAKEN = (
    "org.apache.hadoop.fs.FileAlreadyExistsException",
    # S3 refuses the condition of a write when it ends, if a file of that name has come since it began.
    "org.apache.hadoop.fs.s3a.RemoteFileChangedException",
)
_CONDITIONAL = "fs.option.create.conditional.overwrite"
"""Asks S3, from Hadoop 3.4.2 on, to create a file only if there is none. Other file systems ignore it."""


class FolderUnreachable(ClientFailure):
    """A file system did not do what it was asked to. It may do so later."""


class Folder(Protocol):
    """A folder that one process writes to. Folders that are missing are created with their first file."""

    @property
    def place(self) -> str:
        """Its path or address, as Spark takes it."""

    def inside(self, name: str) -> "Folder":
        """A folder in it."""

    def names(self) -> list[str]:
        """The names of what is in it; empty if there is no such folder."""

    def read(self, name: str) -> bytes | None:
        """The contents of a file; None if there is none."""

    def replace(self, name: str, data: bytes) -> None:
        """Replace the contents of a file. After a crash it has the old ones or the new ones."""

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A local or mounted folder."""

    path: Path

    @property
    def place(self) -> str:
        return str(self.path)

    def inside(self, name: str) -> "LocalFolder":
        return LocalFolder(self.path / name)

    def names(self) -> list[str]:
        return [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else []

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return (self.path / name).read_bytes()
        return None

    def replace(self, name: str, data: bytes) -> None:
        write_atomically(self.path / name, data)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class HadoopFolder:
    """A folder at an address. Not every file system can replace a file in one step, so ``replace`` takes several."""

    place: str
    _paths: Any
    """Java's class of paths."""
    _files: Any
    """Java's file system."""

    @classmethod
    def at(cls, place: str, session: "SparkSession") -> Self:
        """A folder that the session's settings give access to. Raises ``FileSystemMissing``, ``FolderUnreachable``."""
        with _reporting("use", place):
            jvm: Any = session._jvm
            return cls(place.rstrip("/"), jvm.org.apache.hadoop.fs.Path, file_system(session, place))

    def inside(self, name: str) -> "HadoopFolder":
        return HadoopFolder(f"{self.place}/{name}", self._paths, self._files)

    def names(self) -> list[str]:
        with _reporting("list", self.place):
            try:
                entries = self._files.listStatus(self._paths(self.place))
            except Exception as error:
                if _class_of(error) == "java.io.FileNotFoundException":
                    return []
                raise
            return [entry.getPath().getName() for entry in entries]

    def read(self, name: str) -> bytes | None:
        # Between the steps of ``replace``, only the new file is there, under one of its names.
        for candidate in (name, _aside(name), name):
            if (data := self._read(candidate)) is not None:
                return data
        return None

    def create(self, name: str, data: bytes) -> bool:
        """Create a file; return False if it exists.

        Atomic where the file system is: HDFS, Azure, Google, and S3 from Hadoop 3.4.2 on if the store knows conditions.
        Elsewhere two processes that do this at the same time may both succeed, and the last one's contents remain.
        """
        with _reporting("write", self._of(name)):
            try:
                builder = self._files.createFile(self._path(name)).recursive().overwrite(False)
                self._write(builder.opt(_CONDITIONAL, True).build(), data)
            except Exception as error:
                if _class_of(error) in _TAKEN:
                    return False
                raise
        return True

    def overwrite(self, name: str, data: bytes) -> None:
        """Write a file over an older one. A crash, or a reader at the same moment, may find it empty."""
        with _reporting("write", self._of(name)):
            self._write(self._files.create(self._path(name), True), data)

    def replace(self, name: str, data: bytes) -> None:
        with _reporting("write", self._of(name)):
            aside, path = self._path(_aside(name)), self._path(name)
            if not self._files.exists(path) and self._files.exists(aside):
                # An earlier replacement ended here, and the file aside is the only one.
                self._rename(aside, path)
            self._write(self._files.create(aside, True), data)
            self._files.delete(path, False)
            self._rename(aside, path)

    def remove(self, name: str) -> None:
        with _reporting("remove", self._of(name)):
            self._files.delete(self._path(name), False)

    def _of(self, name: str) -> str:
        return f"{self.place}/{name}"

    def _path(self, name: str) -> Any:
        return self._paths(self._of(name))

    def _read(self, name: str) -> bytes | None:
        with _reporting("read", self._of(name)):
            try:
                stream = self._files.open(self._path(name))
            except Exception as error:
                if _class_of(error) == "java.io.FileNotFoundException":
                    return None
                raise
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def _rename(self, old: Any, new: Any) -> None:
        # Some file systems raise if they cannot, others return False.
        if not self._files.rename(old, new):
            raise FolderUnreachable(f"could not rename {old.toString()} to {new.toString()}")

    def _write(self, stream: Any, data: bytes) -> None:
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()


def folder_at(place: str, session: "Callable[[], SparkSession]") -> LocalFolder | HadoopFolder:
    """The folder of a path or an address. ``session`` is called for addresses only."""
    return HadoopFolder.at(place, session()) if is_address(place) else LocalFolder(Path(place))


def _aside(name: str) -> str:
    return f"{name}.new"


@contextmanager
def _reporting(verb: str, place: str) -> Iterator[None]:
    """Turn Java's errors into ours. Raises ``FolderUnreachable``."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FileSystemMissing) or not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise FolderUnreachable(f"could not {verb} {place}: {one_line(error)}") from error


def _class_of(error: Exception) -> str:
    """The name of the Java class of an error; empty if it is not from Java."""
    java = getattr(error, "java_exception", None)
    return "" if java is None else str(java.getClass().getName())
