"""Options: one table, and errors that say what would have been right."""

from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from courser.archive.settings import StoreKind, StoreSettings
from courser.jobs.source_topic import open_topic
from courser.spark.data_source import CourserSource
from courser.spark.option_kinds import EARLIEST, LATEST
from courser.spark.options import OPTIONS, OptionRefused, Use, parse_options
from courser.spark.read_options import ReadOptions, read_options, stream_options
from courser.spark.write_options import write_options

PLACE = {"stream": "shop", "topic": "orders"}
SEVERAL = {"stream": "shop", "topic": "orders, payments"}


def one_read(given: dict[str, str], use: Use = Use.BATCH) -> ReadOptions:
    (options,), _ = read_options(given, use, {})
    return options


def test_names_are_taken_in_any_case_and_defaults_stand_for_what_is_not_said() -> None:
    values = parse_options({"MAXBYTESPERTRIGGER": "1 MiB", "includeheaders": "TRUE"}, Use.STREAM)
    assert (values["maxBytesPerTrigger"], values["includeHeaders"]) == (2**20, True)
    assert (values["failOnDataLoss"], values["batchBytes"], values["connectTimeout"]) == (True, 2**21, None)


@pytest.mark.parametrize(
    ("name", "alike"),
    [("startingOffset", "startingOffsets"), ("topics", "topic"), ("maxBytePerTrigger", "maxBytesPerTrigger")],
)
def test_an_unknown_name_is_refused_with_the_closest_one(name: str, alike: str) -> None:
    with pytest.raises(OptionRefused, match=f'unknown option "{name}"; did you mean "{alike}"'):
        parse_options({name: "1"}, Use.STREAM)


def test_an_option_for_something_else_says_for_what() -> None:
    with pytest.raises(OptionRefused, match='"maxBytesPerTrigger" is for stream read, not for batch read'):
        parse_options({"maxBytesPerTrigger": "1"}, Use.BATCH)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("includeHeaders", "yes", "true or false"),
        ("minPartitions", "0", "a number above 0"),
        ("maxBytesPerPartition", "much", "a number of bytes"),
        ("requestTimeout", "soon", "a duration"),
        ("startingTimestamp", "yesterday", "microseconds since 1970"),
        ("startingOffsets", '{"orders": {"0": -3}}', "-2 earliest, -1 latest"),
        ("startingOffsets", "[1]", "-2 earliest, -1 latest"),
        ("startingOffsets", '{"orders": "newest"}', "-2 earliest, -1 latest"),
        ("startingOffsets", '{"0": 1, "payments": {"0": 1}}', "-2 earliest, -1 latest"),
        ("endingTimestamp", '{"orders": "yesterday"}', "microseconds since 1970"),
        ("endingTimestamp", '{"orders": {"first": 1}}', "microseconds since 1970"),
        ("topic", "orders,,payments", "a comma-separated list of distinct names"),
        ("startingOffsets", f'{{"orders": {{"0": {2**63}}}}}', "-2 earliest, -1 latest"),
        ("source", "tape", "auto or server or segments or archive"),
        ("columns", "offset,,", "a comma-separated list"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_is_expected(name: str, value: str, expected: str) -> None:
    with pytest.raises(OptionRefused) as caught:
        parse_options({name: value}, Use.BATCH)
    assert f'for option "{name}"; expected' in str(caught.value)
    assert expected in str(caught.value)


def test_offsets_and_times_have_several_spellings() -> None:
    values = parse_options(
        {"startingOffsets": '{"orders": {"0": 23, "1": -2}}', "endingTimestamp": "2026-05-01T12:00:00+02:00"}, Use.BATCH
    )
    assert values["startingOffsets"] == {"orders": {0: 23, 1: EARLIEST}}
    assert values["endingTimestamp"] == 1_777_629_600_000_000
    assert (
        parse_options({"endingTimestamp": "2026-05-01T10:00"}, Use.BATCH)["endingTimestamp"]
        == (values["endingTimestamp"])
    )
    assert parse_options({"endingOffsets": "LATEST"}, Use.BATCH)["endingOffsets"] == LATEST


@pytest.mark.parametrize("missing", ["stream", "topic"])
def test_stream_and_topic_are_required(missing: str) -> None:
    given = {name: value for name, value in PLACE.items() if name != missing}
    with pytest.raises(OptionRefused, match=f'option "{missing}" is required'):
        read_options(given, Use.BATCH, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "conflict; set only one"),
        ({"endingOffsets": "earliest"}, "nothing would be read"),
        ({"startingOffsets": '{"others": {"0": 1}}'}, 'names topic "others", which is not read; topics: "orders"'),
        ({"endingTimestamp": '{"others": 5}'}, 'names topic "others", which is not read; topics: "orders"'),
        ({"endingOffsets": '{"orders": "earliest"}'}, "nothing would be read"),
        ({"url": "iggy://a:b@c:1", "address": "c:1"}, "both name the server"),
        ({"username": "spark"}, "COURSER_PASSWORD in the driver"),
        ({"tokenFile": "/not/there"}, "could not read /not/there"),
        ({"url": "http://somewhere"}, "supports only TCP"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionRefused, match=message):
        read_options(PLACE | given, Use.BATCH, {})


def test_a_read_of_several_topics_has_options_for_each_of_them() -> None:
    given = {"startingOffsets": '{"orders": {"0": 23}, "payments": "latest"}', "endingOffsets": '{"orders": {"0": 40}}'}
    (orders, payments), _ = read_options(SEVERAL | given | {"minPartitions": "3"}, Use.BATCH, {})
    assert (orders.name, payments.name) == ("shop/orders", "shop/payments")
    assert (orders.starting, orders.ending) == ({0: 23}, {0: 40})
    assert (payments.starting, payments.ending) == (LATEST, LATEST)
    assert orders.min_partitions == payments.min_partitions == 3
    (orders, payments), _ = read_options(SEVERAL | {"startingOffsets": "latest"}, Use.BATCH, {})
    assert (orders.starting, payments.starting) == (LATEST, LATEST)


def test_times_may_differ_by_topic_and_partition() -> None:
    times = '{"orders": "1970-01-01T00:00:05Z", "payments": {"1": 7}}'
    (orders, payments), _ = read_options(SEVERAL | {"startingTimestamp": times, "endingTimestamp": "9"}, Use.BATCH, {})
    assert (orders.starting_time, orders.ending_time) == (5_000_000, 9)
    assert (payments.starting_time, payments.ending_time) == ({1: 7}, 9)
    (orders, payments), _ = read_options(SEVERAL | {"startingTimestamp": '{"orders": 5}'}, Use.STREAM, {})
    assert (payments.starting_time, payments.starting) == (None, LATEST)


def test_offsets_of_one_topic_may_be_given_by_partition_alone() -> None:
    assert one_read(PLACE | {"startingOffsets": '{"0": 23, "1": -2}'}).starting == {0: 23, 1: EARLIEST}
    with pytest.raises(OptionRefused, match="names only partitions, but several topics are read"):
        read_options(SEVERAL | {"startingOffsets": '{"0": 23}'}, Use.BATCH, {})


def test_what_takes_one_topic_refuses_several_and_says_how_a_comma_is_written() -> None:
    schema = StructType([StructField("payload", BinaryType())])
    refused = pytest.raises(OptionRefused, match='2 topics, "orders", "payments", but only one is allowed')
    with refused:
        write_options(SEVERAL, schema, {})
    with refused:
        open_topic(SEVERAL | {"source": "segments", "path": "/data"})
    assert write_options(PLACE | {"topic": r"orders\, payments"}, schema, {}).topic == "orders, payments"


def test_a_stream_does_not_read_files_alone() -> None:
    with pytest.raises(OptionRefused, match="streams do not read segment files alone"):
        read_options(PLACE | {"source": "segments", "path": "/data"}, Use.STREAM, {})


def test_a_stream_begins_at_the_end_and_a_batch_read_at_the_beginning() -> None:
    assert one_read(PLACE, Use.STREAM).starting == LATEST
    assert one_read(PLACE).starting == EARLIEST
    values = read_options(PLACE | {"maxOffsetsPerTrigger": "7"}, Use.STREAM, {})[1]
    assert stream_options(values).max_count == 7


def test_secrets_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-token\n")
    options = one_read(PLACE | {"address": "host:1234", "tokenFile": str(tmp_path / "token")})
    assert options.target is not None
    assert (options.target.host, options.target.token) == ("host", "secret-token")
    environment = {"COURSER_PASSWORD": "hidden"}
    (options,), _ = read_options(PLACE | {"address": "host:1", "username": "spark"}, Use.BATCH, environment)
    assert options.target is not None
    assert (options.target.username, options.target.password) == ("spark", "hidden")
    assert "hidden" not in repr(options)


def test_patience_is_said_by_options_or_by_the_url() -> None:
    url = {"url": "iggy://a:b@c:1?request_timeout=3s&connect_timeout=2s"}
    target = one_read(PLACE | url | {"connectTimeout": "1s", "retries": "2"}).target
    assert target is not None
    assert (target.connect_timeout, target.request_timeout, target.reconnect_attempts) == (1.0, 3.0, 3)


def test_the_password_is_in_no_message() -> None:
    with pytest.raises(OptionRefused) as caught:
        parse_options({"password": ""}, Use.BATCH)
    assert '""' not in str(caught.value)


def test_every_option_has_a_name_of_its_own_a_use_and_a_default_that_it_takes() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    for option in OPTIONS:
        assert option.uses
        assert option.help.endswith(".")
        if option.default is not None:
            option.kind.parse(option.default)


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, "stream topic partition offset timestamp origin_timestamp id key payload"),
        ({"includeHeaders": "true", "schemaStyle": "kafka"},
         "key value topic partition offset timestamp timestampType headers"),
        ({"columns": "offset, payload"}, "offset payload"),
        ({"columns": "headers"}, "headers"),
    ],
)  # fmt: skip
def test_the_columns_follow_from_the_options(options: dict[str, str], columns: str) -> None:
    assert CourserSource(PLACE | options).schema().fieldNames() == columns.split()


def test_a_column_that_does_not_exist_is_refused_with_the_closest_one() -> None:
    with pytest.raises(OptionRefused, match='unknown column "ofset"; did you mean "offset"'):
        CourserSource(PLACE | {"columns": "ofset"}).schema()


# --- the archive --------------------------------------------------------------------------------------


def archive_of(given: dict[str, str], environment: dict[str, str] | None = None) -> StoreSettings:
    options = {"source": "archive", "stream": "s", "topic": "t"} | given
    (read, *_), _ = read_options(options, Use.BATCH, environment or {})
    assert read.archive is not None
    assert read.target is None
    return read.archive.store


def test_the_archive_has_the_settings_of_the_server(tmp_path: Path) -> None:
    found = archive_of(
        {
            "archive.kind": "s3",
            "archive.s3.bucket": "b",
            "Archive.S3.Key_Prefix": "p/",
            "archive.s3.endpoint": "http://127.0.0.1:9000",
            "archive.s3.region": "eu-central-1",
            "archive.s3.key_id": "me",
            "archive.s3.secret_access_key": "hidden word",
            "archive.s3.path_style": "false",
            "archive.request_timeout": "5s",
        }
    )
    assert found == StoreSettings(
        kind=StoreKind.S3,
        path=found.path,
        bucket="b",
        key_prefix="p/",
        endpoint="http://127.0.0.1:9000",
        region="eu-central-1",
        access_key_id="me",
        secret_access_key="hidden word",
        path_style=False,
        request_timeout=5_000_000,
    )
    assert "hidden word" not in repr(found)
    file = tmp_path / "server.toml"
    file.write_text('[data_maintenance.archiver]\npath = "far"\n[tcp]\naddress = "127.0.0.1:0"\n')
    assert archive_of({"archiveConfig": str(file)}).path == Path("far").absolute()
    assert archive_of({}, {"COURSER_CONFIG_PATH": str(file)}).path == Path("far").absolute()
    environment = {"COURSER_DATA_MAINTENANCE_ARCHIVER_DISK_PATH": "/near"}
    assert archive_of({"archiveConfig": str(file)}, environment).path == Path("/near")
    assert archive_of({"archive.path": "/here"}, environment).path == Path("/here")


def test_only_the_archiver_s_table_of_a_server_s_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    table = '[data_maintenance.archiver]\npath = "far"\ns3.tmp_upload_dir = "elsewhere"\n'
    # A key of a newer server, and one of Iggy's.
    file.write_text(f"{table}[tcp]\nwarp_factor = 9\n[system.memory_pool]\nenabled = true\n")
    assert archive_of({"archiveConfig": str(file)}).path == Path("far").absolute()
    file.write_text(f"{table}pth = 'near'\n")
    with pytest.raises(OptionRefused, match=r"archive\.pth = .*: unknown key; the closest is archive\.path"):
        archive_of({"archiveConfig": str(file)})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"archive.kind": "tape"}, 'archive.kind = "tape": expected "disk", "s3", "gcs" or "azure"'),
        ({"archive.s3.buket": "b"}, 'unknown option "archive.s3.buket"; the options of the archive are .*s3.bucket'),
        ({"archive.interval": "1s"}, 'unknown option "archive.interval"'),
        ({"archive.kind": "s3"}, "archive.s3.bucket is required if archive.kind is s3"),
        (
            {"archive.kind": "s3", "archive.s3.bucket": "b", "archive.s3.secret_access_key": "hidden word"},
            "archive.s3.access_key_id is required: an access key has two parts",
        ),
        ({"archiveConfig": "/nowhere.toml"}, "cannot read /nowhere.toml"),
    ],
)
def test_settings_of_the_archive_are_checked(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionRefused, match=said) as refused:
        archive_of(given)
    assert "hidden word" not in str(refused.value)


def test_auto_uses_an_archive_only_if_it_is_named() -> None:
    options = {"url": "iggy://iggy:iggy@127.0.0.1:1", "stream": "s", "topic": "t"}
    environment = {"COURSER_DATA_MAINTENANCE_ARCHIVER_DISK_PATH": "/near"}
    cases: list[tuple[dict[str, str], bool]] = [
        ({}, False),
        ({"archive.kind": "disk"}, True),
        ({"archive.kind": "disk", "source": "server"}, False),
        ({"archive.kind": "disk", "source": "segments", "path": "/x"}, False),
    ]
    for more, is_used in cases:
        (read, *_), _ = read_options(options | more, Use.BATCH, environment)
        assert (read.archive is not None) is is_used
