"""What a server does besides answering: begun by itself, switched off by its settings, told in the log."""

import json
from pathlib import Path
from typing import cast

import courser
from courser.broker.settings import BrokerSettings
from courser.server.background import BackgroundTasks, Work, keep_background_tasks
from courser.server.configuration.loading import load
from courser.server.configuration.settings import settings_of
from courser.server.logs import Logs
from courser.transports.connections import Connections
from tests.handlers.scenes import opened
from tests.servers import RunningServer
from tests.torture.process import until


class NamesOnly(BackgroundTasks):
    """Keeps the names of what it is told to keep."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def keep(self, name: str, work: Work) -> None:
        del work
        self.names.add(name)


class Nobody:
    """Connections and logs that nothing is asked of."""

    async def patrol(self) -> None:
        raise AssertionError("nothing runs here")


async def names_kept(directory: Path, *settings: str) -> set[str]:
    tasks = NamesOnly()
    async with opened(directory, BrokerSettings()) as scene:
        connections, logs = cast(Connections, Nobody()), cast(Logs, Nobody())
        keep_background_tasks(tasks, scene.broker, connections, settings_of(load(settings=settings)), logs)
    return tasks.names


async def test_all_of_it_is_on_by_default(tmp_path: Path) -> None:
    expected = {
        "cleaner",
        "condenser",
        "scrubber",
        "heartbeats",
        "token cleaner",
        "deadlines",
        "disk",
        "log files",
        "figures",
    }
    assert await names_kept(tmp_path) >= expected


async def test_each_can_be_switched_off(tmp_path: Path) -> None:
    switches = {
        "data_maintenance.messages.cleaner_enabled=false": {"cleaner", "condenser"},
        "heartbeat.enabled=false": {"heartbeats"},
        "personal_access_token.cleaner.enabled=false": {"token cleaner"},
        "data_maintenance.scrubber.enabled=false": {"scrubber"},
        "system.logging.file_enabled=false": {"log files"},
        "system.logging.sysinfo_print_interval=0": {"figures"},
    }
    usual = await names_kept(tmp_path / "usual")
    for number, (switch, names) in enumerate(switches.items()):
        assert await names_kept(tmp_path / str(number), switch) == usual - names


SETTINGS = {
    "system.topic.message_expiry": "100ms",
    "data_maintenance.messages.interval": "50ms",
    "personal_access_token.cleaner.interval": "50ms",
    "system.logging.sysinfo_print_interval": "1s",
    "system.logging.format": "json",
    "system.logging.path": "elsewhere/logs",
}


def test_a_server_cleans_up_and_tells_what_it_counted(tmp_path: Path) -> None:
    """Nothing but settings makes messages and tokens expire; the log has the facts as fields, in the place set."""

    def lines() -> list[dict[str, object]]:
        text = (server.data / "elsewhere" / "logs" / "courser.log").read_text()
        # The last line may be half written.
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def has(**facts: object) -> bool:
        return any(facts.items() <= line.items() for line in lines())

    with RunningServer(tmp_path, settings=SETTINGS) as server:
        with courser.connect_sync(f"iggy://iggy:iggy@{server.address}") as client:
            client.create_stream("shop")
            client.create_topic("shop/orders", partitions_count=1)
            client.create_topic("shop/books", partitions_count=1, message_expiry="never_expire")
            for topic in ("shop/orders", "shop/books"):
                client.send_messages(topic, partitioning=0, messages=["kept?"])
            client.create_personal_access_token("short", "1s")
            until(lambda: has(reason="expired", stream=0, topic=0, partition=0, messages=1), "the end of a message")
            until(lambda: has(message="expired tokens removed count=1", count=1), "the end of a token")
            until(lambda: has(segments_expired=1, segments_over_size=0), "a line of figures")
            assert client.get_personal_access_tokens() == []
            assert client.get_topic("shop/books").topic.message_count == 1
            assert client.get_topic("shop/orders").topic.message_count == 0
        assert server.stop() == 0
