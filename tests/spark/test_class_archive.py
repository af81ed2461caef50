"""The archive of classes: used when it is there, and only then."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from courser.spark.class_archive import archive_options, archive_path, make_archive
from courser.spark.java import find_java


def test_the_session_of_the_tests_maps_it(spark: SparkSession) -> None:
    path = archive_path(find_java(os.environ), os.environ)
    if not path.is_file():
        # This machine was too busy to make it in time; then a session does without.
        assert "Archive" not in str(spark.conf.get("spark.driver.extraJavaOptions"))
        return
    gateway = SparkContext._gateway
    assert gateway is not None
    assert str(path) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    java = find_java(os.environ)
    other = tmp_path / "java"
    other.touch()
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = archive_path(java, environment)
    assert path.parent == tmp_path / "courser"
    assert path != archive_path(replace(java, program=other), environment)


def test_without_one_java_is_told_nothing(tmp_path: Path) -> None:
    java, environment = find_java(os.environ), {"XDG_CACHE_HOME": str(tmp_path)}
    assert archive_options(java, environment) == ""
    path = archive_path(java, environment)
    path.parent.mkdir()
    path.touch()
    assert archive_options(java, environment) == f"-XX:SharedArchiveFile={path}"


def test_a_path_with_a_blank_would_be_split_and_is_not_used(tmp_path: Path) -> None:
    java, environment = find_java(os.environ), {"XDG_CACHE_HOME": str(tmp_path / "my cache")}
    path = archive_path(java, environment)
    path.parent.mkdir(parents=True)
    path.touch()
    assert archive_options(java, environment) == ""


def test_what_cannot_be_made_leaves_nothing_and_is_no_error(tmp_path: Path) -> None:
    said: list[str] = []
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    assert not make_archive(environment, said.append, "raise SystemExit(1)")
    assert said == ["preparing Spark for faster starts (only needed once)"]
    assert list((tmp_path / "courser").iterdir()) == []


def test_it_appears_whole_and_replaces_those_of_other_versions(tmp_path: Path) -> None:
    session = "import sys; open(sys.argv[1], 'w').write('classes')"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    outdated = tmp_path / "courser" / "spark-4.2.0-java-17-0123.jsa"
    outdated.parent.mkdir()
    outdated.touch()
    assert make_archive(environment, lambda text: None, session)
    path = archive_path(find_java(environment), environment)
    assert [found.name for found in (tmp_path / "courser").iterdir()] == [path.name]
    assert make_archive(environment, lambda text: pytest.fail("made twice"))
