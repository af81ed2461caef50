"""Pipelines whose files are at addresses. ``viewfs`` stands for all of Hadoop's file systems: it needs no jar."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from courser.errors import ConfigurationRefused
from courser.jobs.folders import HadoopFolder
from courser.pipelines import running
from courser.pipelines.checkpoint import open_checkpoint, reset
from courser.pipelines.definition import BY_TABLE, LOCAL_PATH
from courser.pipelines.definition_file import load_definition, parse_definition
from courser.pipelines.leases import Lease, LeaseTimes
from courser.pipelines.locking import LockTaken
from courser.spark.connectors import FileSystemMissing
from tests.pipelines.scenes import Scene, order, orders_source

KEYS = {key.path: key for keys in BY_TABLE.values() for key in keys.values()}
PLACES = [path for path, key in KEYS.items() if "path" in key.kind.name]


@pytest.fixture
def address(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that Hadoop knows and Python does not. Only the session's tasks and our own files go there."""
    assert scene.spark is not None
    context: Any = scene.spark.sparkContext
    settings = context._jsc.hadoopConfiguration()
    name = f"fs.viewfs.mounttable.{scene.folder.name.replace('_', '-')}.link./lake"
    (scene.folder / "store").mkdir()
    settings.set(name, f"file://{scene.folder}/store")
    monkeypatch.setattr(running, "lock_of", lambda root, me, tell: Lease(root, me, times=LeaseTimes(settling=0.1)))
    yield f"viewfs://{scene.folder.name.replace('_', '-')}/lake"
    settings.unset(name)


def define(scene: Scene, topic: str, address: str, more: str = "") -> Path:
    path = scene.define(topic, f'{orders_source(topic, more)}[sink]\ntype = "parquet"\npath = "rows"\n')
    path.write_text(path.read_text().replace("[server]", f'checkpoint = "{address}/checkpoints/{topic}/"\n[server]', 1))
    return path


def test_a_checkpoint_at_an_address_goes_on_where_it_stopped(scene: Scene, address: str) -> None:
    scene.make_topic("far")
    scene.send_orders("far", range(20))
    path = define(scene, "far", address)
    (status,) = scene.run(path)
    assert (status.state, status.rows, status.checkpoint) == ("finished", 20, f"{address}/checkpoints/far")
    scene.send_orders("far", range(20, 30))
    assert [status.rows for status in scene.run(path)] == [10]
    assert scene.count("rows", "id") == Counter(range(30))
    place = scene.folder / "store" / "checkpoints" / "far"
    assert sorted(entry.name for entry in place.iterdir() if entry.suffix != ".crc") == ["generation-1", "lock-2"]
    assert {"facts.json", "published", "spark"} <= {entry.name for entry in (place / "generation-1").iterdir()}
    assert not list(scene.folder.glob("*:*")), "nothing is named after an address"

    assert scene.spark is not None
    definition = load_definition(path)
    root = HadoopFolder.at(definition.checkpoint, scene.spark)
    assert reset(root, definition, "current").kept == f"{address}/checkpoints/far/generation-1"
    assert open_checkpoint(root).generation == 2
    scene.send_orders("far", range(30, 34))
    assert [status.rows for status in scene.run(path)] == [4]
    assert scene.count("rows", "id") == Counter(range(34))


def test_a_second_runner_is_refused_and_a_taken_over_one_ends(scene: Scene, address: str) -> None:
    scene.make_topic("two")
    scene.send("two", [order(0)])
    path = define(scene, "two", address)
    with scene.running(path, once=False) as runner:
        with pytest.raises(LockTaken, match=f"{address}/checkpoints/two is in use by process {os.getpid()} "):
            scene.run(path)
        # As if it had been silent, and another machine had taken over.
        assert scene.spark is not None
        taken = HadoopFolder.at(load_definition(path).checkpoint, scene.spark)
        assert taken.create("lock-2", b"{}")
        assert runner.wait(600), "it does not end"
        (status,) = runner.statuses
    assert status.state == "failed"
    assert status.error is not None
    assert "another runner has taken over" in status.error
    assert taken.read("lock-2") == b"{}"


@pytest.mark.parametrize("text", ["checkpoint", "path"])
def test_a_missing_jar_is_the_first_that_is_said(text: str, scene: Scene) -> None:
    files = '[source]\ntype = "files"\nformat = "text"\npath = "s3a://lake/in"\n[sink]\ntype = "console"\n'
    path = scene.define("jars", files)
    if text == "checkpoint":
        path.write_text(
            path.read_text().replace("s3a://lake/in", "in").replace("[server]", 'checkpoint = "s3a://lake/c"\n[server]')
        )
        with pytest.raises(
            FileSystemMissing, match=r"^no file system of Spark knows s3a://; set spark\.jars\.packages to "
        ):
            scene.run(path)
    else:
        (status,) = scene.run(path)
        assert (status.state, status.restarts) == ("failed", 0)
        assert str(status.error).startswith(
            "no file system of Spark knows s3a://; set spark.jars.packages to org.apache"
        )


def test_a_checkpoint_in_a_file_address_is_the_folder_of_that_path() -> None:
    for written in ("file:///var/lake/c", "file:/var/lake/c", "/var/lake/c"):
        assert definition_with("pipeline.checkpoint", written).checkpoint == "/var/lake/c"


TABLE = '[sink]\ntype = "delta"\npath = "rows"\n'
WITH = {
    "server.password_file": '[server]\nusername = "u"\npassword_file = "{}"\n',
    "server.token_file": '[server]\ntoken_file = "{}"\n',
    "source.path": '[source]\ntype = "files"\nformat = "text"\npath = "{}"\n',
    "source.avro_schema": '[source]\nstream = "s"\ntopic = "t"\ndecode = "avro"\navro_schema = "{}"\n',
    "source.quarantine_path": (
        '[source]\nstream = "s"\ntopic = "t"\ndecode = "text"\non_bad_row = "quarantine"\nquarantine_path = "{}"\n'
    ),
    "tables.NAME.path": '[transform]\nsql = "SELECT * FROM source"\n[tables.known]\npath = "{}"\nformat = "parquet"\n',
    "source.archive_config": '[source]\nstream = "s"\ntopic = "t"\narchive_config = "{}"\n' + TABLE,
    "source.data_directory": '[source]\nstream = "s"\ntopic = "t"\ndata_directory = "{}"\n' + TABLE,
    "sink.path": '[sink]\ntype = "parquet"\npath = "{}"\n',
}


def definition_with(key: str, place: str) -> Any:
    text = '[pipeline]\nname = "p"\n' + (f'checkpoint = "{place}"\n' if key == "pipeline.checkpoint" else "")
    text += WITH.get(key, "").format(place)
    text += "" if "[source]" in text else '[source]\nstream = "s"\ntopic = "t"\n'
    text += "" if "[sink]" in text else '[sink]\ntype = "console"\n'
    return parse_definition(text, Path("/somewhere/p.toml"))


@pytest.mark.parametrize("place", ["s3a://lake/x", "hdfs://name/x", "abfss://c@a.b/x", "gs://b/x"])
@pytest.mark.parametrize("key", PLACES)
def test_every_path_takes_an_address_as_one_or_refuses_it(key: str, place: str) -> None:
    # Of sinks, only tables are at addresses.
    if KEYS[key].kind.name == LOCAL_PATH or key == "sink.path":
        with pytest.raises(ConfigurationRefused) as refusal:
            definition_with(key, place)
        (problem,) = refusal.value.problems
        assert f"{key} must be a local or mounted folder or file, not the address {place}; mount" in problem
        if key == "sink.path":
            assert definition_with(key, "file:///x").sink.path == "/x"
        else:
            with pytest.raises(ConfigurationRefused, match=f"{key} must be a path without file:, so write /x$"):
                definition_with(key, "file:///x")
    else:
        found = definition_with(key, place)
        assert place in (found.checkpoint, str(found.source), *(table.path for table in found.tables.values()))


def test_every_key_that_names_a_place_is_known_to_be_one() -> None:
    named = {
        path
        for path in KEYS
        if path.rpartition(".")[2].endswith(("path", "file", "folder", "directory", "config", "checkpoint", "schema"))
        and KEYS[path].kind.name != "text"
    }
    assert named == set(PLACES) == {*WITH, "pipeline.checkpoint"}
