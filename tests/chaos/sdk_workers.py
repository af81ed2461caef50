"""Programs that use the official SDK, one for each release: they send while an episode lasts."""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tests.chaos.history import History, Message, Operation, Outcome, Path
from tests.chaos.speakers import Told
from tests.chaos.workers import Book
from tests.sdk.conversations import Conversation

SDK_STREAM, SDK_TOPIC = "sdk", "t"
PAUSE = 0.02
"""Seconds between two sends of a program."""


class SdkProducers:
    """One partition for each release. Nothing else touches their stream while they send."""

    def __init__(self, releases: tuple[str, ...], address: str, book: Book) -> None:
        self._releases = releases
        self._address = address
        self._book = book
        self._stack = ExitStack()
        self._children: list[Conversation] = []
        self._begun: list[tuple[Conversation, str, Path, Operation]] = []

    def __enter__(self) -> Self:
        if not self._releases:
            return self
        self._children = [self._stack.enter_context(Conversation(release, self._address)) for release in self._releases]
        self._children[-1].ask("connect", client="root")
        self._children[-1].ask(
            "create", client="root", stream=SDK_STREAM, topic=SDK_TOPIC, partitions=len(self._releases)
        )

        def declare(history: History, operation: Operation) -> None:
            history.writes(operation, (SDK_STREAM,), "stream", 1)
            history.writes(operation, (SDK_STREAM, SDK_TOPIC), "topic", len(self._releases))

        self._book.end(self._book.begin("sdk", "create", (SDK_STREAM,), declare), Told(Outcome.DONE))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin(self, number: int) -> None:
        """Let them send, under names of this episode."""
        for index, child in enumerate(self._children):
            name, path = f"sdk-{child.release}-{number}", (SDK_STREAM, SDK_TOPIC, index)
            operation = self._book.begin(name, "send a lot", path, lambda *_: None)
            child.events.clear()
            place = {"stream": SDK_STREAM, "topic": SDK_TOPIC, "index": index}
            child.ask("produce", name=name, batch=1 + 2 * index, pause=PAUSE, **place)
            self._begun.append((child, name, path, operation))

    def end(self) -> None:
        """Let them come to an end, and write down what they were told. The server must be up."""
        for child, name, path, operation in self._begun:
            child.ask("stop", name=name)
            with self._book.lock:
                self._write_down(child, name, path, operation.begin)
            self._book.end(operation, Told(Outcome.DONE))
        self._begun.clear()

    def _write_down(self, child: Conversation, name: str, path: Path, begin: int) -> None:
        """Their reports come late: each send lasted as long as the episode, as far as anybody knows."""
        history = self._book.history
        attempts: dict[int, list[Message]] = {}
        for event in child.events:
            if event.get("by") != name:
                continue
            numbers = event["numbers"]
            if event["event"] == "attempt":
                operation = history.begin(name, "send", path)
                operation.begin = begin
                attempts[numbers[0]] = history.sends(operation, path, [f"{name} {number}" for number in numbers])
            elif messages := attempts.get(numbers[0]):
                is_done = event["event"] == "ack"
                history.end(messages[0].operation, Outcome.DONE if is_done else Outcome.UNKNOWN, event.get("error", ""))
                if is_done and event["offset"] is not None:
                    history.confirms(messages, event["offset"])
