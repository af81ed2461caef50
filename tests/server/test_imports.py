"""A server imports what its configuration uses, and nothing else: imports are most of what a start costs."""

import sys
from pathlib import Path

import pytest

from tests.servers import RunningServer

PROGRAM = """
import atexit, sys
atexit.register(lambda: print("modules:", *sorted(sys.modules)))
from courser.cli.main import main
sys.argv.pop(1)
main()
"""
"""``courser``, which prints the modules that it has imported. Its first argument is the program that it stands for."""
OPTIONAL = {
    "cramjam",
    "cryptography",
    "courser.archive.reader",
    "courser.archive.restoring",
    "courser.archive.manifest_writer",
    "courser.bench",
    "courser.broker.archive.archiving",
    "courser.cli.machine_facts",
    "courser.client.client",
    "courser.inspect",
    "courser.processes",
    "courser.server.crew",
    "courser.server.telemetry",
    "courser.spark",
    "obstore",
    "opentelemetry",
    "pyarrow",
    "qh3",
    "rich",
}
"""What no start needs that does not ask for it."""
OF_HTTP = {"courser.transports.http", "httptools"}
OF_WEBSOCKET = {"courser.transports.websocket", "websockets"}
OF_ARCHIVE = {"courser.archive.reader", "courser.archive.manifest_writer", "courser.broker.archive.archiving"}
LISTENING = {"http.address": "127.0.0.1:0", "websocket.address": "127.0.0.1:0"}


@pytest.mark.parametrize(
    ("settings", "used"),
    [
        ({}, set()),
        ({"http.enabled": "true", "websocket.enabled": "true", **LISTENING}, OF_HTTP | OF_WEBSOCKET),
        ({"data_maintenance.archiver.enabled": "true", "data_maintenance.archiver.kind": "disk"}, OF_ARCHIVE),
        ({"server.processes": "2"}, {"courser.processes", "courser.server.crew"}),
    ],
    ids=["tcp", "http and websocket", "archive", "two processes"],
)
def test_a_start_imports_what_it_uses(tmp_path: Path, settings: dict[str, str], used: set[str]) -> None:
    alone = {"server.processes": "1"}
    with RunningServer(tmp_path, settings=alone | settings, prefix=(sys.executable, "-c", PROGRAM)) as server:
        assert server.stop() == 0
    (line,) = (line for line in server.output.splitlines() if line.startswith("modules: "))
    found = (OPTIONAL | OF_HTTP | OF_WEBSOCKET).intersection(line.split())
    assert found - used == set()
    assert used <= found, "this test does not look for what it names"
