"""A pipeline's file: what it says, and every mistake in it."""

import json
from pathlib import Path

import pytest

from courser.errors import ConfigurationRefused
from courser.lake.tables import PartitionField
from courser.pipelines.definition import (
    Definition,
    FileSource,
    LookupTable,
    Start,
    TopicName,
    TopicSource,
    completed,
    parse_start,
)
from courser.pipelines.definition_file import load_definition, parse_definition
from courser.pipelines.running import check_together, default_master
from courser.pipelines.table_sinks import partition_fields

TABLE = 'path = "x"\nformat = "parquet"\n'
WHOLE = """
[pipeline]
name = "orders_to_lake"
mode = "once"
trigger = "2s"
checkpoint = "state/orders"
restarts = 3
restart_delay = "100ms"
[server]
url = "iggy://127.0.0.1:8090"
username = "reader"
password_file = "secret.txt"
[source]
stream = "shop"
topic = "orders"
starting = '{"1": 20, "0": 10}'
max_messages_per_trigger = 1000
max_bytes_per_trigger = "1 MiB"
decode = "json"
schema = "id BIGINT, at TIMESTAMP"
on_bad_row = "quarantine"
quarantine_topic = "shop/bad"
[transform]
sql = \"\"\"
SELECT id, count(*) AS n
FROM source GROUP BY id, window(at, '1 minute')
\"\"\"
watermark = "at 10 minutes"
[tables.customers]
path = "customers.csv"
format = "csv"
schema = "id BIGINT, name STRING"
[tables.days]
path = "s3a://lake/days"
format = "parquet"
[sink]
type = "topic"
stream = "shop"
topic = "counts"
key = "id"
create_partitions = 4
[spark]
spark.sql.shuffle.partitions = 4
"spark.ui.enabled" = false
"""

LEAST = """
[pipeline]
name = "p"
[source]
stream = "s"
topic = "t"
[sink]
type = "console"
"""


def parse(text: str) -> Definition:
    return parse_definition(text, Path("/somewhere/pipelines/p.toml"))


def problems(text: str) -> str:
    with pytest.raises(ConfigurationRefused) as refusal:
        parse(text)
    assert all(problem.startswith("/somewhere/pipelines/p.toml: ") for problem in refusal.value.problems)
    return str(refusal.value)


def test_everything_that_can_be_said() -> None:
    found = parse(WHOLE)
    assert (found.name, found.mode, found.trigger) == ("orders_to_lake", "once", 2_000_000)
    assert found.checkpoint == "/somewhere/pipelines/state/orders"
    assert (found.supervision.restarts, found.supervision.delay) == (3, 100_000)
    assert found.server.password_file == Path("/somewhere/pipelines/secret.txt")
    assert found.source == TopicSource(
        TopicName("shop", "orders"),
        Start('{"0": 10, "1": 20}'),
        consumer="orders_to_lake",
        max_messages_per_trigger=1000,
        max_bytes_per_trigger=2**20,
    )
    assert found.decoding.quarantine_topic == TopicName("shop", "bad")
    assert found.transform.watermark == ("at", "10 minutes")
    assert found.tables == {
        "customers": LookupTable("/somewhere/pipelines/customers.csv", "csv", "id BIGINT, name STRING"),
        "days": LookupTable("s3a://lake/days", "parquet", None),
    }
    assert (found.sink.place, found.sink.key, found.sink.create_partitions) == (TopicName("shop", "counts"), "id", 4)
    assert found.spark == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}


def test_the_least_that_must_be_said() -> None:
    found = parse(LEAST)
    assert (found.mode, found.decoding.format, found.sink.type) == ("continuous", "raw", "console")
    assert found.checkpoint == "/somewhere/pipelines/checkpoints/p"
    assert isinstance(found.source, TopicSource)
    assert found.source.start == Start("earliest")


def test_files_as_a_source() -> None:
    found = parse(
        '[pipeline]\nname = "b"\n[source]\ntype = "files"\npath = "in/*.csv"\nformat = "csv"\nschema = "a INT"\n'
        'on_bad_row = "drop"\n[sink]\ntype = "delta"\npath = "~/lake"'
    )
    assert found.source == FileSource("/somewhere/pipelines/in/*.csv", "csv", "a INT", on_bad_row="drop")
    assert found.sink.path == str(Path.home() / "lake")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("[source]", "[sorce]"), "unknown table [sorce]; did you mean source?"),
        (('topic = "t"', 'topik = "t"'), "unknown key source.topik; did you mean source.topic?"),
        (('name = "p"', ""), "pipeline.name is missing"),
        (('name = "p"', 'name = "../p"'), "pipeline.name must be up to 64 letters"),
        (('name = "p"', 'name = "p"\nmode = "onse"'), 'pipeline.mode must be "continuous" or "once", not "onse"'),
        (('name = "p"', 'name = "p"\ntrigger = 10'), "pipeline.trigger must be a duration"),
        (('topic = "t"', ""), 'source.topic is missing: type = "topic" requires it'),
        (('topic = "t"', 'topic = "t"\nstarting = "earlist"'), "did you mean earliest?"),
        (('topic = "t"', 'topic = "t"\nstarting = "2026-11-01T00:00:00"'), "needs a time zone"),
        (('topic = "t"', 'topic = "t"\nstarting = \'{"0": "x"}\''), "must be offsets by partition such as"),
        (('topic = "t"', 'topic = "t"\ndecode = "json"'), 'source.schema is missing: decode = "json"'),
        (('topic = "t"', 'topic = "t"\nschema = "a INT"'), 'source.schema cannot be used with decode = "raw"'),
        (('topic = "t"', 'topic = "t"\ndecode = "avro"'), 'source.avro_schema and decode = "avro" require each other'),
        (('topic = "t"', 'topic = "t"\non_bad_row = "quarantine"'), "requires either source.quarantine_topic or"),
        (('topic = "t"', 'topic = "t"\nquarantine_path = "x"'), 'requires source.on_bad_row = "quarantine"'),
        (('topic = "t"', 'topic = "t"\npath = "x"'), 'source.path cannot be used with type = "topic"'),
        (('type = "console"', 'type = "parket"'), 'sink.type must be "parquet", "delta"'),
        (('type = "console"', 'type = "parquet"'), 'sink.path is missing: type = "parquet" requires it'),
        (('type = "console"', 'type = "console"\npath = "x"'), 'sink.path cannot be used with type = "console"'),
        (("[sink]", '[transform]\nwatermark = "at"\n[sink]'), "transform.watermark must be a column and a delay"),
        (("[sink]", '[transform]\nwatermark = "at 1 minute"\n[sink]'), "require transform.sql"),
        (("[sink]", '[transform]\nsql = "DROP TABLE x"\n[sink]'), "transform.sql must be one SQL query"),
        (("[sink]", f"[tables.t]\n{TABLE}[sink]"), "tables require transform.sql, which joins with them"),
        (("[sink]", f"[tables.source]\n{TABLE}[sink]"), "tables.source: source is the name of the source"),
        (("[sink]", f'[tables."a-b"]\n{TABLE}[sink]'), "tables.a-b: the name of a table must be letters"),
        (("[sink]", '[tables]\npath = "x"\n[sink]'), "tables.path must be a table; write [tables.path]"),
        (("[sink]", '[tables.t]\nformat = "csv"\n[sink]'), "tables.t.path is missing: the folder or file"),
        (("[sink]", f'[tables.t]\n{TABLE}pth = "y"\n[sink]'), "unknown key tables.t.pth; did you mean tables.t.path?"),
        (("[sink]", f'[tables.t]\n{TABLE}schema = "a INT"\n[sink]'), 'schema cannot be used with format = "parquet"'),
        (("[sink]", '[spark]\nmaster = "x"\n[sink]'), 'names begin with "spark.", not "master"'),
        (("[sink]", '[spark]\n"spark.master" = "x"\n[sink]'), "use courser pipeline run --master"),
        (("[sink]", '[server]\nurl = "a:1"\ncontext = "b"\n[sink]'), "mutually exclusive"),
        (("[sink]", '[server]\ntoken_file = "a"\nusername = "b"\n[sink]'), "excludes server.username"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(change: tuple[str, str], told: str) -> None:
    assert change[0] in LEAST
    assert told in problems(LEAST.replace(*change))


TABLE_SINK = 'type = "iceberg"\npath = "w"\ntable = "shop.orders"'


def test_a_table_that_is_its_own_checkpoint() -> None:
    found = parse(LEAST.replace('type = "console"', TABLE_SINK))
    assert found.has_table
    assert (found.trigger, found.decoding.on_bad_row) == (60_000_000, "quarantine")
    text = LEAST.replace('type = "console"', TABLE_SINK) + '[transform]\nsql = "SELECT customer, count(*) FROM source"'
    grouped = parse(text)
    assert not grouped.has_table, "Spark keeps the state of groups, and with it the position"
    assert (grouped.trigger, grouped.decoding.on_bad_row) == (10_000_000, "fail")


def test_how_a_table_is_partitioned() -> None:
    fields = '["day(at)", "bucket(16, customer)", "truncate( 4 ,sku)", "country"]'
    found = parse(LEAST.replace('type = "console"', f"{TABLE_SINK}\npartition_by = {fields}"))
    assert partition_fields(found.sink) == (
        PartitionField(source="at", transform="day"),
        PartitionField(source="customer", transform="bucket", argument=16),
        PartitionField(source="sku", transform="truncate", argument=4),
        PartitionField(source="country"),
    )


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ('type = "iceberg"\npath = "w"', "sink.table is missing"),
        ('type = "iceberg"\ntable = "a.b"\npath = "s3://b/w"', "outside of a local folder needs a catalog"),
        ('type = "iceberg"\ntable = "a.b"\ncatalog = "ftp://x"', "sink.catalog: ftp: is no catalog"),
        ('type = "delta"\npath = "s3://key:secret@b/w"', "it contains credentials"),
        ('type = "delta"\npath = "w"\npartition_by = ["week(at)"]', "week(at) is not understood; write a column, or"),
        ('type = "delta"\npath = "w"\npartition_by = ["bucket(at)"]', "bucket(at) is not understood"),
        ('type = "parquet"\npath = "s3://b/w"', "sink.path"),
        (
            'type = "delta"\npath = "s3://b/w"\n[transform]\nsql = "SELECT DISTINCT a FROM source"',
            "sink.path must be a folder with files, or a query that groups",
        ),
    ],
)
def test_a_mistake_about_a_table(sink: str, told: str) -> None:
    assert told in problems(LEAST.replace('type = "console"', sink))


def test_what_a_table_does_not_take() -> None:
    text = LEAST.replace('type = "console"', TABLE_SINK)
    assert "source.headers cannot be used with a table" in problems(text.replace("[sink]", "headers = true\n[sink]"))
    aside = 'decode = "text"\nquarantine_path = "x"\n[sink]'
    assert "bad rows go to the table NAME__bad" in problems(text.replace("[sink]", aside))
    inferred = 'decode = "json"\nschema = "infer"\n[sink]'
    assert parse(text.replace("[sink]", inferred)).decoding.schema == "infer"
    assert 'source.schema = "infer" needs' in problems(LEAST.replace("[sink]", inferred))


def test_all_mistakes_are_told_at_once() -> None:
    told = problems('[pipeline]\nname = ""\n[source]\nstrem = "s"\n[sink]\ntype = "x"').splitlines()
    assert len(told) == 3


def test_modes_that_a_lake_does_not_take() -> None:
    text = LEAST.replace('type = "console"', 'type = "parquet"\npath = "x"')
    text += '[transform]\nsql = "SELECT 1"\noutput_mode = "update"'
    assert 'output_mode = "update" is not supported by sinks of type parquet' in problems(text)


def test_a_file_that_is_no_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    with pytest.raises(ConfigurationRefused, match=r"could not read .*: No such file"):
        load_definition(path)
    path.write_text("name = ")
    with pytest.raises(ConfigurationRefused, match="invalid TOML"):
        load_definition(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationRefused, match="could not read"):
        load_definition(path)


def test_starts() -> None:
    assert parse_start("latest") == Start("latest")
    assert parse_start("2026-11-01T00:00:00Z") == Start("earliest", "2026-11-01T00:00:00+00:00")
    assert json.loads(parse_start('{"10": 1, "2": -2}').offsets) == {"2": -2, "10": 1}


def test_partitions_that_are_not_named_begin_at_their_beginning() -> None:
    assert completed(Start("latest"), [0, 1]) == Start("latest")
    assert completed(Start('{"1": 5}'), [0, 1, 2]) == Start('{"0": -2, "1": 5, "2": -2}')


def test_what_cannot_run_together() -> None:
    first = parse(LEAST)
    second = parse(LEAST.replace('"p"', '"q"') + '[spark]\n"spark.driver.memory" = "1g"')
    third = parse(LEAST.replace('"p"', '"r"') + '[spark]\n"spark.driver.memory" = "2g"')
    check_together([first, second])
    with pytest.raises(ConfigurationRefused, match=r"spark.driver.memory is 1g in .* but 2g in"):
        check_together([second, third])
    with pytest.raises(ConfigurationRefused, match="the same name, p"):
        check_together([first, parse(LEAST)])


def test_a_server_on_this_machine_is_left_a_core() -> None:
    here = parse(LEAST + '[server]\nurl = "127.0.0.1:8090"')
    elsewhere = parse(LEAST + '[server]\nurl = "iggy://a:b@10.0.0.5:8090"')
    assert default_master([here], {}, 8) == "local[7]"
    assert default_master([here], {}, 2) == "local[*]"
    assert default_master([elsewhere], {}, 8) == "local[*]"
