"""The programs of docs/coming-from-iggy.md, run by the release of the SDK that it names."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from courser.client.messages import SendMessage
from courser.client.sync import connect_sync
from tests.docs.blocks import blocks_of, text_of
from tests.sdk.environments import python_of
from tests.servers import RunningServer

DOCUMENT = "docs/coming-from-iggy.md"
PROGRAMS = [block.text for block in blocks_of(DOCUMENT) if "apache_iggy" in block.text]

pytestmark = pytest.mark.xdist_group("sdk-0.9.0")


def sdk_python() -> Path:
    (release,) = set(re.findall(r"apache-iggy==([\d.]+)", text_of(DOCUMENT)))
    return python_of(release)


def run(directory: Path, program: str, *arguments: str) -> str:
    (directory / "program.py").write_text(program)
    command = [str(sdk_python()), "program.py", *arguments]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=120)
    # Now and then the runtime inside the wheel aborts when the interpreter ends, with everything done and printed.
    assert ran.returncode in (0, -signal.SIGABRT), ran.stderr
    return ran.stdout


def test_the_example_reads_what_it_sent_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    with server:
        example = PROGRAMS[0].replace("127.0.0.1:8090", server.address)
        for offset in range(3):
            assert run(tmp_path, example) == f"{offset} hello\n"
            server.kill()
            server.start()


def test_a_topic_is_copied_with_payloads_headers_and_ids(tmp_path: Path) -> None:
    old, new = RunningServer(tmp_path / "old"), RunningServer(tmp_path / "new")
    with old, new:
        urls = [f"iggy://iggy:iggy@{server.address}" for server in (old, new)]
        with connect_sync(urls[0]) as source, connect_sync(urls[1]) as target:
            for client in (source, target):
                client.create_stream("shop")
                client.create_topic("shop/orders", partitions_count=2)
            sent = [
                SendMessage("plain", id=7),
                SendMessage(b"\x00\xff", id=2**127 + 1, headers={"source": "web", "count": 3, "is_new": True}),
            ]
            source.send_messages("shop/orders", partitioning=0, messages=sent)
            source.send_messages("shop/orders", partitioning=1, messages=[b"x" * 10] * 2500)
            shown = run(tmp_path, PROGRAMS[1], *urls, "shop", "orders")
            assert shown == "partition 0: copied up to offset 2\npartition 1: copied up to offset 2500\n"
            copies = target.poll_messages("shop/orders", partition_id=0)
            assert [(copy.payload, copy.id, copy.headers) for copy in copies] == [
                (b"plain", 7, {}),
                (b"\x00\xff", 2**127 + 1, {"source": "web", "count": 3, "is_new": True}),
            ]
            assert target.get_topic("shop/orders").partitions[1].message_count == 2500
