"""Questions that all processes are asked again and again, for figures. One that is silent is not waited for."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from courser.processes.links import Links
from courser.processes.peer import Peer


class Question:
    """One question, and the last answer of each process."""

    def __init__(self, name: str, links: Links, patience: float, is_silent: Callable[[Peer], bool]) -> None:
        """Who has not answered after ``patience`` seconds and ``is_silent`` is late."""
        self._name = name
        self._links = links
        self._patience = patience
        self._is_silent = is_silent
        self._asked: dict[Peer, asyncio.Future[Any]] = {}
        """Not answered yet."""
        self.answers: dict[int, Any] = {}
        """By process: as of the last time that it was asked, or of an earlier one if it was late."""

    async def ask(self) -> frozenset[int]:
        """Ask all processes that are there. Return those that are late, whose answers count the next time."""
        asked = {self._ask(peer): peer for peer in self._links}
        waiting, late = set(asked), set[int]()
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=self._patience)
            silent = {answer for answer in waiting if self._is_silent(asked[answer])}
            late |= {asked[answer].number for answer in silent}
            waiting -= silent
        return frozenset(late)

    def forget(self, number: int) -> Any:
        """A process is gone. Returns its last answer; None if there is none."""
        return self.answers.pop(number, None)

    def _ask(self, peer: Peer) -> "asyncio.Future[Any]":
        if peer not in self._asked:
            # Not twice at a time: one that is late would have more and more to answer.
            answer = self._asked[peer] = peer.call(self._name)
            answer.add_done_callback(partial(self._answered, peer))
        return self._asked[peer]

    def _answered(self, peer: Peer, answer: "asyncio.Future[Any]") -> None:
        self._asked.pop(peer, None)
        if not answer.cancelled() and answer.exception() is None and self._links.peers.get(peer.number) is peer:
            self.answers[peer.number] = answer.result()
