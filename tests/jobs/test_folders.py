"""Folders for progress: on this machine, and through Hadoop, which is asked here for files of this machine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from courser.jobs.folders import Folder, FolderUnreachable, HadoopFolder, LocalFolder, folder_at
from courser.spark.connectors import FileSystemMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def hadoop(tmp_path: Path, spark: "SparkSession") -> HadoopFolder:
    return HadoopFolder.at(f"file://{tmp_path}/hadoop/", spark)


@pytest.mark.parametrize("kind", ["local", "hadoop"])
def test_files_are_what_was_written_last(kind: str, tmp_path: Path, hadoop: HadoopFolder) -> None:
    folder: Folder = hadoop if kind == "hadoop" else LocalFolder(tmp_path / "local")
    assert (folder.names(), folder.read("a")) == ([], None)
    folder.remove("a")
    for data in (b"one", b"\x00\xff" * 5000, b""):
        folder.replace("a", data)
        assert folder.read("a") == data
    folder.inside("b").inside("c").replace("d", b"deep")
    assert sorted(folder.names()) == ["a", "b"]
    assert folder.inside("b").inside("c").read("d") == b"deep"
    assert folder.inside("b").place == f"{folder.place}/b"
    folder.remove("a")
    assert folder.names() == ["b"]


def test_one_of_two_creators_gets_the_file(hadoop: HadoopFolder) -> None:
    assert hadoop.create("lock-1", b"mine")
    assert not hadoop.create("lock-1", b"yours")
    assert hadoop.read("lock-1") == b"mine"
    hadoop.overwrite("lock-1", b"renewed")
    assert hadoop.read("lock-1") == b"renewed"


class Killed(BaseException):
    """Stands in for the end of the process."""


class DyingFiles:
    """Java's file system, whose n-th change is the last."""

    def __init__(self, files: Any, step: int) -> None:
        self._files, self._left = files, step

    def __getattr__(self, name: str) -> Callable[..., object]:
        function: Callable[..., object] = getattr(self._files, name)
        if name not in ("create", "delete", "rename"):
            return function
        self._left -= 1
        if self._left == 0:
            raise Killed
        return function


def test_a_kill_at_any_step_of_a_replacement_leaves_the_old_or_the_new(hadoop: HadoopFolder) -> None:
    seen: list[bytes | None] = []
    for step in range(1, 4):
        folder = hadoop.inside(str(step))
        folder.replace("current", b"old")
        with pytest.raises(Killed):
            replace(folder, _files=DyingFiles(folder._files, step)).replace("current", b"new")
        seen.append(folder.read("current"))
        # The next writer dies at its first step, too, and loses nothing.
        with pytest.raises(Killed):
            replace(folder, _files=DyingFiles(folder._files, 2)).replace("current", b"newer")
        assert folder.read("current") in (b"old", b"new", b"newer")
        folder.replace("current", b"newest")
        assert folder.read("current") == b"newest"
        assert folder.names() == ["current"]
    assert seen == [b"old", b"old", b"new"]


def test_a_file_system_that_spark_lacks_is_named_with_the_jars(spark: "SparkSession") -> None:
    version = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()  # type: ignore[union-attr]
    with pytest.raises(FileSystemMissing) as missing:
        folder_at("s3a://lake/ck", lambda: spark)
    assert str(missing.value).startswith(
        f"no file system of Spark knows s3a://; set spark.jars.packages to org.apache.hadoop:hadoop-aws:{version}, or "
        f"put hadoop-aws-{version}.jar and bundle-"
    )
    with pytest.raises(
        FileSystemMissing, match=r"knows nosuch://; give it the jars of that file system with spark\.jars"
    ):
        folder_at("nosuch://lake/ck", lambda: spark)


def test_what_java_refuses_is_said_in_one_line(tmp_path: Path, hadoop: HadoopFolder) -> None:
    (tmp_path / "hadoop").write_text("a file where the folder should be")
    with pytest.raises(
        FolderUnreachable, match=rf"^could not write file://{tmp_path}/hadoop/a: .*{tmp_path}/hadoop"
    ) as told:
        hadoop.replace("a", b"")
    assert "\n" not in str(told.value)


def test_paths_need_no_session(tmp_path: Path) -> None:
    def no_session() -> "SparkSession":
        raise AssertionError("nothing at an address")

    assert folder_at(str(tmp_path), no_session) == LocalFolder(tmp_path)
