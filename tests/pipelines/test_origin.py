"""A lake whose files are named after offsets takes the messages of one topic."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from courser.jobs.folders import LocalFolder
from courser.lake.file_names import range_file_name
from courser.pipelines.checking import check_without_query
from courser.pipelines.definition_file import load_definition
from courser.pipelines.lake_publishing import LakeTaken, Origin, check_origin, claim, note_path
from tests.pipelines.scenes import STREAM, Scene
from tests.servers import RunningServer

ORDERS = Origin("shop/orders", "01")


PAYMENTS = Origin("shop/payments", "02")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Of orders, with one file."""
    folder = tmp_path / "lake"
    assert not check_origin(folder, ORDERS)
    claim(folder, ORDERS)
    (folder / "_partition=0").mkdir(parents=True)
    (folder / "_partition=0" / range_file_name(0, 9)).touch()
    return folder


def test_the_first_topic_stays_the_only_one(lake: Path) -> None:
    claim(lake, ORDERS)
    with pytest.raises(LakeTaken, match='holds messages of topic "shop/orders"'):
        claim(lake, PAYMENTS)
    assert check_origin(lake, ORDERS)


def test_a_topic_that_was_made_anew_is_another_one(lake: Path) -> None:
    with pytest.raises(LakeTaken, match='an earlier topic "shop/orders", which was deleted'):
        claim(lake, Origin("shop/orders", "02"))


def test_a_lake_that_was_emptied_is_nobodys(lake: Path) -> None:
    shutil.rmtree(lake)
    claim(lake, PAYMENTS)
    assert check_origin(lake, PAYMENTS)


@pytest.fixture
def bare_scene(tmp_path: Path, server: RunningServer) -> Scene:
    return Scene(tmp_path, server)


@pytest.mark.parametrize(
    ("source", "sink", "is_taken"),
    [
        ("", 'type = "parquet"\npath = "lake"', True),
        ("", 'type = "delta"\npath = "lake"', False),
        ("", 'type = "parquet"\npath = "other"', False),
        ('decode = "text"\non_bad_row = "quarantine"\nquarantine_path = "lake"', 'type = "console"', True),
        ("", 'type = "parquet"\npath = "lake"\n[transform]\nsql = "SELECT payload FROM source"', False),
    ],
    ids=["lake", "table", "another folder", "quarantine", "rows of a query"],
)
def test_a_check_finds_out(source: str, sink: str, is_taken: bool, bare_scene: Scene, lake: Path) -> None:
    assert lake.parent == bare_scene.folder
    topic = bare_scene.folder.name
    bare_scene.make_topic(topic)
    path = bare_scene.define("p", f'[source]\nstream = "{STREAM}"\ntopic = "{topic}"\n{source}\n[sink]\n{sink}\n')
    with pytest.raises(LakeTaken) if is_taken else nullcontext():
        check_without_query(load_definition(path), LocalFolder(bare_scene.folder / "checkpoint"), {})


def test_the_note_is_no_file_of_the_lake(tmp_path: Path) -> None:
    assert note_path(tmp_path / "lake").parent == tmp_path
