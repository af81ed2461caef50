"""A stop while processes end or are started again: clean, with all that they had acknowledged, in the archive too."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from courser.client.client import connect
from tests.processes.processes import children_of
from tests.processes.test_archive import PROCESS_COUNT, client_of, make_topics, read, settings_of
from tests.servers import RunningServer
from tests.torture.process import until

PATIENCE = 120.0
COUNT = 50


def at_once(server: RunningServer, old: int) -> None:
    """The server may not even know yet that the process has ended."""
    os.kill(old, signal.SIGKILL)
    server.process.send_signal(signal.SIGTERM)


def in_the_pause(server: RunningServer, old: int) -> None:
    os.kill(old, signal.SIGKILL)
    until(lambda: "starting it again" in server.output, "the end of the process", PATIENCE)
    server.process.send_signal(signal.SIGTERM)


def while_it_starts(server: RunningServer, old: int) -> None:
    os.kill(old, signal.SIGKILL)

    def is_there() -> bool:
        children = children_of(server)
        return len(children) == PROCESS_COUNT - 1 and old not in children

    until(is_there, "the new process", PATIENCE)
    server.process.send_signal(signal.SIGTERM)


def after_the_signal(server: RunningServer, old: int) -> None:
    """The process ends while the server stops."""
    server.process.send_signal(signal.SIGTERM)
    os.kill(old, signal.SIGKILL)


@pytest.mark.parametrize("kill_and_stop", [at_once, in_the_pause, while_it_starts, after_the_signal])
async def test_a_stop_is_clean_and_archives_all_whenever_a_process_is_killed(
    tmp_path: Path, kill_and_stop: Callable[[RunningServer, int], None]
) -> None:
    archive = tmp_path / "archive"
    # Only the last run archives anything.
    settings = settings_of(archive, **{"data_maintenance.archiver.interval": "1 h"})
    with RunningServer(tmp_path / "server", settings=settings) as server:
        async with client_of(server) as client:
            topics = await make_topics(client)
            for topic in topics:
                for number in range(COUNT):
                    await client.send_messages(topic, None, 0, [str(number)])
                await client.store_consumer_offset(topic, None, 0, 7, consumer="reader")
        kill_and_stop(server, children_of(server)[0])
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0, server.output
        assert "Bad file descriptor" not in server.output
    shutil.rmtree(tmp_path / "server" / "local_data")
    settings |= {"data_maintenance.archiver.restore_on_start": "true"}
    with RunningServer(tmp_path / "restored", settings=settings) as restored:
        async with asyncio.timeout(PATIENCE), connect(f"iggy://iggy:iggy@{restored.address}") as client:
            for topic in topics:
                assert await read(client, topic) == [str(number) for number in range(COUNT)]
                stored = await client.get_consumer_offset(topic, None, 0, consumer="reader")
                assert stored is not None
                assert stored.stored_offset == 7
