"""What documents and examples show: every file is a pipeline that Spark can plan."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from courser.pipelines.checking import plan_columns, refuse_endless_groups
from courser.pipelines.definition import BY_TABLE
from courser.pipelines.definition_file import load_definition, parse_definition
from tests.docs.blocks import ROOT, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = "docs/spark/pipelines.md"
EXAMPLES = sorted((ROOT / "examples" / "pipelines").glob("*.toml"))


def test_every_default_is_one_that_its_key_takes() -> None:
    for key in (key for table in BY_TABLE.values() for key in table.values()):
        if key.default not in (None, ()):
            text = key.kind.to_toml(key.default)
            assert key.kind.from_text(text.strip('"')) == key.default, key.path


def test_files_that_the_document_shows() -> None:
    shown = [block for block in blocks_of(DOCUMENT) if block.kind == "toml"]
    assert shown
    for block in shown:
        parse_definition(block.text, Path(block.place))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_spark_can_plan_an_example(path: Path, spark: "SparkSession", tmp_path: Path) -> None:
    here = tmp_path / path.name
    here.write_text(path.read_text())
    (tmp_path / "reading.avsc").write_text((path.parent / "reading.avsc").read_text())
    (tmp_path / "old_orders").mkdir()
    definition = load_definition(here)
    assert definition.name == path.stem
    refuse_endless_groups(definition)
    columns = plan_columns(spark, definition)
    assert columns
    if definition.sink.type == "topic":
        assert columns == ["payload string", "key binary"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([path.name, "reading.avsc", "old_orders"])
