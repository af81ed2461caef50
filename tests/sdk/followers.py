"""A consumer whose server dies now and then, and the supervisor that every such program needs."""

import itertools
from types import TracebackType
from typing import Any, Self

from tests.sdk.conversations import Conversation

STALL = 3.0
"""Seconds without the message that is waited for, until a follower is replaced."""


class Follower:
    """A member of a group of its own in a process of its own, replaced when it no longer polls.

    After a lost connection, the consumers of the SDK make a new one, log in and join again, but one that loses the race
    between its poll and its events then sends nothing but heartbeats for ever. A supervisor would restart the program;
    so does this one. The successor begins where the group's stored offset says.
    """

    def __init__(self, release: str, address: str, place: dict[str, str], options: str = "") -> None:
        self._release = release
        self.group = f"group-{release}"
        self._address = address
        self._place = place
        self._options = options
        self._children = [self._start()]

    def follow(self, payloads: set[str]) -> None:
        """Until it has been given all of these, by a successor if need be."""
        if not self._children[-1].is_given(payloads - set(self.given), STALL):
            self._children[-1].kill()
            missing = payloads - set(self.given)
            self._children.append(self._start())
            self._children[-1].wait_until_given(missing)

    @property
    def given(self) -> list[str]:
        """What it and its successors were given, in order."""
        return [payload for child in self._children for payload in child.given]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it and its successors reported, in order."""
        return list(itertools.chain.from_iterable(child.events for child in self._children))

    @property
    def replaced_count(self) -> int:
        """How many successors there were."""
        return len(self._children) - 1

    def _start(self) -> Conversation:
        child = Conversation(self._release, self._address)
        child.ask("connect", client="own", lasting=True, options=self._options)
        child.ask("consume", client="own", name="follower", group=self.group, **self._place)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.close()
