"""A lake whose files are named after offsets takes the messages of one topic."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from courser.pipelines.checking import check_without_spark
from courser.pipelines.definition_file import load_definition
from courser.pipelines.origin import LakeTaken, Origin, check_origin, claim, note_path
from tests.pipelines.scenes import STREAM, Scene
from tests.servers import RunningServer

ORDERS = Origin("shop/orders", "01")


def test_the_first_topic_stays_the_only_one(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert not check_origin(lake, ORDERS)
    claim(lake, ORDERS)
    claim(lake, ORDERS)
    with pytest.raises(LakeTaken, match='holds messages of topic "shop/orders"'):
        claim(lake, Origin("shop/payments", "02"))
    assert check_origin(lake, ORDERS)
    assert not lake.exists()


def test_a_topic_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    claim(tmp_path / "lake", ORDERS)
    with pytest.raises(LakeTaken, match='an earlier topic "shop/orders", which was deleted'):
        claim(tmp_path / "lake", Origin("shop/orders", "02"))


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
def test_a_check_finds_out(source: str, sink: str, is_taken: bool, bare_scene: Scene) -> None:
    topic = bare_scene.folder.name
    bare_scene.make_topic(topic)
    claim(bare_scene.folder / "lake", ORDERS)
    path = bare_scene.define("p", f'[source]\nstream = "{STREAM}"\ntopic = "{topic}"\n{source}\n[sink]\n{sink}\n')
    with pytest.raises(LakeTaken) if is_taken else nullcontext():
        check_without_spark(load_definition(path), {})


def test_the_note_is_no_file_of_the_lake(tmp_path: Path) -> None:
    assert note_path(tmp_path / "lake").parent == tmp_path
