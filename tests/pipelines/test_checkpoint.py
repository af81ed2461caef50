"""Checkpoints: generations, and what may change under one."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from courser.errors import ClientFailure
from courser.jobs.folders import LocalFolder
from courser.lake import atomic_files
from courser.pipelines.checking import refuse_endless_groups
from courser.pipelines.checkpoint import Checkpoint, ResetNeeded, begin_generation, open_checkpoint, reset
from courser.pipelines.definition import Definition, Start, Transform, is_stateful
from courser.pipelines.definition_file import parse_definition
from courser.pipelines.locking import Lock, LockTaken, this_process
from courser.pipelines.transform import TransformRefused

GROUPED = "SELECT k, count(*) AS n FROM source GROUP BY k, window(t, '1 minute')"
TEXT = """
[pipeline]
name = "p"
[source]
stream = "s"
topic = "{topic}"
decode = "json"
schema = "k STRING, t TIMESTAMP"
[transform]
sql = "{sql}"
watermark = "t {delay}"
[sink]
type = "parquet"
path = "{path}"
[spark]
"spark.sql.shuffle.partitions" = {partitions}
"""


def define(folder: Path, **changes: object) -> Definition:
    values = {"topic": "t", "sql": GROUPED, "delay": "1 minute", "path": "lake", "partitions": 2} | changes
    return parse_definition(TEXT.format(**values), folder / "p.toml")


def root_of(definition: Definition) -> LocalFolder:
    return LocalFolder(Path(definition.checkpoint))


def begun(definition: Definition) -> Checkpoint:
    """A checkpoint under which two batches were planned and one was done."""
    checkpoint = open_checkpoint(root_of(definition))
    checkpoint.check(definition)
    for folder, number in (("offsets", 0), ("offsets", 1), ("commits", 0)):
        end = f'{{"v":1,"topic_id":"ab","p":{{"0":{number + 5},"1":7}}}}'
        checkpoint.spark.inside(folder).replace(str(number), f'v1\n{{"batchWatermarkMs":0}}\n{end}'.encode())
    return checkpoint


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"topic": "other"}, 'the source was "topic s/t" and is "topic s/other"'),
        ({"path": "lake2"}, "the sink was"),
        ({"sql": GROUPED.replace("count", "sum")}, "the SQL, which groups rows, was"),
        ({"delay": "2 minutes"}, "the watermark was"),
        ({"partitions": 3}, 'spark.sql.shuffle.partitions, which partitions the state was "2" and is "3"'),
    ],
)
def test_what_needs_a_reset(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    begun(define(tmp_path))
    changed = define(tmp_path, **changes)
    with pytest.raises(ResetNeeded) as needed:
        open_checkpoint(root_of(changed)).check(changed)
    told = told.replace(", was", " was")
    assert told in str(needed.value).replace("rows, was", "rows was")
    assert "courser pipeline reset p --to current" in str(needed.value)
    reset(root_of(changed), changed, "current")
    open_checkpoint(root_of(changed)).check(changed)


def test_what_may_change(tmp_path: Path) -> None:
    plain = define(tmp_path, sql="SELECT k, t FROM source")
    begun(plain)
    changed = define(tmp_path, sql="SELECT upper(k) AS k FROM source", partitions=8, delay="9 minutes")
    open_checkpoint(root_of(plain)).check(replace(changed, trigger=1, mode="once"))


def test_white_space_is_no_change(tmp_path: Path) -> None:
    begun(define(tmp_path))
    open_checkpoint(root_of(define(tmp_path))).check(define(tmp_path, sql=GROUPED.replace(" FROM", "   FROM")))


def test_a_checkpoint_without_a_batch_takes_any_change(tmp_path: Path) -> None:
    first = define(tmp_path)
    open_checkpoint(root_of(first)).check(first)
    open_checkpoint(root_of(first)).check(define(tmp_path, topic="other"))


def test_a_reset_begins_a_generation_and_keeps_the_old_one(tmp_path: Path) -> None:
    definition = define(tmp_path)
    old = begun(definition)
    report = reset(root_of(definition), definition, "2026-11-01T00:00:00Z")
    new = open_checkpoint(root_of(definition))
    assert (old.generation, new.generation, report.generation) == (1, 2, 2)
    assert new.is_fresh
    assert not old.is_fresh
    assert new.start(Start("latest")) == Start("earliest", "2026-11-01T00:00:00+00:00")
    assert old.start(Start("latest")) == Start("latest")
    assert report.warning is not None
    assert "will be written again" in report.warning
    assert reset(root_of(definition), definition, "earliest").generation == 3


def test_current_is_where_the_last_finished_batch_ended(tmp_path: Path) -> None:
    definition = define(tmp_path)
    with pytest.raises(ClientFailure, match="no finished batch to continue from"):
        reset(root_of(definition), definition, "current")
    begun(definition)
    assert reset(root_of(definition), definition, "current").warning is None
    assert open_checkpoint(root_of(definition)).start(Start()) == Start('{"0": 5, "1": 7}')


def test_nothing_is_reset_while_it_runs(tmp_path: Path) -> None:
    definition = define(tmp_path)
    held = Lock(Path(definition.checkpoint, "lock"), this_process("p")).acquire()
    # The kernel tells descriptors apart, not processes: this is as good as another one.
    with held, pytest.raises(LockTaken):
        reset(root_of(definition), definition, "earliest")


def test_nonsense_in_place_of_a_generation(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("two")
    with pytest.raises(ClientFailure, match="not 'two'"):
        open_checkpoint(LocalFolder(tmp_path))
    with pytest.raises(ClientFailure, match="--to must be"):
        reset(root_of(define(tmp_path)), define(tmp_path), "earlist")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (None, False),
        ("SELECT a FROM source WHERE b > 1", False),
        (GROUPED, True),
        ("SELECT DISTINCT a FROM source", True),
    ],
)
def test_queries_that_remember(sql: str | None, expected: bool) -> None:
    assert is_stateful(sql) is expected


@pytest.mark.parametrize(
    ("sql", "is_refused"),
    [
        ("SELECT id, first, last FROM source", False),
        ("SELECT DISTINCT id FROM source", False),
        ("SELECT array_max(prices) AS max FROM source", False),
        ("SELECT customer FROM source GROUP\n BY customer", True),
        ("SELECT count (*) FROM source", True),
    ],
)
def test_groups_that_are_never_finished_are_refused(sql: str, is_refused: bool, tmp_path: Path) -> None:
    definition = define(tmp_path)
    endless = replace(definition, transform=Transform(sql))
    with pytest.raises(TransformRefused, match="no group ever closes") if is_refused else nullcontext():
        refuse_endless_groups(endless)
    refuse_endless_groups(replace(endless, transform=Transform(sql, ("at", "1 minute"))))


def test_a_new_generation_is_durable_before_it_is_the_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic_files, "sync_folder", synced.append)
    fresh = begin_generation(LocalFolder(tmp_path), Start("latest"))
    # The folder's name, what is in it, and then the word that it is in use.
    assert synced == [tmp_path, Path(fresh.folder.place), tmp_path]
    assert open_checkpoint(LocalFolder(tmp_path)) == fresh
