"""Checkpoints in S3, through Spark's own connector, whose jars Spark downloads: several hundred megabytes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from courser.spark.connectors import coordinates
from tests.archive.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.docs.blocks import blocks_of
from tests.pipelines.runs import COURSER, JAVA, dying, end_of, output_of, start
from tests.pipelines.scenes import PATIENCE, STREAM, Scene, order, orders_source
from tests.servers import RunningServer
from tests.sessions import kill_session
from tests.torture.process import until

pytestmark = [pytest.mark.tools, pytest.mark.timeout(1800)]

GUIDE = "docs/spark/object-stores.md"
HADOOP = next(Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")).stem.rpartition("-")[2]
PACKAGE = coordinates("s3a", HADOOP)
FEW_ORDERS = range(400)
LIMIT = "max_messages_per_trigger = 200"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("store")) as running:
        running.client.create_bucket(Bucket="lake")
        yield running


@pytest.fixture
def scene(tmp_path: Path, server: RunningServer) -> Scene:
    """Without a session: the commands have their own."""
    return Scene(tmp_path, server)


def settings(store: SeaweedServer) -> dict[str, str]:
    assert PACKAGE is not None
    return {
        "spark.jars.packages": PACKAGE,
        "spark.hadoop.fs.s3a.endpoint": store.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
    }


def define(scene: Scene, name: str, text: str, more: dict[str, str]) -> str:
    path = scene.define(name, text + JAVA + "".join(f'"{key}" = "{value}"\n' for key, value in more.items()))
    path.write_text(path.read_text().replace("[server]", f'checkpoint = "s3a://lake/checkpoints/{name}"\n[server]', 1))
    return path.name


def locks(store: SeaweedServer, name: str) -> list[str]:
    return [key for key in store.objects("lake", f"checkpoints/{name}/") if "/lock-" in key]


def holder(store: SeaweedServer, name: str) -> dict[str, object]:
    (key,) = locks(store, name)
    found: dict[str, object] = json.loads(store.client.get_object(Bucket="lake", Key=key)["Body"].read())
    return found


def test_a_killed_runner_goes_on_and_every_row_arrives_once(scene: Scene, store: SeaweedServer) -> None:
    scene.make_topic("killed")
    scene.make_topic("killed-copy")
    scene.send_orders("killed", FEW_ORDERS)
    lake = f'{orders_source("killed", LIMIT)}[sink]\ntype = "parquet"\npath = "rows"\n'
    raw = f'[source]\nstream = "{STREAM}"\ntopic = "killed"\n{LIMIT}\n'
    copy = f'{raw}[sink]\ntype = "topic"\nstream = "{STREAM}"\ntopic = "killed-copy"\n'
    files = [define(scene, "lake", lake, settings(store)), define(scene, "copy", copy, settings(store))]
    # Two files a batch: the second batch has one in the lake, and the other one not.
    runner = start(scene, dying("courser.lake.staged_parquet.make_folders", 4), *files, "--once")
    assert end_of(scene, runner) == -signal.SIGKILL, output_of(scene)
    assert len(list(scene.folder.glob("rows/**/*.parquet"))) == 3
    assert not holder(store, "lake")["is_released"], "nobody released it"

    assert end_of(scene, start(scene, COURSER, *files, "--once")) == 0, output_of(scene)
    assert scene.count("rows", "id") == Counter(FEW_ORDERS)
    assert Counter(scene.payloads("killed-copy")) == Counter(map(order, FEW_ORDERS))
    assert locks(store, "lake") == ["checkpoints/lake/lock-2"]
    assert holder(store, "lake")["is_released"]
    assert not list(scene.folder.glob("**/s3a:*")), "nothing is named after the address"


def test_a_second_runner_is_refused(scene: Scene, store: SeaweedServer) -> None:
    scene.make_topic("two")
    text = f'[source]\nstream = "{STREAM}"\ntopic = "two"\n[sink]\ntype = "console"\n'
    file = define(scene, "two", text, settings(store))
    first = start(scene, COURSER, file, "--continuous")
    try:
        until(lambda: bool(locks(store, "two")), "the first one has the lock", PATIENCE)
        # Another state folder, as on another machine that has the same checkpoint.
        second = Scene(scene.folder / "second", scene.server)
        second.folder.mkdir()
        (second.folder / file).write_text((scene.folder / file).read_text())
        assert end_of(second, start(second, COURSER, file, "--once")) == 1
        said = " ".join(output_of(second).split())
        assert re.search(rf"s3a://lake/checkpoints/two is in use by process {first.pid} on \S+, which runs two", said)
        first.terminate()
        assert end_of(scene, first) == 0, output_of(scene)
    finally:
        kill_session(first)
    assert holder(store, "two")["is_released"]


def test_without_the_jar_the_first_line_names_it(scene: Scene) -> None:
    file = define(
        scene, "bare", '[source]\ntype = "files"\nformat = "text"\npath = "in"\n[sink]\ntype = "console"\n', {}
    )
    assert end_of(scene, start(scene, COURSER, file)) == 1
    assert output_of(scene).startswith(
        f"error: no file system of Spark knows s3a://; set spark.jars.packages to org.apache.hadoop:hadoop-aws:{HADOOP}"
    )


def test_the_guide_as_it_is_typed_in(scene: Scene, store: SeaweedServer) -> None:
    scene.make_topic("orders")
    scene.send_orders("orders", range(50))
    program, pipeline = (block.text for block in blocks_of(GUIDE) if block.kind in ("python", "toml"))
    region = '"spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",\n'
    assert region in program
    mine = "".join(f'"{name}": "{value}",\n' for name, value in settings(store).items())
    package = re.compile(r'^.*"spark\.jars\.packages".*\n', re.MULTILINE)
    (scene.folder / "lake_in_s3.py").write_text(package.sub("", program).replace(region, mine))
    done = subprocess.run(
        [sys.executable, "lake_in_s3.py"],
        cwd=scene.folder,
        env=dict(os.environ) | {"COURSER_URL": scene.url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == "50 orders\n", done.stderr
    region = '"spark.hadoop.fs.s3a.endpoint.region" = "eu-central-1"\n'
    assert region in pipeline
    mine = "".join(f'"{name}" = "{value}"\n' for name, value in settings(store).items())
    text = (
        package.sub("", pipeline).replace(region, mine).replace("[source]", f'[server]\nurl = "{scene.url}"\n[source]')
    )
    (scene.folder / "copy.toml").write_text(text)
    assert end_of(scene, start(scene, COURSER, "copy.toml")) == 0, output_of(scene)
    assert Counter(scene.payloads("orders-copy")) == Counter(map(order, range(50)))
    assert not list(scene.folder.glob("**/s3a:*"))


def test_the_table_of_jars_says_what_this_spark_wants() -> None:
    (text,) = [line for line in Path(GUIDE).read_text().splitlines() if HADOOP in line and line.startswith("|")]
    assert ".".join(pyspark.__version__.split(".")[:2]) in text
    assert str(PACKAGE) in text
