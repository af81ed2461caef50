"""The checker of the chaos run finds what is planted, and nothing where nothing is wrong."""

import pytest

from tests.chaos.history import DestructionKind, Found, History, Message, Operation, Outcome, Path
from tests.sdk.programs.load import payload_of

PARTITION: Path = ("s", "t", 0)
TOPIC: Path = ("s", "t")


class Scene:
    """A history, told in short."""

    def __init__(self) -> None:
        self.history = History()
        self._number = 0

    def send(self, outcome: Outcome = Outcome.DONE, *, offset: int | None = None, path: Path = PARTITION) -> Message:
        operation = self.history.begin("producer", "send", path)
        (message,) = self.history.sends(operation, path, [f"p {self._number}"])
        self._number += 1
        self.history.end(operation, outcome)
        if offset is not None:
            self.history.confirms([message], offset)
        return message

    def change(
        self, value: object, outcome: Outcome = Outcome.DONE, *, is_over: bool = True, path: Path = TOPIC
    ) -> Operation:
        operation = self.history.begin("operator", "change", path)
        self.history.writes(operation, path, "topic", value)
        self.history.end(operation, outcome, is_over=is_over)
        return operation

    def destroy(
        self, kind: DestructionKind, outcome: Outcome = Outcome.DONE, *, path: Path = TOPIC, is_over: bool = True
    ) -> None:
        operation = self.history.begin("operator", kind.value, path)
        self.history.destroys(operation, path, kind)
        self.history.end(operation, outcome, is_over=is_over)

    def judge(self, *found: tuple[int, Message]) -> list[str]:
        """Judge the partition, and return the kinds of violations that came of it."""
        count = len(self.history.violations)
        self.history.judge_partition(PARTITION, [seen(message, offset) for offset, message in found])
        self.history.finish_judgement()
        return [violation.kind for violation in self.history.violations[count:]]


def seen(message: Message, offset: int, timestamp: int = 0) -> Found:
    name, number = message.identity.split()
    return Found(offset, payload_of(name, int(number)), timestamp)


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- messages -----------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_there(scene: Scene) -> None:
    first, second = scene.send(offset=0), scene.send()
    assert scene.judge((0, first), (1, second)) == []


def test_a_lost_message(scene: Scene) -> None:
    first, second = scene.send(offset=0), scene.send(offset=1)
    assert scene.judge((1, second)) == ["lost"]
    assert "p 0 at offset 0" in str(scene.history.violations[0])
    assert first.found_at == 0


def test_a_message_in_doubt_is_there_or_not(scene: Scene) -> None:
    there, _ = scene.send(Outcome.UNKNOWN), scene.send(Outcome.UNKNOWN)
    assert scene.judge((0, there)) == []


def test_what_was_found_once_must_stay(scene: Scene) -> None:
    message = scene.send(Outcome.UNKNOWN)
    assert scene.judge((0, message)) == []
    assert scene.judge() == ["lost"]


def test_what_was_not_found_once_must_stay_away(scene: Scene) -> None:
    message = scene.send(Outcome.UNKNOWN)
    assert scene.judge() == []
    assert scene.judge((0, message)) == ["resurrected"]


def test_a_refused_message_that_is_there(scene: Scene) -> None:
    assert scene.judge((0, scene.send(Outcome.REFUSED))) == ["refused"]


def test_a_message_that_is_there_twice(scene: Scene) -> None:
    message = scene.send()
    assert "duplicate" in scene.judge((0, message), (1, message))


def test_a_message_at_another_offset_than_confirmed(scene: Scene) -> None:
    assert scene.judge((5, scene.send(offset=4))) == ["duplicate"]


def test_an_offset_that_is_handed_out_again(scene: Scene) -> None:
    lost, other = scene.send(offset=0), scene.send()
    assert set(scene.judge((0, other))) == {"lost", "reused"}
    assert lost.offset == other.offset == 0


def test_an_offset_that_is_confirmed_to_two(scene: Scene) -> None:
    scene.send(offset=3)
    scene.send(offset=3)
    assert [violation.kind for violation in scene.history.violations] == ["reused"]


def test_numbering_begins_anew_with_a_new_topic_and_not_with_a_purge(scene: Scene) -> None:
    scene.send(offset=0)
    scene.destroy(DestructionKind.DELETE)
    scene.send(offset=0)
    assert not scene.history.violations
    scene.destroy(DestructionKind.PURGE)
    scene.send(offset=0)
    assert [violation.kind for violation in scene.history.violations] == ["reused"]


def test_an_altered_message_and_one_from_nowhere(scene: Scene) -> None:
    scene.history.judge_partition(PARTITION, [Found(0, "p 0 y"), Found(1, "nonsense"), Found(2, payload_of("p", 9))])
    assert [violation.kind for violation in scene.history.violations] == ["altered", "altered", "stranger"]


def test_a_message_in_another_partition(scene: Scene) -> None:
    assert scene.judge((0, scene.send(path=("s", "t", 1)))) == ["stranger"]


def test_time_that_goes_back(scene: Scene) -> None:
    first, second = scene.send(), scene.send()
    scene.history.judge_partition(PARTITION, [seen(first, 0, 10), seen(second, 1, 9)])
    assert [violation.kind for violation in scene.history.violations] == ["order"]


# --- purges and deletions -----------------------------------------------------------------------------


def test_a_purge_takes_what_was_there(scene: Scene) -> None:
    message = scene.send()
    scene.destroy(DestructionKind.PURGE)
    assert scene.judge() == []
    assert scene.judge((0, message)) == ["resurrected"]


def test_a_purge_that_did_not_happen(scene: Scene) -> None:
    message = scene.send()
    scene.destroy(DestructionKind.PURGE)
    assert scene.judge((0, message)) == ["resurrected"]


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.UNKNOWN])
def test_a_purge_never_takes_what_was_sent_behind_its_answer(scene: Scene, outcome: Outcome) -> None:
    scene.destroy(DestructionKind.PURGE, outcome)
    scene.send()
    assert scene.judge() == ["lost"]


def test_a_purge_without_an_answer_may_take_what_is_sent_until_the_server_is_gone(scene: Scene) -> None:
    scene.destroy(DestructionKind.PURGE, Outcome.UNKNOWN, is_over=False)
    scene.send()
    scene.history.server_ended()
    later = scene.send()
    assert scene.judge((1, later)) == []


def test_a_purge_in_doubt_takes_all_or_nothing_later_no_more(scene: Scene) -> None:
    message = scene.send()
    scene.destroy(DestructionKind.PURGE, Outcome.UNKNOWN)
    assert scene.judge((0, message)) == []
    assert scene.judge() == ["lost"], "it was found after the purge: a restart must not carry it out"


def test_a_refused_purge_takes_nothing(scene: Scene) -> None:
    scene.send()
    scene.destroy(DestructionKind.PURGE, Outcome.REFUSED)
    assert scene.judge() == ["lost"]


def test_a_trim_takes_some(scene: Scene) -> None:
    _, newer = scene.send(offset=0), scene.send(offset=1)
    scene.destroy(DestructionKind.TRIM)
    assert scene.judge((1, newer)) == []


def test_a_topic_whose_messages_expire(scene: Scene) -> None:
    scene.history.let_vanish(TOPIC)
    message = scene.send(offset=0)
    assert scene.judge() == []
    assert scene.judge((0, message)) == ["resurrected"]


def test_time_goes_back_where_the_clock_was_set_back_and_nowhere_else(scene: Scene) -> None:
    minutes, day = 60_000_000, 86_400_000_000
    messages = [scene.send() for _ in range(4)]

    def judge(*times: int) -> list[str]:
        count = len(scene.history.violations)
        found = [
            seen(message, offset, time) for offset, (message, time) in enumerate(zip(messages, times, strict=True))
        ]
        scene.history.judge_partition(PARTITION, found)
        return [violation.kind for violation in scene.history.violations[count:]]

    assert judge(day, day, 0, 1) == ["order"]
    scene.history.clock_set()
    assert judge(day, day, 0, 1) == []
    assert judge(2 * day, day, 0, 1) == ["order"], "it was set once"
    assert judge(minutes, 0, 0, 1) == ["order"], "so little is waited for"


# --- registers ----------------------------------------------------------------------------------------


def judge_topic(scene: Scene, value: object) -> list[str]:
    count = len(scene.history.violations)
    scene.history.judge_register(TOPIC, "topic", value)
    scene.history.finish_judgement()
    return [violation.kind for violation in scene.history.violations[count:]]


def test_a_register_holds_its_last_value(scene: Scene) -> None:
    scene.change(1)
    scene.change(2)
    assert judge_topic(scene, 2) == []
    assert judge_topic(scene, 1) == ["wrong"]


def test_a_lost_topic(scene: Scene) -> None:
    scene.change(1)
    assert judge_topic(scene, None) == ["lost"]


def test_a_resurrected_topic(scene: Scene) -> None:
    scene.change(1)
    scene.destroy(DestructionKind.DELETE)
    assert judge_topic(scene, 1) == ["resurrected"]


def test_a_deletion_in_doubt_is_settled_by_the_first_reading(scene: Scene) -> None:
    scene.change(1)
    scene.destroy(DestructionKind.DELETE, Outcome.UNKNOWN)
    assert judge_topic(scene, None) == []
    assert judge_topic(scene, 1) == ["resurrected"]


def test_writes_in_doubt_are_all_possible(scene: Scene) -> None:
    scene.change(1)
    scene.change(2, Outcome.UNKNOWN)
    scene.change(3, Outcome.UNKNOWN, is_over=False)
    assert scene.history.values(TOPIC, "topic") == {1, 2, 3}
    scene.change(4)
    assert scene.history.values(TOPIC, "topic") == {3, 4}, "3 was not answered: the server may still be at it"
    scene.history.server_ended()
    scene.change(5)
    assert judge_topic(scene, 3) == ["wrong"]


def test_a_stream_takes_its_topics_with_it(scene: Scene) -> None:
    scene.change(1)
    scene.destroy(DestructionKind.DELETE, path=("s",))
    assert judge_topic(scene, None) == []


def test_a_purge_takes_stored_offsets_and_leaves_the_topic(scene: Scene) -> None:
    scene.change(1)
    operation = scene.history.begin("consumer", "store", PARTITION)
    scene.history.writes(operation, PARTITION, "offset", 7, is_position=True)
    scene.history.end(operation, Outcome.DONE)
    assert scene.history.values(PARTITION, "offset") == {7}
    scene.destroy(DestructionKind.PURGE)
    assert scene.history.values(PARTITION, "offset") == {None}
    assert scene.history.values(TOPIC, "topic") == {1}


def test_a_failed_purge_may_take_stored_offsets_late_and_only_until_the_next_reading(scene: Scene) -> None:
    history = scene.history
    scene.destroy(DestructionKind.PURGE, Outcome.UNKNOWN)
    for value in (7, 8):
        operation = history.begin("consumer", "store", PARTITION)
        history.writes(operation, PARTITION, "offset", value, is_position=True)
        history.end(operation, Outcome.DONE)
    assert history.values(PARTITION, "offset") == {8, None}
    history.judge_register(PARTITION, "offset", 8)
    history.finish_judgement()
    assert history.values(PARTITION, "offset") == {8}


def test_a_failed_purge_never_takes_offsets_of_messages_that_were_sent_behind_its_answer(scene: Scene) -> None:
    history = scene.history
    scene.send(offset=7)
    scene.destroy(DestructionKind.PURGE, Outcome.UNKNOWN)
    scene.send(offset=8)
    for value, allowed in ((7, {7, None}), (8, {8})):
        operation = history.begin("consumer", "store", PARTITION)
        history.writes(operation, PARTITION, "offset", value, is_position=True)
        history.end(operation, Outcome.DONE)
        assert history.values(PARTITION, "offset") == allowed


def test_a_register_that_nobody_wrote(scene: Scene) -> None:
    assert judge_topic(scene, 1) == ["stranger"]


# --- staged batches -----------------------------------------------------------------------------------


def publish(scene: Scene, outcome: Outcome, count: int = 3) -> list[Message]:
    operation = scene.history.begin("stager", "publish", ())
    messages = scene.history.sends(operation, PARTITION, [f"q {number}" for number in range(count)])
    scene.history.publishes(operation, "sink", 1, messages)
    scene.history.end(operation, outcome)
    return messages


def test_a_publish_is_there_as_a_whole_or_not_at_all(scene: Scene) -> None:
    messages = publish(scene, Outcome.UNKNOWN)
    assert scene.judge(*enumerate(messages)) == []
    other = Scene()
    publish(other, Outcome.UNKNOWN)
    assert other.judge() == []


def test_a_torn_publish(scene: Scene) -> None:
    messages = publish(scene, Outcome.UNKNOWN)
    assert scene.judge(*enumerate(messages[:2])) == ["torn"]


def test_a_publish_that_is_there_twice(scene: Scene) -> None:
    messages = publish(scene, Outcome.DONE)
    assert scene.judge(*enumerate(messages + messages)) == ["duplicate"] * 6


def test_a_lost_publish(scene: Scene) -> None:
    publish(scene, Outcome.DONE)
    assert scene.judge() == ["lost"] * 3


def test_what_the_server_calls_published_must_be_there(scene: Scene) -> None:
    publish(scene, Outcome.UNKNOWN)
    scene.history.judge_publishes({"sink": 1})
    assert scene.judge() == ["lost"] * 3


def test_what_the_server_does_not_call_published_must_not_be_there(scene: Scene) -> None:
    messages = publish(scene, Outcome.UNKNOWN)
    scene.history.judge_publishes({"sink": 0})
    assert scene.judge(*enumerate(messages)) == ["refused"] * 3


def test_a_publish_asked_for_again_is_the_same_one(scene: Scene) -> None:
    operation = scene.history.begin("stager", "publish", ())
    messages = scene.history.sends(operation, PARTITION, ["q 0"])
    scene.history.publishes(operation, "sink", 1, messages)
    scene.history.end(operation, Outcome.UNKNOWN)
    scene.history.resume(operation)
    scene.history.end(operation, Outcome.DONE)
    assert scene.judge((0, messages[0])) == []


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.UNKNOWN])
def test_a_purge_in_the_middle_of_a_publish_does_not_move_it(scene: Scene, outcome: Outcome) -> None:
    history = scene.history
    operation = history.begin("stager", "publish", ())
    messages = history.sends(operation, PARTITION, ["q 0"])
    history.publishes(operation, "sink", 1, messages)
    history.judge_glimpse(PARTITION, [seen(messages[0], 0)], history.begin("reader", "poll", PARTITION))
    scene.destroy(DestructionKind.PURGE, outcome)
    history.end(operation, Outcome.DONE)
    assert scene.judge((5, messages[0])) == ["duplicate"]


@pytest.mark.parametrize(("count", "violations"), [(0, []), (1, ["torn"]), (2, [])])
def test_a_purge_in_the_middle_of_a_publish_takes_all_of_it_or_nothing(
    scene: Scene, count: int, violations: list[str]
) -> None:
    history = scene.history
    operation = history.begin("stager", "publish", ())
    messages = history.sends(operation, PARTITION, ["q 0", "q 1"])
    (elsewhere,) = history.sends(operation, ("s", "u", 0), ["q 2"])
    history.publishes(operation, "sink", 1, [*messages, elsewhere])
    scene.destroy(DestructionKind.PURGE)
    history.end(operation, Outcome.DONE)
    history.judge_partition(("s", "u", 0), [seen(elsewhere, 0)])
    assert scene.judge(*enumerate(messages[:count])) == violations


def test_a_publish_without_a_purge_does_not_move(scene: Scene) -> None:
    messages = publish(scene, Outcome.DONE, count=1)
    reading = scene.history.begin("reader", "poll", PARTITION)
    scene.history.judge_glimpse(PARTITION, [seen(messages[0], 0)], reading)
    scene.destroy(DestructionKind.TRIM)
    assert scene.judge((5, messages[0])) == ["duplicate"]


# --- readings of those who are at work ----------------------------------------------------------------


def test_a_glimpse_may_miss_messages_and_must_not_show_wrong_ones(scene: Scene) -> None:
    gone, _ = scene.send(), scene.send()
    scene.destroy(DestructionKind.PURGE)
    there = scene.send(offset=2)
    reading = scene.history.begin("reader", "poll", PARTITION)
    scene.history.judge_glimpse(PARTITION, [seen(there, 2)], reading)
    assert not scene.history.violations
    scene.history.judge_glimpse(PARTITION, [seen(gone, 0)], reading)
    assert [violation.kind for violation in scene.history.violations] == ["resurrected"]


def test_a_glimpse_during_a_purge_may_show_either(scene: Scene) -> None:
    message = scene.send()
    reading = scene.history.begin("reader", "poll", PARTITION)
    scene.destroy(DestructionKind.PURGE)
    scene.history.judge_glimpse(PARTITION, [seen(message, 0)], reading)
    assert not scene.history.violations


def test_the_story_of_a_place(scene: Scene) -> None:
    scene.send()
    scene.send(path=("other", "t", 0))
    scene.destroy(DestructionKind.PURGE, path=("s",))
    assert len(scene.history.story(PARTITION)) == 2
