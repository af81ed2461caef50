"""The recipe for PostgreSQL as the guide shows it, with a real database: ``make check-databases`` runs it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.stage import Stage
from tests.servers import free_port
from tests.spark_fixtures import PATIENCE

pytestmark = pytest.mark.tools

GUIDE = "docs/spark/recipes.md"


@dataclass(frozen=True)
class Database:
    """PostgreSQL on loopback."""

    programs: Path
    port: int

    def ask(self, sql: str) -> str:
        words = [str(self.programs / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-Atc", sql]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


@pytest.fixture
def database() -> Iterator[Database]:
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    database = Database(programs, free_port())
    # PostgreSQL refuses to run as root, and its user cannot read the folders of tests.
    user = "postgres" if os.geteuid() == 0 else None
    place = Path(tempfile.mkdtemp(prefix="courser-postgresql-"))
    if user is not None:
        shutil.chown(place, user)
    data, log = place / "data", place / "log"

    def run(*words: str | Path) -> None:
        subprocess.run(words, check=True, user=user, cwd=place, timeout=PATIENCE, stdout=subprocess.DEVNULL)

    run(programs / "initdb", "--auth", "trust", "-U", "postgres", "-D", data)
    listening = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={place} -p {database.port}"
    run(programs / "pg_ctl", "start", "--wait", "-D", data, "-l", log, "-o", listening)
    try:
        yield database
    finally:
        run(programs / "pg_ctl", "stop", "--mode", "immediate", "-D", data)
        shutil.rmtree(place)


def test_the_recipe_writes_each_message_once_also_when_a_batch_is_repeated(database: Database, tmp_path: Path) -> None:
    (program,) = (block.text for block in blocks_of(GUIDE) if block.text.startswith("# to_postgresql.py"))
    database.ask("CREATE TABLE payments (customer int, paid int)")
    database.ask("CREATE TABLE batches (name text, number bigint, PRIMARY KEY (name, number))")
    with Stage(tmp_path) as stage:
        stage.start()
        stage.environment |= {"JDBC_URL": f"jdbc:postgresql://127.0.0.1:{database.port}/postgres", "PGPASSWORD": "-"}
        stage.type('courser send shop/payments --create \'{"customer":1,"paid":10}\' \'{"customer":2,"paid":5}\'')
        stage.run_python(program)
        assert database.ask("SELECT customer, paid FROM payments ORDER BY 1") == "1|10\n2|5\n"
        # The commit of the batch is lost: Spark repeats it.
        for name in ("0", ".0.crc"):
            (tmp_path / "checkpoints" / "postgresql" / "commits" / name).unlink()
        stage.type('courser send shop/payments \'{"customer":1,"paid":7}\'')
        stage.run_python(program)
    assert database.ask("SELECT customer, paid FROM payments ORDER BY 1, 2") == "1|7\n1|10\n2|5\n"
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    assert database.ask(tables) == "batches\npayments\n"
