"""Clients at work, each a thread: random requests from a seed, every one written down before and after."""

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from courser.api import commands as c
from courser.client.messages import PollingStrategy
from courser.errors import CourserError, ErrorCode
from courser.model.identifiers import Consumer, ConsumerKind
from courser.model.messaging import ToPartition
from courser.model.topic_options import TopicOptions
from tests.chaos.history import DestructionKind, Found, History, Operation, Outcome, Path
from tests.chaos.speakers import OwnSpeaker, Speaker, Told
from tests.sdk.programs.load import payload_of

STREAMS = ("alpha", "beta")
TOPICS = ("one", "two", "three")
EXPIRING = "brief"
"""A topic name whose messages expire."""
KEPT_GROUP = "kept"
"""A group that lives as long as its topic: its stored offsets are judged."""
PARTITION_COUNT_MAX = 4
PAUSE_MAX = 0.01
"""Seconds between two requests of a worker."""
PAUSE_WHILE_DOWN = 0.05
"""Seconds before a worker tries again to connect."""
LONGEST_REQUEST = 45.0
"""Seconds in which every request has ended, one way or the other."""

Declare = Callable[[History, Operation], None]


class Gate:
    """Lets workers through, or holds them between two requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = False
        self._is_over = False
        self._busy: set[str] = set()

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def close(self) -> set[str]:
        """Hold everybody; return who did not come to rest in time."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._busy, LONGEST_REQUEST)
            return set(self._busy)

    def finish(self) -> None:
        """Let everybody go home."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @contextmanager
    def turn(self, who: str) -> Iterator[bool]:
        """Wait for the gate to open; False: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._is_over)
            if not self._is_over:
                self._busy.add(who)
            is_over = self._is_over
        try:
            yield not is_over
        finally:
            with self._changed:
                self._busy.discard(who)
                self._changed.notify_all()

    def rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, seconds)


@dataclass
class Book:
    """The history, for threads."""

    history: History = field(default_factory=History)
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer_counts: dict[str, int] = field(default_factory=dict)

    def begin(self, who: str, what: str, path: Path, declare: Declare) -> Operation:
        with self.lock:
            operation = self.history.begin(who, what, path)
            declare(self.history, operation)
            return operation

    def end(self, operation: Operation, told: Told) -> None:
        with self.lock:
            self.history.end(operation, told.outcome, told.text, is_over=told.is_over)
            key = f"{operation.what} {told.outcome.value}"
            self.answer_counts[key] = self.answer_counts.get(key, 0) + 1
            if told.code == ErrorCode.ERROR:
                self.history.complain("defect", operation.path, f"error 1 is a defect of the server; {operation}")

    def count_of(self, answer: str) -> int:
        """How often requests of this kind had this outcome."""
        with self.lock:
            return self.answer_counts.get(answer, 0)

    def topics(self) -> list[tuple[Path, int]]:
        """Topics that may be there, with the partitions that they may have."""
        with self.lock:
            known = self.history.registers(lambda register: register.name == "topic" and register.path[0] in STREAMS)
            found = []
            for register in known:
                counts = [value for value in self.history.values(register.path, "topic") if isinstance(value, int)]
                if counts:
                    found.append((register.path, max(counts)))
            return found


class Worker(ABC):
    """One client in a thread of its own."""

    def __init__(self, name: str, seed: int, book: Book, gate: Gate, speaker: Speaker) -> None:
        self.name = name
        self.book = book
        self.gate = gate
        self.speaker = speaker
        self.source = random.Random(f"{name} {seed}")
        self.failure: BaseException | None = None
        self._number = 0
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(LONGEST_REQUEST)

    @abstractmethod
    def step(self) -> None:
        """Ask for something."""

    def ask(self, what: str, path: Path, command: c.Command, declare: Declare, payloads: Sequence[str] = ()) -> Told:
        """One request, in the book."""
        operation = self.book.begin(self.name, what, path, declare)
        told = Told(Outcome.UNKNOWN, "the client failed", is_over=False)
        try:
            told = self.speaker.ask(command, payloads)
        finally:
            self.book.end(operation, told)
        if told.was_not_asked:
            self.gate.rest(PAUSE_WHILE_DOWN)
        return told

    def new_messages(self, count: int) -> list[tuple[str, str]]:
        """Identities and payloads that nobody had before."""
        first, self._number = self._number, self._number + count
        numbers = range(first, first + count)
        return [(f"{self.name} {number}", payload_of(self.name, number)) for number in numbers]

    def any_partition(self) -> Path | None:
        topics = self.book.topics()
        if not topics:
            return None
        path, count = self.source.choice(topics)
        return (*path, self.source.randrange(count)) if count else None

    def _run(self) -> None:
        try:
            while True:
                with self.gate.turn(self.name) as goes_on:
                    if not goes_on:
                        return
                    self.step()
                self.gate.rest(self.source.uniform(0, PAUSE_MAX))
        except BaseException as failure:  # noqa: BLE001 - raised by the director
            self.failure = failure
        finally:
            self.speaker.close()


class Sender(Worker):
    """Sends to any partition."""

    def step(self) -> None:
        path = self.any_partition()
        if path is None:
            return
        messages = self.new_messages(self.source.choice((1, 1, 3, 10, 40)))
        identities, payloads = [identity for identity, _ in messages], [payload for _, payload in messages]
        stream, topic, partition = path
        command = c.SendMessages(stream, topic, ToPartition(int(partition)), [])
        sent = []

        def declare(history: History, operation: Operation) -> None:
            sent.extend(history.sends(operation, path, identities))

        told = self.ask("send", path, command, declare, payloads)
        if told.offset is not None:
            with self.book.lock:
                self.book.history.confirms(sent, told.offset)


class Reader(Worker):
    """Polls, stores offsets and deletes them, alone or as a member of groups."""

    speaker: OwnSpeaker

    def __init__(self, name: str, seed: int, book: Book, gate: Gate, speaker: OwnSpeaker, number: int) -> None:
        super().__init__(name, seed, book, gate, speaker)
        self._consumer = Consumer(ConsumerKind.CONSUMER, number)
        self._seen: dict[Path, int] = {}
        """The last offset of each partition that a poll has shown."""

    def step(self) -> None:
        path = self.any_partition()
        if path is None:
            return
        match self.source.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                self._poll(path)
            case 5 | 6:
                self._store(path, self._consumer, f"offset of {self._consumer.identifier}")
            case 7:
                self._store(path, Consumer(ConsumerKind.GROUP, KEPT_GROUP), f"offset of {KEPT_GROUP}")
            case 8:
                self._delete_offset(path)
            case _:
                self._change_membership(path)

    def _poll(self, path: Path) -> None:
        stream, topic, partition = path
        strategies = (
            PollingStrategy.First(),
            PollingStrategy.Last(),
            PollingStrategy.Offset(self.source.randrange(500)),
        )
        reading = self.book.begin(self.name, "poll", path, lambda *_: None)
        try:
            messages = self.speaker.client().poll_messages(
                str(stream),
                str(topic),
                int(partition),
                self.source.choice(strategies),
                self.source.choice((1, 50, 500)),
                auto_commit=False,
                consumer=self._consumer,
                skip_missing=True,
            )
        except CourserError as error:
            self.book.end(reading, Told(Outcome.REFUSED, str(error), code=int(error.code)))
            return
        found = [Found(m.offset, m.payload.decode(errors="replace"), m.timestamp) for m in messages]
        if found:
            self._seen[path] = found[-1].offset
        with self.book.lock:
            self.book.history.judge_glimpse(path, found, reading)
        self.book.end(reading, Told(Outcome.DONE, f"{len(found)} messages"))

    def _store(self, path: Path, consumer: Consumer, name: str) -> None:
        stream, topic, partition = path
        offset = self.source.randint(0, self._seen.get(path, 0))
        command = c.StoreConsumerOffset(consumer, stream, topic, int(partition), offset)
        what = f"store {offset} as {name}"
        self.ask(what, path, command, lambda h, o: h.writes(o, path, name, offset, is_position=True))

    def _delete_offset(self, path: Path) -> None:
        stream, topic, partition = path
        name = f"offset of {self._consumer.identifier}"
        command = c.DeleteConsumerOffset(self._consumer, stream, topic, int(partition))
        self.ask(f"delete {name}", path, command, lambda h, o: h.writes(o, path, name, None, is_position=True))

    def _change_membership(self, path: Path) -> None:
        stream, topic, _ = path
        group = self.source.choice((KEPT_GROUP, "g1", "g2"))
        kind = self.source.choice((c.JoinConsumerGroup, c.LeaveConsumerGroup))
        self.ask(kind.__name__, path[:2], kind(stream, topic, group), lambda *_: None)


class Operator(Worker):
    """Makes and destroys: streams of its own, their topics, partitions and groups."""

    def __init__(
        self, name: str, seed: int, book: Book, gate: Gate, speaker: Speaker, stream: str, *, with_purges: bool
    ) -> None:
        super().__init__(name, seed, book, gate, speaker)
        self._stream = stream
        self._with_purges = with_purges

    def step(self) -> None:
        topic = self.source.choice((*TOPICS, EXPIRING))
        stream_path, path = (self._stream,), (self._stream, topic)
        with self.book.lock:
            is_stream = self.book.history.values(stream_path, "stream") != {None}
            counts = self.book.history.values(path, "topic")
        if not is_stream:
            self.ask(
                "create stream",
                stream_path,
                c.CreateStream(self._stream),
                lambda h, o: h.writes(o, stream_path, "stream", 1),
            )
        elif counts == {None} or (None in counts and self.source.random() < 0.5):
            self._create_topic(path)
        else:
            self._change(path, counts)
        self.gate.rest(self.source.uniform(0, 0.2))

    def _create_topic(self, path: Path) -> None:
        count = self.source.randint(1, 3)
        options = TopicOptions(
            compression=1,
            durability=self.source.choice((None, None, "persisted")),
            message_expiry=5_000_000 if path[1] == EXPIRING else None,
        )
        command = c.CreateTopic(path[0], str(path[1]), count, options)

        def declare(history: History, operation: Operation) -> None:
            history.writes(operation, path, "topic", count)
            if path[1] == EXPIRING:
                history.let_vanish(path)

        if self.ask("create topic", path, command, declare).is_done:
            self._group(path, KEPT_GROUP, c.CreateConsumerGroup)

    def _change(self, path: Path, counts: set[object]) -> None:
        stream, topic = path
        dice = self.source.randrange(100)
        if dice < 30:
            self._group(path, self.source.choice(("g1", "g2")), self.source.choice(_GROUP_COMMANDS))
        elif dice < 60:
            self._purge(path, is_whole_stream=dice >= 55)
        elif dice < 72:
            self._destroy("delete topic", path, c.DeleteTopic(stream, topic), DestructionKind.DELETE)
        elif dice < 74:
            self._destroy("delete stream", path[:1], c.DeleteStream(stream), DestructionKind.DELETE)
        elif dice < 80:
            command = c.DeleteSegments(stream, topic, 0, 1)
            self._destroy("delete segments", (*path, 0), command, DestructionKind.TRIM)
        elif len(counts) == 1:
            (count,) = counts
            assert isinstance(count, int)
            if dice < 90 and count < PARTITION_COUNT_MAX:
                self._set_partitions(path, c.CreatePartitions(stream, topic, 1), count, count + 1)
            elif count > 1:
                self._set_partitions(path, c.DeletePartitions(stream, topic, 1), count, count - 1)

    def _purge(self, path: Path, *, is_whole_stream: bool) -> None:
        if not self._with_purges:
            return
        if is_whole_stream:
            self._destroy("purge stream", path[:1], c.PurgeStream(path[0]), DestructionKind.PURGE)
        else:
            self._destroy("purge topic", path, c.PurgeTopic(*path), DestructionKind.PURGE)

    def _destroy(self, what: str, path: Path, command: c.Command, kind: DestructionKind) -> None:
        self.ask(what, path, command, lambda h, o: h.destroys(o, path, kind))

    def _set_partitions(self, path: Path, command: c.Command, before: int, after: int) -> None:
        def declare(history: History, operation: Operation) -> None:
            history.writes(operation, path, "topic", after)
            for partition in range(after, before):
                history.destroys(operation, (*path, partition), DestructionKind.DELETE)

        self.ask(f"set {after} partitions", path, command, declare)

    def _group(self, path: Path, group: str, kind: type[c.CreateConsumerGroup | c.DeleteConsumerGroup]) -> None:
        value = 1 if kind is c.CreateConsumerGroup else None
        command = kind(path[0], path[1], group)
        self.ask(f"{kind.__name__} {group}", path, command, lambda h, o: h.writes(o, path, f"group {group}", value))


_GROUP_COMMANDS = (c.CreateConsumerGroup, c.DeleteConsumerGroup)


class Registrar(Worker):
    """Makes, changes and removes users."""

    def step(self) -> None:
        name = self.source.choice(("guest-1", "guest-2", "guest-3"))
        register = f"user {name}"
        with self.book.lock:
            passwords = self.book.history.values((), register)
        new = f"password {self.source.randrange(10**6)}"
        if passwords == {None}:
            command: c.Command = c.CreateUser(name, new, True, None)
            self.ask(f"create {register}", (), command, lambda h, o: h.writes(o, (), register, new))
        elif len(passwords) == 1 and self.source.random() < 0.5:
            (current,) = passwords
            command = c.ChangePassword(name, str(current), new)
            self.ask(f"change password of {name}", (), command, lambda h, o: h.writes(o, (), register, new))
        else:
            command = c.DeleteUser(name)
            self.ask(f"delete {register}", (), command, lambda h, o: h.writes(o, (), register, None))
        self.gate.rest(self.source.uniform(0.2, 1.0))
