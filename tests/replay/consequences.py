"""What a request has changed, on the real server and here: entered in the books."""

from tests.replay.bookkeeping import Books, Topic
from tests.replay.captures import Exchange
from tests.replay.fields import Kind, Record
from tests.replay.requests import Target, partition_of_send


def carry_out(
    books: Books, exchange: Exchange, target: Target, reply: Record, *, is_ours: bool, base_offset: int | None = None
) -> None:
    """Enter one exchange.

    Args:
        books: what is entered in.
        exchange: with what the real server did.
        target: what the request was about.
        reply: what the real server answered.
        is_ours: whether our server, too, did what it was asked for.
        base_offset: which offset our server confirmed, if it did.
    """
    was_theirs = exchange.channel == "ok"
    if exchange.command == "SendMessages":
        _send(books, target, base_offset, was_theirs=was_theirs, is_ours=is_ours)
    if not was_theirs:
        return
    if exchange.command == "DeleteUser" and target.user is not None:
        books.remove(("user", target.user))
    if exchange.command.startswith("Create") and not is_ours:
        for field in reply.fields():
            if field.kind is Kind.NEW_ID and field.key is not None:
                books.refuse(field.key)
    _change_stream(books, exchange.command, target, reply)
    if target.topic_key is not None:
        _change_topic(books, exchange.command, target, target.topic_key, reply)


def _send(books: Books, target: Target, base_offset: int | None, *, was_theirs: bool, is_ours: bool) -> None:
    topic = target.topic_key
    if topic is None or not (was_theirs or is_ours):
        return
    partition = partition_of_send(target, books)
    if partition is not None:
        offsets = books.partition(*topic, partition)
        # A repeat is confirmed with the offset that it got the first time, and not stored again.
        is_stored = is_ours and base_offset in {None, offsets.our_next}
        offsets.sent(target.count, was_accepted=was_theirs, is_accepted=is_stored)


def _change_stream(books: Books, command: str, target: Target, reply: Record) -> None:
    stream = target.stream
    match command:
        case "CreateStream":
            books.rename("stream", (), *_number_and_name(reply))
        case "UpdateStream" if stream is not None and target.name is not None:
            books.rename("stream", (), stream, target.name)
        case "DeleteStream" if stream is not None:
            books.remove(("stream", stream))
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
            books.remove(("topic", *topic))
        case "PurgeTopic":
            books.purge(*topic)
        case "CreatePartitions":
            books.set_partition_count(topic, books.partition_count(topic) + target.count)
        case "DeletePartitions":
            books.set_partition_count(topic, books.partition_count(topic) - target.count)
        case "CreateConsumerGroup":
            books.rename("group", topic, *_number_and_name(reply))
        case "DeleteConsumerGroup" if target.group is not None:
            books.remove(("group", *topic, target.group))


def _number_and_name(reply: Record) -> tuple[int, bytes]:
    return reply.field("id").value, reply.field("name").data[1:]
