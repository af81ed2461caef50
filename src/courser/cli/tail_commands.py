"""``courser tail``: print the messages of a topic, from any position, to its end or as they arrive."""

import re
from collections.abc import AsyncIterator

import click

from courser.cli.connecting import ask_server
from courser.cli.lazy import completed_by
from courser.cli.message_printing import MessagePrinter, Style, check_template
from courser.cli.naming import TopicPath, identifier, sought, topic_argument
from courser.cli.options import option
from courser.cli.payloads import payload_kind_option
from courser.cli.quantity_words import LATEST, START
from courser.cli.server_options import SERVER_EXITS, server_command
from courser.cli.tailing import TailRequest, read, read_as_member
from courser.cli.terminal import say
from courser.client.client import Client
from courser.client.messages import Message, PollingStrategy
from courser.records.message_filter import MessageFilter

_USUAL_COUNT = 10


_COMPARISON = re.compile(r"[a-zA-Z_][\w.\[\]]*\s*(=|!=|~|!~|<|>)")
"""The beginning of a condition, but for the dot."""


def _filter(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> MessageFilter | None:
    try:
        return MessageFilter(value) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@server_command(
    "tail",
    "courser tail demo/orders",
    "courser tail demo/orders --from earliest --follow",
    "courser tail demo/orders --from 2026-01-31T12:00 -o jsonl",
    "courser tail demo/orders --from 10m --format '{offset} {payload}'",
    "courser tail demo/orders --from 1d --filter key=ann --filter '.total > 9'",
    "courser tail demo/orders --follow --filter header.source=shop",
    "courser tail demo/orders --from earliest --raw | gzip > orders.gz",
    exits=f"{SERVER_EXITS[:-1]}, 130 interrupted.",
)
@topic_argument()
@option("-f, --follow", "Print new messages as they arrive, until Ctrl-C.", "is_followed")
@option(
    "--from WHERE",
    "earliest, latest, an offset, a time (2026-01-31T12:00, 12:00; local unless it has a zone), or how long ago (10m).",
    "start",
    type=START,
)
@option("-n, --last N", "Print the newest N messages. Default: 10.", type=click.IntRange(min=1))
@option("-e, --exit-at-end", "Stop at the end of the topic. This is the default without --follow.")
@option(
    "-p, --partition NUMBER",
    "Read only this partition. Default: all partitions, merged by time.",
    type=click.IntRange(min=0),
)
@option(
    "-g, --group GROUP",
    "Read as a member of this consumer group, and commit the printed messages.",
    shell_complete=completed_by("complete_group"),
)
@option(
    "--filter CONDITION",
    "Print only messages that match: a text in the payload, or text, key, header.NAME or a JSON path such as "
    ".customer.name, compared by = != ~ (contains) !~ < <= > >= with a value. May be repeated: all must match.",
    "wanted",
    multiple=True,
    callback=_filter,
)
@option("--limit N", "Stop after N messages.", type=click.IntRange(min=1))
@payload_kind_option
@option("--headers", "Show headers (JSON and CSV always include them).", "with_headers")
@option("--raw", "Print only the payloads, each followed by a line end.", "is_raw")
@option(
    "--format TEMPLATE",
    "A template: {partition} {offset} {time} {timestamp} {id} {key} {headers} {payload}, \\t, \\n.",
    "template",
    callback=check_template,
)
def tail_command(
    *,
    place: TopicPath,
    is_followed: bool,
    start: PollingStrategy | str | None,
    last: int | None,
    exit_at_end: bool,
    partition: int | None,
    group: str | None,
    wanted: MessageFilter | None,
    limit: int | None,
    payload_kind: str,
    with_headers: bool,
    is_raw: bool,
    template: str | None,
    output: str,
) -> None:
    """Print messages of a topic: the newest ten, or from any position, optionally as they arrive.

    A line shows the offset (with the partition, if the topic has several), the time at which the server received the
    message, its key if it has one, and the payload: text unchanged, other data as hexadecimal digits.

    The server searches for messages that match a --filter; only ranges that contain some are transferred.
    """
    _check(is_followed=is_followed, start=start, last=last, exit_at_end=exit_at_end, group=group)
    if group is not None and wanted is not None:
        raise click.UsageError("--group and --filter cannot be combined: a group commits all messages that it reads")
    # "latest" without waiting for new messages would print nothing.
    is_followed = is_followed or (start == LATEST and not exit_at_end)
    place = TopicPath(place.stream, place.topic, partition)
    if start is None and last is None and group is None:
        last = _USUAL_COUNT
    style = Style(output, payload_kind, with_headers, is_raw, template)
    reading = TailRequest(place, start, last, is_followed, wanted)

    async def show(client: Client) -> None:
        count = (await client.get_topic(*place.names)).topic.partition_count
        printer = MessagePrinter(style, with_partitions=count > 1 and partition is None)
        try:
            if group is None:
                is_empty = not await _print(read(client, reading), printer, limit)
            else:
                # It applies the limit itself: messages that are polled but not printed must not be committed.
                member = read_as_member(client, place, identifier(group), is_followed=is_followed, limit=limit)
                is_empty = not await _print(member, printer, None)
            if is_empty:
                say(_nothing(place, group, start, wanted))
        finally:
            # Even after Ctrl-C the output must be a complete document.
            printer.close()

    names = sought(group=None if group is None else identifier(group))
    ask_server(show, place, names, is_patient=is_followed)


def _check(*, is_followed: bool, start: object, last: int | None, exit_at_end: bool, group: str | None) -> None:
    if is_followed and exit_at_end:
        raise click.UsageError("--follow and --exit-at-end cannot be combined")
    if start is not None and last is not None:
        raise click.UsageError("--from and --last cannot be combined")
    if group is not None and (start is not None or last is not None):
        raise click.UsageError("--group cannot be combined with --from or --last: a group continues where it stopped")


def _nothing(place: TopicPath, group: str | None, start: object, wanted: MessageFilter | None) -> str:
    """The message if nothing was printed."""
    if group is not None:
        return f'no messages in {place} for group "{group}"'
    where = f"in {place}" + ("" if start is None else " from this position on")
    if wanted is None:
        return f"no messages {where}"
    # Somebody forgot the dot before a path.
    compared = [text for text in wanted.texts if _COMPARISON.match(text)]
    note = f'; no payload contains the text "{compared[0]}", a JSON path is ".{compared[0]}"' if compared else ""
    return f"no matching messages {where}{note}"


async def _print(source: AsyncIterator[list[Message]], printer: MessagePrinter, limit: int | None) -> int:
    count = 0
    async for messages in source:
        shown = messages if limit is None else messages[: limit - count]
        printer.put(shown)
        count += len(shown)
        if count == limit:
            break
    return count
