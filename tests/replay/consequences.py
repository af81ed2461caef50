"""What a request has changed, on the real server and here: entered in the books."""

from tests.replay.bookkeeping import Books, Topic
from tests.replay.captures import Exchange
from tests.replay.fields import Record
from tests.replay.requests import Target, partition_of_send


def carry_out(books: Books, exchange: Exchange, target: Target, reply: Record, *, is_ours: bool) -> None:
    """Enter one exchange. ``is_ours`` says whether our server, too, did what it was asked for."""
    was_theirs = exchange.channel == "ok"
    if exchange.command == "SendMessages":
        _send(books, target, was_theirs=was_theirs, is_ours=is_ours)
    if not was_theirs:
        return
    _change_stream(books, exchange.command, target, reply)
    if target.topic_key is not None:
        _change_topic(books, exchange.command, target, target.topic_key, reply)


def _send(books: Books, target: Target, *, was_theirs: bool, is_ours: bool) -> None:
    topic = target.topic_key
    if topic is None or not (was_theirs or is_ours):
        return
    partition = partition_of_send(target, books)
    if partition is not None:
        offsets = books.partition(*topic, partition)
        offsets.sent(target.count, was_accepted=was_theirs, is_accepted=is_ours)


def _change_stream(books: Books, command: str, target: Target, reply: Record) -> None:
    stream = target.stream
    match command:
        case "CreateStream":
            books.rename("stream", (), *_number_and_name(reply))
        case "UpdateStream" if stream is not None and target.name is not None:
            books.rename("stream", (), stream, target.name)
        case "DeleteStream" if stream is not None:
            books.forget_name("stream", (), stream)
        case "PurgeStream" if stream is not None:
            books.purge(stream, None)
        case "CreateTopic" if stream is not None:
            number, name = _number_and_name(reply)
            books.rename("topic", (stream,), number, name)
            books.set_partition_count((stream, number), target.count)


def _change_topic(books: Books, command: str, target: Target, topic: Topic, reply: Record) -> None:
    match command:
        case "UpdateTopic" if target.name is not None:
            books.rename("topic", topic[:1], topic[1], target.name)
        case "DeleteTopic":
            books.forget_name("topic", topic[:1], topic[1])
        case "PurgeTopic":
            books.purge(*topic)
        case "CreatePartitions":
            books.set_partition_count(topic, books.partition_count(topic) + target.count)
        case "DeletePartitions":
            books.set_partition_count(topic, books.partition_count(topic) - target.count)
        case "CreateConsumerGroup":
            books.rename("group", topic, *_number_and_name(reply))
        case "DeleteConsumerGroup" if target.group is not None:
            books.forget_name("group", topic, target.group)


def _number_and_name(reply: Record) -> tuple[int, bytes]:
    return reply.field("id").value, reply.field("name").data[1:]
