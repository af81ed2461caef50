"""Large replies: the event loop is told when much has come, and never waits for more than there is."""

import asyncio
import socket
from typing import Any

import pytest

from courser.client.receiving import ReadPatience


class Line(asyncio.BaseTransport):
    """A transport over a socket, encrypted or not."""

    def __init__(self, line: socket.socket, *, is_encrypted: bool = False) -> None:
        super().__init__({"socket": line, "sslcontext": object() if is_encrypted else None})


def wait_size(line: socket.socket) -> int:
    return line.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


@pytest.fixture
def line() -> Any:
    with socket.socket() as line:
        yield line


@pytest.mark.parametrize(
    ("expected", "waited_for"), [(5, 5), (300_000, 300_000), (524_288, 524_288), (50_000_000, 524_288), (0, 1)]
)
def test_what_is_still_to_come_is_waited_for_up_to_a_limit(line: socket.socket, expected: int, waited_for: int) -> None:
    patience = ReadPatience(Line(line))
    patience.expect(700_000)
    patience.expect(expected)
    assert wait_size(line) == waited_for


def test_nothing_is_waited_for_before_and_after(line: socket.socket) -> None:
    patience = ReadPatience(Line(line))
    assert wait_size(line) == 1
    for left in (600_000, 100_000, 0):
        patience.expect(left)
    assert wait_size(line) == 1


def test_encrypted_bytes_are_not_counted(line: socket.socket) -> None:
    ReadPatience(Line(line, is_encrypted=True)).expect(700_000)
    assert wait_size(line) == 1
