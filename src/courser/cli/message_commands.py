"""``courser message``: single requests for messages, compatible with the Iggy CLI."""

import click

from courser.cli.connecting import ask_server
from courser.cli.message_printing import MessagePrinter, Style
from courser.cli.naming import PARTITION, TopicPath, identifier, topic_argument
from courser.cli.options import option
from courser.cli.output import emit_deed
from courser.cli.payloads import payload_kind_option
from courser.cli.send_commands import send_command
from courser.cli.server_options import server_command
from courser.client.messages import PollingStrategy

__all__ = ["flush_command", "poll_command", "send_command"]


@server_command(
    "poll",
    "courser message poll demo/orders 0 --offset 0 --message-count 10",
    "courser m p demo orders 0 --next --consumer my-app --auto-commit -o jsonl",
)
@topic_argument(PARTITION)
@option("-m, --message-count COUNT", "The maximum number of messages.", type=click.IntRange(min=1), default=1)
@option("--offset NUMBER", "Start at this offset.", type=click.IntRange(min=0))
@option("-f, --first", "Start at the oldest message.")
@option("-l, --last", "Read the newest messages.")
@option("-n, --next", "Start after the stored offset of the consumer.", "is_next")
@option("-c, --consumer TEXT", "The name or id of the consumer for stored offsets.", default="0")
@option("-a, --auto-commit", "Store the offset of the last message.")
@option("-s, --show-headers", "Show headers (JSON and CSV always include them).")
@payload_kind_option
def poll_command(
    *,
    place: TopicPath,
    message_count: int,
    offset: int | None,
    first: bool,
    last: bool,
    is_next: bool,
    consumer: str,
    auto_commit: bool,
    show_headers: bool,
    payload_kind: str,
    output: str,
) -> None:
    """Read messages of one partition with a single request. Pass one of --offset, --first, --last and --next."""
    strategies = [
        strategy
        for strategy, is_wanted in (
            (PollingStrategy.Offset(offset or 0), offset is not None),
            (PollingStrategy.First(), first),
            (PollingStrategy.Last(), last),
            (PollingStrategy.Next(), is_next),
        )
        if is_wanted
    ]
    if len(strategies) != 1:
        raise click.UsageError("pass exactly one of --offset, --first, --last and --next")
    messages = ask_server(
        lambda client: client.poll_messages(
            *place.names,
            place.partition_id,
            strategies[0],
            message_count,
            auto_commit=auto_commit,
            consumer=identifier(consumer),
        ),
        place,
    )
    printer = MessagePrinter(Style(output, payload_kind, show_headers), with_partitions=False)
    printer.put(messages)
    printer.close()


@server_command("flush", "courser message flush demo/orders 0 --fsync")
@topic_argument(PARTITION)
@option("-f, --fsync", "Sync the messages to disk.", "is_synced")
def flush_command(*, place: TopicPath, is_synced: bool, output: str) -> None:
    """With --fsync, sync the messages of a partition to disk, so that they survive a power cut.

    Without --fsync this does nothing: messages are written to the file before they are acknowledged.
    """
    partition_id = place.partition_id or 0
    ask_server(lambda client: client.flush_messages(*place.names, partition_id, fsync=is_synced), place)
    record = {"stream": place.stream, "topic": place.topic, "partition_id": partition_id, "fsync": is_synced}
    emit_deed(f'flushed partition {partition_id} of "{place}"', record, output)
