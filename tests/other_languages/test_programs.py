"""A program in each language does everything that its SDK can do, and exchanges messages with the Python SDK."""

from pathlib import Path
from typing import Any

import pytest

from tests.other_languages.programs import PROGRAMS, Program
from tests.sdk.conversations import Conversation
from tests.servers import RunningServer

PLACE: dict[str, Any] = {"client": "own", "stream": "exchange", "topic": "messages"}
FROM_PYTHON = [
    ["plain", "7", {}],
    ["with a header", str((1 << 128) - 1), {"key": "value"}],
    ["with two", str(1 << 64), {"first": "ü", "second": "2"}],
]
"""Payload, id and headers of the messages in partition 0. The programs know them."""
LOSES_IDS = {("java", "http")}
"""Its SDK sends ids where neither Iggy nor Courser looks for them."""
ALL_TRANSPORTS = {
    f"{transport}.{key}": value
    for transport in ("http", "websocket", "quic")
    for key, value in (("enabled", "true"), ("address", "127.0.0.1:0"))
}
BUILD_TIMEOUT = 3600.0
"""Seconds, in place of those in pyproject.toml: half an hour if a slow machine compiles an SDK in Rust for the first
time."""

pytestmark = [pytest.mark.languages, pytest.mark.timeout(BUILD_TIMEOUT)]


CASES = [
    pytest.param(program, transport, id=f"{program}-{transport}")
    for program in PROGRAMS
    for transport in program.transports
]


@pytest.mark.parametrize(("program", "transport"), CASES)
def test_what_a_program_does_with_iggy_it_does_with_courser(program: Program, transport: str, tmp_path: Path) -> None:
    if program.missing_tools:
        missing, others = " and ".join(program.missing_tools), f"ARGS='-k \"not {program.language}\"'"
        pytest.fail(f"{missing} not found: install it, or run make test-languages {others}", pytrace=False)
    program.make()
    with (
        RunningServer(tmp_path / "server", settings=ALL_TRANSPORTS) as server,
        Conversation("0.9.0", server.address) as python,
    ):
        python.ask("connect", client="own")
        python.ask("create", partitions=2, **PLACE)
        python.ask("send_rich", messages=FROM_PYTHON, **PLACE)

        lines = program.lines(server.address_of(transport), transport)

        checks = tuple(line.removeprefix("ok ") for line in lines if line.startswith("ok "))
        assert checks == program.checks_over(transport)
        sent = python.ask("poll", index=1, **PLACE)
        assert [payload for _, payload, _ in sent] == ["plain", "with headers", "x" * 1_000_000]
        assert sent[0][2] == "7" or (program.language, transport) in LOSES_IDS
        assert python.ask("headers", index=1, **PLACE) == [{}, {"key": "value", "count": 42}, {}]
