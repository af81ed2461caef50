"""Search: which of a few messages match a filter.

Filters run on the event loop, so their work is bounded: a request looks at a limited part of the log and lets others
take their turn in between. A large message is not decoded: it may match, and the client decides.
"""

import asyncio
from collections.abc import Callable, Sequence

from courser.errors import CommandRejected, ErrorCode
from courser.records.frames import iterate_messages
from courser.records.message_filter import MessageFilter

SEARCH_COUNT = 2000
SEARCH_SIZE = 512 * 1024
"""Messages and bytes of batches that one request looks at, at most; a single message may be larger."""
_TURN_COUNT = 50
_TURN_SIZE = 64 * 1024
"""Messages and bytes between two turns of other connections: about half a millisecond."""
_DECODED_SIZE_MAX = 64 * 1024
"""Bytes: larger messages are not decoded."""


def filter_of(conditions: Sequence[str]) -> MessageFilter:
    """A filter from its conditions. Raises ``CommandRejected`` (3) if one is wrong."""
    try:
        return MessageFilter(conditions)
    except ValueError as error:
        raise CommandRejected(ErrorCode.INVALID_COMMAND, str(error)) from None


async def search(
    pieces: Sequence[memoryview], wanted: MessageFilter, check_present: Callable[[], None]
) -> tuple[int, int] | None:
    """The offset of the first message that may match, and the one after the last; None if no message matches.

    ``check_present`` is called after others took their turn. It raises if ``pieces`` are no longer ours.
    """
    first: int | None = None
    end = 0
    count = size = 0
    for offset, _, _, frame in iterate_messages(pieces):
        payload, headers = frame.payload, frame.user_headers
        count, size = count + 1, size + len(payload) + len(headers)
        if count > _TURN_COUNT or size > _TURN_SIZE:
            count = size = 0
            await asyncio.sleep(0)
            check_present()
        is_large = len(payload) + len(headers) > _DECODED_SIZE_MAX
        if is_large or wanted.matches(bytes(payload), bytes(headers)):
            first = offset if first is None else first
            end = offset + 1
    return None if first is None else (first, end)
